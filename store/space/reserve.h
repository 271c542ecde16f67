/*
 * reserve.h - a file that only takes room on the store's disk, and a folder of
 * empty ones that only take inodes, to be given up.
 *
 * What the store adds itself leaves some room for deletions (kv_room()). But
 * the kernel writes to the stages on the disk by itself, and others write
 * beside the store: either can take the disk to its last byte, and then the
 * database cannot even be told to delete. Once it has found the disk full the
 * reserve is given up, so that deletions go on, within seconds; it is made
 * again when there is plenty of room.
 *
 * A full disk is mounted in the same way: the reserve goes before the
 * database is opened, and so do the inodes of one that has bytes and no inode:
 * the database opens with new files.
 *
 * Threads: reserve_look() is the drain's timer's alone.
 */
#ifndef STORE_RESERVE_H
#define STORE_RESERVE_H

#include <stdbool.h>

struct kv;

struct reserve {
	const char *path; /* of the store, for messages */
	int dirfd;
	struct kv *kv;
	bool made; /* it is there */
	bool never; /* this file system cannot allocate: do not ask again */
	bool inodes_made, inodes_never;
};

/*
 * Before the database is opened, which needs room for what its log holds, and
 * inodes: on a disk that has less than the reserve it is given up.
 */
void reserve_give_up(const char *path, int dirfd);
/*
 * Is it there from the last mount? Before the threads start; all three are
 * borrowed.
 */
void reserve_init(struct reserve *r, const char *path, int dirfd,
		  struct kv *kv);
/* Make it, or give it up, as things are now. */
void reserve_look(struct reserve *r);

#endif
