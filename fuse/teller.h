/*
 * teller.h - replies that must wait until the kernel has forgotten a name.
 *
 * To forget a name the kernel takes the directory's lock, which whoever looks
 * up or creates something there holds until we answer him. A thread of the loop
 * must not wait for that: when all of them do, nobody is left to answer. So a
 * thread of its own tells the kernel, and replies then.
 */
#ifndef FUSE_TELLER_H
#define FUSE_TELLER_H

#include "fuse/fs.h"
#include "store/base/ckptfs_ioctl.h"

struct teller;

int teller_start(struct fs *fs, struct teller **ret_teller);
/* When the loop has ended. t may be NULL. */
void teller_stop(struct teller *t);
/*
 * q was committed in dir: forget what the kernel remembers of the name and the
 * file, then reply to req with q. Takes req over; -ENOMEM: it does not.
 */
int teller_committed(struct teller *t, fuse_req_t req, fuse_ino_t dir,
		     const struct ckptfs_commit *q, bool replaced);

#endif
