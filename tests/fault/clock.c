/*
 * clock.c - preloaded into a daemon: its node's clock is CKPTFS_CLOCK_AHEAD_S
 * seconds ahead, or behind when that is negative. What time a call of the
 * kernel gives a file is the kernel's own; clocks that count since the boot
 * stay what they are. The daemon has no file to ask for the kernel's time
 * (wall.c), or it would not see that its clock is another.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static long ahead_s(void)
{
	const char *text = getenv("CKPTFS_CLOCK_AHEAD_S");

	return text ? strtol(text, NULL, 10) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *ret)
{
	static int (*own)(clockid_t, struct timespec *);
	int rc;

	if (!own)
		*(void **)&own = dlsym(RTLD_NEXT, "clock_gettime");
	rc = own(clock, ret);
	if (rc == 0 &&
	    (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		ret->tv_sec += ahead_s();
	return rc;
}

int memfd_create(const char *name, unsigned flags)
{
	static int (*own)(const char *, unsigned);

	if (strcmp(name, "ckptfs-clock") == 0) {
		errno = ENOSYS;
		return -1;
	}
	if (!own)
		*(void **)&own = dlsym(RTLD_NEXT, "memfd_create");
	return own(name, flags);
}

int gettimeofday(struct timeval *restrict ret, void *restrict zone)
{
	struct timespec now;
	int rc = clock_gettime(CLOCK_REALTIME, &now);

	(void)zone;
	ret->tv_sec = now.tv_sec;
	ret->tv_usec = now.tv_nsec / 1000;
	return rc;
}

time_t time(time_t *ret)
{
	struct timespec now;
	int rc = clock_gettime(CLOCK_REALTIME, &now);

	if (rc == 0 && ret)
		*ret = now.tv_sec;
	return rc == 0 ? now.tv_sec : (time_t)-1;
}
