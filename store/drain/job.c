/*
 * job.c - a version of a file from its close to its end, as the order has it:
 * made, woken, wanted, ended. What is done with it is in the files that call
 * these.
 */
#include <stdlib.h>

#include "store/base/scope.h"
#include "store/drain/drain_private.h"

struct drain_job *job_ref(struct drain_job *j)
{
	if (j)
		atomic_fetch_add(&j->refs, 1);
	return j;
}

void drain_job_put(struct drain *d, struct drain_job *j)
{
	if (!j || atomic_fetch_sub(&j->refs, 1) != 1)
		return;
	stage_put(d->stages, j->stage);
	inode_put(d->inodes, j->in, 1);
	free(j);
}

struct drain_job *job_new(struct inode *in, struct stage *stage)
{
	struct drain_job *j = calloc(1, sizeof(*j));

	if (!j)
		return NULL;
	atomic_init(&j->refs, 1);
	inode_ref(in, 1);
	j->in = in;
	j->stage = stage_ref(stage);
	j->since_ns = mono_ns();
	return j;
}

bool job_is_empty(const struct drain_job *j)
{
	return j->v.state == VERSION_CLOSED && j->close_size == 0;
}

void job_wake_locked(struct drain *d, struct drain_job *j)
{
	bool was_empty = job_is_empty(j);

	order_wake(&d->order, &j->v);
	if (was_empty)
		job_tell_place_locked(d, j->in);
	cond_signal(&d->work);
}

void job_disturb_locked(struct drain_job *j)
{
	if (j->v.state == VERSION_RUNNING && j->work)
		work_disturb(j->work);
}

void job_stop_locked(struct drain *d, struct drain_job *j)
{
	job_disturb_locked(j);
	if (order_give_back(&d->order, &j->v))
		cond_signal(&d->commit);
}

void job_want_locked(struct drain *d, struct drain_job *j)
{
	struct drain_job *aside = job_of(order_want(&d->order, &j->v));

	if (aside)
		job_disturb_locked(aside);
	cond_signal(&d->work);
	cond_signal(&d->wanted);
	cond_signal(&d->commit);
}

void job_leave_locked(struct drain *d, struct drain_job *j)
{
	if (!order_leave(&d->order, &j->v))
		return;
	workers_wake_locked(d);
	cond_signal(&d->commit);
}

uint64_t job_place_of_locked(const struct file *f, bool *ret_holds)
{
	struct version *v;

	*ret_holds = false;
	TAILQ_FOREACH_REVERSE(v, &f->versions.list, version_list, by_file)
	if (v->place != 0) {
		if (v->state == VERSION_SEEN || job_is_empty(job_of(v)))
			return 0;
		*ret_holds = job_of(v)->failures == 0;
		return v->place;
	}
	return 0;
}

void job_tell_place_locked(struct drain *d, const struct inode *in)
{
	bool holds;
	uint64_t place = job_place_of_locked(in->file, &holds);

	if (d->options.tell_place)
		d->options.tell_place(d->options.arg, in->ino, place, holds);
}

void job_end_locked(struct drain *d, struct drain_job *j, enum version_state to,
		    int result, struct version_queue *ended)
{
	bool followed = !TAILQ_EMPTY(&j->v.followers);

	if (j->v.replaced) {
		j->drop = j->stage;
		/* Never again, once newer bytes may be committed. */
		slot_over(j->stage->slot);
	}
	order_end(&d->order, &j->v, to);
	job_tell_place_locked(d, j->in);
	TAILQ_INSERT_TAIL(ended, &j->v, by_state);
	j->result = result;
	cond_broadcast(&d->moved);
	cond_signal(&d->commit); /* it may be open for the next one */
	/* The next job of the same file may start now, or who was behind it. */
	if (followed || !TAILQ_EMPTY(&j->in->file->versions.list))
		workers_wake_locked(d);
}

void jobs_ended(struct drain *d, struct version_queue *ended)
{
	struct drain_job *j;

	while ((j = job_of(TAILQ_FIRST(ended))) != NULL) {
		TAILQ_REMOVE(ended, &j->v, by_state);
		if (j->drop) { /* what the file had */
			stage_drop(d->stages, j->drop);
			inode_put(d->inodes, j->in, 1);
		}
		drain_job_put(d, j); /* the order's */
	}
}
