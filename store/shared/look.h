/*
 * look.h - the shared directory as anybody may look at it: is it one, and which
 * nodes does it have?
 *
 *   DIR/.ckptfs/               0755, of root, or of the user whose DIR it is
 *   DIR/.ckptfs/format         0644: version and UUID
 *   DIR/.ckptfs/nodes/NAME/    0755: a node
 *       store, alive           0644: home_text.h
 *       lock                   0600: flock()ed by the daemon that is this node
 *       wanted/                0700: files that other nodes wait for
 *       own/                   0700: a link of each file that is pending here,
 *                              called by its inode number: own.c
 *   DIR/.ckptfs/lost/NAME.UUID/  the same of a node that was forgotten: lost.h
 *   DIR/.ckptfs/next/          0700: what is to replace a file: ticket.h
 *   DIR/.ckptfs/new/NAME/      0700: what a node moves there for a moment, to
 *                              look at it
 *
 * DIR may be anybody's to write to. So it is found by its path once, and all
 * below it from that descriptor, without following a link; and each directory
 * is refused that another user than root or this one owns, or can write to.
 *
 * Errors: 0 or a negative errno; ret_* are set on success only, and `why` (size
 * bytes) holds a sentence for the user otherwise. All of it blocks on the file
 * system, perhaps for ever.
 */
#ifndef STORE_SHARED_LOOK_H
#define STORE_SHARED_LOOK_H

#include <sys/types.h>

#include "store/shared/home_text.h"

#define SHARED_HOME ".ckptfs"
#define SHARED_FORMAT_FILE "format"
#define SHARED_NODES_DIR "nodes"
#define SHARED_LOST_DIR "lost"
#define SHARED_NEW_DIR "new"
#define SHARED_NEXT_DIR "next"
#define SHARED_LOCK_FILE "lock"
#define SHARED_STORE_FILE "store"
#define SHARED_ALIVE_FILE "alive"
#define SHARED_WANTED_DIR "wanted"
#define SHARED_OWN_DIR "own"
#define SHARED_LOST_MAX (SHARED_NODE_MAX + LAYOUT_UUID_BYTES) /* NAME.UUID */
/* `alive` is written again after at most that long. */
#define SHARED_ALIVE_PERIOD_NS (INT64_C(10) * 1000000000)
/* Who lives has written it since. */
#define SHARED_DEAD_AFTER_NS \
	(2 * SHARED_ALIVE_PERIOD_NS + SHARED_ALIVE_PERIOD_NS / 2)

struct shared_look {
	int dirfd; /* DIR */
	int homefd; /* DIR/.ckptfs */
	char uuid[LAYOUT_UUID_BYTES]; /* of the shared tree */
	unsigned format; /* HOME_FORMAT, or an older one */
	dev_t dev; /* of DIR/.ckptfs, which is not shown */
	ino_t ino;
};
#define SHARED_LOOK_NONE ((struct shared_look){ .dirfd = -1, .homefd = -1 })

/*
 * -EINVAL: it is not one, or its format is damaged. -EPROTO: a newer format.
 * -EPERM: somebody else can change what is in it. -ENOENT, ... as open(2).
 */
int shared_look_open(const char *dir, struct shared_look *ret, char *why,
		     size_t why_size);
void shared_look_release(struct shared_look *l);

enum shared_locked {
	SHARED_UNLOCKED,
	SHARED_LOCKED,
	SHARED_LOCK_UNKNOWN, /* it cannot be asked, such as by this user */
};
/* Of a directory of a node. It is asked for, and had for a moment. */
enum shared_locked shared_node_locked(int nodefd);

/*
 * An exclusive lock, within a second: who looks whether it is locked has it for
 * a moment. -EWOULDBLOCK: a daemon has it.
 */
int shared_lock_in_time(int fd);

struct shared_node {
	char name[SHARED_NODE_MAX + 1];
	char store[LAYOUT_UUID_BYTES]; /* "": not known */
	bool has_alive; /* or it never was, or its text is damaged */
	struct home_alive alive;
	int64_t seen_ns; /* when alive was written: DIR's clock */
	enum shared_locked locked;
};

/* NAME of NAME.UUID; false: it is none. */
bool shared_lost_node(const char *dir, char ret_node[SHARED_NODE_MAX + 1]);

/* -ENOENT: there is no such node. */
int shared_look_node(int homefd, const char *name, struct shared_node *ret);
/*
 * Call fn for each node until it returns other than 0, which is returned. What
 * lies there and is no node is passed over.
 */
int shared_look_nodes(int homefd,
		      int (*fn)(void *arg, const struct shared_node *n),
		      void *arg);
/*
 * Nobody has its lock, and `alive` was not written for SHARED_DEAD_AFTER_NS by
 * DIR's clock. It may be mounted again at any time.
 */
bool shared_node_is_dead(int homefd, const char *name);
/*
 * What DIR's clock says now, for seen_ns. -EACCES, -EPERM, -EROFS: who may not
 * write there is not told.
 */
int shared_look_now(int homefd, int64_t *ret_ns);

#endif
