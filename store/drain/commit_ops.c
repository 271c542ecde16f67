/*
 * commit_ops.c - what the committer does besides drain jobs: deleting an inode,
 * copying content to another one, and giving up an image of a job that does
 * not count.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/drain/commit_private.h"
#include "store/drain/drain_private.h"

static int delete_record(void *b, struct kv_slice key, struct kv_slice value)
{
	(void)value;
	kv_delete(b, key.data, key.len);
	return 0;
}

/* Into b and changes: nothing of the inode is left. */
static int delete_one(struct drain *d, struct kv_batch *b,
		      struct ref_changes *changes, uint64_t ino)
{
	static const char kinds[] = "AFDOUW";
	struct content c = { 0 };
	int rc = content_load(d->kv, key_ino('F', ino), &c);

	if (rc == 0) {
		meta_add(b, META_LOGICAL, -(int64_t)c.size_bytes);
		if (c.kind == CONTENT_SMALL)
			meta_add(b, META_PHYSICAL, -(int64_t)c.size_bytes);
		rc = changes_of_content(d, &c, -1, changes);
	}
	content_release(&c);
	if (rc < 0 && rc != -ENOENT)
		return rc;
	for (const char *kind = kinds; *kind; kind++)
		record_delete(b, key_ino(*kind, ino));
	/* Attributes: any number. */
	return records_each(d->kv, key_ino('X', ino), delete_record, b);
}

static int delete_group(struct drain *d, struct commit_op **ops, unsigned n)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	SCOPED(changes_release) struct ref_changes changes = { 0 };
	int rc = 0;

	for (unsigned i = 0; rc == 0 && i < n; i++) {
		bool again = false; /* the start finds some in two ways */

		for (unsigned e = 0; e < i; e++)
			again = again || ops[e]->ino == ops[i]->ino;
		if (!again)
			rc = delete_one(d, b, &changes, ops[i]->ino);
	}
	if (rc == 0)
		rc = changes_apply(d, b, &changes);
	if (rc == 0)
		rc = kv_write(d->kv, b);
	if (rc == 0)
		changes_reclaim(d, &changes);
	return rc;
}

void commit_ops_delete(struct drain *d, struct commit_op **ops, unsigned n)
{
	int rc = delete_group(d, ops, n);

	for (unsigned i = 0; i < n; i++) {
		int one = rc;

		if (rc < 0 && n > 1) /* one of them must not stop the others */
			one = delete_group(d, &ops[i], 1);
		if (one < 0) /* the O record stays for the next start */
			log_error("inode %llu cannot be deleted: %s",
				  (unsigned long long)ops[i]->ino,
				  strerror(-one));
		if (one == -ENOSPC) { /* and so does commit_retry() */
			HOLD(&d->lock);
			TAILQ_INSERT_TAIL(&d->refused, ops[i], next);
		} else {
			free(ops[i]);
		}
	}
}

/* A small file's bytes are its own: a clone has them a second time. */
static int clone_small(struct drain *d, const struct commit_op *op)
{
	SCOPED(scope_free) void *value = NULL;
	size_t len;
	int rc = record_load(d->kv, key_ino('D', op->from), &value, &len);

	if (rc < 0)
		return rc == -ENOENT ? -EIO : rc;
	record_save(op->batch, key_ino('D', op->ino), value, len);
	meta_add(op->batch, META_PHYSICAL, (int64_t)len);
	return 0;
}

/* Write the batch, with c as the content of op->ino too; c is taken over. */
static int write_clone(struct drain *d, const struct commit_op *op,
		       struct content *c, struct content_ref **ret_content)
{
	SCOPED(changes_release) struct ref_changes changes = { 0 };
	int rc = c->kind == CONTENT_SMALL ? clone_small(d, op) : 0;

	if (rc == 0)
		rc = changes_of_content(d, c, 1, &changes);
	if (rc == 0)
		rc = changes_apply(d, op->batch, &changes);
	if (rc < 0)
		return rc;
	content_save(op->batch, key_ino('F', op->ino), c);
	record_delete(op->batch, key_ino('U', op->ino));
	meta_add(op->batch, META_LOGICAL, (int64_t)c->size_bytes);
	/* Before it is written: after that nothing may fail. */
	*ret_content = content_ref_new(c);
	return *ret_content ? kv_write(d->kv, op->batch) : -ENOMEM;
}

static int op_clone(struct drain *d, const struct commit_op *op)
{
	struct content_ref *cloned = NULL;
	struct content c = { 0 };
	int rc = content_load(d->kv, key_ino('F', op->from), &c);

	if (rc == -ENOENT) { /* never committed, so the new one neither */
		record_mark(op->batch, key_ino('U', op->ino));
		return kv_write(d->kv, op->batch);
	}
	if (rc == 0)
		rc = write_clone(d, op, &c, &cloned);
	content_ref_put(cloned); /* it is read when somebody looks */
	content_release(&c);
	return rc;
}

/*
 * No job is between its write and its end while this runs, so the content that
 * the inode has is the one that the database has. What a worker has of it is
 * job_write()'s matter.
 */
static int op_keep(struct drain *d, const struct commit_op *op)
{
	struct file *f = op->keeper->file;
	struct content_ref *kept = NULL;
	struct content c = { 0 };
	bool own, kept_already;
	int rc;

	{
		HOLD(&op->keeper->lock);
		own = f && f->content && f->content->c.generation > 0;
		kept_already = !own && (!f || !f->content_loaded || f->content);
	}
	if (kept_already) /* another one's content: the two are not one */
		return -EAGAIN;
	rc = own ? -ENOENT : content_load(d->kv, key_ino('F', op->from), &c);
	if (rc == -ENOENT) /* there is nothing to keep, or for nobody */
		return kv_write(d->kv, op->batch);
	c.generation = 0;
	if (rc == 0)
		rc = write_clone(d, op, &c, &kept);
	if (rc == 0) {
		HOLD(&op->keeper->lock);
		f->content = TAKE(kept);
	}
	content_ref_put(kept);
	content_release(&c);
	return rc;
}

/*
 * Has anybody else's content ever found its way into this image? Then it has a
 * record, and who read that content may still do so: the reclaimer removes it.
 */
static void op_abandon(struct drain *d, struct image *i, uint64_t size)
{
	uint64_t recorded;
	int rc = u64_load(d->kv, key_ino('I', i->id), &recorded);
	bool own = rc == -ENOENT, opened;

	{
		HOLD(&d->images->lock);
		i->building = own;
		/* Nobody is asked any more who has it, to read or to write. */
		opened = i->opened_by != 0 || d->images->ending;
	}
	if (own && !opened) {
		image_recycle(d->images, i);
		return;
	}
	if (own) /* a mapping keeps what is unlinked, not what is cut */
		(void)image_remove(d->images, i);
	if (rc == 0) {
		SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();

		u64_save(b, key_punch(i->id, 0), size);
		(void)kv_write(d->kv, b); /* lost: gc finds it */
		reclaim_add(d->reclaim, i->id, 0, size);
	}
	image_put(d->images, i);
}

void commit_op_run(struct drain *d, struct commit_op *op)
{
	int rc = 0;

	switch (op->kind) {
	case COMMIT_DELETE:
		commit_ops_delete(d, &op, 1);
		return;
	case COMMIT_CLONE:
		rc = op_clone(d, op);
		break;
	case COMMIT_KEEP:
		rc = op_keep(d, op);
		break;
	case COMMIT_ABANDON:
		op_abandon(d, op->image, op->size_bytes);
		break;
	case COMMIT_NOTHING:
		break;
	}
	if (op->waited) {
		HOLD(&d->lock);
		op->result = rc;
		op->done = true;
		cond_broadcast(&d->moved);
		return;
	}
	free(op);
}
