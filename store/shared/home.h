/*
 * home.h - what DIR/.ckptfs holds, for the daemon that is one of its nodes.
 * look.h says what lies there.
 *
 * A node is a name and a store, which belong to each other for good: pending
 * files say both, and nobody but that store can complete them. Who has a node
 * holds its lock until shared_home_release(), so no two daemons are one node.
 * All that DIR must be able to do is tried before it is used, so that what is
 * missing is said when it is mounted and not when bytes are lost.
 *
 * Errors: 0 or a negative errno; ret_* are set on success only, and `why` (size
 * bytes) holds a sentence for the user otherwise. All of it blocks on the file
 * system, perhaps for ever. Threads: any, but one at a time for one home.
 */
#ifndef STORE_SHARED_HOME_H
#define STORE_SHARED_HOME_H

#include "store/shared/look.h"

struct shared_home {
	int dirfd; /* DIR */
	int homefd; /* DIR/.ckptfs */
	int newfd; /* DIR/.ckptfs/new/NAME */
	int nextfd; /* DIR/.ckptfs/next: ticket.h */
	int nodefd; /* DIR/.ckptfs/nodes/NAME */
	int ownfd; /* DIR/.ckptfs/nodes/NAME/own */
	int lockfd; /* whoever has it is this node */
	bool is_new; /* or was forgotten, and is made again */
	bool joins; /* it was forgotten: lost.h */
	uint64_t joined; /* files that are pending on it again */
	bool is_unlocked; /* a daemon of this node that died still has it */
	char uuid[LAYOUT_UUID_BYTES]; /* of the shared tree */
	char node[SHARED_NODE_MAX + 1];
	dev_t dev; /* of DIR/.ckptfs, which is not shown */
	ino_t ino;
	int64_t since_ns; /* the wall clock when it was opened */
};
#define SHARED_HOME_NONE                     \
	((struct shared_home){ .dirfd = -1,  \
			       .homefd = -1, \
			       .newfd = -1,  \
			       .nextfd = -1, \
			       .nodefd = -1, \
			       .ownfd = -1,  \
			       .lockfd = -1 })

/*
 * DIR, which must be there and may hold anything, becomes a shared directory.
 * -EEXIST: it is one. -EUCLEAN: it was one, or is one with a part missing.
 * -EINVAL: something else is called .ckptfs, or DIR is a store.
 */
int shared_home_make(const char *dir, char *why, size_t why_size);

/*
 * As the node of that name, with that store. Its directories and `store` are
 * made when they are not there; `alive` is not written yet. -EBUSY: a daemon
 * has this node. -EEXIST: the name is another store's, or the store has another
 * name here. -ESHUTDOWN: the store's node was forgotten (lost.h), and rejoin
 * does not say that it comes back; then shared_home_joined() is to be called
 * when what it has is known. -EOPNOTSUPP: DIR cannot do something. Others:
 * shared_look_open().
 */
int shared_home_open(const char *dir, const char *node, const char *store_uuid,
		     bool rejoin, struct shared_home *ret, char *why,
		     size_t why_size);
int shared_home_joined(const struct shared_home *h, const char *store_uuid);
/* DIR's client has not lost what it had, so that what is not there is not. */
bool shared_home_answers(const struct shared_home *h);
/* Gives the node up; `alive` stays as it is. Also of SHARED_HOME_NONE. */
void shared_home_release(struct shared_home *h);

/*
 * Writes `alive` anew; to be called each SHARED_ALIVE_PERIOD_NS. -ESHUTDOWN:
 * it was forgotten, and no other node knows it any more.
 */
int shared_home_alive(struct shared_home *h);

/* shared_look_nodes() of a directory that is not open. */
int shared_home_nodes(const char *dir,
		      int (*fn)(void *arg, const struct shared_node *n),
		      void *arg);

/* Mode of a pending file of this user: what others see until it is whole. */
mode_t shared_pending_mode(void);

#endif
