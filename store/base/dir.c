/* dir.c - see dir.h. */
#include "store/base/dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/io.h"
#include "store/base/scope.h"

int dir_each(int dirfd, const char *path,
	     int (*fn)(void *arg, int fd, const char *name), void *arg)
{
	int fd = openat(dirfd, path,
			O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *d;
	int rc = 0;

	if (!dir) {
		rc = -errno;
		scope_close(&fd);
		return rc;
	}
	while (rc == 0) {
		errno = 0;
		d = readdir(dir);
		if (!d) {
			rc = -errno;
			break;
		}
		if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0)
			rc = fn(arg, fd, d->d_name);
	}
	(void)closedir(dir);
	return rc;
}

int dir_ask_anew(int fd)
{
	struct statx sx;

	return statx(fd, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_MTIME,
		     &sx) < 0
		       ? -errno
		       : 0;
}

static int stop_at_first(void *arg, int fd, const char *name)
{
	(void)arg;
	(void)fd;
	(void)name;
	return 1;
}

bool dir_is_empty(int dirfd, const char *path)
{
	return dir_each(dirfd, path, stop_at_first, NULL) == 0;
}

ssize_t dir_read_text(int dirfd, const char *name, char *ret, size_t size)
{
	SCOPED(scope_close)
	int fd = openat(dirfd, name,
			O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK |
				O_NOCTTY);
	size_t len = 0;
	int rc = fd < 0 ? -errno : io_read(fd, ret, size - 1, 0, &len);

	if (rc < 0)
		return rc;
	ret[len] = 0;
	return (ssize_t)len;
}

int dir_write_text(int dirfd, const char *name, const char *text, size_t len)
{
	SCOPED(scope_close)
	int fd = openat(dirfd, name,
			O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC,
			0600);
	int rc = fd < 0 ? -errno : io_write_full(fd, text, len, 0);

	if (rc < 0)
		return rc;
	return fsync(fd) < 0 || fsync(dirfd) < 0 ? -errno : 0;
}

int dir_rename(int dirfd, const char *from, const char *to)
{
	if (renameat(dirfd, from, dirfd, to) < 0 || fsync(dirfd) < 0)
		return -errno;
	return 0;
}

int dir_link(int fd, int dirfd, const char *name)
{
	char path[32];

	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return linkat(AT_FDCWD, path, dirfd, name, AT_SYMLINK_FOLLOW) < 0
		       ? -errno
		       : 0;
}
