/*
 * image_file.c - the files of images: STORE/images has 256 directories, by the
 * last byte of the number. No function here takes a lock or looks at the table
 * of image.c; a file that was removed while somebody had it keeps a second name
 * (LAYOUT_IMAGE_GONE), which is tried when the first is gone.
 */
#include "store/space/image.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/dir.h"
#include "store/base/lease.h"
#include "store/base/scope.h"
#include "store/db/layout.h"

struct walk {
	char dir[3];
	image_file_fn fn;
	void *arg;
	int rc; /* fn's */
};

static int walk_one(void *arg, int fd, const char *name)
{
	struct walk *w = arg;
	char path[sizeof("XX/") + NAME_MAX];
	uint64_t id = 0;

	(void)fd;
	if (strspn(name, "0123456789abcdefABCDEF") == 16)
		id = strtoull(name, NULL, 16);
	(void)snprintf(path, sizeof(path), "%s/%s", w->dir, name);
	w->rc = w->fn(w->arg, path, id, name + (id != 0 ? 16 : 0));
	return w->rc;
}

int image_each_file(int dirfd, image_file_fn fn, void *arg)
{
	struct walk w = { .fn = fn, .arg = arg };
	int failed = 0;

	for (unsigned x = 0; x < LAYOUT_IMAGE_DIRS && w.rc == 0; x++) {
		int rc;

		(void)snprintf(w.dir, sizeof(w.dir), "%02x", x);
		rc = dir_each(dirfd, w.dir, walk_one, &w);
		if (rc < 0 && rc != -ENOENT)
			failed = rc;
	}
	return w.rc != 0 ? w.rc : failed;
}

struct scan {
	struct images *im;
	int (*fn)(void *arg, uint64_t id);
	void *arg;
	bool at_start;
};

/*
 * At the start nobody has what the last daemon removed while somebody had it:
 * the rest of that is done then.
 */
static int scan_one(void *arg, const char *path, uint64_t id,
		    const char *suffix)
{
	const struct scan *s = arg;

	if (id != 0 && *suffix == 0)
		return s->fn(s->arg, id);
	if (id != 0 && s->at_start &&
	    (strcmp(suffix, LAYOUT_IMAGE_GONE) == 0 ||
	     strcmp(suffix, LAYOUT_IMAGE_COPY) == 0))
		(void)unlinkat(s->im->dirfd, path, 0);
	return 0;
}

int image_scan(struct images *im, bool at_start,
	       int (*fn)(void *arg, uint64_t id), void *arg)
{
	struct scan s = { im, fn, arg, at_start };

	return image_each_file(im->dirfd, scan_one, &s);
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

	(void)snprintf(dir, sizeof(dir), "%02x", layout_image_dir(id));
	fd = openat(im->dirfd, dir,
		    O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	return fd < 0 || fsync(fd) < 0 ? -errno : 0;
}

int image_sync_removed(struct images *im)
{
	int rc = 0;

	for (unsigned x = 0; rc == 0 && x < LAYOUT_IMAGE_DIRS; x++)
		if (atomic_exchange(&im->unlinked[x], false)) {
			rc = image_sync_name(im, x);
			if (rc < 0)
				atomic_store(&im->unlinked[x], true);
		}
	return rc;
}
