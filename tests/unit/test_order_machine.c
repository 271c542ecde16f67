/*
 * The order of closed versions, without a store: what may follow what, and who
 * may be committed before whom. test_order_walk.c tries whatever may happen.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "store/base/scope.h"
#include "store/drain/order.h"

static const char *const names[VERSION_STATE_COUNT] = {
	"NEW",  "CLOSED", "FAILED", "QUEUED", "RUNNING", "READY",
	"VOID", "TAKEN",  "SEEN",   "DONE",   "GONE",
};

/* As drawn in order.h: one line for each state, with all that may follow. */
static const char *const drawn[VERSION_STATE_COUNT] = {
	[VERSION_NEW] = "CLOSED QUEUED ",
	[VERSION_CLOSED] = "QUEUED GONE ",
	[VERSION_FAILED] = "QUEUED GONE ",
	[VERSION_QUEUED] = "RUNNING GONE ",
	[VERSION_RUNNING] = "FAILED QUEUED READY VOID GONE ",
	[VERSION_READY] = "VOID TAKEN GONE ",
	[VERSION_VOID] = "QUEUED GONE ",
	[VERSION_TAKEN] = "FAILED QUEUED SEEN GONE ",
	[VERSION_SEEN] = "DONE ",
	[VERSION_DONE] = "",
	[VERSION_GONE] = "",
};

static void a_state_is_followed_by_those_that_are_drawn_alone(void **state)
{
	(void)state;
	for (enum version_state from = 0; from < VERSION_STATE_COUNT; from++) {
		char found[256] = "";
		size_t len = 0;

		for (enum version_state to = 0; to < VERSION_STATE_COUNT; to++)
			if (order_allows(from, to))
				len += (size_t)snprintf(found + len,
							sizeof(found) - len,
							"%s ", names[to]);
		assert_string_equal(found, drawn[from]);
	}
}

/* --- one version after another --- */

struct one {
	struct versions file;
	struct version v;
};

static void one_added(struct order *o, struct one *f)
{
	*f = (struct one){ 0 };
	versions_init(&f->file);
	order_add(o, &f->v, &f->file, VERSION_QUEUED);
}

static void one_closed(struct order *o, struct one *f)
{
	one_added(o, f);
	order_place(o, &f->v);
}

/* Workers have drained all that may start. */
static void drain_all(struct order *o)
{
	struct version *v;

	while ((v = order_start(o)) != NULL)
		order_ready(o, v);
}

static void commit(struct order *o, struct version *v)
{
	order_seen(o, v);
	order_end(o, v, VERSION_DONE);
}

/*
 * The tracker stands behind the data that it names. Somebody waits for one
 * rank's file, which is taken out of its turn, and cannot be committed.
 */
static void who_fails_out_of_turn_stops_those_behind_it(void **state)
{
	struct one rank_0, rank_1, latest;
	struct order o;

	(void)state;
	for (int how = 0; how < 2; how++) {
		order_init(&o);
		one_closed(&o, &rank_0);
		one_closed(&o, &rank_1);
		one_closed(&o, &latest);
		drain_all(&o);
		assert_null(order_want(&o, &rank_1.v));
		assert_ptr_equal(order_take(&o), &rank_1.v);
		if (how == 0)
			order_again(&o, &rank_1.v, NULL);
		else
			order_fail(&o, &rank_1.v);
		assert_ptr_equal(order_take(&o), &rank_0.v);
		assert_null(order_take(&o));
		commit(&o, &rank_0.v);
		assert_null(order_take(&o));
		order_wake(&o, &rank_1.v);
		drain_all(&o);
		assert_ptr_equal(order_take(&o), &rank_1.v);
		assert_ptr_equal(order_take(&o), &latest.v);
		assert_null(order_take(&o));
	}
}

/*
 * Who waits for the tracker goes, and it is closed anew: nobody has asked for
 * what it is then.
 */
static void what_nobody_waits_for_any_more_overtakes_nobody(void **state)
{
	struct one data, latest;
	struct order o;

	(void)state;
	for (int ready = 0; ready < 2; ready++) {
		order_init(&o);
		one_closed(&o, &latest);
		one_closed(&o, &data);
		assert_null(order_want(&o, &latest.v));
		assert_null(order_want(&o, &latest.v));
		assert_false(order_leave(&o, &latest.v));
		assert_int_equal(latest.v.want, WANT_ALONE);
		if (!ready)
			order_place(&o, &latest.v);
		drain_all(&o);
		assert_true(order_leave(&o, &latest.v));
		assert_int_equal(latest.v.want, WANT_SOON);
		if (!ready) {
			assert_ptr_equal(order_take(&o), &data.v);
			commit(&o, &data.v);
		}
		assert_ptr_equal(order_take(&o), &latest.v);
	}
}

static void an_elder_that_is_deleted_stops_nobody(void **state)
{
	struct one a, b;
	struct order o;

	(void)state;
	order_init(&o);
	one_closed(&o, &a);
	one_closed(&o, &b);
	assert_ptr_equal(order_start(&o), &a.v);
	assert_ptr_equal(order_start(&o), &b.v);
	order_ready(&o, &b.v);
	assert_null(order_take(&o));
	order_end(&o, &a.v, VERSION_GONE);
	assert_ptr_equal(order_take(&o), &b.v);
}

static void who_is_wanted_overtakes_alone(void **state)
{
	struct one before, a;
	struct version newer = { 0 };
	struct order o;

	(void)state;
	order_init(&o);
	one_closed(&o, &before);
	one_closed(&o, &a);
	/* a is replaced when it stands in its place already. */
	assert_ptr_equal(order_start(&o), &before.v);
	assert_ptr_equal(order_start(&o), &a.v);
	order_ready(&o, &a.v);
	order_replace(&o, &a.v);
	order_add(&o, &newer, &a.file, VERSION_CLOSED);
	order_place(&o, &newer);
	assert_null(order_start(&o)); /* one of a file at a time */
	assert_null(order_want(&o, &newer));
	assert_null(order_take(&o)); /* a makes way ... */
	assert_ptr_equal(order_void(&o), &a.v);
	order_again(&o, &a.v, NULL);
	assert_ptr_equal(order_start(&o), &newer);
	order_ready(&o, &newer);
	assert_ptr_equal(order_take(&o), &newer);
	/* ... and is superseded */
	order_end(&o, &a.v, VERSION_GONE);
	commit(&o, &newer);
	assert_int_equal(a.file.replaced, 0);
	assert_ptr_equal(order_first(&o), &before.v);
	order_ready(&o, &before.v);
	assert_ptr_equal(order_take(&o), &before.v);
}

static void a_worker_stops_for_what_somebody_waits_for(void **state)
{
	struct one a;
	struct version newer = { 0 };
	struct order o;

	(void)state;
	order_init(&o);
	one_closed(&o, &a);
	assert_ptr_equal(order_start(&o), &a.v);
	order_replace(&o, &a.v);
	order_add(&o, &newer, &a.file, VERSION_QUEUED);
	order_place(&o, &newer);
	assert_ptr_equal(order_want(&o, &newer), &a.v);
	order_ready(&o, &a.v); /* it had not heard of it */
	assert_ptr_equal(order_void(&o), &a.v);
	assert_null(order_take(&o));
}

static void what_nobody_asked_for_does_not_start_while_it_is_held(void **state)
{
	struct one a, b, c;
	struct order o;

	(void)state;
	order_init(&o);
	o.on_demand = true;
	one_closed(&o, &a);
	one_closed(&o, &b);
	one_closed(&o, &c);
	order_want(&o, &c.v);
	order_want_soon(&b.v);
	assert_ptr_equal(order_start(&o), &c.v);
	assert_ptr_equal(order_start(&o), &b.v);
	assert_null(order_start(&o));
	order_ready(&o, &b.v);
	assert_null(order_take(&o)); /* asked for, but not waited for alone */
	order_ready(&o, &c.v);
	assert_ptr_equal(order_take(&o), &c.v);
	order_fail(&o, &c.v); /* who waited for it was told */
	order_wake(&o, &c.v);
	assert_null(order_start(&o));
	o.on_demand = false;
	assert_ptr_equal(order_start(&o), &a.v);
}

/*
 * A daemon that is killed while it takes over what another had left must leave
 * what it has resumed before what it has not, whatever it had come to.
 */
static void what_is_resumed_has_the_place_that_it_had(void **state)
{
	const uint64_t places[] = { 3, 7, 4 };
	struct one f[4];
	struct order o;

	(void)state;
	order_init(&o);
	order_begin(&o, 20);
	for (unsigned i = 0; i < 3; i++) {
		one_added(&o, &f[i]);
		order_resume(&o, &f[i].v, places[i]);
		assert_int_equal(f[i].v.place, places[i]);
	}
	one_closed(&o, &f[3]); /* it was open, and comes last */
	assert_true(f[3].v.place >= 20);
	assert_true(order_draw(&o) > f[3].v.place);
	drain_all(&o);
	assert_ptr_equal(order_take(&o), &f[0].v);
	assert_ptr_equal(order_take(&o), &f[2].v);
	assert_ptr_equal(order_take(&o), &f[1].v);
	assert_ptr_equal(order_take(&o), &f[3].v);
}

/*
 * What is drained as it stands, and is closed meanwhile: what is closed is the
 * newer one. Drained again, it is as it stands then, until it is replaced.
 */
static void what_is_drained_as_it_stands_is_older_than_its_close(void **state)
{
	struct version again = { 0 };
	struct one a, other;
	struct order o;
	uint64_t number;

	(void)state;
	order_init(&o);
	one_added(&o, &a);
	assert_int_equal(a.v.number, 0);
	assert_ptr_equal(order_start(&o), &a.v);
	number = a.v.number;
	assert_true(number != 0);
	one_closed(&o, &other);
	assert_ptr_equal(order_start(&o), &other.v);
	order_again(&o, &a.v, NULL);
	assert_ptr_equal(order_start(&o), &a.v);
	assert_true(a.v.number > other.v.number);
	number = a.v.number;
	order_add(&o, &again, &a.file, VERSION_CLOSED);
	order_place(&o, &again);
	assert_int_equal(again.number, again.place);
	assert_true(again.number > number);
	/* O_TRUNC: from now on it is what it was. */
	order_replace(&o, &a.v);
	order_replace(&o, &again);
	order_ready(&o, &a.v);
	assert_true(order_give_back(&o, &a.v));
	order_again(&o, &a.v, NULL);
	assert_ptr_equal(order_start(&o), &a.v);
	assert_int_equal(a.v.number, number);
}

/*
 * It goes on in another stage and is asked for there, before a worker finds
 * that nobody needs what was asked for first.
 */
static void what_is_asked_for_twice_can_start(void **state)
{
	struct version again = { 0 };
	struct one a;
	struct order o;

	(void)state;
	order_init(&o);
	one_added(&o, &a);
	order_add(&o, &again, &a.file, VERSION_QUEUED);
	assert_ptr_equal(order_start(&o), &a.v);
	assert_true(a.v.number != 0);
	order_end(&o, &a.v, VERSION_GONE);
	assert_ptr_equal(order_start(&o), &again);
	assert_true(again.number > a.v.number);
}

/* What has another one's place, but not its bytes, is no older for that. */
static void a_number_is_given_with_a_place(void **state)
{
	struct version again = { 0 }, left = { 0 };
	struct one a;
	struct order o;
	uint64_t place;

	(void)state;
	order_init(&o);
	one_closed(&o, &a);
	place = a.v.place;
	assert_int_equal(a.v.number, place);
	assert_ptr_equal(order_start(&o), &a.v);
	order_add(&o, &again, &a.file, VERSION_QUEUED);
	assert_int_equal(again.number, 0);
	order_end(&o, &a.v, VERSION_GONE);
	assert_ptr_equal(order_start(&o), &again);
	assert_int_equal(again.place, 0);
	assert_true(again.number > place);
	place = again.number;
	order_end(&o, &again, VERSION_GONE);
	order_add(&o, &left, &a.file, VERSION_QUEUED);
	order_resume(&o, &left, 1);
	assert_int_equal(left.place, 1);
	assert_true(left.number > place);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			what_is_drained_as_it_stands_is_older_than_its_close),
		cmocka_unit_test(a_number_is_given_with_a_place),
		cmocka_unit_test(what_is_asked_for_twice_can_start),
		cmocka_unit_test(
			a_state_is_followed_by_those_that_are_drawn_alone),
		cmocka_unit_test(who_fails_out_of_turn_stops_those_behind_it),
		cmocka_unit_test(what_is_resumed_has_the_place_that_it_had),
		cmocka_unit_test(
			what_nobody_waits_for_any_more_overtakes_nobody),
		cmocka_unit_test(an_elder_that_is_deleted_stops_nobody),
		cmocka_unit_test(who_is_wanted_overtakes_alone),
		cmocka_unit_test(a_worker_stops_for_what_somebody_waits_for),
		cmocka_unit_test(
			what_nobody_asked_for_does_not_start_while_it_is_held),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
