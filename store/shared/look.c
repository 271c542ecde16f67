/*
 * look.c - what is opened here was seen to be a directory of root or of this
 * user that nobody else can write to, by the descriptor that is used from then
 * on. What others put in the place of a name afterwards is never opened.
 */
#include "store/shared/look.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "store/base/dir.h"
#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/base/sync.h"
#include "store/shared/home_private.h"

#define DIR_FLAGS (O_RDONLY | O_DIRECTORY | O_CLOEXEC)

int home_refuse(const struct home_why *w, int rc, const char *format, ...)
{
	va_list ap;

	CHECK(rc < 0);
	va_start(ap, format);
	(void)vsnprintf(w->text, w->size, format, ap);
	va_end(ap);
	return rc;
}

int home_refuse_call(const struct home_why *w, const char *what)
{
	int rc = -errno;

	return home_refuse(w, rc, "%s: cannot %s: %s", w->dir, what,
			   strerror(-rc));
}

int home_open_dir(const struct home_why *w, int *ret_dirfd)
{
	int fd = open(w->dir, DIR_FLAGS);

	if (fd < 0 && errno == ENOENT)
		return home_refuse(w, -ENOENT,
				   "%s does not exist; name the directory that "
				   "the nodes share",
				   w->dir);
	if (fd < 0 && errno == ENOTDIR)
		return home_refuse(w, -ENOTDIR,
				   "%s is not a directory; name the one that "
				   "the nodes share",
				   w->dir);
	if (fd < 0)
		return home_refuse_call(w, "open this directory");
	*ret_dirfd = fd;
	return 0;
}

/* Root that is nobody there makes what belongs to nobody. */
static const char *hint_of_squash(uid_t owner)
{
	return geteuid() == 0 && owner != 0
		       ? " (or is root nobody there: NFS with root_squash, "
			 "Lustre with a nodemap?)"
		       : "";
}

static int check_owner(const struct home_why *w, int fd, const char *shown)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return home_refuse_call(w, "look at what is in it");
	if (st.st_uid != 0 && st.st_uid != geteuid())
		return home_refuse(w, -EPERM,
				   "%s/%s belongs to another user (%u), who "
				   "could change what ckptfs does here; have "
				   "it removed, or chown it%s",
				   w->dir, shown, st.st_uid,
				   hint_of_squash(st.st_uid));
	if (st.st_mode & (S_IWGRP | S_IWOTH))
		return home_refuse(w, -EPERM,
				   "%s/%s can be written by other users, who "
				   "could change what ckptfs does here; chmod "
				   "go-w it",
				   w->dir, shown);
	return 0;
}

int home_open_part(const struct home_why *w, int at, const char *name,
		   const char *shown, int *ret_fd)
{
	SCOPED(scope_close) int fd = openat(at, name, DIR_FLAGS | O_NOFOLLOW);
	int rc;

	if (fd < 0 && errno == ENOENT)
		return -ENOENT;
	if (fd < 0 && (errno == ENOTDIR || errno == ELOOP))
		return home_refuse(w, -ENOTDIR,
				   "%s/%s is not a directory; ckptfs needs "
				   "that name",
				   w->dir, shown);
	if (fd < 0)
		return home_refuse_call(w, "open the directory .ckptfs in it");
	rc = check_owner(w, fd, shown);
	if (rc < 0)
		return rc;
	*ret_fd = fd;
	fd = -1;
	return 0;
}

int home_make_part(const struct home_why *w, int at, const char *name,
		   const char *shown, mode_t mode, int *ret_fd)
{
	SCOPED(scope_close) int fd = -1;
	bool made = mkdirat(at, name, 0700) == 0;
	int rc;

	if (!made && errno != EEXIST) {
		rc = -errno;
		return home_refuse(w, rc, "%s: cannot make %s in it: %s",
				   w->dir, shown, strerror(-rc));
	}
	rc = home_open_part(w, at, name, shown, &fd);
	if (rc == -ENOENT)
		return home_refuse(w, rc,
				   "%s/%s: is removed while it is made; try "
				   "again",
				   w->dir, shown);
	/* Whatever umask, bits and ACLs of the directory above it made of it.
	 */
	if (rc == 0 && made && fchmod(fd, mode) < 0)
		rc = home_refuse_call(w, "set the mode of .ckptfs in it");
	if (rc < 0 && made)
		(void)unlinkat(at, name, AT_REMOVEDIR);
	if (rc < 0)
		return rc;
	*ret_fd = fd;
	fd = -1;
	return 0;
}

int home_refuse_format(const struct home_why *w, int rc, unsigned number)
{
	if (rc == -ENOENT)
		return home_refuse(w, -EINVAL,
				   "%s is not a directory that nodes share (it "
				   "has no %s/%s): nothing is mounted there, "
				   "or 'ckptctl init --shared %s' is needed, "
				   "once",
				   w->dir, SHARED_HOME, SHARED_FORMAT_FILE,
				   w->dir);
	if (rc == -EPROTO)
		return home_refuse(w, rc,
				   "%s is shared by a newer ckptfs (format %u, "
				   "this one reads up to %u); upgrade ckptfs",
				   w->dir, number, HOME_FORMAT);
	if (rc == -EINVAL)
		return home_refuse(w, rc,
				   "%s/%s/%s is damaged or not from ckptfs; "
				   "put that file back from a copy",
				   w->dir, SHARED_HOME, SHARED_FORMAT_FILE);
	return home_refuse(w, rc, "%s/%s/%s: cannot be read: %s", w->dir,
			   SHARED_HOME, SHARED_FORMAT_FILE, strerror(-rc));
}

int shared_look_open(const char *dir, struct shared_look *ret, char *why,
		     size_t why_size)
{
	const struct home_why w = { .dir = dir, .text = why, .size = why_size };
	SCOPED(shared_look_release) struct shared_look l = SHARED_LOOK_NONE;
	unsigned number = 0;
	struct stat st;
	int rc = home_open_dir(&w, &l.dirfd);

	if (rc < 0)
		return rc;
	rc = home_open_part(&w, l.dirfd, SHARED_HOME, SHARED_HOME, &l.homefd);
	if (rc == -ENOENT)
		return home_refuse_format(&w, rc, 0);
	if (rc < 0)
		return rc;
	rc = home_format_read(l.homefd, &number, l.uuid);
	if (rc < 0)
		return home_refuse_format(&w, rc, number);
	if (fstat(l.homefd, &st) < 0)
		return home_refuse_call(&w, "look at .ckptfs in it");
	l.format = number;
	l.dev = st.st_dev;
	l.ino = st.st_ino;
	*ret = l;
	l = SHARED_LOOK_NONE;
	return 0;
}

void shared_look_release(struct shared_look *l)
{
	scope_close(&l->homefd);
	scope_close(&l->dirfd);
	*l = SHARED_LOOK_NONE;
}

enum shared_locked shared_node_locked(int nodefd)
{
	SCOPED(scope_close)
	int fd = openat(nodefd, SHARED_LOCK_FILE,
			O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK |
				O_NOCTTY);

	if (fd < 0)
		return errno == ENOENT ? SHARED_UNLOCKED : SHARED_LOCK_UNKNOWN;
	/* Shared: two that look do not take each other for the daemon. */
	if (flock(fd, LOCK_SH | LOCK_NB) == 0)
		return SHARED_UNLOCKED;
	return errno == EWOULDBLOCK ? SHARED_LOCKED : SHARED_LOCK_UNKNOWN;
}

int shared_lock_in_time(int fd)
{
	const struct timespec pause = { .tv_nsec = LOCK_POLL_NS };
	int64_t deadline_ns = mono_ns() + LOCK_WAIT_NS;

	while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		if (errno != EWOULDBLOCK || mono_ns() > deadline_ns)
			return -errno;
		(void)nanosleep(&pause, NULL);
	}
	return 0;
}

bool shared_lost_node(const char *dir, char ret_node[SHARED_NODE_MAX + 1])
{
	size_t uuid = LAYOUT_UUID_BYTES - 1, len = strlen(dir);

	if (len < uuid + 2 || len > SHARED_LOST_MAX ||
	    dir[len - uuid - 1] != '.')
		return false;
	(void)snprintf(ret_node, SHARED_NODE_MAX + 1, "%.*s",
		       (int)(len - uuid - 1), dir);
	return shared_node_is_name(ret_node);
}

static int look_in(int nodesfd, const char *name, struct shared_node *ret)
{
	SCOPED(scope_close)
	int fd = openat(nodesfd, name, DIR_FLAGS | O_NOFOLLOW);
	struct shared_node n = { .name = "" };

	if (fd < 0)
		return -errno;
	(void)snprintf(n.name, sizeof(n.name), "%s", name);
	(void)home_store_read(fd, n.store);
	n.has_alive = home_alive_read(fd, &n.alive, &n.seen_ns) == 0;
	n.locked = shared_node_locked(fd);
	*ret = n;
	return 0;
}

int shared_look_node(int homefd, const char *name, struct shared_node *ret)
{
	SCOPED(scope_close)
	int nodesfd = openat(homefd, SHARED_NODES_DIR, DIR_FLAGS | O_NOFOLLOW);

	if (!shared_node_is_name(name))
		return -ENOENT;
	return nodesfd < 0 ? -errno : look_in(nodesfd, name, ret);
}

struct each {
	int (*fn)(void *arg, const struct shared_node *n);
	void *arg;
};

static int look_each(void *arg, int nodesfd, const char *name)
{
	const struct each *e = arg;
	struct shared_node n;
	int rc;

	if (!shared_node_is_name(name))
		return 0;
	rc = look_in(nodesfd, name, &n);
	if (rc == -ENOENT || rc == -ENOTDIR || rc == -ELOOP)
		return 0; /* forgotten just now, or never a node */
	return rc < 0 ? rc : e->fn(e->arg, &n);
}

int shared_look_nodes(int homefd,
		      int (*fn)(void *arg, const struct shared_node *n),
		      void *arg)
{
	struct each e = { .fn = fn, .arg = arg };

	return dir_each(homefd, SHARED_NODES_DIR, look_each, &e);
}

int shared_look_now(int homefd, int64_t *ret_ns)
{
	SCOPED(scope_close)
	int fd = openat(homefd, SHARED_NODES_DIR, DIR_FLAGS | O_NOFOLLOW);
	struct stat st;

	if (fd < 0 || futimens(fd, NULL) < 0 || fstat(fd, &st) < 0)
		return -errno;
	*ret_ns = io_ns(&st.st_mtim);
	return 0;
}

bool shared_node_is_dead(int homefd, const char *name)
{
	struct shared_node n;
	int64_t now_ns;

	return shared_look_node(homefd, name, &n) == 0 &&
	       n.locked == SHARED_UNLOCKED &&
	       shared_look_now(homefd, &now_ns) == 0 &&
	       (!n.has_alive || now_ns - n.seen_ns > SHARED_DEAD_AFTER_NS);
}
