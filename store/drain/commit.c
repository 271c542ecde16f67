/*
 * commit.c - the committer's thread: see commit.h. It takes operations from its
 * queue (commit_queue.c, commit_ops.c), and jobs from the order
 * (commit_job.c), and sleeps while there are neither.
 */
#include <errno.h>
#include <stdlib.h>

#include "store/base/scope.h"
#include "store/drain/commit_private.h"
#include "store/space/reclaim.h"
#include "store/store.h"

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

static void run_ops(struct store *st, struct commit_op **ops, unsigned n)
{
	HOLD(reclaim_turn(st->reclaim));
	if (n > 1)
		commit_ops_delete(st, ops, n);
	else
		commit_op_run(st, ops[0]);
}

static void *committer_main(void *arg)
{
	struct store *st = arg;
	struct committer *c = st->committer;
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
			run_ops(st, ops, op_count);
			commit_wake(st);
		}
		if (commit_jobs(st))
			commit_wake(st);
	}
}

int commit_start(struct store *st)
{
	struct committer *c = st->committer;
	int rc = thread_create(&c->thread, committer_main, st);

	c->started = rc == 0;
	return -rc;
}

void commit_stop(struct store *st)
{
	struct committer *c = st->committer;

	if (!c)
		return;
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
	st->committer = NULL;
}
