/*
 * umount8.h - have umount(8) ask umount.fuse.ckptfs.
 *
 * For root, umount(8) takes a mount for "fuse" and asks no helper, unless
 * mount(8) has noted something about it in /run/mount/utab. So it is asked to
 * note which helper belongs to the mount. Where the helper is not installed,
 * the process is not root's, or nothing can be noted, all of this does nothing:
 * then umount(8) unmounts without asking, as before.
 */
#ifndef FUSE_UMOUNT8_H
#define FUSE_UMOUNT8_H

#include <stdbool.h>

#define UMOUNT8_WAIT_MS 5000

/*
 * Note the helper. Blocks, for UMOUNT8_WAIT_MS at most, and the mount must
 * answer meanwhile. True: there is something to forget at the end.
 */
bool umount8_note(const char *store, const char *mountpoint);
/* The mount is gone, and not by umount(8) perhaps. */
void umount8_forget(const char *mountpoint);

#endif
