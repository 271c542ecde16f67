/*
 * drain_run.c - the threads that work on jobs.
 *
 * One job of a file runs at a time, the oldest first, or the one that somebody
 * waits for; all workers share its spans, so one large file is drained by all
 * of them. A job that needs another
 * one's bytes helps it to its end instead of waiting for a thread, so there is
 * always somebody at work.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/drain/commit.h"
#include "store/drain/drain_private.h"
#include "store/drain/drain_work.h"
#include "store/file/state.h"
#include "store/store.h"

/* Jobs without an order have smaller serials than this. */
#define SERIAL_ORDERED (UINT64_C(1) << 62)

/* Take the first job of the queue into `running`; d->lock is held. */
static struct drain_job *job_start_locked(struct store *st)
{
	struct drain *d = st->drain;
	struct drain_job *j;

	if (d->running_count >= 2 * d->thread_count)
		return NULL;
	TAILQ_FOREACH(j, &d->queue, in_queue)
	{
		if (job_may_start_locked(st, j) && job_is_next_locked(j))
			break;
	}
	if (!j)
		return NULL;
	TAILQ_REMOVE(&d->queue, j, in_queue);
	j->state = JOB_RUNNING;
	if (j->in->file->queued == j) /* its reference is `running` now */
		j->in->file->queued = NULL;
	j->in->file->running = j;
	d->running_count++;
	/*
	 * Who is asked for commits first, the others in their order; a job
	 * shares only with those that are committed before it.
	 */
	j->serial = j->order ? SERIAL_ORDERED + j->order : ++d->next_serial;
	return j;
}

/*
 * What was closed is not there any more: somebody has opened the file and
 * changes it. Its own close will drain it; in the middle of a change it must
 * not become durable, unless somebody asks for this very file as it stands.
 * Looked at before it is read, and once more after that.
 */
static bool job_is_overtaken(struct store *st, struct drain_job *j)
{
	struct stat sb;

	if (j->exclusive || !j->order ||
	    stage_stat(&st->stages, j->stage, &sb) < 0)
		return false;
	if ((uint64_t)sb.st_size == j->close_size &&
	    io_ns(&sb.st_mtim) == j->close_mtime_ns)
		return false;
	HOLD(&st->drain->lock);
	j->overtaken = !j->urgent;
	return j->overtaken;
}

/* The rest of the start, without drain.lock. */
static int job_begin(struct store *st, struct drain_job *j)
{
	struct file *f = j->in->file;
	struct stat sb;
	int rc = stage_stat(&st->stages, j->stage, &sb);

	{
		HOLD(&j->in->lock);
		if (j->in->attr.nlink == 0 ||
		    (f->stage != j->stage && !j->earlier))
			return -ECANCELED;
		j->exclusive =
			!j->stage->held && (j->earlier || !file_may_change(f));
		j->begun = true;
		j->domain = st->options.share_all ? DOMAIN_ALL
						  : domain_of(&j->in->attr);
		j->old = f->content;
		if (j->old)
			atomic_fetch_add(&j->old->refs, 1);
		/* A small file goes to the database, not to an image. */
		if (rc == 0 && j->exclusive && j->stage->kind == STAGE_DISK &&
		    sb.st_size > SMALL_BYTES_MAX) {
			j->adopt = true;
			if (!j->earlier)
				file_move(&f->state, FILE_FROZEN);
		}
	}
	if (rc < 0)
		return rc;
	if (job_is_overtaken(st, j))
		return -ECANCELED;
	reclaim_enter(st->reclaim, &j->ticket);
	j->has_ticket = true;
	return work_begin(st, j);
}

static void worker_help(struct store *st, struct drain_job *j, uint8_t *buffer);

/* Wait for another job's bytes, working on it meanwhile. */
static bool owner_wait(struct store *st, struct drain_job *o, uint8_t *buffer)
{
	struct drain *d = st->drain;
	bool failed;

	worker_help(st, o, buffer);
	lock_take(&d->lock);
	while (!o->settled && !o->gave_up)
		cond_wait(&d->moved, &d->lock);
	failed = o->gave_up;
	lock_give(&d->lock);
	return failed;
}

/* Settle what is deferred: first with other jobs, then within this one. */
static int job_resolve(struct store *st, struct drain_job *j, uint8_t *buffer)
{
	for (int own = 0; own < 2; own++) {
		for (uint32_t i = 0; i < j->chunk_count; i++) {
			struct drain_chunk *c = &j->chunks[i];
			bool failed;
			int rc;

			if (c->kind != CHUNK_DEFERRED ||
			    (c->owner == j) != (own == 1))
				continue;
			failed = !own && owner_wait(st, c->owner, buffer);
			rc = work_resolve(st, j, i, failed, buffer);
			if (rc < 0)
				return rc;
		}
	}
	return 0;
}

/*
 * It reads nothing that is committed any more. What it shares may go from now
 * on, however long it waits for its turn: the committer finds that out, and
 * gives it back to be drained again. So nobody who waits keeps space from being
 * given back.
 */
static void job_leave(struct store *st, struct drain_job *j)
{
	if (j->has_ticket)
		reclaim_leave(st->reclaim, &j->ticket);
	j->has_ticket = false;
}

/* The last span is done: make it durable, settle shares, hand it over. */
static void job_complete(struct store *st, struct drain_job *j, uint8_t *buffer)
{
	struct drain *d = st->drain;
	int rc = atomic_load(&j->error);
	bool raced;

	if (rc == 0 && !atomic_load(&j->raced))
		rc = work_sync(st, j);
	if (rc == 0 && !atomic_load(&j->raced)) {
		rc = work_recheck(st, j, buffer);
		if (rc == 0)
			rc = job_resolve(st, j, buffer);
		if (rc == 0)
			rc = work_conclude(st, j, buffer);
		if (rc == 0)
			rc = work_settle(st, j);
		if (rc == 0 && job_is_overtaken(st, j))
			atomic_store(&j->raced, true);
	}
	work_close(j);
	job_leave(st, j);
	{
		HOLD(&d->lock);
		/* Once it is READY it is the committer's: raced or not. */
		raced = atomic_load(&j->raced) || rc == -EAGAIN;
		TAILQ_REMOVE(&d->running, j, in_queue);
		d->running_count--;
		if (rc < 0 || raced) {
			j->gave_up = true;
			cond_broadcast(&d->moved);
		} else {
			j->settled = true;
			cond_broadcast(&d->moved);
			j->state = JOB_READY;
			if (!j->order || j->urgent)
				job_list_ready_locked(d, j);
		}
		cond_broadcast(&d->work);
	}
	if (raced)
		drain_void(st, j);
	else if (rc < 0)
		drain_fail(st, j, rc);
	else
		commit_wake(st);
}

/* Claim and do spans of j until there are none left to claim. */
static void worker_help(struct store *st, struct drain_job *j, uint8_t *buffer)
{
	struct drain *d = st->drain;

	for (;;) {
		uint32_t span = UINT32_MAX;

		{
			HOLD(&d->lock);
			if (j->state == JOB_RUNNING && j->spans)
				span = atomic_fetch_add(&j->next_span, 1);
			if (span >= j->span_count)
				return;
		}
		work_span(st, j, span, buffer);
		if (atomic_fetch_sub(&j->spans_left, 1) == 1) {
			job_complete(st, j, buffer);
			return;
		}
	}
}

/* A running job with a span that nobody has; d->lock is held. */
static struct drain_job *job_with_span_locked(struct drain *d)
{
	struct drain_job *j;

	TAILQ_FOREACH(j, &d->running, in_queue)
	if (atomic_load(&j->next_span) < j->span_count)
		return j;
	return NULL;
}

/* Begin a job; true when it has spans to be worked on. */
static bool worker_begin(struct store *st, struct drain_job *j, uint8_t *buffer)
{
	struct drain *d = st->drain;
	int rc = job_begin(st, j);

	{
		HOLD(&d->lock);
		TAILQ_INSERT_TAIL(&d->running, j, in_queue);
		if (rc < 0)
			j->span_count = 0;
		else if (j->span_count > 1)
			cond_broadcast(&d->work);
	}
	if (rc == -ECANCELED)
		atomic_store(&j->raced, true);
	else if (rc == -ESTALE)
		atomic_store(&j->raced, true);
	else if (rc < 0)
		atomic_store(&j->error, rc);
	if (rc < 0 || j->span_count == 0) {
		job_complete(st, j, buffer);
		return false;
	}
	return true;
}

static void *worker_main(void *arg)
{
	struct store *st = arg;
	struct drain *d = st->drain;
	uint8_t *buffer = NULL;

	if (posix_memalign((void **)&buffer, 4096, DRAIN_BUFFER_BYTES) != 0)
		buffer = NULL;
	CHECK(buffer);
	for (;;) {
		struct drain_job *j, *started = NULL;

		lock_take(&d->lock);
		for (;;) {
			j = job_with_span_locked(d);
			if (!j)
				started = job_start_locked(st);
			if (j || started || d->stop)
				break;
			cond_wait(&d->work, &d->lock);
		}
		if (d->stop && !j && !started) {
			lock_give(&d->lock);
			break;
		}
		if (!j)
			j = started;
		job_ref(j);
		lock_give(&d->lock);
		if (!started || worker_begin(st, j, buffer))
			worker_help(st, j, buffer);
		drain_job_put(st, j);
	}
	free(buffer);
	return NULL;
}

int drain_start(struct store *st)
{
	struct drain *d = st->drain;
	unsigned n = st->options.drain_threads;
	int rc;

	if (n == 0) {
		long cpus = sysconf(_SC_NPROCESSORS_ONLN);

		n = cpus < 2 ? 2 : (unsigned)cpus;
	}
	if (n > DRAIN_THREADS_MAX)
		n = DRAIN_THREADS_MAX;
	d->started = true;
	for (unsigned i = 0; i < n; i++) {
		rc = thread_create(&d->thread[i], worker_main, st);
		if (rc != 0)
			return -rc;
		HOLD(&d->lock);
		d->thread_count++;
	}
	return thread_create(&d->timer, drain_timer_main, st);
}

void drain_stop(struct store *st)
{
	struct drain *d = st->drain;

	if (!d || !d->started)
		return;
	{
		HOLD(&d->lock);
		d->stop = true;
		cond_broadcast(&d->work);
		cond_broadcast(&d->tick);
	}
	for (unsigned i = 0; i < d->thread_count; i++)
		thread_join(&d->thread[i]);
	thread_join(&d->timer);
	d->started = false;
}
