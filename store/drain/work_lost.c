/*
 * work_lost.c - of two works in flight that have bytes in common, which one
 * begins again when the other is over.
 *
 * The one that is committed later, and then it shares with what is committed.
 * It costs what has been done of it: so not for bytes that would not be shared
 * in the end, nor again and again.
 */
#include "store/base/scope.h"
#include "store/drain/drain_private.h"
#include "store/drain/work.h"

/* Attempts at a job; then it stores what others store as well. */
#define GIVES_WAY_MAX 8

bool work_pays(const struct drain *d, const struct work *w, uint64_t bytes)
{
	uint64_t percent = d->options.dedup_min_saving_percent;

	return bytes > 0 && bytes >= w->size_bytes / 100 * percent;
}

/* Is o not to be waited for, since somebody waits for w, which is small? */
static bool is_too_large_for(const struct work *o, const struct work *w)
{
	return o->outcome == WORK_OPEN && work_can_be_helped(o) &&
	       !work_can_be_helped(w) && w->job->v.want == WANT_ALONE;
}

/*
 * Would it save enough to drain w once more? What half of it was seen to lose
 * is mostly a replica; but who waits for w waits for no guess. drain.lock is
 * held.
 */
static bool is_worth_it(const struct drain *d, const struct work *w)
{
	const struct drain_job *j = w->job;

	return j->attempts < GIVES_WAY_MAX &&
	       (work_pays(d, w, w->lost_bytes) ||
		(j->v.want != WANT_ALONE &&
		 w->lost_bytes >= atomic_load(&w->seen_bytes) / 2));
}

void work_lost(struct drain *d, struct work *w, struct work *o, uint32_t len)
{
	bool is_over;

	HOLD(&d->lock);
	is_over = o->job->work != o;
	/* What is over and was not committed shares nothing with anybody. */
	if (w->job->work != w || (is_over && o->job->v.state != VERSION_DONE))
		return;
	/* Somebody waits for w since it began, or not for o any more. */
	if (!is_over && !order_may_follow(&w->job->v, &o->job->v) &&
	    order_may_follow(&o->job->v, &w->job->v)) {
		struct work *younger = o;

		o = w;
		w = younger;
	}
	w->lost_bytes += len;
	if (!is_worth_it(d, w))
		return;
	if (!is_over) {
		if (!order_may_follow(&w->job->v, &o->job->v) ||
		    is_too_large_for(o, w))
			return;
		if (!w->behind)
			w->behind = job_ref(o->job);
	}
	job_stop_locked(d, w->job);
}
