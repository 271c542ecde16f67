/*
 * unchanged.h - copy to a mapping only what its segment does not hold already.
 *
 * Each MiB of each tensor, counted from its start, is hashed where it is
 * (XXH3-128, keyed by a random secret of this process), and compared with the
 * hash of what the segment got there when it was filled last. Equal: it is not
 * copied. A chunk that is the same as another one of this save, on whatever
 * device, is copied from there: over the bus it goes once.
 *
 * So the bytes of a file are in its segment in any case, and the drain compares
 * and shares them as it does everything; only this process has to trust the
 * hash. (The design asked the store for known hashes and left holes in the
 * file. This needs neither the store's secret nor a reader that knows of
 * holes, and finds the same for what a training job does not change.)
 *
 * Errors: 0 or a negative errno, with a sentence.
 */
#ifndef GPU_UNCHANGED_H
#define GPU_UNCHANGED_H

#include "gpu/layout.h"
#include "gpu/mapping.h"

#define UNCHANGED_CHUNK_BYTES (UINT64_C(1) << 20)

/*
 * Copy to p, which is being filled, what it does not hold of the layout's
 * tensors; *ret_skipped_bytes were there. -ENODEV: tensors are on a device, and
 * this library has no kernels to hash there. -ENOMEM: no memory for hashes, on
 * a device or the host. Of either nothing that was copied counts: copy all.
 */
int unchanged_copy_rest(struct ckpt *c, struct mapping *p,
			const struct layout *l, uint64_t *ret_skipped_bytes);
/* The hashers that c keeps. For ckpt_close(). */
void unchanged_close(struct ckpt *c);

#endif
