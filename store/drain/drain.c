/*
 * drain.c - see drain.h: the jobs, their lists and their place in the order,
 * from the close to the end. Who works on them is in drain_run.c, who waits
 * for them in drain_wait.c, who wakes them later in drain_timer.c.
 */
#include "store/drain/drain.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "store/base/io.h"
#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/drain/commit.h"
#include "store/drain/drain_private.h"
#include "store/drain/inflight.h"
#include "store/file/state.h"
#include "store/store.h"

/* How long a closed file waits for its handle's release, which is on its way.
 */
#define RELEASE_WAIT_NS (INT64_C(100) * 1000000)
#define RETRY_NS (INT64_C(5) * 1000000000)

int drain_init(struct store *st)
{
	struct drain *d = calloc(1, sizeof(*d));

	if (!d)
		return -ENOMEM;
	d->inflight = inflight_new();
	if (!d->inflight) {
		free(d);
		return -ENOMEM;
	}
	lock_init(&d->lock, LOCK_DRAIN);
	cond_init(&d->work);
	cond_init(&d->moved);
	cond_init(&d->tick);
	TAILQ_INIT(&d->order);
	TAILQ_INIT(&d->queue);
	TAILQ_INIT(&d->idle);
	TAILQ_INIT(&d->running);
	TAILQ_INIT(&d->ready);
	d->next_order = 1;
	st->drain = d;
	return 0;
}

void job_ref(struct drain_job *j)
{
	atomic_fetch_add(&j->refs, 1);
}

void drain_origin_put(struct drain_origin *o)
{
	if (o && atomic_fetch_sub(&o->refs, 1) == 1)
		free(o);
}

/* The chunks' claims and references on others; the job's own bytes. */
static void job_clear(struct store *st, struct drain_job *j)
{
	for (uint32_t i = 0; i < j->chunk_count; i++) {
		struct drain_chunk *c = &j->chunks[i];

		drain_job_put(st, c->owner);
		drain_origin_put(c->origin);
	}
	drain_origin_put(j->origin);
	image_put(&st->images, j->image);
	lock_destroy(&j->image_turn);
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

struct drain_job *job_new(struct store *st, struct inode *in,
			  struct stage *stage)
{
	struct drain_job *j = calloc(1, sizeof(*j));

	if (!j)
		return NULL;
	atomic_init(&j->refs, 1);
	lock_init(&j->image_turn, LOCK_IMAGE_TURN);
	j->stage_fd = -1;
	j->image_fd = -1;
	j->direct_fd = -1;
	inode_ref(st, in, 1);
	j->in = in;
	stage_ref(stage);
	j->stage = stage;
	j->state = JOB_QUEUED;
	return j;
}

bool job_may_start_locked(const struct store *st, const struct drain_job *j)
{
	return !st->options.hold_drain || j->urgent || j->asked ||
	       st->drain->release_all;
}

void job_enqueue_locked(struct drain *d, struct drain_job *j)
{
	j->state = JOB_QUEUED;
	if (j->urgent)
		TAILQ_INSERT_HEAD(&d->queue, j, in_queue);
	else
		TAILQ_INSERT_TAIL(&d->queue, j, in_queue);
	cond_signal(&d->work);
}

static void job_idle_locked(struct drain *d, struct drain_job *j,
			    enum job_state state, int64_t due_ns)
{
	j->state = state;
	j->due_ns = due_ns;
	TAILQ_INSERT_TAIL(&d->idle, j, in_queue);
	cond_signal(&d->tick);
}

/* Out of the list that its state says; nothing for the others. */
void job_unqueue_locked(struct drain *d, struct drain_job *j)
{
	if (j->state == JOB_QUEUED)
		TAILQ_REMOVE(&d->queue, j, in_queue);
	else if (j->state == JOB_WAITING || j->state == JOB_FAILED)
		TAILQ_REMOVE(&d->idle, j, in_queue);
}

/* Taken out for good: nobody queues it again. */
void job_end_locked(struct drain *d, struct drain_job *j)
{
	job_unqueue_locked(d, j);
	j->state = JOB_ENDING;
}

/* It waits for no event any more. */
void job_wake_locked(struct drain *d, struct drain_job *j)
{
	if (j->state != JOB_WAITING && j->state != JOB_FAILED)
		return;
	job_unqueue_locked(d, j);
	job_enqueue_locked(d, j);
}

/* Finished in its place of the order, but somebody waits for it alone. */
void job_list_ready_locked(struct drain *d, struct drain_job *j)
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

/*
 * A version that was replaced, and that nobody waits for, makes way for j,
 * which is newer and somebody waits for: it would have to be committed before
 * j, and would overtake what was closed before it. It keeps its place, and is
 * drained again if j fails (drain_supersede() ends it if not).
 */
static void job_step_aside_locked(struct drain *d, struct drain_job *r)
{
	atomic_store(&r->raced, true);
	/* When it is done already the committer gives it back. */
	job_list_ready_locked(d, r);
}

void job_promote_locked(struct drain *d, struct drain_job *j)
{
	struct drain_job *r = j->in->file->running;

	if (r && r != j) { /* one of a file at a time */
		if (r->earlier && !r->urgent)
			job_step_aside_locked(d, r);
		else if (!j->earlier)
			job_promote_one_locked(d, r);
	}
	job_promote_one_locked(d, j);
}

bool job_final(enum job_state s)
{
	return s == JOB_DONE || s == JOB_CANCELLED || s == JOB_RESTARTED;
}

/* A job of the stage that in has now; NULL: nothing to drain, or no memory. */
static struct drain_job *job_of_stage(struct store *st, struct inode *in,
				      struct stat *ret_sb, int *ret_rc)
{
	struct stage *stage = NULL;
	struct drain_job *j;

	*ret_rc = 0;
	memset(ret_sb, 0, sizeof(*ret_sb));
	{
		HOLD(&in->lock);
		if (!in->file || !file_is_dirty(in->file) ||
		    in->attr.nlink == 0)
			return NULL;
		stage = in->file->stage;
		stage_ref(stage);
	}
	(void)stage_stat(&st->stages, stage, ret_sb);
	j = job_new(st, in, stage);
	stage_put(&st->stages, stage);
	if (!j)
		*ret_rc = -ENOMEM;
	return j;
}

/* Will what is queued or running leave the file clean? Under both locks. */
static bool job_covers_locked(const struct file *f)
{
	const struct drain_job *j = f->running;

	if (f->queued)
		return true;
	/* One that was published and is not over may be of another stage. */
	return j && !j->earlier && j->stage == f->stage &&
	       (!j->begun || (j->exclusive && !atomic_load(&j->raced)));
}

/* The file was closed: j has the last place there is. Under both locks. */
static void job_place_locked(struct drain *d, struct drain_job *j,
			     const struct stat *sb)
{
	/* Sealed bytes are those that got the place: it is theirs. */
	if (j->order && j->stage->sealed)
		return;
	j->again = false;
	j->close_size = (uint64_t)sb->st_size;
	j->close_mtime_ns = io_ns(&sb->st_mtim);
	if (j->order)
		TAILQ_REMOVE(&d->order, j, by_order);
	j->order = d->next_order++;
	TAILQ_INSERT_TAIL(&d->order, j, by_order);
	if (j->stage->slot)
		SLOT_SET(j->stage->slot, close_order, j->order);
}

/*
 * The job that will drain in's stage next: `fresh`, which is TAKEn then, when
 * there is none; with one reference. Both locks are held.
 */
static struct drain_job *job_for_locked(struct drain *d, struct inode *in,
					struct drain_job **fresh, bool ordered,
					bool waiting, const struct stat *sb)
{
	struct drain_job *j = in->file->queued;

	if (!j && ordered && (*fresh)->stage->sealed &&
	    job_covers_locked(in->file) && in->file->running->order)
		return NULL;
	if (!j) {
		j = TAKE(*fresh);
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
	j->empty_close = waiting && sb->st_size == 0;
	if (ordered)
		job_place_locked(d, j, sb);
	job_ref(j);
	return j;
}

struct drain_job *job_for(struct store *st, struct inode *in, bool ordered,
			  bool waiting, int *ret_rc)
{
	struct drain_job *fresh, *j = NULL;
	bool moved = true;
	struct stat sb;

	while (moved) {
		fresh = job_of_stage(st, in, &sb, ret_rc);
		if (!fresh)
			return NULL;
		{
			HOLD(&in->lock);
			/* Replaced, deleted or durable since we looked? */
			moved = in->file->stage != fresh->stage ||
				!file_is_dirty(in->file) ||
				in->attr.nlink == 0;
			if (!moved) {
				HOLD(&st->drain->lock);
				j = job_for_locked(st->drain, in, &fresh,
						   ordered, waiting, &sb);
			}
		}
		drain_job_put(st, fresh);
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

void drain_released(struct store *st, struct inode *in)
{
	struct drain *d = st->drain;
	bool covered;

	{
		HOLD(&in->lock);
		HOLD(&d->lock);
		if (d->awaiting_release > 0)
			cond_broadcast(&d->moved);
		/* The end of a change looks again, or of a mapping. */
		if (!file_is_dirty(in->file) || file_may_change(in->file))
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

/* --- one job, from start to finish ------------------------------------ */

void drain_finish(struct store *st, struct drain_job *j, enum job_state to,
		  int result)
{
	struct drain *d = st->drain;
	struct file *f = j->in->file;
	bool put_running = false, put_earlier = false, drop = false;

	job_drop_claims(st, j);
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
		if (j->origin)
			atomic_store(&j->origin->ended, true);
		j->settled = j->settled || to == JOB_DONE;
		j->gave_up = !j->settled;
		j->state = to;
		j->result = result;
		d->draining--;
		cond_broadcast(&d->moved);
		/* The next job of the same file may start now. */
		cond_broadcast(&d->work);
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

/* The place of j, which ends, is that of `to` now, if it has none. */
static void place_inherit_locked(struct drain_job *j, struct drain_job *to)
{
	if (!j->order || to->order)
		return;
	to->order = j->order;
	to->close_size = j->close_size;
	to->close_mtime_ns = j->close_mtime_ns;
	TAILQ_INSERT_BEFORE(j, to, by_order);
}

/* A fresh job takes the place of j (which ran and does not count). */
void drain_restart(struct store *st, struct drain_job *j)
{
	struct drain *d = st->drain;
	struct drain_job *next = job_new(st, j->in, j->stage);
	struct file *f = j->in->file;
	bool was_earlier = false, gone = false;

	if (!next) {
		drain_finish(st, j, JOB_CANCELLED, -ENOMEM);
		return;
	}
	{
		HOLD(&j->in->lock);
		HOLD(&d->lock);
		was_earlier = j->earlier;
		/* Replaced, or moved, since its end was decided on. */
		gone = !was_earlier && f->stage != j->stage;
		if (!gone && !was_earlier && f->queued) {
			/* Closed again meanwhile: that one does it. */
			struct drain_job *q = f->queued;

			place_inherit_locked(j, q);
			job_ref(q);
			j->successor = q;
			q->asked = q->asked || j->asked;
			if (j->urgent)
				job_promote_locked(d, q);
		} else if (!gone) {
			d->draining++;
			next->urgent = j->urgent;
			next->asked = j->asked;
			next->no_join = j->no_join;
			place_inherit_locked(j, next);
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
	if (gone)
		drain_finish(st, j, JOB_CANCELLED, -EAGAIN);
	else
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

/*
 * The file has an error: it counts once, and is told once more when other bytes
 * failed than those that are tried `again`. Under in->lock.
 */
static void stick_locked(struct store *st, struct file *f, int rc, bool again)
{
	HOLD(&st->drain->lock);
	if (f->sticky_error == 0)
		st->drain->failed++;
	if (f->sticky_error != rc || !again)
		f->error_told = false;
	f->sticky_error = rc;
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

/* Its stage does not become the image: it is the file's to be written again. */
static void thaw_locked(const struct drain_job *j)
{
	struct file *f = j->in->file;

	if (j->adopt && f->stage == j->stage)
		file_move(&f->state, FILE_THAWED);
}

/* The attempt that comes next, after a while, in the same place. */
static void retry_locked(struct drain *d, struct drain_job *j,
			 struct drain_job *next, int rc)
{
	next->result = rc;
	next->again = true;
	place_inherit_locked(j, next);
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
		stick_locked(st, f, rc, j->again);
		thaw_locked(j);
		HOLD(&st->drain->lock);
		if (!j->earlier && f->stage == j->stage) {
			if (f->queued)
				place_inherit_locked(j, f->queued);
			else if (next)
				retry_locked(st->drain, j, TAKE(next), rc);
		}
	}
	drain_job_put(st, next);
	if (first) {
		inode_path(st, j->in, path, sizeof(path));
		log_error("%s: cannot be made durable: %s; its bytes are kept "
			  "and %s",
			  path, strerror(-rc),
			  kv_health(st->kv) == KV_CONDEMNED
				  ? "taken over when it is mounted again"
				  : "it is tried again");
	}
	drain_finish(st, j, JOB_CANCELLED, rc);
}

/* A job that ran but must not count: a writer came, or the name went. */
void drain_void(struct store *st, struct drain_job *j)
{
	bool gone, moved, again;

	job_abandon_image(st, j);
	{
		HOLD(&j->in->lock);
		moved = j->in->attr.nlink > 0 &&
			j->in->file->stage != j->stage && !j->earlier;
		gone = j->in->attr.nlink == 0 || j->overtaken || moved;
		/* Who waits, perhaps only since it was overtaken, has to wait
		 * for the bytes where and as they are now. */
		again = moved || (j->overtaken && j->in->attr.nlink > 0);
		thaw_locked(j);
	}
	if (gone)
		drain_finish(st, j, JOB_CANCELLED, again ? -EAGAIN : 0);
	else
		drain_restart(st, j);
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
		job_end_locked(d, j);
	return j;
}

static void cancel_pending(struct store *st, struct inode *in, bool earlier_too,
			   int result)
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
			drain_finish(st, j, JOB_CANCELLED, result);
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
	cancel_pending(st, in, true, 0);
}

void drain_moved(struct store *st, struct inode *in)
{
	{
		HOLD(&in->lock);
		HOLD(&st->drain->lock);
		if (in->file->running && !in->file->running->earlier)
			atomic_store(&in->file->running->raced, true);
	}
	cancel_pending(st, in, false, -EAGAIN);
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
	/* Asked for, or to step aside, while we had it. */
	if (j->urgent || (j->earlier && atomic_load(&j->raced)))
		job_list_ready_locked(st->drain, j);
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
		earlier_discard(st, j);
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
		j->in->file->running = NULL;
		earlier_discard(st, j);
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
	lock_destroy(&d->lock);
	cond_destroy(&d->work);
	cond_destroy(&d->moved);
	cond_destroy(&d->tick);
	free(d);
	st->drain = NULL;
}

void drain_ask_all(struct store *st)
{
	HOLD(&st->drain->lock);
	st->drain->release_all = true;
	cond_broadcast(&st->drain->work);
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
			if (in->file &&
			    !SLOT_GET(&st->stages.slots[i], earlier))
				error = in->file->sticky_error;
		}
		if (error < 0)
			fn(arg, in, error);
		inode_put(st, in, 1);
	}
}
