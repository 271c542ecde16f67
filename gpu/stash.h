/*
 * stash.h - what a paged stash is made of, for stash.c and for the tests.
 */
#ifndef GPU_STASH_H
#define GPU_STASH_H

#include "gpu/stash_memory.h"
#include "gpu/stash_rows.h"

#define STASH_TYPES_MAX 64u

struct stash_type {
	uint32_t element_bytes, row_elements;
	struct stash_view view; /* what it points to is on the device */
	void *pages; /* tier 0, as allocated */
	void *host_pages; /* tier 1 */
	uint64_t host_bytes;
};

struct ckpt_stash {
	struct stash_memory memory;
	uint32_t page_rows;
	/*
	 * Rings, views, the flag and the lists of free pages of all types, in
	 * one allocation on the device.
	 */
	void *control;
	struct stash_view *views; /* in control */
	uint32_t *any_overflow; /* in control */
	struct stash_ring *pinned_ring; /* where a ring is read to */
	/* The caller's, as it was last: they should all be one. */
	struct gpu_stream *stream;
	void *stream_raw;
	size_t type_count;
	struct stash_type types[STASH_TYPES_MAX];
};

struct ckpt_stash_item {
	struct ckpt_stash *s;
	const struct stash_type *type;
	struct stash_item_view view;
	unsigned grid; /* blocks of a copy */
};

#endif
