/*
 * kv.c - see kv.h; what a backup is, is in kv_backup.c. Memory is bounded here:
 * 2 x 16 MiB of memtable and a 44 MiB block cache, so that a daemon with a
 * million chunks stays small; bloom filters keep a look-up of an unknown hash
 * from touching the disk.
 */
#include "store/db/kv_private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "store/base/io.h"
#include "store/base/log.h"
#include "store/base/scope.h"

#define KV_MEMTABLE_BYTES ((size_t)16 << 20)
#define KV_BLOCK_CACHE_BYTES (44u << 20)
#define KV_OPEN_FILES_MAX 256

/* With less than this on the disk a write may find it full. */
#define KV_ROOM_BYTES (UINT64_C(1) << 30)

/* What only deletions may use: what is in memory fits into it. */
#define KV_SPARE_BYTES (KV_MEMTABLE_BYTES + (UINT64_C(8) << 20))

#define KV_LOG_FATAL 4 /* rocksdb::FATAL_LEVEL */

/* Changes in a row that may be in no log: see keep_something_to_flush(). */
#define KV_UNLOGGED_MAX 4

/* Opening again waits that long for who looks something up just now ... */
#define KV_USERS_WAIT_NS (INT64_C(1) * 1000000000)
/* ... and comes this often. */
#define KV_MEND_NS (INT64_C(5) * 1000000000)

struct kv {
	rocksdb_t *db;
	rocksdb_options_t *options;
	rocksdb_block_based_table_options_t *table;
	rocksdb_cache_t *cache;
	rocksdb_writeoptions_t *write, *unlogged;
	rocksdb_flushoptions_t *flush;
	rocksdb_readoptions_t *read;
	/*
	 * The failure after which RocksDB takes no more writes. It is opened
	 * again then, at once and now and then (kv_mend()), as if the process
	 * had been started anew: what is in the log is all that was written,
	 * which `logged` proves. Changed under the turn, alone.
	 */
	atomic_int failed;
	atomic_bool condemned; /* see kv_condemn() */
	atomic_uint openings;
	int64_t mend_due_ns; /* the turn, alone */
	char *dir;
	/*
	 * Who looks something up is counted, so that the database is not
	 * closed meanwhile: see db_enter().
	 */
	atomic_uint users;
	atomic_bool closing;
	struct lock gate; /* of who waits for either; a leaf */
	struct cond passed;
	/*
	 * A write has found the disk full, so the log has an error until
	 * RocksDB resumes with a new one. Builds with assertions (Debian's)
	 * stop the process when such a log is synced, or written to again.
	 */
	atomic_bool full;
	/* A write was refused for want of room, and none has succeeded since.
	 */
	atomic_bool refused;
	/*
	 * The last change that is in the log, or in a table. Numbers above it
	 * may be in use: of what failed, and of what was written without it.
	 */
	_Atomic uint64_t logged;
	uint64_t unlogged_last; /* the last one written without it; the turn */
	/*
	 * Shared by who writes and syncs. Where the disk may become full
	 * meanwhile (low), or is (full), each has it alone: a sync must not
	 * meet a write that fails, and each write looks at what is in memory
	 * first.
	 */
	struct shared_lock turn;
	int dirfd;
	void (*on_sync)(void *arg, uint64_t sequence); /* or NULL */
	void *on_sync_arg;
};

struct kv_batch {
	rocksdb_writebatch_t *wb;
};

struct kv_iter {
	struct kv *kv;
	rocksdb_iterator_t *it;
	rocksdb_readoptions_t *read;
	uint8_t *prefix;
	size_t prefix_len;
	uint8_t *bound; /* the first key after all that begin with prefix */
	bool started;
};

int kv_error(const char *what, char *text)
{
	int rc = -EIO;

	if (!text)
		return 0;
	if (strstr(text, "No space left") || strstr(text, "NoSpace"))
		rc = -ENOSPC;
	else if (strstr(text, "lock file") || strstr(text, "LOCK"))
		rc = -EBUSY;
	log_error("database: %s: %s", what, text);
	rocksdb_free(text);
	return rc;
}

static rocksdb_options_t *kv_options(struct kv *kv, bool create)
{
	rocksdb_options_t *o = rocksdb_options_create();

	kv->cache = rocksdb_cache_create_lru(KV_BLOCK_CACHE_BYTES);
	kv->table = rocksdb_block_based_options_create();
	rocksdb_block_based_options_set_block_cache(kv->table, kv->cache);
	rocksdb_block_based_options_set_filter_policy(
		kv->table, rocksdb_filterpolicy_create_bloom_full(10));
	/*
	 * In parts of some KiB. A whole filter of a million keys is larger than
	 * one of the cache's shards: it would be read for each look-up.
	 */
	rocksdb_block_based_options_set_index_type(
		kv->table,
		rocksdb_block_based_table_index_type_two_level_index_search);
	rocksdb_block_based_options_set_partition_filters(kv->table, 1);
	rocksdb_block_based_options_set_pin_top_level_index_and_filter(
		kv->table, 1);
	rocksdb_block_based_options_set_cache_index_and_filter_blocks(kv->table,
								      1);
	rocksdb_block_based_options_set_pin_l0_filter_and_index_blocks_in_cache(
		kv->table, 1);
	/*
	 * RocksDB's own log file is an end of the process when the disk is full
	 * and it was built with assertions, as Debian's is (Append() after an
	 * error): what is logged at this level does not happen.
	 */
	rocksdb_options_set_info_log_level(o, KV_LOG_FATAL);
	rocksdb_options_set_block_based_table_factory(o, kv->table);
	/* Most of it is hashes: there is nothing to be gained. */
	rocksdb_options_set_compression(o, rocksdb_no_compression);
	rocksdb_options_set_create_if_missing(o, create);
	rocksdb_options_set_write_buffer_size(o, KV_MEMTABLE_BYTES);
	rocksdb_options_set_max_write_buffer_number(o, 2);
	rocksdb_options_set_max_open_files(
		o, (int)io_fd_share(20, KV_OPEN_FILES_MAX));
	rocksdb_options_set_max_background_jobs(o, 2);
	rocksdb_options_set_max_total_wal_size(o, 4 * KV_MEMTABLE_BYTES);
	rocksdb_options_set_keep_log_file_num(o, 2);
	rocksdb_options_set_max_log_file_size(o, 1u << 20);
	rocksdb_options_set_max_manifest_file_size(o, 4u << 20);
	rocksdb_options_set_uint64add_merge_operator(o);
	rocksdb_options_set_paranoid_checks(o, 1);
	/*
	 * The log is a prefix of what was written, never with a gap. Its files
	 * are not tracked in the list of tables: before 7.9 that says after a
	 * sync beside a flush that one is missing which is not wanted any more
	 * (facebook/rocksdb#10892), and kv_look() sees by the numbers of the
	 * changes if one is.
	 */
	rocksdb_options_set_wal_recovery_mode(o,
					      rocksdb_point_in_time_recovery);
	return o;
}

static bool room_below(const struct kv *kv, uint64_t bytes)
{
	struct statvfs v;

	return fstatvfs(kv->dirfd, &v) == 0 &&
	       (uint64_t)v.f_bavail * v.f_frsize < bytes;
}

static void kv_alloc(struct kv *kv, bool create)
{
	lock_init(&kv->gate, LOCK_KV_GATE);
	cond_init(&kv->passed);
	kv->options = kv_options(kv, create);
	kv->write = rocksdb_writeoptions_create();
	kv->unlogged = rocksdb_writeoptions_create();
	rocksdb_writeoptions_disable_WAL(kv->unlogged, 1);
	kv->flush = rocksdb_flushoptions_create(); /* it waits */
	kv->read = rocksdb_readoptions_create();
}

/* A batch was written: all that came before it is in the log as well. */
static void note_logged(struct kv *kv)
{
	uint64_t now = rocksdb_get_latest_sequence_number(kv->db);
	uint64_t known = atomic_load(&kv->logged);

	while (known < now &&
	       !atomic_compare_exchange_weak(&kv->logged, &known, now))
		;
}

/* --- who uses the database while it may be opened again --- */

/* This thread's uses that are not over: who iterates looks things up, too. */
static _Thread_local unsigned db_depth;

static void db_drop(struct kv *kv)
{
	if (atomic_fetch_sub(&kv->users, 1) == 1 && atomic_load(&kv->closing)) {
		HOLD(&kv->gate);
		cond_broadcast(&kv->passed);
	}
}

/* -EIO: it could not be opened again, not even to look. */
static int db_enter(struct kv *kv)
{
	for (;;) {
		atomic_fetch_add(&kv->users, 1);
		if (db_depth > 0 || !atomic_load(&kv->closing))
			break;
		db_drop(kv);
		HOLD(&kv->gate);
		while (atomic_load(&kv->closing))
			cond_wait(&kv->passed, &kv->gate);
	}
	if (!kv->db) {
		db_drop(kv);
		return -EIO;
	}
	db_depth++;
	return 0;
}

static void db_leave(struct kv *kv)
{
	db_depth--;
	db_drop(kv);
}

/*
 * Keep new users out and wait until there are none. -EBUSY: one of them takes
 * its time, perhaps because it waits for what we hold.
 */
static int db_close_gate(struct kv *kv)
{
	int64_t until = mono_ns() + KV_USERS_WAIT_NS;
	bool in_time = true;

	if (db_depth > 0)
		return -EBUSY;
	HOLD(&kv->gate);
	atomic_store(&kv->closing, true);
	while (in_time && atomic_load(&kv->users) > 0)
		in_time = cond_wait_until(&kv->passed, &kv->gate, until);
	if (in_time)
		return 0;
	atomic_store(&kv->closing, false);
	cond_broadcast(&kv->passed);
	return -EBUSY;
}

static void db_open_gate(struct kv *kv)
{
	HOLD(&kv->gate);
	atomic_store(&kv->closing, false);
	cond_broadcast(&kv->passed);
}

static int kv_open_any(const char *dir, bool create, bool readonly,
		       struct kv **ret_kv)
{
	struct kv *kv = calloc(1, sizeof(*kv));
	char *err = NULL;
	int rc;

	if (!kv)
		return -ENOMEM;
	kv->dirfd = -1;
	shared_lock_init(&kv->turn, LOCK_KV_TURN);
	kv_alloc(kv, create);
	if (readonly)
		kv->db = rocksdb_open_for_read_only(kv->options, dir, 0, &err);
	else
		kv->db = rocksdb_open(kv->options, dir, &err);
	rc = kv_error("open", err);
	if (rc < 0) {
		kv->db = NULL;
		kv_close(kv);
		return rc;
	}
	kv->dirfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	kv->dir = strdup(dir);
	atomic_store(&kv->condemned, readonly);
	note_logged(kv);
	*ret_kv = kv;
	return 0;
}

int kv_open(const char *dir, bool create, struct kv **ret_kv)
{
	return kv_open_any(dir, create, false, ret_kv);
}

int kv_open_readonly(const char *dir, struct kv **ret_kv)
{
	return kv_open_any(dir, false, true, ret_kv);
}

void kv_close(struct kv *kv)
{
	if (!kv)
		return;
	if (kv->db)
		rocksdb_close(kv->db);
	rocksdb_readoptions_destroy(kv->read);
	rocksdb_writeoptions_destroy(kv->write);
	rocksdb_writeoptions_destroy(kv->unlogged);
	rocksdb_flushoptions_destroy(kv->flush);
	rocksdb_options_destroy(kv->options);
	rocksdb_block_based_options_destroy(kv->table);
	rocksdb_cache_destroy(kv->cache);
	shared_lock_destroy(&kv->turn);
	lock_destroy(&kv->gate);
	cond_destroy(&kv->passed);
	if (kv->dirfd >= 0)
		close(kv->dirfd);
	free(kv->dir);
	free(kv);
}

/* Only to look: with its log, or (no_logs) as if there were none. */
static struct kv *look_open(const char *dir, bool no_logs, char **ret_err)
{
	struct kv *kv = calloc(1, sizeof(*kv));
	char *elsewhere = NULL;

	if (!kv)
		return NULL;
	kv->dirfd = -1;
	shared_lock_init(&kv->turn, LOCK_KV_TURN);
	kv_alloc(kv, false);
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

	/* Where keep_something_to_flush() wrote, a number is in no log. */
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
	struct kv *kv, *tables;
	char *err = NULL;

	kv = look_open(dir, false, &err);
	if (!kv)
		return err ? look_error(err, text, text_size) : -ENOMEM;
	tables = look_open(dir, true, &err);
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

void kv_on_sync(struct kv *kv, void (*fn)(void *arg, uint64_t sequence),
		void *arg)
{
	kv->on_sync = fn;
	kv->on_sync_arg = arg;
}

int kv_finish(struct kv *kv, uint64_t *ret_sequence)
{
	int rc = atomic_load(&kv->failed);
	char *err = NULL;

	if (rc < 0)
		return rc;
	/* The log that failed cannot be left but by RocksDB itself. */
	if (atomic_load(&kv->full))
		return -ENOSPC;
	shared_lock_read(&kv->turn);
	rc = atomic_load(&kv->failed);
	if (rc == 0)
		rocksdb_flush(kv->db, kv->flush, &err);
	shared_lock_give(&kv->turn);
	*ret_sequence = atomic_load(&kv->logged);
	return rc < 0 ? rc : kv_error("flush", err);
}

int kv_get(struct kv *kv, const void *key, size_t key_len, void **ret_value,
	   size_t *ret_len)
{
	rocksdb_pinnableslice_t *slice;
	const char *value;
	char *err = NULL;
	void *copy;
	size_t len;
	int rc = db_enter(kv);

	if (rc < 0)
		return rc;
	slice = rocksdb_get_pinned(kv->db, kv->read, key, key_len, &err);
	rc = kv_error("get", err);
	if (rc < 0 || !slice) {
		db_leave(kv);
		return rc < 0 ? rc : -ENOENT;
	}
	value = rocksdb_pinnableslice_value(slice, &len);
	copy = malloc(len + 1);
	if (copy && len > 0)
		memcpy(copy, value, len);
	rocksdb_pinnableslice_destroy(slice);
	db_leave(kv);
	if (!copy)
		return -ENOMEM;
	*ret_value = copy;
	*ret_len = len;
	return 0;
}

int kv_multi_get(struct kv *kv, size_t count, const struct kv_slice *keys,
		 void **ret_values, size_t *ret_lens)
{
	const char *ptrs[KV_MULTI_MAX] = { NULL };
	size_t lens[KV_MULTI_MAX] = { 0 };
	char *values[KV_MULTI_MAX];
	char *errs[KV_MULTI_MAX];
	int rc = db_enter(kv);

	if (rc < 0)
		return rc;
	CHECK(count <= KV_MULTI_MAX);
	for (size_t i = 0; i < count; i++) {
		ptrs[i] = keys[i].data;
		lens[i] = keys[i].len;
	}
	rocksdb_multi_get(kv->db, kv->read, count, ptrs, lens, values, ret_lens,
			  errs);
	db_leave(kv);
	for (size_t i = 0; i < count; i++) {
		int one = kv_error("get", errs[i]);

		if (one < 0)
			rc = one;
		ret_values[i] = values[i];
	}
	if (rc < 0)
		for (size_t i = 0; i < count; i++) {
			free(ret_values[i]);
			ret_values[i] = NULL;
		}
	return rc;
}

struct kv_batch *kv_batch_new(void)
{
	struct kv_batch *b = calloc(1, sizeof(*b));

	if (b)
		b->wb = rocksdb_writebatch_create();
	return b;
}

void kv_batch_free(struct kv_batch *b)
{
	if (!b)
		return;
	rocksdb_writebatch_destroy(b->wb);
	free(b);
}

void kv_batch_clear(struct kv_batch *b)
{
	rocksdb_writebatch_clear(b->wb);
}

void kv_put(struct kv_batch *b, const void *key, size_t key_len,
	    const void *value, size_t value_len)
{
	rocksdb_writebatch_put(b->wb, key, key_len, value, value_len);
}

void kv_delete(struct kv_batch *b, const void *key, size_t key_len)
{
	rocksdb_writebatch_delete(b->wb, key, key_len);
}

void kv_add(struct kv_batch *b, const void *key, size_t key_len, int64_t delta)
{
	uint64_t le = htole64((uint64_t)delta);

	if (delta != 0)
		rocksdb_writebatch_merge(b->wb, key, key_len, (const char *)&le,
					 sizeof(le));
}

int kv_room_for(const struct kv *kv, uint64_t bytes)
{
	return room_below(kv, KV_SPARE_BYTES + bytes) ? -ENOSPC : 0;
}

int kv_borrow(struct kv *kv, rocksdb_t **ret_db)
{
	int rc = db_enter(kv);

	if (rc == 0)
		*ret_db = kv->db;
	return rc;
}

void kv_return(struct kv *kv)
{
	db_leave(kv);
}

int kv_calm(struct kv *kv)
{
	int rc = atomic_load(&kv->failed);

	if (rc == 0 &&
	    (atomic_load(&kv->full) || room_below(kv, KV_ROOM_BYTES)))
		rc = -ENOSPC;
	return rc;
}

int kv_room(const struct kv *kv)
{
	return kv_room_for(kv, 0);
}

bool kv_is_full(const struct kv *kv)
{
	return atomic_load(&kv->refused);
}

/* To write or to sync. Returns whether the turn is had alone. */
static bool log_enter(struct kv *kv)
{
	if (!atomic_load(&kv->full) && !room_below(kv, KV_ROOM_BYTES)) {
		shared_lock_read(&kv->turn);
		if (!atomic_load(&kv->full)) /* while we waited */
			return false;
		shared_lock_give(&kv->turn);
	}
	shared_lock_write(&kv->turn);
	return true;
}

/*
 * After a write that found the disk full RocksDB (7.8) resumes by writing out
 * what it has in memory, which begins a new log; when that is nothing, it goes
 * on with the log that failed. So there must be something, and the write must
 * not be the one that changes to the next buffer. The turn is had alone.
 */
static int keep_something_to_flush(struct kv *kv)
{
	static const char nothing[] = "~"; /* no record has this key */
	SCOPED(scope_batch) struct kv_batch *b = NULL;
	uint64_t size = 0, entries = 0;
	char *err = NULL;

	if (rocksdb_property_int(kv->db, "rocksdb.cur-size-active-mem-table",
				 &size) < 0)
		return 0;
	/* The log that failed cannot be left but by RocksDB itself. */
	if (size > KV_MEMTABLE_BYTES / 4 * 3 && !atomic_load(&kv->full))
		rocksdb_flush(kv->db, kv->flush, &err);
	if (err ||
	    rocksdb_property_int(kv->db, "rocksdb.num-entries-active-mem-table",
				 &entries) < 0 ||
	    entries > 0)
		return kv_error("flush", err);
	b = kv_batch_new();
	if (!b)
		return -ENOMEM;
	kv_delete(b, nothing, sizeof(nothing) - 1);
	rocksdb_write(kv->db, kv->unlogged, b->wb, &err);
	kv->unlogged_last = rocksdb_get_latest_sequence_number(kv->db);
	return kv_error("write", err);
}

/* Every error but these stays: the batch may be in the log, or not. */
static bool is_hard(int rc)
{
	return rc < 0 && rc != -ENOSPC && rc != -ENOMEM;
}

/*
 * Open it again, as after a kill; the turn is had alone. What was written is in
 * its tables then, and durable. When that cannot be, it is opened to look only.
 */
static int open_again(struct kv *kv)
{
	uint64_t logged = atomic_load(&kv->logged), now;
	char *err = NULL;
	int rc = kv->dir ? db_close_gate(kv) : -ENOMEM;

	if (rc < 0)
		return rc;
	if (kv->db)
		rocksdb_close(kv->db);
	kv->db = rocksdb_open(kv->options, kv->dir, &err);
	rc = kv_error("open it again", err);
	if (rc == 0) {
		now = rocksdb_get_latest_sequence_number(kv->db);
		if (now != logged && now != kv->unlogged_last) {
			log_error("database: after an error it has changes up "
				  "to number %llu, not %llu",
				  (unsigned long long)now,
				  (unsigned long long)logged);
			atomic_store(&kv->condemned, true);
			rocksdb_close(kv->db);
			rc = -EIO;
		}
	}
	if (rc < 0) {
		err = NULL;
		kv->db = rocksdb_open_for_read_only(kv->options, kv->dir, 0,
						    &err);
		if (kv_error("open it to look", err) < 0)
			kv->db = NULL;
	} else {
		atomic_store(&kv->failed, 0);
		atomic_store(&kv->full, false);
		atomic_fetch_add(&kv->openings, 1);
	}
	db_open_gate(kv);
	return rc;
}

/* What it says when RocksDB has failed, and goes on failing. */
static void fail(struct kv *kv, int rc)
{
	if (atomic_load(&kv->failed) == 0)
		log_error("the database cannot be written: %s; it is opened "
			  "again every few seconds, and what is staged is kept",
			  strerror(-rc));
	atomic_store(&kv->failed, rc);
	kv->mend_due_ns = mono_ns() + KV_MEND_NS;
}

/*
 * A write or sync failed with rc; `seen` is what `openings` said before it. 0:
 * it is open again, by us or by somebody else.
 */
static int mend(struct kv *kv, int rc, unsigned seen)
{
	shared_lock_write(&kv->turn);
	if (atomic_load(&kv->failed) == 0 && !atomic_load(&kv->condemned) &&
	    (atomic_load(&kv->openings) != seen || open_again(kv) == 0))
		rc = 0;
	else
		fail(kv, rc);
	shared_lock_give(&kv->turn);
	return rc;
}

static int write_once(struct kv *kv, struct kv_batch *b)
{
	bool alone = log_enter(kv);
	int rc = atomic_load(&kv->failed);
	char *err = NULL;

	if (rc == 0 && alone)
		rc = keep_something_to_flush(kv);
	if (rc == 0) {
		rocksdb_write(kv->db, kv->write, b->wb, &err);
		rc = kv_error("write", err);
		if (rc == 0)
			note_logged(kv);
		if (rc == -ENOSPC)
			atomic_store(&kv->full, true);
		else if (rc == 0 && alone)
			atomic_store(&kv->full, false);
	}
	if ((rc == 0 || rc == -ENOSPC) && atomic_load(&kv->refused) != (rc < 0))
		atomic_store(&kv->refused, rc < 0);
	shared_lock_give(&kv->turn);
	return rc;
}

int kv_write(struct kv *kv, struct kv_batch *b)
{
	unsigned seen = atomic_load(&kv->openings);
	int rc = atomic_load(&kv->failed);

	if (rc < 0)
		return rc;
	rc = write_once(kv, b);
	if (!is_hard(rc))
		return rc;
	rc = mend(kv, rc, seen);
	if (rc < 0)
		return rc;
	rc = write_once(kv, b);
	if (is_hard(rc)) { /* and once more: it is not one error */
		shared_lock_write(&kv->turn);
		fail(kv, rc);
		shared_lock_give(&kv->turn);
	}
	return rc;
}

int kv_mend(struct kv *kv)
{
	int rc = atomic_load(&kv->failed);

	if (rc == 0 || atomic_load(&kv->condemned))
		return rc;
	shared_lock_write(&kv->turn);
	rc = atomic_load(&kv->failed);
	if (rc < 0 && mono_ns() >= kv->mend_due_ns) {
		kv->mend_due_ns = mono_ns() + KV_MEND_NS;
		if (open_again(kv) == 0) {
			log_info("the database can be written again");
			rc = 0;
		}
	}
	shared_lock_give(&kv->turn);
	return rc;
}

void kv_condemn(struct kv *kv)
{
	if (!atomic_exchange(&kv->condemned, true))
		log_error("the database cannot be written any more: mend the "
			  "disk, unmount and mount again; what is staged is "
			  "kept");
}

enum kv_health kv_health(const struct kv *kv)
{
	if (atomic_load(&kv->failed) == 0)
		return KV_FINE;
	return atomic_load(&kv->condemned) ? KV_CONDEMNED : KV_FAILING;
}

/*
 * The logs' bytes to the disk without RocksDB, which must not touch the one
 * that failed. Each batch that was applied is in them: it goes there first,
 * with one write(2), which the next one waits for.
 */
static int sync_logs(const struct kv *kv)
{
	int fd = openat(kv->dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *d;
	int rc = 0;

	if (!dir) {
		rc = -errno;
		if (fd >= 0)
			close(fd);
		return rc;
	}
	while (rc == 0 && (d = readdir(dir)) != NULL) {
		const char *end = strrchr(d->d_name, '.');

		if (!end || strcmp(end, ".log") != 0)
			continue;
		fd = openat(kv->dirfd, d->d_name, O_RDONLY | O_CLOEXEC);
		if (fd < 0 && errno == ENOENT) /* one that is not needed */
			continue;
		if (fd < 0 || fdatasync(fd) < 0)
			rc = -errno;
		if (fd >= 0)
			close(fd);
	}
	closedir(dir);
	return rc == 0 && fsync(kv->dirfd) < 0 ? -errno : rc;
}

int kv_sync(struct kv *kv)
{
	unsigned seen = atomic_load(&kv->openings);
	int rc = atomic_load(&kv->failed);
	uint64_t sequence;
	char *err = NULL;

	if (rc < 0)
		return rc;
	(void)log_enter(kv);
	sequence = atomic_load(&kv->logged);
	rc = atomic_load(&kv->failed);
	if (rc == 0 && atomic_load(&kv->full)) {
		rc = sync_logs(kv);
	} else if (rc == 0) {
		rocksdb_flush_wal(kv->db, 1, &err);
		rc = kv_error("sync", err);
	}
	shared_lock_give(&kv->turn);
	if (rc < 0) /* opened again, it has in tables what the log had */
		rc = mend(kv, rc, seen);
	if (rc == 0 && kv->on_sync)
		kv->on_sync(kv->on_sync_arg, sequence);
	return rc;
}

/*
 * Without bounds a search that finds nothing goes on through all that was
 * deleted around the prefix: seconds, after a million deletions.
 */
static bool iter_bound(struct kv_iter *it)
{
	size_t len = it->prefix_len;

	rocksdb_readoptions_set_iterate_lower_bound(
		it->read, (const char *)it->prefix, it->prefix_len);
	while (len > 0 && it->prefix[len - 1] == 0xff)
		len--;
	if (len == 0)
		return true;
	it->bound = malloc(len);
	if (!it->bound)
		return false;
	memcpy(it->bound, it->prefix, len);
	it->bound[len - 1]++;
	rocksdb_readoptions_set_iterate_upper_bound(
		it->read, (const char *)it->bound, len);
	return true;
}

static struct kv_iter *iter_alloc(struct kv *kv, const void *prefix,
				  size_t prefix_len)
{
	struct kv_iter *it = calloc(1, sizeof(*it));

	if (!it)
		return NULL;
	it->prefix = malloc(prefix_len + 1);
	if (!it->prefix) {
		free(it);
		return NULL;
	}
	memcpy(it->prefix, prefix, prefix_len);
	it->prefix_len = prefix_len;
	it->read = rocksdb_readoptions_create();
	if (!iter_bound(it)) {
		rocksdb_readoptions_destroy(it->read);
		free(it->prefix);
		free(it);
		return NULL;
	}
	it->kv = kv;
	if (db_enter(kv) == 0)
		it->it = rocksdb_create_iterator(kv->db, it->read);
	return it;
}

int kv_iter_new(struct kv *kv, const void *prefix, size_t prefix_len,
		const void *start, size_t start_len, struct kv_iter **ret_iter)
{
	struct kv_iter *it = iter_alloc(kv, prefix, prefix_len);

	if (!it)
		return -ENOMEM;
	if (!it->it) {
		kv_iter_free(it);
		return -EIO;
	}
	if (start)
		rocksdb_iter_seek(it->it, start, start_len);
	else
		rocksdb_iter_seek(it->it, prefix, prefix_len);
	*ret_iter = it;
	return 0;
}

int kv_iter_new_before(struct kv *kv, const void *prefix, size_t prefix_len,
		       const void *start, size_t start_len,
		       struct kv_iter **ret_iter)
{
	struct kv_iter *it = iter_alloc(kv, prefix, prefix_len);
	const char *p;
	size_t len;

	if (!it)
		return -ENOMEM;
	if (!it->it) {
		kv_iter_free(it);
		return -EIO;
	}
	rocksdb_iter_seek_for_prev(it->it, start, start_len);
	p = rocksdb_iter_valid(it->it) ? rocksdb_iter_key(it->it, &len) : NULL;
	if (!p || len < prefix_len || memcmp(p, prefix, prefix_len) != 0)
		rocksdb_iter_seek(it->it, start, start_len);
	*ret_iter = it;
	return 0;
}

int kv_iter_next(struct kv_iter *it, struct kv_slice *ret_key,
		 struct kv_slice *ret_value)
{
	char *err = NULL;
	const char *p;
	size_t len;

	if (it->started && rocksdb_iter_valid(it->it))
		rocksdb_iter_next(it->it);
	it->started = true;
	if (!rocksdb_iter_valid(it->it)) {
		rocksdb_iter_get_error(it->it, &err);
		return kv_error("iterate", err);
	}
	p = rocksdb_iter_key(it->it, &len);
	if (len < it->prefix_len || memcmp(p, it->prefix, it->prefix_len) != 0)
		return 0;
	*ret_key = (struct kv_slice){ p, len };
	p = rocksdb_iter_value(it->it, &len);
	*ret_value = (struct kv_slice){ p, len };
	return 1;
}

void kv_iter_free(struct kv_iter *it)
{
	if (!it)
		return;
	if (it->it) {
		rocksdb_iter_destroy(it->it);
		db_leave(it->kv);
	}
	rocksdb_readoptions_destroy(it->read);
	free(it->prefix);
	free(it->bound);
	free(it);
}
