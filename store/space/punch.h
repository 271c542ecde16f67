/*
 * punch.h - which bytes of an image may be given back: those that no K record
 * covers, and that nobody who came before may still use.
 *
 * A range *waits* from its deletion until who could know of its bytes is done.
 * Until then its bytes are left alone also by others: by a range of the whole
 * image, or by a neighbour that would take the block which they share.
 *
 * Errors: 0 or a negative errno. Locks: none, the caller's: reclaim.h.
 */
#ifndef STORE_PUNCH_H
#define STORE_PUNCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct image;
struct images;
struct kv;

/* The ranges that wait, sorted by image and offset. Empty when all zero. */
struct punch_waiting {
	struct punch_span {
		uint64_t image, offset, end;
	} * at;
	size_t count, capacity;
};

int punch_waiting_add(struct punch_waiting *w, uint64_t image, uint64_t offset,
		      uint64_t len);
/* After the last was added, and before anything else is asked. */
void punch_waiting_sort(struct punch_waiting *w);
/* Does anything of [from, to) wait? */
bool punch_waits(const struct punch_waiting *w, uint64_t image, uint64_t from,
		 uint64_t to);

struct punch_hole {
	uint64_t from, to;
};

/* What is to be done about one range. */
struct punch_plan {
	struct image *image; /* a reference; NULL: it is gone, or not now */
	struct punch_hole *holes;
	size_t count, capacity;
	bool empty; /* nothing is left of the image */
	bool done; /* its P records can go */
};

/* Into p, whose image is set: the gaps in [offset, offset + len). */
int punch_plan_range(struct kv *kv, const struct punch_waiting *w,
		     struct punch_plan *p, uint64_t offset, uint64_t len);
/* Give them back; *freed grows by the bytes of the disk that became free. */
int punch_holes(struct images *im, const struct punch_plan *p, uint64_t *freed);

#endif
