/*
 * test_clock.h - the clock of store/ in the hands of a unit test, linked with
 * --wrap=mono_ns and --wrap=cond_wait_until (ckpt_clock_test() in CMake). What
 * the store does "for two seconds" or "after five" is decided by the test then,
 * and not by how slow the machine is.
 *
 * The clock goes with the machine's until time_stands(). From there on it moves
 * by time_passes() alone, until time_goes_on(). It never goes back. A wait with
 * a deadline ends by that clock, too: who changes it wakes all that wait so,
 * and must hold no lock of the store.
 *
 * Not set are the clocks of the kernel: times of files, sleeps, and wall_ns().
 */
#ifndef TESTS_UNIT_TEST_CLOCK_H
#define TESTS_UNIT_TEST_CLOCK_H

#include <sched.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include "store/base/sync.h"

#define SECOND_NS INT64_C(1000000000)

/*
 * A waiter takes test_clock.lock while it has its own; who has test_clock.lock
 * only tries those of waiters.
 */
struct clock_waiter {
	struct cond *c;
	struct lock *l;
	LIST_ENTRY(clock_waiter) all;
};

static struct {
	pthread_mutex_t lock; /* guards `waiters` */
	LIST_HEAD(, clock_waiter) waiters; /* each is in its wait's frame */
	atomic_int_fast64_t stands_at_ns; /* 0: it goes */
	atomic_int_fast64_t ahead_ns; /* of the machine's, when it goes */
} test_clock = { .lock = PTHREAD_MUTEX_INITIALIZER };

int64_t __real_mono_ns(void);
int64_t __wrap_mono_ns(void);
bool __real_cond_wait_until(struct cond *c, struct lock *l,
			    int64_t deadline_ns);
bool __wrap_cond_wait_until(struct cond *c, struct lock *l,
			    int64_t deadline_ns);

int64_t __wrap_mono_ns(void)
{
	int64_t at = atomic_load(&test_clock.stands_at_ns);

	return at ? at : __real_mono_ns() + atomic_load(&test_clock.ahead_ns);
}

/* Who is to wake it sees it here, or it sees the time that he has set. */
bool __wrap_cond_wait_until(struct cond *c, struct lock *l, int64_t deadline_ns)
{
	struct clock_waiter w = { .c = c, .l = l };
	int64_t until = INT64_MAX;

	(void)pthread_mutex_lock(&test_clock.lock);
	LIST_INSERT_HEAD(&test_clock.waiters, &w, all);
	(void)pthread_mutex_unlock(&test_clock.lock);
	if (deadline_ns != INT64_MAX && !atomic_load(&test_clock.stands_at_ns))
		until = deadline_ns - atomic_load(&test_clock.ahead_ns);
	if (mono_ns() < deadline_ns)
		(void)__real_cond_wait_until(c, l, until);
	(void)pthread_mutex_lock(&test_clock.lock);
	LIST_REMOVE(&w, all);
	(void)pthread_mutex_unlock(&test_clock.lock);
	/* Perhaps without a reason: its caller looks, and waits again. */
	return mono_ns() < deadline_ns;
}

/* -> false: one of them was not waiting yet, or not any more. */
static inline bool clock_try_wake(void)
{
	struct clock_waiter *w;
	bool all = true;

	(void)pthread_mutex_lock(&test_clock.lock);
	LIST_FOREACH(w, &test_clock.waiters, all) {
		if (lock_try(w->l)) {
			cond_broadcast(w->c);
			lock_give(w->l);
		} else {
			all = false;
		}
	}
	(void)pthread_mutex_unlock(&test_clock.lock);
	return all;
}

static inline void clock_wake(void)
{
	while (!clock_try_wake())
		(void)sched_yield();
}

static inline void time_stands(void)
{
	atomic_store(&test_clock.stands_at_ns, mono_ns());
	clock_wake();
}

static inline void time_passes(int64_t ns)
{
	if (atomic_load(&test_clock.stands_at_ns) != 0)
		atomic_fetch_add(&test_clock.stands_at_ns, ns);
	else
		atomic_fetch_add(&test_clock.ahead_ns, ns);
	clock_wake();
}

static inline void time_goes_on(void)
{
	int64_t at = atomic_load(&test_clock.stands_at_ns);
	int64_t real = __real_mono_ns();

	if (at > real + atomic_load(&test_clock.ahead_ns))
		atomic_store(&test_clock.ahead_ns, at - real);
	atomic_store(&test_clock.stands_at_ns, 0);
	clock_wake();
}

#endif
