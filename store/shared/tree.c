/*
 * tree.c - names: each call is one of DIR's, with the caller's ids, and then
 * what is known of the node is brought up to it.
 *
 * What is to replace a name, of this node or others, is in replace.c.
 */
#include <errno.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "store/base/dir.h"
#include "store/base/io.h"
#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/drain/drain.h"
#include "store/file/file.h"
#include "store/shared/pending.h"
#include "store/shared/shared_private.h"
#include "store/step/tracker.h"

/* The root is asked twice a second. */
#define SILENT_NS (INT64_C(3) * 1000000000)
/* Others may replace a file this often while its name is looked up. */
#define LOOK_UP_TRIES 16

bool shared_is_hidden(struct shared *s, uint64_t dir, const char *name)
{
	(void)s;
	return dir == ROOT_INO && strcmp(name, SHARED_HOME) == 0;
}

/* Where something is to be made. -EEXIST: a file is on its way to the name. */
static int at_new_name(struct shared *s, uint64_t dir, const char *name,
		       struct at *ret)
{
	struct node *there;
	int rc;

	if (shared_is_hidden(s, dir, name))
		return -EPERM;
	rc = at_begin(s, dir, name, ret);
	if (rc < 0)
		return rc;
	there = node_replacing(s, ret->dir, name);
	node_put(s, there);
	return there ? -EEXIST : replace_wait_to_make(s, ret);
}

/* --- what is there -------------------------------------------------------- */

/* A local file's attributes, as they are here. Waits for nothing. */
static int stat_local(struct shared *s, struct node *n, struct stat *sb)
{
	ino_t engine;
	int rc = inode_stat(s->st->inodes, n->in, sb);

	if (rc < 0)
		return rc;
	{
		HOLD(&s->lock);
		engine = n->engine;
		if (n->links > 0)
			sb->st_nlink = n->links;
	}
	if (engine)
		sb->st_ino = engine;
	return 0;
}

/* DIR's file has so many names. */
static void note_links(struct shared *s, struct node *n, nlink_t links)
{
	HOLD(&s->lock);
	n->links = links;
}

/* *sb is DIR's, or of the local file; n has one more look-up. Takes n. */
static int entry_of(struct shared *s, struct node *n, struct stat *sb,
		    struct shared_entry *ret)
{
	int rc = 0;

	if (n->in) {
		/* It may have its mode by now, and its link in own/ still. */
		if (node_state(s, n) != NODE_COMPLETING)
			note_links(s, n, sb->st_nlink);
		rc = stat_local(s, n, sb);
	} else {
		HOLD(&s->lock);
		n->lookups++;
	}
	ret->id = n->id;
	ret->stat = *sb;
	if (rc == 0 && n->in) {
		inode_ref(n->in, 1);
		inode_remember(s->st->inodes, n->in);
	}
	node_put(s, n);
	return rc;
}

/* What DIR has at a name: for SCOPED(). */
struct found {
	int fd; /* O_PATH */
	struct stat sb;
};

static void found_end(struct found *f)
{
	scope_close(&f->fd);
}

static int find(const struct at *a, struct found *ret)
{
	ret->fd = openat(a->fd, a->name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	return ret->fd < 0 || fstat(ret->fd, &ret->sb) < 0 ? -errno : 0;
}

/* What DIR has at the name, as it was found: its descriptor is taken, or not.
 */
static int entry_at(struct shared *s, const struct at *a, struct found *f,
		    struct shared_entry *ret)
{
	struct stat *sb = &f->sb;
	struct node *n;

	if (sb->st_dev != s->dev)
		return -EXDEV; /* somebody has mounted there */
	n = local_at(s, a->dir, a->name, sb);
	if (!n)
		return -ENOMEM;
	pending_show(s, sb);
	if (!n->in && f->fd >= 0)
		node_see(s, n, &f->fd);
	return entry_of(s, n, sb, ret);
}

int shared_lookup(struct shared *s, uint64_t parent, const char *name,
		  pid_t tid, struct shared_entry *ret)
{
	SCOPED(at_end) struct at a = { .fd = -1 };
	struct node *n;
	int rc;

	if (shared_is_hidden(s, parent, name))
		return -ENOENT;
	rc = at_begin(s, parent, name, &a);
	if (rc == 0)
		rc = empty_look(s, &a, tid);
	if (rc < 0) {
		sent_missed(s, tid);
		return rc;
	}
	n = node_replacing(s, a.dir, name);
	if (n && !replace_is_over(s, n)) {
		struct stat sb = { .st_nlink = 1 };

		return entry_of(s, n, &sb, ret);
	}
	node_put(s, n);
	/* What was found may be nothing any more before it is looked at. */
	for (unsigned tries = 0; tries < LOOK_UP_TRIES; tries++) {
		SCOPED(found_end) struct found f = { .fd = -1 };

		rc = find(&a, &f);
		if (rc == 0)
			rc = entry_at(s, &a, &f, ret);
		if (rc != -ESTALE)
			break;
	}
	if (rc < 0)
		sent_missed(s, tid);
	return rc;
}

void shared_forget(struct shared *s, uint64_t id, uint64_t count)
{
	struct node *n = node_get(s, id);

	if (!n)
		return;
	{
		HOLD(&s->lock);
		n->lookups -= count < n->lookups ? count : n->lookups;
	}
	node_put(s, n);
}

/*
 * DIR has not answered for a while: what is known of it does, so that a mount
 * can be asked how it is doing.
 */
static bool is_silent(struct shared *s, struct stat *ret)
{
	HOLD(&s->lock);
	if (s->answered_ns == 0 || mono_ns() - s->answered_ns < SILENT_NS)
		return false;
	*ret = s->root_stat;
	return true;
}

int shared_stat(struct shared *s, uint64_t id, struct stat *ret)
{
	SCOPED(node_use_end) struct node_use u = { 0 };
	SCOPED(scope_close) int fd = -1;
	int rc = node_use(s, id, &u);

	if (rc < 0)
		return -ESTALE;
	if (u.n->in)
		return stat_local(s, u.n, ret);
	if (id == ROOT_INO && is_silent(s, ret))
		return 0;
	rc = node_fd(s, u.n, &fd);
	if (rc == 0)
		rc = fstat(fd, ret) < 0 ? -errno : 0;
	if (rc == -ESTALE) {
		int again = -1;

		rc = node_find_again(s, u.n, &again);
		if (rc < 0)
			return rc;
		scope_close(&fd);
		fd = again;
		rc = fstat(fd, ret) < 0 ? -errno : 0;
	}
	if (rc < 0)
		return rc;
	pending_show(s, ret);
	return 0;
}

int shared_readlink(struct shared *s, uint64_t id, char *buf, size_t size)
{
	SCOPED(node_use_end) struct node_use u = { 0 };
	SCOPED(scope_close) int fd = -1;
	int rc = node_use(s, id, &u);
	ssize_t n;

	if (rc == 0)
		rc = node_fd(s, u.n, &fd);
	if (rc < 0)
		return rc;
	n = readlinkat(fd, "", buf, size - 1);
	if (n < 0)
		return -errno;
	buf[n] = 0;
	return 0;
}

int shared_statvfs(struct shared *s, struct statvfs *ret)
{
	return fstatvfs(s->home.dirfd, ret) < 0 ? -errno : 0;
}

int shared_opendir(struct shared *s, uint64_t id, int *ret_fd)
{
	SCOPED(node_use_end) struct node_use u = { 0 };
	SCOPED(scope_close) int fd = -1;
	int rc = node_use(s, id, &u);

	if (rc == 0)
		rc = node_fd(s, u.n, &fd);
	if (rc < 0)
		return rc;
	rc = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (rc < 0)
		return -errno;
	*ret_fd = rc;
	return 0;
}

int shared_path(struct shared *s, uint64_t id, int *ret_fd,
		char ret_path[SHARED_PATH_BYTES])
{
	SCOPED(node_use_end) struct node_use u = { 0 };
	int rc = node_use(s, id, &u);

	if (rc == 0)
		rc = node_fd(s, u.n, ret_fd);
	if (rc == 0)
		(void)snprintf(ret_path, SHARED_PATH_BYTES, "/proc/self/fd/%d",
			       *ret_fd);
	return rc;
}

/* --- new names ------------------------------------------------------------ */

/* The pending file in DIR: it is there with its link in own/, or not at all. */
static int make_pending(struct shared *s, const struct shared_caller *c,
			const struct at *a, struct node *n, struct stat *sb)
{
	SCOPED(scope_close) int fd = -1;
	int rc;

	act_as(s, c);
	fd = openat(a->fd, a->name,
		    O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
		    pending_mode(s));
	rc = fd < 0 ? -errno : 0;
	act_as_self(s, c);
	if (rc < 0)
		return rc;
	if (fstat(fd, sb) < 0)
		rc = -errno;
	if (rc == 0) {
		HOLD(&s->lock);
		node_engine_locked(s, n, sb->st_ino);
	}
	if (rc == 0)
		rc = own_link(s, n, fd, sb->st_ino);
	if (rc == -ENOENT) /* removed meanwhile: the name is another one's */
		return -ESTALE;
	if (rc < 0) {
		(void)own_take_away(s, a->fd, a->name, sb->st_ino);
		return rc;
	}
	pending_note_mode(fd, inode_attr(n->in).mode);
	HOLD(&s->lock);
	if (n->state != NODE_MAKING) /* who saw it has removed it */
		return -ESTALE;
	n->state = NODE_PENDING;
	if (n->is_queued)
		cond_signal(&s->idle);
	return 0;
}

/* Who owns it says DIR: a folder may hand its group on. */
static int take_owner(struct shared *s, struct node *n, const struct stat *sb)
{
	struct attr now = inode_attr(n->in);
	struct attr to = { .uid = sb->st_uid, .gid = sb->st_gid };

	if (now.uid == to.uid && now.gid == to.gid)
		return 0;
	return names_setattr(s->st->names, n->in, SET_UID | SET_GID, &to);
}

int shared_create(struct shared *s, const struct shared_caller *c,
		  uint64_t parent, const char *name, const struct names_new *n,
		  struct shared_entry *ret, struct inode **ret_local)
{
	SCOPED(node_use_end) struct node_use u = { .s = s };
	SCOPED(at_end) struct at a = { .fd = -1 };
	struct stat sb;
	int rc;

	rc = at_new_name(s, parent, name, &a);
	if (rc < 0)
		return rc;
	rc = local_make(s, n, name, a.dir, NULL, &u.n);
	if (rc < 0)
		return rc;
	rc = make_pending(s, c, &a, u.n, &sb);
	if (rc == 0)
		rc = take_owner(s, u.n, &sb);
	if (rc == 0)
		rc = local_save(s, u.n);
	if (rc < 0) {
		if (node_state(s, u.n) == NODE_PENDING)
			(void)own_take_away(s, a.fd, name, sb.st_ino);
		local_drop(s, u.n);
		return rc;
	}
	{
		HOLD(&s->lock);
		node_ref_locked(u.n);
	}
	inode_ref(u.n->in, 1);
	rc = entry_of(s, u.n, &sb, ret);
	if (rc < 0)
		inode_put(s->st->inodes, u.n->in, 1);
	else
		*ret_local = u.n->in;
	sent_forget(s, n->pid);
	return rc;
}

int tree_create_plain(struct shared *s, const struct shared_caller *c,
		      uint64_t parent, const char *name, mode_t mode, int flags,
		      struct shared_entry *ret)
{
	SCOPED(at_end) struct at a = { .fd = -1 };
	SCOPED(scope_close) int fd = -1;
	struct found f = { .fd = -1 };
	int rc;

	rc = at_new_name(s, parent, name, &a);
	if (rc < 0)
		return rc;
	act_as(s, c);
	fd = openat(a.fd, name,
		    (flags & (O_ACCMODE | O_APPEND)) | O_CREAT | O_EXCL |
			    O_NOFOLLOW | O_CLOEXEC,
		    mode & 07777);
	rc = fd < 0 ? -errno : 0;
	act_as_self(s, c);
	if (rc == 0 && fstat(fd, &f.sb) < 0)
		rc = -errno;
	if (rc == 0)
		rc = entry_at(s, &a, &f, ret);
	if (rc < 0)
		return rc;
	rc = fd;
	fd = -1;
	return rc;
}

/*
 * It was made, and somebody else has removed it again: the call has succeeded
 * all the same. No file of DIR has such a number.
 */
static void stat_gone(struct shared *s, const struct names_new *n,
		      struct stat *sb)
{
	*sb = (struct stat){ .st_dev = s->dev,
			     .st_mode = n->mode,
			     .st_uid = n->uid,
			     .st_gid = n->gid };
	HOLD(&s->lock);
	sb->st_ino = (ino_t)(UINT64_MAX - ++s->next_node);
}

int shared_make(struct shared *s, const struct shared_caller *c,
		uint64_t parent, const char *name, const struct names_new *n,
		struct shared_entry *ret)
{
	SCOPED(at_end) struct at a = { .fd = -1 };
	SCOPED(found_end) struct found f = { .fd = -1 };
	int rc;

	rc = at_new_name(s, parent, name, &a);
	if (rc < 0)
		return rc;
	act_as(s, c);
	if (S_ISDIR(n->mode))
		rc = mkdirat(a.fd, name, n->mode & 07777);
	else if (S_ISLNK(n->mode))
		rc = symlinkat(n->target, a.fd, name);
	else
		rc = mknodat(a.fd, name, n->mode, n->rdev);
	rc = rc < 0 ? -errno : 0;
	act_as_self(s, c);
	if (rc < 0)
		return rc;
	if (find(&a, &f) < 0 || (f.sb.st_mode & S_IFMT) != (n->mode & S_IFMT)) {
		found_end(&f);
		f.fd = -1;
		stat_gone(s, n, &f.sb);
	}
	return entry_at(s, &a, &f, ret);
}

int shared_link(struct shared *s, const struct shared_caller *c, uint64_t id,
		uint64_t parent, const char *name, struct shared_entry *ret)
{
	SCOPED(node_use_end) struct node_use u = { 0 };
	SCOPED(at_end) struct at a = { .fd = -1 };
	SCOPED(scope_close) int fd = -1;
	SCOPED(found_end) struct found f = { .fd = -1 };
	SCOPED(hold_end) struct hold held = { 0 };
	int rc;

	rc = node_use(s, id, &u);
	if (rc == 0)
		rc = at_new_name(s, parent, name, &a);
	if (rc == 0) {
		hold_begin(s, u.n, &held); /* it stays where it is */
		rc = empty_is_left(s, u.n) ? -ESTALE : node_fd(s, u.n, &fd);
	}
	if (rc < 0)
		return rc;
	act_as(s, c);
	rc = dir_link(fd, a.fd, name);
	act_as_self(s, c);
	if (rc == 0) {
		HOLD(&s->lock);
		u.n->undone = false; /* it is of use by now */
		if (u.n->ticket) /* an upload of it counts its names */
			queue_changed_locked(s, u.n);
	}
	if (rc == 0)
		rc = find(&a, &f);
	if (rc == 0 && node_state(s, u.n) == NODE_KEPT) { /* its ctime is new */
		HOLD(&s->lock);
		local_set_kept_locked(u.n, &f.sb);
	}
	if (rc == 0 && u.n->in)
		(void)names_setattr(s->st->names, u.n->in, 0, NULL);
	return rc < 0 ? rc : entry_at(s, &a, &f, ret);
}

/* --- names that go -------------------------------------------------------- */

/* What DIR had at a name, before it went. */
struct was {
	struct node *n; /* a reference; NULL: nothing is known of it */
	struct stat sb;
};

static void was_begin(struct shared *s, const struct at *a, struct was *w)
{
	w->n = NULL;
	if (fstatat(a->fd, a->name, &w->sb, AT_SYMLINK_NOFOLLOW) == 0 &&
	    w->sb.st_dev == s->dev)
		w->n = local_at(s, a->dir, a->name, &w->sb);
}

static void was_removed(struct shared *s, struct was *w)
{
	if (w->n && w->n->in)
		local_name_removed(s, w->n);
}

static void was_end(struct shared *s, struct was *w)
{
	node_put(s, w->n);
}

static int unlink_in_dir(struct shared *s, const struct shared_caller *c,
			 const struct at *a, int flags)
{
	int rc;

	act_as(s, c);
	rc = unlinkat(a->fd, a->name, flags) < 0 ? -errno : 0;
	act_as_self(s, c);
	return rc;
}

int shared_unlink(struct shared *s, const struct shared_caller *c,
		  uint64_t parent, const char *name, bool dir)
{
	SCOPED(at_end) struct at a = { .fd = -1 };
	SCOPED(node_use_end) struct node_use replacing = { .s = s };
	SCOPED(hold_end) struct hold held = { 0 };
	struct was w = { 0 };
	bool dropped;
	int rc, others = 0;

	if (shared_is_hidden(s, parent, name))
		return -ENOENT;
	rc = at_begin(s, parent, name, &a);
	if (rc < 0)
		return rc;
	if (!dir) {
		/* Or it would be put in the place of what goes. */
		replacing.n = node_replacing(s, a.dir, name);
		hold_begin(s, replacing.n, &held);
		was_begin(s, &a, &w);
		if (!w.n || !S_ISDIR(w.sb.st_mode))
			others = replace_look(s, &a);
	}
	if (others == 0)
		rc = unlink_in_dir(s, c, &a, dir ? AT_REMOVEDIR : 0);
	else
		rc = others < 0 ? others : replace_by_none(s, &a);
	dropped = (rc == 0 || rc == -ENOENT) && !dir && replace_drop_at(s, &a);
	if (rc == 0)
		was_removed(s, &w);
	if (rc == 0 && w.n) /* its bytes go now, not later */
		node_unsee(s, w.n);
	was_end(s, &w);
	return dropped && rc == -ENOENT ? 0 : rc;
}

/* --- rename --------------------------------------------------------------- */

static int rename_in_dir(struct shared *s, const struct shared_caller *c,
			 const struct at *from, const struct at *to,
			 unsigned flags)
{
	int rc;

	act_as(s, c);
	rc = flags == 0
		     ? renameat(from->fd, from->name, to->fd, to->name)
		     : renameat2(from->fd, from->name, to->fd, to->name, flags);
	rc = rc < 0 ? -errno : 0;
	act_as_self(s, c);
	return rc;
}

/* What is there is to be seen no more; it is `w`. */
static int remove_in_dir(struct shared *s, const struct shared_caller *c,
			 const struct at *a, struct was *w)
{
	int rc = unlink_in_dir(s, c, a, 0);

	if (rc == 0)
		was_removed(s, w);
	return rc;
}

/* Is it pending here, and can nobody else read it yet? It is held. */
static bool is_pending_here(struct shared *s, struct node *n)
{
	if (!n || !n->in)
		return false;
	HOLD(&s->lock);
	return n->state == NODE_PENDING || n->state == NODE_UPLOADING;
}

/* A file of DIR was renamed: where it is, and that its ctime is another one. */
static void was_renamed(struct shared *s, struct was *w, const struct at *to)
{
	struct stat sb;
	bool kept;

	/* What is to replace another name is known by that. */
	if (!w->n || node_replaces(s, w->n))
		return;
	kept = node_state(s, w->n) == NODE_KEPT &&
	       fstatat(to->fd, to->name, &sb, AT_SYMLINK_NOFOLLOW) == 0;
	{
		HOLD(&s->lock);
		node_place_locked(s, w->n, to->dir, to->name);
		if (kept && w->n->engine == sb.st_ino)
			local_set_kept_locked(w->n, &sb);
	}
	if (w->n->in)
		(void)local_save(s, w->n);
}

/* The record says that it is there, durably. */
static int note_place(struct shared *s, struct node *n, const struct at *at)
{
	int rc;

	{
		HOLD(&s->lock);
		node_place_locked(s, n, at->dir, at->name);
	}
	rc = local_save(s, n);
	return rc < 0 ? rc : kv_sync(s->st->kv);
}

/* What is to replace a name of this node is to replace another one. */
static int rename_ticket(struct shared *s, const struct shared_caller *c,
			 const struct at *from, const struct at *to,
			 struct node *replacing, struct was *src,
			 struct was *dst, unsigned flags)
{
	bool moves = src->n && !tracker_is(to->name);
	int rc = 0;

	/* What others see there moves along, if there is anything. */
	if (moves)
		rc = rename_in_dir(s, c, from, to, flags);
	else if (src->n) /* which did not wait, as a tracker has to */
		rc = remove_in_dir(s, c, from, src);
	if (rc == 0 && dst->n && dst->n != src->n && (moves || !src->n))
		was_removed(s, dst);
	if (rc == 0)
		(void)replace_drop_at(s, to);
	return rc == 0 ? replace_another(s, replacing, to) : rc;
}

/* Others are about to replace what is at the new name. */
static int rename_beside(struct shared *s, const struct shared_caller *c,
			 const struct at *from, const struct at *to,
			 const struct was *src, unsigned flags)
{
	int rc;

	if (flags == 0 && !S_ISDIR(src->sb.st_mode))
		return replace_by_whole(s, from, to);
	rc = replace_wait(s, to);
	return rc < 0 ? rc : rename_in_dir(s, c, from, to, flags);
}

/*
 * A pending file takes the place of nothing that others may read, now or soon:
 * it is a ticket then. What is pending here, too, is held.
 */
static bool is_to_replace(struct shared *s, const struct was *src,
			  const struct was *dst, int others, unsigned flags)
{
	if (flags != 0 || !is_pending_here(s, src->n) || dst->n == src->n)
		return false;
	if (!dst->n)
		return others > 0;
	return !S_ISDIR(dst->sb.st_mode) &&
	       (others > 0 || !is_pending_here(s, dst->n));
}

static int rename_was(struct shared *s, const struct shared_caller *c,
		      const struct at *from, const struct at *to,
		      struct node *replacing, struct was *src, struct was *dst,
		      unsigned flags)
{
	bool other = dst->n && (!src->n || dst->n != src->n), noted;
	int rc = 0, others;

	if ((flags & RENAME_NOREPLACE) && dst->n)
		return -EEXIST;
	if (replacing)
		return rename_ticket(s, c, from, to, replacing, src, dst,
				     flags);
	others = replace_look(s, to);
	if (others < 0)
		return others;
	if (is_to_replace(s, src, dst, others, flags))
		return replace_by_pending(s, src->n, from, to);
	/*
	 * A node that dies has to know that it is a tracker, which waits for
	 * its step: if it is not at that name after all, it is looked for.
	 */
	noted = !(flags & RENAME_EXCHANGE) && tracker_is(to->name) &&
		is_pending_here(s, src->n);
	if (noted)
		rc = note_place(s, src->n, to);
	if (rc == 0)
		rc = others ? rename_beside(s, c, from, to, src, flags)
			    : rename_in_dir(s, c, from, to, flags);
	if (rc < 0 && noted)
		(void)note_place(s, src->n, from);
	if (rc < 0)
		return rc;
	(void)replace_drop_at(s, to);
	if (other && !(flags & RENAME_EXCHANGE))
		was_removed(s, dst);
	was_renamed(s, src, to);
	if (flags & RENAME_EXCHANGE)
		was_renamed(s, dst, from);
	return 0;
}

/* What has to be durable, or whole, before anybody sees the new name. */
static int wait_before(struct shared *s, struct node *n, const char *new_name)
{
	enum publish_mode mode = s->st->options.publish;
	bool unsynced;

	if (mode == PUBLISH_ASYNC)
		return 0;
	if (n->type == S_IFDIR)
		return upload_wait(s, n);
	if (!n->in)
		return 0;
	{
		HOLD(&n->in->lock);
		unsynced = n->in->file && n->in->file->unsynced;
	}
	if (mode == PUBLISH_WAIT || !unsynced || tracker_publishes(new_name))
		return drain_publish(s->st->drain, n->in);
	return 0;
}

/*
 * A file that is whole in DIR is pending once more. Whoever has it open there
 * reads 4096 bytes behind its end; it is about to get a tracker's name, and had
 * one that nobody goes by. When this fails it is completed under that one.
 */
static int make_pending_again(struct shared *s, struct node *n)
{
	SCOPED(scope_close) int path = -1, fd = -1;
	uint64_t place = drain_draw_place(s->st->drain);
	struct stat sb;
	int rc = node_fd(s, n, &path);

	if (rc < 0)
		return rc;
	fd = node_reopen(path, O_RDWR);
	if (fd < 0)
		return fd;
	if (fstat(fd, &sb) < 0)
		return -errno;
	{
		HOLD(&s->lock);
		if (n->state != NODE_KEPT)
			return -ESTALE;
		queue_unkeep_locked(s, n, NODE_PENDING);
		n->since_ns = mono_ns();
	}
	/*
	 * The record first, durably, then the link: whoever dies in between
	 * leaves a file that is whole, or one that is known to be his.
	 */
	rc = local_save(s, n);
	if (rc == 0)
		rc = kv_sync(s->st->kv);
	if (rc == 0)
		rc = own_link(s, n, fd, sb.st_ino);
	if (rc == 0)
		pending_note_mode(fd, sb.st_mode);
	if (rc == 0 && fchmod(fd, pending_mode(s)) < 0)
		rc = -errno;
	HOLD(&s->lock);
	if (n->state == NODE_GONE) /* another name was renamed over it, say */
		return -ESTALE;
	queue_add_locked(s, n, place);
	return rc;
}

/*
 * What is pending here may be plain in DIR: the last call of its upload failed,
 * or a daemon died before it could write down that it is whole.
 */
static int be_pending(struct shared *s, struct node *n)
{
	SCOPED(scope_close) int path = -1, fd = -1;
	struct stat sb;
	int rc = node_fd(s, n, &path);

	if (rc < 0)
		return rc;
	if (fstat(path, &sb) < 0)
		return -errno;
	if (pending_is(s, &sb))
		return 0;
	fd = node_reopen(path, O_RDWR);
	if (fd < 0)
		return fd;
	rc = own_link(s, n, fd, sb.st_ino);
	if (rc < 0)
		return rc;
	pending_note_mode(fd, sb.st_mode);
	return fchmod(fd, pending_mode(s)) < 0 ? -errno : 0;
}

/* What another node has, and is not whole, is put over nothing that is. */
static int wait_for_whole(struct shared *s, const struct was *src,
			  const struct was *dst, const struct at *to)
{
	SCOPED(scope_close) int fd = -1;
	int rc;

	if (!src->n || src->n->in || !pending_is(s, &src->sb))
		return 0;
	rc = dst->n && !pending_is(s, &dst->sb) ? 1 : replace_look(s, to);
	if (rc <= 0)
		return rc;
	rc = node_fd(s, src->n, &fd);
	if (rc == 0)
		rc = pending_wait(s, src->n, &fd);
	return rc == -EIO ? -EBUSY : rc;
}

/*
 * A file gets a tracker's name: not before the step is whole. What is pending,
 * or can be again, has the name at once, and is not whole until then; of any
 * other the rename waits. n is held, if it is a local file.
 */
static int hold_tracker(struct shared *s, struct node *n, const struct at *to)
{
	enum node_state state;
	int rc;

	if (!tracker_is(to->name) || n->type != S_IFREG)
		return 0;
	{
		HOLD(&s->lock);
		state = n->state;
		/* Its upload has not asked yet whether a tracker may come. */
		queue_changed_locked(s, n);
	}
	if (state == NODE_PENDING || state == NODE_UPLOADING)
		return be_pending(s, n);
	if (state != NODE_KEPT)
		return s->st->options.publish == PUBLISH_ASYNC
			       ? 0
			       : upload_wait_for_step(s, n, to->dir, to->name);
	rc = tracker_waits_as(s, n, to->dir, to->name, NULL);
	return rc > 0 ? make_pending_again(s, n) : rc;
}

int shared_rename(struct shared *s, const struct shared_caller *c,
		  uint64_t parent, const char *name, uint64_t new_parent,
		  const char *new_name, unsigned flags,
		  const struct shared_look_before *look)
{
	SCOPED(at_end) struct at from = { .fd = -1 }, to = { .fd = -1 };
	SCOPED(node_use_end) struct node_use replacing = { .s = s };
	SCOPED(node_use_end) struct node_use over = { .s = s };
	SCOPED(hold_end) struct hold held = { 0 }, held_src = { 0 };
	SCOPED(hold_end) struct hold held_over = { 0 }, held_dst = { 0 };
	struct was src = { 0 }, dst = { 0 };
	int rc;

	if (shared_is_hidden(s, parent, name) ||
	    shared_is_hidden(s, new_parent, new_name))
		return -EPERM;
	rc = at_begin(s, parent, name, &from);
	if (rc == 0)
		rc = at_begin(s, new_parent, new_name, &to);
	if (rc < 0)
		return rc;
	rc = replace_wait(s, &from);
	if (rc < 0)
		return rc;
	replacing.n = node_replacing(s, from.dir, name);
	/* Which of two is to be complete first would have to be remembered. */
	if (replacing.n && (flags & RENAME_EXCHANGE))
		return -EBUSY;
	was_begin(s, &from, &src);
	was_begin(s, &to, &dst);
	rc = wait_for_whole(s, &src, &dst, &to);
	/* Another name of what is to replace something: it is known by that. */
	if (rc == 0 && src.n && src.n != replacing.n && src.n->in)
		rc = replace_await(s, src.n);
	if (rc == 0 && !src.n && !replacing.n)
		rc = -ENOENT;
	if (rc == 0)
		rc = wait_before(s, replacing.n ? replacing.n : src.n,
				 new_name);
	if (rc == 0 && look)
		rc = look->fn(look->arg);
	if (rc == 0) {
		hold_begin(s, replacing.n, &held);
		/* It is complete, or another node was quicker. */
		if (replacing.n && (!node_replaces(s, replacing.n) ||
				    empty_is_left(s, replacing.n) ||
				    replace_is_over(s, replacing.n)))
			rc = -ESTALE;
	}
	if (rc == 0 && src.n != replacing.n)
		hold_begin(s, src.n, &held_src);
	/* mv(1) renames with RENAME_NOREPLACE. */
	if (rc == 0 && src.n && !replacing.n && !(flags & RENAME_EXCHANGE) &&
	    !((flags & RENAME_NOREPLACE) && dst.n))
		rc = hold_tracker(s, src.n, &to);
	if (rc == 0) { /* or it would be put over what comes there */
		over.n = node_replacing(s, to.dir, new_name);
		hold_begin(s, over.n, &held_over);
		if (dst.n != src.n)
			hold_begin(s, dst.n, &held_dst);
	}
	if (rc == 0)
		rc = rename_was(s, c, &from, &to, replacing.n, &src, &dst,
				flags);
	was_end(s, &src);
	was_end(s, &dst);
	return rc;
}

/* --- attributes ----------------------------------------------------------- */

static void times_of(unsigned valid, const struct attr *to,
		     struct timespec ret[2])
{
	ret[0] = valid & SET_ATIME ? io_timespec(to->atime_ns)
				   : (struct timespec){ .tv_nsec = UTIME_OMIT };
	ret[1] = valid & SET_MTIME ? io_timespec(to->mtime_ns)
				   : (struct timespec){ .tv_nsec = UTIME_OMIT };
}

/* By a descriptor that is O_PATH, so by its path. */
static int set_at(int fd, unsigned valid, const struct attr *to,
		  const uint64_t *size_bytes)
{
	char path[SHARED_PATH_BYTES];
	struct timespec times[2];

	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (size_bytes && truncate(path, (off_t)*size_bytes) < 0)
		return -errno;
	if ((valid & (SET_UID | SET_GID)) &&
	    fchownat(fd, "", valid & SET_UID ? to->uid : (uid_t)-1,
		     valid & SET_GID ? to->gid : (gid_t)-1, AT_EMPTY_PATH) < 0)
		return -errno;
	/* After the owner, whose change takes bits away. */
	if ((valid & SET_MODE) && chmod(path, to->mode & 07777) < 0)
		return -errno;
	times_of(valid, to, times);
	if ((valid & (SET_ATIME | SET_MTIME)) &&
	    utimensat(AT_FDCWD, path, times, 0) < 0)
		return -errno;
	return 0;
}

/*
 * As the caller; times that are to be the present time as ourselves, since the
 * kernel has looked whether he may write, and need not own it.
 */
static int set_as(struct shared *s, const struct shared_caller *c, int fd,
		  unsigned valid, const struct attr *to,
		  const uint64_t *size_bytes)
{
	unsigned now =
		valid & SET_TIMES_NOW ? valid & (SET_ATIME | SET_MTIME) : 0;
	int rc;

	act_as(s, c);
	rc = set_at(fd, valid & ~now, to, size_bytes);
	act_as_self(s, c);
	return rc == 0 && now ? set_at(fd, now, to, NULL) : rc;
}

int shared_setattr(struct shared *s, const struct shared_caller *c, uint64_t id,
		   unsigned valid, const struct attr *to,
		   const uint64_t *size_bytes)
{
	SCOPED(node_use_end) struct node_use u = { 0 };
	SCOPED(scope_close) int fd = -1;
	struct stat sb;
	int rc = node_use(s, id, &u);

	if (rc == 0)
		rc = node_fd(s, u.n, &fd);
	if (rc < 0)
		return rc;
	if (fstat(fd, &sb) < 0)
		return -errno;
	if (pending_is(s, &sb)) { /* its bits are not the user's */
		rc = pending_wait(s, u.n, &fd);
		if (rc < 0)
			return rc == -EIO ? -EBUSY : rc;
	} else if (size_bytes && S_ISREG(sb.st_mode)) {
		rc = replace_wait_for(s, u.n, sb.st_ino); /* or it is undone */
		if (rc != 0)
			return rc < 0 ? rc : -ESTALE;
	}
	rc = set_as(s, c, fd, valid, to, size_bytes);
	return rc;
}

int shared_set_local(struct shared *s, const struct shared_caller *c,
		     uint64_t id, unsigned valid, const struct attr *to)
{
	SCOPED(node_use_end) struct node_use u = { 0 };
	SCOPED(hold_end) struct hold h = { 0 };
	SCOPED(scope_close) int fd = -1;
	struct attr shown = { 0 };
	unsigned show = 0;
	struct stat sb;
	bool kept;
	int rc = node_use(s, id, &u);

	if (rc < 0)
		return rc;
	hold_begin(s, u.n, &h);
	{
		HOLD(&s->lock);
		kept = u.n->state == NODE_KEPT;
		queue_changed_locked(s, u.n);
	}
	/* A pending file gets its mode and times when it is complete. */
	if (!kept && (valid & SET_MODE)) {
		const struct timespec atime = pending_atime(to->mode);

		shown.atime_ns = io_ns(&atime);
		show = SET_ATIME;
	}
	if (!kept)
		valid &= (unsigned)(SET_UID | SET_GID);
	if (valid == 0 && show == 0)
		return 0;
	rc = node_fd(s, u.n, &fd);
	if (rc == 0 && show) /* it is only shown: nothing is said of errors */
		(void)set_at(fd, show, &shown, NULL);
	if (valid == 0)
		return 0;
	if (rc < 0)
		return rc;
	rc = set_as(s, c, fd, valid, to, NULL);
	/* chown takes the sticky bit of a file along on some systems. */
	if (rc == 0 && !kept && fstat(fd, &sb) == 0 && !pending_is(s, &sb)) {
		struct attr sticky = { .mode = pending_mode(s) };

		rc = set_at(fd, SET_MODE, &sticky, NULL);
	}
	if (rc == 0 && kept && fstat(fd, &sb) == 0) {
		HOLD(&s->lock);
		local_set_kept_locked(u.n, &sb);
	}
	if (rc == 0 && kept)
		rc = local_save(s, u.n);
	return rc;
}
