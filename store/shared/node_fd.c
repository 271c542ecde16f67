/*
 * node_fd.c - descriptors (O_PATH) of files of DIR.
 *
 * A node keeps one
 *
 *   for its life      of a folder that was used, of a local file, and of what
 *                     is open: others may rename it
 *   since a look-up   for SEEN_NS, of anything: what the look-up found can be
 *                     opened, and asked for its attributes, whoever puts
 *                     another file at the name meanwhile. As on a local file
 *                     system it is the old file then. The kernel looks a name
 *                     up once more on -ESTALE, and no third time.
 *
 * Their number is bounded, and those since a look-up make room for the others.
 * They go soon, for a file without a name has its bytes as long as somebody has
 * a descriptor of it. Who finds none goes by the name that was seen last, and
 * looks at the inode number that he gets.
 *
 * Some cluster file systems do not open a file that has no name any more: then
 * the node becomes what is at the name now, see node_find_again().
 *
 * A descriptor is closed without the lock: that may be the end of a large file.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/scope.h"
#include "store/shared/shared_private.h"

/* A look-up and what follows it are one call of a program. */
#define SEEN_NS (INT64_C(2) * 1000000000)

int node_reopen(int fd, int flags)
{
	char path[SHARED_PATH_BYTES];
	int opened;

	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	opened = open(path, flags | O_CLOEXEC);
	return opened < 0 ? -errno : opened;
}

/* --- those that are kept -------------------------------------------------- */

/* n has none: room for one; *ret_fd: to be closed, or -1. */
static bool make_room_locked(struct shared *s, int *ret_fd)
{
	struct node *oldest = TAILQ_FIRST(&s->seen);

	if (s->fds >= s->fds_max && oldest)
		*ret_fd = node_take_fd_locked(s, oldest);
	return s->fds < s->fds_max;
}

void node_keep_fd(struct shared *s, struct node *n, int fd)
{
	SCOPED(scope_close) int kept = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	SCOPED(scope_close) int gone = -1;

	if (kept < 0)
		return;
	HOLD(&s->lock);
	node_unsee_locked(s, n);
	if (n->fd < 0 && make_room_locked(s, &gone)) {
		n->fd = kept;
		kept = -1;
		s->fds++;
	}
}

static void since_now_locked(struct shared *s, struct node *n)
{
	n->is_seen = true;
	n->seen_ns = mono_ns();
	TAILQ_INSERT_TAIL(&s->seen, n, seen);
}

/* Takes *fd, if there is room; *ret_gone: to be closed, or -1. */
static void see_locked(struct shared *s, struct node *n, int *fd, int *ret_gone)
{
	if (n->fd >= 0 || !make_room_locked(s, ret_gone))
		return;
	n->fd = *fd;
	*fd = -1;
	s->fds++;
	since_now_locked(s, n);
}

void node_see(struct shared *s, struct node *n, int *fd)
{
	SCOPED(scope_close) int old = -1, gone = -1;

	HOLD(&s->lock);
	if (n->is_seen) /* the number may be another file's by now */
		old = node_take_fd_locked(s, n);
	see_locked(s, n, fd, &gone);
}

void node_unsee(struct shared *s, struct node *n)
{
	SCOPED(scope_close) int gone = -1;

	HOLD(&s->lock);
	if (n->is_seen)
		gone = node_take_fd_locked(s, n);
}

void node_opened_locked(struct shared *s, struct node *n)
{
	node_unsee_locked(s, n);
}

void node_closed_locked(struct shared *s, struct node *n)
{
	if (n->fd < 0 || n->in || n->type == S_IFDIR || n->is_seen)
		return;
	since_now_locked(s, n);
}

void node_forget_seen(struct shared *s)
{
	for (;;) {
		SCOPED(scope_close) int gone = -1;
		struct node *oldest;

		HOLD(&s->lock);
		oldest = TAILQ_FIRST(&s->seen);
		if (!oldest || mono_ns() - oldest->seen_ns < SEEN_NS)
			return;
		gone = node_take_fd_locked(s, oldest);
	}
}

/* --- and by name ---------------------------------------------------------- */

/* The one that is kept, or else who to ask by which name; NULL: next/. */
static int kept_fd(struct shared *s, struct node *n, struct node **ret_parent,
		   char name[TICKET_PATH_BYTES])
{
	HOLD(&s->lock);
	*ret_parent = NULL;
	if (n->fd >= 0) {
		int fd;

		if (n->type == S_IFDIR) /* somebody works in it */
			node_unsee_locked(s, n);
		fd = fcntl(n->fd, F_DUPFD_CLOEXEC, 0);

		return fd < 0 ? -errno : fd;
	}
	if (n->ticket) {
		(void)snprintf(name, TICKET_PATH_BYTES, "%s", n->ticket);
		return -ENODATA;
	}
	if (!n->parent)
		return -ESTALE;
	*ret_parent = node_ref_locked(n->parent);
	(void)snprintf(name, TICKET_PATH_BYTES, "%s", n->name);
	return -ENODATA;
}

static int open_checked(struct shared *s, struct node *n, int dirfd,
			const char *name)
{
	struct stat sb;
	bool same;
	int fd = openat(dirfd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0)
		return errno == ENOENT || errno == ENOTDIR ? -ESTALE : -errno;
	if (fstat(fd, &sb) < 0) {
		int rc = -errno;

		(void)close(fd);
		return rc;
	}
	{
		HOLD(&s->lock);
		/* A number is used again by some, for a folder as well. */
		same = n->engine == sb.st_ino &&
		       n->type == (sb.st_mode & S_IFMT);
	}
	if (same) {
		/* Of a folder, and of what is written: others may rename it. */
		if (S_ISDIR(sb.st_mode) || n->in)
			node_keep_fd(s, n, fd);
		return fd;
	}
	(void)close(fd);
	return -ESTALE;
}

/* Of a pending file of this node: wherever others have moved it. */
static int own_fd(struct shared *s, struct node *n)
{
	ino_t number;
	int rc, fd;

	{
		HOLD(&s->lock);
		if (!n->in || n->state == NODE_KEPT || n->state == NODE_GONE)
			return -ENOENT;
		number = n->engine;
	}
	rc = own_open(s, number, &fd);
	if (rc < 0)
		return rc;
	node_keep_fd(s, n, fd);
	return fd;
}

static int fd_at_depth(struct shared *s, struct node *n, unsigned depth)
{
	SCOPED(node_use_end) struct node_use parent = { .s = s };
	SCOPED(scope_close) int dirfd = -1;
	char name[TICKET_PATH_BYTES];
	int rc = kept_fd(s, n, &parent.n, name);

	if (rc != -ENODATA)
		return rc;
	rc = own_fd(s, n);
	if (rc != -ENOENT) /* without a link it is known by its name */
		return rc;
	if (!parent.n)
		return open_checked(s, n, s->home.nextfd, name);
	if (depth == 0)
		return -ELOOP;
	dirfd = fd_at_depth(s, parent.n, depth - 1);
	if (dirfd < 0)
		return dirfd;
	return open_checked(s, n, dirfd, name);
}

int node_fd(struct shared *s, struct node *n, int *ret_fd)
{
	int fd = fd_at_depth(s, n, NODE_DEPTH_MAX);

	if (fd < 0)
		return fd;
	*ret_fd = fd;
	return 0;
}

int node_find_again(struct shared *s, struct node *n, int *ret_fd)
{
	SCOPED(node_use_end) struct node_use parent = { .s = s };
	SCOPED(scope_close) int dirfd = -1, fd = -1, old = -1, gone = -1;
	char name[STORE_NAME_MAX + 1];
	struct stat sb;
	int rc;

	{
		HOLD(&s->lock);
		if (n->in || n->type != S_IFREG || n->opens > 0 || !n->parent)
			return -ESTALE;
		parent.n = node_ref_locked(n->parent);
		(void)snprintf(name, sizeof(name), "%s", n->name);
	}
	rc = node_fd(s, parent.n, &dirfd);
	if (rc < 0)
		return rc;
	fd = openat(dirfd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &sb) < 0)
		return -errno;
	if (!S_ISREG(sb.st_mode) || sb.st_dev != s->dev)
		return -ESTALE;
	rc = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (rc < 0)
		return -errno;
	*ret_fd = rc;
	HOLD(&s->lock);
	if (n->opens > 0) /* it is in use, as what it was */
		return -ESTALE;
	node_becomes_locked(s, n, sb.st_ino);
	old = node_take_fd_locked(s, n);
	see_locked(s, n, &fd, &gone);
	return 0;
}

int node_has_name(struct shared *s, struct node *n, ino_t number)
{
	SCOPED(node_use_end) struct node_use parent = { .s = s };
	SCOPED(scope_close) int dirfd = -1;
	char name[STORE_NAME_MAX + 1];
	struct stat sb;
	int rc;

	{
		HOLD(&s->lock);
		if (!n->parent)
			return 0;
		parent.n = node_ref_locked(n->parent);
		(void)snprintf(name, sizeof(name), "%s", n->name);
	}
	rc = node_fd(s, parent.n, &dirfd);
	if (rc == 0 && fstatat(dirfd, name, &sb, AT_SYMLINK_NOFOLLOW) < 0)
		rc = -errno;
	if (rc < 0)
		return rc == -ESTALE || rc == -ENOENT || rc == -ENOTDIR ? 0
									: rc;
	return sb.st_ino == number;
}

void node_path(struct shared *s, struct node *n, char *buf, size_t size)
{
	size_t at = size - 1;

	HOLD(&s->lock);
	buf[at] = 0;
	for (; n && n->parent; n = n->parent) {
		size_t len = strlen(n->name);

		if (len + 1 > at)
			break;
		at -= len;
		memcpy(buf + at, n->name, len);
		if (n->parent->parent)
			buf[--at] = '/';
	}
	memmove(buf, buf + at, size - at);
}
