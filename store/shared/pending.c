/*
 * pending.c - the links of all nodes are listed before a walk, so that each
 * file that is found is looked up in memory. One that is not there may have
 * been made since, and is asked for.
 */
#include "store/shared/pending.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/base/dir.h"
#include "store/base/scope.h"
#include "store/base/vec.h"
#include "store/shared/walk.h"

#define PATH_BYTES (SHARED_NODE_MAX + 64)

static bool is_pending(const struct stat *st)
{
	return S_ISREG(st->st_mode) && (st->st_mode & S_ISVTX);
}

/* NODE/own in nodes/; -ENOENT: it has none. */
static int open_own(int nodesfd, const char *node)
{
	char path[PATH_BYTES];
	int fd;

	(void)snprintf(path, sizeof(path), "%s/" SHARED_OWN_DIR, node);
	fd = openat(nodesfd, path,
		    O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	return fd < 0 ? -errno : fd;
}

/* As it is now, whatever a client of DIR remembers of it. */
static int open_nodes(int homefd, int *ret_fd)
{
	SCOPED(scope_close)
	int fd = openat(homefd, SHARED_NODES_DIR,
			O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	int rc = fd < 0 ? -errno : dir_ask_anew(fd);

	if (rc < 0)
		return rc;
	*ret_fd = fd;
	fd = -1;
	return 0;
}

/* --- one file ------------------------------------------------------------- */

struct asked {
	ino_t number;
	char *node;
};

static int ask(void *arg, int nodesfd, const char *node)
{
	const struct asked *a = arg;
	char path[PATH_BYTES];
	struct stat st;

	if (!shared_node_is_name(node))
		return 0;
	(void)snprintf(path, sizeof(path), "%s/" SHARED_OWN_DIR "/%016" PRIx64,
		       node, (uint64_t)a->number);
	if (fstatat(nodesfd, path, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT || errno == ENOTDIR ? 0 : -errno;
	(void)snprintf(a->node, SHARED_NODE_MAX + 1, "%s", node);
	return 1;
}

int pending_owner(int homefd, ino_t number, char ret_node[SHARED_NODE_MAX + 1])
{
	struct asked a = { .number = number, .node = ret_node };
	SCOPED(scope_close) int nodesfd = -1;
	int rc = open_nodes(homefd, &nodesfd);

	return rc < 0 ? rc : dir_each(nodesfd, ".", ask, &a);
}

/* --- all of them ---------------------------------------------------------- */

struct owner {
	ino_t number;
	size_t node;
};

struct owners {
	char (*node)[SHARED_NODE_MAX + 1];
	size_t nodes, nodes_room;
	struct owner *at; /* by number */
	size_t count, room;
};

static void owners_release(struct owners *o)
{
	free(o->node);
	free(o->at);
}

static int add_link(void *arg, int fd, const char *name)
{
	struct owners *o = arg;
	int rc = vec_grow(&o->at, o->count, &o->room, sizeof(*o->at));

	(void)fd;
	if (rc == 0)
		o->at[o->count++] =
			(struct owner){ (ino_t)strtoull(name, NULL, 16),
					o->nodes - 1 };
	return rc;
}

static int add_node(void *arg, int nodesfd, const char *name)
{
	SCOPED(scope_close) int fd = -1;
	struct owners *o = arg;
	int rc;

	if (!shared_node_is_name(name))
		return 0;
	fd = open_own(nodesfd, name);
	if (fd < 0)
		return fd == -ENOENT || fd == -ENOTDIR ? 0 : fd;
	rc = vec_grow(&o->node, o->nodes, &o->nodes_room, sizeof(*o->node));
	if (rc < 0)
		return rc;
	(void)snprintf(o->node[o->nodes++], sizeof(*o->node), "%s", name);
	return dir_each(fd, ".", add_link, o);
}

static int by_number(const void *a, const void *b)
{
	const struct owner *x = a, *y = b;

	return (x->number > y->number) - (x->number < y->number);
}

static int owners_load(int homefd, struct owners *o)
{
	SCOPED(scope_close) int nodesfd = -1;
	int rc = open_nodes(homefd, &nodesfd);

	if (rc == 0)
		rc = dir_each(nodesfd, ".", add_node, o);
	if (rc == 0 && o->count > 0)
		qsort(o->at, o->count, sizeof(*o->at), by_number);
	return rc;
}

struct walking {
	const struct pending_walk *w;
	const struct owners *owners;
	int homefd;
};

static int find(void *arg, int dirfd, const char *path, const char *name,
		const struct stat *st)
{
	const struct walking *k = arg;
	const struct owner key = { .number = st->st_ino }, *o = NULL;
	struct pending_file f = {
		.path = path, .dirfd = dirfd, .name = name, .st = *st
	};
	char node[SHARED_NODE_MAX + 1];
	int rc;

	if (!is_pending(st))
		return 0;
	if (k->owners->count > 0)
		o = bsearch(&key, k->owners->at, k->owners->count, sizeof(key),
			    by_number);
	if (o) {
		f.node = k->owners->node[o->node];
		return k->w->found(k->w->arg, &f);
	}
	rc = pending_owner(k->homefd, st->st_ino, node);
	if (rc < 0) {
		if (k->w->unread)
			k->w->unread(k->w->arg, path, rc);
		return 0;
	}
	f.node = rc > 0 ? node : NULL;
	return k->w->found(k->w->arg, &f);
}

static void pass_unread(void *arg, const char *path, int rc)
{
	const struct walking *k = arg;

	if (k->w->unread)
		k->w->unread(k->w->arg, path, rc);
}

int pending_walk(int dirfd, int homefd, const struct pending_walk *w)
{
	SCOPED(owners_release) struct owners owners = { .count = 0 };
	struct walking k = { .w = w, .owners = &owners, .homefd = homefd };
	const struct shared_walk all = { .found = find,
					 .unread = pass_unread,
					 .arg = &k };
	int rc = owners_load(homefd, &owners);

	return rc < 0 ? rc : shared_walk(dirfd, &all);
}

struct counted {
	uint64_t files, bytes;
};

static int count_link(void *arg, int fd, const char *name)
{
	struct counted *c = arg;
	struct stat st;

	/* It is whole by now, or its names were removed. */
	if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
	    !is_pending(&st) || st.st_nlink <= 1)
		return 0;
	c->files++;
	c->bytes += (uint64_t)st.st_size;
	return 0;
}

int pending_count(int homefd, const char *node, uint64_t *ret_files,
		  uint64_t *ret_bytes)
{
	SCOPED(scope_close) int nodesfd = -1, fd = -1;
	struct counted c = { 0 };
	int rc = open_nodes(homefd, &nodesfd);

	if (rc == 0) {
		fd = open_own(nodesfd, node);
		rc = fd < 0 ? fd : dir_each(fd, ".", count_link, &c);
	}
	if (rc < 0 && rc != -ENOENT)
		return rc;
	*ret_files = c.files;
	*ret_bytes = c.bytes;
	return 0;
}
