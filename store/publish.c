/*
 * publish.c - whether a rename waits is decided in two steps: does anybody
 * count on it (wants_durable()), and if nobody does, is it safe without
 * (is_in_order(), keeps_old())? What is asked may change before the name does;
 * then somebody else changed the file in the same moment, and the committer
 * keeps what is replaced only for a file that has no content of its own.
 */
#include "store/publish.h"

#include <errno.h>
#include <linux/fs.h>

#include "store/base/scope.h"
#include "store/step/tracker.h"

/*
 * Each chunk of what is kept gets one more reference in the rename's batch, and
 * nobody else is committed meanwhile: with more than this the bytes are waited
 * for.
 */
#define KEEPS_BYTES_MAX (UINT64_C(8) << 30)

int publish(struct store *st, struct inode *in)
{
	uint32_t mode = inode_attr(in).mode;

	if (S_ISDIR(mode))
		return drain_sync_tree(st->drain, in->ino);
	return S_ISREG(mode) ? drain_publish(st->drain, in) : 0;
}

static bool wants_durable(const struct store *st, struct inode *in,
			  const char *new_name)
{
	if (st->options.publish != PUBLISH_STEP)
		return st->options.publish == PUBLISH_WAIT;
	if (tracker_publishes(new_name))
		return true;
	HOLD(&in->lock);
	/* What was not written since it is known may have been synced. */
	return S_ISDIR(in->attr.mode) ||
	       (S_ISREG(in->attr.mode) && !(in->file && in->file->unsynced));
}

/* Is there nothing of it but what is durable, or one version in its place? */
static bool is_in_order(struct store *st, struct inode *in)
{
	const struct file *f;

	HOLD(&in->lock);
	f = in->file;
	return !f || !file_is_dirty(f) ||
	       (!f->content && in->attr.nlink == 1 &&
		drain_is_in_place(st->drain, f));
}

static bool is_dirty(struct inode *in)
{
	HOLD(&in->lock);
	return in->file && file_is_dirty(in->file);
}

/* Nothing of it was ever durable, so that its new name has nothing old. */
static bool is_new(struct inode *in)
{
	HOLD(&in->lock);
	return in->file && in->file->content_loaded && !in->file->content;
}

/*
 * May what is committed of `old` be the file's after a power cut? Nobody may
 * read it who could not before. And what was closed of it, and is not durable
 * yet, would lose its place.
 */
static bool keeps_old(struct store *st, struct inode *in, struct inode *old)
{
	struct attr a = inode_attr(in), b = inode_attr(old);

	if (!S_ISREG(b.mode) || a.mode != b.mode || a.uid != b.uid ||
	    a.gid != b.gid || inode_load_file(st->inodes, old) < 0)
		return false;
	HOLD(&old->lock);
	if (old->file->content &&
	    old->file->content->c.size_bytes > KEEPS_BYTES_MAX)
		return false;
	return !drain_has_closed(st->drain, old->file);
}

/* Must the bytes be durable before the name is changed? old: NULL, if none. */
static bool must_wait(struct store *st, struct publish_rename *r,
		      struct inode *in, struct inode *old)
{
	if (r->waits)
		return true;
	if (!S_ISREG(inode_attr(in).mode))
		return old != NULL;
	if (!is_dirty(in))
		return false;
	/* It had the older versions under its old name alone. */
	if (!old)
		return st->options.publish != PUBLISH_ASYNC &&
		       !(is_new(in) && is_in_order(st, in));
	r->keeps = is_in_order(st, in) && keeps_old(st, in, old);
	return !r->keeps;
}

int publish_before(struct store *st, struct publish_rename *r)
{
	struct inode *in = NULL, *old = NULL;
	bool exchange = (r->flags & RENAME_EXCHANGE) != 0;
	int rc;

	r->waits = r->keeps = false;
	rc = names_lookup(st->names, r->parent, r->name, &in);
	if (rc < 0)
		return rc;
	rc = names_lookup(st->names, r->new_parent, r->new_name, &old);
	if (rc == -ENOENT && !exchange)
		rc = 0;
	r->waits = wants_durable(st, in, r->new_name) ||
		   (exchange && st->options.publish != PUBLISH_ASYNC);
	if (rc == 0 && (exchange || must_wait(st, r, in, old)))
		rc = publish(st, in);
	if (rc == 0 && exchange)
		rc = publish(st, old);
	inode_put(st->inodes, in, 1);
	inode_put(st->inodes, old, 1);
	return rc;
}

static int rename_now(struct store *st, const struct publish_rename *r,
		      struct inode **ret_replaced)
{
	return names_rename(st->names, r->parent, r->name, r->new_parent,
			    r->new_name, r->flags, r->keeps, ret_replaced);
}

int publish_name(struct store *st, struct publish_rename *r,
		 struct inode **ret_replaced)
{
	struct inode *in;
	int rc = rename_now(st, r, ret_replaced);

	if (rc != -EAGAIN || !r->keeps)
		return rc;
	/* Somebody renamed it in this moment: it keeps that one's. */
	r->keeps = false;
	rc = names_lookup(st->names, r->parent, r->name, &in);
	if (rc < 0)
		return rc;
	rc = publish(st, in);
	inode_put(st->inodes, in, 1);
	return rc < 0 ? rc : rename_now(st, r, ret_replaced);
}

int publish_after(struct store *st, const struct publish_rename *r)
{
	return r->waits ? kv_sync(st->kv) : 0;
}
