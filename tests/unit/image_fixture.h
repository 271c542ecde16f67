/*
 * image_fixture.h - images of a store without a mount: made, read and written.
 */
#ifndef TESTS_UNIT_IMAGE_FIXTURE_H
#define TESTS_UNIT_IMAGE_FIXTURE_H

#include "tests/unit/live_store.h"

static inline void image_write(struct live *l, const struct image *i,
			       const void *data, size_t len)
{
	int fd = image_open_fd(&l->st->images, i, O_RDWR);

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, data, len, 0), len);
	close(fd);
}

static inline void image_read(struct live *l, const struct image *i, void *data,
			      size_t len)
{
	int fd = image_open_fd(&l->st->images, i, O_RDONLY);

	assert_true(fd >= 0);
	assert_int_equal(pread(fd, data, len, 0), len);
	close(fd);
}

#endif
