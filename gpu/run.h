/*
 * run.h - a run: the bytes that one load takes to host memory, or to one
 * device, in the order in which they lie in the file. Where they belong is a
 * list of spans, one for each tensor.
 *
 * Errors: 0 or a negative errno, with a sentence.
 */
#ifndef GPU_RUN_H
#define GPU_RUN_H

#include "gpu/crew.h"
#include "gpu/file.h"

struct span { /* a target that has bytes, in its run */
	uint64_t start; /* in the run */
	uint64_t offset; /* in the file */
	uint64_t bytes;
	uint8_t *data;
	int device;
};

struct run {
	struct ckpt_file *f;
	const struct span *spans; /* borrowed; by offset */
	size_t count;
	uint64_t bytes;
};

/* The span that byte `at` of the run is in. */
size_t run_find_span(const struct run *r, uint64_t at);

/*
 * Read bytes [from, to) of the run by the crew, to where they belong, or to
 * `buffer`, one after the other, if there is one.
 */
int run_read(const struct run *r, struct crew *crew, uint64_t from, uint64_t to,
	     uint8_t *buffer);
/* What a thread of the crew reads at a time. */
#define RUN_SLICE_BYTES (UINT64_C(4) << 20)

#endif
