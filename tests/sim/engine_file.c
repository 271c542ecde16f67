/*
 * engine_file.c - calls of the shared directory that are about one file: its
 * bytes and its attributes. See engine_calls.c.
 */
#include "tests/sim/engine_private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "store/base/scope.h"
#include "store/base/sync.h"
#include "tests/sim/engine_wrap.h"

/* --- bytes ---------------------------------------------------------------- */

ssize_t __wrap_pread64(int fd, void *buf, size_t len, off_t off)
{
	struct description *d = engine_fd(fd);
	int error;

	if (!engine_is_ours(fd))
		return disk_pread64(fd, buf, len, off);
	if (!d || (d->flags & O_PATH))
		return engine_failed(EBADF);
	error = engine_begins("read", "", READS);
	if (error)
		return engine_failed(error);
	if (d->in->links == 0 && engine.kind.gone_is_stale)
		return engine_failed(ESTALE);
	einode_recall(d->in, d->node);
	return (ssize_t)einode_read(d->in, d->node, buf, len, (uint64_t)off);
}

static ssize_t write_ours(struct description *d, const void *buf, size_t len,
			  uint64_t off)
{
	einode_recall(d->in, d->node);
	if (d->flags & O_APPEND)
		off = einode_size(d->in, d->node);
	einode_write(d->in, d->node, buf, len, off);
	view_forget(d->in, d->node);
	engine_changed(d->in, ENGINE_BYTES);
	return (ssize_t)len;
}

ssize_t __wrap_pwrite64(int fd, const void *buf, size_t len, off_t off)
{
	struct description *d = engine_fd(fd);
	int error;

	if (!engine_is_ours(fd))
		return disk_pwrite64(fd, buf, len, off);
	if (!d || (d->flags & O_PATH))
		return engine_failed(EBADF);
	error = engine_begins("write", "", WRITES);
	if (error)
		return engine_failed(error);
	return engine_ends((int)write_ours(d, buf, len, (uint64_t)off));
}

ssize_t __wrap_pwritev64(int fd, const struct iovec *iov, int count, off_t off)
{
	struct description *d = engine_fd(fd);
	ssize_t done = 0;
	int error;

	if (!engine_is_ours(fd))
		return __real_pwritev64(fd, iov, count, off);
	if (!d || (d->flags & O_PATH))
		return engine_failed(EBADF);
	error = engine_begins("write", "", WRITES);
	if (error)
		return engine_failed(error);
	for (int i = 0; i < count; i++) {
		done += write_ours(d, iov[i].iov_base, iov[i].iov_len,
				   (uint64_t)off + (uint64_t)done);
		/* Not all at once: see pwritev(2). */
		if (chance_one_in(&engine.chance, 8))
			break;
	}
	return engine_ends((int)done);
}

static int cut_ours(struct einode *in, off_t len)
{
	int error = engine_begins("cut", "", WRITES);

	if (error)
		return engine_failed(error);
	einode_cut(in, sim_group(), (size_t)len);
	view_forget(in, sim_group());
	engine_changed(in, ENGINE_BYTES);
	return engine_ends(0);
}

int __wrap_ftruncate64(int fd, off_t len)
{
	struct description *d = engine_fd(fd);

	if (!engine_is_ours(fd))
		return disk_ftruncate64(fd, len);
	return d ? cut_ours(d->in, len) : engine_failed(EBADF);
}

int __wrap_truncate64(const char *path, off_t len)
{
	struct place_at at;
	struct einode *in = NULL;
	int error;

	if (!engine_is_below(AT_FDCWD, path))
		return __real_truncate64(path, len);
	error = engine_resolve(AT_FDCWD, path, &at);
	if (error == 0)
		error = engine_find(&at, false, &in);
	return error ? engine_failed(error) : cut_ours(in, len);
}

static int sync_ours(struct description *d)
{
	int error = engine_begins("sync", "", WRITES);

	if (error) { /* the pages count as clean from now on */
		einode_lose(d->in, d->node, chance_one_in(&engine.chance, 2));
		return engine_failed(error);
	}
	einode_flush(d->in, d->node);
	return engine_ends(0);
}

int __wrap_fsync(int fd)
{
	struct description *d = engine_fd(fd);

	if (!engine_is_ours(fd))
		return disk_fsync(fd);
	return d ? sync_ours(d) : engine_failed(EBADF);
}

int __wrap_fdatasync(int fd)
{
	struct description *d = engine_fd(fd);

	if (!engine_is_ours(fd))
		return disk_fdatasync(fd);
	return d ? sync_ours(d) : engine_failed(EBADF);
}

/* --- attributes ----------------------------------------------------------- */

static int stat_ours(struct einode *in, struct stat *sb, bool anew)
{
	unsigned node = sim_group();

	view_stat(in, node, sb, anew || engine_anew_for(node));
	return sb->st_nlink == 0 && engine.kind.gone_is_stale ? ESTALE : 0;
}

int __wrap_fstat64(int fd, struct stat *sb)
{
	struct description *d = engine_fd(fd);
	int error;

	if (!engine_is_ours(fd))
		return disk_fstat64(fd, sb);
	if (!d)
		return engine_failed(EBADF);
	error = engine_begins("stat", "", NEVER);
	if (error == 0)
		error = stat_ours(d->in, sb, false);
	return error ? engine_failed(error) : 0;
}

int __wrap_fstatat64(int dirfd, const char *path, struct stat *sb, int flags)
{
	struct place_at at;
	struct einode *in = NULL;
	int error;

	if (!engine_is_below(dirfd, path))
		return disk_fstatat64(dirfd, path, sb, flags);
	error = engine_resolve(dirfd, path, &at);
	if (error == 0)
		error = engine_begins("look", engine_shown(&at), READS);
	if (error == 0)
		error = engine_find(&at, false, &in);
	if (error == 0)
		error = stat_ours(in, sb, false);
	/* The name that was remembered leads nowhere: it is asked for anew. */
	if (error == ESTALE && !at.self) {
		error = engine_find(&at, true, &in);
		if (error == 0)
			error = stat_ours(in, sb, true);
	}
	return error ? engine_failed(error) : 0;
}

int __wrap_statx(int dirfd, const char *restrict path, int flags, unsigned mask,
		 struct statx *restrict sx)
{
	struct place_at at;
	struct einode *in = NULL;
	struct stat sb;
	int error;

	if (!engine_is_below(dirfd, path))
		return __real_statx(dirfd, path, flags, mask, sx);
	error = engine_resolve(dirfd, path, &at);
	if (error == 0)
		error = engine_begins("ask", engine_shown(&at), READS);
	if (error == 0)
		error = engine_find(&at, flags & AT_STATX_FORCE_SYNC, &in);
	if (error == 0 && (flags & AT_STATX_FORCE_SYNC))
		view_forget(in, sim_group());
	if (error == 0)
		error = stat_ours(in, &sb, false);
	if (error)
		return engine_failed(error);
	memset(sx, 0, sizeof(*sx));
	sx->stx_mask = STATX_BASIC_STATS;
	sx->stx_mode = (uint16_t)sb.st_mode;
	sx->stx_nlink = (uint32_t)sb.st_nlink;
	sx->stx_uid = sb.st_uid;
	sx->stx_gid = sb.st_gid;
	sx->stx_ino = sb.st_ino;
	sx->stx_size = (uint64_t)sb.st_size;
	sx->stx_mtime.tv_sec = sb.st_mtim.tv_sec;
	sx->stx_mtime.tv_nsec = (uint32_t)sb.st_mtim.tv_nsec;
	sx->stx_ctime.tv_sec = sb.st_ctim.tv_sec;
	sx->stx_ctime.tv_nsec = (uint32_t)sb.st_ctim.tv_nsec;
	return 0;
}

/* They were set. */
static int set_ours(struct einode *in, enum engine_change what)
{
	if (engine.kind.set_flushes)
		einode_flush(in, sim_group());
	in->ctime_ns = engine_now();
	view_forget(in, sim_group());
	if (what == ENGINE_MODE)
		engine_changed(in, what);
	return engine_ends(0);
}

static int chmod_ours(struct einode *in, mode_t mode)
{
	int error = engine_begins("chmod", "", WRITES);

	if (error)
		return engine_failed(error);
	in->mode = (in->mode & S_IFMT) | (mode & 07777);
	return set_ours(in, ENGINE_MODE);
}

int __wrap_fchmod(int fd, mode_t mode)
{
	struct description *d = engine_fd(fd);

	if (!engine_is_ours(fd))
		return __real_fchmod(fd, mode);
	return d ? chmod_ours(d->in, mode) : engine_failed(EBADF);
}

int __wrap_chmod(const char *path, mode_t mode)
{
	struct place_at at;
	struct einode *in = NULL;
	int error;

	if (!engine_is_below(AT_FDCWD, path))
		return __real_chmod(path, mode);
	error = engine_resolve(AT_FDCWD, path, &at);
	if (error == 0)
		error = engine_find(&at, false, &in);
	return error ? engine_failed(error) : chmod_ours(in, mode);
}

static int chown_ours(struct einode *in, uid_t uid, gid_t gid)
{
	int error = engine_begins("chown", "", WRITES);

	if (error)
		return engine_failed(error);
	if (uid != (uid_t)-1)
		in->uid = uid;
	if (gid != (gid_t)-1)
		in->gid = gid;
	return set_ours(in, ENGINE_BYTES);
}

int __wrap_fchown(int fd, uid_t uid, gid_t gid)
{
	struct description *d = engine_fd(fd);

	if (!engine_is_ours(fd))
		return __real_fchown(fd, uid, gid);
	return d ? chown_ours(d->in, uid, gid) : engine_failed(EBADF);
}

int __wrap_fchownat(int dirfd, const char *path, uid_t uid, gid_t gid,
		    int flags)
{
	struct place_at at;
	struct einode *in = NULL;
	int error;

	if (!engine_is_below(dirfd, path))
		return __real_fchownat(dirfd, path, uid, gid, flags);
	error = engine_resolve(dirfd, path, &at);
	if (error == 0)
		error = engine_find(&at, false, &in);
	return error ? engine_failed(error) : chown_ours(in, uid, gid);
}

static int64_t time_of(const struct timespec *t, int64_t now)
{
	if (!t || t->tv_nsec == UTIME_NOW)
		return engine_now();
	return t->tv_nsec == UTIME_OMIT
		       ? now
		       : (int64_t)t->tv_sec * 1000000000 + t->tv_nsec;
}

static int times_ours(struct einode *in, const struct timespec times[2])
{
	int error = engine_begins("times", "", WRITES);

	if (error)
		return engine_failed(error);
	in->atime_ns = time_of(times ? &times[0] : NULL, in->atime_ns);
	in->mtime_ns = time_of(times ? &times[1] : NULL, in->mtime_ns);
	return set_ours(in, ENGINE_BYTES);
}

int __wrap_futimens(int fd, const struct timespec times[2])
{
	struct description *d = engine_fd(fd);

	if (!engine_is_ours(fd))
		return disk_futimens(fd, times);
	return d ? times_ours(d->in, times) : engine_failed(EBADF);
}

int __wrap_utimensat(int dirfd, const char *path,
		     const struct timespec times[2], int flags)
{
	struct place_at at;
	struct einode *in = NULL;
	int error;

	if (!engine_is_below(dirfd, path))
		return disk_utimensat(dirfd, path, times, flags);
	error = engine_resolve(dirfd, path, &at);
	if (error == 0)
		error = engine_find(&at, false, &in);
	return error ? engine_failed(error) : times_ours(in, times);
}

int __wrap_faccessat(int dirfd, const char *path, int mode, int flags)
{
	struct place_at at;
	struct einode *in = NULL;
	int error;

	if (!engine_is_below(dirfd, path))
		return __real_faccessat(dirfd, path, mode, flags);
	error = engine_resolve(dirfd, path, &at);
	if (error == 0)
		error = engine_find(&at, false, &in);
	return error ? engine_failed(error) : 0;
}

int __wrap_fstatvfs64(int fd, struct statvfs *v)
{
	if (!engine_is_ours(fd))
		return disk_fstatvfs64(fd, v);
	*v = (struct statvfs){ .f_bsize = 4096,
			       .f_frsize = 4096,
			       .f_blocks = 1u << 28,
			       .f_bfree = 1u << 27,
			       .f_bavail = 1u << 27 };
	return 0;
}

/* --- all others ----------------------------------------------------------- */

int __wrap_fallocate64(int fd, int mode, off_t off, off_t len)
{
	return engine_is_ours(fd) ? engine_failed(EOPNOTSUPP)
			   : disk_fallocate64(fd, mode, off, len);
}

void *__wrap_mmap64(void *at, size_t len, int prot, int flags, int fd,
		    off_t off)
{
	CHECK(!engine_is_ours(fd));
	return disk_mmap64(at, len, prot, flags, fd, off);
}

int __wrap_munmap(void *at, size_t len)
{
	return disk_munmap(at, len);
}

int __wrap_fstatfs64(int fd, struct statfs *v)
{
	CHECK(!engine_is_ours(fd));
	return disk_fstatfs64(fd, v);
}

ssize_t __wrap_getrandom(void *buf, size_t len, unsigned flags)
{
	return disk_getrandom(buf, len, flags);
}
