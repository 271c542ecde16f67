/*
 * mount.h - a mount as this process reaches it: found by a path, connected
 * once, and asked for segments.
 */
#ifndef GPU_MOUNT_H
#define GPU_MOUNT_H

#include "gpu/private.h"

/* Give every segment and connection back. For ckpt_close(). */
void mounts_close(struct ckpt *c);

#endif
