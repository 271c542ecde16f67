/* tensor_list.h - tensors that were found, with copies of all that they say. */
#ifndef STORE_FORMATS_TENSOR_LIST_H
#define STORE_FORMATS_TENSOR_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/base/text.h"

#define TENSOR_NAME_BYTES_MAX 4096
#define TENSOR_RANK_MAX 64
/* The name of what was saved by itself. */
#define TENSOR_NAMELESS "(tensor)"
#define TENSORS_MAX (UINT32_C(1) << 26)

/*
 * Memory that several readings have together, of any threads. All zero: there
 * is no limit.
 */
struct memory_budget {
	size_t bytes_max; /* 0: no limit */
	size_t bytes; /* that are kept now */
	size_t peak; /* the most there were, with what reading took besides */
};

/* What it may have besides. */
static inline size_t memory_left(const struct memory_budget *b)
{
	size_t bytes;

	if (!b || b->bytes_max == 0)
		return SIZE_MAX;
	bytes = __atomic_load_n(&b->bytes, __ATOMIC_RELAXED);
	return bytes < b->bytes_max ? b->bytes_max - bytes : 0;
}

/* `kept` more, negative: given back; and `besides` for a moment. */
static inline void memory_note(struct memory_budget *b, int64_t kept,
			       size_t besides)
{
	size_t now, peak;

	if (!b)
		return;
	now = __atomic_add_fetch(&b->bytes, (size_t)kept, __ATOMIC_RELAXED) +
	      besides;
	peak = __atomic_load_n(&b->peak, __ATOMIC_RELAXED);
	while (now > peak &&
	       !__atomic_compare_exchange_n(&b->peak, &peak, now, true,
					    __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		; /* peak is what it has become */
}

struct tensor {
	const char *name; /* UTF-8 */
	const char *file; /* borrowed; NULL: there is but one */
	const char *dtype; /* torch's word; NULL: no tensor, just bytes */
	unsigned rank;
	const uint64_t *shape; /* of what is stored here */
	const uint64_t *strides; /* in elements; NULL: as in C */
	/* A part of a larger tensor: where in it, and its shape; else NULL. */
	const uint64_t *place, *whole;
	uint64_t offset, bytes; /* in the file; of a view: all it spans */
};

struct tensors {
	struct tensor *all; /* owned */
	size_t count, capacity;
	struct dcp_block *blocks; /* what they point to; owned */
	/*
	 * Of memory for all of them, and as much again for what reading one
	 * file takes; 0: no limit.
	 */
	size_t bytes_max;
	size_t bytes;
	struct memory_budget *budget; /* that they count for; NULL: none */
	const char *format; /* "safetensors", "torch_zip", ..., "plain" */
	const char *note; /* what to know of a file of that format, or NULL */
	bool reruns; /* see structure_megatron.h: a common state said so */
	char error[512];
};

void tensors_release(struct tensors *l);

/*
 * One more, with copies of everything but the file. -ENOMEM, -EFBIG: too many,
 * or they take more memory than they may.
 */
int tensors_add(struct tensors *l, const struct tensor *t);

/*
 * Reading `what` of a file takes this much memory: 0, or -EFBIG, and the error
 * says that it is too large to be checked.
 */
int tensors_afford(struct tensors *l, uint64_t bytes, const char *what);

/* What is wrong; returns -EBADMSG. */
#define tensors_refuse(l, ...) \
	text_refuse((l)->error, sizeof((l)->error), __VA_ARGS__)

#endif
