/*
 * commit.c - the committer's thread: see commit.h. It takes operations from its
 * queue (commit_queue.c, commit_ops.c), and jobs from the order
 * (commit_job.c), and sleeps while there are neither.
 */
#include <errno.h>
#include <stdlib.h>

#include "store/base/scope.h"
#include "store/drain/commit_private.h"
#include "store/drain/drain_private.h"
#include "store/space/reclaim.h"

/* The next operation, with the deletions right behind it if it is one. */
static unsigned take_ops_locked(struct committer *c, struct commit_op **ops)
{
	struct commit_op *op;
	unsigned n = 0;

	while (n < COMMIT_GROUP_MAX && (op = TAILQ_FIRST(&c->ops)) != NULL &&
	       (n == 0 ||
		(op->kind == COMMIT_DELETE && ops[0]->kind == COMMIT_DELETE))) {
		TAILQ_REMOVE(&c->ops, op, next);
		ops[n++] = op;
	}
	return n;
}

static void run_ops(struct drain *d, struct commit_op **ops, unsigned n)
{
	HOLD(reclaim_deciding(d->reclaim));
	if (n > 1)
		commit_ops_delete(d, ops, n);
	else
		commit_op_run(d, ops[0]);
}

static void *committer_main(void *arg)
{
	struct drain *d = arg;
	struct committer *c = d->committer;
	struct commit_op *ops[COMMIT_GROUP_MAX];

	for (;;) {
		unsigned op_count;
		bool woken;

		lock_take(&c->lock);
		while (!c->woken && TAILQ_EMPTY(&c->ops) && !c->stop)
			cond_wait(&c->work, &c->lock);
		woken = c->woken;
		c->woken = false;
		/* What is ready already is committed, or given up, before. */
		if (c->stop && !woken && TAILQ_EMPTY(&c->ops)) {
			lock_give(&c->lock);
			return NULL;
		}
		op_count = take_ops_locked(c, ops);
		lock_give(&c->lock);
		if (op_count > 0) {
			run_ops(d, ops, op_count);
			commit_wake(d);
		}
		if (commit_jobs(d))
			commit_wake(d);
	}
}

int commit_start(struct drain *d)
{
	struct committer *c = d->committer;
	int rc;

	if (c->started)
		return 0;
	rc = thread_create(&c->thread, committer_main, d);
	c->started = rc == 0;
	return -rc;
}

void commit_stop(struct drain *d)
{
	struct committer *c = d->committer;

	{
		HOLD(&c->lock);
		c->stop = true;
		cond_signal(&c->work);
	}
	if (c->started)
		thread_join(&c->thread);
	TAILQ_CONCAT(&c->ops, &c->refused, next);
	for (struct commit_op *op; (op = TAILQ_FIRST(&c->ops)) != NULL;) {
		TAILQ_REMOVE(&c->ops, op, next); /* the next start does it */
		free(op);
	}
	lock_destroy(&c->lock);
	cond_destroy(&c->work);
	cond_destroy(&c->done);
	free(c);
}
