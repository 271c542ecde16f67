/*
 * wall.c - the time that names and attributes are stamped with: the clock of the
 * kernel's own file systems.
 *
 * Of a file that is written in passthrough the kernel stamps the stage, by a
 * clock that goes on with each tick, and from Linux 6.13 on more finely where
 * somebody has looked (Documentation/filesystems/multigrain-ts.rst). A clock of
 * user space is up to a tick beside that, before or behind, so that what was
 * done later had the earlier time. So a file that nobody else sees is touched,
 * and its change time is read: no file is given an earlier one afterwards, nor
 * was given a later one before.
 */
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include "store/base/io.h"
#include "store/base/sync.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int clock_fd;

static void open_clock(void)
{
	clock_fd = memfd_create("ckptfs-clock", MFD_CLOEXEC);
}

int64_t wall_ns(void)
{
	struct timespec t;
	struct stat sb;

	(void)pthread_once(&once, open_clock);
	if (clock_fd >= 0 && futimens(clock_fd, NULL) == 0 &&
	    fstat(clock_fd, &sb) == 0)
		return io_ns(&sb.st_ctim);
	(void)clock_gettime(CLOCK_REALTIME_COARSE, &t);
	return io_ns(&t);
}
