/* Arrays that grow keep what is in them, whatever becomes of the growing. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "store/base/vec.h"

struct list {
	uint64_t *at;
	size_t count, capacity;
};

static int add(struct list *l, uint64_t one)
{
	int rc = vec_grow(&l->at, l->count, &l->capacity, sizeof(*l->at));

	if (rc == 0)
		l->at[l->count++] = one;
	return rc;
}

static void items_stay_in_their_places(void **state)
{
	struct list l = { 0 };

	(void)state;
	for (uint64_t i = 0; i < 10000; i++) {
		assert_int_equal(add(&l, i * i), 0);
		assert_true(l.count <= l.capacity);
	}
	for (uint64_t i = 0; i < 10000; i++)
		assert_int_equal(l.at[i], i * i);
	free(l.at);
}

static void the_array_moves_seldom(void **state)
{
	struct list l = { 0 };
	size_t capacity = 0;
	unsigned grown = 0;

	(void)state;
	for (uint64_t i = 0; i < 100000; i++) {
		assert_int_equal(add(&l, i), 0);
		grown += l.capacity != capacity;
		capacity = l.capacity;
	}
	assert_true(grown <= 25);
	assert_true(l.capacity <= 150000);
	free(l.at);
}

static void many_at_once_have_room(void **state)
{
	static const size_t more[] = { 0, 1, 15, 1, 1000, 3, 0, 100000 };
	struct list l = { 0 };

	(void)state;
	for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++) {
		assert_int_equal(vec_reserve(&l.at, l.count, more[i],
					     &l.capacity, sizeof(*l.at)),
				 0);
		assert_true(l.capacity - l.count >= more[i]);
		for (size_t k = 0; k < more[i]; k++)
			l.at[l.count++] = i;
	}
	assert_int_equal(l.at[l.count - 1], 7);
	assert_int_equal(l.at[1019], 5);
	free(l.at);
}

static void what_has_room_does_not_move(void **state)
{
	struct list l = { 0 };
	uint64_t *before;

	(void)state;
	assert_int_equal(add(&l, 1), 0);
	before = l.at;
	while (l.count < l.capacity)
		assert_int_equal(add(&l, 1), 0);
	assert_ptr_equal(l.at, before);
	assert_int_equal(l.capacity, VEC_FIRST);
	free(l.at);
}

/* Sizes that no memory has, of items and of bytes. */
static void without_memory_all_is_as_it_was(void **state)
{
	static const size_t more[] = { SIZE_MAX, SIZE_MAX / 2,
				       SIZE_MAX / 2 / sizeof(uint64_t) };
	struct list l = { 0 };
	uint64_t *before;
	size_t capacity;

	(void)state;
	assert_int_equal(add(&l, 7), 0);
	before = l.at;
	capacity = l.capacity;
	for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++) {
		assert_int_equal(vec_reserve(&l.at, l.count, more[i],
					     &l.capacity, sizeof(*l.at)),
				 -ENOMEM);
		assert_ptr_equal(l.at, before);
		assert_int_equal(l.capacity, capacity);
		assert_int_equal(l.at[0], 7);
	}
	free(l.at);
}

/* One byte less than it takes, then just enough. */
static void no_more_bytes_than_the_limit(void **state)
{
	struct list l = { 0 };
	size_t left = VEC_FIRST * sizeof(*l.at) - 1;

	(void)state;
	assert_int_equal(vec_reserve_within(&l.at, 0, 1, &l.capacity,
					    sizeof(*l.at), &left),
			 -EFBIG);
	assert_null(l.at);
	assert_int_equal(l.capacity, 0);
	assert_int_equal(left, VEC_FIRST * sizeof(*l.at) - 1);

	left = 2 * VEC_FIRST * sizeof(*l.at);
	assert_int_equal(vec_reserve_within(&l.at, 0, 1, &l.capacity,
					    sizeof(*l.at), &left),
			 0);
	assert_int_equal(left, VEC_FIRST * sizeof(*l.at));
	assert_int_equal(vec_reserve_within(&l.at, VEC_FIRST, 1, &l.capacity,
					    sizeof(*l.at), &left),
			 0);
	assert_int_equal(left, (2 * VEC_FIRST - l.capacity) * sizeof(*l.at));
	free(l.at);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(items_stay_in_their_places),
		cmocka_unit_test(the_array_moves_seldom),
		cmocka_unit_test(many_at_once_have_room),
		cmocka_unit_test(what_has_room_does_not_move),
		cmocka_unit_test(without_memory_all_is_as_it_was),
		cmocka_unit_test(no_more_bytes_than_the_limit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
