/*
 * image_read.c - images as files' contents name them: one that is missing, or
 * has less than a content says, is damage.
 */
#include <errno.h>
#include <fcntl.h>

#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/file/file_private.h"

int file_get_image(struct files *fs, uint64_t id, struct image **ret_image)
{
	int rc = image_get(fs->images, id, ret_image);

	return rc == -ENOENT ? -EIO : rc;
}

int file_read_image(struct files *fs, uint64_t image, uint64_t off, void *buf,
		    size_t len)
{
	SCOPED(scope_close) int fd = -1;
	struct image *i;
	size_t got = 0;
	int rc = file_get_image(fs, image, &i);

	if (rc < 0)
		return rc;
	fd = image_open_fd(fs->images, i, O_RDONLY);
	image_put(fs->images, i);
	if (fd < 0)
		return fd == -ENOENT ? -EIO : fd;
	rc = io_read(fd, buf, len, off, &got);
	return (rc == 0 && got < len) || io_is_medium(rc) ? -EIO : rc;
}
