/*
 * kv.c - the database is opened, read, and gets its batches filled; kv_log.c
 * writes them, kv_iter.c iterates, kv_look.c looks without a change,
 * kv_backup.c makes copies. Memory is bounded here: 2 x 16 MiB of memtable and
 * a 44 MiB block cache, so that a daemon with a million chunks stays small;
 * bloom filters keep a look-up of an unknown hash from touching the disk.
 */
#include "store/db/kv_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/base/io.h"
#include "store/base/log.h"
#include "store/base/scope.h"

#define KV_BLOCK_CACHE_BYTES (44u << 20)
#define KV_OPEN_FILES_MAX 256
/* Opening again waits that long for who looks something up just now. */
#define KV_USERS_WAIT_NS (INT64_C(1) * 1000000000)
#define KV_LOG_FATAL 4 /* rocksdb::FATAL_LEVEL */

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
	 * RocksDB's own log file is an end of the process when writing it fails
	 * and it was built with assertions, as Debian's is (Append() after an
	 * error): what is logged at this level does not happen. One that is
	 * rolled by its size would have a head, whatever the level.
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
	rocksdb_options_set_max_log_file_size(o, 0);
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

struct kv *kv_new(bool create)
{
	struct kv *kv = calloc(1, sizeof(*kv));

	if (!kv)
		return NULL;
	kv->dirfd = -1;
	shared_lock_init(&kv->log_use, LOCK_KV_LOG_USE);
	lock_init(&kv->log_sync, LOCK_KV_LOG_SYNC);
	lock_init(&kv->gate, LOCK_KV_GATE);
	cond_init(&kv->passed);
	kv->options = kv_options(kv, create);
	kv->write = rocksdb_writeoptions_create();
	kv->flush = rocksdb_flushoptions_create(); /* it waits */
	kv->read = rocksdb_readoptions_create();
	return kv;
}

void kv_note_logged(struct kv *kv)
{
	uint64_t now = rocksdb_get_latest_sequence_number(kv->db);
	uint64_t known = atomic_load(&kv->logged);

	while (known < now &&
	       !atomic_compare_exchange_weak(&kv->logged, &known, now))
		;
}

/*
 * RocksDB does not go on by itself after an error. Its thread that tries to
 * would touch a log that has failed, which ends the process where RocksDB was
 * built with assertions (Debian's is), and its end is waited for without a
 * limit when the database is closed. Other errors than a full disk it takes up
 * `resume_count` times. With more than one path for tables it leaves a full
 * disk alone as well (DBImpl::Open(), 7.8 to 10.2); they may be the same.
 */
static int no_resume(struct kv *kv, const char *dir)
{
	rocksdb_options_t *o = rocksdb_options_create();
	rocksdb_dbpath_t *path = rocksdb_dbpath_create(dir, UINT64_MAX);
	const rocksdb_dbpath_t *paths[] = { path, path };
	char *err = NULL;

	rocksdb_get_options_from_string(kv->options,
					"max_bgerror_resume_count=0", o, &err);
	rocksdb_options_set_db_paths(o, paths, 2);
	rocksdb_dbpath_destroy(path);
	rocksdb_options_destroy(kv->options);
	kv->options = o;
	return kv_error("its options", err);
}

static int kv_open_any(const char *dir, bool create, bool readonly,
		       struct kv **ret_kv)
{
	struct kv *kv = kv_new(create);
	char *err = NULL;
	int rc;

	if (!kv)
		return -ENOMEM;
	rc = readonly ? 0 : no_resume(kv, dir);
	if (rc < 0) {
		kv_close(kv);
		return rc;
	}
	if (readonly)
		kv->db = rocksdb_open_for_read_only(kv->options, dir, 0, &err);
	else
		kv->db = rocksdb_open(kv->options, dir, &err);
	rc = kv_error("open", err);
	if (rc < 0)
		kv->db = NULL;
	kv->dir = strdup(dir);
	if (rc == 0 && !kv->dir)
		rc = -ENOMEM;
	if (rc == 0)
		kv->dirfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (rc == 0 && kv->dirfd < 0)
		rc = -errno;
	if (rc < 0) {
		kv_close(kv);
		return rc;
	}
	atomic_store(&kv->condemned, readonly);
	kv_note_logged(kv);
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
	rocksdb_flushoptions_destroy(kv->flush);
	rocksdb_options_destroy(kv->options);
	rocksdb_block_based_options_destroy(kv->table);
	rocksdb_cache_destroy(kv->cache);
	shared_lock_destroy(&kv->log_use);
	lock_destroy(&kv->log_sync);
	lock_destroy(&kv->gate);
	cond_destroy(&kv->passed);
	if (kv->dirfd >= 0)
		close(kv->dirfd);
	free(kv->dir);
	free(kv);
}

/*
 * Who uses the database while it may have to be opened again is counted,
 * without a lock; who wants to open it anew closes the gate, waits until the
 * count is 0, and opens the gate when it is done. A thread that is inside
 * already, because it iterates, passes a closed gate: it would wait for itself.
 * db_depth are this thread's uses that are not over.
 */
static _Thread_local unsigned db_depth;

static void db_drop(struct kv *kv)
{
	if (atomic_fetch_sub(&kv->users, 1) == 1 && atomic_load(&kv->closing)) {
		HOLD(&kv->gate);
		cond_broadcast(&kv->passed);
	}
}

int kv_enter(struct kv *kv)
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

void kv_leave(struct kv *kv)
{
	db_depth--;
	db_drop(kv);
}

int kv_gate_close(struct kv *kv)
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

void kv_gate_open(struct kv *kv)
{
	HOLD(&kv->gate);
	atomic_store(&kv->closing, false);
	cond_broadcast(&kv->passed);
}

void kv_on_sync(struct kv *kv, void (*fn)(void *arg, uint64_t sequence),
		void *arg)
{
	kv->on_sync = fn;
	kv->on_sync_arg = arg;
}

int kv_get(struct kv *kv, const void *key, size_t key_len, void **ret_value,
	   size_t *ret_len)
{
	rocksdb_pinnableslice_t *slice;
	const char *value;
	char *err = NULL;
	void *copy;
	size_t len;
	int rc = kv_enter(kv);

	if (rc < 0)
		return rc;
	slice = rocksdb_get_pinned(kv->db, kv->read, key, key_len, &err);
	rc = kv_error("get", err);
	if (rc < 0 || !slice) {
		kv_leave(kv);
		return rc < 0 ? rc : -ENOENT;
	}
	value = rocksdb_pinnableslice_value(slice, &len);
	copy = malloc(len + 1);
	if (copy && len > 0)
		memcpy(copy, value, len);
	rocksdb_pinnableslice_destroy(slice);
	kv_leave(kv);
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
	int rc = kv_enter(kv);

	if (rc < 0)
		return rc;
	CHECK(count <= KV_MULTI_MAX);
	for (size_t i = 0; i < count; i++) {
		ptrs[i] = keys[i].data;
		lens[i] = keys[i].len;
	}
	rocksdb_multi_get(kv->db, kv->read, count, ptrs, lens, values, ret_lens,
			  errs);
	kv_leave(kv);
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
	return (struct kv_batch *)rocksdb_writebatch_create();
}

void kv_batch_free(struct kv_batch *b)
{
	rocksdb_writebatch_destroy(kv_writebatch(b));
}

void kv_batch_clear(struct kv_batch *b)
{
	rocksdb_writebatch_clear(kv_writebatch(b));
}

void kv_put(struct kv_batch *b, const void *key, size_t key_len,
	    const void *value, size_t value_len)
{
	rocksdb_writebatch_put(kv_writebatch(b), key, key_len, value,
			       value_len);
}

void kv_delete(struct kv_batch *b, const void *key, size_t key_len)
{
	rocksdb_writebatch_delete(kv_writebatch(b), key, key_len);
}

void kv_add(struct kv_batch *b, const void *key, size_t key_len, int64_t delta)
{
	uint64_t le = htole64((uint64_t)delta);

	if (delta != 0)
		rocksdb_writebatch_merge(kv_writebatch(b), key, key_len,
					 (const char *)&le, sizeof(le));
}
