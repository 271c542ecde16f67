/* save_segment.h - a save that copies each byte once, into a segment. */
#ifndef GPU_SAVE_SEGMENT_H
#define GPU_SAVE_SEGMENT_H

#include "gpu/destination.h"
#include "gpu/handle.h"
#include "gpu/layout.h"

/*
 * flags: enum ckpt_flags. Fill a segment with the layout's tensors, and make it
 * the file; *ret_ino is the file's. -ENOSPC, -EDQUOT, -EOPNOTSUPP: there is no
 * segment, and nothing was copied. d's directory may be opened anew.
 */
int save_through_segment(struct ckpt *c, unsigned flags, struct destination *d,
			 const struct layout *l, uint64_t *ret_ino);

#endif
