/*
 * commit.c - the committer's thread: see commit.h. It takes operations from its
 * queue (commit_queue.c, commit_ops.c), and jobs from the order
 * (commit_job.c), and sleeps while there are neither.
 */
#include <stdlib.h>

#include "store/base/scope.h"
#include "store/drain/commit_private.h"

/* The next operation, with the deletions right behind it if it is one. */
static unsigned take_ops_locked(struct drain *d, struct commit_op **ops)
{
	struct commit_op *op;
	unsigned n = 0;

	while (n < COMMIT_GROUP_MAX && (op = TAILQ_FIRST(&d->ops)) != NULL &&
	       (n == 0 ||
		(op->kind == COMMIT_DELETE && ops[0]->kind == COMMIT_DELETE))) {
		TAILQ_REMOVE(&d->ops, op, next);
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

/* Operations and jobs by turns: neither keeps the other waiting. */
static void *committer_main(void *arg)
{
	struct drain *d = arg;
	struct commit_op *ops[COMMIT_GROUP_MAX];
	struct drain_taken job = { 0 };
	unsigned n = 0;

	do {
		lock_take(&d->lock);
		while (!(n = take_ops_locked(d, ops)) &&
		       !drain_take_locked(d, &job) && !d->commit_stop)
			cond_wait(&d->commit, &d->lock);
		lock_give(&d->lock);
		if (n > 0) {
			run_ops(d, ops, n);
			(void)drain_take(d, &job);
		}
		if (job.j)
			commit_jobs(d, &job);
		/* What is ready already is committed before it ends. */
	} while (n > 0 || job.j);
	return NULL;
}

int commit_start(struct drain *d)
{
	int rc;

	if (d->commit_started)
		return 0;
	rc = thread_create(&d->committer, committer_main, d);
	d->commit_started = rc == 0;
	return rc;
}

void commit_stop(struct drain *d)
{
	{
		HOLD(&d->lock);
		d->commit_stop = true;
		cond_signal(&d->commit);
	}
	if (d->commit_started)
		thread_join(&d->committer);
	TAILQ_CONCAT(&d->ops, &d->refused, next);
	for (struct commit_op *op; (op = TAILQ_FIRST(&d->ops)) != NULL;) {
		TAILQ_REMOVE(&d->ops, op, next); /* the next start does it */
		free(op);
	}
}
