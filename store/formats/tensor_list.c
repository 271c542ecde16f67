/*
 * tensor_list.c - what a tensor says lies in the list's blocks, which stay
 * where they are; the list of tensors itself moves as it grows.
 */
#include "store/formats/tensor_list.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/vec.h"
#include "store/formats/dcp_names.h"

void tensors_release(struct tensors *l)
{
	memory_note(l->budget, -(int64_t)l->bytes, 0);
	free(l->all);
	dcp_blocks_release(&l->blocks);
	memset(l, 0, sizeof(*l));
}

static int keep(struct tensors *l, const void *p, size_t bytes, void *ret_slot)
{
	void *kept = NULL;

	if (p) {
		l->bytes += bytes + 1;
		kept = dcp_alloc(&l->blocks, bytes + 1);
		if (!kept)
			return -ENOMEM;
		memcpy(kept, p, bytes);
	}
	memcpy(ret_slot, &kept, sizeof(kept));
	return 0;
}

int tensors_afford(struct tensors *l, uint64_t bytes, const char *what)
{
	size_t may = memory_left(l->budget);

	if (l->bytes_max && l->bytes_max < may)
		may = l->bytes_max;
	if (bytes <= may) {
		memory_note(l->budget, 0, (size_t)bytes);
		return 0;
	}
	(void)tensors_refuse(l,
			     "too large to be checked: %s would take %" PRIu64
			     " bytes of memory, and may take %zu",
			     what, bytes, may);
	return -EFBIG;
}

int tensors_add(struct tensors *l, const struct tensor *t)
{
	struct tensor one = *t;
	const uint64_t **lists[] = { &one.shape, &one.strides, &one.place,
				     &one.whole };
	size_t shape_bytes = t->rank * sizeof(*t->shape), before = l->bytes;
	int rc;

	if (l->count == TENSORS_MAX) {
		(void)tensors_refuse(l, "more than %u tensors", TENSORS_MAX);
		return -EFBIG;
	}
	if (l->bytes_max && l->bytes > l->bytes_max) {
		(void)tensors_refuse(l, "its tensors take more than %zu bytes",
				     l->bytes_max);
		return -EFBIG;
	}
	if (memory_left(l->budget) == 0) {
		(void)tensors_refuse(l,
				     "too large to be checked: all steps that "
				     "are compared take more than %zu bytes",
				     l->budget->bytes_max);
		return -EFBIG;
	}
	l->bytes += sizeof(*t);
	rc = vec_grow(&l->all, l->count, &l->capacity, sizeof(*l->all));
	if (rc == 0)
		rc = keep(l, t->name, strlen(t->name) + 1, &one.name);
	if (rc == 0)
		rc = keep(l, t->dtype, t->dtype ? strlen(t->dtype) + 1 : 0,
			  &one.dtype);
	for (size_t i = 0; rc == 0 && i < 4; i++)
		rc = keep(l, *lists[i], shape_bytes, lists[i]);
	if (rc == 0)
		l->all[l->count++] = one;
	memory_note(l->budget, (int64_t)(l->bytes - before), 0);
	return rc;
}
