/*
 * sched.c - see sim.h: the threads, and who of them is next.
 *
 * A thread is a context with a stack of its own. Who comes to a point calls
 * sim_go_on(), which asks pick() who is next and changes over to him. A thread
 * that waits says for what (state, on), so that pick() can see whether it could
 * go on: a lock is taken by who runs, not by who gives it up, and so a lock
 * that is free has no owner that nobody sees.
 */
#include "tests/sim/sched_private.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "store/base/interrupt.h"
#include "store/base/scope.h"

#define STACK_BYTES (256u << 10)
#define POINTS_MAX 3000000 /* more: it does not end */
#define CLOCK_START INT64_C(1000000000000)

struct sim_state sim;

/* --- chance
 * ------------------------------------------------------------------- */

uint64_t chance_next(struct chance *c)
{
	uint64_t z = c->x += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

struct chance chance_of(uint64_t seed, uint64_t stream)
{
	struct chance c = { seed * UINT64_C(0xd1342543de82ef95) + stream };

	(void)chance_next(&c);
	c.x ^= chance_next(&c) + stream;
	return c;
}

uint64_t chance_below(struct chance *c, uint64_t n)
{
	return n > 0 ? chance_next(c) % n : 0;
}

bool chance_one_in(struct chance *c, uint64_t n)
{
	return n > 0 && chance_below(c, n) == 0;
}

/* --- what is said
 * ------------------------------------------------------------- */

const char *sim_rank_name(enum lock_rank rank)
{
#define LOCK_NAME_(r, name) name,
	static const char *const names[] = { LOCK_RANKS(LOCK_NAME_) };
#undef LOCK_NAME_

	return (unsigned)rank < LOCK_RANK_COUNT ? names[rank] : "a client's";
}

static void say_thread(const struct sim_thread *t)
{
	const struct lock *l = t->on;
	const struct shared_lock *s = t->on;

	fprintf(stderr, "  %2u %u %-12s ", t->id, t->group, t->name);
	switch (t->state) {
	case READY:
		fprintf(stderr, "can run");
		break;
	case ON_LOCK:
		fprintf(stderr, "waits for %s, which %s has",
			sim_rank_name(l->rank),
			l->holder ? l->holder->name : "nobody");
		break;
	case ON_READ:
	case ON_WRITE:
		fprintf(stderr, "waits for %s: writer %s, readers %u",
			sim_rank_name(s->rank),
			s->writer ? s->writer->name : "none", s->readers);
		break;
	case ON_COND:
		fprintf(stderr, "waits under %s",
			sim_rank_name(t->relock->rank));
		if (t->deadline_ns != INT64_MAX)
			fprintf(stderr, " for %.3f s more",
				(double)(t->deadline_ns - sim.now_ns) / 1e9);
		break;
	case ON_JOIN:
		fprintf(stderr, "waits for the end of %s",
			((const struct sim_thread *)t->on)->name);
		break;
	case ON_FN:
		fprintf(stderr, "waits for what is to come");
		break;
	case FREE:
	case ENDED:
		fprintf(stderr, "ended");
		break;
	}
	for (unsigned i = 0; i < t->held_count; i++)
		fprintf(stderr, "%s %s", i ? "," : "; holds",
			sim_rank_name(t->held[i].rank));
	fprintf(stderr, "\n");
}

void sim_fail(const char *format, ...)
{
	va_list ap;

	fflush(stdout);
	fprintf(stderr,
		"FOUND at point %llu, %.6f s: ", (unsigned long long)sim.points,
		(double)(sim.now_ns - CLOCK_START) / 1e9);
	va_start(ap, format);
	vfprintf(stderr, format, ap);
	va_end(ap);
	fprintf(stderr, "\n");
	for (unsigned i = 0; i < sim.count; i++)
		if (sim.thread[i].state != ENDED &&
		    sim.thread[i].state != FREE)
			say_thread(&sim.thread[i]);
	if (sim.on_fail)
		sim.on_fail();
	fprintf(stderr, "trace %016llx\n", (unsigned long long)sim.trace);
	_exit(SIM_EXIT_FOUND);
}

void sim_on_fail(void (*fn)(void))
{
	sim.on_fail = fn;
}

static void mix(uint64_t value)
{
	sim.trace = (sim.trace ^ value) * UINT64_C(0x100000001b3);
	sim.trace ^= sim.trace >> 29;
}

static uint64_t text_sum(const char *text)
{
	uint64_t sum = 14695981039346656037u;

	for (; *text; text++)
		sum = (sum ^ (uint8_t)*text) * UINT64_C(0x100000001b3);
	return sum;
}

void sim_note(uint64_t value)
{
	mix(value);
	if (sim.print)
		fprintf(stderr, "%s note %llx\n",
			sim.self ? sim.self->name : "-",
			(unsigned long long)value);
}

static bool seeks_rare; /* of the process: sim_init() leaves it */

void sim_seek_rare(void)
{
	seeks_rare = true;
}

bool sim_seeks_rare(void)
{
	return seeks_rare;
}

static bool is_change(const char *kind, const char *what)
{
	return strcmp(kind, "kv") == 0 && (strncmp(what, "write", 5) == 0 ||
					   strncmp(what, "writt", 5) == 0 ||
					   strncmp(what, "sync", 4) == 0);
}

void sim_count_point(const char *kind, const char *what)
{
	sim.points++;
	sim.self->points++;
	if (sim.crash_change && is_change(kind, what) &&
	    --sim.crash_change == 0)
		sim.crash_at = sim.points;
	if (sim.crash_commit && strcmp(kind, "kv") == 0 &&
	    strcmp(what, SIM_COMMIT) == 0 && --sim.crash_commit == 0)
		sim.crash_at = sim.points;
	sim.now_ns += POINT_NS;
	mix(sim.self->id);
	mix(text_sum(kind));
	mix(text_sum(what));
	if (sim.print)
		fprintf(stderr, "%7llu %u %-10s %s %s\n",
			(unsigned long long)sim.points, sim.self->group,
			sim.self->name, kind, what);
	if (sim.points > POINTS_MAX)
		sim_fail("it does not end");
}

/* --- who is next
 * -------------------------------------------------------------- */

static bool writer_waits(const struct shared_lock *s)
{
	for (unsigned i = 0; i < sim.count; i++)
		if (sim.thread[i].state == ON_WRITE && sim.thread[i].on == s)
			return true;
	return false;
}

static bool can_run(const struct sim_thread *t)
{
	const struct shared_lock *s = t->on;

	switch (t->state) {
	case READY:
		return true;
	case ON_LOCK:
		return !((const struct lock *)t->on)->holder;
	case ON_READ: /* a writer does not starve: see sync.h */
		return !s->writer && !writer_waits(s);
	case ON_WRITE:
		return !s->writer && s->readers == 0;
	case ON_JOIN:
		return ((const struct sim_thread *)t->on)->state == ENDED;
	case ON_FN:
		return t->until(t->until_arg);
	case ON_COND:
	case FREE:
	case ENDED:
		break;
	}
	return false;
}

/* The wait of t is over: it still has to get its lock. */
void sim_wake(struct sim_thread *t, bool late)
{
	((struct cond *)(uintptr_t)t->cond)->waiting--;
	t->late = late;
	t->on = t->relock;
	t->state = ON_LOCK;
}

/* Whoever's deadline comes first; false: nobody has one. */
static bool pass_time(void)
{
	struct sim_thread *first = NULL;

	for (unsigned i = 0; i < sim.count; i++) {
		struct sim_thread *t = &sim.thread[i];

		if (t->state == ON_COND && t->deadline_ns != INT64_MAX &&
		    (!first || t->deadline_ns < first->deadline_ns))
			first = t;
	}
	if (!first)
		return false;
	if (sim.now_ns < first->deadline_ns)
		sim.now_ns = first->deadline_ns;
	sim_wake(first, true);
	return true;
}

static unsigned find_runnable(struct sim_thread *list[THREADS_MAX])
{
	unsigned n = 0;

	for (unsigned i = 0; i < sim.count; i++)
		if (can_run(&sim.thread[i]))
			list[n++] = &sim.thread[i];
	return n;
}

/* What may happen at any time: a wait ends for no reason, or time passes. */
static void disturb(void)
{
	if (sim.early && chance_one_in(&sim.chance, sim.early))
		(void)pass_time();
	if (sim.spurious && chance_one_in(&sim.chance, sim.spurious)) {
		struct sim_thread *t =
			&sim.thread[chance_below(&sim.chance, sim.count)];

		if (t->state == ON_COND)
			sim_wake(t, false);
	}
}

/* Is this the i-th point at which who runs falls behind? */
static bool is_here(unsigned i)
{
	const struct sim_thread *t = sim.self;

	if (sim.change[i].thread == 0)
		return sim.change[i].at == sim.points;
	return sim.change[i].thread == t->id && sim.change[i].at == t->points;
}

/* Who waits for what has come now: see sim_wait(). */
static struct sim_thread *find_awaited(void)
{
	for (unsigned i = 0; i < sim.count; i++)
		if (sim.thread[i].state == ON_FN && can_run(&sim.thread[i]))
			return &sim.thread[i];
	return NULL;
}

static struct sim_thread *pick(void)
{
	struct sim_thread *list[THREADS_MAX], *best = find_awaited();
	unsigned n;

	if (best)
		return best;
	disturb();
	while ((n = find_runnable(list)) == 0)
		if (!pass_time())
			sim_fail("nobody can go on");
	if (!sim.pct) {
		if (can_run(sim.self) && !chance_one_in(&sim.chance, sim.walk))
			return sim.self;
		return list[chance_below(&sim.chance, n)];
	}
	for (unsigned i = 0; i < sim.changes; i++)
		if (is_here(i))
			sim.self->priority = --sim.lowest;
	best = list[0];
	for (unsigned i = 1; i < n; i++)
		if (list[i]->priority > best->priority)
			best = list[i];
	return best;
}

static void change_to(struct sim_thread *to)
{
	struct sim_thread *from = sim.self;

	if (to == from)
		return;
	from->saved_errno = errno;
	sim.self = to;
	CHECK(swapcontext(&from->context, &to->context) == 0);
	errno = sim.self->saved_errno;
}

void sim_go_on(void)
{
	if (sim.crash_at && sim.points >= sim.crash_at) {
		sim.crashed = true;
		CHECK(setcontext(&sim.root) == 0);
	}
	change_to(pick());
	sim.self->state = READY;
}

void sim_point(const char *kind, const char *what)
{
	if (!sim.self)
		return;
	sim_count_point(kind, what);
	sim_go_on();
}

/* --- a run
 * -------------------------------------------------------------------- */

static void choose_strategy(void)
{
	static const uint64_t walks[] = { 1, 2, 3, 5, 8, 20, 50, 200 };
	static const uint64_t lengths[] = { 300, 1000, 2500, 6000, 20000 };
	struct chance *c = &sim.chance;
	uint64_t length = lengths[chance_below(c, 5)];

	sim.pct = !chance_one_in(c, 3);
	sim.walk = walks[chance_below(c, sizeof(walks) / sizeof(*walks))];
	sim.spurious = chance_one_in(c, 4) ? 50 : 0;
	sim.early = chance_one_in(c, 6) ? 40 + chance_below(c, 400) : 0;
	sim.changes = (unsigned)chance_below(c, CHANGES_MAX + 1);
	for (unsigned i = 0; i < sim.changes; i++)
		sim.change[i].at = 1 + chance_below(c, length);
	/*
	 * Half of them when one thread has come to so many points of its own:
	 * a worker has few, and most fall to the clients otherwise.
	 */
	for (unsigned i = 0;
	     seeks_rare && i < sim.changes && chance_one_in(c, 2); i++) {
		sim.change[i].thread = 1 + (unsigned)chance_below(c, 16);
		sim.change[i].at =
			1 + chance_below(c, UINT64_C(8) << chance_below(c, 7));
	}
	sim.lowest = CHANGES_MAX * 1000;
}

void sim_init(uint64_t seed)
{
	if (!sim.stacks) {
		sim.stacks = mmap(NULL, (size_t)THREADS_MAX * STACK_BYTES,
				  PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
				  -1, 0);
		CHECK(sim.stacks != MAP_FAILED);
	}
	sim.seed = seed;
	sim.chance = chance_of(seed, 1);
	sim.now_ns = CLOCK_START;
	sim.trace = seed;
	choose_strategy();
}

void sim_trace_on(void)
{
	sim.print = true;
}

bool sim_traces(void)
{
	return sim.print;
}

void sim_crash_at(uint64_t point)
{
	sim.crash_at = point;
	sim.crash_change = sim.crash_commit = 0;
}

void sim_crash_at_commit(uint64_t n)
{
	sim_crash_at(0);
	sim.crash_commit = n;
}

void sim_crash_at_change(uint64_t n)
{
	sim_crash_at(0);
	sim.crash_change = n;
}

uint64_t sim_points(void)
{
	return sim.points;
}

uint64_t sim_trace(void)
{
	return sim.trace;
}

int64_t sim_clock(void)
{
	return sim.now_ns;
}

bool sim_running(void)
{
	return sim.self != NULL;
}

struct interrupt *interrupt_of_thread(void)
{
	return sim.self ? sim.self->served : NULL;
}

struct interrupt *interrupt_set(struct interrupt *i)
{
	struct interrupt *before = interrupt_of_thread();

	if (sim.self)
		sim.self->served = i;
	return before;
}

bool interrupt_is_due(void)
{
	const struct interrupt *i = interrupt_of_thread();

	return i && atomic_load(&i->signalled) && i->ends(i);
}

struct put_off *put_off_of_thread(void)
{
	const struct interrupt *i = interrupt_of_thread();

	return i ? i->put_off : NULL;
}

unsigned sim_self(void)
{
	return sim.self ? sim.self->id : 0;
}

void sim_set_group(unsigned group)
{
	sim.self->group = group;
}

unsigned sim_group(void)
{
	return sim.self ? sim.self->group : 0;
}

void sim_kill(unsigned group)
{
	CHECK(sim.self->group != group);
	for (unsigned i = 0; i < sim.count; i++)
		if (sim.thread[i].group == group)
			sim.thread[i].state = FREE;
}

void sim_wait(bool (*fn)(void *), void *arg)
{
	sim_count_point("until", "");
	sim.self->until = fn;
	sim.self->until_arg = arg;
	sim.self->state = ON_FN;
	sim_go_on();
}

void sim_name(const char *name)
{
	(void)snprintf(sim.self->name, sizeof(sim.self->name), "%s", name);
}

bool sim_is_early(void)
{
	return sim.early > 0;
}

bool sim_has_name(const char *name)
{
	return strcmp(sim.self->name, name) == 0;
}

/* Where each thread begins. */
static void thread_main(void)
{
	struct sim_thread *t = sim.self;

	t->state = READY;
	(void)t->main(t->arg);
	CHECK(t->held_count == 0);
	t->state = ENDED;
	sim_count_point("end", t->name);
	change_to(pick());
	abort(); /* who has ended is never picked */
}

static void *first_main(void *arg)
{
	(void)arg;
	sim.first(sim.first_arg);
	CHECK(setcontext(&sim.root) == 0);
	return NULL;
}

static void context_of(struct sim_thread *t)
{
	CHECK(getcontext(&t->context) == 0);
	t->context.uc_stack.ss_sp = sim.stacks + (size_t)t->id * STACK_BYTES;
	t->context.uc_stack.ss_size = STACK_BYTES;
	t->context.uc_link = NULL;
	makecontext(&t->context, thread_main, 0);
}

struct sim_thread *sim_thread_new(void *(*main)(void *), void *arg)
{
	struct sim_thread *t;
	unsigned at = 0;

	while (at < sim.count && sim.thread[at].state != FREE)
		at++;
	CHECK(at < THREADS_MAX);
	if (at == sim.count)
		sim.count++;
	t = &sim.thread[at];
	memset(t, 0, sizeof(*t));
	t->id = at;
	(void)snprintf(t->name, sizeof(t->name), "thread-%u", at);
	t->state = READY;
	t->deadline_ns = INT64_MAX;
	t->main = main;
	t->arg = arg;
	t->group = sim_group();
	t->priority = CHANGES_MAX * 1000 + 1 +
		      chance_below(&sim.chance, UINT64_C(1) << 40);
	context_of(t);
	return t;
}

enum sim_end sim_run(void (*main)(void *), void *arg)
{
	/* Not a register's: it must be seen after the second return. */
	static volatile bool begun;

	sim.first = main;
	sim.first_arg = arg;
	sim.count = 0;
	sim.crashed = false;
	begun = false;
	CHECK(getcontext(&sim.root) == 0);
	if (!begun) {
		begun = true;
		sim.self = sim_thread_new(first_main, NULL);
		sim_name("main");
		CHECK(setcontext(&sim.self->context) == 0);
	}
	sim.self = NULL;
	sim_crash_at(0);
	return sim.crashed ? SIM_CRASHED : SIM_DONE;
}
