/* ops_name.c - operations on names and directories; rules in fs.h. */
#include <errno.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>

#include "fuse/fs.h"
#include "fuse/waiting.h"
#include "store/base/scope.h"
#include "store/file/file.h"
#include "store/guard/guard.h"
#include "store/names/names.h"
#include "store/publish.h"
#include "store/shared/shared.h"

/* Reply with an entry; consumes one reference, which becomes a look-up. */
static void reply_entry(fuse_req_t req, struct inode *in)
{
	struct store *st = store_of(req);
	struct fuse_entry_param e;
	int rc = fs_entry(st, in, &e);

	if (rc < 0) {
		inode_put(st->inodes, in, 1);
		fuse_reply_err(req, -rc);
		return;
	}
	inode_remember(st->inodes, in);
	if (fuse_reply_entry(req, &e) < 0)
		fs_forget(st, in->ino, 1);
}

/*
 * "." is an inode by its number, and ".." where it lies: whoever has a handle
 * of it (name_to_handle_at(2), NFS) comes to it so when the kernel has
 * forgotten it. Nothing else looks these names up.
 */
static int look_up_by_number(fuse_req_t req, fuse_ino_t ino, bool parent,
			     struct inode **ret)
{
	SCOPED(fs_put) struct fs_inode i = { 0 };
	int rc = fs_get(req, ino, &i);
	struct attr a;

	if (rc < 0)
		return rc;
	a = inode_attr(i.in);
	if (!parent && (a.nlink > 0 || ino == ROOT_INO)) {
		*ret = TAKE(i.in);
		return 0;
	}
	if (ino == ROOT_INO)
		a.parent = ROOT_INO;
	if (!parent || !S_ISDIR(a.mode) || a.parent == 0)
		return -ESTALE;
	return inode_get(i.st->inodes, a.parent, ret);
}

static int look_up(fuse_req_t req, fuse_ino_t parent, const char *name,
		   struct inode **ret)
{
	struct store *st = store_of(req);
	int rc;

	if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
		return look_up_by_number(req, parent, name[1] != 0, ret);
	rc = names_lookup(st->names, parent, name, ret);
	if (!fs_renumber(req, rc == 0 ? *ret : NULL))
		return rc;
	inode_put(st->inodes, *ret, 1);
	return names_lookup(st->names, parent, name, ret);
}

void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param none = { .entry_timeout = FS_TIMEOUT_S };
	struct store *st = store_of(req);
	struct inode *in = NULL;
	int rc = look_up(req, parent, name, &in);

	if (rc == -ENOENT)
		fuse_reply_entry(req, &none); /* remembered as absent */
	else if (rc < 0)
		fuse_reply_err(req, -rc);
	else
		reply_entry(req, in);
	names_tell_moved(st->names);
}

void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup)
{
	if (ino != ROOT_INO)
		fs_forget(store_of(req), ino, nlookup);
	fuse_reply_none(req);
}

void op_forget_multi(fuse_req_t req, size_t count,
		     struct fuse_forget_data *forgets)
{
	for (size_t i = 0; i < count; i++)
		if (forgets[i].ino != ROOT_INO)
			fs_forget(store_of(req), forgets[i].ino,
				  forgets[i].nlookup);
	fuse_reply_none(req);
}

static struct names_new new_of(fuse_req_t req, mode_t mode)
{
	const struct fuse_ctx *c = fuse_req_ctx(req);

	return (struct names_new){ .mode = mode, .uid = c->uid, .gid = c->gid };
}

/* Replies; 0: it is there. */
static int make(fuse_req_t req, fuse_ino_t parent, const char *name,
		const struct names_new *n)
{
	struct store *st = store_of(req);
	bool reg = S_ISREG(n->mode);
	struct inode *in;
	int rc;

	rc = names_create(st->names, parent, name, n, &in);
	if (rc == 0 && reg) { /* nobody will close it */
		file_created(in);
		(void)drain_closed(st->drain, in);
	}
	if (rc < 0)
		fuse_reply_err(req, -rc);
	else
		reply_entry(req, in);
	return rc;
}

void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
	      dev_t rdev)
{
	struct names_new n = new_of(req, mode);
	struct writer w;

	n.rdev = rdev;
	if (S_ISREG(mode)) {
		fs_writer(req, name, &w);
		n.writer = &w;
	}
	(void)make(req, parent, name, &n);
}

void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	struct names_new n = new_of(req, S_IFDIR | mode);

	(void)make(req, parent, name, &n);
}

void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent,
		const char *name)
{
	struct names_new n = new_of(req, S_IFLNK | 0777);
	struct store *st = store_of(req);
	bool looked;
	int rc = guard_symlink(st->guard, target, parent, name, &looked);

	if (rc < 0) {
		fuse_reply_err(req, -rc);
		return;
	}
	n.target = target;
	rc = make(req, parent, name, &n);
	if (rc == 0)
		guard_named(st->guard, parent, name, looked);
}

/*
 * The new name is durable with the next sync of anything, and must not lead to
 * what the file was before its last close. Who snapshots a folder with links
 * makes no half of a file durable that is being written.
 */
static int do_link(const struct fs_inode *i, fuse_ino_t parent,
		   const char *name, bool *ret_looked)
{
	int rc = guard_name(i->st->guard, i->in->ino, parent, name, ret_looked);
	bool wait = i->st->options.publish != PUBLISH_ASYNC;

	if (rc == 0 && wait && S_ISREG(inode_attr(i->in).mode))
		rc = drain_publish_closed(i->st->drain, i->in);
	if (rc == 0)
		rc = names_link(i->st->names, i->in, parent, name);
	if (rc == 0 && wait)
		rc = kv_sync(i->st->kv);
	return rc;
}

void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent,
	     const char *name)
{
	SCOPED(fs_put) struct fs_inode i = { 0 };
	struct waiting w;
	bool looked;
	int rc = fs_get(req, ino, &i);

	waiting_begin(&w, req);
	if (rc == 0)
		rc = do_link(&i, parent, name, &looked);
	waiting_end(&w);
	if (rc < 0) {
		fuse_reply_err(req, -rc);
		return;
	}
	guard_named(i.st->guard, parent, name, looked);
	reply_entry(req, TAKE(i.in));
}

/* The name of in is gone, unless rc is an error; takes the reference. */
static void reply_removed(fuse_req_t req, int rc, struct inode *in)
{
	struct store *st = store_of(req);

	if (rc == 0) {
		file_unlinked(&st->files, in);
		inode_put(st->inodes, in, 1);
	}
	fuse_reply_err(req, -rc);
}

void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct inode *in = NULL;
	int rc = names_unlink(store_of(req)->names, parent, name, &in);

	reply_removed(req, rc, in);
}

void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct inode *in = NULL;
	int rc = names_rmdir(store_of(req)->names, parent, name, &in);

	reply_removed(req, rc, in);
}

static int do_rename(struct store *st, struct publish_rename *r)
{
	struct inode *replaced;
	bool looked[2];
	int rc;

	rc = guard_rename(st->guard, r->parent, r->name, r->new_parent,
			  r->new_name, &looked[0]);
	if (rc == 0 && (r->flags & RENAME_EXCHANGE))
		rc = guard_rename(st->guard, r->new_parent, r->new_name,
				  r->parent, r->name, &looked[1]);
	if (rc == 0)
		rc = publish_before(st, r);
	if (rc == 0)
		rc = publish_name(st, r, &replaced);
	if (rc < 0)
		return rc;
	if (replaced) {
		file_unlinked(&st->files, replaced);
		inode_put(st->inodes, replaced, 1);
	}
	guard_named(st->guard, r->new_parent, r->new_name, looked[0]);
	if (r->flags & RENAME_EXCHANGE)
		guard_named(st->guard, r->parent, r->name, looked[1]);
	rc = publish_after(st, r);
	if (rc == 0)
		backup_wanted(st);
	return rc;
}

void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name,
	       fuse_ino_t new_parent, const char *new_name, unsigned flags)
{
	struct publish_rename r = { .parent = parent,
				    .name = name,
				    .new_parent = new_parent,
				    .new_name = new_name,
				    .flags = flags };
	struct waiting w;
	int rc;

	if (flags & ~(unsigned)(RENAME_NOREPLACE | RENAME_EXCHANGE)) {
		fuse_reply_err(req, EINVAL);
		return;
	}
	waiting_begin(&w, req);
	rc = do_rename(store_of(req), &r);
	waiting_end(&w);
	fuse_reply_err(req, -rc);
}

/*
 * --- reading directories: the cookie is all the state there is, and so there
 * is nothing to do when one is opened ---
 */

#define COOKIE_DOT 1
#define COOKIE_DOTDOT 2

struct listing {
	fuse_req_t req;
	bool plus;
	char *buf;
	size_t size, used;
	int rc; /* an error that ends it, when nothing was listed yet */
};

/* As much of e as the kernel wants; false: there is no room left. */
static bool listing_put(struct listing *l, const char *name,
			const struct fuse_entry_param *e, uint64_t cookie)
{
	size_t left = l->size - l->used;
	char *to = l->buf + l->used;
	size_t n;

	if (l->plus)
		n = fuse_add_direntry_plus(l->req, to, left, name, e,
					   (off_t)cookie);
	else
		n = fuse_add_direntry(l->req, to, left, name, &e->attr,
				      (off_t)cookie);
	if (n > left)
		return false;
	l->used += n;
	return true;
}

/* Without attributes: of the dots the kernel wants none, in any listing. */
static bool listing_put_bare(struct listing *l, const char *name, uint64_t ino,
			     uint32_t type, uint64_t cookie)
{
	struct fuse_entry_param e = { .attr = { .st_ino = ino,
						.st_mode = type } };

	return listing_put(l, name, &e, cookie);
}

/* With attributes; each entry is a look-up of the kernel's. */
static bool listing_put_plus(struct listing *l, const char *name, uint64_t ino,
			     uint64_t cookie)
{
	SCOPED(fs_put) struct fs_inode i = { 0 };
	struct fuse_entry_param e;

	l->rc = fs_get(l->req, ino, &i);
	if (l->rc == 0)
		l->rc = fs_entry(i.st, i.in, &e);
	if (l->rc == 0 && e.attr.st_nlink == 0)
		l->rc = -ENOENT;
	if (l->rc == -ENOENT || l->rc == -ESTALE) {
		l->rc = 0; /* deleted since the walk began: the next one */
		return true;
	}
	if (l->rc < 0 || !listing_put(l, name, &e, cookie))
		return false;
	inode_remember(i.st->inodes, TAKE(i.in));
	return true;
}

static int listing_add(void *arg, const char *name,
		       const struct dirent_rec *entry, uint64_t cookie)
{
	struct listing *l = arg;
	bool ok = l->plus ? listing_put_plus(l, name, entry->ino, cookie)
			  : listing_put_bare(l, name, entry->ino, entry->type,
					     cookie);

	return ok ? 0 : 1;
}

static int list(struct listing *l, fuse_ino_t ino, off_t off)
{
	SCOPED(fs_put) struct fs_inode i = { 0 };
	int rc = fs_get(l->req, ino, &i);
	uint64_t parent;

	if (rc < 0)
		return rc;
	parent = inode_attr(i.in).parent;
	if (off < COOKIE_DOT &&
	    !listing_put_bare(l, ".", ino, S_IFDIR, COOKIE_DOT))
		return 0;
	if (off < COOKIE_DOTDOT &&
	    !listing_put_bare(l, "..", parent ? parent : ROOT_INO, S_IFDIR,
			      COOKIE_DOTDOT))
		return 0;
	rc = names_list(i.st->names, ino,
			off <= COOKIE_DOTDOT ? COOKIE_DOTDOT : (uint64_t)off,
			listing_add, l);
	if (rc < 0)
		return rc;
	return l->used == 0 ? l->rc : 0;
}

static void read_directory(fuse_req_t req, fuse_ino_t ino, size_t size,
			   off_t off, bool plus)
{
	struct listing l = { .req = req, .plus = plus, .size = size };
	int rc;

	l.buf = malloc(size);
	rc = l.buf ? list(&l, ino, off) : -ENOMEM;
	if (rc < 0 && l.used == 0)
		fuse_reply_err(req, -rc);
	else
		fuse_reply_buf(req, l.buf, l.used);
	free(l.buf);
}

void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		struct fuse_file_info *fi)
{
	(void)fi;
	read_directory(req, ino, size, off, false);
}

void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		    struct fuse_file_info *fi)
{
	(void)fi;
	read_directory(req, ino, size, off, true);
}

void op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync,
		 struct fuse_file_info *fi)
{
	struct waiting w;
	int rc;

	(void)datasync;
	(void)fi;
	waiting_begin(&w, req);
	rc = drain_sync_folder(store_of(req)->drain, ino);
	waiting_end(&w);
	fuse_reply_err(req, -rc);
}
