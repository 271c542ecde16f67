/*
 * work_yield.c - the disk serves trainers that read before workers that write
 * what nobody waits for.
 *
 * Whether somebody waits is one number for all of the drain: what a waiter
 * needs may be behind other files, share their bytes, or be the next to be
 * drained of its own, and each such way would have to be known here.
 */
#include "store/drain/drain_private.h"
#include "store/drain/work.h"

/*
 * A busy disk may serve those that yield rarely: bfq one slice in 200 ms, and
 * mq-deadline each request after 10 s. So a version yields for this long alone.
 */
#define YIELD_NS (INT64_C(30) * 1000000000)

void work_yield(struct drain *d, const struct work *w)
{
	thread_yield_disk(atomic_load(&d->hurried) == 0 &&
			  mono_ns() - w->job->since_ns < YIELD_NS);
}

void drain_hurry_begin(struct drain *d)
{
	atomic_fetch_add(&d->hurried, 1);
}

void drain_hurry_end(struct drain *d)
{
	atomic_fetch_sub(&d->hurried, 1);
}
