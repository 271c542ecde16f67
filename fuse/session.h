/*
 * session.h - one mount: from an open store to the unmount.
 */
#ifndef FUSE_SESSION_H
#define FUSE_SESSION_H

#include "fuse/fs.h"

/*
 * Mount fs->store and serve it until it is unmounted or a signal asks for the
 * end. `ready` is called once when the mount can be used. Returns 0, or
 * -errno when it could not be mounted (the reason was printed).
 */
int session_run(struct fs *fs, struct fuse_args *args, bool debug,
		void (*ready)(void *arg), void *arg);

#endif
