/*
 * drain_run.c - the threads that work on jobs.
 *
 * A worker takes the next job that the order lets start, freezes what it is
 * about into a work, and shares that work's spans with all workers that have
 * nothing else, so one large file is drained by all of them. No worker waits
 * for another work: of two that have bytes in common the one that is committed
 * later is given back to the order, behind the other. Whoever does the last
 * span finishes the work, and hands the job to the committer, or back to the
 * order.
 *
 * What somebody waits for is begun at once, whatever else there is to do: who
 * works on a large file leaves it between two spans, and one worker stands by
 * for this, since the others may wait for the disk. It finishes what is not
 * larger than a span, and begins the rest for them; and such a small one waits
 * for no larger work whose bytes it could share, but stores its own.
 *
 * While nobody waits the disk is yielded to the trainers' own reads: see
 * work_yield(). The processors are not: a nice value cannot be taken back
 * without a privilege, and beside two busy processes on two cores 2 GiB took
 * 3.6 s, and 6.6 and 12.8 with nice 5 and 10, while a restore gained nothing.
 */
#include <errno.h>
#include <stdlib.h>

#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/drain/commit_private.h"
#include "store/drain/drain_private.h"
#include "store/drain/work.h"
#include "store/file/state.h"

/* Jobs without a place have smaller serials than this. */
#define SERIAL_ORDERED (UINT64_C(1) << 62)

/* May one more begin? Some room is left for what somebody waits for. */
static bool may_start_locked(const struct drain *d, bool wanted)
{
	return d->running_count < (wanted ? 3 : 2) * d->thread_count;
}

/* The next job that may start, RUNNING now; d->lock is held. */
static struct drain_job *job_start_locked(struct drain *d, bool wanted)
{
	struct drain_job *j;

	if (!may_start_locked(d, wanted))
		return NULL;
	j = job_of(wanted ? order_start_wanted(&d->order)
			  : order_start(&d->order));
	if (j)
		d->running_count++;
	return j;
}

/*
 * What was closed is not there any more: somebody has opened the file and
 * changes it. Its own close will drain it; in the middle of a change it must
 * not become durable, unless somebody asks for this very file as it stands.
 * Looked at before it is read, and once more after that.
 */
static bool work_is_overtaken(struct drain *d, struct work *w)
{
	struct drain_job *j = w->job;
	struct stat sb;

	if (w->kind != WORK_OF_OPEN || stage_stat(d->stages, w->stage, &sb) < 0)
		return false;
	HOLD(&d->lock);
	/* What was replaced has no close any more that would drain it. */
	return j->closed && !j->v.replaced && j->v.want != WANT_ALONE &&
	       ((uint64_t)sb.st_size != j->close_size ||
		io_ns(&sb.st_mtim) != j->close_mtime_ns);
}

/*
 * The file was closed anew since j was begun, of the same stage: that close has
 * a job of its own, with a place, for what is there now.
 */
static bool is_closed_anew_locked(const struct drain_job *j)
{
	const struct drain_job *q = newer_locked(j);

	return q && q->v.place;
}

/*
 * What the work is about, frozen; NULL: no memory. -EAGAIN in its stop: there
 * is nothing to be done any more.
 */
static struct work *work_freeze(struct drain *d, struct drain_job *j)
{
	struct work *w = work_new(j);
	struct file *f = j->in->file;
	struct stat sb;
	int rc;

	if (!w)
		return NULL;
	rc = stage_stat(d->stages, j->stage, &sb);
	HOLD(&j->in->lock);
	HOLD(&d->lock);
	if (!j->stage->unseen_writer && (j->v.replaced || !file_may_change(f)))
		w->kind = WORK_OF_CLOSED;
	w->domain = d->options.share_all ? DOMAIN_ALL : domain_of(&j->in->attr);
	w->old = content_ref_get(f->content);
	if (j->in->attr.nlink == 0 ||
	    (f->stage != j->stage && !j->v.replaced) ||
	    (w->kind == WORK_OF_CLOSED && is_closed_anew_locked(j))) {
		rc = -EAGAIN;
	} else if (rc == 0 && w->kind == WORK_OF_CLOSED &&
		   j->stage->kind == STAGE_DISK &&
		   sb.st_size > SMALL_BYTES_MAX) {
		/* A small file goes to the database, not to an image. */
		w->kind = WORK_OF_IMAGE;
		if (!j->v.replaced)
			file_move(&f->state, FILE_FROZEN);
	}
	/* The file may go on to be something else, once this is durable. */
	if (rc == 0 && w->kind == WORK_OF_OPEN && !j->v.replaced)
		slot_stands(j->stage->slot);
	atomic_store(&w->stop, rc);
	w->number = j->v.number;
	/* Who is asked for commits first, the others in their order. */
	w->turn = ++d->turns;
	w->serial = j->v.place && j->v.want != WANT_ALONE
			    ? SERIAL_ORDERED + j->v.place
			    : w->turn;
	work_ref(w);
	j->work = w;
	return w;
}

/* The last span is done: settle shares and make it durable. */
static int work_finish(struct drain *d, struct work *w, uint8_t *buffer,
		       enum work_outcome *ret_outcome)
{
	int rc = atomic_load(&w->stop);

	if (rc == 0)
		rc = work_repeats(d, w, buffer);
	if (rc == 0)
		rc = work_align(d, w, buffer);
	if (rc == 0)
		rc = work_conclude(d, w, buffer, ret_outcome);
	if (rc == 0 && *ret_outcome != WORK_UNCHANGED) {
		work_rest(d, w);
		rc = work_sync(d, w);
	}
	return rc;
}

/*
 * No worker has it any more: it is handed over, or over. A work that waits for
 * its turn reads nothing that is committed: what it shares may go, however long
 * it waits; the committer finds that out, and gives it back to be drained
 * again. So nobody who waits keeps space from being given back.
 */
static void work_leave(struct drain *d, struct work *w, int rc,
		       enum work_outcome outcome, bool overtaken)
{
	struct drain_job *j = w->job;
	bool again;

	work_copy_end(d, w);
	work_close(w);
	{
		HOLD(&d->lock);
		/* Once it is READY nobody disturbs it any more. */
		again = overtaken || rc == -EAGAIN || work_is_disturbed(w);
		if (work_can_be_helped(w))
			TAILQ_REMOVE(&d->running, w, running);
		d->running_count--;
		w->outcome = again || rc < 0 ? WORK_GAVE_UP : outcome;
		if (w->outcome != WORK_GAVE_UP) {
			order_ready(&d->order, &j->v);
			cond_signal(&d->commit);
		}
		cond_broadcast(&d->moved);
		workers_wake_locked(d);
	}
	if (again)
		drain_void(d, j, overtaken);
	else if (rc < 0)
		drain_fail(d, j, rc);
}

static void work_over(struct drain *d, struct work *w, uint8_t *buffer)
{
	enum work_outcome outcome = WORK_GAVE_UP;
	int rc = work_finish(d, w, buffer, &outcome);
	bool overtaken = rc == 0 && work_is_overtaken(d, w);

	reclaim_leave(d->reclaim, &w->ticket);
	work_leave(d, w, rc, outcome, overtaken);
}

/* Is there something to be begun, rather than to go on with a work? */
static bool is_wanted_elsewhere(struct drain *d)
{
	HOLD(&d->lock);
	return may_start_locked(d, true) && order_has_wanted(&d->order);
}

/*
 * Claim and do spans of w until there are none left to claim. Unless he stays,
 * who helps leaves it for others, or for later, when there is something that
 * somebody waits for.
 */
static void worker_help(struct drain *d, struct work *w, uint8_t *buffer,
			bool stays)
{
	struct span s;

	for (;;) {
		work_yield(d, w); /* cutting may read */
		if (!work_next_span(w, buffer, &s))
			return;
		work_span(d, w, &s);
		if (atomic_fetch_sub(&w->spans_left, 1) == 1) {
			work_over(d, w, buffer);
			return;
		}
		if (!stays && is_wanted_elsewhere(d))
			return;
	}
}

/* Would a span of it have to be waited for? */
static bool is_being_cut(struct work *w)
{
	if (!lock_try(&w->cutting))
		return true;
	lock_give(&w->cutting);
	return false;
}

/* A running work with a span that nobody has; d->lock is held. */
static struct work *work_with_span_locked(struct drain *d, bool being_cut)
{
	struct work *w;

	TAILQ_FOREACH(w, &d->running, running)
	if (!atomic_load(&w->all_cut) && (being_cut || !is_being_cut(w)))
		return w;
	return NULL;
}

/* Is this the one that stands by? Until all are to end. */
static bool is_standby_locked(const struct drain *d, bool standby)
{
	return standby && !d->stop;
}

/*
 * What a worker does next, either of the two: it begins what somebody waits
 * for, goes on with a running work, or begins a job rather than to wait until
 * another worker has cut a span.
 */
static bool worker_next_locked(struct drain *d, bool standby,
			       struct work **ret_work,
			       struct drain_job **ret_job)
{
	*ret_work = NULL;
	*ret_job = job_start_locked(d, true);
	if (*ret_job || is_standby_locked(d, standby))
		return *ret_job != NULL;
	*ret_work = work_with_span_locked(d, false);
	if (!*ret_work)
		*ret_job = job_start_locked(d, false);
	if (!*ret_work && !*ret_job)
		*ret_work = work_with_span_locked(d, true);
	return *ret_work || *ret_job;
}

/* Begin a job that was started, and do what there is of it. */
static void worker_begin(struct drain *d, struct drain_job *j, uint8_t *buffer,
			 bool standby)
{
	struct work *w = work_freeze(d, j);
	bool overtaken, leaves = false;
	int rc;

	if (!w) {
		{
			HOLD(&d->lock);
			d->running_count--;
		}
		drain_fail(d, j, -ENOMEM);
		return;
	}
	rc = atomic_load(&w->stop);
	overtaken = rc == 0 && work_is_overtaken(d, w);
	if (rc < 0 || overtaken) {
		work_leave(d, w, rc, WORK_GAVE_UP, overtaken);
		work_put(d, w);
		return;
	}
	reclaim_enter(d->reclaim, &w->ticket);
	rc = work_begin(d, w, buffer);
	/* -ESTALE: it became shorter meanwhile. */
	if (rc < 0)
		work_fail(w, rc == -ESTALE ? -EAGAIN : rc);
	if (work_can_be_helped(w)) {
		HOLD(&d->lock);
		TAILQ_INSERT_TAIL(&d->running, w, running);
		cond_broadcast(&d->work);
		leaves = is_standby_locked(d, standby);
	}
	if (w->chunks && !leaves)
		worker_help(d, w, buffer, !work_can_be_helped(w));
	else if (!w->chunks)
		work_over(d, w, buffer);
	work_put(d, w);
}

static void work_loop(struct drain *d, bool standby)
{
	uint8_t *buffer = NULL;

	if (posix_memalign((void **)&buffer, 4096, DRAIN_BUFFER_BYTES) != 0)
		buffer = NULL;
	CHECK(buffer);
	for (;;) {
		struct drain_job *j;
		struct work *w;

		lock_take(&d->lock);
		while (!worker_next_locked(d, standby, &w, &j) && !d->stop)
			cond_wait(standby ? &d->wanted : &d->work, &d->lock);
		if (w)
			work_ref(w);
		(void)job_ref(j);
		lock_give(&d->lock);
		if (w)
			worker_help(d, w, buffer, false);
		else if (j)
			worker_begin(d, j, buffer, standby);
		else
			break;
		work_put(d, w);
		drain_job_put(d, j);
	}
	free(buffer);
}

static void *worker_main(void *arg)
{
	work_loop(arg, false);
	return NULL;
}

static void *standby_main(void *arg)
{
	work_loop(arg, true);
	return NULL;
}

int drain_start(struct drain *d)
{
	unsigned n = d->options.threads;
	int rc = commit_start(d);

	if (rc < 0)
		return rc;
	if (n == 0)
		n = io_cpus(2, DRAIN_THREADS_MAX);
	if (n > DRAIN_THREADS_MAX)
		n = DRAIN_THREADS_MAX;
	rc = thread_create(&d->standby, standby_main, d);
	if (rc != 0)
		return rc;
	d->started = true;
	for (unsigned i = 0; i < n; i++) {
		rc = thread_create(&d->thread[i], worker_main, d);
		if (rc != 0)
			return rc;
		HOLD(&d->lock);
		d->thread_count++;
		/* It may be there already, and have found that none may begin. */
		workers_wake_locked(d);
	}
	return thread_create(&d->timer, drain_timer_main, d);
}

void drain_stop(struct drain *d)
{
	if (!d->started)
		return;
	drain_hurry_begin(d);
	{
		HOLD(&d->lock);
		d->stop = true;
		workers_wake_locked(d);
		cond_broadcast(&d->tick);
	}
	for (unsigned i = 0; i < d->thread_count; i++)
		thread_join(&d->thread[i]);
	thread_join(&d->standby);
	thread_join(&d->timer);
	drain_hurry_end(d);
	d->thread_count = 0;
	d->stop = false;
	d->started = false;
}
