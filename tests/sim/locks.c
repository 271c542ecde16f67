/*
 * locks.c - store/base/sync.h, as the simulator has it: who waits says for
 * what, and the schedule decides when he gets it. A lock out of order is found
 * here.
 */
#include "tests/sim/sched_private.h"

#include "store/base/scope.h"

#define WALL_START INT64_C(1700000000000000000)

/* The model's own are before all, and less than 0: see kernel.c. */
static bool may_follow(enum lock_rank held, enum lock_rank rank)
{
	if ((int)held < 0 || (int)rank < 0)
		return (int)held < (int)rank;
	return lock_may_follow(held, rank);
}

/* Before it is waited for: could it be that its holder waits for us? */
static void check_order(enum lock_rank rank)
{
	const struct sim_thread *t = sim.self;

	for (unsigned i = 0; t && i < t->held_count; i++)
		if (!may_follow(t->held[i].rank, rank))
			sim_fail("lock order: %s is taken by %s, which holds "
				 "%s",
				 sim_rank_name(rank), t->name,
				 sim_rank_name(t->held[i].rank));
}

static void note_taken(const void *lock, enum lock_rank rank)
{
	struct sim_thread *t = sim.self;

	CHECK(t->held_count < HELD_MAX);
	t->held[t->held_count].lock = lock;
	t->held[t->held_count++].rank = rank;
}

static void note_given(const void *lock)
{
	struct sim_thread *t = sim.self;
	unsigned i = t->held_count;

	while (i > 0 && t->held[i - 1].lock != lock)
		i--;
	if (i == 0)
		sim_fail("%s gives a lock that it does not hold", t->name);
	for (; i < t->held_count; i++)
		t->held[i - 1] = t->held[i];
	t->held_count--;
}

void lock_init(struct lock *l, enum lock_rank rank)
{
	*l = (struct lock){ .rank = rank };
}

void lock_destroy(struct lock *l)
{
	if (l->holder)
		sim_fail("%s is destroyed while %s holds it",
			 sim_rank_name(l->rank), l->holder->name);
}

void lock_take(struct lock *l)
{
	check_order(l->rank);
	sim_count_point("take", sim_rank_name(l->rank));
	sim.self->state = ON_LOCK;
	sim.self->on = l;
	sim_go_on();
	l->holder = sim.self;
	note_taken(l, l->rank);
}

bool lock_try(struct lock *l)
{
	sim_point("try", sim_rank_name(l->rank));
	if (l->holder)
		return false;
	l->holder = sim.self;
	note_taken(l, l->rank);
	return true;
}

void lock_give(struct lock *l)
{
	CHECK(l->holder == sim.self);
	note_given(l);
	l->holder = NULL;
}

void shared_lock_init(struct shared_lock *l, enum lock_rank rank)
{
	*l = (struct shared_lock){ .rank = rank };
}

void shared_lock_destroy(struct shared_lock *l)
{
	CHECK(!l->writer && l->readers == 0);
}

void shared_lock_read(struct shared_lock *l)
{
	check_order(l->rank);
	sim_count_point("read", sim_rank_name(l->rank));
	sim.self->state = ON_READ;
	sim.self->on = l;
	sim_go_on();
	l->readers++;
	note_taken(l, l->rank);
}

void shared_lock_write(struct shared_lock *l)
{
	check_order(l->rank);
	sim_count_point("write", sim_rank_name(l->rank));
	sim.self->state = ON_WRITE;
	sim.self->on = l;
	sim_go_on();
	l->writer = sim.self;
	note_taken(l, l->rank);
}

void shared_lock_give(struct shared_lock *l)
{
	note_given(l);
	if (l->writer == sim.self)
		l->writer = NULL;
	else
		l->readers--;
}

void cond_init(struct cond *c)
{
	*c = (struct cond){ 0 };
}

void cond_destroy(struct cond *c)
{
	if (c->waiting > 0)
		sim_fail("a condition is destroyed while somebody waits");
}

bool cond_wait_until(struct cond *c, struct lock *l, int64_t deadline_ns)
{
	struct sim_thread *t = sim.self;

	for (unsigned i = 0; i < t->held_count; i++)
		if (t->held[i].lock != l &&
		    !may_follow(t->held[i].rank, l->rank))
			sim_fail("lock order: %s waits under %s and holds %s",
				 t->name, sim_rank_name(l->rank),
				 sim_rank_name(t->held[i].rank));
	CHECK(l->holder == t);
	note_given(l);
	l->holder = NULL;
	c->waiting++;
	t->cond = c;
	t->relock = l;
	t->deadline_ns = deadline_ns;
	t->late = false;
	sim_count_point("wait", sim_rank_name(l->rank));
	t->state = ON_COND;
	sim_go_on();
	l->holder = t;
	note_taken(l, l->rank);
	return !t->late;
}

void cond_wait(struct cond *c, struct lock *l)
{
	(void)cond_wait_until(c, l, INT64_MAX);
}

void cond_signal(struct cond *c)
{
	struct sim_thread *list[THREADS_MAX];
	unsigned n = 0;

	for (unsigned i = 0; i < sim.count; i++)
		if (sim.thread[i].state == ON_COND && sim.thread[i].cond == c)
			list[n++] = &sim.thread[i];
	if (n > 0)
		sim_wake(list[chance_below(&sim.chance, n)], false);
}

void cond_broadcast(struct cond *c)
{
	for (unsigned i = 0; i < sim.count; i++)
		if (sim.thread[i].state == ON_COND && sim.thread[i].cond == c)
			sim_wake(&sim.thread[i], false);
}

int thread_create(struct thread *t, void *(*main)(void *), void *arg)
{
	t->sim = sim_thread_new(main, arg);
	sim_point("create", t->sim->name);
	return 0;
}

/* Who runs is drawn anyway. */
void thread_yield_disk(bool yields)
{
	(void)yields;
}

void thread_join(struct thread *t)
{
	sim_count_point("join", t->sim->name);
	sim.self->state = ON_JOIN;
	sim.self->on = t->sim;
	sim_go_on();
	t->sim->state = FREE;
}

int64_t mono_ns(void)
{
	sim.now_ns += POINT_NS;
	return sim.now_ns;
}

int64_t wall_ns(void)
{
	/* As coarse as a tick of the kernel: 4 ms. */
	return WALL_START + sim.now_ns / 4000000 * 4000000;
}
