/* model.c - see model.h. */
#include "tests/sim/model_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/scope.h"
#include "store/base/vec.h"
#include "tests/sim/sim.h"

#define NONE SIZE_MAX
/* drain_wait_released() waits as long for a late RELEASE. */
#define RELEASE_NS INT64_C(1000000000)

struct model model;

void model_init(uint64_t empty_in_place_bytes)
{
	memset(&model, 0, sizeof(model));
	model.empty_in_place_bytes = empty_in_place_bytes;
}

struct path *model_path(const char *name, unsigned owner)
{
	struct path *p = &model.path[model.count];

	CHECK(model.count < PATHS_MAX);
	model.count++;
	p->owner = owner;
	(void)snprintf(p->name, sizeof(p->name), "%s", name);
	(void)model_begin(p, NULL, 0);
	model_end(p, 0);
	return p;
}

const char *model_name(const struct path *p)
{
	return p->name;
}

unsigned model_paths(void)
{
	return model.count;
}

struct path *model_path_at(unsigned i)
{
	return &model.path[i];
}

void model_expect_parts(void)
{
	model.parts = true;
}

void model_expect_errors(void)
{
	model.errors = true;
}

/* --- what is done
 * --------------------------------------------------------------- */

/* Does a sync run of the file that it is, perhaps by the name it had? */
static bool is_syncing(const struct path *p)
{
	for (unsigned i = 0; i < model.count; i++)
		if (model.path[i].moved_to == p && model.path[i].syncing > 0)
			return true;
	return p->syncing > 0;
}

size_t model_begin(struct path *p, uint8_t *bytes, size_t size)
{
	bool syncing = is_syncing(p);
	struct version *v;

	CHECK(vec_grow(&p->at, p->count, &p->room, sizeof(*p->at)) == 0);
	v = &p->at[p->count];
	*v = (struct version){ .bytes = bytes,
			       .size = size,
			       .begun = sim_points() + 1,
			       .begun_ns = sim_clock(),
			       .hurried = syncing,
			       .partial = syncing };
	return p->count++;
}

void model_is_written(struct path *p, size_t state)
{
	p->at[state].written = true;
	p->at[state].partial = p->at[state].partial || model.parts;
	p->at[state].hurried = p->at[state].hurried || model.parts;
	p->at[state].made = state > 0 && !p->at[state - 1].bytes;
}

void model_is_anew(struct path *p, size_t state)
{
	p->at[state].anew = true;
}

/* A RELEASE that takes longer is not waited for. */
static bool has_waited(const struct version *v)
{
	return sim_clock() - v->begun_ns >= RELEASE_NS;
}

void model_opened(struct path *p, size_t state)
{
	p->at[state].opened = true;
	p->at[state].in_place = has_waited(&p->at[state]);
}

/* Does the version before it keep its turn? */
static bool is_anew(const struct version *v)
{
	return v->anew && !(v->opened ? v->in_place : has_waited(v));
}

void model_end(struct path *p, size_t state)
{
	if (!p->at[state].opened)
		model_opened(p, state);
	p->at[state].ended = sim_points() + 1;
}

void model_close_begin(struct path *p, size_t state)
{
	p->at[state].close_begun = sim_points() + 1;
}

void model_close_end(struct path *p, size_t state)
{
	p->at[state].closed = sim_points() + 1;
}

void model_failed(struct path *p, size_t state)
{
	p->at[state].failed = p->at[state].written = true;
	p->at[state].partial = true;
	p->moved_to = NULL;
	model_end(p, state);
}

void model_undone(struct path *p, size_t state)
{
	CHECK(state == p->count - 1);
	free(p->at[state].bytes);
	p->count--;
}

void model_moved(struct path *from, size_t from_state, struct path *to,
		 size_t to_state)
{
	struct version *a = &from->at[from_state - 1], *b = &to->at[to_state];

	from->moved_to = to;
	from->moved_from = from_state;
	from->moved = to_state;
	from->moved_durable = from->floor >= from_state - 1;
	b->hurried = b->hurried || a->hurried;
	b->close_begun = a->close_begun;
	b->came = from;
	b->came_state = from_state - 1;
	/* What is replaced stays until this version is durable itself. */
	if (to->at[to_state - 1].bytes && !to->at[to_state - 1].failed)
		return;
	b->of = from;
	b->of_state = from_state - 1;
}

void model_linked(struct path *a, struct path *b, size_t state)
{
	a->other = b;
	b->other = a;
	b->at[state].of = a;
	b->at[state].of_state = a->count - 1;
}

static void hurry(struct path *p, int by)
{
	struct version *v = &p->at[p->count - 1];

	p->syncing += (unsigned)by;
	if (by < 0)
		return;
	/* Whose name changes meanwhile: either may be what is synced. */
	if (p->moved_to)
		p->moved_to->at[p->moved].hurried = true;
	v->hurried = true;
	v->partial = v->partial || !v->ended;
	/* In one stage with it: what was drained of these comes before it. */
	for (size_t i = p->count; i-- > 1;) {
		if (p->at[i].ended && is_anew(&p->at[i]))
			break;
		p->at[i - 1].hurried = true;
	}
}

size_t model_sync_begin(struct path *p)
{
	hurry(p, 1);
	if (p->other)
		hurry(p->other, 1);
	return model_ended(p);
}

void model_promise(struct path *p, size_t promised)
{
	if (promised > p->floor)
		p->floor = promised;
	if (promised < p->count)
		p->at[promised].less = false;
	model_durable();
}

void model_sync_end(struct path *p, size_t promised, bool ok)
{
	hurry(p, -1);
	if (p->other)
		hurry(p->other, -1);
	if (ok)
		model_promise(p, promised);
}

size_t model_promise_begin(const struct path *p)
{
	return model_ended(p);
}

size_t model_last(const struct path *p)
{
	return p->count - 1;
}

size_t model_ended(const struct path *p)
{
	size_t i = p->count - 1;

	while (!p->at[i].ended || p->at[i].failed)
		i--;
	return i;
}

bool model_known(const struct path *p)
{
	return !p->at[p->count - 1].failed;
}

const uint8_t *model_bytes(const struct path *p, size_t state, size_t *ret_size)
{
	*ret_size = p->at[state].size;
	return p->at[state].bytes;
}

bool model_has_size(const struct path *p, size_t size)
{
	for (size_t i = 0; i < p->count; i++)
		if (p->at[i].bytes && p->at[i].size == size)
			return true;
	return false;
}

/* --- what is said
 * --------------------------------------------------------------- */

static void say_path(const struct path *p)
{
	fprintf(stderr, "  %s (durable from state %zu):\n", p->name, p->floor);
	for (size_t i = 0; i < p->count; i++) {
		const struct version *v = &p->at[i];

		fprintf(stderr, "    %zu: ", i);
		if (v->bytes)
			fprintf(stderr, "%zu bytes", v->size);
		else
			fprintf(stderr, "absent");
		fprintf(stderr, ", points %llu-%llu",
			(unsigned long long)v->begun,
			(unsigned long long)v->ended);
		if (v->close_begun)
			fprintf(stderr, ", closed %llu-%llu",
				(unsigned long long)v->close_begun,
				(unsigned long long)v->closed);
		fprintf(stderr, "%s%s%s\n", v->hurried ? ", synced" : "",
			v->partial ? ", in parts" : "",
			v->failed ? ", failed" : "");
	}
}

void model_say(void)
{
	for (unsigned i = 0; i < model.count; i++)
		say_path(&model.path[i]);
}

/* --- what is durable
 * ------------------------------------------------------------ */

bool version_has_size(const struct version *v, size_t size)
{
	return v->size == size || ((v->partial || v->less) && size < v->size) ||
	       (v->made && size == 0);
}

static bool fits(const struct version *v, bool absent, size_t size)
{
	for (size_t i = 0; v->of && i <= v->of_state; i++)
		if (fits(&v->of->at[i], absent, size))
			return true;
	if (absent || !v->bytes)
		return absent && !v->bytes;
	return version_has_size(v, size);
}

/* The last state, or the first, that this can be; NONE. */
static size_t last_fit(const struct path *p, bool absent, size_t size)
{
	for (size_t i = p->count; i-- > 0;)
		if (fits(&p->at[i], absent, size))
			return i;
	return NONE;
}

/*
 * The last version that was closed before this point, and kept its turn since:
 * who changes it in place, or removes it, takes it out. NONE: there is none.
 */
static size_t last_closed(const struct path *p, uint64_t before)
{
	for (size_t i = p->count; i-- > 0;) {
		const struct version *v = &p->at[i];

		/* Closed without a byte, it gets its turn when released. */
		if (!v->bytes || v->size == 0 || v->failed)
			return NONE;
		if (v->closed && v->closed < before)
			return i;
		if (!is_anew(v))
			return NONE;
	}
	return NONE;
}

/*
 * What was closed before this state of b and is not durable, though b is in
 * this state; NONE: nothing, or it may be so.
 */
static size_t overtaken(const struct path *b, size_t b_state, size_t size,
			const size_t last[PATHS_MAX])
{
	const struct version *v = &b->at[b_state];

	/* Made anew and looked at, it is durable while it is empty. */
	if (!v->bytes || v->hurried || !v->close_begun || v->failed ||
	    v->size != size || (v->made && size == 0))
		return NONE;
	for (unsigned i = 0; i < model.count; i++) {
		const struct path *a = &model.path[i];
		size_t elder = last_closed(a, v->close_begun);

		if (a != b && elder != NONE && last[i] < elder)
			return i;
	}
	return NONE;
}

/*
 * b is durable with this size: what was closed before it has to be. Saves of
 * one path are of one size, so it may be in any of the states that have it.
 */
static void check_order(const struct path *b, bool absent, size_t size,
			const size_t last[PATHS_MAX])
{
	size_t state = NONE, over = NONE;

	for (size_t i = 0; i < b->count; i++) {
		if (!fits(&b->at[i], absent, size))
			continue;
		state = i;
		over = overtaken(b, i, size, last);
		if (over == NONE)
			return;
	}
	if (state == NONE)
		return;
	sim_fail("order: %s (state %zu) is durable, and %s, which was closed "
		 "before it, is state %zu",
		 b->name, state, model.path[over].name, last[over]);
}

/* Durable before it is closed, as a file that is open may be: out of turn. */
static void note_early(struct path *p, bool absent, size_t size)
{
	struct version *v = &p->at[p->count - 1];

	if (!absent && v->bytes && !v->close_begun && v->size == size)
		v->hurried = true;
}

void model_durable(void)
{
	size_t last[PATHS_MAX], sizes[PATHS_MAX];
	bool absents[PATHS_MAX];

	for (unsigned i = 0; i < model.count; i++) {
		struct path *p = &model.path[i];
		struct durable d;
		bool absent = durable_find(p->name, &d) < 0;
		size_t size = d.size;

		last[i] = last_fit(p, absent, size);
		sizes[i] = size;
		absents[i] = absent;
		note_early(p, absent, size);
		if (last[i] == NONE)
			sim_fail("torn: %s is durable with %zu bytes, which no "
				 "version has",
				 p->name, size);
		if (last[i] < p->floor)
			sim_fail("promise: %s was made durable as state %zu, "
				 "and is state %zu",
				 p->name, p->floor, last[i]);
		durable_check(p, &d);
	}
	for (unsigned i = 0; i < model.count && !model.errors; i++)
		check_order(&model.path[i], absents[i], sizes[i], last);
}

void model_check_drained(void)
{
	for (unsigned i = 0; i < model.count; i++) {
		struct path *p = &model.path[i];

		p->floor = model_ended(p);
	}
	model_durable();
}
