/*
 * names_dir.c - every change of a name in a directory. Who
 * changes a name looks it up under names.changing first, because the commit of
 * a segment comes by an ioctl, past the kernel's locks.
 */
#include "store/names/names_private.h"

#include <errno.h>
#include <linux/fs.h>
#include <string.h>

#include "store/base/scope.h"
#include "store/db/kv.h"

#define LINKS_MAX 65000

static void delete_entry(struct kv_batch *b, uint64_t parent, const char *name)
{
	record_delete(b, key_dirent(parent, name_hash(name), name));
}

/* A directory after a name in it changed: times, and its subdirectories. */
static void touch(struct names_change *c, struct inode *dir, int subdirs)
{
	struct attr *a = names_changed_attr(c, dir);

	a->mtime_ns = a->ctime_ns = wall_ns();
	a->nlink += (uint32_t)subdirs;
}

/* A directory that was removed takes no new names. */
static int dir_get(struct names *nm, uint64_t ino, struct inode **ret_dir)
{
	int rc = inode_get(nm->inodes, ino, ret_dir);

	return rc == 0 && !inode_has_name(*ret_dir) ? -ENOENT : rc;
}

/* 0: the directory has no such name. -EEXIST: it has. */
static int look_free(struct names *nm, uint64_t parent, const char *name)
{
	struct dirent_rec d;
	int rc = names_get_entry(nm, parent, name, &d);

	return rc == -ENOENT ? 0 : rc < 0 ? rc : -EEXIST;
}

/* What a new inode begins with; a->target is the caller's. */
static int new_attr(const struct names_new *n, struct inode *dir,
		    const char *name, struct attr *a)
{
	*a = (struct attr){ .mode = n->mode, .uid = n->uid, .gid = n->gid };
	a->rdev = n->rdev;
	a->nlink = S_ISDIR(n->mode) ? 2 : 1;
	a->atime_ns = a->mtime_ns = a->ctime_ns = wall_ns();
	a->parent = dir->ino;
	strcpy(a->name, name);
	{
		HOLD(&dir->lock);
		if (dir->attr.mode & S_ISGID) {
			a->gid = dir->attr.gid;
			if (S_ISDIR(a->mode))
				a->mode |= S_ISGID;
		}
	}
	if (n->target)
		a->target = strdup(n->target);
	return n->target && !a->target ? -ENOMEM : 0;
}

static int create_write(struct names *nm, struct inode *dir, struct inode *in,
			const struct attr *a, const struct names_new *n)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	struct names_change c = { .count = 0 };
	int rc;

	HOLD(&nm->changing);
	rc = look_free(nm, dir->ino, a->name);
	if (rc == 0 && !inode_has_name(dir))
		rc = -ENOENT;
	if (rc < 0)
		return rc;
	names_put_entry(b, a->parent, a->name, in->ino, a->mode);
	attr_save(b, key_ino('A', in->ino), a);
	if (S_ISREG(a->mode)) {
		record_mark(b, key_ino('U', in->ino));
		meta_add(b, META_FILES, 1);
		if (n->writer)
			names_put_writer(b, in->ino, n->writer);
	}
	touch(&c, dir, S_ISDIR(a->mode) ? 1 : 0);
	return names_write(nm, b, &c);
}

/* It was never there: what prepare() gave it goes. */
static void unprepare(struct names *nm, struct inode *in)
{
	{
		HOLD(&in->lock);
		in->attr.nlink = 0;
	}
	nm->hooks.unlinked(nm->hooks.arg, in);
}

/* In a directory that has no such name, as far as that is known. */
static int create_in(struct names *nm, struct inode *dir, const char *name,
		     const struct names_new *n, struct inode **ret_inode)
{
	struct inode *in = NULL;
	struct attr a;
	int rc = new_attr(n, dir, name, &a);

	if (rc == 0)
		rc = inode_new(nm->inodes, &a, &in);
	if (rc < 0) {
		attr_release(&a);
		return rc;
	}
	if (S_ISREG(a.mode))
		rc = nm->hooks.prepare(nm->hooks.arg, in, n);
	if (rc == 0) {
		rc = create_write(nm, dir, in, &a, n);
		if (rc < 0 && S_ISREG(a.mode))
			unprepare(nm, in);
	}
	if (rc == 0)
		*ret_inode = in;
	else
		inode_put(nm->inodes, in, 1);
	return rc;
}

int names_create(struct names *nm, uint64_t parent, const char *name,
		 const struct names_new *n, struct inode **ret_inode)
{
	struct inode *dir = NULL;
	int rc = look_free(nm, parent, name);

	if (rc == 0)
		rc = kv_room(nm->kv);
	if (rc == 0)
		rc = dir_get(nm, parent, &dir);
	if (rc == 0)
		rc = create_in(nm, dir, name, n, ret_inode);
	inode_put(nm->inodes, dir, 1);
	return rc;
}

int names_link(struct names *nm, struct inode *in, uint64_t parent,
	       const char *name)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	struct names_change c = { .count = 0 };
	struct inode *dir = NULL;
	struct attr *a;
	int rc;

	HOLD(&nm->changing);
	rc = look_free(nm, parent, name);
	if (rc == 0)
		rc = kv_room(nm->kv);
	if (rc < 0)
		return rc;
	a = names_changed_attr(&c, in);
	rc = dir_get(nm, parent, &dir);
	if (rc == 0 && a->nlink == 0)
		rc = -ENOENT;
	if (rc == 0 && a->nlink >= LINKS_MAX)
		rc = -EMLINK;
	if (rc == 0) {
		a->nlink++;
		a->ctime_ns = wall_ns();
		names_put_entry(b, parent, name, in->ino, a->mode);
		record_mark(b, key_link(in->ino, parent, name));
		touch(&c, dir, 0);
		rc = names_write(nm, b, &c);
	}
	inode_put(nm->inodes, dir, 1);
	return rc;
}

static int first_link(void *arg, uint64_t parent, const char *name)
{
	struct attr *a = arg;

	a->parent = parent;
	strcpy(a->name, name);
	return 1;
}

/*
 * Into b: the inode loses the name (parent, name), whose entry the caller
 * removes or replaces. With nlink 0 it is an orphan that the next start
 * deletes, if nobody does before.
 */
static int drop_name(struct names *nm, struct kv_batch *b,
		     struct names_change *c, struct inode *in, uint64_t parent,
		     const char *name)
{
	struct attr *a = names_changed_attr(c, in);
	bool first = a->parent == parent && strcmp(a->name, name) == 0;
	int rc;

	if (S_ISDIR(a->mode) || a->nlink <= 1) {
		a->nlink = 0;
		a->parent = 0;
		a->name[0] = 0;
		record_mark(b, key_ino('O', in->ino));
		if (S_ISREG(a->mode))
			meta_add(b, META_FILES, -1);
		if (!first && !S_ISDIR(a->mode))
			record_delete(b, key_link(in->ino, parent, name));
	} else {
		a->nlink--;
		if (first) { /* another name becomes the first one */
			rc = names_each_link(nm, in->ino, first_link, a);
			if (rc <= 0)
				return rc < 0 ? rc : -EIO;
			record_delete(b, key_link(in->ino, a->parent, a->name));
		} else {
			record_delete(b, key_link(in->ino, parent, name));
		}
	}
	a->ctime_ns = wall_ns();
	return 0;
}

static int dir_is_empty(struct names *nm, uint64_t dir)
{
	int rc = records_any(nm->kv, key_ino('E', dir));

	return rc == 1 ? -ENOTEMPTY : rc;
}

static int remove_name(struct names *nm, uint64_t parent, const char *name,
		       bool dir, struct inode **ret_inode)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	struct inode *in = NULL, *parent_dir = NULL;
	struct names_change c = { .count = 0 };
	int rc;

	HOLD(&nm->changing);
	rc = names_lookup(nm, parent, name, &in);
	if (rc < 0)
		return rc;
	rc = dir_get(nm, parent, &parent_dir);
	if (rc == 0 && S_ISDIR(inode_attr(in).mode) != dir)
		rc = dir ? -ENOTDIR : -EISDIR;
	if (rc == 0 && dir)
		rc = dir_is_empty(nm, in->ino);
	if (rc == 0)
		rc = drop_name(nm, b, &c, in, parent, name);
	if (rc == 0) {
		delete_entry(b, parent, name);
		touch(&c, parent_dir, dir ? -1 : 0);
		rc = names_write(nm, b, &c);
	}
	inode_put(nm->inodes, parent_dir, 1);
	if (rc < 0) {
		inode_put(nm->inodes, in, 1);
		return rc;
	}
	*ret_inode = in;
	return 0;
}

int names_unlink(struct names *nm, uint64_t parent, const char *name,
		 struct inode **ret_inode)
{
	return remove_name(nm, parent, name, false, ret_inode);
}

int names_rmdir(struct names *nm, uint64_t parent, const char *name,
		struct inode **ret_inode)
{
	return remove_name(nm, parent, name, true, ret_inode);
}

/* Into b: what was `name` of `in` in `from` is new_name in `to` now. */
static void move_name(struct kv_batch *b, struct names_change *c,
		      struct inode *in, const struct inode *from,
		      const char *name, const struct inode *to,
		      const char *new_name)
{
	struct attr *a = names_changed_attr(c, in);

	if (a->parent == from->ino && strcmp(a->name, name) == 0) {
		a->parent = to->ino;
		strcpy(a->name, new_name);
	} else {
		record_delete(b, key_link(in->ino, from->ino, name));
		record_mark(b, key_link(in->ino, to->ino, new_name));
	}
	a->ctime_ns = wall_ns();
	names_put_entry(b, to->ino, new_name, in->ino, a->mode);
}

struct rename_state {
	struct inode *in, *old; /* references; old: what is replaced, or NULL */
	struct inode *from, *to; /* references: the directories */
	const char *name, *new_name;
	unsigned flags;
	bool keeps;
};

static int rename_check(struct names *nm, const struct rename_state *r)
{
	bool dir = S_ISDIR(inode_attr(r->in).mode);
	bool old_dir;

	if (!r->old)
		return (r->flags & RENAME_EXCHANGE) ? -ENOENT : 0;
	if (r->flags & RENAME_NOREPLACE)
		return -EEXIST;
	if (r->flags & RENAME_EXCHANGE)
		return 0;
	old_dir = S_ISDIR(inode_attr(r->old).mode);
	if (dir && !old_dir)
		return -ENOTDIR;
	if (!dir && old_dir)
		return -EISDIR;
	return old_dir ? dir_is_empty(nm, r->old->ino) : 0;
}

static int rename_write(struct names *nm, const struct rename_state *r)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	struct names_change c = { .count = 0 };
	bool exchange = (r->flags & RENAME_EXCHANGE) != 0;
	int dirs = S_ISDIR(inode_attr(r->in).mode);
	int old_dirs = r->old && S_ISDIR(inode_attr(r->old).mode);
	int rc = 0;

	if (r->old && !exchange)
		rc = drop_name(nm, b, &c, r->old, r->to->ino, r->new_name);
	if (rc < 0)
		return rc;
	if (!exchange)
		delete_entry(b, r->from->ino, r->name);
	move_name(b, &c, r->in, r->from, r->name, r->to, r->new_name);
	if (exchange)
		move_name(b, &c, r->old, r->to, r->new_name, r->from, r->name);
	touch(&c, r->from, (exchange ? old_dirs : 0) - dirs);
	touch(&c, r->to, dirs - old_dirs);
	return names_write_keeping(nm, b, &c, r->keeps ? r->old : NULL, r->in);
}

int names_rename(struct names *nm, uint64_t parent, const char *name,
		 uint64_t new_parent, const char *new_name, unsigned flags,
		 bool keeps, struct inode **ret_replaced)
{
	struct rename_state r = { .name = name,
				  .new_name = new_name,
				  .flags = flags,
				  .keeps = keeps };
	int rc;

	*ret_replaced = NULL;
	HOLD(&nm->changing);
	rc = names_lookup(nm, parent, name, &r.in);
	if (rc == 0)
		rc = names_lookup(nm, new_parent, new_name, &r.old);
	if (rc == -ENOENT && r.in)
		rc = 0;
	if (rc == 0)
		rc = dir_get(nm, parent, &r.from);
	if (rc == 0)
		rc = dir_get(nm, new_parent, &r.to);
	if (rc == 0 && r.in != r.old) { /* two names of one file stay */
		rc = rename_check(nm, &r);
		if (rc == 0)
			rc = rename_write(nm, &r);
		if (rc == 0 && !(flags & RENAME_EXCHANGE))
			*ret_replaced = TAKE(r.old);
	}
	inode_put(nm->inodes, r.in, 1);
	inode_put(nm->inodes, r.old, 1);
	inode_put(nm->inodes, r.from, 1);
	inode_put(nm->inodes, r.to, 1);
	return rc;
}
