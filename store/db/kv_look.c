/*
 * kv_look.c - looking at a database without changing a byte of it, and whether
 * anything is missing. RocksDB takes a log that lost its end, or a whole file
 * of it, for a shorter log: so the database is opened twice, with its log and
 * as if there were none, and the changes between the two must follow each
 * other.
 */
#include "store/db/kv_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Changes in a row that may be in no log: daemons before this one wrote some
 * past it on a full disk.
 */
#define KV_UNLOGGED_MAX 4

/* Only to look: with its log, or (no_logs) as if there were none. */
static struct kv *look_open(const char *dir, bool no_logs, char **ret_err)
{
	struct kv *kv = kv_new(false);
	char *elsewhere = NULL;

	if (!kv)
		return NULL;
	/* No log of RocksDB's lies beside the database's directory. */
	if (no_logs && asprintf(&elsewhere, "%s/..", dir) > 0)
		rocksdb_options_set_wal_dir(kv->options, elsewhere);
	free(elsewhere);
	kv->db = rocksdb_open_for_read_only(kv->options, dir, 0, ret_err);
	if (!*ret_err)
		return kv;
	kv->db = NULL;
	kv_close(kv);
	return NULL;
}

/* RocksDB's text, which is freed, as an answer to who only looks. */
static int look_error(char *err, char *text, size_t text_size)
{
	int rc = strstr(err, "Corruption") ? -EUCLEAN : -EIO;

	if (strstr(err, "Too many open files"))
		rc = -EMFILE;
	(void)snprintf(text, text_size, "%.*s", (int)strcspn(err, "\n"), err);
	rocksdb_free(err);
	return rc;
}

/*
 * The changes after number `from` follow each other without a gap. A log that
 * is missing between two others, and a list of tables that lost its end, are
 * seen here only.
 */
static bool log_is_whole(struct kv *kv, uint64_t from)
{
	rocksdb_wal_iterator_t *it = NULL;
	uint64_t next = from + 1;
	char *err = NULL;
	bool whole = true;

	for (uint64_t skip = 0; !it && skip <= KV_UNLOGGED_MAX; skip++) {
		err = NULL;
		it = rocksdb_get_updates_since(kv->db, next + skip, NULL, &err);
		if (err) {
			rocksdb_free(err);
			it = NULL;
		}
	}
	if (!it)
		return false;
	while (whole && rocksdb_wal_iter_valid(it)) {
		rocksdb_writebatch_t *wb;
		uint64_t first;

		wb = rocksdb_wal_iter_get_batch(it, &first);
		whole = first <= next + KV_UNLOGGED_MAX;
		next = first + (uint64_t)rocksdb_writebatch_count(wb);
		rocksdb_writebatch_destroy(wb);
		rocksdb_wal_iter_next(it);
	}
	rocksdb_wal_iter_destroy(it);
	return whole;
}

int kv_look(const char *dir, struct kv **ret_kv, uint64_t *ret_sequence,
	    char *text, size_t text_size)
{
	uint64_t all, in_tables;
	char *err = NULL;
	struct kv *kv = look_open(dir, false, &err);
	struct kv *tables = kv ? look_open(dir, true, &err) : NULL;

	if (!tables) {
		kv_close(kv);
		return err ? look_error(err, text, text_size) : -ENOMEM;
	}
	all = rocksdb_get_latest_sequence_number(kv->db);
	in_tables = rocksdb_get_latest_sequence_number(tables->db);
	kv_close(tables);
	if (all > in_tables && !log_is_whole(kv, in_tables)) {
		(void)snprintf(text, text_size,
			       "changes are missing between its tables, which "
			       "reach to number %llu, and the end of its log, "
			       "%llu",
			       (unsigned long long)in_tables,
			       (unsigned long long)all);
		kv_close(kv);
		return -EUCLEAN;
	}
	*ret_kv = kv;
	*ret_sequence = all;
	return 0;
}
