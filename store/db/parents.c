/*
 * parents.c - see parents.h. From / down, each directory is looked at by its
 * name when nobody else can change that name any more: so no descriptors are
 * needed, and a directory that is exchanged meanwhile is in one that is
 * refused.
 */
#include "store/db/parents.h"

#include <errno.h>
#include <libgen.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/scope.h"

/* The directory `dir`, above the store at `path`. */
static int look_at(const char *dir, const char *path, char *why,
		   size_t why_size)
{
	struct stat sb;

	if (lstat(dir, &sb) < 0)
		return -errno;
	if (!S_ISDIR(sb.st_mode))
		return -ENOTDIR;
	if (sb.st_uid != 0 && sb.st_uid != geteuid()) {
		(void)snprintf(why, why_size,
			       "%s: the directory %s above it belongs to "
			       "another user (%u), who could put other files "
			       "in its place; give a directory of which all "
			       "above it belong to root or to user %u",
			       path, dir, sb.st_uid, geteuid());
		return -EPERM;
	}
	if ((sb.st_mode & (S_IWGRP | S_IWOTH)) && !(sb.st_mode & S_ISVTX)) {
		(void)snprintf(why, why_size,
			       "%s: the directory %s above it can be written "
			       "by other users, who could put other files in "
			       "its place; chmod go-w %s, or give another "
			       "directory",
			       path, dir, dir);
		return -EPERM;
	}
	return 0;
}

/* Without links; of what is not there yet, the directory that it will be in. */
static int resolve(const char *path, char **ret_real)
{
	SCOPED(scope_free) char *real = realpath(path, NULL);
	SCOPED(scope_free) char *copy = NULL, *name = NULL, *parent = NULL;

	if (!real && errno == ENOENT) {
		copy = strdup(path);
		name = strdup(path);
		parent = copy ? realpath(dirname(copy), NULL) : NULL;
		if (!parent || !name)
			return errno ? -errno : -ENOMEM;
		if (asprintf(&real, "%s/%s", parent[1] ? parent : "",
			     basename(name)) < 0)
			real = NULL;
	}
	if (!real)
		return errno ? -errno : -ENOMEM;
	*ret_real = TAKE(real);
	return 0;
}

int parents_check(const char *path, char **ret_path, char *why, size_t why_size)
{
	SCOPED(scope_free) char *real = NULL;
	int rc = resolve(path, &real);

	/* "/", then each that ends before a slash, but not the store itself. */
	for (char *at = real; rc == 0 && at; at = strchr(at + 1, '/')) {
		char *end = at == real ? at + 1 : at;
		char kept = *end;

		*end = 0;
		rc = look_at(real, path, why, why_size);
		*end = kept;
	}
	if (rc == 0)
		*ret_path = TAKE(real);
	else if (rc == -ENOENT)
		(void)snprintf(why, why_size,
			       "%s: the directory above it does not exist; "
			       "make that one first",
			       path);
	else if (rc != -EPERM)
		(void)snprintf(why, why_size, "%s: %s", path, strerror(-rc));
	return rc;
}
