/* device.h - may this process mount at all, and if not, what would let it? */
#ifndef FUSE_DEVICE_H
#define FUSE_DEVICE_H

/*
 * Before the mount: 0, or -errno when /dev/fuse is not there, or not for us,
 * and a sentence on standard error says what to do.
 */
int device_check(void);
/* After a mount that failed for another reason: say what is known of it. */
void device_explain(const char *mountpoint);

#endif
