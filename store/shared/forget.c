/*
 * forget.c - the lock goes last, so that what is left when the removal is
 * interrupted is still a node, and is forgotten the next time.
 */
#include "store/shared/forget.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "store/base/dir.h"
#include "store/base/scope.h"
#include "store/shared/look.h"
#include "store/shared/ticket.h"

/* What is taken has its place in milliseconds, if its node lives. */
#define PAUSE_NS 10000000
#define PAUSES_MAX 500

#define DIR_FLAGS (O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)

static int open_parent(int homefd, const char *parent, int *ret_fd)
{
	int fd = openat(homefd, parent, DIR_FLAGS);

	if (fd < 0)
		return -errno;
	*ret_fd = fd;
	return 0;
}

int shared_node_lock(int homefd, const char *node, int *ret_lockfd)
{
	SCOPED(scope_close) int nodesfd = -1;
	SCOPED(scope_close) int nodefd = -1;
	SCOPED(scope_close) int fd = -1;
	int rc = open_parent(homefd, SHARED_NODES_DIR, &nodesfd);

	if (rc == 0)
		rc = open_parent(nodesfd, node, &nodefd);
	if (rc < 0)
		return rc;
	fd = openat(nodefd, SHARED_LOCK_FILE,
		    O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK |
			    O_NOCTTY,
		    0600);
	if (fd < 0)
		return -errno;
	rc = shared_lock_in_time(fd);
	if (rc < 0)
		return rc;
	*ret_lockfd = fd;
	fd = -1;
	return 0;
}

static int unlink_or_gone(int dirfd, const char *name, int flags)
{
	return unlinkat(dirfd, name, flags) < 0 && errno != ENOENT ? -errno : 0;
}

static int remove_file(void *arg, int dirfd, const char *name)
{
	(void)arg;
	return unlink_or_gone(dirfd, name, 0);
}

/* A file, or a directory of files, but for the lock. */
static int remove_part(void *arg, int dirfd, const char *name)
{
	int rc;

	if (strcmp(name, SHARED_LOCK_FILE) == 0)
		return 0;
	rc = unlink_or_gone(dirfd, name, 0);
	if (rc != -EISDIR && rc != -EPERM)
		return rc;
	rc = dir_each(dirfd, name, remove_file, arg);
	return rc < 0 ? rc : unlink_or_gone(dirfd, name, AT_REMOVEDIR);
}

int shared_node_remove_dir(int homefd, const char *parent, const char *node)
{
	SCOPED(scope_close) int parentfd = -1;
	SCOPED(scope_close) int fd = -1;
	int rc = open_parent(homefd, parent, &parentfd);

	if (rc == 0)
		rc = open_parent(parentfd, node, &fd);
	if (rc == 0)
		rc = dir_each(fd, ".", remove_part, NULL);
	if (rc == 0)
		rc = unlink_or_gone(fd, SHARED_LOCK_FILE, 0);
	if (rc == 0)
		rc = unlink_or_gone(parentfd, node, AT_REMOVEDIR);
	if (rc == 0 && fsync(parentfd) < 0)
		rc = -errno;
	return rc == -ENOENT ? 0 : rc;
}

int shared_node_remove(int homefd, const char *node)
{
	int rc = shared_node_remove_dir(homefd, SHARED_NEW_DIR, node);

	return rc < 0 ? rc
		      : shared_node_remove_dir(homefd, SHARED_NODES_DIR, node);
}

/* --- what it was about to put somewhere ----------------------------------- */

struct ended {
	const char *node;
	int nextfd;
	int (*fn)(void *arg, const struct ticket_left *t);
	void *arg;
};

static int end_ticket(void *arg, const struct ticket_left *t)
{
	const struct ended *e = arg;
	int rc;

	if (strcmp(t->node, e->node) != 0 || ticket_is_to_finish(t))
		return 0;
	rc = e->fn(e->arg, t);
	return rc > 0 ? ticket_drop(e->nextfd, t->path) : rc;
}

int shared_node_tickets(int homefd, const char *node,
			int (*fn)(void *arg, const struct ticket_left *t),
			void *arg)
{
	struct ended e = { .node = node, .fn = fn, .arg = arg };
	SCOPED(scope_close) int nextfd = -1;
	int rc = open_parent(homefd, SHARED_NEXT_DIR, &nextfd);

	e.nextfd = nextfd;
	if (rc == 0)
		rc = tickets_each(nextfd, end_ticket, &e);
	return rc == -ENOENT ? 0 : rc; /* nothing was ever replaced there */
}

struct patience {
	unsigned pauses;
};

static int pause_for_others(void *arg, const char *taken)
{
	const struct timespec pause = { .tv_nsec = PAUSE_NS };
	struct patience *p = arg;

	(void)taken;
	if (p->pauses++ == PAUSES_MAX)
		return -EBUSY;
	(void)nanosleep(&pause, NULL);
	return 0;
}

static bool is_of(void *arg, const struct ticket_left *t)
{
	return strcmp(t->node, arg) == 0;
}

int shared_node_finish(int dirfd, int homefd, const char *node)
{
	char name[SHARED_NODE_MAX + 1];
	struct patience patience = { 0 };
	const struct ticket_wait wait = { pause_for_others, &patience };
	const struct ticket_pick pick = { is_of, name };
	SCOPED(scope_close) int nextfd = -1;
	int rc = open_parent(homefd, SHARED_NEXT_DIR, &nextfd);

	(void)snprintf(name, sizeof(name), "%s", node);
	if (rc == 0)
		rc = tickets_finish(dirfd, nextfd, &pick, &wait);
	return rc == -ENOENT ? 0 : rc;
}

bool shared_node_has_new(int homefd, const char *node)
{
	SCOPED(scope_close) int newfd = -1;

	return open_parent(homefd, SHARED_NEW_DIR, &newfd) == 0 &&
	       faccessat(newfd, node, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}
