/*
 * reclaim.h - giving back the bytes of images that nobody references.
 *
 * Order: the batch that drops the last reference also writes a P record; the
 * log is synced; then the hole is punched; then the P record goes. A crash in
 * between repeats the punch. A range is looked at again just before: what a K
 * record covers is never punched.
 *
 * Readers and drain jobs hold an epoch ticket while they use committed
 * extents; a range is punched only when everybody who could know of it from
 * before its deletion is done. Until then it waits (punch.h).
 *
 * An image without any chunk is removed.
 */
#ifndef STORE_RECLAIM_H
#define STORE_RECLAIM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "store/base/sync.h"

struct images;
struct kv;
struct reclaim;

/* Both are borrowed. */
int reclaim_new(struct kv *kv, struct images *images,
		struct reclaim **ret_reclaim);
int reclaim_start(struct reclaim *r);
/* NULL, or one that was not started: nothing. */
void reclaim_stop(struct reclaim *r);
void reclaim_free(struct reclaim *r);

/* Enter and leave the use of committed extents. Never fails, never blocks. */
struct reclaim_ticket {
	uint64_t number;
	TAILQ_ENTRY(reclaim_ticket) next;
};
void reclaim_enter(struct reclaim *r, struct reclaim_ticket *t);
void reclaim_leave(struct reclaim *r, struct reclaim_ticket *t);

/*
 * The lock that serialises what decides which bytes of which image are wanted:
 * the committer holds it from the write that drops chunks until reclaim_add()
 * was told of them, the reclaimer while it decides what to punch, and who puts
 * a copy in the place of an image (image_copy.h) while he does.
 */
struct lock *reclaim_deciding(struct reclaim *r);
/* The range (already in a P record) may have bytes to give back. */
void reclaim_add(struct reclaim *r, uint64_t image, uint64_t offset,
		 uint64_t len);
/* Each that next() says, until it is false: it only looks, for a lock is held.
 */
struct reclaim_range {
	uint64_t image, offset, len;
};
void reclaim_add_each(struct reclaim *r,
		      bool (*next)(void *arg, struct reclaim_range *ret),
		      void *arg);
/* What a full disk kept from being given back is tried again. */
void reclaim_retry(struct reclaim *r);
/*
 * Wait until all that was added is given back; *ret_freed counts the bytes
 * since the store was opened.
 */
void reclaim_drain(struct reclaim *r, uint64_t *ret_freed);

/* Bytes given back since the store was opened. */
void reclaim_freed(struct reclaim *r, uint64_t *ret_freed);

#endif
