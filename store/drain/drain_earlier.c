/*
 * drain_earlier.c - stages that were replaced after their close (O_TRUNC of a
 * file that is not durable yet).
 *
 * What was closed later may depend on them, so each is drained in its place of
 * the order, and before anything newer of its own file; unless somebody waits
 * for a newer one. That one is committed first then, and alone: an older one
 * that came along would be durable before what was closed before it. With the
 * newer one durable the older ones are superseded, and end.
 *
 * The list file->earlier is changed under inode.lock and drain.lock, so that
 * one of them is enough to read it.
 */
#include <errno.h>

#include "store/base/scope.h"
#include "store/drain/drain_private.h"
#include "store/file/state.h"
#include "store/store.h"

static void earlier_add_locked(struct drain_job *j)
{
	struct drain_job **at = &j->in->file->earlier;

	while (*at)
		at = &(*at)->next_earlier;
	*at = j;
	j->earlier = true;
	job_ref(j);
}

/* next stands for j from now on; the caller puts the list's reference to j. */
void earlier_replace_locked(struct drain_job *j, struct drain_job *next)
{
	struct drain_job **at = &j->in->file->earlier;

	while (*at != j)
		at = &(*at)->next_earlier;
	next->next_earlier = TAKE(j->next_earlier);
	*at = next;
	j->earlier = false;
	next->earlier = true;
	job_ref(next);
}

/* Out of the list; true: no other job has its stage, so it goes. */
bool earlier_remove_locked(struct drain_job *j)
{
	struct drain_job **at = &j->in->file->earlier;
	bool last = true;

	while (*at != j)
		at = &(*at)->next_earlier;
	*at = TAKE(j->next_earlier);
	for (struct drain_job *e = j->in->file->earlier; e; e = e->next_earlier)
		last = last && e->stage != j->stage;
	return last;
}

/* The oldest one that somebody waits for; else the oldest. */
bool job_is_next_locked(const struct drain_job *j)
{
	const struct file *f = j->in->file;

	if (f->running)
		return false;
	for (const struct drain_job *e = f->earlier; e; e = e->next_earlier)
		if (e->urgent)
			return e == j;
	if (f->queued && f->queued->urgent)
		return f->queued == j;
	return !f->earlier || f->earlier == j;
}

unsigned drain_older(struct store *st, const struct drain_job *j, bool hide)
{
	unsigned n = 0;

	HOLD(&j->in->lock);
	HOLD(&st->drain->lock);
	for (const struct drain_job *e = j->in->file->earlier; e && e != j;
	     e = e->next_earlier) {
		n++;
		if (e->stage != j->stage)
			SLOT_SET(e->stage->slot, dirty, hide ? 0 : 1);
	}
	return n;
}

/* One that is older than j, taken out of its list; NULL: none is left. */
static struct drain_job *take_older(struct store *st, const struct drain_job *j)
{
	HOLD(&j->in->lock);
	HOLD(&st->drain->lock);
	for (struct drain_job *e = j->in->file->earlier; e && e != j;
	     e = e->next_earlier)
		if (e->state == JOB_QUEUED) { /* else somebody ends it */
			job_end_locked(st->drain, e);
			return e;
		}
	return NULL;
}

void drain_supersede(struct store *st, const struct drain_job *j)
{
	struct drain_job *e;

	while ((e = take_older(st, j)) != NULL) {
		drain_finish(st, e, JOB_CANCELLED, 0);
		drain_job_put(st, e);
	}
}

struct stage *drain_replace(struct store *st, struct inode *in,
			    struct stage *fresh)
{
	struct drain *d = st->drain;
	struct drain_job *r, *q, *gone = NULL;
	struct stage *s;
	bool kept = false;

	{
		HOLD(&in->lock);
		HOLD(&d->lock);
		s = in->file->stage;
		in->file->stage = fresh;
		file_move(&in->file->state,
			  fresh->sealed ? FILE_LENT : FILE_STAGED);
		r = in->file->running;
		q = in->file->queued;
		/* Published: the stage is a cache, and goes as one. */
		if (r && !r->earlier && r->stage == s && !r->published &&
		    !atomic_load(&r->raced)) {
			earlier_add_locked(r);
			kept = true;
		}
		if (q) {
			in->file->queued = NULL;
			/* Of a stage that went, since it was published. */
			if (q->stage == s && q->order &&
			    q->state != JOB_FAILED) {
				job_wake_locked(d, q);
				earlier_add_locked(q);
				kept = true;
			} else {
				job_end_locked(d, q);
				gone = q;
			}
		}
		if (kept)
			SLOT_SET(s->slot, earlier, 1);
	}
	if (gone) {
		drain_finish(st, gone, JOB_CANCELLED, 0);
		drain_job_put(st, gone);
	}
	return kept ? NULL : s;
}

int drain_resume_earlier(struct store *st, struct inode *in, struct stage *s,
			 uint64_t order)
{
	struct drain *d = st->drain;
	struct drain_job *j = job_new(st, in, s);

	if (!j)
		return -ENOMEM;
	HOLD(&in->lock);
	HOLD(&d->lock);
	if (order >= d->next_order)
		d->next_order = order + 1;
	j->order = d->next_order++;
	TAILQ_INSERT_TAIL(&d->order, j, by_order);
	SLOT_SET(s->slot, close_order, j->order);
	d->draining++;
	earlier_add_locked(j);
	job_enqueue_locked(d, j);
	return 0;
}

/* A replaced stage stays for the next start as well. */
void earlier_discard(struct store *st, struct drain_job *j)
{
	if (!j->earlier)
		return;
	if (earlier_remove_locked(j)) {
		stage_put(&st->stages, j->stage);
		inode_put(st, j->in, 1);
	}
	drain_job_put(st, j); /* the list's */
}
