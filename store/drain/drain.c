/*
 * drain.c - jobs, from the close to the end.
 *
 * A close makes a job, or gives a new place to the one that waits already. The
 * order (order.h) says what becomes of it; who works on it is in drain_run.c,
 * what follows when an attempt is over in drain_over.c, who waits for it in
 * drain_wait.c, and who wakes it later in drain_timer.c.
 *
 * A file whose stage was replaced after its close (O_TRUNC) has jobs of more
 * than one stage: what was closed later may depend on the older ones, so each
 * is drained in its place of the order, and before anything newer of its file,
 * unless somebody waits for that. The job of a replaced stage, for there is one
 * at the most, has what the file had of it, its references to the stage and for
 * it to the inode; it gives these back.
 */
#include "store/drain/drain.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/drain/commit_private.h"
#include "store/drain/inflight.h"
#include "store/file/state.h"
#include "store/formats/chunks.h"

/* How long a closed file waits for its handle's release. */
#define RELEASE_WAIT_NS (INT64_C(100) * 1000000)
/* When it is asked first who is left. */
#define ASK_NS_MIN (INT64_C(1) * 1000000)

int drain_new(struct kv *kv, struct images *images, struct stages *stages,
	      struct inode_table *inodes, struct reclaim *reclaim,
	      const struct drain_options *options, struct drain **ret_drain)
{
	SCOPED(scope_free) struct drain *d = calloc(1, sizeof(*d));

	if (!d)
		return -ENOMEM;
	d->inflight = inflight_new();
	if (!d->inflight)
		return -ENOMEM;
	d->kv = kv;
	d->images = images;
	d->stages = stages;
	d->inodes = inodes;
	d->reclaim = reclaim;
	d->options = *options;
	lock_init(&d->lock, LOCK_DRAIN);
	cond_init(&d->work);
	cond_init(&d->wanted);
	cond_init(&d->moved);
	cond_init(&d->commit);
	cond_init(&d->tick);
	TAILQ_INIT(&d->running);
	TAILQ_INIT(&d->ops);
	TAILQ_INIT(&d->refused);
	order_init(&d->order);
	d->order.on_demand = options->hold;
	*ret_drain = TAKE(d);
	return 0;
}

/* --- closes */

/* A job of the stage that in has now; NULL: nothing to drain, or no memory. */
static struct drain_job *job_of_stage(struct drain *d, struct inode *in,
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
		stage = stage_ref(in->file->stage);
	}
	(void)stage_stat(d->stages, stage, ret_sb);
	j = job_new(in, stage);
	stage_put(d->stages, stage);
	if (!j)
		*ret_rc = -ENOMEM;
	return j;
}

/* The job that waits with the stage that the file has; NULL: none. */
static struct drain_job *pending_locked(const struct file *f)
{
	struct drain_job *j = job_of(versions_next(&f->versions));

	return j && j->stage == f->stage ? j : NULL;
}

/* The job that is in flight with it; NULL: none. */
static struct drain_job *flying_locked(const struct file *f)
{
	struct drain_job *j = job_of(f->versions.in_flight);

	/* One that everybody sees and is not over may be of another stage. */
	return j && !j->v.replaced && j->stage == f->stage ? j : NULL;
}

/*
 * Will what waits, or is in flight, leave the file clean, which it is not? What
 * everybody sees would have done so by now.
 */
static bool is_covered_locked(const struct file *f)
{
	const struct drain_job *j = flying_locked(f);

	return pending_locked(f) ||
	       (j && j->v.state != VERSION_SEEN &&
		(!j->work || j->work->kind != WORK_OF_OPEN));
}

/* It is for these bytes, and for no others, unless somebody asks for them. */
static void job_close_locked(struct drain_job *j, const struct stat *sb)
{
	j->closed = true;
	j->close_size = (uint64_t)sb->st_size;
	j->close_mtime_ns = io_ns(&sb->st_mtim);
}

/*
 * Nothing would be durable after what cannot be stored, so it has no place:
 * passthrough lets a program write anywhere.
 */
static bool is_too_long(const struct stat *sb)
{
	return (uint64_t)sb->st_size > CUT_FILE_BYTES_MAX;
}

/* What its stage holds is j's version, if it is ever to be durable as it is. */
static void note_closed_locked(const struct drain_job *j)
{
	bool closed = j->v.place || j->v.replaced;

	slot_closed(j->stage->slot, j->v.place, closed ? j->v.number : 0);
}

/*
 * The file was closed: j has the last place there is. No close(2) tells of what
 * is left when the last writer goes, so that has the place of the one before.
 */
static void job_place_locked(struct drain *d, struct drain_job *j,
			     const struct stat *sb, enum close_kind kind)
{
	const struct stage_slot *slot = j->stage->slot;
	uint64_t before = slot ? SLOT_GET(slot, close_order) : 0;

	/* Sealed bytes are those that got the place: it is theirs. */
	if (j->v.place && j->stage->sealed)
		return;
	if (j->v.place)
		cond_signal(&d->commit); /* those behind its old one */
	j->result = 0;
	job_close_locked(j, sb);
	if (kind == CLOSE_FLUSHED && sb->st_size > 0)
		j->in->file->flushed_ns = mono_ns();
	if (is_too_long(sb)) {
		order_unplace(&d->order, &j->v);
		cond_signal(&d->work);
	} else if (kind == CLOSE_LEFT && before != 0) {
		order_resume(&d->order, &j->v, before);
		order_want_soon(&j->v); /* who waited for it waits on */
	} else {
		order_place(&d->order, &j->v);
	}
	if (j->stage->slot)
		note_closed_locked(j);
	job_tell_place_locked(d, j->in);
}

/*
 * The job that waits, or `fresh`, which is TAKEn then; with one reference. A
 * close waits a while for who has the file to write: the handle that was
 * closed is released soon, and who has opened it meanwhile closes it, too.
 */
static struct drain_job *job_for_locked(struct drain *d, struct inode *in,
					struct drain_job **fresh,
					enum close_kind kind,
					const struct stat *sb)
{
	struct file *f = in->file;
	struct drain_job *j = pending_locked(f);
	bool open = f->state.writers > 0 || f->state.changing > 0;
	bool waiting = kind == CLOSE_FLUSHED && open;

	if (kind == CLOSE_LEFT && (file_may_change(f) || is_covered_locked(f)))
		return NULL;
	if (!j && kind != CLOSE_NOT && (*fresh)->stage->sealed &&
	    is_covered_locked(f) && f->versions.in_flight->place)
		return NULL;
	if (!j && kind == CLOSE_NOT && (j = flying_locked(f)) != NULL)
		return job_ref(j);
	if (!j) {
		j = TAKE(*fresh); /* its first reference is the order's */
		j->due_ns = waiting ? mono_ns() + RELEASE_WAIT_NS : 0;
		order_add(&d->order, &j->v, &f->versions,
			  waiting ? VERSION_CLOSED : VERSION_QUEUED);
		cond_signal(waiting ? &d->tick : &d->work);
	} else if (!waiting && j->v.state != VERSION_FAILED) {
		job_wake_locked(d, j);
	}
	if (kind != CLOSE_NOT)
		job_place_locked(d, j, sb, kind);
	return job_ref(j);
}

struct drain_job *job_for(struct drain *d, struct inode *in,
			  enum close_kind kind, int *ret_rc)
{
	struct drain_job *fresh, *j = NULL;
	bool moved = true;
	struct stat sb;

	while (moved) {
		fresh = job_of_stage(d, in, &sb, ret_rc);
		if (!fresh)
			return NULL;
		{
			HOLD(&in->lock);
			/* Replaced, deleted or durable since we looked? */
			moved = in->file->stage != fresh->stage ||
				!file_is_dirty(in->file) || in->attr.nlink == 0;
			if (!moved) {
				HOLD(&d->lock);
				j = job_for_locked(d, in, &fresh, kind, &sb);
			}
		}
		drain_job_put(d, fresh);
	}
	return j;
}

int drain_closed(struct drain *d, struct inode *in)
{
	int rc;

	drain_job_put(d, job_for(d, in, CLOSE_FLUSHED, &rc));
	return rc;
}

/* The timer asks who is left soon, and again until nobody is. */
static void ask_left_locked(struct drain *d)
{
	d->left_delay_ns = ASK_NS_MIN;
	d->left_due_ns = mono_ns() + ASK_NS_MIN;
	cond_signal(&d->tick);
}

void drain_released(struct drain *d, struct inode *in)
{
	bool covered;
	int rc;

	{
		struct drain_job *j;

		HOLD(&in->lock);
		HOLD(&d->lock);
		if (d->awaiting_release > 0)
			cond_broadcast(&d->moved);
		/* The end of a change looks again. */
		if (!file_is_dirty(in->file) || in->file->state.writers > 0 ||
		    in->file->state.changing > 0)
			return;
		/* So does the end of a mapping. */
		covered = in->file->state.left == LEFT_WRITERS;
		if (covered)
			ask_left_locked(d);
		else
			covered = is_covered_locked(in->file);
		j = pending_locked(in->file);
		if (j)
			job_wake_locked(d, j);
	}
	/* A mapping kept the file alive after its close, or it is drained as
	 * it was at a close that was not the last one. */
	if (!covered)
		drain_job_put(d, job_for(d, in, CLOSE_LEFT, &rc));
}

void drain_begin_places(struct drain *d, uint64_t first)
{
	HOLD(&d->lock);
	order_begin(&d->order, first);
	/* What an earlier daemon made durable may have overtaken others. */
	d->overtook = first;
}

uint64_t drain_draw_place(struct drain *d)
{
	HOLD(&d->lock);
	return order_draw(&d->order);
}

uint64_t drain_place_of(struct drain *d, struct inode *in)
{
	bool holds;

	HOLD(&in->lock);
	HOLD(&d->lock);
	return in->file ? job_place_of_locked(in->file, &holds) : 0;
}

int drain_resume(struct drain *d, struct inode *in, struct stage *s,
		 uint64_t place)
{
	struct drain_job *j = job_new(in, s);
	struct stat sb;

	if (!j)
		return -ENOMEM;
	memset(&sb, 0, sizeof(sb));
	(void)stage_stat(d->stages, s, &sb);
	HOLD(&in->lock);
	HOLD(&d->lock);
	order_add(&d->order, &j->v, &in->file->versions, VERSION_QUEUED);
	job_close_locked(j, &sb);
	if (place != 0 && !is_too_long(&sb))
		order_resume(&d->order, &j->v, place);
	if (in->file->stage != s)
		order_replace(&d->order, &j->v);
	note_closed_locked(j);
	cond_signal(&d->work);
	return 0;
}

/* --- what becomes of it when its file changes */

/*
 * Does j, of the stage s that its file had, keep its place? What is in flight
 * of what was closed anew goes, as when it is given back.
 */
static bool keeps_place(const struct drain_job *j, const struct stage *s)
{
	if (j->v.replaced || j->stage != s || j->v.state == VERSION_SEEN)
		return false; /* seen: the stage is a cache, and goes as one */
	return version_pending(&j->v) ? j->v.place != 0 : !newer_locked(j);
}

struct stage *drain_replace(struct drain *d, struct inode *in,
			    struct stage *fresh)
{
	struct version_queue ended = TAILQ_HEAD_INITIALIZER(ended);
	uint64_t kept = 0; /* the newest one's number */
	bool failed = false;
	struct stage *s;

	{
		struct version *v, *after;

		HOLD(&in->lock);
		HOLD(&d->lock);
		s = in->file->stage;
		if (in->file->state.left == LEFT_WRITERS)
			s->unseen_writer = true; /* he goes on to write to it */
		in->file->stage = fresh;
		file_move(&in->file->state,
			  fresh->sealed ? FILE_LENT : FILE_STAGED);
		v = TAILQ_FIRST(&in->file->versions.list);
		for (; v; v = after) {
			after = TAILQ_NEXT(v, by_file);
			if (keeps_place(job_of(v), s)) {
				order_replace(&d->order, v);
				cond_signal(&d->work);
				kept = v->number;
			} else if (!v->replaced && version_pending(v)) {
				job_end_locked(d, job_of(v), VERSION_GONE,
					       -EAGAIN, &ended);
				continue;
			} else if (!v->replaced) {
				job_stop_locked(d, job_of(v));
			}
			failed |= v->replaced && job_of(v)->failures > 0;
		}
		if (!failed)
			unstick_locked(d, in->file);
		if (kept)
			slot_replaced(s->slot, kept);
	}
	jobs_ended(d, &ended);
	return kept ? NULL : s;
}

/* End what is pending of in; what is in flight does not count any more. */
static void cancel(struct drain *d, struct inode *in, bool replaced_too,
		   int result)
{
	struct version_queue ended = TAILQ_HEAD_INITIALIZER(ended);

	{
		struct version *v, *after;

		HOLD(&in->lock);
		HOLD(&d->lock);
		v = in->file ? TAILQ_FIRST(&in->file->versions.list) : NULL;
		if (in->file && replaced_too)
			unstick_locked(d, in->file);
		for (; v; v = after) {
			struct drain_job *j = job_of(v);

			after = TAILQ_NEXT(v, by_file);
			if (v->replaced && !replaced_too)
				continue;
			if (version_pending(v))
				job_end_locked(d, j, VERSION_GONE, result,
					       &ended);
			else
				job_disturb_locked(j);
		}
	}
	jobs_ended(d, &ended);
}

void drain_cancel(struct drain *d, struct inode *in)
{
	cancel(d, in, true, 0);
}

void drain_moved(struct drain *d, struct inode *in)
{
	cancel(d, in, false, -EAGAIN);
}

/* --- the whole */

static struct drain_job *any_job(const struct drain *d)
{
	const struct order *o = &d->order;
	const struct version_queue *all[] = { &o->placed, &o->idle, &o->queue,
					      &o->loose, &o->voided };

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		if (!TAILQ_EMPTY(all[i]))
			return job_of(TAILQ_FIRST(all[i]));
	return NULL;
}

/*
 * What could not be drained stays in its stage, also in one that was replaced,
 * and what was stored in its image: the next start finds both.
 */
static void job_discard(struct drain *d, struct drain_job *j)
{
	if (j->work)
		work_ended(d, j->work, true);
	if (j->v.replaced) {
		stage_put(d->stages, j->stage);
		inode_put(d->inodes, j->in, 1);
	}
	order_end(&d->order, &j->v, VERSION_GONE);
	work_put(d, TAKE(j->work));
	drain_job_put(d, j);
}

void drain_free(struct drain *d)
{
	struct drain_job *j;

	if (!d)
		return;
	commit_stop(d);
	while ((j = any_job(d)) != NULL)
		job_discard(d, j);
	inflight_free(d->inflight);
	lock_destroy(&d->lock);
	cond_destroy(&d->work);
	cond_destroy(&d->wanted);
	cond_destroy(&d->moved);
	cond_destroy(&d->commit);
	cond_destroy(&d->tick);
	free(d);
}

void drain_go_on(struct drain *d)
{
	HOLD(&d->lock);
	d->order.on_demand = false;
	cond_broadcast(&d->work);
}

void drain_figures(struct drain *d, struct drain_figures *ret)
{
	HOLD(&d->lock);
	ret->draining = d->order.unfinished;
	ret->failed = d->failed;
	ret->left_native = d->left_native;
	ret->left_native_bytes = d->left_native_bytes;
}

void drain_each_failed(struct drain *d,
		       void (*fn)(void *arg, struct inode *in, int error),
		       void *arg)
{
	for (uint32_t i = 0; i < d->stages->slot_count; i++) {
		const struct stage_slot *slot = &d->stages->slots[i];
		struct inode *in = inode_of_slot(d->inodes, slot);
		int error = 0;

		if (!in)
			continue;
		{
			HOLD(&in->lock);
			if (in->file && !SLOT_GET(slot, earlier))
				error = in->file->sticky_error;
		}
		if (error < 0)
			fn(arg, in, error);
		inode_put(d->inodes, in, 1);
	}
}
