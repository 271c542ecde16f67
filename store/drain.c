/* drain.c - see drain.h: jobs, their order, and the threads that work. */
#include "store/drain.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "store/base/io.h"
#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/commit.h"
#include "store/drain_private.h"
#include "store/drain_work.h"
#include "store/inflight.h"
#include "store/store.h"

/* How long a closed file waits for its handle's release, which is on its way. */
#define RELEASE_WAIT_NS (INT64_C(100) * 1000000)
#define RETRY_NS (INT64_C(5) * 1000000000)
/* Jobs without an order have smaller serials than this. */
#define SERIAL_ORDERED (UINT64_C(1) << 62)
/* How often the stage's memory is looked at. */
#define RELIEVE_NS (INT64_C(1) * 1000000000)
/*
 * A file that stays open and grew by more than this since the last look is a
 * checkpoint in the middle of being written, not a log: draining it as it
 * stands would only write it twice.
 */
#define DRAIN_OPEN_GROWTH_MAX (UINT64_C(64) << 20)

static int64_t mono_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return io_ns(&t);
}

int drain_init(struct store *st)
{
	struct drain *d = calloc(1, sizeof(*d));
	pthread_condattr_t attr;

	if (!d)
		return -ENOMEM;
	d->inflight = inflight_new();
	if (!d->inflight) {
		free(d);
		return -ENOMEM;
	}
	pthread_mutex_init(&d->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&d->work, NULL);
	pthread_cond_init(&d->moved, NULL);
	pthread_cond_init(&d->tick, &attr);
	pthread_condattr_destroy(&attr);
	TAILQ_INIT(&d->order);
	TAILQ_INIT(&d->queue);
	TAILQ_INIT(&d->idle);
	TAILQ_INIT(&d->running);
	TAILQ_INIT(&d->ready);
	d->next_order = 1;
	st->drain = d;
	return 0;
}

static void job_ref(struct drain_job *j)
{
	atomic_fetch_add(&j->refs, 1);
}

/* The chunks' claims and references on others; the job's own bytes. */
static void job_clear(struct store *st, struct drain_job *j)
{
	for (uint32_t i = 0; i < j->chunk_count; i++) {
		struct drain_chunk *c = &j->chunks[i];

		if (c->owner)
			drain_job_put(st, c->owner);
	}
	image_put(&st->images, j->image);
	pthread_mutex_destroy(&j->image_turn);
	free(j->chunks);
	free(j->spans);
	free(j->small);
	content_ref_put(j->old);
	stage_put(&st->stages, j->stage);
	inode_put(st, j->in, 1);
}

void drain_job_put(struct store *st, struct drain_job *j)
{
	if (!j || atomic_fetch_sub(&j->refs, 1) != 1)
		return;
	drain_job_put(st, j->successor);
	job_clear(st, j);
	free(j);
}

/* Give up the claims on hashes: what was stored is findable now, or never. */
static void job_drop_claims(struct store *st, struct drain_job *j)
{
	for (uint32_t i = 0; i < j->chunk_count; i++) {
		struct drain_chunk *c = &j->chunks[i];

		if (c->owner == j) { /* never settled: no circle may stay */
			c->owner = NULL;
			atomic_fetch_sub(&j->refs, 1);
		}
		if (c->kind == CHUNK_NEW)
			inflight_drop(st->drain->inflight, c->hash, j, i);
	}
}

static struct drain_job *job_new(struct store *st, struct inode *in,
				 struct stage *stage)
{
	struct drain_job *j = calloc(1, sizeof(*j));

	if (!j)
		return NULL;
	atomic_init(&j->refs, 1);
	pthread_mutex_init(&j->image_turn, NULL);
	inode_ref(st, in, 1);
	j->in = in;
	stage_ref(stage);
	j->stage = stage;
	j->state = JOB_QUEUED;
	return j;
}

static bool job_may_start_locked(const struct store *st,
				 const struct drain_job *j)
{
	return !st->options.hold_drain || j->urgent || j->asked ||
	       st->drain->release_all;
}

static void job_enqueue_locked(struct drain *d, struct drain_job *j)
{
	j->state = JOB_QUEUED;
	if (j->urgent)
		TAILQ_INSERT_HEAD(&d->queue, j, in_queue);
	else
		TAILQ_INSERT_TAIL(&d->queue, j, in_queue);
	pthread_cond_signal(&d->work);
}

static void job_idle_locked(struct drain *d, struct drain_job *j,
			    enum job_state state, int64_t due_ns)
{
	j->state = state;
	j->due_ns = due_ns;
	TAILQ_INSERT_TAIL(&d->idle, j, in_queue);
	pthread_cond_signal(&d->tick);
}

/* Out of the list that its state says; nothing for the others. */
static void job_unqueue_locked(struct drain *d, struct drain_job *j)
{
	if (j->state == JOB_QUEUED)
		TAILQ_REMOVE(&d->queue, j, in_queue);
	else if (j->state == JOB_WAITING || j->state == JOB_FAILED)
		TAILQ_REMOVE(&d->idle, j, in_queue);
}

/* It waits for no event any more. */
static void job_wake_locked(struct drain *d, struct drain_job *j)
{
	if (j->state != JOB_WAITING && j->state != JOB_FAILED)
		return;
	job_unqueue_locked(d, j);
	job_enqueue_locked(d, j);
}

/* Finished in its place of the order, but somebody waits for it alone. */
static void job_list_ready_locked(struct drain *d, struct drain_job *j)
{
	if (j->state != JOB_READY || j->listed || j->taken)
		return;
	j->listed = true;
	TAILQ_INSERT_TAIL(&d->ready, j, in_queue);
}

static void job_promote_one_locked(struct drain *d, struct drain_job *j)
{
	j->urgent = true;
	if (j->state == JOB_QUEUED || j->state == JOB_WAITING ||
	    j->state == JOB_FAILED) {
		job_unqueue_locked(d, j);
		job_enqueue_locked(d, j);
	}
	job_list_ready_locked(d, j);
}

/* Somebody waits for this job: it goes to the front, after its elders. */
static void job_promote_locked(struct drain *d, struct drain_job *j)
{
	struct drain_job *e = j->earlier ? NULL : j->in->file->earlier;

	for (; e; e = e->next_earlier)
		job_promote_one_locked(d, e);
	job_promote_one_locked(d, j);
}

static bool job_final(enum job_state s)
{
	return s == JOB_DONE || s == JOB_CANCELLED || s == JOB_RESTARTED;
}

/*
 * The job that will drain in's stage next, made when there is none, with one
 * reference. NULL when there is nothing to drain (*ret_rc 0) or no memory.
 */
static struct drain_job *job_for(struct store *st, struct inode *in,
				 bool ordered, bool waiting, int *ret_rc)
{
	struct stat sb = { 0 };
	struct drain *d = st->drain;
	struct drain_job *j, *fresh = NULL;
	struct stage *stage = NULL;

	*ret_rc = 0;
	{
		HOLD(&in->lock);
		if (!in->file || !in->file->stage || !in->file->dirty ||
		    in->attr.nlink == 0)
			return NULL;
		stage = in->file->stage;
		stage_ref(stage);
	}
	fresh = job_new(st, in, stage);
	(void)fstat(stage->fd, &sb);
	stage_put(&st->stages, stage);
	if (!fresh) {
		*ret_rc = -ENOMEM;
		return NULL;
	}
	HOLD(&in->lock);
	{
		HOLD(&d->lock);
		j = in->file->queued;
		if (!j) {
			j = fresh;
			fresh = NULL;
			in->file->queued = j; /* owns the first reference */
			d->draining++;
			if (waiting)
				job_idle_locked(d, j, JOB_WAITING,
						mono_ns() + RELEASE_WAIT_NS);
			else
				job_enqueue_locked(d, j);
		} else if (!waiting && j->state == JOB_WAITING) {
			job_wake_locked(d, j);
		}
		j->empty_close = waiting && sb.st_size == 0;
		if (ordered) {
			j->close_size = (uint64_t)sb.st_size;
			j->close_mtime_ns = io_ns(&sb.st_mtim);
			if (j->order)
				TAILQ_REMOVE(&d->order, j, by_order);
			j->order = d->next_order++;
			TAILQ_INSERT_TAIL(&d->order, j, by_order);
			if (j->stage->slot)
				SLOT_SET(j->stage->slot, close_order, j->order);
		}
		job_ref(j);
	}
	if (fresh) {
		/* Under in->lock: only counts go down, in still has others. */
		pthread_mutex_destroy(&fresh->image_turn);
		stage_put(&st->stages, fresh->stage);
		inode_put(st, in, 1);
		free(fresh);
	}
	return j;
}

int drain_closed(struct store *st, struct inode *in, bool released)
{
	int rc;
	struct drain_job *j = job_for(st, in, true, !released, &rc);

	drain_job_put(st, j);
	return rc;
}

/* Will what is queued or running leave the file clean? Under both locks. */
static bool job_covers_locked(const struct file *f)
{
	const struct drain_job *j = f->running;

	if (f->queued)
		return true;
	return j && !j->earlier &&
	       (!j->begun || (j->exclusive && !atomic_load(&j->raced)));
}

void drain_released(struct store *st, struct inode *in)
{
	struct drain *d = st->drain;
	bool covered;

	{
		HOLD(&in->lock);
		HOLD(&d->lock);
		/* The end of a change that is under way looks again. */
		if (!in->file->dirty || in->file->writers > 0 ||
		    in->file->changing > 0)
			return;
		covered = job_covers_locked(in->file);
		if (in->file->queued)
			job_wake_locked(d, in->file->queued);
	}
	/* A mapping kept the file alive after its close, or it is drained as
	 * it was at a close that was not the last one. */
	if (!covered)
		(void)drain_closed(st, in, true);
}

int drain_resume(struct store *st, struct inode *in, uint64_t order)
{
	struct drain *d = st->drain;

	{
		HOLD(&d->lock);
		if (order >= d->next_order)
			d->next_order = order + 1;
	}
	return drain_closed(st, in, true);
}

/* --- stages that were replaced after their close ------------------------- */

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
static void earlier_replace_locked(struct drain_job *j, struct drain_job *next)
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
static bool earlier_remove_locked(struct drain_job *j)
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
		in->file->dirty = true;
		r = in->file->running;
		q = in->file->queued;
		if (r && !r->earlier && r->stage == s &&
		    !atomic_load(&r->raced)) {
			earlier_add_locked(r);
			kept = true;
		}
		if (q) {
			in->file->queued = NULL;
			if (q->order && q->state != JOB_FAILED) {
				job_wake_locked(d, q);
				earlier_add_locked(q);
				kept = true;
			} else {
				job_unqueue_locked(d, q);
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

/* --- one job, from start to finish ------------------------------------ */

void drain_finish(struct store *st, struct drain_job *j, enum job_state to,
		  int result)
{
	struct drain *d = st->drain;
	struct file *f = j->in->file;
	bool put_running = false, put_earlier = false, drop = false;

	job_drop_claims(st, j);
	if (j->has_ticket) {
		reclaim_leave(st, &j->ticket);
		j->has_ticket = false;
	}
	{
		HOLD(&j->in->lock);
		HOLD(&d->lock);
		if (f->running == j) {
			f->running = NULL;
			put_running = true;
		}
		if (j->earlier) {
			drop = earlier_remove_locked(j);
			put_earlier = true;
			/* Never again, once newer bytes may be committed. */
			if (drop)
				SLOT_SET(j->stage->slot, dirty, 0);
		}
		if (j->order) {
			TAILQ_REMOVE(&d->order, j, by_order);
			j->order = 0;
		}
		j->settled = j->settled || to == JOB_DONE;
		j->gave_up = !j->settled;
		j->state = to;
		j->result = result;
		d->draining--;
		pthread_cond_broadcast(&d->moved);
		/* The next job of the same file may start now. */
		pthread_cond_broadcast(&d->work);
	}
	if (drop) { /* what the file had */
		stage_drop(&st->stages, j->stage);
		stage_put(&st->stages, j->stage);
		inode_put(st, j->in, 1);
	}
	if (put_earlier)
		drain_job_put(st, j);
	if (put_running)
		drain_job_put(st, j);
	commit_wake(st); /* the order may be open for the next one */
}

/* A fresh job takes the place of j (which ran and does not count). */
void drain_restart(struct store *st, struct drain_job *j)
{
	struct drain *d = st->drain;
	struct drain_job *next = job_new(st, j->in, j->stage);
	struct file *f = j->in->file;
	bool was_earlier = false;

	if (!next) {
		drain_finish(st, j, JOB_CANCELLED, -ENOMEM);
		return;
	}
	{
		HOLD(&j->in->lock);
		HOLD(&d->lock);
		was_earlier = j->earlier;
		if (f->queued && !was_earlier) { /* closed again meanwhile: that one does it */
			struct drain_job *q = f->queued;

			if (j->order && !q->order) {
				q->order = j->order;
				TAILQ_INSERT_BEFORE(j, q, by_order);
			}
			job_ref(q);
			j->successor = q;
			q->asked = q->asked || j->asked;
			if (j->urgent)
				job_promote_locked(d, q);
		} else {
			d->draining++;
			next->urgent = j->urgent;
			next->asked = j->asked;
			next->no_join = j->no_join;
			next->close_size = j->close_size;
			next->close_mtime_ns = j->close_mtime_ns;
			next->order = j->order;
			if (j->order)
				TAILQ_INSERT_BEFORE(j, next, by_order);
			if (was_earlier)
				earlier_replace_locked(j, next);
			else
				f->queued = next;
			job_ref(next);
			j->successor = next;
			job_enqueue_locked(d, next);
			next = NULL;
		}
	}
	drain_job_put(st, next);
	drain_finish(st, j, JOB_RESTARTED, 0);
	if (was_earlier)
		drain_job_put(st, j); /* the list's */
}

/* What it wrote does not count; others may have referred to it. */
static void job_abandon_image(struct store *st, struct drain_job *j)
{
	if (!j->image || j->adopt)
		return;
	image_ref(&st->images, j->image);
	commit_abandon(st, j->image, j->size_bytes);
}

/* The file's error is new: count it, once. Under in->lock. */
static void stick_locked(struct store *st, struct file *f, int rc)
{
	HOLD(&st->drain->lock);
	if (f->sticky_error == 0)
		st->drain->failed++;
	f->sticky_error = rc;
	f->error_told = false;
}

void drain_unstick(struct store *st, struct inode *in)
{
	HOLD(&in->lock);
	HOLD(&st->drain->lock);
	if (in->file->sticky_error == 0)
		return;
	in->file->sticky_error = 0;
	st->drain->failed--;
}

/* The attempt that comes next, after a while, in the same place. */
static void retry_locked(struct drain *d, struct drain_job *j,
			 struct drain_job *next, int rc)
{
	next->result = rc;
	next->order = j->order;
	next->close_size = j->close_size;
	next->close_mtime_ns = j->close_mtime_ns;
	if (j->order)
		TAILQ_INSERT_BEFORE(j, next, by_order);
	j->in->file->queued = next;
	d->draining++;
	job_idle_locked(d, next, JOB_FAILED, mono_ns() + RETRY_NS);
}

/*
 * A drain failed: the stage is kept, the error sticks to the file, the job's
 * place in order stays taken, and it is tried again. A stage that was replaced
 * since is given up instead: newer bytes of its file wait behind it.
 */
void drain_fail(struct store *st, struct drain_job *j, int rc)
{
	struct drain_job *next = job_new(st, j->in, j->stage);
	struct file *f = j->in->file;
	char path[4096];
	bool first;

	job_abandon_image(st, j);
	{
		HOLD(&j->in->lock);
		first = f->sticky_error != rc;
		stick_locked(st, f, rc);
		if (j->adopt)
			j->stage->frozen = false;
		HOLD(&st->drain->lock);
		if (next && !f->queued && !j->earlier)
			retry_locked(st->drain, j, TAKE(next), rc);
	}
	drain_job_put(st, next);
	if (first) {
		inode_path(st, j->in, path, sizeof(path));
		log_error("%s: cannot be made durable: %s; its bytes are kept "
			  "and it is tried again",
			  path, strerror(-rc));
	}
	drain_finish(st, j, JOB_CANCELLED, rc);
}

/* A job that ran but must not count: a writer came, or the name went. */
void drain_void(struct store *st, struct drain_job *j)
{
	bool gone;

	job_abandon_image(st, j);
	{
		HOLD(&j->in->lock);
		gone = j->in->attr.nlink == 0 || j->overtaken ||
		       (j->in->file->stage != j->stage && !j->earlier);
		if (j->adopt)
			j->stage->frozen = false;
	}
	if (gone)
		drain_finish(st, j, JOB_CANCELLED, 0);
	else
		drain_restart(st, j);
}

/* Take the first job of the queue into `running`; d->lock is held. */
static struct drain_job *job_start_locked(struct store *st)
{
	struct drain *d = st->drain;
	struct drain_job *j;

	if (d->running_count >= 2 * d->thread_count)
		return NULL;
	TAILQ_FOREACH(j, &d->queue, in_queue)
	{
		if (!job_may_start_locked(st, j))
			continue;
		/* One job of a file at a time, the oldest first. */
		if (!j->in->file->running &&
		    (!j->in->file->earlier || j->in->file->earlier == j))
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
 * changes it. Its own close will drain it; in the middle of a change it must not
 * become durable, unless somebody asks for it as it stands.
 */
static bool job_is_overtaken(struct store *st, struct drain_job *j)
{
	struct stat sb;

	if (j->exclusive || !j->order || fstat(j->stage->fd, &sb) < 0)
		return false;
	if ((uint64_t)sb.st_size == j->close_size &&
	    io_ns(&sb.st_mtim) == j->close_mtime_ns)
		return false;
	HOLD(&st->drain->lock);
	j->overtaken = !j->urgent && !j->asked;
	return j->overtaken;
}

/* The rest of the start, without drain.lock. */
static int job_begin(struct store *st, struct drain_job *j)
{
	struct file *f = j->in->file;

	{
		HOLD(&j->in->lock);
		if (j->in->attr.nlink == 0 ||
		    (f->stage != j->stage && !j->earlier))
			return -ECANCELED;
		j->exclusive = j->earlier || !file_may_change(f);
		j->begun = true;
		j->old = f->content;
		if (j->old)
			atomic_fetch_add(&j->old->refs, 1);
		if (j->exclusive && j->stage->kind == STAGE_DISK) {
			struct stat sb;

			/* A small file goes to the database, not to an image. */
			if (fstat(j->stage->fd, &sb) == 0 &&
			    sb.st_size > SMALL_BYTES_MAX) {
				j->adopt = true;
				j->stage->frozen = true;
			}
		}
	}
	if (job_is_overtaken(st, j))
		return -ECANCELED;
	reclaim_enter(st, &j->ticket);
	j->has_ticket = true;
	return work_begin(st, j);
}

static void worker_help(struct store *st, struct drain_job *j,
			uint8_t *buffer);

/* Wait for another job's bytes, working on it meanwhile. */
static bool owner_wait(struct store *st, struct drain_job *o, uint8_t *buffer)
{
	struct drain *d = st->drain;
	bool failed;

	worker_help(st, o, buffer);
	pthread_mutex_lock(&d->lock);
	while (!o->settled && !o->gave_up)
		pthread_cond_wait(&d->moved, &d->lock);
	failed = o->gave_up;
	pthread_mutex_unlock(&d->lock);
	return failed;
}

/* Settle what is deferred: first with other jobs, then within this one. */
static int job_resolve(struct store *st, struct drain_job *j, uint8_t *buffer)
{
	bool late = false;

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
			late = late || c->kind == CHUNK_NEW;
		}
	}
	return late ? work_sync(st, j) : 0;
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
	}
	{
		HOLD(&d->lock);
		/* Once it is READY it is the committer's: raced or not. */
		raced = atomic_load(&j->raced) || rc == -EAGAIN;
		TAILQ_REMOVE(&d->running, j, in_queue);
		d->running_count--;
		if (rc < 0 || raced) {
			j->gave_up = true;
			pthread_cond_broadcast(&d->moved);
		} else {
			j->settled = true;
			pthread_cond_broadcast(&d->moved);
			j->state = JOB_READY;
			if (!j->order || j->urgent)
				job_list_ready_locked(d, j);
		}
		pthread_cond_broadcast(&d->work);
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
			pthread_cond_broadcast(&d->work);
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

		pthread_mutex_lock(&d->lock);
		for (;;) {
			j = job_with_span_locked(d);
			if (!j)
				started = job_start_locked(st);
			if (j || started || d->stop)
				break;
			pthread_cond_wait(&d->work, &d->lock);
		}
		if (d->stop && !j && !started) {
			pthread_mutex_unlock(&d->lock);
			break;
		}
		if (!j)
			j = started;
		job_ref(j);
		pthread_mutex_unlock(&d->lock);
		if (!started || worker_begin(st, j, buffer))
			worker_help(st, j, buffer);
		drain_job_put(st, j);
	}
	free(buffer);
	return NULL;
}

/* --- waiting ------------------------------------------------------------ */

/* Wait for j, or whatever takes its place. Consumes the reference. */
static int job_wait(struct store *st, struct drain_job *j)
{
	struct drain *d = st->drain;
	int rc;

	pthread_mutex_lock(&d->lock);
	job_promote_locked(d, j);
	pthread_mutex_unlock(&d->lock);
	commit_wake(st);
	pthread_mutex_lock(&d->lock);
	for (;;) {
		while (!job_final(j->state))
			pthread_cond_wait(&d->moved, &d->lock);
		if (j->state == JOB_RESTARTED && j->successor) {
			struct drain_job *next = j->successor;

			job_ref(next);
			job_promote_locked(d, next);
			pthread_mutex_unlock(&d->lock);
			drain_job_put(st, j);
			j = next;
			pthread_mutex_lock(&d->lock);
			continue;
		}
		break;
	}
	rc = j->result;
	pthread_mutex_unlock(&d->lock);
	drain_job_put(st, j);
	return rc;
}

/* Wait for what is draining now: it began before our caller's bytes came. */
static void running_wait(struct store *st, struct inode *in)
{
	struct drain *d = st->drain;
	struct drain_job *j = NULL;

	{
		HOLD(&in->lock);
		HOLD(&d->lock);
		if (in->file && in->file->running) {
			j = in->file->running;
			job_ref(j);
			job_promote_locked(d, j);
		}
	}
	if (!j)
		return;
	commit_wake(st);
	pthread_mutex_lock(&d->lock);
	while (!job_final(j->state))
		pthread_cond_wait(&d->moved, &d->lock);
	pthread_mutex_unlock(&d->lock);
	drain_job_put(st, j);
}

int drain_sync(struct store *st, struct inode *in)
{
	struct drain_job *j;
	int rc;

	running_wait(st, in);
	j = job_for(st, in, false, false, &rc);
	if (j)
		return job_wait(st, j);
	if (rc == 0)
		rc = kv_sync(st->kv); /* its name */
	return rc;
}

/*
 * Wait until all jobs with a place before `order` are done. The first of them
 * that fails while we wait ends it: nothing after it can be in order.
 */
static int order_wait(struct store *st, uint64_t order)
{
	struct drain *d = st->drain;
	struct drain_job *j;
	int rc = 0;

	pthread_mutex_lock(&d->lock);
	TAILQ_FOREACH(j, &d->order, by_order)
	{
		if (j->order >= order)
			break;
		j->asked = true;
		job_wake_locked(d, j); /* a failed one: once more, for us */
	}
	pthread_cond_broadcast(&d->work);
	for (;;) {
		j = TAILQ_FIRST(&d->order);
		if (!j || j->order >= order)
			break;
		if (j->state == JOB_FAILED) {
			rc = j->result;
			break;
		}
		pthread_cond_wait(&d->moved, &d->lock);
	}
	pthread_mutex_unlock(&d->lock);
	return rc;
}

static uint64_t order_now(struct drain *d)
{
	HOLD(&d->lock);
	return d->next_order;
}

int drain_publish(struct store *st, struct inode *in)
{
	uint64_t order;
	bool open;
	int rc;

	{
		HOLD(&in->lock);
		open = in->file && in->file->stage && in->file->dirty;
	}
	order = order_now(st->drain);
	rc = open ? order_wait(st, order) : 0;
	if (rc == 0)
		rc = drain_sync(st, in); /* still open: as it stands */
	return rc;
}

/* Files with a stage, under a directory: collected, then synced one by one. */
struct tree_list {
	struct inode **at;
	size_t count, capacity;
	int rc;
};

static void tree_add(struct store *st, struct tree_list *l, struct inode *in)
{
	if (l->count == l->capacity) {
		size_t want = l->capacity ? 2 * l->capacity : 64;
		struct inode **grown = realloc(l->at, want * sizeof(*grown));

		if (!grown) {
			l->rc = -ENOMEM;
			inode_put(st, in, 1);
			return;
		}
		l->at = grown;
		l->capacity = want;
	}
	l->at[l->count++] = in;
}

static void tree_collect(struct store *st, uint64_t dir, struct tree_list *l)
{
	for (uint32_t i = 0; i < st->stages.slot_count; i++) {
		uint64_t ino = SLOT_GET(&st->stages.slots[i], ino);
		struct inode *in = ino ? inode_peek(st, ino) : NULL;
		bool dirty = false;

		if (!in)
			continue;
		{
			HOLD(&in->lock);
			dirty = in->file && in->file->stage && in->file->dirty;
		}
		if (dirty && inode_is_under(st, in, dir))
			tree_add(st, l, in);
		else
			inode_put(st, in, 1);
	}
}

int drain_sync_tree(struct store *st, uint64_t dir)
{
	struct tree_list l = { 0 };
	int rc;

	tree_collect(st, dir, &l);
	rc = l.rc;
	if (rc == 0 && l.count > 0)
		rc = order_wait(st, order_now(st->drain));
	for (size_t i = 0; i < l.count; i++) {
		if (rc == 0)
			rc = drain_sync(st, l.at[i]);
		inode_put(st, l.at[i], 1);
	}
	free(l.at);
	return rc < 0 ? rc : kv_sync(st->kv);
}

void drain_disturb(struct store *st, struct inode *in, bool wait)
{
	struct drain *d = st->drain;
	struct drain_job *j = NULL;

	{
		HOLD(&in->lock);
		HOLD(&d->lock);
		if (in->file && in->file->running) {
			j = in->file->running;
			if (in->file->running->earlier) /* another stage */
				return;
			job_ref(j);
			if (j->exclusive)
				atomic_store(&j->raced, true);
		}
	}
	if (!j)
		return;
	if (wait) {
		pthread_mutex_lock(&d->lock);
		while (j->state == JOB_RUNNING)
			pthread_cond_wait(&d->moved, &d->lock);
		pthread_mutex_unlock(&d->lock);
	}
	drain_job_put(st, j);
}

int drain_wait_idle(struct store *st, struct inode *in)
{
	struct drain *d = st->drain;
	struct drain_job *j = NULL;
	int rc = 0;

	{
		HOLD(&in->lock);
		HOLD(&d->lock);
		j = in->file ? in->file->running : NULL;
		if (j) {
			job_ref(j);
			j->asked = true;
		}
	}
	if (!j)
		return 0;
	pthread_mutex_lock(&d->lock);
	while (!job_final(j->state)) {
		struct drain_job *first = TAILQ_FIRST(&d->order);

		if (first && first != j && first->state == JOB_FAILED) {
			rc = first->result;
			break;
		}
		pthread_cond_wait(&d->moved, &d->lock);
	}
	pthread_mutex_unlock(&d->lock);
	drain_job_put(st, j);
	return rc;
}

/* A job of in that does not run, taken out of its list; NULL: none. */
static struct drain_job *take_pending_locked(struct drain *d, struct file *f,
					     bool earlier_too)
{
	struct drain_job *j = TAKE(f->queued);

	for (struct drain_job *e = f->earlier; !j && earlier_too && e;
	     e = e->next_earlier)
		if (e->state == JOB_QUEUED)
			j = e;
	if (j)
		job_unqueue_locked(d, j);
	return j;
}

static void cancel_pending(struct store *st, struct inode *in, bool earlier_too)
{
	struct drain *d = st->drain;
	struct drain_job *j;

	do {
		{
			HOLD(&in->lock);
			HOLD(&d->lock);
			j = take_pending_locked(d, in->file, earlier_too);
		}
		if (j) {
			drain_finish(st, j, JOB_CANCELLED, 0);
			drain_job_put(st, j);
		}
	} while (j);
}

void drain_cancel(struct store *st, struct inode *in)
{
	{
		HOLD(&in->lock);
		HOLD(&st->drain->lock);
		if (!in->file)
			return;
		if (in->file->running)
			atomic_store(&in->file->running->raced, true);
	}
	cancel_pending(st, in, true);
}

void drain_moved(struct store *st, struct inode *in)
{
	{
		HOLD(&in->lock);
		HOLD(&st->drain->lock);
		if (in->file->running && !in->file->running->earlier)
			atomic_store(&in->file->running->raced, true);
	}
	cancel_pending(st, in, false);
}

void drain_wait_closed(struct store *st, struct inode *in)
{
	struct drain *d = st->drain;
	uint64_t order = 0;

	{
		HOLD(&in->lock);
		HOLD(&d->lock);
		if (in->file->earlier)
			order = in->file->earlier->order;
		if (in->file->running && in->file->running->order > order)
			order = in->file->running->order;
		if (in->file->queued && in->file->queued->order > order)
			order = in->file->queued->order;
	}
	if (order)
		(void)order_wait(st, order + 1);
}

/* --- for the committer --------------------------------------------------- */

unsigned drain_take_ready(struct store *st, struct drain_job **jobs,
			  unsigned max)
{
	struct drain *d = st->drain;
	struct drain_job *j;
	unsigned n = 0;

	HOLD(&d->lock);
	while (n < max && (j = TAILQ_FIRST(&d->ready)) != NULL) {
		TAILQ_REMOVE(&d->ready, j, in_queue);
		j->listed = false;
		j->in_turn = false;
		j->taken = true;
		jobs[n++] = j;
	}
	TAILQ_FOREACH(j, &d->order, by_order)
	{
		if (n == max)
			break;
		if (j->taken)
			continue;
		if (j->state != JOB_READY)
			break; /* nobody overtakes it */
		if (j->listed)
			TAILQ_REMOVE(&d->ready, j, in_queue);
		j->listed = false;
		j->in_turn = true;
		j->taken = true;
		jobs[n++] = j;
	}
	return n;
}

void drain_untake(struct store *st, struct drain_job *j)
{
	HOLD(&st->drain->lock);
	j->taken = false;
}

/* --- the timer: retries, late releases, files that stay open -------------- */

/* More is used than was admitted: a file outgrew its series. */
static void timer_relieve(struct store *st)
{
	uint64_t used, total;

	if (atomic_load(&st->stages.memory_count) == 0)
		return;
	stages_usage(&st->stages, &used, &total);
	if (used > total)
		(void)stages_make_room(&st->stages, 0);
}

/* Wake what is due; *ret_next is when the next one is. */
static struct drain_job *timer_wake_due_locked(struct drain *d, int64_t now,
					       int64_t *ret_next)
{
	struct drain_job *j = TAILQ_FIRST(&d->idle), *after;

	*ret_next = INT64_MAX;
	for (; j; j = after) {
		after = TAILQ_NEXT(j, in_queue);
		if (j->due_ns > now) {
			if (j->due_ns < *ret_next)
				*ret_next = j->due_ns;
		} else if (j->state == JOB_WAITING && j->empty_close) {
			/*
			 * dup(2) and close(2) before the first write: nothing
			 * was closed yet, and the real close is still to come.
			 */
			job_ref(j);
			return j;
		} else {
			job_wake_locked(d, j);
		}
	}
	return NULL;
}

/* A file that stays open for writing and changed since it was drained. */
static void timer_drain_open(struct store *st)
{
	for (uint32_t i = 0; i < st->stages.slot_count; i++) {
		struct stage_slot *slot = &st->stages.slots[i];
		uint64_t ino = SLOT_GET(slot, ino);
		struct inode *in;
		struct stage *stage = NULL;
		struct drain_job *j;
		struct stat sb;
		bool changed = false;
		int rc;

		if (ino == 0 || !SLOT_GET(slot, dirty) ||
		    SLOT_GET(slot, writers) == 0)
			continue;
		in = inode_peek(st, ino);
		if (!in)
			continue;
		{
			HOLD(&in->lock);
			if (in->file && in->file->stage &&
			    in->file->writers > 0) {
				stage = in->file->stage;
				stage_ref(stage);
			}
		}
		if (stage && fstat(stage->fd, &sb) == 0) {
			int64_t mtime = io_ns(&sb.st_mtim);
			HOLD(&in->lock);
			uint64_t last = in->file->drained_size;
			uint64_t size = (uint64_t)sb.st_size;

			changed = in->file->drained_mtime_ns != mtime ||
				  last != size;
			/* Written in one go: its close is not far. */
			if (size > last + DRAIN_OPEN_GROWTH_MAX)
				changed = false;
			in->file->drained_mtime_ns = mtime;
			in->file->drained_size = (uint64_t)sb.st_size;
		}
		stage_put(&st->stages, stage);
		if (changed) {
			j = job_for(st, in, false, false, &rc);
			drain_job_put(st, j);
		}
		inode_put(st, in, 1);
	}
}

/* Unless a real close has come since. */
static void cancel_empty(struct store *st, struct drain_job *j)
{
	struct drain *d = st->drain;
	struct file *f = j->in->file;

	{
		HOLD(&j->in->lock);
		HOLD(&d->lock);
		if (f->queued != j || j->state != JOB_WAITING ||
		    !j->empty_close)
			return;
		f->queued = NULL;
		job_unqueue_locked(d, j);
	}
	drain_finish(st, j, JOB_CANCELLED, 0);
	drain_job_put(st, j);
}

static void *timer_main(void *arg)
{
	struct store *st = arg;
	struct drain *d = st->drain;
	int64_t interval = (int64_t)st->options.drain_interval_s * 1000000000;
	int64_t next_open = interval ? mono_ns() + interval : INT64_MAX;

	pthread_mutex_lock(&d->lock);
	while (!d->stop) {
		int64_t now = mono_ns(), next;
		struct drain_job *empty;
		struct timespec t;

		if (now >= next_open) {
			pthread_mutex_unlock(&d->lock);
			timer_drain_open(st);
			pthread_mutex_lock(&d->lock);
			next_open = mono_ns() + interval;
			continue;
		}
		empty = timer_wake_due_locked(d, now, &next);
		if (empty) {
			pthread_mutex_unlock(&d->lock);
			cancel_empty(st, empty);
			drain_job_put(st, empty);
			pthread_mutex_lock(&d->lock);
			continue;
		}
		if (next > next_open)
			next = next_open;
		if (next > now + RELIEVE_NS)
			next = now + RELIEVE_NS;
		t.tv_sec = next / 1000000000;
		t.tv_nsec = next % 1000000000;
		pthread_cond_timedwait(&d->tick, &d->lock, &t);
		pthread_mutex_unlock(&d->lock);
		timer_relieve(st);
		pthread_mutex_lock(&d->lock);
	}
	pthread_mutex_unlock(&d->lock);
	return NULL;
}

/* --- threads --------------------------------------------------------------- */

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
		rc = pthread_create(&d->thread[i], NULL, worker_main, st);
		if (rc != 0)
			return -rc;
		HOLD(&d->lock);
		d->thread_count++;
	}
	return -pthread_create(&d->timer, NULL, timer_main, st);
}

void drain_stop(struct store *st)
{
	struct drain *d = st->drain;

	if (!d || !d->started)
		return;
	{
		HOLD(&d->lock);
		d->stop = true;
		pthread_cond_broadcast(&d->work);
		pthread_cond_broadcast(&d->tick);
	}
	for (unsigned i = 0; i < d->thread_count; i++)
		pthread_join(d->thread[i], NULL);
	pthread_join(d->timer, NULL);
	d->started = false;
}

/* A replaced stage stays for the next start as well. */
static void discard_earlier(struct store *st, struct drain_job *j)
{
	if (!j->earlier)
		return;
	if (earlier_remove_locked(j)) {
		stage_put(&st->stages, j->stage);
		inode_put(st, j->in, 1);
	}
	drain_job_put(st, j); /* the list's */
}

/* What could not be drained stays in its stage; only the jobs go. */
static void discard_jobs(struct drain *d, struct store *st,
			 struct job_order *list)
{
	struct drain_job *j;

	while ((j = TAILQ_FIRST(list)) != NULL) {
		TAILQ_REMOVE(list, j, in_queue);
		if (j->order)
			TAILQ_REMOVE(&d->order, j, by_order);
		if (j->in->file->queued == j)
			j->in->file->queued = NULL;
		discard_earlier(st, j);
		drain_job_put(st, j);
	}
}

/* Jobs that wait for one before them, which will not be committed. */
static void discard_finished(struct drain *d, struct store *st)
{
	struct drain_job *j;

	while ((j = TAILQ_FIRST(&d->order)) != NULL) {
		TAILQ_REMOVE(&d->order, j, by_order);
		job_drop_claims(st, j);
		if (j->has_ticket)
			reclaim_leave(st, &j->ticket);
		j->in->file->running = NULL;
		discard_earlier(st, j);
		drain_job_put(st, j);
	}
}

void drain_release(struct store *st)
{
	struct drain *d = st->drain;

	if (!d)
		return;
	discard_jobs(d, st, &d->queue);
	discard_jobs(d, st, &d->idle);
	discard_finished(d, st);
	inflight_free(d->inflight);
	pthread_mutex_destroy(&d->lock);
	pthread_cond_destroy(&d->work);
	pthread_cond_destroy(&d->moved);
	pthread_cond_destroy(&d->tick);
	free(d);
	st->drain = NULL;
}

void drain_ask_all(struct store *st)
{
	HOLD(&st->drain->lock);
	st->drain->release_all = true;
	pthread_cond_broadcast(&st->drain->work);
}

void drain_count_left(struct store *st, uint64_t bytes)
{
	HOLD(&st->drain->lock);
	st->drain->left_native++;
	st->drain->left_native_bytes += bytes;
}

void drain_figures(struct store *st, struct drain_figures *ret)
{
	HOLD(&st->drain->lock);
	ret->draining = st->drain->draining;
	ret->failed = st->drain->failed;
	ret->left_native = st->drain->left_native;
	ret->left_native_bytes = st->drain->left_native_bytes;
}

void drain_each_failed(struct store *st,
		       void (*fn)(void *arg, struct inode *in, int error),
		       void *arg)
{
	for (uint32_t i = 0; i < st->stages.slot_count; i++) {
		uint64_t ino = SLOT_GET(&st->stages.slots[i], ino);
		struct inode *in = ino ? inode_peek(st, ino) : NULL;
		int error = 0;

		if (!in)
			continue;
		{
			HOLD(&in->lock);
			if (in->file && !SLOT_GET(&st->stages.slots[i], earlier))
				error = in->file->sticky_error;
		}
		if (error < 0)
			fn(arg, in, error);
		inode_put(st, in, 1);
	}
}
