/*
 * load_device.h - a run of a file to a device, and the transfer buffers for
 * that. A buffer takes longer to pin than to fill, so the handle keeps two.
 */
#ifndef GPU_LOAD_DEVICE_H
#define GPU_LOAD_DEVICE_H

#include "gpu/run.h"

/* To the device of the run's spans; returns when the bytes are there. */
int load_to_device(const struct run *r, struct crew *crew);
/* Give the kept buffers back. For ckpt_close(); the driver is still open. */
void load_buffers_close(struct ckpt *c);

#endif
