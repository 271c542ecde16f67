/* faults.c - see faults.h. */
#define _GNU_SOURCE 1
#include "tests/fault/faults.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct fault_plan own;
static struct fault_plan *plan = &own;

struct fault_plan *faults_plan(void)
{
	return plan;
}

__attribute__((constructor)) static void configure(void)
{
	const char *path = getenv("CKPTFS_FAULTS");
	int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	void *map;

	if (fd < 0)
		return;
	map = mmap(NULL, sizeof(own), PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		   0);
	if (map != MAP_FAILED)
		plan = map;
	close(fd);
}

/* Which of FAULT_FILES a path is; 0: none of a database's. */
static unsigned file_kind(const char *path)
{
	const char *name = strrchr(path, '/');
	size_t len = strlen(path);

	if (!name || name - path < 3 || strncmp(name - 3, "/db", 3) != 0)
		return 0;
	if (len > 4 && strcmp(path + len - 4, ".log") == 0)
		return FAULT_LOG;
	if (len > 4 && strcmp(path + len - 4, ".sst") == 0)
		return FAULT_TABLE;
	return FAULT_LIST;
}

/* Does this call fail? errno is set then. */
static bool path_fails(const char *path, unsigned call)
{
	unsigned what = atomic_load(&plan->what);
	unsigned n;

	if (!(what & call) || !(what & file_kind(path)))
		return false;
	n = atomic_fetch_add(&plan->seen, 1);
	if (n < atomic_load(&plan->after) ||
	    n - atomic_load(&plan->after) >= atomic_load(&plan->count))
		return false;
	atomic_fetch_add(&plan->failed, 1);
	errno = (int)atomic_load(&plan->error);
	return true;
}

static bool fd_fails(int fd, unsigned call)
{
	char link[32], path[4096];
	ssize_t n;

	if (!(atomic_load(&plan->what) & call))
		return false;
	(void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path) - 1);
	if (n < 0)
		return false;
	path[n] = 0;
	return path_fails(path, call);
}

/* The half of a write that is there although the call fails. */
static size_t half(size_t len)
{
	return atomic_load(&plan->torn) ? len / 2 : 0;
}

ssize_t write(int fd, const void *buf, size_t len)
{
	if (!fd_fails(fd, FAULT_WRITE))
		return syscall(SYS_write, fd, buf, len);
	if (half(len) > 0)
		(void)!syscall(SYS_write, fd, buf, half(len));
	errno = (int)atomic_load(&plan->error);
	return -1;
}

ssize_t pwrite(int fd, const void *buf, size_t len, off_t at)
{
	return fd_fails(fd, FAULT_WRITE)
		       ? -1
		       : syscall(SYS_pwrite64, fd, buf, len, at);
}

ssize_t pwrite64(int fd, const void *buf, size_t len, off64_t at)
{
	return pwrite(fd, buf, len, at);
}

int fsync(int fd)
{
	return fd_fails(fd, FAULT_SYNC) ? -1 : (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd)
{
	return fd_fails(fd, FAULT_SYNC) ? -1 : (int)syscall(SYS_fdatasync, fd);
}

/* Without flags it only asks whether there is such a call. */
int sync_file_range(int fd, off64_t at, off64_t len, unsigned flags)
{
	return flags && fd_fails(fd, FAULT_SYNC)
		       ? -1
		       : (int)syscall(SYS_sync_file_range, fd, at, len, flags);
}

int rename(const char *from, const char *to)
{
	return path_fails(to, FAULT_MAKE) ? -1
					  : (int)syscall(SYS_rename, from, to);
}

int open(const char *path, int flags, ...)
{
	mode_t mode = 0;
	va_list ap;

	if (flags & (O_CREAT | O_TMPFILE)) {
		va_start(ap, flags);
		mode = va_arg(ap, mode_t);
		va_end(ap);
	}
	if ((flags & O_CREAT) && path_fails(path, FAULT_MAKE))
		return -1;
	return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

/* Where off_t has 64 bits the two are one. */
_Static_assert(O_LARGEFILE == 0 || sizeof(off_t) == 8, "open64 is open");
int open64(const char *path, int flags, ...) __attribute__((alias("open")));
