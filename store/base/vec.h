/*
 * vec.h - arrays that grow: an array of items, how many of them are in use
 * (count) and how many fit (capacity). The owner keeps the three where it
 * likes, appends by itself and frees the array with free(); the functions here
 * only make room. An empty one is NULL, 0, 0.
 *
 *	rc = vec_grow(&l->at, l->count, &l->capacity, sizeof(*l->at));
 *	if (rc < 0)
 *		return rc;
 *	l->at[l->count++] = one;
 *
 * Errors: 0, or -ENOMEM, and then the array and its items are as they were.
 */
#ifndef STORE_BASE_VEC_H
#define STORE_BASE_VEC_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define VEC_FIRST ((size_t)16) /* the capacity that an empty one gets */

/*
 * Room for `more` items behind the first `count`. slot points to the array's
 * pointer. What grows becomes half as large again, so that appending one by
 * one costs the same for each; new items are not initialized. The bytes that
 * it grows by are taken from *bytes_left. -EFBIG: there are not so many left.
 */
static inline int vec_reserve_within(void *slot, size_t count, size_t more,
				     size_t *capacity, size_t item_bytes,
				     size_t *bytes_left)
{
	size_t want = *capacity + *capacity / 2;
	size_t need, bytes, grown_bytes;
	void *array;

	if (more <= *capacity - count)
		return 0;
	if (__builtin_add_overflow(count, more, &need))
		return -ENOMEM;
	if (want < VEC_FIRST)
		want = VEC_FIRST;
	if (want < need)
		want = need;
	/* No object is larger than PTRDIFF_MAX. */
	if (__builtin_mul_overflow(want, item_bytes, &bytes) ||
	    bytes > PTRDIFF_MAX)
		return -ENOMEM;
	grown_bytes = bytes - *capacity * item_bytes;
	if (grown_bytes > *bytes_left)
		return -EFBIG;
	memcpy(&array, slot, sizeof(array));
	array = realloc(array, bytes);
	if (!array)
		return -ENOMEM;
	memcpy(slot, &array, sizeof(array));
	*capacity = want;
	*bytes_left -= grown_bytes;
	return 0;
}

/* The same without a limit. */
static inline int vec_reserve(void *slot, size_t count, size_t more,
			      size_t *capacity, size_t item_bytes)
{
	size_t unlimited = SIZE_MAX;

	return vec_reserve_within(slot, count, more, capacity, item_bytes,
				  &unlimited);
}

/* The same for one more item. */
static inline int vec_grow(void *slot, size_t count, size_t *capacity,
			   size_t item_bytes)
{
	return vec_reserve(slot, count, 1, capacity, item_bytes);
}

#endif
