/*
 * commit_queue.c - what the committer is asked for, besides finished jobs: it
 * is kept here until the committer's thread (commit.c) comes for it.
 */
#include <errno.h>
#include <stdlib.h>

#include "store/base/scope.h"
#include "store/drain/commit_private.h"
#include "store/drain/drain_private.h"

static void op_add(struct drain *d, struct commit_op *op)
{
	HOLD(&d->lock);
	TAILQ_INSERT_TAIL(&d->ops, op, next);
	cond_signal(&d->commit);
}

void commit_retry(struct drain *d)
{
	HOLD(&d->lock);
	if (TAILQ_EMPTY(&d->refused))
		return;
	TAILQ_CONCAT(&d->ops, &d->refused, next);
	cond_signal(&d->commit);
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

/* An op of the caller's stack; its result when it is done. */
static int op_wait(struct drain *d, struct commit_op *op)
{
	op->waited = true;
	op_add(d, op);
	HOLD(&d->lock);
	while (!op->done)
		cond_wait(&d->moved, &d->lock);
	return op->result;
}

int commit_clone(struct drain *d, struct kv_batch *b, uint64_t from,
		 uint64_t to)
{
	struct commit_op op = {
		.kind = COMMIT_CLONE, .ino = to, .from = from, .batch = b
	};

	return op_wait(d, &op);
}

int commit_keep(struct drain *d, struct kv_batch *b, uint64_t from,
		struct inode *in)
{
	struct commit_op op = {
		.kind = COMMIT_KEEP, .ino = in->ino, .from = from, .batch = b
	};

	op.keeper = in;
	return op_wait(d, &op);
}

void commit_wait(struct drain *d)
{
	struct commit_op op = { .kind = COMMIT_NOTHING };

	(void)op_wait(d, &op);
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
