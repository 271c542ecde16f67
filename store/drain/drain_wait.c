/*
 * drain_wait.c - waiting for jobs: fsync, publish, sync of a tree, and who must
 * not touch a stage before its job is done.
 *
 * Nobody waits with a lock held, and every wait ends with the job or with the
 * error that keeps it from ending.
 */
#include <errno.h>
#include <stdlib.h>

#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/drain/commit.h"
#include "store/drain/drain_private.h"
#include "store/store.h"

/* How long an open with O_TRUNC waits for the release of the last handle. */
#define RELEASED_WAIT_NS (INT64_C(1) * 1000000000)

/*
 * Wait for j, or whatever takes its place. Consumes the reference. -EAGAIN: the
 * file has another stage now, and its bytes are there.
 */
static int job_wait(struct store *st, struct drain_job *j)
{
	struct drain *d = st->drain;
	int rc;

	lock_take(&d->lock);
	job_promote_locked(d, j);
	lock_give(&d->lock);
	commit_wake(st);
	lock_take(&d->lock);
	for (;;) {
		while (!job_final(j->state))
			cond_wait(&d->moved, &d->lock);
		if (j->state == JOB_RESTARTED && j->successor) {
			struct drain_job *next = j->successor;

			job_ref(next);
			job_promote_locked(d, next);
			lock_give(&d->lock);
			drain_job_put(st, j);
			j = next;
			lock_take(&d->lock);
			continue;
		}
		break;
	}
	rc = j->result;
	lock_give(&d->lock);
	drain_job_put(st, j);
	return rc;
}

/*
 * Wait for what is draining now: it began before our caller's bytes came. Not
 * for a version that was replaced: it waits for its turn, and makes way.
 */
static void running_wait(struct store *st, struct inode *in)
{
	struct drain *d = st->drain;
	struct drain_job *j = NULL;

	{
		HOLD(&in->lock);
		HOLD(&d->lock);
		j = in->file ? in->file->running : NULL;
		if (j && j->earlier && !j->urgent)
			j = NULL;
		if (j) {
			job_ref(j);
			job_promote_locked(d, j);
		}
	}
	if (!j)
		return;
	commit_wake(st);
	lock_take(&d->lock);
	while (!job_final(j->state))
		cond_wait(&d->moved, &d->lock);
	lock_give(&d->lock);
	drain_job_put(st, j);
}

int drain_sync(struct store *st, struct inode *in)
{
	struct drain_job *j;
	int rc;

	do {
		running_wait(st, in);
		j = job_for(st, in, false, false, &rc);
		if (j)
			rc = job_wait(st, j);
	} while (j && rc == -EAGAIN);
	if (j)
		return rc;
	if (rc == 0)
		rc = kv_sync(st->kv); /* its name */
	return rc;
}

/*
 * See order_wait(); ask: it is made durable now, even while it is changed. Who
 * was closed and is not released yet gets his time for that all the same: what
 * is drained while it may change has to be drained once more.
 */
static int order_await(struct store *st, uint64_t order, bool ask)
{
	struct drain *d = st->drain;
	struct drain_job *j;
	int rc = 0;

	lock_take(&d->lock);
	TAILQ_FOREACH(j, &d->order, by_order)
	{
		if (!ask || j->order >= order)
			break;
		j->asked = true;
		if (j->state == JOB_FAILED)
			job_wake_locked(d, j); /* once more, for us */
	}
	cond_broadcast(&d->work);
	for (;;) {
		j = TAILQ_FIRST(&d->order);
		if (!j || j->order >= order)
			break;
		if (j->state == JOB_FAILED) {
			rc = j->result;
			break;
		}
		cond_wait(&d->moved, &d->lock);
	}
	lock_give(&d->lock);
	return rc;
}

/*
 * Wait until all jobs with a place before `order` are done. The first of them
 * that fails while we wait ends it: nothing after it can be in order.
 */
int order_wait(struct store *st, uint64_t order)
{
	return order_await(st, order, true);
}

static uint64_t order_now(struct drain *d)
{
	HOLD(&d->lock);
	return d->next_order;
}

int drain_sync_closed(struct store *st)
{
	int rc = order_wait(st, order_now(st->drain));

	return rc < 0 ? rc : kv_sync(st->kv);
}

int drain_wait_drained(struct store *st)
{
	return order_await(st, order_now(st->drain), false);
}

int drain_publish(struct store *st, struct inode *in)
{
	uint64_t order;
	bool open;
	int rc;

	{
		HOLD(&in->lock);
		open = in->file && file_is_dirty(in->file);
	}
	order = order_now(st->drain);
	rc = open ? order_wait(st, order) : 0;
	if (rc == 0)
		rc = drain_sync(st, in); /* still open: as it stands */
	return rc;
}

int drain_publish_closed(struct store *st, struct inode *in)
{
	bool writers;

	{
		HOLD(&in->lock);
		writers = in->file && in->file->state.writers > 0;
	}
	return writers ? drain_sync_closed(st) : drain_publish(st, in);
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
			dirty = in->file && file_is_dirty(in->file);
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
		lock_take(&d->lock);
		while (j->state == JOB_RUNNING)
			cond_wait(&d->moved, &d->lock);
		lock_give(&d->lock);
	}
	drain_job_put(st, j);
}

void drain_changed(struct store *st, struct inode *in)
{
	HOLD(&in->lock);
	HOLD(&st->drain->lock);
	if (in->file->running && !in->file->running->earlier)
		atomic_store(&in->file->running->raced, true);
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
	lock_take(&d->lock);
	while (!job_final(j->state)) {
		struct drain_job *first = TAILQ_FIRST(&d->order);

		if (first && first != j && first->state == JOB_FAILED) {
			rc = first->result;
			break;
		}
		cond_wait(&d->moved, &d->lock);
	}
	lock_give(&d->lock);
	drain_job_put(st, j);
	return rc;
}

static uint64_t earlier_order_locked(const struct file *f)
{
	uint64_t order = 0;

	for (const struct drain_job *e = f->earlier; e; e = e->next_earlier)
		if (e->order > order)
			order = e->order;
	return order;
}

void drain_wait_closed(struct store *st, struct inode *in)
{
	struct drain *d = st->drain;
	uint64_t order;

	{
		HOLD(&in->lock);
		HOLD(&d->lock);
		order = earlier_order_locked(in->file);
		if (in->file->running && in->file->running->order > order)
			order = in->file->running->order;
		if (in->file->queued && in->file->queued->order > order)
			order = in->file->queued->order;
	}
	if (order)
		(void)order_wait(st, order + 1);
}

void drain_wait_replaced(struct store *st, struct inode *in)
{
	uint64_t order;

	{
		HOLD(&in->lock);
		HOLD(&st->drain->lock);
		order = earlier_order_locked(in->file);
	}
	if (order)
		(void)order_wait(st, order + 1);
}

bool drain_has_closed(struct store *st, const struct file *f)
{
	HOLD(&st->drain->lock);
	return f->earlier || (f->queued && f->queued->order) ||
	       (f->running && f->running->order);
}

/* Is a close of the stage that it has on its way? Under both locks. */
static bool close_pending_locked(const struct file *f)
{
	const struct drain_job *j = f->queued ? f->queued : f->running;

	return j && j->order && !j->earlier && !j->empty_close &&
	       j->stage == f->stage && j->state != JOB_FAILED &&
	       !job_final(j->state);
}

void drain_wait_released(struct store *st, struct inode *in)
{
	struct drain *d = st->drain;
	int64_t deadline = mono_ns() + RELEASED_WAIT_NS;
	bool wait = true;

	do {
		lock_take(&in->lock);
		lock_take(&d->lock);
		if (!in->file || in->file->state.writers == 0 ||
		    !close_pending_locked(in->file))
			wait = false;
		lock_give(&in->lock);
		if (wait) {
			d->awaiting_release++;
			wait = cond_wait_until(&d->moved, &d->lock, deadline);
			d->awaiting_release--;
		}
		lock_give(&d->lock);
	} while (wait);
}
