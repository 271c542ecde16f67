/*
 * destination.h - where a save's file goes: a directory, which is kept open,
 * and a name in it.
 *
 * Errors: 0 or a negative errno, with a sentence.
 */
#ifndef GPU_DESTINATION_H
#define GPU_DESTINATION_H

#include <stdbool.h>

struct destination {
	char *path; /* owned; as it was given, for messages */
	char *directory, *name; /* owned */
	int dirfd;
	bool in_mount; /* the directory is in a ckptfs mount; its user sets it
			*/
};

int destination_open(const char *path, struct destination *ret);
/* The directory again, after the mount was started anew. */
int destination_reopen(struct destination *d);
void destination_close(struct destination *d);

#endif
