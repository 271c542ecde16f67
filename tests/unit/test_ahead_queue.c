/* What is read ahead next: own files first, then in the order of demand. */
#include "store/space/ahead_queue.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* Never looked into: a block is known by its image and its number. */
static struct image *const IMAGE = (struct image *)0x1000;

static struct ahead_block block(uint64_t number)
{
	return (struct ahead_block){ .image = IMAGE, .number = number };
}

enum { FOREIGN, OWN };
#define NOTHING UINT64_MAX

/* The number of the block whose reference is left over. */
static uint64_t add(struct ahead_queue *q, uint64_t number, bool own)
{
	struct ahead_block b = block(number), left;
	bool added = ahead_queue_add(q, &b, own, &left);

	assert_true(added || left.number == number);
	return left.image ? left.number : NOTHING;
}

static void assert_next(struct ahead_queue *q, uint64_t number)
{
	struct ahead_block b;

	assert_true(ahead_queue_take(q, &b));
	assert_ptr_equal(b.image, IMAGE);
	assert_int_equal(b.number, number);
}

static void assert_empty(struct ahead_queue *q)
{
	struct ahead_block b;

	assert_false(ahead_queue_take(q, &b));
	assert_int_equal(q->own, 0);
}

static void what_is_asked_for_first_comes_first(void **state)
{
	struct ahead_queue q = { .count = 0 };

	(void)state;
	assert_empty(&q);
	for (uint64_t i = 0; i < 5; i++)
		assert_int_equal(add(&q, i, FOREIGN), NOTHING);
	for (uint64_t i = 0; i < 5; i++)
		assert_next(&q, i);
	assert_empty(&q);
}

static void own_files_come_before_others_each_in_order(void **state)
{
	struct ahead_queue q = { .count = 0 };

	(void)state;
	for (uint64_t i = 0; i < 10; i++)
		assert_int_equal(add(&q, i, i % 2 ? OWN : FOREIGN), NOTHING);
	assert_next(&q, 1);
	assert_int_equal(add(&q, 10, OWN), NOTHING); /* also when it goes on */
	for (uint64_t i = 3; i < 10; i += 2)
		assert_next(&q, i);
	assert_next(&q, 10);
	for (uint64_t i = 0; i < 10; i += 2)
		assert_next(&q, i);
	assert_empty(&q);
}

static void a_block_is_there_once_and_moves_up_for_an_own_file(void **state)
{
	struct ahead_queue q = { .count = 0 };

	(void)state;
	for (uint64_t i = 0; i < 4; i++)
		assert_int_equal(add(&q, i, FOREIGN), NOTHING);
	assert_int_equal(add(&q, 2, FOREIGN), 2); /* back to the caller */
	assert_int_equal(add(&q, 2, OWN), 2); /* one of two is enough */
	assert_int_equal(add(&q, 2, OWN), 2);
	assert_int_equal(add(&q, 2, FOREIGN), 2); /* and it stays there */
	assert_int_equal(q.count, 4);
	assert_next(&q, 2);
	assert_next(&q, 0);
	assert_next(&q, 1);
	assert_next(&q, 3);
	assert_empty(&q);
}

static void a_full_queue_drops_what_is_wanted_least(void **state)
{
	struct ahead_queue q = { .count = 0 };
	const uint64_t more = 1000, last = AHEAD_QUEUE_MAX - 1;

	(void)state;
	for (uint64_t i = 0; i <= last; i++)
		assert_int_equal(add(&q, i, FOREIGN), NOTHING);
	assert_int_equal(add(&q, more, FOREIGN), more);
	for (uint64_t i = 0; i <= last; i++)
		assert_int_equal(add(&q, more + i, OWN), i);
	assert_int_equal(add(&q, 0, FOREIGN), 0);
	assert_int_equal(add(&q, 0, OWN), 0);
	for (uint64_t i = 0; i <= last; i++)
		assert_next(&q, more + i);
	assert_empty(&q);
}

static void others_have_their_turn_as_well(void **state)
{
	struct ahead_queue q = { .count = 0 };
	const uint64_t foreign = 1000;
	uint64_t own = 0;

	(void)state;
	for (uint64_t i = 0; i < 3; i++)
		assert_int_equal(add(&q, foreign + i, FOREIGN), NOTHING);
	for (uint64_t i = 0; i < 3 * AHEAD_OWN_TAKEN_MAX; i++)
		assert_int_equal(add(&q, i, OWN), NOTHING);
	for (uint64_t i = 0; i < 3; i++) {
		for (unsigned n = 0; n < AHEAD_OWN_TAKEN_MAX; n++)
			assert_next(&q, own++);
		assert_next(&q, foreign + i);
	}
	assert_empty(&q);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_asked_for_first_comes_first),
		cmocka_unit_test(own_files_come_before_others_each_in_order),
		cmocka_unit_test(
			a_block_is_there_once_and_moves_up_for_an_own_file),
		cmocka_unit_test(others_have_their_turn_as_well),
		cmocka_unit_test(a_full_queue_drops_what_is_wanted_least),
	};

	return cmocka_run_group_tests_name("ahead_queue", tests, NULL, NULL);
}
