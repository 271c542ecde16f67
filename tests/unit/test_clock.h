/*
 * test_clock.h - the clock of store/ in the hands of a unit test, linked with
 * --wrap=mono_ns and --wrap=cond_wait_until (ckpt_clock_test() in CMake). What
 * the store does "for two seconds" or "after five" is decided by the test then,
 * and not by how slow the machine is.
 *
 * The clock goes with the machine's until time_stands(). From there on it moves
 * by time_passes() alone, until time_goes_on(). It never goes back. A wait with
 * a deadline ends by that clock, too.
 *
 * Not set are the clocks of the kernel: times of files, sleeps, and wall_ns().
 */
#ifndef TESTS_UNIT_TEST_CLOCK_H
#define TESTS_UNIT_TEST_CLOCK_H

#include <stdatomic.h>

#include "store/base/sync.h"

#define SECOND_NS INT64_C(1000000000)
/* A waiter looks that often, by the machine's clock, if time has passed. */
#define TEST_CLOCK_LOOK_NS (INT64_C(5) * 1000000)

static atomic_int_fast64_t clock_stands_at_ns; /* 0: it goes */
static atomic_int_fast64_t clock_ahead_ns; /* of the machine's, when it goes */

int64_t __real_mono_ns(void);
int64_t __wrap_mono_ns(void);
bool __real_cond_wait_until(struct cond *c, struct lock *l,
			    int64_t deadline_ns);
bool __wrap_cond_wait_until(struct cond *c, struct lock *l,
			    int64_t deadline_ns);

int64_t __wrap_mono_ns(void)
{
	int64_t at = atomic_load(&clock_stands_at_ns);

	return at ? at : __real_mono_ns() + atomic_load(&clock_ahead_ns);
}

bool __wrap_cond_wait_until(struct cond *c, struct lock *l, int64_t deadline_ns)
{
	while (mono_ns() < deadline_ns)
		if (__real_cond_wait_until(
			    c, l, __real_mono_ns() + TEST_CLOCK_LOOK_NS))
			return true;
	return false;
}

static inline void time_stands(void)
{
	atomic_store(&clock_stands_at_ns, mono_ns());
}

static inline void time_passes(int64_t ns)
{
	if (atomic_load(&clock_stands_at_ns) != 0)
		atomic_fetch_add(&clock_stands_at_ns, ns);
	else
		atomic_fetch_add(&clock_ahead_ns, ns);
}

static inline void time_goes_on(void)
{
	int64_t at = atomic_load(&clock_stands_at_ns);
	int64_t real = __real_mono_ns();

	if (at > real + atomic_load(&clock_ahead_ns))
		atomic_store(&clock_ahead_ns, at - real);
	atomic_store(&clock_stands_at_ns, 0);
}

#endif
