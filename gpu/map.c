/*
 * map.c - files mapped where huge pages fit, and touched in parts, so that no
 * other thread of the process waits for all of a large one. See map.h.
 */
#include "gpu/map.h"

#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>

#define HUGE_BYTES (UINT64_C(2) << 20)
#define PAGE_BYTES 4096u

void *map_aligned(int fd, uint64_t size_bytes, int prot, int flags)
{
	const size_t reserve = size_bytes + HUGE_BYTES;
	uint8_t *room =
		mmap(NULL, reserve, PROT_NONE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uint8_t *at;
	void *memory;

	if (room == MAP_FAILED)
		return NULL;
	at = room + (HUGE_BYTES - (uintptr_t)room % HUGE_BYTES) % HUGE_BYTES;
	memory = mmap(at, size_bytes, prot, flags | MAP_FIXED, fd, 0);
	if (memory == MAP_FAILED) {
		(void)munmap(room, reserve);
		return NULL;
	}
	if (at > room)
		(void)munmap(room, (size_t)(at - room));
	at += (size_bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
	if (at < room + reserve)
		(void)munmap(at, (size_t)(room + reserve - at));
	return memory;
}

uint64_t map_parts(uint64_t size_bytes)
{
	return (size_bytes + MAP_PART_BYTES - 1) / MAP_PART_BYTES;
}

int map_advise_part(void *memory, uint64_t size_bytes, uint64_t index,
		    int advice)
{
	uint64_t at = index * MAP_PART_BYTES, left = size_bytes - at;

	return madvise((uint8_t *)memory + at,
		       left < MAP_PART_BYTES ? left : MAP_PART_BYTES,
		       advice) < 0
		       ? -errno
		       : 0;
}
