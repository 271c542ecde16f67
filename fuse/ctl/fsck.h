/* fsck.h - what `fsck` does for a directory that nodes share. */
#ifndef FUSE_CTL_FSCK_H
#define FUSE_CTL_FSCK_H

#include <stdbool.h>

/* The exit code. */
int ctl_fsck_shared(const char *dir, bool json);

#endif
