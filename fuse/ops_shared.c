/*
 * ops_shared.c - the operations of a mount with shared=DIR: the other table of
 * fuse_lowlevel_ops. Rules in fs.h.
 *
 * Names and attributes are DIR's (store/shared/). A file whose number is a
 * local one is opened, read and written as without a shared directory, by the
 * operations of ops_file.c; of any other the handle is a descriptor in DIR.
 * Nothing is remembered by the kernel: others change DIR, too.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fuse/caller.h"
#include "fuse/fs.h"
#include "fuse/loop.h"
#include "fuse/waiting.h"
#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/drain/drain.h"
#include "store/file/file.h"
#include "store/guard/guard.h"
#include "store/shared/shared.h"

#define GROUPS_MAX 65536
#define CREATE_TRIES 16

static struct shared *shared_of(fuse_req_t req)
{
	return fs_of(req)->shared;
}

/* Who asks; his groups are read when they matter. For SCOPED(). */
struct asker {
	struct shared_caller c;
	gid_t *groups;
};

static void asker_end(struct asker *a)
{
	free(a->groups);
}

/* The kernel's pid of a request is the thread's; as /proc has it, or 0. */
static pid_t tid_of(fuse_req_t req)
{
	return caller_in_proc(fs_of(req)->callers, fuse_req_ctx(req)->pid);
}

static int asker_begin(fuse_req_t req, struct asker *a)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	int n;

	*a = (struct asker){
		.c = { .uid = ctx->uid, .gid = ctx->gid, .tid = tid_of(req) }
	};
	if (ctx->uid == 0)
		return 0;
	for (int room = 64; room <= GROUPS_MAX; room = n) {
		gid_t *grown = realloc(a->groups,
				       (size_t)room * sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		a->groups = grown;
		n = fuse_req_getgroups(req, room, grown);
		if (n < 0) { /* they cannot be read: he has the one */
			n = 0;
			break;
		}
		if (n <= room)
			break;
	}
	a->c.groups = a->groups;
	a->c.group_count = (size_t)n;
	return 0;
}

/* Those of a local file cost DIR nothing, and change as it is written. */
static double attr_timeout(fuse_req_t req, uint64_t id)
{
	return shared_is_node(id) || id == ROOT_INO
		       ? fs_of(req)->names_timeout_s
		       : 0;
}

/* The kernel asks anew each time, unless names_timeout= lets it be later. */
static void fill(fuse_req_t req, const struct shared_entry *from,
		 struct fuse_entry_param *e)
{
	*e = (struct fuse_entry_param){ .ino = from->id,
					.generation = 1,
					.attr = from->stat };
	e->entry_timeout = fs_of(req)->names_timeout_s;
	e->attr_timeout = attr_timeout(req, from->id);
}

static void reply_entry(fuse_req_t req, int rc, const struct shared_entry *from)
{
	struct fuse_entry_param e;

	if (rc < 0) {
		fuse_reply_err(req, -rc);
		return;
	}
	fill(req, from, &e);
	if (fuse_reply_entry(req, &e) < 0)
		fs_shared_forget(req, from->id, 1);
}

static void on_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct shared_entry e;
	int rc = shared_lookup(shared_of(req), parent, name, tid_of(req), &e);

	reply_entry(req, rc, &e);
}

static void on_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup)
{
	fs_shared_forget(req, ino, nlookup);
	fuse_reply_none(req);
}

static void on_forget_multi(fuse_req_t req, size_t count,
			    struct fuse_forget_data *forgets)
{
	for (size_t i = 0; i < count; i++)
		fs_shared_forget(req, forgets[i].ino, forgets[i].nlookup);
	fuse_reply_none(req);
}

/* --- new names ------------------------------------------------------------ */

static struct names_new new_of(fuse_req_t req, mode_t mode)
{
	const struct fuse_ctx *c = fuse_req_ctx(req);

	return (struct names_new){
		.mode = mode, .uid = c->uid, .gid = c->gid, .pid = tid_of(req)
	};
}

/* Replies; 0: it is there. */
static int make(fuse_req_t req, fuse_ino_t parent, const char *name,
		const struct names_new *n)
{
	SCOPED(asker_end) struct asker a;
	struct shared_entry e;
	struct waiting w;
	int rc = asker_begin(req, &a);

	waiting_begin(&w, req);
	if (rc == 0)
		rc = shared_make(shared_of(req), &a.c, parent, name, n, &e);
	waiting_end(&w);
	reply_entry(req, rc, &e);
	return rc;
}

/* A regular file that nobody has open: it is closed at once. */
static void make_file(fuse_req_t req, fuse_ino_t parent, const char *name,
		      struct names_new *n)
{
	SCOPED(asker_end) struct asker a;
	struct store *st = store_of(req);
	struct shared_entry e;
	struct inode *in;
	struct writer w;
	struct waiting waiting;
	int fd = -1, backing = 0, rc = asker_begin(req, &a);

	waiting_begin(&waiting, req);
	if (rc == 0 && shared_is_direct(shared_of(req), parent, name)) {
		rc = shared_create_plain(shared_of(req), &a.c, parent, name,
					 n->mode, O_WRONLY, &e, &fd, &backing);
		waiting_end(&waiting);
		if (rc == 0)
			shared_close(shared_of(req), e.id, fd);
		reply_entry(req, rc, &e);
		return;
	}
	fs_writer(req, name, &w);
	n->writer = &w;
	if (rc == 0)
		rc = shared_create(shared_of(req), &a.c, parent, name, n, &e,
				   &in);
	waiting_end(&waiting);
	if (rc == 0) {
		(void)drain_closed(st->drain, in);
		shared_change_end(shared_of(req), in->ino);
		inode_put(st->inodes, in, 1);
	}
	reply_entry(req, rc, &e);
}

static void on_mknod(fuse_req_t req, fuse_ino_t parent, const char *name,
		     mode_t mode, dev_t rdev)
{
	struct names_new n = new_of(req, mode);

	n.rdev = rdev;
	if (S_ISREG(mode))
		make_file(req, parent, name, &n);
	else
		(void)make(req, parent, name, &n);
}

static void on_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name,
		     mode_t mode)
{
	struct names_new n = new_of(req, S_IFDIR | mode);

	(void)make(req, parent, name, &n);
}

static void on_symlink(fuse_req_t req, const char *target, fuse_ino_t parent,
		       const char *name)
{
	struct names_new n = new_of(req, S_IFLNK | 0777);
	struct guard *g = store_of(req)->guard;
	struct waiting w;
	bool looked;
	int rc;

	waiting_begin(&w, req);
	rc = guard_symlink(g, target, parent, name, &looked);
	waiting_end(&w);
	if (rc < 0) {
		fuse_reply_err(req, -rc);
		return;
	}
	n.target = target;
	if (make(req, parent, name, &n) == 0)
		guard_named(g, parent, name, looked);
}

static void on_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent,
		    const char *name)
{
	SCOPED(asker_end) struct asker a;
	struct guard *g = store_of(req)->guard;
	struct shared_entry e;
	struct waiting w;
	bool looked;
	int rc = asker_begin(req, &a);

	waiting_begin(&w, req);
	if (rc == 0)
		rc = guard_name(g, ino, parent, name, &looked);
	if (rc == 0)
		rc = shared_link(shared_of(req), &a.c, ino, parent, name, &e);
	waiting_end(&w);
	if (rc == 0)
		guard_named(g, parent, name, looked);
	reply_entry(req, rc, &e);
}

/* --- names that go, and change -------------------------------------------- */

static void remove_name(fuse_req_t req, fuse_ino_t parent, const char *name,
			bool dir)
{
	SCOPED(asker_end) struct asker a;
	struct waiting w;
	int rc = asker_begin(req, &a);

	waiting_begin(&w, req);
	if (rc == 0)
		rc = shared_unlink(shared_of(req), &a.c, parent, name, dir);
	waiting_end(&w);
	fuse_reply_err(req, -rc);
}

static void on_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	remove_name(req, parent, name, false);
}

static void on_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	remove_name(req, parent, name, true);
}

/* What is about to be renamed, for the guard. */
struct renaming {
	struct guard *g;
	fuse_ino_t parent, new_parent;
	const char *name, *new_name;
	bool exchange, looked[2];
};

static int look_before(void *arg)
{
	struct renaming *r = arg;
	int rc = guard_rename(r->g, r->parent, r->name, r->new_parent,
			      r->new_name, &r->looked[0]);

	if (rc == 0 && r->exchange)
		rc = guard_rename(r->g, r->new_parent, r->new_name, r->parent,
				  r->name, &r->looked[1]);
	return rc;
}

static void look_after(const struct renaming *r)
{
	guard_named(r->g, r->new_parent, r->new_name, r->looked[0]);
	if (r->exchange)
		guard_named(r->g, r->parent, r->name, r->looked[1]);
}

static void on_rename(fuse_req_t req, fuse_ino_t parent, const char *name,
		      fuse_ino_t new_parent, const char *new_name,
		      unsigned flags)
{
	SCOPED(asker_end) struct asker a;
	struct renaming r = { .g = store_of(req)->guard,
			      .parent = parent,
			      .new_parent = new_parent,
			      .name = name,
			      .new_name = new_name,
			      .exchange = (flags & RENAME_EXCHANGE) != 0 };
	const struct shared_look_before look = { look_before, &r };
	struct waiting w;
	int rc = asker_begin(req, &a);

	if (flags & ~(unsigned)(RENAME_NOREPLACE | RENAME_EXCHANGE))
		rc = -EINVAL;
	waiting_begin(&w, req);
	if (rc == 0)
		rc = shared_rename(shared_of(req), &a.c, parent, name,
				   new_parent, new_name, flags, &look);
	if (rc == 0)
		look_after(&r);
	waiting_end(&w);
	fuse_reply_err(req, -rc);
}

/* --- directories ---------------------------------------------------------- */

static int fd_of(const struct fuse_file_info *fi)
{
	return (int)(fi->fh >> 32);
}

/*
 * Opened in DIR when it is listed: who opens the mount point to ask it
 * something waits for nobody.
 */
struct directory {
	pthread_mutex_t lock; /* guards the descriptor */
	int fd; /* -1: not opened yet */
};

static struct directory *directory_of(const struct fuse_file_info *fi)
{
	return (struct directory *)(uintptr_t)fi->fh;
}

static int directory_fd(fuse_req_t req, fuse_ino_t ino,
			const struct fuse_file_info *fi)
{
	struct directory *d = directory_of(fi);
	int rc = 0;

	HOLD(&d->lock);
	if (d->fd < 0)
		rc = shared_opendir(shared_of(req), ino, &d->fd);
	return rc < 0 ? rc : d->fd;
}

static void directory_free(struct directory *d)
{
	if (d->fd >= 0)
		(void)close(d->fd);
	(void)pthread_mutex_destroy(&d->lock);
	free(d);
}

static void on_opendir(fuse_req_t req, fuse_ino_t ino,
		       struct fuse_file_info *fi)
{
	struct directory *d = malloc(sizeof(*d));
	int rc = d ? 0 : -ENOMEM;

	if (rc == 0) {
		d->fd = -1;
		CHECK(pthread_mutex_init(&d->lock, NULL) == 0);
		fi->fh = (uint64_t)(uintptr_t)d;
		if (ino != FUSE_ROOT_ID)
			rc = directory_fd(req, ino, fi);
	}
	if (rc < 0) {
		if (d)
			directory_free(d);
		fuse_reply_err(req, -rc);
		return;
	}
	if (fuse_reply_open(req, fi) < 0)
		directory_free(d);
}

static void on_releasedir(fuse_req_t req, fuse_ino_t ino,
			  struct fuse_file_info *fi)
{
	(void)ino;
	directory_free(directory_of(fi));
	fuse_reply_err(req, 0);
}

struct listing {
	fuse_req_t req;
	fuse_ino_t dir;
	bool plus;
	char *buf;
	size_t size, used;
};

static bool is_dots(const char *name)
{
	return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* false: there is no room left. */
static bool listing_add(struct listing *l, const struct dirent64 *d)
{
	struct fuse_entry_param e = {
		.attr = { .st_ino = d->d_ino,
			  .st_mode = (mode_t)d->d_type << 12 },
	};
	char *to = l->buf + l->used;
	size_t left = l->size - l->used, n;
	struct shared_entry found = { 0 };
	bool looked_up = false;

	if (shared_is_hidden(shared_of(l->req), l->dir, d->d_name))
		return true;
	/* What the kernel must not keep is not looked up: it asks again. */
	if (l->plus && fs_of(l->req)->names_timeout_s > 0 &&
	    !is_dots(d->d_name)) {
		if (shared_lookup(shared_of(l->req), l->dir, d->d_name,
				  SHARED_NOBODY, &found) < 0)
			return true; /* deleted since it was listed */
		fill(l->req, &found, &e);
		looked_up = true;
	}
	if (l->plus)
		n = fuse_add_direntry_plus(l->req, to, left, d->d_name, &e,
					   d->d_off);
	else
		n = fuse_add_direntry(l->req, to, left, d->d_name, &e.attr,
				      d->d_off);
	if (n > left) {
		if (looked_up)
			fs_shared_forget(l->req, found.id, 1);
		return false;
	}
	l->used += n;
	return true;
}

static int list(struct listing *l, int fd, off_t off)
{
	_Alignas(struct dirent64) char names[8192];

	if (lseek(fd, off, SEEK_SET) < 0)
		return -errno;
	for (;;) {
		ssize_t n = syscall(SYS_getdents64, fd, names, sizeof(names));

		if (n <= 0)
			return n < 0 ? -errno : 0;
		for (ssize_t at = 0; at < n;) {
			const struct dirent64 *d =
				(const void *)(names + at);

			if (!listing_add(l, d))
				return 0;
			at += d->d_reclen;
		}
	}
}

static void read_directory(fuse_req_t req, fuse_ino_t ino, size_t size,
			   off_t off, struct fuse_file_info *fi, bool plus)
{
	struct listing l = {
		.req = req, .dir = ino, .plus = plus, .size = size
	};
	int rc;

	l.buf = malloc(size);
	rc = l.buf ? directory_fd(req, ino, fi) : -ENOMEM;
	if (rc >= 0)
		rc = list(&l, rc, off);
	if (rc < 0 && l.used == 0)
		fuse_reply_err(req, -rc);
	else
		fuse_reply_buf(req, l.buf, l.used);
	free(l.buf);
}

static void on_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		       struct fuse_file_info *fi)
{
	read_directory(req, ino, size, off, fi, false);
}

static void on_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size,
			   off_t off, struct fuse_file_info *fi)
{
	read_directory(req, ino, size, off, fi, true);
}

static void on_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync,
			struct fuse_file_info *fi)
{
	int fd = directory_fd(req, ino, fi), rc = fd < 0 ? fd : 0;
	struct waiting w;

	(void)datasync;
	/* What DIR cannot sync of a directory it has made durable already. */
	if (fd >= 0 && fsync(fd) < 0 && errno != EINVAL && errno != ENOSYS)
		rc = -errno;
	waiting_begin(&w, req);
	/* Which files have their names in DIR's: all that were closed here. */
	if (rc == 0)
		rc = drain_sync_closed(store_of(req)->drain);
	waiting_end(&w);
	fuse_reply_err(req, -rc);
}

/* --- files ---------------------------------------------------------------- */

/* It has failed; or it waits for another node's file, and is put off. */
static void reply_failed(fuse_req_t req, int rc)
{
	if (rc == -ERESTART && loop_may_put_off())
		loop_put_off(req);
	else
		fuse_reply_err(req, -rc);
}

/* A handle of DIR's file: its descriptor, and the flags of the open. */
static void fill_handle(fuse_req_t req, struct fuse_file_info *fi, int flags,
			int fd, int backing)
{
	fs_handle_fill(req, fi, flags,
		       &(struct file_opened){ .backing_id = backing });
	fi->fh |= (uint64_t)(unsigned)fd << 32;
}

/* One that is to be appended to, or is direct. */
static void create_plain(fuse_req_t req, fuse_ino_t parent, const char *name,
			 mode_t mode, struct fuse_file_info *fi)
{
	SCOPED(asker_end) struct asker a;
	struct fuse_entry_param e;
	struct shared_entry made;
	struct waiting w;
	int fd = -1, backing = 0, rc = asker_begin(req, &a);

	waiting_begin(&w, req);
	if (rc == 0)
		rc = shared_create_plain(shared_of(req), &a.c, parent, name,
					 mode, fi->flags, &made, &fd, &backing);
	if (rc == -EEXIST && !(fi->flags & O_EXCL)) {
		struct names_new n = new_of(req, S_IFREG | mode);

		rc = shared_create_again(shared_of(req), parent, name,
					 fi->flags, &n);
	}
	waiting_end(&w);
	if (rc < 0) {
		reply_failed(req, rc);
		return;
	}
	fill_handle(req, fi, fi->flags, fd, backing);
	fill(req, &made, &e);
	if (fuse_reply_create(req, &e, fi) < 0) {
		shared_close(shared_of(req), made.id, fd);
		fs_shared_forget(req, made.id, 1);
	}
}

static bool writes(int flags)
{
	return (flags & O_ACCMODE) != O_RDONLY;
}

/* What a create came to, to be told, or to be undone. */
struct created {
	struct shared_entry entry;
	struct inode *in; /* a reference; NULL: the handle is a descriptor */
	int flags;
	struct file_opened opened;
	int fd;
};

/* A local file, of which the caller has a look-up; *c is filled. */
static int open_local(fuse_req_t req, struct created *c, int flags, pid_t pid)
{
	struct store *st = store_of(req);
	const struct file_opener by = { FILE_BY_NAME, pid };
	int rc = file_open_for(&st->files, c->in, flags, &by, &c->opened);

	c->flags = flags;
	if (writes(flags))
		shared_change_end(shared_of(req), c->in->ino);
	return rc;
}

/* The name is there already: open what it means now. */
static int open_found(fuse_req_t req, const struct shared_caller *caller,
		      int flags, const struct names_new *n, struct created *c)
{
	struct shared *s = shared_of(req);
	struct fs_inode i;
	int rc;

	if (shared_is_node(c->entry.id))
		return shared_open_file(s, caller, c->entry.id, flags, n,
					&c->fd, &c->opened.backing_id);
	rc = shared_change_begin(s, c->entry.id, flags, n);
	if (rc == 0)
		rc = fs_get(req, c->entry.id, &i);
	if (rc < 0)
		return rc;
	c->in = i.in;
	c->flags = flags;
	return open_local(req, c, flags, n->pid);
}

/* As open(2) with O_CREAT: make it, or open what is there. */
static int create(fuse_req_t req, fuse_ino_t parent, const char *name,
		  int flags, const struct names_new *n,
		  const struct shared_caller *caller, struct created *c)
{
	struct shared *s = shared_of(req);
	int rc = -ESTALE;

	/* Others make and remove the name, too: some time it is there, or not. */
	for (int tries = 0; tries < CREATE_TRIES && rc == -ESTALE; tries++) {
		*c = (struct created){ .fd = -1 };
		rc = shared_create(s, caller, parent, name, n, &c->entry,
				   &c->in);
		if (rc == 0) /* there is nothing to truncate in it */
			rc = open_local(req, c, flags & ~O_TRUNC, n->pid);
		if (rc == 0 && !writes(flags))
			shared_change_end(s, c->in->ino);
		if (rc == -EEXIST && !(flags & O_EXCL)) {
			rc = shared_lookup(s, parent, name, n->pid, &c->entry);
			if (rc == 0) {
				rc = open_found(req, caller, flags, n, c);
				if (rc < 0)
					fs_shared_forget(req, c->entry.id, 1);
			}
			rc = rc == -ENOENT ? -ESTALE : rc;
		}
		if (rc < 0)
			inode_put(store_of(req)->inodes, TAKE(c->in), 1);
	}
	return rc;
}

static void on_create(fuse_req_t req, fuse_ino_t parent, const char *name,
		      mode_t mode, struct fuse_file_info *fi)
{
	SCOPED(fs_put) struct fs_inode i = { .st = store_of(req) };
	SCOPED(asker_end) struct asker a = { 0 };
	struct names_new n = new_of(req, S_IFREG | mode);
	struct fuse_entry_param e;
	struct created c;
	struct writer writer;
	struct waiting w;
	int rc;

	if ((fi->flags & O_APPEND) ||
	    shared_is_direct(shared_of(req), parent, name)) {
		create_plain(req, parent, name, mode, fi);
		return;
	}
	rc = asker_begin(req, &a);
	waiting_begin(&w, req);
	fs_writer(req, name, &writer);
	n.writer = &writer;
	if (rc == 0)
		rc = create(req, parent, name, fi->flags, &n, &a.c, &c);
	waiting_end(&w);
	if (rc < 0) {
		reply_failed(req, rc);
		names_tell_moved(i.st->names);
		return;
	}
	i.in = c.in;
	if (c.in)
		fs_handle_fill(req, fi, c.flags, &c.opened);
	else
		fill_handle(req, fi, fi->flags, c.fd, c.opened.backing_id);
	fill(req, &c.entry, &e);
	if (fuse_reply_create(req, &e, fi) < 0) {
		if (c.in)
			fs_release(i.st, c.in, c.flags);
		else
			shared_close(shared_of(req), c.entry.id, c.fd);
		fs_shared_forget(req, c.entry.id, 1);
	}
	names_tell_moved(i.st->names);
}

static void open_in_dir(fuse_req_t req, fuse_ino_t ino,
			struct fuse_file_info *fi)
{
	SCOPED(asker_end) struct asker a;
	struct names_new n = new_of(req, S_IFREG);
	int fd = -1, backing = 0, rc = asker_begin(req, &a);
	struct waiting w;

	waiting_begin(&w, req);
	if (rc == 0)
		rc = shared_open_file(shared_of(req), &a.c, ino, fi->flags, &n,
				      &fd, &backing);
	waiting_end(&w);
	if (rc < 0) {
		reply_failed(req, rc);
		return;
	}
	fill_handle(req, fi, fi->flags, fd, backing);
	if (fuse_reply_open(req, fi) < 0)
		shared_close(shared_of(req), ino, fd);
}

static void on_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct names_new n = new_of(req, S_IFREG);
	int flags = fi->flags, rc;
	struct waiting w;

	if (shared_is_node(ino)) {
		open_in_dir(req, ino, fi);
		return;
	}
	waiting_begin(&w, req);
	rc = shared_change_begin(shared_of(req), ino, flags, &n);
	waiting_end(&w);
	if (rc < 0) {
		reply_failed(req, rc);
		return;
	}
	{
		struct shared *s = shared_of(req);

		op_open(req, ino, fi); /* answers: req is gone then */
		if (writes(flags))
			shared_change_end(s, ino);
	}
}

static void on_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		    struct fuse_file_info *fi)
{
	SCOPED(scope_free) char *buf = NULL;
	size_t len = 0;
	int rc;

	if (!shared_is_node(ino)) {
		op_read(req, ino, size, off, fi);
		return;
	}
	buf = malloc(size);
	rc = buf ? io_read(fd_of(fi), buf, size, (uint64_t)off, &len) : -ENOMEM;
	if (rc < 0)
		fuse_reply_err(req, -rc);
	else
		fuse_reply_buf(req, buf, len);
}

static void on_write(fuse_req_t req, fuse_ino_t ino, const char *buf,
		     size_t size, off_t off, struct fuse_file_info *fi)
{
	int rc;

	if (!shared_is_node(ino)) {
		op_write(req, ino, buf, size, off, fi);
		return;
	}
	rc = io_write_full(fd_of(fi), buf, size, (uint64_t)off);
	if (rc == 0 && (fi->flags & O_DSYNC) && fdatasync(fd_of(fi)) < 0)
		rc = -errno;
	if (rc < 0)
		fuse_reply_err(req, -rc);
	else
		fuse_reply_write(req, size);
}

static void on_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	int fd, rc = 0;

	/* Any close of a process gives its locks on the file up. */
	shared_unlock(shared_of(req), ino, fi->lock_owner, false);
	if (!shared_is_node(ino)) {
		op_flush(req, ino, fi);
		return;
	}
	/* As close(2) of it would say it. */
	fd = fcntl(fd_of(fi), F_DUPFD_CLOEXEC, 0);
	if (fd < 0 || close(fd) < 0)
		rc = -errno;
	fuse_reply_err(req, -rc);
}

static void on_release(fuse_req_t req, fuse_ino_t ino,
		       struct fuse_file_info *fi)
{
	if (fi->flock_release)
		shared_unlock(shared_of(req), ino, fi->lock_owner, true);
	if (!shared_is_node(ino)) {
		op_release(req, ino, fi);
		return;
	}
	shared_close(shared_of(req), ino, fd_of(fi));
	fuse_reply_err(req, 0);
}

static void on_fsync(fuse_req_t req, fuse_ino_t ino, int datasync,
		     struct fuse_file_info *fi)
{
	int rc;

	if (!shared_is_node(ino)) {
		op_fsync(req, ino, datasync, fi);
		return;
	}
	rc = datasync ? fdatasync(fd_of(fi)) : fsync(fd_of(fi));
	fuse_reply_err(req, rc < 0 ? errno : 0);
}

static void on_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off,
			 off_t len, struct fuse_file_info *fi)
{
	if (!shared_is_node(ino)) {
		op_fallocate(req, ino, mode, off, len, fi);
		return;
	}
	fuse_reply_err(req, fallocate(fd_of(fi), mode, off, len) < 0 ? errno
								     : 0);
}

static void on_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence,
		     struct fuse_file_info *fi)
{
	off_t at;

	if (!shared_is_node(ino)) {
		op_lseek(req, ino, off, whence, fi);
		return;
	}
	at = lseek(fd_of(fi), off, whence);
	if (at < 0)
		fuse_reply_err(req, errno);
	else
		fuse_reply_lseek(req, at);
}

/* --- locks ---------------------------------------------------------------- */

static void on_flock(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi,
		     int op)
{
	struct waiting w;
	int rc;

	waiting_begin(&w, req);
	rc = shared_flock(shared_of(req), ino, fi->lock_owner, op);
	waiting_end(&w);
	fuse_reply_err(req, -rc);
}

static void on_setlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi,
		     struct flock *lock, int sleep)
{
	struct waiting w;
	int rc;

	waiting_begin(&w, req);
	rc = shared_lock(shared_of(req), ino, fi->lock_owner, lock, sleep);
	waiting_end(&w);
	fuse_reply_err(req, -rc);
}

static void on_getlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi,
		     struct flock *lock)
{
	int rc = shared_lock_test(shared_of(req), ino, fi->lock_owner, lock);

	if (rc < 0)
		fuse_reply_err(req, -rc);
	else
		fuse_reply_lock(req, lock);
}

/* --- attributes ----------------------------------------------------------- */

static int stat_of(fuse_req_t req, fuse_ino_t ino, struct stat *sb)
{
	SCOPED(fs_put) struct fs_inode i = { 0 };
	int rc = shared_stat(shared_of(req), ino, sb);

	/* A local file that DIR has no name of any more, and somebody has open.
	 */
	if (rc == -ESTALE && !shared_is_node(ino)) {
		rc = fs_get(req, ino, &i);
		if (rc == 0)
			rc = inode_stat(i.st->inodes, i.in, sb);
	}
	return rc;
}

static void reply_attr(fuse_req_t req, int rc, fuse_ino_t ino)
{
	struct stat sb;

	if (rc == 0)
		rc = stat_of(req, ino, &sb);
	if (rc < 0)
		fuse_reply_err(req, -rc);
	else
		fuse_reply_attr(req, &sb, attr_timeout(req, ino));
}

static void on_getattr(fuse_req_t req, fuse_ino_t ino,
		       struct fuse_file_info *fi)
{
	struct stat sb;

	if (fi && fi->fh && shared_is_node(ino) && fd_of(fi) > 0 &&
	    fstat(fd_of(fi), &sb) == 0)
		fuse_reply_attr(req, &sb, attr_timeout(req, ino));
	else
		reply_attr(req, 0, ino);
}

static bool are_now(int to_set)
{
	return (to_set & (FUSE_SET_ATTR_ATIME_NOW | FUSE_SET_ATTR_MTIME_NOW)) &&
	       (to_set & FUSE_SET_ATTR_ATIME_NOW ||
		!(to_set & FUSE_SET_ATTR_ATIME)) &&
	       (to_set & FUSE_SET_ATTR_MTIME_NOW ||
		!(to_set & FUSE_SET_ATTR_MTIME));
}

static unsigned set_of(const struct stat *s, int to_set, struct attr *to)
{
	int64_t now_ns = wall_ns();
	unsigned valid = 0;

	*to = (struct attr){ .mode = s->st_mode,
			     .uid = s->st_uid,
			     .gid = s->st_gid,
			     .atime_ns = io_ns(&s->st_atim),
			     .mtime_ns = io_ns(&s->st_mtim) };
	if (to_set & FUSE_SET_ATTR_MODE)
		valid |= SET_MODE;
	if (to_set & FUSE_SET_ATTR_UID)
		valid |= SET_UID;
	if (to_set & FUSE_SET_ATTR_GID)
		valid |= SET_GID;
	if (to_set & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_ATIME_NOW))
		valid |= SET_ATIME;
	if (to_set & (FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_MTIME_NOW))
		valid |= SET_MTIME;
	if (to_set & FUSE_SET_ATTR_ATIME_NOW)
		to->atime_ns = now_ns;
	if (to_set & FUSE_SET_ATTR_MTIME_NOW)
		to->mtime_ns = now_ns;
	return valid | (are_now(to_set) ? SET_TIMES_NOW : 0);
}

/* Of a local file: here, and what DIR has to know of it. */
static int set_local(fuse_req_t req, fuse_ino_t ino, const struct stat *s,
		     int to_set, bool by_handle, const struct shared_caller *c)
{
	SCOPED(fs_put) struct fs_inode i = { 0 };
	bool cuts = (to_set & FUSE_SET_ATTR_SIZE) != 0;
	struct shared *shared = shared_of(req);
	struct waiting w;
	unsigned valid = 0;
	struct attr to;
	int rc = cuts ? shared_change_begin(shared, ino, O_WRONLY, NULL) : 0;

	if (rc < 0)
		return rc;
	waiting_begin(&w, req);
	rc = fs_get(req, ino, &i);
	if (rc == 0)
		rc = fs_setattr(req, &i, s, to_set, by_handle, &valid, &to);
	waiting_end(&w);
	if (cuts)
		shared_change_end(shared, ino);
	if (are_now(to_set))
		valid |= SET_TIMES_NOW;
	if (rc == 0 && valid)
		rc = shared_set_local(shared, c, ino, valid, &to);
	return rc == -ENOENT ? 0 : rc;
}

static int set_in_dir(fuse_req_t req, const struct shared_caller *c,
		      fuse_ino_t ino, unsigned valid, const struct attr *to,
		      const uint64_t *size_bytes)
{
	struct waiting w;
	int rc;

	waiting_begin(&w, req);
	rc = shared_setattr(shared_of(req), c, ino, valid, to, size_bytes);
	waiting_end(&w);
	return rc;
}

static void on_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *s,
		       int to_set, struct fuse_file_info *fi)
{
	SCOPED(asker_end) struct asker a;
	struct store *st = store_of(req);
	uint64_t size = (uint64_t)s->st_size;
	bool cuts = (to_set & FUSE_SET_ATTR_SIZE) != 0;
	unsigned valid;
	struct attr to;
	int rc = asker_begin(req, &a);

	if (rc == 0 && !shared_is_node(ino)) {
		rc = set_local(req, ino, s, to_set, fi != NULL, &a.c);
	} else if (rc == 0) {
		valid = set_of(s, to_set, &to);
		/* By a handle: whoever has it may do it. */
		if (cuts && fi && fd_of(fi) > 0) {
			rc = ftruncate(fd_of(fi), s->st_size) < 0 ? -errno : 0;
			cuts = false;
		}
		if (rc == 0 && (valid || cuts))
			rc = set_in_dir(req, &a.c, ino, valid, &to,
					cuts ? &size : NULL);
	}
	if (rc < 0)
		reply_failed(req, rc);
	else
		reply_attr(req, rc, ino);
	if ((to_set & FUSE_SET_ATTR_SIZE) != 0)
		names_tell_moved(st->names);
}

static void on_readlink(fuse_req_t req, fuse_ino_t ino)
{
	char target[4097];
	int rc = shared_readlink(shared_of(req), ino, target, sizeof(target));

	if (rc < 0)
		fuse_reply_err(req, -rc);
	else
		fuse_reply_readlink(req, target);
}

static void on_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct statvfs v;
	int rc = shared_statvfs(shared_of(req), &v);

	(void)ino;
	if (rc < 0)
		fuse_reply_err(req, -rc);
	else
		fuse_reply_statfs(req, &v);
}

const struct fuse_lowlevel_ops fs_shared_ops = {
	.lookup = on_lookup,
	.forget = on_forget,
	.forget_multi = on_forget_multi,
	.getattr = on_getattr,
	.setattr = on_setattr,
	.readlink = on_readlink,
	.mknod = on_mknod,
	.mkdir = on_mkdir,
	.symlink = on_symlink,
	.link = on_link,
	.unlink = on_unlink,
	.rmdir = on_rmdir,
	.rename = on_rename,
	.opendir = on_opendir,
	.readdir = on_readdir,
	.readdirplus = on_readdirplus,
	.releasedir = on_releasedir,
	.fsyncdir = on_fsyncdir,
	.create = on_create,
	.open = on_open,
	.read = on_read,
	.write = on_write,
	.flush = on_flush,
	.release = on_release,
	.fsync = on_fsync,
	.fallocate = on_fallocate,
	.lseek = on_lseek,
	.flock = on_flock,
	.getlk = on_getlk,
	.setlk = on_setlk,
	.statfs = on_statfs,
	.getxattr = op_shared_getxattr,
	.setxattr = op_shared_setxattr,
	.listxattr = op_shared_listxattr,
	.removexattr = op_shared_removexattr,
	.ioctl = op_ioctl,
};
