/*
 * image_file.c - the files of images: STORE/images has 256 directories, by the
 * last byte of the number. No function here takes a lock or looks at the table
 * of image.c; a file that was removed while somebody had it keeps a second name
 * (LAYOUT_IMAGE_GONE), which is tried when the first is gone.
 */
#include "store/space/image.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/dir.h"
#include "store/base/lease.h"
#include "store/base/scope.h"
#include "store/db/layout.h"

struct scan {
	int (*fn)(void *arg, uint64_t id);
	void *arg;
	bool at_start;
};

/* What the last daemon removed while somebody had it, or was copying. */
static bool is_gone_name(const char *name)
{
	return strlen(name) > 16 &&
	       (strcmp(name + 16, LAYOUT_IMAGE_GONE) == 0 ||
		strcmp(name + 16, LAYOUT_IMAGE_COPY) == 0);
}

static int scan_one(void *arg, int fd, const char *name)
{
	const struct scan *s = arg;
	char *end;
	uint64_t id = strtoull(name, &end, 16);

	if (*end == 0 && end - name == 16)
		return s->fn(s->arg, id);
	if (s->at_start && is_gone_name(name))
		(void)unlinkat(fd, name, 0);
	return 0;
}

int image_scan(struct images *im, bool at_start,
	       int (*fn)(void *arg, uint64_t id), void *arg)
{
	struct scan s = { fn, arg, at_start };
	int rc = 0;

	for (unsigned x = 0; x < 256 && rc == 0; x++) {
		char dir[3];

		(void)snprintf(dir, sizeof(dir), "%02x", x);
		rc = dir_each(im->dirfd, dir, scan_one, &s);
		if (rc == -ENOENT)
			rc = 0;
	}
	return rc;
}

/* The name changes once, from the first to the second: that order finds it. */
static int open_by_name(const struct images *im, uint64_t id, int flags)
{
	char name[LAYOUT_IMAGE_NAME_BYTES];
	int fd;

	flags |= O_CLOEXEC | O_NOFOLLOW;
	layout_image_name(id, name);
	fd = openat(im->dirfd, name, flags);
	if (fd < 0 && errno == ENOENT) {
		layout_image_file(id, LAYOUT_IMAGE_GONE, name);
		fd = openat(im->dirfd, name, flags);
	}
	return fd < 0 ? -errno : fd;
}

int image_open_fd(struct images *im, const struct image *i, int flags)
{
	int fd = open_by_name(im, i->id, flags);

	if (fd == -EINVAL && (flags & O_DIRECT))
		fd = open_by_name(im, i->id, flags & ~O_DIRECT);
	return fd;
}

int image_stat(struct images *im, const struct image *i, struct stat *ret)
{
	char name[LAYOUT_IMAGE_NAME_BYTES];

	layout_image_name(i->id, name);
	if (fstatat(im->dirfd, name, ret, AT_SYMLINK_NOFOLLOW) == 0)
		return 0;
	layout_image_file(i->id, LAYOUT_IMAGE_GONE, name);
	if (errno == ENOENT &&
	    fstatat(im->dirfd, name, ret, AT_SYMLINK_NOFOLLOW) == 0)
		return 0;
	return -errno;
}

int image_ask(struct images *im, const struct image *i, enum lease what)
{
	char name[LAYOUT_IMAGE_NAME_BYTES];
	int rc;

	layout_image_name(i->id, name);
	rc = lease_ask(im->dirfd, name, what);
	if (rc != -ENOENT)
		return rc;
	layout_image_file(i->id, LAYOUT_IMAGE_GONE, name);
	return lease_ask(im->dirfd, name, what);
}

int image_sync_name(struct images *im, uint64_t id)
{
	SCOPED(scope_close) int fd = -1;
	char dir[3];

	(void)snprintf(dir, sizeof(dir), "%02x", (unsigned)(id & 0xff));
	fd = openat(im->dirfd, dir,
		    O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	return fd < 0 || fsync(fd) < 0 ? -errno : 0;
}

int image_sync_removed(struct images *im)
{
	int rc = 0;

	for (unsigned x = 0; rc == 0 && x < 256; x++)
		if (atomic_exchange(&im->unlinked[x], false)) {
			rc = image_sync_name(im, x);
			if (rc < 0)
				atomic_store(&im->unlinked[x], true);
		}
	return rc;
}
