/*
 * walk.h - everything below the shared directory but .ckptfs, once.
 *
 * It goes by descriptors and follows no link, so what others rename meanwhile
 * leads nowhere else; what appears or goes meanwhile is found or not. A
 * descriptor is open for each level, of which there are SHARED_WALK_DEPTH_MAX
 * at most: anybody may make more, and those are told of as not read.
 */
#ifndef STORE_SHARED_WALK_H
#define STORE_SHARED_WALK_H

#include <sys/stat.h>

#define SHARED_WALK_DEPTH_MAX 200

struct shared_walk {
	/*
	 * Each name, a directory before what is in it; path is from DIR. It may
	 * remove the name. Other than 0 ends the walk, which returns it.
	 */
	int (*found)(void *arg, int dirfd, const char *path, const char *name,
		     const struct stat *st);
	/* What could not be looked at, or into: -errno. May be NULL. */
	void (*unread)(void *arg, const char *path, int rc);
	void *arg;
};

/* -errno: DIR itself could not be opened. Blocks on the file system. */
int shared_walk(int dirfd, const struct shared_walk *w);

#endif
