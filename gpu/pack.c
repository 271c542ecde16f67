/*
 * pack.c - which items go together: into transfer buffers, and into files.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "gpu/ckpt_gpu.h"
#include "gpu/say.h"
#include "store/base/scope.h"

static int by_number(const void *a, const void *b)
{
	unsigned x = *(const unsigned *)a, y = *(const unsigned *)b;

	return x < y ? -1 : x > y;
}

/* -EOVERFLOW: no memory is that large. */
static int aligned_size(uint64_t size, uint64_t *ret_aligned)
{
	if (size > UINT64_MAX - (CKPT_BUCKET_ALIGN - 1))
		return ckpt_say(-EOVERFLOW, "an item of %llu bytes",
				(unsigned long long)size);
	*ret_aligned = (size + CKPT_BUCKET_ALIGN - 1) &
		       ~(uint64_t)(CKPT_BUCKET_ALIGN - 1);
	return 0;
}

int ckpt_pack_buckets(const uint64_t *sizes, size_t count,
		      const unsigned *ranks, size_t rank_count,
		      uint64_t device_buffer_bytes, struct ckpt_bucket *buckets,
		      size_t *order, size_t *ret_buckets,
		      uint64_t *ret_bucket_bytes)
{
	SCOPED(scope_free) unsigned *sorted = NULL;
	uint64_t room = device_buffer_bytes, aligned = 0;
	size_t placed = 0, made = 0;
	int rc;

	if (rank_count == 0)
		return ckpt_say(-EINVAL, "no rank to pack for");
	sorted = calloc(rank_count, sizeof(*sorted));
	if (!sorted)
		return ckpt_say(-ENOMEM, "no memory");
	memcpy(sorted, ranks, rank_count * sizeof(*sorted));
	qsort(sorted, rank_count, sizeof(*sorted), by_number);
	for (size_t i = 0; i < count; i++) {
		rc = aligned_size(sizes[i], &aligned);
		if (rc < 0)
			return rc;
		if (aligned > room)
			room = aligned;
	}
	for (size_t r = 0; r < rank_count && r < count; r++) {
		struct ckpt_bucket *b = NULL;

		for (size_t i = r; i < count; i += rank_count) {
			rc = aligned_size(sizes[i], &aligned);
			if (rc < 0)
				return rc;
			if (!b || aligned > room - b->bytes) {
				b = &buckets[made++];
				*b = (struct ckpt_bucket){ .rank = sorted[r],
							   .first = placed };
			}
			b->bytes += aligned;
			b->count++;
			order[placed++] = i;
		}
	}
	*ret_buckets = made;
	*ret_bucket_bytes = room;
	return 0;
}

/* --- Over files ------------------------------------------------------------
 */

struct sized {
	uint64_t bytes;
	size_t index; /* of the item, or of the bin */
};

static int larger_first(const void *a, const void *b)
{
	const struct sized *x = a, *y = b;

	if (x->bytes != y->bytes)
		return x->bytes > y->bytes ? -1 : 1;
	return x->index < y->index ? -1 : x->index > y->index;
}

/* A heap whose top has the fewest bytes; among those, the lowest index. */
static bool before(const struct sized *x, const struct sized *y)
{
	return x->bytes != y->bytes ? x->bytes < y->bytes : x->index < y->index;
}

/* The top has become larger: let it sink. */
static void heap_settle(struct sized *heap, size_t count)
{
	size_t at = 0;

	for (;;) {
		size_t least = at;
		struct sized swap;

		for (size_t c = 2 * at + 1; c <= 2 * at + 2 && c < count; c++)
			if (before(&heap[c], &heap[least]))
				least = c;
		if (least == at)
			return;
		swap = heap[at];
		heap[at] = heap[least];
		heap[least] = swap;
		at = least;
	}
}

int ckpt_split_items(const uint64_t *sizes, const uint8_t *is_object,
		     size_t count, size_t bins, size_t *bin_of,
		     size_t *place_of)
{
	SCOPED(scope_free) struct sized *tensors = NULL;
	SCOPED(scope_free) struct sized *heap = NULL;
	SCOPED(scope_free) size_t *filled = NULL;
	size_t objects = 0, tensor_count = 0;

	if (bins == 0)
		return ckpt_say(-EINVAL, "no file to split the items over");
	tensors = calloc(count + 1, sizeof(*tensors));
	heap = calloc(bins, sizeof(*heap));
	filled = calloc(bins, sizeof(*filled));
	if (!tensors || !heap || !filled)
		return ckpt_say(-ENOMEM, "no memory");
	for (size_t i = 0; i < count; i++) {
		if (bins > 1 && !is_object[i]) {
			tensors[tensor_count].bytes = sizes[i];
			tensors[tensor_count++].index = i;
			continue;
		}
		bin_of[i] = objects++ % bins;
		place_of[i] = filled[bin_of[i]]++;
	}
	qsort(tensors, tensor_count, sizeof(*tensors), larger_first);
	for (size_t b = 0; b < bins; b++)
		heap[b].index = b;
	for (size_t t = 0; t < tensor_count; t++) {
		size_t i = tensors[t].index, b = heap[0].index;

		bin_of[i] = b;
		place_of[i] = filled[b]++;
		heap[0].bytes += tensors[t].bytes;
		heap_settle(heap, bins);
	}
	return 0;
}
