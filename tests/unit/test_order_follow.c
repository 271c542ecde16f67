/*
 * Of versions that have bytes in common the one that is committed later is
 * drained behind the other, without a store: it starts when that one is over,
 * or when it must not wait for it any more.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/drain/order.h"

#define FILES 4

struct files {
	struct order o;
	struct versions file[FILES];
	struct version v[FILES];
};

/* Files that were closed one after the other; the first `running` run. */
static void closed(struct files *f, unsigned running)
{
	*f = (struct files){ 0 };
	order_init(&f->o);
	for (unsigned i = 0; i < FILES; i++) {
		versions_init(&f->file[i]);
		order_add(&f->o, &f->v[i], &f->file[i], VERSION_QUEUED);
		order_place(&f->o, &f->v[i]);
	}
	for (unsigned i = 0; i < running; i++)
		assert_ptr_equal(order_start(&f->o), &f->v[i]);
}

static void commit(struct files *f, struct version *v)
{
	assert_ptr_equal(order_take(&f->o), v);
	order_seen(&f->o, v);
	order_end(&f->o, v, VERSION_DONE);
}

static void replicas_start_in_their_order_when_the_first_is_over(void **state)
{
	for (int committed = 0; committed < 2; committed++) {
		struct files f;

		(void)state;
		closed(&f, 3);
		order_again(&f.o, &f.v[1], &f.v[0]);
		order_again(&f.o, &f.v[2], &f.v[0]);
		order_ready(&f.o, &f.v[0]);
		/* What was closed after them may run meanwhile. */
		assert_ptr_equal(order_start(&f.o), &f.v[3]);
		order_again(&f.o, &f.v[3], NULL);
		if (committed)
			commit(&f, &f.v[0]);
		else
			order_end(&f.o, &f.v[0], VERSION_GONE);
		for (unsigned i = 1; i < 4; i++)
			assert_ptr_equal(order_start(&f.o), &f.v[i]);
		assert_null(order_start(&f.o));
	}
}

/*
 * It goes first, also before those that were behind it; so does what somebody
 * waits for.
 */
static void what_is_given_back_goes_before_what_has_not_begun(void **state)
{
	(void)state;
	for (int wanted = 0; wanted < 2; wanted++) {
		struct files f;

		closed(&f, 2);
		for (unsigned i = 0; wanted && i < 2; i++)
			(void)order_want(&f.o, &f.v[i]);
		order_again(&f.o, &f.v[1], &f.v[0]);
		order_again(&f.o, &f.v[0], NULL);
		for (unsigned i = 0; i < 4; i++)
			assert_ptr_equal(order_start(&f.o), &f.v[i]);
	}
}

/* It may be changed, and given back, for as long as it is open. */
static void what_was_never_closed_goes_last(void **state)
{
	struct files f;

	(void)state;
	closed(&f, 2);
	order_unplace(&f.o, &f.v[2]);
	for (unsigned i = 3; i > 1; i--)
		assert_ptr_equal(order_start(&f.o), &f.v[i]);
	order_again(&f.o, &f.v[2], NULL);
	order_again(&f.o, &f.v[3], NULL);
	assert_ptr_equal(order_start(&f.o), &f.v[2]);
	order_again(&f.o, &f.v[2], NULL);
	assert_ptr_equal(order_start(&f.o), &f.v[3]);
}

/* Or it would run now, and once more after its leader. */
static void
who_is_behind_one_that_is_behind_another_waits_for_that(void **state)
{
	struct files f;

	(void)state;
	closed(&f, 3);
	order_again(&f.o, &f.v[2], &f.v[1]);
	order_again(&f.o, &f.v[1], &f.v[0]);
	assert_ptr_equal(order_start(&f.o), &f.v[3]);
	assert_null(order_start(&f.o));
	order_ready(&f.o, &f.v[0]);
	commit(&f, &f.v[0]);
	assert_ptr_equal(order_start(&f.o), &f.v[1]);
	assert_ptr_equal(order_start(&f.o), &f.v[2]);
}

static void nobody_is_behind_one_whose_attempt_is_over(void **state)
{
	struct files f;

	(void)state;
	closed(&f, 2);
	order_again(&f.o, &f.v[0], NULL);
	order_again(&f.o, &f.v[1], &f.v[0]); /* that is QUEUED */
	assert_null(f.v[1].behind);
	assert_ptr_equal(order_start(&f.o), &f.v[0]);
	assert_ptr_equal(order_start(&f.o), &f.v[1]);
	order_fail(&f.o, &f.v[1]);
	assert_ptr_equal(order_start(&f.o), &f.v[2]);
	order_again(&f.o, &f.v[2], &f.v[1]);
	assert_ptr_equal(order_start(&f.o), &f.v[2]);
}

static void who_waits_for_a_replica_waits_for_no_turn(void **state)
{
	struct files f;

	(void)state;
	closed(&f, 2);
	order_again(&f.o, &f.v[1], &f.v[0]);
	assert_false(order_has_wanted(&f.o));
	(void)order_want(&f.o, &f.v[1]);
	assert_ptr_equal(order_start_wanted(&f.o), &f.v[1]);
	/* It finds the other one once more. */
	order_again(&f.o, &f.v[1], &f.v[0]);
	assert_ptr_equal(order_start_wanted(&f.o), &f.v[1]);
}

static void who_waits_for_both_waits_for_the_first(void **state)
{
	struct files f;

	(void)state;
	closed(&f, 2);
	(void)order_want(&f.o, &f.v[0]);
	(void)order_want(&f.o, &f.v[1]);
	order_again(&f.o, &f.v[1], &f.v[0]);
	assert_false(order_has_wanted(&f.o));
	/* The first has to wait for its turn now. */
	assert_true(order_leave(&f.o, &f.v[0]));
	assert_true(order_has_wanted(&f.o));
	assert_ptr_equal(order_start_wanted(&f.o), &f.v[1]);
}

static void an_elder_is_behind_a_younger_one_that_overtakes_alone(void **state)
{
	struct files f;

	(void)state;
	closed(&f, 2);
	order_again(&f.o, &f.v[0], &f.v[1]);
	assert_ptr_equal(order_start(&f.o), &f.v[0]);
	(void)order_want(&f.o, &f.v[1]);
	order_again(&f.o, &f.v[0], &f.v[1]);
	order_ready(&f.o, &f.v[1]);
	assert_ptr_equal(order_start(&f.o), &f.v[2]);
	/* It follows the elder now, so the elder must not wait for it. */
	assert_true(order_leave(&f.o, &f.v[1]));
	assert_ptr_equal(order_start(&f.o), &f.v[0]);
	assert_null(order_take(&f.o));
}

/* It can never be durable as it is, so nothing waits for its turn. */
static void what_loses_its_place_is_behind_nobody_with_a_place(void **state)
{
	struct files f;

	(void)state;
	closed(&f, 2);
	order_again(&f.o, &f.v[1], &f.v[0]);
	order_unplace(&f.o, &f.v[1]);
	assert_null(f.v[1].behind);
	assert_ptr_equal(order_start(&f.o), &f.v[2]);
	assert_ptr_equal(order_start(&f.o), &f.v[3]);
	assert_ptr_equal(order_start(&f.o), &f.v[1]);
}

static void what_is_deleted_is_behind_nobody(void **state)
{
	struct files f;

	(void)state;
	closed(&f, 3);
	order_again(&f.o, &f.v[1], &f.v[0]);
	order_again(&f.o, &f.v[2], &f.v[0]);
	order_end(&f.o, &f.v[1], VERSION_GONE);
	order_ready(&f.o, &f.v[0]);
	commit(&f, &f.v[0]);
	assert_ptr_equal(order_start(&f.o), &f.v[2]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			replicas_start_in_their_order_when_the_first_is_over),
		cmocka_unit_test(
			what_is_given_back_goes_before_what_has_not_begun),
		cmocka_unit_test(what_was_never_closed_goes_last),
		cmocka_unit_test(
			who_is_behind_one_that_is_behind_another_waits_for_that),
		cmocka_unit_test(nobody_is_behind_one_whose_attempt_is_over),
		cmocka_unit_test(who_waits_for_a_replica_waits_for_no_turn),
		cmocka_unit_test(who_waits_for_both_waits_for_the_first),
		cmocka_unit_test(
			an_elder_is_behind_a_younger_one_that_overtakes_alone),
		cmocka_unit_test(
			what_loses_its_place_is_behind_nobody_with_a_place),
		cmocka_unit_test(what_is_deleted_is_behind_nobody),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
