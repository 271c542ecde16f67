/*
 * pending.h - is a file of the shared directory whole, and if not, whose is it?
 *
 * The sticky bit says that it is not. What it lacks then is at its end: the
 * trailer, or nothing yet, or nothing any more, for a moment in the life of a
 * node, and for good after its death.
 *
 * Errors: 0 or a negative errno; ret_* are set on success only. It blocks on
 * the file system.
 */
#ifndef STORE_SHARED_PENDING_H
#define STORE_SHARED_PENDING_H

#include <sys/stat.h>

#include "store/shared/trailer.h"

enum pending {
	PENDING_NOT, /* it is plain, or no regular file, or gone */
	PENDING_TOLD, /* the trailer says of which node */
	PENDING_BARE, /* without a trailer */
	PENDING_DAMAGED, /* with one that is not believed */
};

/*
 * The file of that name, which is not followed when it is a link. ret_trailer
 * is set with PENDING_TOLD, ret_st but with PENDING_NOT.
 */
int pending_look(int dirfd, const char *name, enum pending *ret_is,
		 struct trailer *ret_trailer, struct stat *ret_st);

struct pending_file {
	const char *path; /* from DIR */
	int dirfd; /* that it is in */
	const char *name;
	enum pending is; /* not PENDING_NOT */
	struct trailer trailer; /* with PENDING_TOLD */
	struct stat st;
};

/* As shared_walk(), of pending files alone. */
struct pending_walk {
	int (*found)(void *arg, const struct pending_file *f);
	void (*unread)(void *arg, const char *path, int rc); /* or NULL */
	void *arg;
};
int pending_walk(int dirfd, const struct pending_walk *w);

#endif
