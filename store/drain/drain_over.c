/*
 * drain_over.c - what follows when an attempt at a job is over.
 *
 * Workers and the committer bring a job back here with what came of it: it
 * does not count (the bytes changed under it, or what it shares is gone), it
 * failed, or it is durable. Its place in the order outlasts all but the last.
 */
#include <errno.h>
#include <string.h>

#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/drain/drain_private.h"
#include "store/file/state.h"

#define RETRY_NS (INT64_C(5) * 1000000000)

/*
 * The attempt is over; the caller puts the work that is returned. A stage that
 * does not become the image after all is the file's to be written again, unless
 * a power cut could show that it has: the database must not be written any
 * more, and may have it as the image.
 */
static struct work *attempt_over_locked(struct drain *d, struct drain_job *j)
{
	struct work *w = TAKE(j->work);

	j->attempts++;
	if (w && w->kind == WORK_OF_IMAGE && j->in->file->stage == j->stage &&
	    j->in->file->state.bytes == BYTES_FROZEN && /* see drain_reopen() */
	    kv_health(d->kv) != KV_CONDEMNED)
		file_move(&j->in->file->state, FILE_THAWED);
	cond_broadcast(&d->moved);
	return w;
}

struct drain_job *newer_locked(const struct drain_job *j)
{
	struct drain_job *q = job_of(versions_next(&j->in->file->versions));

	return !j->v.replaced && q && q->stage == j->stage ? q : NULL;
}

void unstick_locked(struct drain *d, struct file *f)
{
	if (f->sticky_error != 0)
		d->failed--;
	f->sticky_error = 0;
}

/*
 * Who waits for j, perhaps only since it was overtaken, is told to look again
 * (-EAGAIN) when the file's bytes are another job's by now.
 */
static void again_locked(struct drain *d, struct drain_job *j,
			 const struct work *w, bool overtaken,
			 struct version_queue *ended)
{
	struct drain_job *q = newer_locked(j);

	if (j->in->attr.nlink == 0) {
		unstick_locked(d, j->in->file);
		job_end_locked(d, j, VERSION_GONE, 0, ended);
	} else if (overtaken ||
		   (!j->v.replaced && j->in->file->stage != j->stage)) {
		job_end_locked(d, j, VERSION_GONE, -EAGAIN, ended);
	} else if (q) {
		/* Who waits for j comes to q by himself. */
		enum version_want want = j->v.want;

		job_end_locked(d, j, VERSION_GONE, -EAGAIN, ended);
		if (want != WANT_NOT)
			order_want_soon(&q->v);
	} else {
		order_again(&d->order, &j->v,
			    w && w->behind ? &w->behind->v : NULL);
		workers_wake_locked(d);
	}
}

void drain_void(struct drain *d, struct drain_job *j, bool overtaken)
{
	struct version_queue ended = TAILQ_HEAD_INITIALIZER(ended);
	struct work *w;

	if (j->work)
		work_ended(d, j->work, false);
	{
		HOLD(&j->in->lock);
		HOLD(&d->lock);
		w = attempt_over_locked(d, j);
		again_locked(d, j, w, overtaken, &ended);
	}
	work_put(d, w);
	jobs_ended(d, &ended);
}

/*
 * The file has an error: it counts once, and is told once more when other bytes
 * failed than those that had failed before. Bytes that the file has no more,
 * since it was emptied or goes on in a copy, are no error of its.
 */
static void stick_locked(struct drain *d, struct drain_job *j, int rc)
{
	struct file *f = j->in->file;

	if (!j->v.replaced && f->stage != j->stage)
		return;
	if (f->sticky_error == 0)
		d->failed++;
	if (f->sticky_error != rc || j->result == 0)
		f->error_told = false;
	f->sticky_error = rc;
}

/*
 * What failed keeps its place, also when it has been replaced: what was closed
 * after it may depend on it, and newer bytes of its file end it when somebody
 * asks for them. A stage that another job has as well is that one's, and one
 * that its file has no more (a copy took its place) is nobody's.
 */
static void failed_locked(struct drain *d, struct drain_job *j, int rc,
			  struct version_queue *ended)
{
	struct drain_job *q = newer_locked(j);

	j->failures++;
	j->failure = rc;
	if (q || (!j->v.replaced && j->in->file->stage != j->stage)) {
		job_end_locked(d, j, VERSION_GONE, rc, ended);
	} else {
		j->result = rc;
		j->due_ns = mono_ns() + RETRY_NS;
		order_fail(&d->order, &j->v);
		job_tell_place_locked(d, j->in);
		cond_signal(&d->tick);
		workers_wake_locked(d); /* older ones of its file */
	}
}

static void log_failed(struct drain *d, struct inode *in, int rc)
{
	char path[4096];

	inode_path(d->inodes, in, path, sizeof(path));
	log_error("%s: cannot be made durable: %s; its bytes are kept and %s",
		  path, strerror(-rc),
		  kv_health(d->kv) == KV_CONDEMNED
			  ? "taken over when it is mounted again"
			  : "it is tried again");
}

void drain_fail(struct drain *d, struct drain_job *j, int rc)
{
	struct version_queue ended = TAILQ_HEAD_INITIALIZER(ended);
	struct work *w;
	bool first;

	if (j->work)
		work_ended(d, j->work, false);
	job_ref(j); /* what fails later may have ended it by then */
	{
		HOLD(&j->in->lock);
		first = j->in->file->sticky_error != rc &&
			j->in->attr.nlink > 0;
	}
	if (first)
		log_failed(d, j->in, rc);
	{
		HOLD(&j->in->lock);
		HOLD(&d->lock);
		w = attempt_over_locked(d, j);
		if (j->in->attr.nlink == 0) {
			again_locked(d, j, w, false, &ended);
		} else {
			stick_locked(d, j, rc);
			failed_locked(d, j, rc, &ended);
		}
	}
	work_put(d, w);
	jobs_ended(d, &ended);
	drain_job_put(d, j);
}

/* --- for the committer --------------------------------------------------- */

bool drain_take_locked(struct drain *d, struct drain_taken *ret)
{
	*ret = (struct drain_taken){ .j = job_of(order_void(&d->order)) };
	ret->makes_way = ret->j != NULL;
	if (ret->makes_way)
		return true;
	ret->j = job_of(order_take(&d->order));
	if (!ret->j)
		return false;
	return true;
}

bool drain_take(struct drain *d, struct drain_taken *ret)
{
	HOLD(&d->lock);
	return drain_take_locked(d, ret);
}

/*
 * It may have overtaken what was closed before: see drain.overtook. Of a file
 * that is not clean now something is waited for anyway.
 */
static void note_overtaken_locked(struct drain *d, const struct drain_job *j)
{
	const struct version *oldest = order_first(&d->order);
	uint64_t rank = version_rank(&j->v);

	if (oldest && oldest->place < rank && d->overtook < rank)
		d->overtook = rank;
}

void drain_seen(struct drain *d, struct drain_job *j, bool clean,
		struct version_queue *ended)
{
	struct version *v;
	struct drain_job *q;

	HOLD(&d->lock);
	q = newer_locked(j);
	if (clean && q)
		job_end_locked(d, q, VERSION_GONE, -EAGAIN, ended);
	order_seen(&d->order, &j->v);
	if (clean)
		note_overtaken_locked(d, j);
	job_tell_place_locked(d, j->in);
	for (v = TAILQ_NEXT(&j->v, by_file); v; v = TAILQ_NEXT(v, by_file))
		if (job_of(v)->failures > 0)
			return;
	unstick_locked(d, j->in->file);
}

void drain_done(struct drain *d, struct drain_job *j, bool stored)
{
	struct version_queue ended = TAILQ_HEAD_INITIALIZER(ended);
	struct work *w;

	work_ended(d, j->work, stored || j->work->kind == WORK_OF_IMAGE);
	{
		struct version *u;

		HOLD(&j->in->lock);
		HOLD(&d->lock);
		/* What is older of its file is superseded. */
		while ((u = TAILQ_FIRST(&j->in->file->versions.list)) != &j->v)
			job_end_locked(d, job_of(u), VERSION_GONE, 0, &ended);
		w = TAKE(j->work);
		j->attempts++;
		job_end_locked(d, j, VERSION_DONE, 0, &ended);
	}
	work_put(d, w);
	jobs_ended(d, &ended);
}
