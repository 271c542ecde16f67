/*
 * segment_commit.c - a full segment becomes a file, without a copy: its stage
 * is that of a new inode, or takes the place of what has the name.
 *
 * No kernel lock of the directory is held: a name that came to mean another
 * inode meanwhile is looked up again.
 */
#include <errno.h>
#include <string.h>

#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/drain/drain.h"
#include "store/file/file.h"
#include "store/file/segment_private.h"
#include "store/names/names.h"

/* A name may be given to another inode under us, but not for ever. */
#define COMMIT_TRIES_MAX 16

static bool is_name(const char *name)
{
	return name[0] != 0 && strchr(name, '/') == NULL &&
	       strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

/* As any write does; the mode's bits go by a write of who is not root. */
static int drop_privs(struct files *fs, struct inode *in, const struct attr *a,
		      bool root)
{
	struct attr to = { .mode = a->mode & ~(uint32_t)S_ISUID };
	int rc = names_drop_caps(fs->names, in);

	if (rc < 0 || root)
		return rc;
	if (to.mode & S_IXGRP)
		to.mode &= ~(uint32_t)S_ISGID;
	return to.mode == a->mode ? 0
				  : names_setattr(fs->names, in, SET_MODE, &to);
}

static int put(struct files *fs, const struct segment_commit *c,
	       struct inode *in, struct stage *stage)
{
	int rc = file_replace(fs, in, stage);

	names_tell_moved(fs->names);
	if (rc < 0)
		return rc;
	/* The file is there: an error would say that it is not. */
	if (c->writer)
		(void)names_set_writer(fs->names, in, c->writer);
	if (inode_attr(in).nlink == 0) /* by who came right after us */
		file_unlinked(fs, in);
	return 0;
}

/* Replace what has the name. -ESTALE: it means another inode now. */
static int replace(struct files *fs, const struct segment_commit *c,
		   struct inode *in, struct stage *stage)
{
	struct attr a = inode_attr(in);
	int rc;

	if (S_ISDIR(a.mode))
		return -EISDIR;
	if (!S_ISREG(a.mode))
		return S_ISLNK(a.mode) ? -ELOOP : -EINVAL;
	if (!c->may(c->arg, &a, 02))
		return -EACCES;
	rc = drop_privs(fs, in, &a, c->uid == 0);
	return rc < 0 ? rc : put(fs, c, in, stage);
}

/* The name means the file, and its bytes are these. */
static int commit_named(struct files *fs, const struct segment_commit *c,
			struct stage *stage, struct segment_committed *ret,
			struct inode **ret_inode)
{
	bool made = false;
	int rc = c->find(c->find_arg, ret_inode, &made);

	if (rc < 0)
		return rc;
	rc = made ? put(fs, c, *ret_inode, stage)
		  : replace(fs, c, *ret_inode, stage);
	ret->replaced = !made;
	/* Without memory for its job it is drained with the next one. */
	if (rc == 0)
		(void)drain_closed(fs->drain, *ret_inode);
	c->ended(c->find_arg, *ret_inode, rc);
	if (rc < 0)
		inode_put(fs->inodes, *ret_inode, 1);
	return rc;
}

static void told(struct files *fs, struct stage *stage, struct inode *in,
		 struct segment_committed *ret)
{
	struct stat sb;

	ret->ino = in->ino;
	if (stage_stat(fs->stages, stage, &sb) == 0)
		ret->mtime_ns = io_ns(&sb.st_mtim);
	inode_put(fs->inodes, in, 1);
}

static int commit_once(struct files *fs, const struct segment_commit *c,
		       struct stage *stage, struct segment_committed *ret)
{
	const struct names_new n = {
		.mode = S_IFREG | (c->mode & 0777),
		.uid = c->uid,
		.gid = c->gid,
		.stage = stage,
		.writer = c->writer,
	};
	struct inode *in;
	int rc;

	if (c->find) {
		rc = commit_named(fs, c, stage, ret, &in);
		if (rc == 0)
			told(fs, stage, in, ret);
		return rc;
	}
	rc = names_lookup(fs->names, c->parent, c->name, &in);
	ret->replaced = rc == 0;
	if (rc == 0) {
		rc = replace(fs, c, in, stage);
		if (rc < 0)
			inode_put(fs->inodes, in, 1);
	} else if (rc == -ENOENT) {
		struct inode *parent;
		struct attr dir;

		rc = inode_get(fs->inodes, c->parent, &parent);
		if (rc < 0)
			return rc;
		dir = inode_attr(parent);
		inode_put(fs->inodes, parent, 1);
		if (!S_ISDIR(dir.mode))
			return -ENOTDIR;
		if (!c->may(c->arg, &dir, 03))
			return -EACCES;
		rc = names_create(fs->names, c->parent, c->name, &n, &in);
		if (rc == 0)
			file_created(in);
	}
	if (rc < 0)
		return rc;
	/* Without memory for its job it is drained with the next one. */
	(void)drain_closed(fs->drain, in);
	told(fs, stage, in, ret);
	return 0;
}

int segment_commit(struct segments *g, const struct segment_commit *c,
		   struct segment_committed *ret)
{
	struct segment *s;
	int rc;

	if (!is_name(c->name))
		return -EINVAL;
	{
		HOLD(&g->lock);
		s = segment_find_locked(g, c->id, c->generation);
		if (!s || !s->filled || !s->mapped || s->committing ||
		    s->size_bytes != c->size_bytes)
			return -ESTALE;
		if (s->uid != c->uid && c->uid != 0)
			return -EPERM;
		s->committing = true;
	}
	/* Then it is not what its client says that it is. */
	if (segment_trim(g, s)) {
		HOLD(&g->lock);
		s->committing = false;
		s->generation = 0;
		cond_broadcast(&g->changed);
		return -ESTALE;
	}
	rc = -ESTALE;
	for (int i = 0; rc == -ESTALE && i < COMMIT_TRIES_MAX; i++) {
		rc = commit_once(g->files, c, s->stage, ret);
		if (rc == -EEXIST) /* another process had the same idea */
			rc = -ESTALE;
		if (rc == -ESTALE) { /* whoever changes the name is done then */
			HOLD(names_changing(g->files->names));
		}
	}
	HOLD(&g->lock);
	s->committing = false;
	cond_broadcast(&g->changed);
	if (rc < 0)
		return rc == -ESTALE ? -EBUSY : rc;
	s->filled = false;
	s->generation = 0;
	return 0;
}
