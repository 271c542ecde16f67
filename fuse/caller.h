/*
 * caller.h - which rank of which job a request comes from.
 *
 * The process waits for our answer, so that it is still the one that asked: its
 * number cannot have been used again. Its environment is read once and
 * remembered for as long as that process lives and does not execute another
 * program. Of the environment only what struct writer holds is kept.
 *
 * A process in a pid namespace below that of the daemon has a number here
 * too, and is found by it. One outside has none (0): nothing is known of it,
 * as of one whose environment may not be read.
 *
 * Threads: any thread. Blocks on the memory of the process that asks: call it
 * with no lock held.
 */
#ifndef FUSE_CALLER_H
#define FUSE_CALLER_H

#include <stdbool.h>
#include <sys/types.h>

#include "store/db/writer.h"

struct callers;

/* NULL: out of memory. */
struct callers *callers_new(void);
void callers_free(struct callers *c);
/* The process's number in /proc; 0: not known. */
pid_t caller_in_proc(const struct callers *c, pid_t pid);

/*
 * Rank, job and host of the process pid, as the kernel gave it with a request;
 * what is not known is empty. *ret_scheduler: see writer.h.
 */
void caller_find(struct callers *c, pid_t pid, struct writer *ret,
		 bool *ret_scheduler);

/*
 * Has the thread pid, whose call may be interrupted, a signal that is to end
 * what it does? That is one that nobody catches and that kills it, or SIGINT or
 * SIGQUIT, which come from somebody who is tired of waiting. When that cannot
 * be known: was the kernel heard to say that it was interrupted?
 */
bool caller_is_to_end(const struct callers *c, pid_t pid, bool heard);

/*
 * Has the thread pid, of the user uid, CAP_SYS_ADMIN where the daemon runs? Of
 * one that cannot be looked at: when it is root's.
 */
bool caller_is_admin(const struct callers *c, pid_t pid, uid_t uid);

#endif
