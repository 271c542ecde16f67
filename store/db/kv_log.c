/*
 * kv_log.c - what is written and synced, on a disk that may be full or fail.
 *
 * After any error of the disk RocksDB takes no more writes, and it does not go
 * on by itself (no_resume()). It is closed and opened again here, as if the
 * process had been started anew: what is in its log is all that was written,
 * which `logged` proves. A full disk has to have room for that first.
 *
 * The log is synced here, not by RocksDB: each batch that was applied is in it
 * by one write(2), and a log that another thread's write has failed on must not
 * be touched through RocksDB, which would end the process.
 */
#include "store/db/kv_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "store/base/dir.h"
#include "store/base/log.h"
#include "store/base/scope.h"

/* With less than this on the disk a backup may take the last of it. */
#define KV_ROOM_BYTES (UINT64_C(1) << 30)

/* What only deletions may use: what is in memory fits into it. */
#define KV_DELETIONS_BYTES (KV_MEMTABLE_BYTES + (UINT64_C(8) << 20))

/*
 * A failed database is opened again as often as this: soon at first, and as
 * soon again only when it has worked for a while.
 */
#define KV_MEND_NS_MIN (INT64_C(100) * 1000000)
#define KV_MEND_NS_MAX (INT64_C(5) * 1000000000)
#define KV_MEND_CALM_NS (INT64_C(60) * 1000000000)

/* What opening writes besides all that is in memory. */
#define KV_OPEN_BYTES (UINT64_C(2) << 20)

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

	if (rc == 0 && room_below(kv, KV_ROOM_BYTES))
		rc = -ENOSPC;
	return rc;
}

/* RocksDB has met an error of the disk, and takes no more writes. */
static bool is_hard(int rc)
{
	return rc < 0 && rc != -ENOMEM;
}

/* When it is opened again, it writes to tables what it has in memory. */
static bool has_room_to_open(const struct kv *kv)
{
	uint64_t in_memory = 0;

	if (kv->db)
		(void)rocksdb_property_int(
			kv->db, "rocksdb.cur-size-all-mem-tables", &in_memory);
	return !room_below(kv, in_memory + KV_OPEN_BYTES);
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
		if (now != logged) {
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
		kv->sync_failed = false;
		atomic_fetch_add(&kv->openings, 1);
	}
	kv_gate_open(kv);
	return rc;
}

/* What it says when RocksDB has failed, and goes on failing. */
static void fail(struct kv *kv, int rc)
{
	int64_t now = mono_ns();

	if (atomic_load(&kv->failed) == 0)
		log_error("the database cannot be written: %s; it is opened "
			  "again %s, and what is staged is kept",
			  strerror(-rc),
			  rc == -ENOSPC ? "once there is room"
					: "every few seconds");
	if (rc == -ENOSPC)
		atomic_store(&kv->refused, true);
	atomic_store(&kv->failed, rc);
	if (kv->mend_wait_ns == 0 || now - kv->mend_due_ns > KV_MEND_CALM_NS)
		kv->mend_wait_ns = KV_MEND_NS_MIN;
	else if (kv->mend_wait_ns < KV_MEND_NS_MAX)
		kv->mend_wait_ns *= 2;
	kv->mend_due_ns = now + kv->mend_wait_ns;
}

/*
 * A write or sync failed with rc; `seen` is what `openings` said before it. 0:
 * it is open again, by us or by somebody else.
 */
static int mend(struct kv *kv, int rc, unsigned seen)
{
	shared_lock_write(&kv->log_use);
	if (atomic_load(&kv->failed) == 0 && !atomic_load(&kv->condemned) &&
	    (atomic_load(&kv->openings) != seen ||
	     ((rc != -ENOSPC || has_room_to_open(kv)) && open_again(kv) == 0)))
		rc = 0;
	else
		fail(kv, rc);
	shared_lock_give(&kv->log_use);
	return rc;
}

static int write_once(struct kv *kv, struct kv_batch *b)
{
	char *err = NULL;
	int rc;

	shared_lock_read(&kv->log_use);
	rc = atomic_load(&kv->failed);
	if (rc == 0) {
		rocksdb_write(kv->db, kv->write, kv_writebatch(b), &err);
		rc = kv_error("write", err);
	}
	if (rc == 0) {
		kv_note_logged(kv);
		if (atomic_load(&kv->refused))
			atomic_store(&kv->refused, false);
	}
	shared_lock_give(&kv->log_use);
	return rc;
}

int kv_write(struct kv *kv, struct kv_batch *b)
{
	unsigned seen = atomic_load(&kv->openings);
	int rc = atomic_load(&kv->failed);

	if (rc == -ENOSPC) /* there may be room by now */
		rc = kv_mend(kv);
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
	if (rc < 0 && mono_ns() >= kv->mend_due_ns &&
	    (rc != -ENOSPC || has_room_to_open(kv))) {
		if (open_again(kv) == 0) {
			log_info("the database can be written again");
			rc = 0;
		} else {
			fail(kv, rc);
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
	int rc = atomic_load(&kv->failed);

	if (rc == 0 || (rc == -ENOSPC && !atomic_load(&kv->condemned)))
		return KV_FINE; /* a full disk is no fault of it */
	return atomic_load(&kv->condemned) ? KV_CONDEMNED : KV_FAILING;
}

struct log_sync {
	uint64_t newest; /* the number of a log */
};

static int sync_if_log(void *arg, int dirfd, const char *name)
{
	SCOPED(scope_close) int fd = -1;
	struct log_sync *s = arg;
	char *end;
	uint64_t number = strtoull(name, &end, 10);

	if (end == name || strcmp(end, ".log") != 0)
		return 0;
	fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT) /* one that is not needed */
		return 0;
	if (number > s->newest)
		s->newest = number;
	return fd < 0 || fdatasync(fd) < 0 ? -errno : 0;
}

/* The logs' bytes to the disk, and the name of a new one. */
static int sync_logs(struct kv *kv)
{
	struct log_sync s = { .newest = 0 };
	uint64_t named = atomic_load(&kv->log_named);
	int rc = dir_each(kv->dirfd, ".", sync_if_log, &s);

	if (rc < 0 || s.newest <= named)
		return rc;
	if (fsync(kv->dirfd) < 0)
		return -errno;
	while (named < s.newest &&
	       !atomic_compare_exchange_weak(&kv->log_named, &named, s.newest))
		;
	return 0;
}

/* sync_logs(), unless what an earlier one could not write is lost. */
static int sync_once(struct kv *kv)
{
	int rc;

	HOLD(&kv->log_sync);
	if (kv->sync_failed)
		return -EIO;
	rc = sync_logs(kv);
	kv->sync_failed = rc < 0;
	return rc;
}

static bool can_sync(int failed)
{
	return failed == 0 || failed == -ENOSPC;
}

int kv_sync(struct kv *kv)
{
	unsigned seen = atomic_load(&kv->openings);
	int rc = atomic_load(&kv->failed);
	uint64_t sequence;

	if (!can_sync(rc))
		return rc;
	shared_lock_read(&kv->log_use);
	sequence = atomic_load(&kv->logged);
	rc = atomic_load(&kv->failed);
	if (can_sync(rc))
		rc = sync_once(kv);
	shared_lock_give(&kv->log_use);
	if (rc < 0) /* opened again, it has in tables what the log had */
		rc = mend(kv, rc, seen);
	if (rc == 0 && kv->on_sync)
		kv->on_sync(kv->on_sync_arg, sequence);
	return rc;
}

int kv_finish(struct kv *kv, uint64_t *ret_sequence)
{
	char *err = NULL;
	int rc;

	shared_lock_read(&kv->log_use);
	rc = atomic_load(&kv->failed);
	if (rc == 0)
		rocksdb_flush(kv->db, kv->flush, &err);
	shared_lock_give(&kv->log_use);
	*ret_sequence = atomic_load(&kv->logged);
	return rc < 0 ? rc : kv_error("flush", err);
}
