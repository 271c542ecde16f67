/*
 * twin.h - the other mapping of a structure, before a save needs it: a thread
 * has it made, mapped, pinned and touched. The first touch of shared memory
 * costs more than the copy into it.
 */
#ifndef GPU_TWIN_H
#define GPU_TWIN_H

#include "gpu/mapping.h"

/* Prepare p's twin; dirfd and node as for acquire_mapping(). */
void twin_prepare(const struct mapping *p, int dirfd, int node);
/* Wait for those that are being prepared. For ckpt_close(). */
void twins_wait(struct ckpt *c);

#endif
