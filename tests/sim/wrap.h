/* wrap.h - the calls that go through disk.c, and what they are without it. */
#ifndef TESTS_SIM_WRAP_H
#define TESTS_SIM_WRAP_H

#include <dirent.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/types.h>

/*
 * The linker makes __wrap_NAME of NAME, and NAME of __real_NAME. With several
 * nodes all calls come to engine_calls.c first, and here what is not of the
 * shared directory.
 */
#ifdef SIM_NODES
#define WRAP(name) disk_##name
#else
#define WRAP(name) __wrap_##name
#endif
#define WRAPPED(type, name, ...)        \
	type WRAP(name)(__VA_ARGS__);   \
	type __real_##name(__VA_ARGS__)

WRAPPED(int, open64, const char *path, int flags, ...);
WRAPPED(int, openat64, int dirfd, const char *path, int flags, ...);
WRAPPED(int, close, int fd);
WRAPPED(DIR *, fdopendir, int fd);
WRAPPED(int, closedir, DIR *dir);
WRAPPED(ssize_t, pread64, int fd, void *buf, size_t len, off_t off);
WRAPPED(ssize_t, pwrite64, int fd, const void *buf, size_t len, off_t off);
WRAPPED(int, ftruncate64, int fd, off_t len);
WRAPPED(int, fallocate64, int fd, int mode, off_t off, off_t len);
WRAPPED(int, fsync, int fd);
WRAPPED(int, fdatasync, int fd);
WRAPPED(int, unlinkat, int dirfd, const char *path, int flags);
WRAPPED(int, unlink, const char *path);
WRAPPED(int, renameat, int from_fd, const char *from, int to_fd,
	const char *to);
WRAPPED(int, linkat, int from_fd, const char *from, int to_fd, const char *to,
	int flags);
WRAPPED(int, mkdirat, int dirfd, const char *path, mode_t mode);
WRAPPED(void *, mmap64, void *at, size_t len, int prot, int flags, int fd,
	off_t off);
WRAPPED(int, munmap, void *at, size_t len);
WRAPPED(int, fstat64, int fd, struct stat *sb);
WRAPPED(int, fstatat64, int dirfd, const char *path, struct stat *sb,
	int flags);
WRAPPED(int, futimens, int fd, const struct timespec times[2]);
WRAPPED(int, utimensat, int dirfd, const char *path,
	const struct timespec times[2], int flags);
WRAPPED(int, fstatvfs64, int fd, struct statvfs *v);
WRAPPED(int, fstatfs64, int fd, struct statfs *v);
WRAPPED(ssize_t, getrandom, void *buf, size_t len, unsigned flags);

#endif
