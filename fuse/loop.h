/*
 * loop.h - the threads that serve the mount's requests.
 *
 * A request that waits for the disk has a thread until it is answered, and of
 * those there are few. So that whoever lets many calls wait takes no thread
 * from others: an eighth of the threads is never given to such requests, and a
 * user has as many of the rest as are left, at most: half if he is alone (root,
 * and the user that the daemon runs as, have all). What is beyond that is read
 * and held without a thread, in the order in which it came, until one of those
 * that run has ended. Whoever made such a call and is to end is answered with
 * EINTR at once, as if it were waiting (waiting.h).
 *
 * What waits for another node's file has no thread at all: it is put off, that
 * is, its request is held for a while without an answer, and then served from
 * its beginning, until there is one. So many of them keep nobody waiting.
 */
#ifndef FUSE_LOOP_H
#define FUSE_LOOP_H

#include "fuse/fs.h"
#include "store/base/interrupt.h"

/*
 * Serve until the session ends: it is unmounted, or somebody has called
 * fuse_session_exit() in this thread, as a signal's handler does. fs->threads
 * is how many threads there may be. 0 or -errno.
 */
int loop_run(struct fs *fs);

/*
 * May the request that this thread serves be put off? Then what it keeps from
 * one try to the next, until it has been answered; else NULL.
 */
struct put_off *loop_may_put_off(void);
/* Put it off for its pause_ns. Instead of an answer; req is gone. */
void loop_put_off(fuse_req_t req);

#endif
