/*
 * stash_memory.h - the memory of a stash: on its device, or the host's when the
 * stash is in host memory; and the host's, pinned, for its second tier.
 */
#ifndef GPU_STASH_MEMORY_H
#define GPU_STASH_MEMORY_H

#include "gpu/stash.h"

#define STASH_ALIGN 256u

int stash_alloc(struct ckpt_stash *s, uint64_t len, void **ret_p);
void stash_unalloc(struct ckpt_stash *s, void *p);
/* What is pinned counts among the handle's pinned_bytes. */
int stash_host_alloc(struct ckpt_stash *s, uint64_t len, void **ret_p);
void stash_host_unalloc(struct ckpt_stash *s, void *p, uint64_t len);
/* Zero `to`, which has `size` bytes, then put `len` bytes there; waits. */
int stash_put(struct ckpt_stash *s, void *to, uint64_t size, const void *from,
	      size_t len);

#endif
