/*
 * order.c - see order.h.
 *
 * The list that a version is in follows from its state, its place, from who
 * wants it and from what it is behind (queue_of()); so of these only the place
 * is set by others than relist(), which takes it out of one list and puts it
 * into the other. The state is set by move_behind() alone, which asks the
 * table.
 */
#include "store/drain/order.h"

#include "store/base/scope.h"

#define TO(state) (1u << VERSION_##state)

static const uint32_t next[VERSION_STATE_COUNT] = {
	[VERSION_NEW] = TO(CLOSED) | TO(QUEUED),
	[VERSION_CLOSED] = TO(QUEUED) | TO(GONE),
	[VERSION_FAILED] = TO(QUEUED) | TO(GONE),
	[VERSION_QUEUED] = TO(RUNNING) | TO(GONE),
	[VERSION_RUNNING] =
		TO(READY) | TO(VOID) | TO(QUEUED) | TO(FAILED) | TO(GONE),
	[VERSION_READY] = TO(TAKEN) | TO(VOID) | TO(GONE),
	[VERSION_VOID] = TO(QUEUED) | TO(GONE),
	[VERSION_TAKEN] = TO(SEEN) | TO(QUEUED) | TO(FAILED) | TO(GONE),
	[VERSION_SEEN] = TO(DONE),
};

#define IS_PENDING (TO(CLOSED) | TO(FAILED) | TO(QUEUED))
#define IS_IDLE (TO(CLOSED) | TO(FAILED))
#define IS_IN_FLIGHT (TO(RUNNING) | TO(READY) | TO(VOID) | TO(TAKEN) | TO(SEEN))
#define IS_OVER (TO(DONE) | TO(GONE))

static bool in_state(const struct version *v, uint32_t states)
{
	return (states & (1u << v->state)) != 0;
}

bool order_allows(enum version_state from, enum version_state to)
{
	return (next[from] & (1u << to)) != 0;
}

bool version_pending(const struct version *v)
{
	return in_state(v, IS_PENDING);
}

bool version_over(const struct version *v)
{
	return in_state(v, IS_OVER);
}

uint64_t version_rank(const struct version *v)
{
	return v->place ? v->place : v->number;
}

void order_init(struct order *o)
{
	*o = (struct order){ .next_place = 1 };
	TAILQ_INIT(&o->placed);
	TAILQ_INIT(&o->idle);
	TAILQ_INIT(&o->queue);
	TAILQ_INIT(&o->loose);
	TAILQ_INIT(&o->voided);
}

/* It is committed when it is READY, whatever else there is. */
static bool needs_no_turn(const struct version *v)
{
	return v->place == 0 || v->want == WANT_ALONE;
}

bool order_may_follow(const struct version *v, const struct version *u)
{
	return in_state(u, IS_IN_FLIGHT) &&
	       (needs_no_turn(u) || (!needs_no_turn(v) && u->place < v->place));
}

static struct version_queue *queue_of(struct order *o, const struct version *v)
{
	if (in_state(v, IS_IDLE))
		return &o->idle;
	if (v->state == VERSION_QUEUED)
		return v->behind ? &v->behind->followers : &o->queue;
	if (v->state == VERSION_VOID)
		return &o->voided;
	if (v->state == VERSION_READY && needs_no_turn(v))
		return &o->loose;
	return NULL;
}

/* The one way in which what decides on a version's list changes. */
static void relist_one(struct order *o, struct version *v,
		       enum version_state state, enum version_want want,
		       struct version *behind)
{
	struct version_queue *q = queue_of(o, v);

	if (q)
		TAILQ_REMOVE(q, v, by_state);
	v->state = state;
	v->want = want;
	v->behind = state == VERSION_QUEUED ? behind : NULL;
	q = queue_of(o, v);
	if (q == &o->queue && want == WANT_ALONE)
		TAILQ_INSERT_HEAD(q, v, by_state);
	else if (q)
		TAILQ_INSERT_TAIL(q, v, by_state);
}

/*
 * QUEUED once more, it goes before all that were closed after it; what somebody
 * waits for before all. What was never closed stays the last: it could be given
 * back again and again.
 */
static void to_its_place(struct order *o, struct version *v)
{
	bool wanted = v->want == WANT_ALONE;
	struct version *u;

	if (v->behind || (v->place == 0 && !wanted))
		return;
	TAILQ_REMOVE(&o->queue, v, by_state);
	TAILQ_FOREACH(u, &o->queue, by_state)
	if (wanted || (u->want != WANT_ALONE && u->place >= v->place))
		break;
	if (u)
		TAILQ_INSERT_BEFORE(u, v, by_state);
	else
		TAILQ_INSERT_TAIL(&o->queue, v, by_state);
}

/* It is behind u from now on, if it may be; NULL: behind none. */
static void follow(struct order *o, struct version *v, struct version *u)
{
	if (u && !order_may_follow(v, u))
		u = NULL;
	relist_one(o, v, v->state, v->want, u);
	to_its_place(o, v);
}

/*
 * The same; and who is behind it, or what it is behind, may be so no more. What
 * a leader is behind now has perhaps bytes of its followers, too; at least it
 * keeps them from beginning just before the leader does.
 */
static void relist(struct order *o, struct version *v, enum version_state state,
		   enum version_want want, struct version *behind)
{
	struct version *f, *before;

	relist_one(o, v, state, want, behind);
	if (v->behind && !order_may_follow(v, v->behind))
		follow(o, v, NULL);
	for (f = TAILQ_LAST(&v->followers, version_queue); f; f = before) {
		before = TAILQ_PREV(f, version_queue, by_state);
		if (!order_may_follow(f, v))
			follow(o, f, v->behind);
	}
}

/* What the file is now may have been changed since it was closed. */
static void number_what_starts(struct order *o, struct version *v)
{
	if (v->number == 0 || (!v->replaced && !TAILQ_NEXT(v, by_file)))
		v->number = order_draw(o);
}

static void move_behind(struct order *o, struct version *v,
			enum version_state to, struct version *behind)
{
	bool flew = in_state(v, IS_IN_FLIGHT);

	CHECK(order_allows(v->state, to));
	if (to == VERSION_RUNNING)
		number_what_starts(o, v);
	relist(o, v, to, to == VERSION_FAILED ? WANT_NOT : v->want, behind);
	if (flew)
		CHECK(v->file->in_flight == v);
	else if (in_state(v, IS_IN_FLIGHT))
		CHECK(!v->file->in_flight);
	else
		return;
	v->file->in_flight = in_state(v, IS_IN_FLIGHT) ? v : NULL;
}

static void move(struct order *o, struct version *v, enum version_state to)
{
	move_behind(o, v, to, NULL);
}

struct version *versions_next(const struct versions *f)
{
	struct version *v = TAILQ_LAST(&f->list, version_list);

	return v && !v->replaced && version_pending(v) ? v : NULL;
}

void order_add(struct order *o, struct version *v, struct versions *f,
	       enum version_state state)
{
	v->file = f;
	TAILQ_INIT(&v->followers);
	TAILQ_INSERT_TAIL(&f->list, v, by_file);
	o->unfinished++;
	move(o, v, state);
}

static void unplace(struct order *o, struct version *v)
{
	if (v->place)
		TAILQ_REMOVE(&o->placed, v, by_place);
	v->place = 0;
}

void order_place(struct order *o, struct version *v)
{
	CHECK(version_pending(v));
	unplace(o, v);
	v->place = order_draw(o);
	v->number = v->place;
	TAILQ_INSERT_TAIL(&o->placed, v, by_place);
}

void order_unplace(struct order *o, struct version *v)
{
	CHECK(version_pending(v));
	unplace(o, v);
	relist(o, v, v->state, v->want, v->behind);
}

void order_begin(struct order *o, uint64_t first)
{
	CHECK(first >= o->next_place);
	o->next_place = first;
}

void order_resume(struct order *o, struct version *v, uint64_t place)
{
	struct version *u = TAILQ_LAST(&o->placed, version_queue);

	CHECK(version_pending(v) && v->place == 0 && place < o->next_place);
	v->place = place;
	v->number = order_draw(o);
	while (u && u->place > place)
		u = TAILQ_PREV(u, version_queue, by_place);
	if (u)
		TAILQ_INSERT_AFTER(&o->placed, u, v, by_place);
	else
		TAILQ_INSERT_HEAD(&o->placed, v, by_place);
}

uint64_t order_draw(struct order *o)
{
	return o->next_place++;
}

void order_wake(struct order *o, struct version *v)
{
	if (in_state(v, IS_IDLE))
		move(o, v, VERSION_QUEUED);
}

void order_replace(struct order *o, struct version *v)
{
	CHECK(!v->replaced && !in_state(v, TO(SEEN) | IS_OVER));
	if (v->number == 0)
		v->number = order_draw(o);
	order_wake(o, v);
	v->replaced = true;
	v->file->replaced++;
}

/* Of its file the oldest one that somebody waits for; else the oldest. */
static bool is_next(const struct version *v)
{
	const struct version *u;

	if (v->file->in_flight)
		return false;
	TAILQ_FOREACH(u, &v->file->list, by_file)
	if (u->want == WANT_ALONE)
		return u == v;
	return TAILQ_FIRST(&v->file->list) == v;
}

/* Those that somebody waits for are the first of the queue. */
static struct version *first_wanted(const struct order *o)
{
	struct version *v;

	TAILQ_FOREACH(v, &o->queue, by_state)
	if (v->want != WANT_ALONE)
		return NULL;
	else if (is_next(v))
		return v;
	return NULL;
}

struct version *order_start(struct order *o)
{
	struct version *v;

	TAILQ_FOREACH(v, &o->queue, by_state)
	{
		if ((o->on_demand && v->want == WANT_NOT) || !is_next(v))
			continue;
		move(o, v, VERSION_RUNNING);
		return v;
	}
	return NULL;
}

struct version *order_start_wanted(struct order *o)
{
	struct version *v = first_wanted(o);

	if (v)
		move(o, v, VERSION_RUNNING);
	return v;
}

bool order_has_wanted(const struct order *o)
{
	return first_wanted(o) != NULL;
}

/*
 * Nobody waits for it, and it is not its turn in its file: it was replaced, and
 * somebody waits for a newer one, or it was started before an older one for who
 * has left.
 */
static bool makes_way(const struct version *v)
{
	const struct version *u = v;

	if (v->want == WANT_ALONE)
		return false;
	if (TAILQ_FIRST(&v->file->list) != v)
		return true;
	if (!v->replaced)
		return false;
	while ((u = TAILQ_NEXT(u, by_file)) != NULL)
		if (u->want == WANT_ALONE)
			return true;
	return false;
}

void order_ready(struct order *o, struct version *v)
{
	move(o, v, makes_way(v) ? VERSION_VOID : VERSION_READY);
}

bool order_give_back(struct order *o, struct version *v)
{
	if (v->state == VERSION_READY)
		move(o, v, VERSION_VOID);
	return v->state == VERSION_VOID;
}

void order_again(struct order *o, struct version *v, struct version *behind)
{
	CHECK(behind != v);
	move_behind(o, v, VERSION_QUEUED, behind);
	to_its_place(o, v);
}

void order_fail(struct order *o, struct version *v)
{
	move(o, v, VERSION_FAILED);
}

struct version *order_take(struct order *o)
{
	struct version *v = TAILQ_FIRST(&o->loose);

	if (!v)
		v = TAILQ_FIRST(&o->placed);
	/* Who is TAKEN is written before whoever is taken now. */
	while (v && in_state(v, TO(TAKEN) | TO(SEEN)))
		v = TAILQ_NEXT(v, by_place);
	if (!v || v->state != VERSION_READY)
		return NULL; /* nobody overtakes it */
	move(o, v, VERSION_TAKEN);
	return v;
}

struct version *order_void(const struct order *o)
{
	return TAILQ_FIRST(&o->voided);
}

void order_seen(struct order *o, struct version *v)
{
	move(o, v, VERSION_SEEN);
}

void order_end(struct order *o, struct version *v, enum version_state to)
{
	CHECK(to == VERSION_DONE || to == VERSION_GONE);
	move(o, v, to);
	unplace(o, v);
	TAILQ_REMOVE(&v->file->list, v, by_file);
	if (v->replaced)
		v->file->replaced--;
	o->unfinished--;
}

static void want_one(struct order *o, struct version *v)
{
	enum version_state to = version_pending(v) ? VERSION_QUEUED : v->state;

	CHECK(to == v->state || order_allows(v->state, to));
	relist(o, v, to, WANT_ALONE, v->behind);
}

struct version *order_want(struct order *o, struct version *v)
{
	struct version *r;
	bool aside;

	v->waiting++;
	if (version_over(v))
		return NULL;
	r = v->file->in_flight;
	aside = r && r != v && r->replaced && r->want != WANT_ALONE;
	if (r && r != v && !aside && !v->replaced) /* one of a file at a time */
		want_one(o, r);
	want_one(o, v);
	if (aside && r->state == VERSION_READY)
		move(o, r, VERSION_VOID);
	return aside && r->state == VERSION_RUNNING ? r : NULL;
}

bool order_leave(struct order *o, struct version *v)
{
	struct version *u;
	bool moved = false;

	CHECK(v->waiting > 0);
	v->waiting--;
	TAILQ_FOREACH(u, &v->file->list, by_file)
	if (u->waiting > 0)
		return false;
	TAILQ_FOREACH(u, &v->file->list, by_file)
	{
		if (u->want != WANT_ALONE)
			continue;
		relist(o, u, u->state, WANT_SOON, u->behind);
		if (u->state == VERSION_READY && makes_way(u))
			move(o, u, VERSION_VOID);
		moved = true;
	}
	return moved;
}

void order_want_soon(struct version *v)
{
	if (v->want == WANT_NOT)
		v->want = WANT_SOON;
}

struct version *order_first(const struct order *o)
{
	return TAILQ_FIRST(&o->placed);
}
