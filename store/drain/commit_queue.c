/*
 * commit_queue.c - what the committer is asked for, besides finished jobs: it
 * is kept here until the committer's thread (commit.c) comes for it.
 */
#include <errno.h>
#include <stdlib.h>

#include "store/base/scope.h"
#include "store/drain/commit_private.h"
#include "store/drain/drain_private.h"

int committer_new(struct committer **ret_committer)
{
	struct committer *c = calloc(1, sizeof(*c));

	if (!c)
		return -ENOMEM;
	lock_init(&c->lock, LOCK_COMMITTER);
	cond_init(&c->work);
	cond_init(&c->done);
	TAILQ_INIT(&c->ops);
	TAILQ_INIT(&c->refused);
	*ret_committer = c;
	return 0;
}

void commit_wake(struct drain *d)
{
	struct committer *c = d->committer;

	HOLD(&c->lock);
	c->woken = true;
	cond_signal(&c->work);
}

static void op_add(struct drain *d, struct commit_op *op)
{
	struct committer *c = d->committer;

	HOLD(&c->lock);
	TAILQ_INSERT_TAIL(&c->ops, op, next);
	cond_signal(&c->work);
}

void commit_retry(struct drain *d)
{
	struct committer *c = d->committer;

	HOLD(&c->lock);
	if (TAILQ_EMPTY(&c->refused))
		return;
	TAILQ_CONCAT(&c->ops, &c->refused, next);
	cond_signal(&c->work);
}

int commit_delete(struct drain *d, uint64_t ino)
{
	struct commit_op *op = calloc(1, sizeof(*op));

	if (!op)
		return -ENOMEM;
	op->kind = COMMIT_DELETE;
	op->ino = ino;
	op_add(d, op);
	return 0;
}

int commit_clone(struct drain *d, struct kv_batch *b, uint64_t from,
		 uint64_t to)
{
	struct commit_op op = { .kind = COMMIT_CLONE,
				.ino = to,
				.from = from,
				.batch = b,
				.waited = true };
	struct committer *c = d->committer;

	op_add(d, &op);
	lock_take(&c->lock);
	while (!op.done)
		cond_wait(&c->done, &c->lock);
	lock_give(&c->lock);
	return op.result;
}

void commit_abandon(struct drain *d, struct image *i, uint64_t size_bytes)
{
	struct commit_op *op = calloc(1, sizeof(*op));

	if (!op) { /* the next start removes it */
		image_put(d->images, i);
		return;
	}
	op->kind = COMMIT_ABANDON;
	op->image = i;
	op->size_bytes = size_bytes;
	op_add(d, op);
}
