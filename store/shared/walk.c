/*
 * walk.c - the levels that are open are a stack with a fixed end, not calls
 * within calls: how deep it gets is up to whoever may write there.
 */
#include "store/shared/walk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "store/base/dir.h"
#include "store/base/scope.h"
#include "store/shared/look.h"

#define DIR_FLAGS (O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)

struct walker {
	const struct shared_walk *w;
	unsigned depth; /* levels that are open */
	DIR *levels[SHARED_WALK_DEPTH_MAX];
	size_t lengths[SHARED_WALK_DEPTH_MAX]; /* of their paths */
	char path[PATH_MAX];
};

static void unread(const struct walker *k, int rc)
{
	if (k->w->unread)
		k->w->unread(k->w->arg, k->path[0] ? k->path : ".", rc);
}

/* The directory of k->path becomes the last level. */
static int push(struct walker *k, int at, const char *name)
{
	SCOPED(scope_close) int fd = -1;
	DIR *dir;
	int rc;

	if (k->depth == SHARED_WALK_DEPTH_MAX)
		return -ENAMETOOLONG;
	fd = openat(at, name, DIR_FLAGS);
	if (fd < 0)
		return -errno;
	rc = dir_ask_anew(fd);
	if (rc < 0)
		return rc;
	dir = fdopendir(fd);
	if (!dir)
		return -errno;
	fd = -1;
	k->levels[k->depth] = dir;
	k->lengths[k->depth] = strlen(k->path);
	k->depth++;
	return 0;
}

static void pop(struct walker *k)
{
	(void)closedir(k->levels[--k->depth]);
}

/* It is away, or a link in its place is not followed: that is no error. */
static bool is_gone(int rc)
{
	return rc == -ENOENT || rc == -ENOTDIR || rc == -ELOOP;
}

/* k->path is the one of name in the last level. */
static int visit(struct walker *k, const char *name)
{
	int at = dirfd(k->levels[k->depth - 1]);
	struct stat st;
	int rc = 0;

	if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		rc = -errno;
	if (rc < 0) {
		if (!is_gone(rc))
			unread(k, rc);
		return 0;
	}
	rc = k->w->found(k->w->arg, at, k->path, name, &st);
	if (rc != 0 || !S_ISDIR(st.st_mode))
		return rc;
	rc = push(k, at, name);
	if (rc < 0 && !is_gone(rc))
		unread(k, rc);
	return 0;
}

static bool is_passed_over(const struct walker *k, const char *name)
{
	return strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ||
	       (k->depth == 1 && strcmp(name, SHARED_HOME) == 0);
}

/* The next name of the last level, or the end of it. */
static int step(struct walker *k)
{
	size_t len = k->lengths[k->depth - 1];
	size_t left = sizeof(k->path) - len;
	struct dirent *d;
	int added;

	k->path[len] = 0;
	errno = 0;
	d = readdir(k->levels[k->depth - 1]);
	if (!d) {
		if (errno != 0)
			unread(k, -errno);
		pop(k);
		return 0;
	}
	if (is_passed_over(k, d->d_name))
		return 0;
	added = snprintf(k->path + len, left, "%s%s", len > 0 ? "/" : "",
			 d->d_name);
	if (added < 0 || (size_t)added >= left) {
		k->path[len] = 0;
		unread(k, -ENAMETOOLONG);
		return 0;
	}
	return visit(k, d->d_name);
}

int shared_walk(int dirfd, const struct shared_walk *w)
{
	struct walker k = { .w = w };
	int rc = push(&k, dirfd, ".");

	while (rc == 0 && k.depth > 0)
		rc = step(&k);
	while (k.depth > 0)
		pop(&k);
	return rc;
}
