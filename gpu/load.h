/*
 * load.h - what loading leaves with the process's handle: transfer buffers
 * that are pinned, which takes longer than filling them, and so are kept.
 */
#ifndef GPU_LOAD_H
#define GPU_LOAD_H

#include "gpu/handle.h"

/* Give the buffers back. For ckpt_close(); the driver is still open. */
void load_buffers_close(struct ckpt *c);

#endif
