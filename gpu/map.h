/* map.h - files mapped where huge pages fit, and touched in parts. */
#ifndef GPU_MAP_H
#define GPU_MAP_H

#include <stdint.h>

/*
 * Map size_bytes of fd at a multiple of a huge page's size: elsewhere each
 * 4 KiB cost a fault, and are pinned one by one. flags: MAP_SHARED or
 * MAP_PRIVATE. NULL: it cannot be.
 */
void *map_aligned(int fd, uint64_t size_bytes, int prot, int flags);

/* The kernel holds over each what every mmap(2) and fault of a process needs.
 */
#define MAP_PART_BYTES (UINT64_C(2) << 20)
/*
 * How many there are, and part `index`, for madvise(2): 0 or -errno. -EFAULT:
 * the file is shorter now.
 */
uint64_t map_parts(uint64_t size_bytes);
int map_advise_part(void *memory, uint64_t size_bytes, uint64_t index,
		    int advice);

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

#endif
