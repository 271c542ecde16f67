/*
 * nosync.c - a library to preload: the syncs of a process do nothing.
 *
 * A test of power cuts that passes with it proves nothing.
 */
#define _GNU_SOURCE 1
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

int fsync(int fd)
{
	(void)fd;
	return 0;
}

int fdatasync(int fd)
{
	(void)fd;
	return 0;
}

int syncfs(int fd)
{
	(void)fd;
	return 0;
}

int sync_file_range(int fd, off64_t offset, off64_t count, unsigned int flags)
{
	(void)fd;
	(void)offset;
	(void)count;
	(void)flags;
	return 0;
}

int msync(void *addr, size_t len, int flags)
{
	(void)addr;
	(void)len;
	(void)flags;
	return 0;
}
