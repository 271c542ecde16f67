/*
 * image_map.c - one mapping of each image for all who read it. It is made by
 * the first reader and stays, so that a read costs no system call; whoever uses
 * it is counted, because a copy may take the image's place (image_copy.h) and
 * then the mapping goes, once nobody uses it. A mapping that was made of the
 * old file meanwhile is thrown away: `unmapped` tells.
 */
#include "store/space/image.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "store/base/scope.h"

/* A use of the mapping, when it reaches so far. */
static const uint8_t *map_use_locked(struct image *i, uint64_t end)
{
	if (end > i->map_len)
		return NULL;
	i->map_users++;
	return i->map;
}

/* *ret_again: the name came to mean another inode meanwhile. */
static const uint8_t *try_map(struct images *im, struct image *i, uint64_t end,
			      bool *ret_again)
{
	SCOPED(scope_close) int fd = -1;
	uint64_t unmapped;
	struct stat st;
	void *map;

	{
		HOLD(&im->lock);
		while (i->unmapping)
			cond_wait(&im->unused, &im->lock);
		if (i->map)
			return map_use_locked(i, end);
		unmapped = i->unmapped;
	}
	fd = image_open_fd(im, i, O_RDONLY);
	if (fd < 0 || fstat(fd, &st) < 0 || (uint64_t)st.st_size < end ||
	    end == 0)
		return NULL;
	map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return NULL;
	/*
	 * A fault then reads 2 MiB and maps them at once, not 16 pages: an
	 * assembled file is read 1.4 times as fast from a cold cache. By itself
	 * it would read on behind them, into what may be another file's or an
	 * earlier step's: what comes next is ahead.h's to know.
	 */
	if (madvise(map, (size_t)st.st_size, MADV_HUGEPAGE) == 0 &&
	    im->populates)
		(void)madvise(map, (size_t)st.st_size, MADV_RANDOM);
	HOLD(&im->lock);
	if (i->map || i->unmapped != unmapped) { /* somebody was faster */
		munmap(map, (size_t)st.st_size);
		*ret_again = !i->map;
		return i->map ? map_use_locked(i, end) : NULL;
	}
	i->map = map;
	i->map_len = (size_t)st.st_size;
	return map_use_locked(i, end);
}

const uint8_t *image_map(struct images *im, struct image *i, uint64_t end)
{
	const uint8_t *map;
	bool again;

	do {
		again = false;
		map = try_map(im, i, end, &again);
	} while (again);
	return map;
}

void image_map_more(struct images *im, struct image *i)
{
	HOLD(&im->lock);
	CHECK(i->map_users > 0);
	i->map_users++;
}

void image_map_end(struct images *im, struct image *i)
{
	HOLD(&im->lock);
	CHECK(i->map_users > 0);
	if (--i->map_users == 0 && i->unmapping)
		cond_broadcast(&im->unused);
}

/* False: there was none. */
static bool unmap_locked(struct image *i)
{
	uint8_t *map = TAKE(i->map);

	if (map)
		(void)munmap(map, i->map_len);
	return map != NULL;
}

void image_unmap(struct images *im, struct image *i)
{
	HOLD(&im->lock);
	CHECK(!i->unmapping);
	i->unmapping = true;
	while (i->map_users > 0)
		cond_wait(&im->unused, &im->lock);
	(void)unmap_locked(i);
	i->unmapped++;
	i->unmapping = false;
	cond_broadcast(&im->unused);
}

bool image_unmap_idle(struct images *im, struct image *i)
{
	HOLD(&im->lock);
	return !i->unmapping && i->map_users == 0 && unmap_locked(i);
}
