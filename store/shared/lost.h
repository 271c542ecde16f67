/*
 * lost.h - what a node had when it was forgotten: DIR/.ckptfs/lost/NAME.UUID is
 * its directory, which one rename has brought there.
 *
 * So what was pending on it is lost from that moment on: it keeps its names,
 * for whoever looks at them to know that bytes are missing, and its link says
 * with which node they went. A store of which the node is there is not mounted
 * as one of this directory, unless it joins again: then what still has a name
 * is pending on it once more.
 *
 * Errors: 0 or a negative errno; ret_* are set on success only. It blocks on
 * the file system. homefd: DIR/.ckptfs. Threads: any.
 */
#ifndef STORE_SHARED_LOST_H
#define STORE_SHARED_LOST_H

#include "store/shared/look.h"

/*
 * nodes/NODE is moved to lost/, and new/NODE removed. There it is removed, too,
 * if it has no links of files that have names, and has_more does not say that
 * it had something else that will not come; *ret_is_lost: not so. The caller
 * has its lock. -ENOENT: it is not there any more.
 */
int lost_put(int homefd, const char *node, bool has_more, bool *ret_is_lost);

struct lost_node {
	char dir[SHARED_LOST_MAX + 1]; /* in lost/ */
	char node[SHARED_NODE_MAX + 1];
	char store[LAYOUT_UUID_BYTES]; /* "": not known */
	int64_t seen_ns; /* when it last wrote `alive`, by DIR's clock; 0: never
			  */
};
/* As shared_look_nodes(). */
int lost_each(int homefd, int (*fn)(void *arg, const struct lost_node *n),
	      void *arg);

/*
 * Links of files that have a name yet go from the directories of this store to
 * ownfd; *ret: how many. They are safe to be moved twice, so that who dies in
 * between does all of it again, until lost_remove() has removed them.
 */
int lost_join(int homefd, const char *store, int ownfd, uint64_t *ret);
int lost_remove(int homefd, const char *store);

#endif
