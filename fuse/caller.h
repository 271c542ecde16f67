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

/*
 * Rank, job and host of the process pid, as the kernel gave it with a request;
 * what is not known is empty. *ret_scheduler: see writer.h.
 */
void caller_find(struct callers *c, pid_t pid, struct writer *ret,
		 bool *ret_scheduler);

#endif
