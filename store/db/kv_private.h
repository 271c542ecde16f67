/* kv_private.h - between the kv*.c files, which alone see RocksDB. */
#ifndef STORE_KV_PRIVATE_H
#define STORE_KV_PRIVATE_H

#include <rocksdb/c.h>
#include <stdatomic.h>

#include "store/base/sync.h"
#include "store/db/kv.h"

#define KV_MEMTABLE_BYTES (UINT64_C(16) << 20)

/* Changes in a row that may be in no log: see keep_something_to_flush(). */
#define KV_UNLOGGED_MAX 4

struct kv {
	rocksdb_t *db;
	rocksdb_options_t *options;
	rocksdb_block_based_table_options_t *table;
	rocksdb_cache_t *cache;
	rocksdb_writeoptions_t *write, *unlogged;
	rocksdb_flushoptions_t *flush;
	rocksdb_readoptions_t *read;
	/*
	 * The failure after which RocksDB takes no more writes, until it is
	 * opened again: see kv_log.c. Changed with log_use, alone.
	 */
	atomic_int failed;
	atomic_bool condemned; /* see kv_condemn() */
	atomic_uint openings;
	int64_t mend_due_ns; /* log_use, alone */
	char *dir;
	atomic_uint users; /* who look something up: see kv_enter() */
	atomic_bool closing;
	struct lock gate; /* of who waits for either; a leaf */
	struct cond passed;
	/*
	 * A write has found the disk full, so the log has an error until
	 * RocksDB resumes with a new one. Builds with assertions (Debian's)
	 * stop the process when such a log is synced, or written to again.
	 */
	atomic_bool full;
	/* A write found no room at all, and none has succeeded since. */
	atomic_bool refused;
	/*
	 * The last change that is in the log, or in a table. Numbers above it
	 * may be in use: of what failed, and of what was written without it.
	 */
	_Atomic uint64_t logged;
	uint64_t unlogged_last; /* the last one written without it; log_use */
	/*
	 * Shared by who writes and syncs. Where the disk may become full
	 * meanwhile (low), or is (full), each has it alone: a sync must not
	 * meet a write that fails, and each write looks at what is in memory
	 * first.
	 */
	struct shared_lock log_use;
	int dirfd;
	void (*on_sync)(void *arg, uint64_t sequence); /* or NULL */
	void *on_sync_arg;
};

/* A batch is RocksDB's own, by the name that others know it by. */
static inline rocksdb_writebatch_t *kv_writebatch(struct kv_batch *b)
{
	return (rocksdb_writebatch_t *)b;
}

/* RocksDB's text to -errno; the text is logged and freed. */
int kv_error(const char *what, char *text);
/* One that is not open; kv_close() ends it. NULL: out of memory. */
struct kv *kv_new(bool create);
/* A batch was written: all that came before it is in the log as well. */
void kv_note_logged(struct kv *kv);
/*
 * kv->db is not closed between these two. -EIO: it could not be opened again,
 * not even to look.
 */
int kv_enter(struct kv *kv);
void kv_leave(struct kv *kv);
/*
 * Keep new users out and wait until there are none. -EBUSY: one of them takes
 * its time, perhaps because it waits for what we hold.
 */
int kv_gate_close(struct kv *kv);
void kv_gate_open(struct kv *kv);
/* Can the log be left alone for a while, and is there room on the disk? */
int kv_calm(struct kv *kv);

#endif
