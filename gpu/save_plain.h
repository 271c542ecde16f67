/* save_plain.h - a save that is written through the file. */
#ifndef GPU_SAVE_PLAIN_H
#define GPU_SAVE_PLAIN_H

#include "gpu/destination.h"
#include "gpu/handle.h"
#include "gpu/layout.h"

/*
 * Write the layout's tensors, then give the file its name. *ret_fd stays open
 * for fsync(2) outside of a mount, and is -1 in one.
 */
int save_plainly(struct ckpt *c, const struct destination *d,
		 const struct layout *l, int *ret_fd, uint64_t *ret_ino);

#endif
