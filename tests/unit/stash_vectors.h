/*
 * stash_vectors.h - what a paged stash does, step by step, as a transcription
 * of Megatron-LM's kernels (core/transformer/moe/ops/paged_stash.py) did it:
 * the state is the one after the step.
 */
#ifndef TESTS_UNIT_STASH_VECTORS_H
#define TESTS_UNIT_STASH_VECTORS_H

#include <stdint.h>

#define PAGES_MAX 4
#define STEPS_MAX 9

enum op { INIT, PACK, UNPACK, RESET };
enum result { OK, OVERFLOW, NOOP };

struct step {
	enum op op;
	char item;
	int64_t rows;
	enum result result;
	uint32_t record[PAGES_MAX]; /* of the item: its pages */
	unsigned record_count;
	uint32_t spilled;
	uint64_t head[2], tail[2]; /* device, host */
	uint32_t free_device[PAGES_MAX], free_host[PAGES_MAX];
	uint32_t overflow, host_spill;
};

struct vector {
	const char *name;
	uint32_t page_rows;
	uint64_t device_rows, host_rows;
	unsigned count;
	struct step steps[STEPS_MAX];
};

/* clang-format off */
static const struct vector vectors[] = {
	{ "P1 LIFO, no host",
	  4, 10, 0, 5,
	  {
	    { INIT, 0, 0, OK, { 0 }, 0, 0,
	      { 0, 0 }, { 3, 0 }, { 0, 1, 2 }, { 0 }, 0, 0 },
	    { PACK, 'A', 5, OK, { 0, 1 }, 2, 0,
	      { 2, 0 }, { 3, 0 }, { 0, 1, 2 }, { 0 }, 0, 0 },
	    { PACK, 'B', 4, OK, { 2 }, 1, 0,
	      { 3, 0 }, { 3, 0 }, { 0, 1, 2 }, { 0 }, 0, 0 },
	    { UNPACK, 'B', 0, OK, { 0 }, 0, 0,
	      { 3, 0 }, { 4, 0 }, { 2, 1, 2 }, { 0 }, 0, 0 },
	    { UNPACK, 'A', 0, OK, { 0 }, 0, 0,
	      { 3, 0 }, { 6, 0 }, { 2, 0, 1 }, { 0 }, 0, 0 },
	  } },
	{ "P3 zero tokens and exact fit",
	  4, 8, 0, 5,
	  {
	    { INIT, 0, 0, OK, { 0 }, 0, 0,
	      { 0, 0 }, { 2, 0 }, { 0, 1 }, { 0 }, 0, 0 },
	    { PACK, 'A', 0, OK, { 0 }, 0, 0,
	      { 0, 0 }, { 2, 0 }, { 0, 1 }, { 0 }, 0, 0 },
	    { PACK, 'B', 8, OK, { 0, 1 }, 2, 0,
	      { 2, 0 }, { 2, 0 }, { 0, 1 }, { 0 }, 0, 0 },
	    { UNPACK, 'A', 0, OK, { 0 }, 0, 0,
	      { 2, 0 }, { 2, 0 }, { 0, 1 }, { 0 }, 0, 0 },
	    { UNPACK, 'B', 0, OK, { 0 }, 0, 0,
	      { 2, 0 }, { 4, 0 }, { 0, 1 }, { 0 }, 0, 0 },
	  } },
	{ "P4 spill to host, then CUDA again",
	  4, 8, 16, 9,
	  {
	    { INIT, 0, 0, OK, { 0 }, 0, 0,
	      { 0, 0 }, { 2, 4 }, { 0, 1 }, { 0, 1, 2, 3 }, 0, 0 },
	    { PACK, 'A', 8, OK, { 0, 1 }, 2, 0,
	      { 2, 0 }, { 2, 4 }, { 0, 1 }, { 0, 1, 2, 3 }, 0, 0 },
	    { PACK, 'B', 5, OK, { 0, 1 }, 2, 1,
	      { 2, 2 }, { 2, 4 }, { 0, 1 }, { 0, 1, 2, 3 }, 0, 1 },
	    { PACK, 'C', 1, OK, { 2 }, 1, 1,
	      { 2, 3 }, { 2, 4 }, { 0, 1 }, { 0, 1, 2, 3 }, 0, 1 },
	    { UNPACK, 'A', 0, OK, { 0 }, 0, 0,
	      { 2, 3 }, { 4, 4 }, { 0, 1 }, { 0, 1, 2, 3 }, 0, 1 },
	    { PACK, 'D', 4, OK, { 0 }, 1, 0,
	      { 3, 3 }, { 4, 4 }, { 0, 1 }, { 0, 1, 2, 3 }, 0, 1 },
	    { UNPACK, 'D', 0, OK, { 0 }, 0, 0,
	      { 3, 3 }, { 5, 4 }, { 0, 1 }, { 0, 1, 2, 3 }, 0, 1 },
	    { UNPACK, 'C', 0, OK, { 0 }, 0, 0,
	      { 3, 3 }, { 5, 5 }, { 0, 1 }, { 2, 1, 2, 3 }, 0, 1 },
	    { UNPACK, 'B', 0, OK, { 0 }, 0, 0,
	      { 3, 3 }, { 5, 7 }, { 0, 1 }, { 2, 0, 1, 3 }, 0, 1 },
	  } },
	{ "P5 overflow is sticky until reset; all-or-nothing",
	  4, 8, 0, 8,
	  {
	    { INIT, 0, 0, OK, { 0 }, 0, 0,
	      { 0, 0 }, { 2, 0 }, { 0, 1 }, { 0 }, 0, 0 },
	    { PACK, 'A', 4, OK, { 0 }, 1, 0,
	      { 1, 0 }, { 2, 0 }, { 0, 1 }, { 0 }, 0, 0 },
	    { PACK, 'B', 5, OVERFLOW, { 0 }, 0, 1,
	      { 1, 0 }, { 2, 0 }, { 0, 1 }, { 0 }, 1, 0 },
	    { PACK, 'C', 1, NOOP, { 0 }, 0, 0,
	      { 1, 0 }, { 2, 0 }, { 0, 1 }, { 0 }, 1, 0 },
	    { UNPACK, 'A', 0, NOOP, { 0 }, 0, 0,
	      { 1, 0 }, { 2, 0 }, { 0, 1 }, { 0 }, 1, 0 },
	    { RESET, 0, 0, OK, { 0 }, 0, 0,
	      { 0, 0 }, { 2, 0 }, { 0, 1 }, { 0 }, 0, 0 },
	    { PACK, 'E', 8, OK, { 0, 1 }, 2, 0,
	      { 2, 0 }, { 2, 0 }, { 0, 1 }, { 0 }, 0, 0 },
	    { UNPACK, 'E', 0, OK, { 0 }, 0, 0,
	      { 2, 0 }, { 4, 0 }, { 0, 1 }, { 0 }, 0, 0 },
	  } },
	{ "P7 capacity rounding: 10 tokens/page 64 -> 1 page",
	  64, 10, 0, 4,
	  {
	    { INIT, 0, 0, OK, { 0 }, 0, 0,
	      { 0, 0 }, { 1, 0 }, { 0 }, { 0 }, 0, 0 },
	    { PACK, 'A', 64, OK, { 0 }, 1, 0,
	      { 1, 0 }, { 1, 0 }, { 0 }, { 0 }, 0, 0 },
	    { UNPACK, 'A', 0, OK, { 0 }, 0, 0,
	      { 1, 0 }, { 2, 0 }, { 0 }, { 0 }, 0, 0 },
	    { PACK, 'B', 65, OVERFLOW, { 0 }, 0, 1,
	      { 1, 0 }, { 2, 0 }, { 0 }, { 0 }, 1, 0 },
	  } },
};
/* clang-format on */

#endif
