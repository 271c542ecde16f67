/*
 * stash_memory.h - the memory of a stash: on its device, or the host's when the
 * stash is in host memory; and the host's, pinned, for its second tier.
 */
#ifndef GPU_STASH_MEMORY_H
#define GPU_STASH_MEMORY_H

#include "gpu/handle.h"

#define STASH_ALIGN 256u

struct stash_memory { /* immutable */
	struct ckpt *c;
	struct gpu *g; /* NULL: host memory */
	int device;
};

int stash_alloc(const struct stash_memory *m, uint64_t len, void **ret_p);
void stash_unalloc(const struct stash_memory *m, void *p);
/* What is pinned counts among the handle's pinned_bytes. */
int stash_host_alloc(const struct stash_memory *m, uint64_t len, void **ret_p);
void stash_host_unalloc(const struct stash_memory *m, void *p, uint64_t len);
/* Zero `to`, which has `size` bytes, then put `len` bytes there; waits. */
int stash_put(const struct stash_memory *m, void *to, uint64_t size,
	      const void *from, size_t len);

#endif
