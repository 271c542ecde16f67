/*
 * A walk at random through what may happen to closed versions, without a store:
 * none is committed before one that was closed before it.
 */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "store/base/scope.h"
#include "store/drain/order.h"
#include "tests/unit/test_seed.h"

#define FILES 5
#define MAX_VERSIONS 64
#define STEPS 4000
#define WALKS 500

struct walk {
	struct order o;
	struct versions file[FILES];
	struct version v[MAX_VERSIONS];
	bool alive[MAX_VERSIONS];
	uint64_t seed;
	/* What the committer has written, and not yet synced: in this order. */
	struct version *group[MAX_VERSIONS];
	unsigned group_count;
	uint64_t committed; /* how many, so that a walk is not idle */
};

static unsigned roll(struct walk *w, unsigned sides)
{
	w->seed = w->seed * UINT64_C(6364136223846793005) + 1442695040888963407;
	return (unsigned)(w->seed >> 33) % sides;
}

static struct version *any_in(struct walk *w, uint32_t states)
{
	unsigned from = roll(w, MAX_VERSIONS);

	for (unsigned i = 0; i < MAX_VERSIONS; i++) {
		unsigned n = (from + i) % MAX_VERSIONS;

		if (w->alive[n] && (states & (1u << w->v[n].state)))
			return &w->v[n];
	}
	return NULL;
}

#define IN(state) (1u << VERSION_##state)

static void end_it(struct walk *w, struct version *v, enum version_state to)
{
	order_end(&w->o, v, to);
	w->alive[v - w->v] = false;
}

static void close_file(struct walk *w)
{
	struct versions *f = &w->file[roll(w, FILES)];
	struct version *v = versions_next(f);
	enum version_state to = roll(w, 2) ? VERSION_QUEUED : VERSION_CLOSED;
	bool asked = roll(w, 8) == 0; /* for as it stands */

	if (asked && f->in_flight && !f->in_flight->replaced)
		return; /* that is what he waits for */

	if (!v) {
		unsigned n = 0;

		while (n < MAX_VERSIONS && w->alive[n])
			n++;
		if (n == MAX_VERSIONS)
			return;
		v = &w->v[n];
		*v = (struct version){ 0 };
		w->alive[n] = true;
		order_add(&w->o, v, f, to);
	}
	if (!asked)
		order_place(&w->o, v);
}

/* O_TRUNC: what was closed and has a place keeps it; the rest ends. */
static void replace(struct walk *w)
{
	struct versions *f = &w->file[roll(w, FILES)];
	struct version *v, *after;

	for (v = TAILQ_FIRST(&f->list); v; v = after) {
		after = TAILQ_NEXT(v, by_file);
		if (v->replaced || v->state == VERSION_SEEN)
			continue;
		if (!version_pending(v) ||
		    (v->place && v->state != VERSION_FAILED))
			order_replace(&w->o, v);
		else
			end_it(w, v, VERSION_GONE);
	}
}

/*
 * It is drained again, unless it was closed anew; perhaps behind any other one,
 * also one that is not in flight, or has its turn later.
 */
static void give_back(struct walk *w, struct version *v)
{
	struct version *q = versions_next(v->file);
	struct version *u = roll(w, 2) ? any_in(w, ~0u) : NULL;

	if (!v->replaced && q)
		end_it(w, v, VERSION_GONE);
	else
		order_again(&w->o, v, u != v ? u : NULL);
}

static void fail_it(struct walk *w, struct version *v)
{
	struct version *q = versions_next(v->file);

	if (v->replaced || q)
		end_it(w, v, VERSION_GONE);
	else
		order_fail(&w->o, v);
}

static bool is_written(const struct walk *w, const struct version *v)
{
	for (unsigned i = 0; i < w->group_count; i++)
		if (w->group[i] == v)
			return true;
	return v->state == VERSION_SEEN;
}

/*
 * Invariant 1: v is written to the log now. All that were closed before it are
 * in the log before it, unless somebody waits for v, or it was never closed.
 * And nothing newer of its own file is committed before it.
 */
static void check_write(struct walk *w, const struct version *v)
{
	for (unsigned i = 0; i < MAX_VERSIONS; i++) {
		const struct version *u = &w->v[i];

		if (!w->alive[i] || u == v)
			continue;
		if (v->place && v->want != WANT_ALONE && u->place &&
		    u->place < v->place)
			assert_true(is_written(w, u));
		if (u->file == v->file)
			assert_true(version_pending(u));
	}
}

static void supersede(struct walk *w, struct version *v)
{
	struct version *u;

	while ((u = TAILQ_FIRST(&v->file->list)) != v)
		end_it(w, u, VERSION_GONE);
}

/* One group: each is written, or given back at once; then all are synced. */
static void commit_group(struct walk *w)
{
	bool synced = roll(w, 8) > 0;
	struct version *v;

	while ((v = order_void(&w->o)) != NULL)
		give_back(w, v);
	w->group_count = 0;
	for (unsigned n = roll(w, 6); n > 0 && (v = order_take(&w->o)); n--) {
		switch (roll(w, 8)) {
		case 0:
			give_back(w, v);
			break;
		case 1:
			fail_it(w, v);
			break;
		default:
			check_write(w, v);
			w->group[w->group_count++] = v;
		}
		if (roll(w, 4) == 0) /* somebody comes meanwhile */
			replace(w);
		if (roll(w, 4) == 0 && (v = any_in(w, ~0u)))
			(void)order_want(&w->o, v);
	}
	for (unsigned i = 0; i < w->group_count; i++) {
		v = w->group[i];
		if (!synced) {
			fail_it(w, v);
			continue;
		}
		order_seen(&w->o, v);
		supersede(w, v);
		end_it(w, v, VERSION_DONE);
		w->committed++;
	}
	w->group_count = 0;
}

/*
 * Of a file the newer one has the greater number: what waits, and nobody has
 * closed, has none yet, and it is the newest.
 */
static void check_numbers(const struct walk *w)
{
	const struct version *v, *newer;

	for (unsigned i = 0; i < FILES; i++)
		TAILQ_FOREACH(v, &w->file[i].list, by_file)
		{
			newer = TAILQ_NEXT(v, by_file);
			if (v->number == 0)
				assert_true(!newer && v->place == 0 &&
					    version_pending(v));
			else if (newer && newer->number != 0)
				assert_true(newer->number > v->number);
		}
}

/*
 * Who is behind another one waits for no turn that comes after his own, and for
 * none at all, if somebody waits for him.
 */
static void check_followers(const struct walk *w)
{
	for (unsigned i = 0; i < MAX_VERSIONS; i++) {
		const struct version *v = &w->v[i], *u = v->behind;

		if (!w->alive[i] || !u)
			continue;
		assert_true(w->alive[u - w->v] && !version_pending(u));
		assert_true(v->state == VERSION_QUEUED);
		if (u->place && u->want != WANT_ALONE) {
			assert_true(v->place && v->want != WANT_ALONE);
			assert_true(u->place < v->place);
		}
	}
}

static void step(struct walk *w)
{
	struct version *v;

	switch (roll(w, 12)) {
	case 0:
	case 1:
		close_file(w);
		break;
	case 2:
		replace(w);
		break;
	case 3:
		v = any_in(w, IN(CLOSED) | IN(FAILED));
		if (v)
			order_wake(&w->o, v);
		break;
	case 4:
		v = any_in(w, ~0u);
		if (v && roll(w, 3) == 0)
			(void)order_want(&w->o, v);
		break;
	case 5:
		v = any_in(w, ~0u);
		if (v && v->waiting > 0)
			(void)order_leave(&w->o, v);
		v = any_in(w, ~0u);
		if (v && version_pending(v) && roll(w, 4) == 0)
			end_it(w, v, VERSION_GONE); /* its file is deleted */
		break;
	case 6:
		v = any_in(w, IN(RUNNING));
		if (v && roll(w, 2))
			give_back(w, v);
		else if (v)
			fail_it(w, v);
		break;
	case 7:
	case 8:
		v = any_in(w, IN(RUNNING));
		if (v)
			order_ready(&w->o, v);
		break;
	case 9:
		commit_group(w);
		break;
	default:
		(void)order_start(&w->o);
	}
}

static unsigned count_alive(const struct walk *w)
{
	unsigned n = 0;

	for (unsigned i = 0; i < MAX_VERSIONS; i++)
		n += w->alive[i];
	return n;
}

/* Invariant 6: nothing new comes, and nothing fails any more: all of it ends.
 */
static void finish(struct walk *w)
{
	struct version *v;

	for (unsigned n = 0; n < 4 * MAX_VERSIONS && count_alive(w); n++) {
		while ((v = any_in(w, IN(CLOSED) | IN(FAILED))))
			order_wake(&w->o, v);
		while ((v = any_in(w, IN(RUNNING))) || (v = order_start(&w->o)))
			order_ready(&w->o, v);
		while ((v = order_void(&w->o)) != NULL)
			give_back(w, v);
		while ((v = order_take(&w->o)) != NULL) {
			check_write(w, v);
			order_seen(&w->o, v);
			supersede(w, v);
			end_it(w, v, VERSION_DONE);
		}
	}
	assert_int_equal(count_alive(w), 0);
	assert_int_equal(w->o.unfinished, 0);
	assert_null(order_first(&w->o));
	for (unsigned i = 0; i < FILES; i++) {
		assert_int_equal(w->file[i].replaced, 0);
		assert_null(w->file[i].in_flight);
		assert_true(TAILQ_EMPTY(&w->file[i].list));
	}
}

static uint64_t walking; /* the seed of the walk that is not over; 0: none */

static int tell_seed(void **state)
{
	(void)state;
	if (walking)
		print_error("this walk again, as the first: " TEST_SEED
			    "=%" PRIu64 "\n",
			    walking);
	return 0;
}

static void
no_walk_commits_a_version_before_one_that_was_closed_before_it(void **state)
{
	uint64_t from = test_seed(), committed = 0;
	struct walk *w = malloc(sizeof(*w));

	(void)state;
	assert_non_null(w);
	for (uint64_t s = from; s - from < WALKS; s++) {
		*w = (struct walk){ .seed = s };
		order_init(&w->o);
		for (unsigned i = 0; i < FILES; i++)
			versions_init(&w->file[i]);
		walking = s;
		for (unsigned i = 0; i < STEPS; i++) {
			step(w);
			check_numbers(w);
			check_followers(w);
		}
		committed += w->committed;
		finish(w);
	}
	walking = 0;
	assert_true(committed / WALKS > 100);
	free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(
			no_walk_commits_a_version_before_one_that_was_closed_before_it,
			tell_seed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
