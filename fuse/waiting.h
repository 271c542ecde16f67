/*
 * waiting.h - operations whose waits end when their caller is to end.
 *
 * From waiting_begin() to waiting_end(), which comes before the reply, what the
 * thread waits for ends with -EINTR once the kernel says that the caller has a
 * signal, and it is one that ends programs: see caller_is_to_end(). Of any
 * other the caller is not to hear: no local file system lets a rename or an
 * fsync fail because a child has ended, or a timer, and programs are written
 * so.
 */
#ifndef FUSE_WAITING_H
#define FUSE_WAITING_H

#include "fuse/fs.h"
#include "store/base/interrupt.h"

struct waiting {
	struct interrupt interrupt; /* first: it is handed on as such */
	fuse_req_t req;
	struct drain *drain;
	struct callers *callers;
	pid_t pid;
};

/* What the loop can make again (loop.h) waits without a thread instead. */
void waiting_begin(struct waiting *w, fuse_req_t req);
void waiting_end(struct waiting *w);

#endif
