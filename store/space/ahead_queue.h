/*
 * ahead_queue.h - what is to be read ahead next: blocks of images, those of
 * files that a rank reads as their writer first, and then in the order of
 * demand. After AHEAD_OWN_TAKEN_MAX of these in a row comes one of another
 * file, if one waits, so that nothing waits for ever. When it is full, the
 * oldest block of another file makes room for an own one.
 *
 * Errors: none. Locks: none, the caller's.
 */
#ifndef STORE_AHEAD_QUEUE_H
#define STORE_AHEAD_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/space/image.h"

#define AHEAD_QUEUE_MAX 64 /* blocks, of all files */
#define AHEAD_OWN_TAKEN_MAX 15 /* in a row, while others wait */

struct ahead_block {
	struct image *image; /* the queue's reference, once it is in it */
	uint64_t number; /* of the block in it */
	const uint8_t *start; /* of whole pages, in its mapping */
	size_t len;
};

static inline bool ahead_block_is(const struct ahead_block *a,
				  const struct ahead_block *b)
{
	return a->image == b->image && a->number == b->number;
}

/* Empty when all zero. */
struct ahead_queue {
	struct ahead_block at[AHEAD_QUEUE_MAX];
	unsigned count;
	unsigned own; /* so many of them, at the front, are of own files */
	unsigned own_taken; /* in a row */
};

/*
 * Takes over b's reference, or gives one back for the caller to put: in *ret,
 * b's when it is known already or there is no place for it, else that of a
 * block that was dropped; its image is NULL when there is none. One fault reads
 * all of a block, so a part of it in the queue is enough; wanted for an own
 * file later, it moves up. True: there is one more, or another one.
 */
bool ahead_queue_add(struct ahead_queue *q, const struct ahead_block *b,
		     bool own, struct ahead_block *ret);
/* The next one, with its reference; false: there is none. */
bool ahead_queue_take(struct ahead_queue *q, struct ahead_block *ret);

#endif
