/*
 * engine_wrap.h - the calls that come to engine_calls.c: those of wrap.h, and
 * what the shared directory needs besides.
 */
#ifndef TESTS_SIM_ENGINE_WRAP_H
#define TESTS_SIM_ENGINE_WRAP_H

#include <sys/uio.h>

#include "tests/sim/wrap.h"

/* Declared here, as wrap.h has those of the disk. */
#define ENGINE_WRAPPED(type, name, ...) type __wrap_##name(__VA_ARGS__)
#define ENGINE_WRAPPED_TOO(type, name, ...) \
	type __wrap_##name(__VA_ARGS__);    \
	type __real_##name(__VA_ARGS__)

ENGINE_WRAPPED(int, open64, const char *path, int flags, ...);
ENGINE_WRAPPED(int, openat64, int dirfd, const char *path, int flags, ...);
ENGINE_WRAPPED(int, close, int fd);
ENGINE_WRAPPED(DIR *, fdopendir, int fd);
ENGINE_WRAPPED(int, closedir, DIR *dir);
ENGINE_WRAPPED(ssize_t, pread64, int fd, void *buf, size_t len, off_t off);
ENGINE_WRAPPED(ssize_t, pwrite64, int fd, const void *buf, size_t len,
	       off_t off);
ENGINE_WRAPPED(int, ftruncate64, int fd, off_t len);
ENGINE_WRAPPED(int, fallocate64, int fd, int mode, off_t off, off_t len);
ENGINE_WRAPPED(int, fsync, int fd);
ENGINE_WRAPPED(int, fdatasync, int fd);
ENGINE_WRAPPED(int, unlinkat, int dirfd, const char *path, int flags);
ENGINE_WRAPPED(int, unlink, const char *path);
ENGINE_WRAPPED(int, renameat, int from_fd, const char *from, int to_fd,
	       const char *to);
ENGINE_WRAPPED(int, linkat, int from_fd, const char *from, int to_fd,
	       const char *to, int flags);
ENGINE_WRAPPED(int, mkdirat, int dirfd, const char *path, mode_t mode);
ENGINE_WRAPPED(void *, mmap64, void *at, size_t len, int prot, int flags,
	       int fd, off_t off);
ENGINE_WRAPPED(int, munmap, void *at, size_t len);
ENGINE_WRAPPED(int, fstat64, int fd, struct stat *sb);
ENGINE_WRAPPED(int, fstatat64, int dirfd, const char *path, struct stat *sb,
	       int flags);
ENGINE_WRAPPED(int, futimens, int fd, const struct timespec times[2]);
ENGINE_WRAPPED(int, utimensat, int dirfd, const char *path,
	       const struct timespec times[2], int flags);
ENGINE_WRAPPED(int, fstatvfs64, int fd, struct statvfs *v);
ENGINE_WRAPPED(int, fstatfs64, int fd, struct statfs *v);
ENGINE_WRAPPED(ssize_t, getrandom, void *buf, size_t len, unsigned flags);

ENGINE_WRAPPED_TOO(int, fcntl64, int fd, int op, ...);
ENGINE_WRAPPED_TOO(int, flock, int fd, int op);
ENGINE_WRAPPED_TOO(ssize_t, pwritev64, int fd, const struct iovec *iov,
		   int count, off_t off);
ENGINE_WRAPPED_TOO(int, truncate64, const char *path, off_t len);
ENGINE_WRAPPED_TOO(int, renameat2, int from_fd, const char *from, int to_fd,
		   const char *to, unsigned flags);
ENGINE_WRAPPED_TOO(int, symlinkat, const char *target, int dirfd,
		   const char *path);
ENGINE_WRAPPED_TOO(int, mknodat, int dirfd, const char *path, mode_t mode,
		   dev_t dev);
ENGINE_WRAPPED_TOO(ssize_t, readlinkat, int dirfd, const char *path, char *buf,
		   size_t size);
ENGINE_WRAPPED_TOO(int, statx, int dirfd, const char *restrict path, int flags,
		   unsigned mask, struct statx *restrict sx);
ENGINE_WRAPPED_TOO(int, fchmod, int fd, mode_t mode);
ENGINE_WRAPPED_TOO(int, chmod, const char *path, mode_t mode);
ENGINE_WRAPPED_TOO(int, fchown, int fd, uid_t uid, gid_t gid);
ENGINE_WRAPPED_TOO(int, fchownat, int dirfd, const char *path, uid_t uid,
		   gid_t gid, int flags);
ENGINE_WRAPPED_TOO(int, faccessat, int dirfd, const char *path, int mode,
		   int flags);
ENGINE_WRAPPED_TOO(int, dirfd, DIR *dir);
ENGINE_WRAPPED_TOO(struct dirent *, readdir64, DIR *dir);
ENGINE_WRAPPED_TOO(off_t, lseek64, int fd, off_t off, int whence);
ENGINE_WRAPPED_TOO(long, syscall, long number, ...);
ENGINE_WRAPPED_TOO(int, nanosleep, const struct timespec *time,
		   struct timespec *left);

#endif
