/*
 * kv_model.c - see kv_model.h. A database is known by its directory; what is
 * asked without one is of the first.
 */
#include "tests/sim/kv_model.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/base/bytes.h"
#include "store/base/scope.h"
#include "tests/sim/disk.h"
#include "tests/sim/kv_map.h"

/* Free on the disk below which nothing should be added: as in kv.c. */
#define SPARE_BYTES (UINT64_C(24) << 20)

struct kv {
	struct database *db;
	struct map *map; /* what this one sees */
	bool readonly;
};

struct kv_iter {
	struct map copy;
	size_t next;
};

#define DATABASES_MAX 4

static struct database {
	bool made;
	char dir[300];
	struct kv_batch *log; /* all that was written */
	size_t log_count, log_room;
	size_t synced; /* of these */
	uint64_t sequence, sequence_synced; /* changes */
	struct map now, durable;
	void (*on_sync)(void *arg, uint64_t sequence);
	void *on_sync_arg;
	void (*on_durable)(void);
	struct chance chance;
	uint64_t one_in;
	bool syncs_only;
	int64_t errors_until_ns;
	bool failed, condemned, full;
} dbs[DATABASES_MAX];

static struct database *const the_first = &dbs[0];

/* --- a crash, and what the checker sees
 * ---------------------------------------- */

static struct database *database_of(const char *dir)
{
	for (unsigned i = 0; dir && i < DATABASES_MAX; i++)
		if (dbs[i].made && strcmp(dbs[i].dir, dir) == 0)
			return &dbs[i];
	return the_first;
}

static void killed(struct database *db)
{
	db->failed = db->condemned = db->full = false;
	db->on_sync = NULL;
}

void kv_model_kill(const char *dir)
{
	killed(database_of(dir));
}

void kv_model_cut(const char *dir, struct chance *c)
{
	struct database *db = database_of(dir);
	size_t keep = db->synced + chance_below(c, db->log_count - db->synced + 1);

	killed(db);
	map_clear(&db->now);
	db->sequence = 0;
	for (size_t i = 0; i < keep; i++) {
		map_apply(&db->now, &db->log[i]);
		db->sequence += db->log[i].count;
	}
	for (size_t i = db->synced; i < keep; i++)
		map_apply(&db->durable, &db->log[i]);
	db->log_count = db->synced = keep;
	db->sequence_synced = db->sequence;
}

uint64_t kv_model_unsynced(void)
{
	return the_first->log_count - the_first->synced;
}

int kv_model_durable(const void *key, size_t key_len, struct kv_slice *ret)
{
	const struct entry *e = map_get(&the_first->durable, key, key_len);

	if (!e)
		return -ENOENT;
	*ret = (struct kv_slice){ e->value.data, e->value.len };
	return 0;
}

void kv_model_on_durable(void (*fn)(void))
{
	the_first->on_durable = fn;
}

void kv_model_errors(uint64_t one_in, bool syncs_only, int64_t until_ns)
{
	struct database *db = the_first;

	db->syncs_only = syncs_only;
	db->chance = chance_of(one_in + (uint64_t)until_ns, 77);
	db->one_in = one_in;
	db->errors_until_ns = until_ns;
}

static int error_now(struct database *db)
{
	if (!db->one_in || sim_clock() >= db->errors_until_ns ||
	    !chance_one_in(&db->chance, db->one_in))
		return 0;
	return chance_one_in(&db->chance, 2) ? -EIO : -ENOSPC;
}

/* --- kv.h
 * --------------------------------------------------------------------- */

/* trust.c looks for them. */
static int make_files(const char *dir)
{
	static const char *const files[][2] = {
		{ "CURRENT", "MANIFEST-000001\n" },
		{ "MANIFEST-000001", "a model\n" },
	};

	for (int i = 0; i < 2; i++) {
		char path[4200];
		int rc;

		(void)snprintf(path, sizeof(path), "%s/%s", dir, files[i][0]);
		rc = disk_put_file(path, files[i][1]);
		if (rc < 0)
			return rc;
	}
	return 0;
}

int kv_open(const char *dir, bool create, struct kv **ret_kv)
{
	struct kv *kv = calloc(1, sizeof(*kv));
	struct database *db = database_of(dir);

	CHECK(kv);
	if (create && db->made && strcmp(db->dir, dir) != 0) {
		while (db->made)
			CHECK(++db < dbs + DATABASES_MAX);
	}
	CHECK(create || db->made);
	if (create) {
		int rc = make_files(dir);

		CHECK(strlen(dir) < sizeof(db->dir));
		(void)snprintf(db->dir, sizeof(db->dir), "%s", dir);

		CHECK(rc == 0);
		db->made = true;
		map_clear(&db->now);
		map_clear(&db->durable);
		db->log_count = db->synced = 0;
		db->sequence = db->sequence_synced = 0;
	}
	kv->db = db;
	kv->map = &db->now;
	*ret_kv = kv;
	return 0;
}

int kv_open_readonly(const char *dir, struct kv **ret_kv)
{
	int rc = kv_open(dir, false, ret_kv);

	if (rc == 0)
		(*ret_kv)->readonly = true;
	return rc;
}

void kv_close(struct kv *kv)
{
	if (kv && !kv->readonly)
		kv->db->on_sync = NULL;
	free(kv);
}

int kv_look(const char *dir, struct kv **ret_kv, uint64_t *ret_sequence,
	    char *text, size_t text_size)
{
	struct database *db = database_of(dir);
	(void)text;
	(void)text_size;
	*ret_sequence = db->sequence;
	return kv_open_readonly(dir, ret_kv);
}

void kv_on_sync(struct kv *kv, void (*fn)(void *, uint64_t), void *arg)
{
	struct database *db = kv->db;
	(void)kv;
	db->on_sync = fn;
	db->on_sync_arg = arg;
}

/* Has it a name's or a file's record: may it be seen by a program? */
static bool is_seen(const struct kv_batch *b)
{
	for (size_t i = 0; i < b->count; i++)
		if (memchr("EF", b->at[i].key.data[0], 2))
			return true;
	return false;
}

static bool has_content(const struct kv_batch *b)
{
	for (size_t i = 0; i < b->count; i++)
		if (b->at[i].key.data[0] == 'F')
			return true;
	return false;
}

/* A power cut could have left each of these states. */
static void make_durable(struct database *db)
{
	while (db->synced < db->log_count) {
		const struct kv_batch *b = &db->log[db->synced++];

		map_apply(&db->durable, b);
		if (db->on_durable && is_seen(b))
			db->on_durable();
	}
	db->sequence_synced = db->sequence;
}

bool kv_model_any_value(char kind, bool (*fn)(void *arg, struct kv_slice),
			void *arg)
{
	const struct database *db = the_first;
	size_t first = map_find(&db->durable, &kind, 1);

	for (size_t i = first; i < db->durable.count; i++) {
		const struct entry *e = &db->durable.at[i];

		if (e->key.data[0] != (uint8_t)kind)
			break;
		if (fn(arg, (struct kv_slice){ e->value.data, e->value.len }))
			return true;
	}
	for (size_t i = db->synced; i < db->log_count; i++)
		for (size_t k = 0; k < db->log[i].count; k++) {
			const struct change *c = &db->log[i].at[k];

			if (c->kind == CHANGE_PUT &&
			    c->key.data[0] == (uint8_t)kind &&
			    fn(arg, (struct kv_slice){ c->value.data,
						       c->value.len }))
				return true;
		}
	return false;
}

int kv_finish(struct kv *kv, uint64_t *ret_sequence)
{
	struct database *db = kv->db;
	int rc = kv_sync(kv);

	*ret_sequence = db->sequence;
	return rc;
}

int kv_get(struct kv *kv, const void *key, size_t key_len, void **ret_value,
	   size_t *ret_len)
{
	const struct entry *e;
	struct text t;

	sim_point("kv", "get");
	e = map_get(kv->map, key, key_len);
	*ret_value = NULL;
	if (!e)
		return -ENOENT;
	t = text_of(e->value.data, e->value.len);
	*ret_value = t.data;
	*ret_len = t.len;
	return 0;
}

int kv_multi_get(struct kv *kv, size_t count, const struct kv_slice *keys,
		 void **ret_values, size_t *ret_lens)
{
	sim_point("kv", "multi_get");
	for (size_t i = 0; i < count; i++) {
		const struct entry *e =
			map_get(kv->map, keys[i].data, keys[i].len);

		ret_values[i] = NULL;
		ret_lens[i] = 0;
		if (e) {
			ret_values[i] =
				text_of(e->value.data, e->value.len).data;
			ret_lens[i] = e->value.len;
		}
	}
	return 0;
}

/* An error that is no lack of room stays until kv_mend(). */
static int fail_now(struct database *db, bool syncs)
{
	int rc = db->condemned || db->failed	? -EIO
		 : syncs || !db->syncs_only ? error_now(db)
					   : 0;

	if (rc == -EIO)
		db->failed = true;
	if (rc == -ENOSPC)
		db->full = true;
	return rc;
}

/* For people: "+F 2" and the like. */
static void print_batch(const struct database *db, const struct kv_batch *b)
{
	fprintf(stderr, "        batch %zu:", db->log_count);
	for (size_t i = 0; i < b->count; i++) {
		const struct change *c = &b->at[i];

		fprintf(stderr, " %c%c", "+-#"[c->kind], c -> key.data[0]);
		if (c->key.len >= 9 && c->key.data[0] != 'M' &&
		    c->key.data[0] != 'H')
			fprintf(stderr, "%llu",
				(unsigned long long)get_be64(c->key.data + 1));
	}
	fprintf(stderr, "\n");
}

int kv_write(struct kv *kv, struct kv_batch *b)
{
	struct database *db = kv->db;
	int rc;

	CHECK(!kv->readonly);
	sim_point("kv", has_content(b) ? SIM_COMMIT : "write");
	rc = fail_now(db, false);
	if (rc < 0)
		return rc;
	db->full = false;
	if (b->count == 0)
		return 0;
	grow(&db->log, db->log_count, &db->log_room, sizeof(*db->log));
	db->log[db->log_count++] = batch_copy(b);
	db->sequence += b->count;
	map_apply(&db->now, b);
	if (sim_traces())
		print_batch(db, b);
	sim_point("kv", "written");
	return 0;
}

int kv_sync(struct kv *kv)
{
	struct database *db = kv->db;
	uint64_t sequence;
	int rc;

	(void)kv;
	sim_point("kv", "sync");
	rc = fail_now(db, true);
	if (rc < 0)
		return rc;
	make_durable(db);
	sequence = db->sequence;
	sim_point("kv", "synced");
	if (db->on_sync)
		db->on_sync(db->on_sync_arg, sequence);
	return 0;
}

int kv_mend(struct kv *kv)
{
	struct database *db = kv->db;
	(void)kv;
	sim_point("kv", "mend");
	if (db->condemned)
		return -EIO;
	db->failed = error_now(db) < 0;
	return db->failed ? -EIO : 0;
}

void kv_condemn(struct kv *kv)
{
	struct database *db = kv->db;
	(void)kv;
	db->condemned = true;
}

enum kv_health kv_health(const struct kv *kv)
{
	const struct database *db = kv->db;

	(void)kv;
	return db->condemned ? KV_CONDEMNED : db->failed ? KV_FAILING : KV_FINE;
}

int kv_room(const struct kv *kv)
{
	return kv_room_for(kv, 0);
}

int kv_room_for(const struct kv *kv, uint64_t bytes)
{
	(void)kv;
	return disk_free() < SPARE_BYTES + bytes ? -ENOSPC : 0;
}

bool kv_is_full(const struct kv *kv)
{
	const struct database *db = kv->db;

	(void)kv;
	return db->full;
}

/* What it is about is copied: RocksDB's iterators see a snapshot. */
static struct kv_iter *iter_of(const struct map *m, const void *prefix,
			       size_t prefix_len, size_t first)
{
	struct kv_iter *it = calloc(1, sizeof(*it));

	CHECK(it);
	for (size_t i = first; i < m->count; i++) {
		const struct entry *e = &m->at[i];

		if (e->key.len < prefix_len ||
		    memcmp(e->key.data, prefix, prefix_len) != 0)
			break;
		grow(&it->copy.at, it->copy.count, &it->copy.room,
		     sizeof(*it->copy.at));
		it->copy.at[it->copy.count++] =
			(struct entry){ text_of(e->key.data, e->key.len),
					text_of(e->value.data, e->value.len) };
	}
	return it;
}

int kv_iter_new(struct kv *kv, const void *prefix, size_t prefix_len,
		const void *start, size_t start_len, struct kv_iter **ret_iter)
{
	const struct map *m = kv->map;
	size_t first = map_find(m, prefix, prefix_len);

	sim_point("kv", "iterate");
	first = map_find(m, prefix, prefix_len);
	if (start && map_find(m, start, start_len) > first)
		first = map_find(m, start, start_len);
	*ret_iter = iter_of(m, prefix, prefix_len, first);
	return 0;
}

int kv_iter_new_before(struct kv *kv, const void *prefix, size_t prefix_len,
		       const void *start, size_t start_len,
		       struct kv_iter **ret_iter)
{
	const struct map *m = kv->map;
	size_t first, at;

	sim_point("kv", "iterate");
	first = map_find(m, prefix, prefix_len);
	at = map_find(m, start, start_len);
	/* The last one that is not larger. */
	if (at == m->count ||
	    text_compare(&m->at[at].key, start, start_len) != 0)
		at = at > first ? at - 1 : first;
	*ret_iter = iter_of(m, prefix, prefix_len, at > first ? at : first);
	return 0;
}

int kv_iter_next(struct kv_iter *it, struct kv_slice *ret_key,
		 struct kv_slice *ret_value)
{
	const struct entry *e;

	if (it->next == it->copy.count)
		return 0;
	e = &it->copy.at[it->next++];
	*ret_key = (struct kv_slice){ e->key.data, e->key.len };
	*ret_value = (struct kv_slice){ e->value.data, e->value.len };
	return 1;
}

void kv_iter_free(struct kv_iter *it)
{
	if (!it)
		return;
	map_clear(&it->copy);
	free(it);
}

/* --- backups: none
 * ------------------------------------------------------------- */

int kv_backup(struct kv *kv, const char *dir, struct kv_backup_info *ret)
{
	(void)kv;
	(void)dir;
	(void)ret;
	return -EOPNOTSUPP;
}

int kv_backup_look(const char *dir, struct kv_backup_info *ret)
{
	(void)dir;
	(void)ret;
	return -ENOENT;
}

int kv_backup_restore(const char *dir, unsigned back, const char *to,
		      struct kv_backup_info *ret)
{
	(void)dir;
	(void)back;
	(void)to;
	(void)ret;
	return -ENOENT;
}
