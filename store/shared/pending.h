/*
 * pending.h - whose are the files of the shared directory that are not whole?
 *
 * A regular file with the sticky bit and no permissions, but its owner's where
 * the daemon is no root, is pending: its bytes are on one node, on their way.
 * The node says so by a link in DIR/.ckptfs/nodes/NODE/own, called by the
 * file's number (own.c). When the node was forgotten that is in lost/, and the
 * file is lost (lost.h). Without a link it is being made at this moment; or its
 * node died between the two calls that make it, and nobody will ever complete
 * it.
 *
 * Errors: 0 or a negative errno; ret_* are set on success only. It blocks on
 * the file system. Threads: any.
 */
#ifndef STORE_SHARED_PENDING_H
#define STORE_SHARED_PENDING_H

#include <sys/stat.h>
#include <time.h>

#include "store/shared/look.h"

/*
 * The mode that a pending file will have, for who looks at it on other nodes,
 * is what its time of access says: nobody reads it meanwhile, and all file
 * systems keep whole seconds. Where that is none it is not known, and anybody
 * may come, and wait: when the file is whole DIR itself says who may read it.
 */
#define PENDING_ATIME_S INT64_C(1048576)
#define PENDING_MODE_UNKNOWN 0644u
static inline struct timespec pending_atime(mode_t mode)
{
	return (struct timespec){ .tv_sec = PENDING_ATIME_S + (mode & 07777) };
}

static inline mode_t pending_mode_of(const struct stat *st)
{
	int64_t mode = (int64_t)st->st_atim.tv_sec - PENDING_ATIME_S;

	return mode >= 0 && mode <= 07777 ? (mode_t)mode : PENDING_MODE_UNKNOWN;
}

enum {
	PENDING_NOBODYS = 0,
	PENDING_OF_NODE = 1,
	PENDING_LOST = 2, /* with a node that was forgotten */
};
/*
 * Looks for the link, and says whose it is but for PENDING_NOBODYS; -errno: it
 * could not be looked for everywhere. homefd: DIR/.ckptfs. It asks each node
 * once; pending_lost_with() asks only those that were forgotten.
 */
int pending_owner(int homefd, ino_t number, char ret_node[SHARED_NODE_MAX + 1]);

int pending_lost_with(int homefd, ino_t number,
		      char ret_node[SHARED_NODE_MAX + 1]);

struct pending_file {
	const char *path; /* from DIR */
	int dirfd; /* that it is in */
	const char *name;
	const char *node; /* NULL: nobody says that he has it */
	bool is_lost; /* with that node */
	struct stat st;
};

/* As shared_walk(), of pending files alone. */
struct pending_walk {
	int (*found)(void *arg, const struct pending_file *f);
	void (*unread)(void *arg, const char *path, int rc); /* or NULL */
	void *arg;
};
int pending_walk(int dirfd, int homefd, const struct pending_walk *w);

/*
 * The files that are pending on a node, and their bytes as far as their sizes
 * are known yet: what its links say, without a walk. dir: the node's, such as
 * SHARED_NODES_DIR "/NODE".
 */
int pending_count(int homefd, const char *dir, uint64_t *ret_files,
		  uint64_t *ret_bytes);

#endif
