/*
 * kv_log.c - what is written and synced, on a disk that may be full or fail.
 *
 * A full disk is no end: the log that failed is left by RocksDB once it has
 * room again, and until then nothing may touch that log. Any other error ends
 * RocksDB's writing; it is opened again then, as if the process had been
 * started anew, and what is in its log is all that was written, which `logged`
 * proves.
 */
#include "store/db/kv_private.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "store/base/dir.h"
#include "store/base/log.h"
#include "store/base/scope.h"

/* With less than this on the disk a write may find it full. */
#define KV_ROOM_BYTES (UINT64_C(1) << 30)

/* What only deletions may use: what is in memory fits into it. */
#define KV_DELETIONS_BYTES (KV_MEMTABLE_BYTES + (UINT64_C(8) << 20))

/* A failed database is opened again as often as this. */
#define KV_MEND_NS (INT64_C(5) * 1000000000)

static bool room_below(const struct kv *kv, uint64_t bytes)
{
	struct statvfs v;

	return fstatvfs(kv->dirfd, &v) == 0 &&
	       (uint64_t)v.f_bavail * v.f_frsize < bytes;
}

int kv_room_for(const struct kv *kv, uint64_t bytes)
{
	return room_below(kv, KV_DELETIONS_BYTES + bytes) ? -ENOSPC : 0;
}

int kv_room(const struct kv *kv)
{
	return kv_room_for(kv, 0);
}

bool kv_is_full(const struct kv *kv)
{
	return atomic_load(&kv->refused);
}

int kv_calm(struct kv *kv)
{
	int rc = atomic_load(&kv->failed);

	if (rc == 0 &&
	    (atomic_load(&kv->full) || room_below(kv, KV_ROOM_BYTES)))
		rc = -ENOSPC;
	return rc;
}

/* To write or to sync. Returns whether log_use is had alone. */
static bool log_enter(struct kv *kv)
{
	if (!atomic_load(&kv->full) && !room_below(kv, KV_ROOM_BYTES)) {
		shared_lock_read(&kv->log_use);
		if (!atomic_load(&kv->full)) /* while we waited */
			return false;
		shared_lock_give(&kv->log_use);
	}
	shared_lock_write(&kv->log_use);
	return true;
}

/*
 * After a write that found the disk full RocksDB (7.8) resumes by writing out
 * what it has in memory, which begins a new log; when that is nothing, it goes
 * on with the log that failed. So there must be something, and the write must
 * not be the one that changes to the next buffer. log_use is had alone.
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
	kv_delete(b, nothing, sizeof(nothing) - 1);
	rocksdb_write(kv->db, kv->unlogged, kv_writebatch(b), &err);
	kv->unlogged_last = rocksdb_get_latest_sequence_number(kv->db);
	return kv_error("write", err);
}

/* Every error but these stays: the batch may be in the log, or not. */
static bool is_hard(int rc)
{
	return rc < 0 && rc != -ENOSPC && rc != -ENOMEM;
}

/*
 * Open it again, as after a kill; log_use is had alone. What was written is in
 * its tables then, and durable. When that cannot be, it is opened to look only.
 */
static int open_again(struct kv *kv)
{
	uint64_t logged = atomic_load(&kv->logged), now;
	char *err = NULL;
	int rc = kv->dir ? kv_gate_close(kv) : -ENOMEM;

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
	kv_gate_open(kv);
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
	shared_lock_write(&kv->log_use);
	if (atomic_load(&kv->failed) == 0 && !atomic_load(&kv->condemned) &&
	    (atomic_load(&kv->openings) != seen || open_again(kv) == 0))
		rc = 0;
	else
		fail(kv, rc);
	shared_lock_give(&kv->log_use);
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
		rocksdb_write(kv->db, kv->write, kv_writebatch(b), &err);
		rc = kv_error("write", err);
		if (rc == 0)
			kv_note_logged(kv);
		if (rc == -ENOSPC)
			atomic_store(&kv->full, true);
		else if (rc == 0 && alone)
			atomic_store(&kv->full, false);
	}
	if ((rc == 0 || rc == -ENOSPC) && atomic_load(&kv->refused) != (rc < 0))
		atomic_store(&kv->refused, rc < 0);
	shared_lock_give(&kv->log_use);
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
		shared_lock_write(&kv->log_use);
		fail(kv, rc);
		shared_lock_give(&kv->log_use);
	}
	return rc;
}

int kv_mend(struct kv *kv)
{
	int rc = atomic_load(&kv->failed);

	if (rc == 0 || atomic_load(&kv->condemned))
		return rc;
	shared_lock_write(&kv->log_use);
	rc = atomic_load(&kv->failed);
	if (rc < 0 && mono_ns() >= kv->mend_due_ns) {
		kv->mend_due_ns = mono_ns() + KV_MEND_NS;
		if (open_again(kv) == 0) {
			log_info("the database can be written again");
			rc = 0;
		}
	}
	shared_lock_give(&kv->log_use);
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

static int sync_if_log(void *arg, int dirfd, const char *name)
{
	SCOPED(scope_close) int fd = -1;
	const char *end = strrchr(name, '.');

	(void)arg;
	if (!end || strcmp(end, ".log") != 0)
		return 0;
	fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT) /* one that is not needed */
		return 0;
	return fd < 0 || fdatasync(fd) < 0 ? -errno : 0;
}

/*
 * The logs' bytes to the disk without RocksDB, which must not touch the one
 * that failed. Each batch that was applied is in them: it goes there first,
 * with one write(2), which the next one waits for.
 */
static int sync_logs(const struct kv *kv)
{
	int rc = dir_each(kv->dirfd, ".", sync_if_log, NULL);

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
	shared_lock_give(&kv->log_use);
	if (rc < 0) /* opened again, it has in tables what the log had */
		rc = mend(kv, rc, seen);
	if (rc == 0 && kv->on_sync)
		kv->on_sync(kv->on_sync_arg, sequence);
	return rc;
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
	shared_lock_read(&kv->log_use);
	rc = atomic_load(&kv->failed);
	if (rc == 0)
		rocksdb_flush(kv->db, kv->flush, &err);
	shared_lock_give(&kv->log_use);
	*ret_sequence = atomic_load(&kv->logged);
	return rc < 0 ? rc : kv_error("flush", err);
}
