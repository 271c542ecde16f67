/*
 * forget.h - the end of a node that does not come back; lost.h has what stays.
 *
 * Whoever forgets one has its lock, from before he looks whether it is alive
 * until all of it is gone, so that no daemon becomes this node meanwhile.
 *
 * Errors: 0 or a negative errno; ret_* are set on success only. It blocks on
 * the file system.
 */
#ifndef STORE_SHARED_FORGET_H
#define STORE_SHARED_FORGET_H

#include <stdbool.h>

#include "store/shared/ticket.h"

/*
 * *ret_lockfd is the caller's to close. -ENOENT: there is no such node.
 * -EWOULDBLOCK: a daemon has it.
 */
int shared_node_lock(int homefd, const char *node, int *ret_lockfd);
/*
 * nodes/NODE and new/NODE are removed, with all that is in them; those that are
 * not there are no error. -ENOTEMPTY: somebody has made the node anew.
 */
int shared_node_remove(int homefd, const char *node);
/* The same of parent/node alone. */
int shared_node_remove_dir(int homefd, const char *parent, const char *node);
/*
 * What the node was about to put in the place of something else, and what is of
 * no use without it: each is told, and removed, too, if fn returns 1.
 */
int shared_node_tickets(int homefd, const char *node,
			int (*fn)(void *arg, const struct ticket_left *t),
			void *arg);
/*
 * And what it had taken, is whole, and was to have its place in that moment,
 * has it. -EBUSY: other nodes' are to have theirs before.
 */
int shared_node_finish(int dirfd, int homefd, const char *node);
/* Is there anything in new/NODE, or that directory itself? */
bool shared_node_has_new(int homefd, const char *node);

#endif
