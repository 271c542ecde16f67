/*
 * kv.h - the ordered key-value database of a store: the only door to RocksDB.
 *
 * One column family, one write-ahead log. A batch is atomic, and batches
 * survive a crash of the machine as a prefix of the order in which they were
 * written: if one is there, all earlier ones are.
 *
 * Errors:  0 or a negative errno. RocksDB's text is logged here once, because
 *          its status is lost at this door: -EIO for corruption and I/O,
 *          -ENOSPC for a full disk.
 * Threads: any thread may call anything, except kv_close().
 * Blocking: kv_write() copies into the page cache; kv_sync() waits for the
 * disk.
 */
#ifndef STORE_KV_H
#define STORE_KV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kv;
struct kv_batch;
struct kv_iter;

/* A borrowed byte string. */
struct kv_slice {
	const void *data;
	size_t len;
};

/* Open the database in dir, making it if `create`. */
int kv_open(const char *dir, bool create, struct kv **ret_kv);
/* Read-only: an offline check must not change what it looks at. */
int kv_open_readonly(const char *dir, struct kv **ret_kv);
void kv_close(struct kv *kv);

/*
 * Look at the database in dir without changing a byte of it, its log
 * included. *ret_sequence is the number of its last change; numbers only grow.
 * *ret_kv is the caller's, for reading.
 * -EUCLEAN: it is damaged, or changes are missing between what its tables hold
 * and what its log holds. -EIO: it cannot be read. `text` says what.
 */
int kv_look(const char *dir, struct kv **ret_kv, uint64_t *ret_sequence,
	    char *text, size_t text_size);
/* fn is told the number of the last change that a kv_sync() made durable. */
void kv_on_sync(struct kv *kv, void (*fn)(void *arg, uint64_t sequence),
		void *arg);
/*
 * Before kv_close(): what is in memory goes to tables, so that the log is empty
 * afterwards. *ret_sequence: of the last change, which is durable then.
 */
int kv_finish(struct kv *kv, uint64_t *ret_sequence);

/*
 * Backups: copies that share what did not change, in a directory of their own.
 * kv_backup.c.
 */
struct kv_backup_info {
	uint32_t id;
	uint64_t bytes;
	int64_t at_ns; /* when it was made */
};
#define KV_BACKUPS_KEPT 2
/*
 * Make one, and leave no more than the last two. Nobody who writes waits for
 * it. -ENOSPC: the disk has little room, and nothing was done.
 */
int kv_backup(struct kv *kv, const char *dir, struct kv_backup_info *ret);
/* The last one. -ENOENT: there is none. */
int kv_backup_look(const char *dir, struct kv_backup_info *ret);
/*
 * The one before the last `back` ones becomes a database in `to`, a directory
 * that is empty. -ENOENT: there is none. -EIO: it is damaged.
 */
int kv_backup_restore(const char *dir, unsigned back, const char *to,
		      struct kv_backup_info *ret);

/*
 * The value of key into a buffer that the caller frees. -ENOENT: none.
 * *ret_value is NULL only on failure, also for an empty value.
 */
int kv_get(struct kv *kv, const void *key, size_t key_len, void **ret_value,
	   size_t *ret_len);

/*
 * Values of up to KV_MULTI_MAX keys at once. values[i] is NULL where there is
 * none; the caller frees each.
 */
#define KV_MULTI_MAX 256
int kv_multi_get(struct kv *kv, size_t count, const struct kv_slice *keys,
		 void **ret_values, size_t *ret_lens);

/* Never NULL: when memory runs out in RocksDB the process ends. */
struct kv_batch *kv_batch_new(void);
void kv_batch_free(struct kv_batch *b);
static inline void scope_batch(struct kv_batch **b)
{
	kv_batch_free(*b);
}
void kv_batch_clear(struct kv_batch *b);
void kv_put(struct kv_batch *b, const void *key, size_t key_len,
	    const void *value, size_t value_len);
void kv_delete(struct kv_batch *b, const void *key, size_t key_len);
/* Add delta to the little-endian 64-bit counter under key (wraps). */
void kv_add(struct kv_batch *b, const void *key, size_t key_len, int64_t delta);

/*
 * Apply b atomically: ordered at once, durable after the next kv_sync().
 * -ENOSPC, -ENOMEM: nothing of it was applied, and it can be tried again. After
 * any other error the database is opened again and the write repeated; when
 * that fails nothing was applied, and every later write and sync fails until
 * kv_mend() has succeeded.
 */
int kv_write(struct kv *kv, struct kv_batch *b);
/*
 * Returns 0 only when every earlier kv_write() that returned 0 is durable, also
 * when a later one has found the disk full. A failure is as one of kv_write();
 * who goes on then as if he had not written what he had calls kv_condemn().
 */
int kv_sync(struct kv *kv);
/* After an error: 0 when it can be written again. Call it now and then. */
int kv_mend(struct kv *kv);
/* It has what its user does not know of: it must not be written any more. */
void kv_condemn(struct kv *kv);
enum kv_health {
	KV_FINE,
	KV_FAILING, /* it is tried again */
	KV_CONDEMNED, /* the store must be opened anew */
};
enum kv_health kv_health(const struct kv *kv);
/*
 * 0, or -ENOSPC: the disk is so full that nothing should be added. Ask before a
 * write that adds something, so that there is room left for deletions.
 */
int kv_room(const struct kv *kv);
/* The same before that many bytes are written to the disk beside it. */
int kv_room_for(const struct kv *kv, uint64_t bytes);
/* Has a write found no room at all, and none has succeeded since? */
bool kv_is_full(const struct kv *kv);

/*
 * Iterate keys >= start that begin with prefix; each step is 1 (there is an
 * entry; slices are valid until the next step), 0 (no more) or -errno.
 */
int kv_iter_new(struct kv *kv, const void *prefix, size_t prefix_len,
		const void *start, size_t start_len, struct kv_iter **ret_iter);
/* The same, but it begins with the last key <= start, when there is one. */
int kv_iter_new_before(struct kv *kv, const void *prefix, size_t prefix_len,
		       const void *start, size_t start_len,
		       struct kv_iter **ret_iter);
int kv_iter_next(struct kv_iter *it, struct kv_slice *ret_key,
		 struct kv_slice *ret_value);
void kv_iter_free(struct kv_iter *it);

#endif
