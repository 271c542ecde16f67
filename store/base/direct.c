/* direct.c - see direct.h. */
#include "store/base/direct.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

int direct_open(int dirfd, const char *name)
{
	const int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW;
	int fd = openat(dirfd, name, flags | O_DIRECT);

	if (fd < 0 && errno == EINVAL)
		fd = openat(dirfd, name, flags);
	return fd < 0 ? -errno : fd;
}

/* Some file systems accept O_DIRECT at open and refuse it at read. */
static int give_up_direct(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0)
		return -errno;
	if (!(flags & O_DIRECT))
		return -EINVAL;
	return fcntl(fd, F_SETFL, flags & ~O_DIRECT) < 0 ? -errno : 0;
}

int direct_read(int fd, void *buf, size_t want, size_t ask, uint64_t off)
{
	size_t got = 0;

	while (got < want) {
		ssize_t n = pread(fd, (uint8_t *)buf + got, ask - got,
				  (off_t)(off + got));
		int rc = n < 0 ? -errno : 0;

		if (rc == -EINTR)
			continue;
		if (rc == -EINVAL)
			rc = give_up_direct(fd);
		if (rc < 0)
			return rc;
		if (n == 0)
			return -ESTALE;
		if (n > 0)
			got += (size_t)n;
	}
	return 0;
}
