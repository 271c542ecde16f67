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

/* Of lost/: the name of a node, a dot, and a UUID. */
#define PATH_BYTES (SHARED_NODE_MAX + LAYOUT_UUID_BYTES + 64)

static bool is_pending(const struct stat *st)
{
	return S_ISREG(st->st_mode) && (st->st_mode & S_ISVTX);
}

/* own/ in at/dir; -ENOENT: it has none. */
static int open_own(int at, const char *dir)
{
	char path[PATH_BYTES];
	int fd;

	(void)snprintf(path, sizeof(path), "%s/" SHARED_OWN_DIR, dir);
	fd = openat(at, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	return fd < 0 ? -errno : fd;
}

/* As it is now, whatever a client of DIR remembers of it. */
static int open_nodes(int homefd, bool lost, int *ret_fd)
{
	SCOPED(scope_close)
	int fd = openat(homefd, lost ? SHARED_LOST_DIR : SHARED_NODES_DIR,
			O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	int rc = fd < 0 ? -errno : dir_ask_anew(fd);

	if (rc < 0)
		return rc;
	*ret_fd = fd;
	fd = -1;
	return 0;
}

/* Whose directory is it, in nodes/ or lost/? false: of none. */
static bool node_of(const char *dir, bool lost, char ret[SHARED_NODE_MAX + 1])
{
	if (lost)
		return shared_lost_node(dir, ret);
	if (!shared_node_is_name(dir))
		return false;
	(void)snprintf(ret, SHARED_NODE_MAX + 1, "%s", dir);
	return true;
}

/* --- one file ------------------------------------------------------------- */

struct asked {
	ino_t number;
	bool lost;
	char *node;
};

static int ask(void *arg, int nodesfd, const char *dir)
{
	const struct asked *a = arg;
	char path[PATH_BYTES];
	struct stat st;

	if (!node_of(dir, a->lost, a->node))
		return 0;
	(void)snprintf(path, sizeof(path), "%s/" SHARED_OWN_DIR "/%016" PRIx64,
		       dir, (uint64_t)a->number);
	if (fstatat(nodesfd, path, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT || errno == ENOTDIR ? 0 : -errno;
	return 1;
}

static int ask_all(int homefd, ino_t number, bool lost, char *ret_node)
{
	struct asked a = { .number = number, .lost = lost, .node = ret_node };
	SCOPED(scope_close) int nodesfd = -1;
	int rc = open_nodes(homefd, lost, &nodesfd);

	return rc < 0 ? rc : dir_each(nodesfd, ".", ask, &a);
}

int pending_lost_with(int homefd, ino_t number,
		      char ret_node[SHARED_NODE_MAX + 1])
{
	int rc = ask_all(homefd, number, true, ret_node);

	if (rc == -ENOENT) /* no node was ever forgotten */
		return PENDING_NOBODYS;
	return rc > 0 ? PENDING_LOST : rc;
}

int pending_owner(int homefd, ino_t number, char ret_node[SHARED_NODE_MAX + 1])
{
	int rc = ask_all(homefd, number, false, ret_node);

	if (rc != 0)
		return rc;
	rc = ask_all(homefd, number, true, ret_node);
	if (rc == -ENOENT)
		return PENDING_NOBODYS;
	if (rc != 0)
		return rc > 0 ? PENDING_LOST : rc;
	/* It may have gone back in between, as its node joins again. */
	return ask_all(homefd, number, false, ret_node);
}

/* --- all of them ---------------------------------------------------------- */

struct owner {
	ino_t number;
	size_t node;
};

struct owner_node {
	char name[SHARED_NODE_MAX + 1];
	bool is_lost;
};

struct owners {
	bool lost; /* lost/ is being listed */
	struct owner_node *node;
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

static int add_node(void *arg, int nodesfd, const char *dir)
{
	struct owner_node node = { .is_lost = false };
	SCOPED(scope_close) int fd = -1;
	struct owners *o = arg;
	int rc;

	node.is_lost = o->lost;
	if (!node_of(dir, o->lost, node.name))
		return 0;
	fd = open_own(nodesfd, dir);
	if (fd < 0)
		return fd == -ENOENT || fd == -ENOTDIR ? 0 : fd;
	rc = vec_grow(&o->node, o->nodes, &o->nodes_room, sizeof(*o->node));
	if (rc < 0)
		return rc;
	o->node[o->nodes++] = node;
	return dir_each(fd, ".", add_link, o);
}

static int by_number(const void *a, const void *b)
{
	const struct owner *x = a, *y = b;

	return (x->number > y->number) - (x->number < y->number);
}

static int list_nodes(int homefd, bool lost, struct owners *o)
{
	SCOPED(scope_close) int nodesfd = -1;
	int rc = open_nodes(homefd, lost, &nodesfd);

	o->lost = lost;
	if (rc == -ENOENT && lost)
		return 0;
	return rc < 0 ? rc : dir_each(nodesfd, ".", add_node, o);
}

static int owners_load(int homefd, struct owners *o)
{
	int rc = list_nodes(homefd, false, o);

	if (rc == 0)
		rc = list_nodes(homefd, true, o);
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
		f.node = k->owners->node[o->node].name;
		f.is_lost = k->owners->node[o->node].is_lost;
		return k->w->found(k->w->arg, &f);
	}
	rc = pending_owner(k->homefd, st->st_ino, node);
	if (rc < 0) {
		if (k->w->unread)
			k->w->unread(k->w->arg, path, rc);
		return 0;
	}
	f.node = rc > 0 ? node : NULL;
	f.is_lost = rc == PENDING_LOST;
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

	if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT || errno == ESTALE ? 0 : -errno;
	/* It is whole by now, or its names were removed. */
	if (!is_pending(&st) || st.st_nlink <= 1)
		return 0;
	c->files++;
	c->bytes += (uint64_t)st.st_size;
	return 0;
}

int pending_count(int homefd, const char *dir, uint64_t *ret_files,
		  uint64_t *ret_bytes)
{
	SCOPED(scope_close) int fd = open_own(homefd, dir);
	struct counted c = { 0 };
	int rc = fd < 0 ? fd : dir_ask_anew(fd);

	if (rc == 0)
		rc = dir_each(fd, ".", count_link, &c);
	if (rc < 0 && rc != -ENOENT)
		return rc;
	*ret_files = c.files;
	*ret_bytes = c.bytes;
	return 0;
}
