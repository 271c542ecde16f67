/*
 * session.h - one mount: from an open store to the unmount.
 */
#ifndef FUSE_SESSION_H
#define FUSE_SESSION_H

#include "fuse/fs.h"

/*
 * From now on what libfuse says is said as ckptfs says it: on standard error,
 * and in the log once a mount is there. To be called first of all.
 */
void session_take_messages(void);
/*
 * Make the session, which checks the options that are left in args; the
 * caller destroys it. No store is needed yet. -EINVAL: an option that nobody
 * knows. That, and whatever else it is, was printed.
 */
int session_new(struct fs *fs, struct fuse_args *args, bool debug);
/*
 * Mount fs->store and serve it until it is unmounted or a signal asks for the
 * end. `ready` is called once, by another thread, when the mount can be used:
 * the kernel has been answered, and umount(8) knows our helper. Returns 0, or
 * -EIO when it could not be mounted (the reason was printed).
 */
int session_run(struct fs *fs, void (*ready)(void *arg), void *arg);

#endif
