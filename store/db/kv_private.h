/* kv_private.h - between the kv*.c files, which alone see RocksDB. */
#ifndef STORE_KV_PRIVATE_H
#define STORE_KV_PRIVATE_H

#include <rocksdb/c.h>
#include <stdatomic.h>

#include "store/base/sync.h"
#include "store/db/kv.h"

#define KV_MEMTABLE_BYTES (UINT64_C(16) << 20)

struct kv {
	rocksdb_t *db;
	rocksdb_options_t *options;
	rocksdb_block_based_table_options_t *table;
	rocksdb_cache_t *cache;
	rocksdb_writeoptions_t *write;
	rocksdb_flushoptions_t *flush;
	rocksdb_readoptions_t *read;
	/*
	 * The failure after which RocksDB takes no more writes, until it is
	 * opened again: see kv_log.c. Changed with log_use, alone.
	 */
	atomic_int failed;
	atomic_bool condemned; /* see kv_condemn() */
	atomic_uint openings;
	int64_t mend_due_ns, mend_wait_ns; /* log_use, alone */
	char *dir;
	atomic_uint users; /* who look something up: see kv_enter() */
	atomic_bool closing;
	struct lock gate; /* of who waits for either; a leaf */
	struct cond passed;
	/* A write found no room at all, and none has succeeded since. */
	atomic_bool refused;
	/*
	 * The last change that is in the log, or in a table. Numbers above it
	 * may be in use: of what failed.
	 */
	_Atomic uint64_t logged;
	/* The newest log whose name is known to be on the disk. */
	_Atomic uint64_t log_named;
	/* Shared by who writes and syncs; alone while it is opened again. */
	struct shared_lock log_use;
	/*
	 * One sync of the logs at a time. When one has failed, the kernel says
	 * so once and takes the bytes for written: until it is opened again no
	 * other sync may say that all is well.
	 */
	struct lock log_sync;
	bool sync_failed;
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
