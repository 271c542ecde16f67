/*
 * unchanged.h - what need not be copied, because the segment holds it already.
 *
 * Each MiB of each tensor, counted from its start, is hashed where it is
 * (XXH3-128, keyed by a random secret of this process), and compared with the
 * hash of what the segment got there when it was filled last. Equal: it is not
 * copied. A chunk that is the same as another one of this save, on whatever
 * device, is copied from there: over the bus it goes once.
 *
 * So the bytes of a file are in its segment in any case, and the drain compares
 * and shares them as it does everything; only this process has to trust the
 * hash. (The design asked the store for known hashes and left holes in the
 * file. This needs neither the store's secret nor a reader that knows of
 * holes, and finds the same for what a training job does not change.)
 *
 * Errors: 0 or a negative errno, with a sentence.
 */
#ifndef GPU_UNCHANGED_H
#define GPU_UNCHANGED_H

#include "gpu/copy.h"
#include "gpu/segment.h"

#define UNCHANGED_CHUNK_BYTES (UINT64_C(1) << 20)

struct unchanged {
	struct copy_job *jobs; /* what is to be copied; owned */
	size_t job_count;
	struct unchanged_twin { /* then these, within the segment */
		const uint8_t *from;
		uint8_t *to;
		uint64_t bytes;
	} *twins; /* owned */
	size_t twin_count;
	uint64_t skipped_bytes;
	uint8_t (*digests)[16]; /* of all chunks; owned */
	size_t chunk_count;
};

/* Hash, and find out. s is being filled with the layout's tensors. */
int unchanged_find(struct ckpt *c, const struct segment *s,
		   const struct layout *l, struct unchanged *ret);
/* It was copied: the segment remembers the hashes. */
void unchanged_remember(struct unchanged *u, struct segment *s);
void unchanged_release(struct unchanged *u);
/* The hashers that c keeps. For ckpt_close(). */
void unchanged_close(struct ckpt *c);

#endif
