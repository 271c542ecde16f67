/*
 * disk_calls.c - the calls of the store that come here (--wrap): each is a
 * point, may fail, and is noted.
 */
#include "tests/sim/disk_private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "store/base/scope.h"

#define PIECE (16u << 10) /* of a read */

static void opened(int fd, enum place place, const char *path, bool is_new)
{
	struct stat sb;

	CHECK(fd < FDS_MAX);
	CHECK(__real_fstat64(fd, &sb) == 0);
	disk.fd[fd].place = place;
	disk.fd[fd].path = strdup(path);
	disk.fd[fd].backing = disk.backing;
	disk.fd[fd].file = disk_file_of(sb.st_ino, place);
	disk.fd[fd].file->dir = S_ISDIR(sb.st_mode);
	if (is_new && place == DISK) {
		disk_note_name(path, 0, sb.st_ino, false);
		disk_begin_change(disk.fd[fd].file, 0);
	}
}

/*
 * The directories of images are made when they get a file; until then they
 * are all the same empty one.
 */
static bool is_image_dir(const char *full)
{
	const char *name = strstr(full, "/images/");

	return name && strlen(name) == strlen("/images/XX");
}

static int open_at(int dirfd, const char *path, const char *full, int flags,
		   mode_t mode)
{
	int fd = __real_openat64(dirfd, path, flags, mode);
	char dir[200], name[100];

	if (fd >= 0 || errno != ENOENT)
		return fd;
	if ((flags & O_DIRECTORY) && is_image_dir(full))
		return __real_open64(disk.empty, O_RDONLY | O_CLOEXEC);
	if (!(flags & O_CREAT))
		return fd;
	disk_split(full, dir, name);
	if (!is_image_dir(dir) || __real_mkdirat(AT_FDCWD, dir, 0700) < 0)
		return -1;
	return __real_openat64(dirfd, path, flags, mode);
}

static int open_any(int dirfd, const char *path, int flags, mode_t mode)
{
	char full[400], text[440];
	enum place place = disk_resolve(dirfd, path, full);
	bool is_new;
	int fd;

	if (place == ELSEWHERE)
		return __real_openat64(dirfd, path, flags, mode);
	(void)snprintf(text, sizeof(text), "open %s", disk_shown(full));
	if (!(flags & O_DIRECTORY))
		sim_point("io", text);
	is_new = (flags & O_CREAT) &&
		 faccessat(dirfd, path, F_OK, AT_SYMLINK_NOFOLLOW) < 0;
	if ((flags & O_TRUNC) && !is_new && place == DISK) {
		fd = __real_openat64(dirfd, path, O_RDONLY | O_CLOEXEC);
		if (fd >= 0) {
			struct stat sb;

			CHECK(__real_fstat64(fd, &sb) == 0);
			opened(fd, place, full, false);
			disk_keep_old(fd, 0, (uint64_t)sb.st_size);
			(void)close(fd);
		}
	}
	fd = open_at(dirfd, path, full, flags, mode);
	if (fd >= 0)
		opened(fd, place, full, is_new);
	return fd;
}

int WRAP(open64)(const char *path, int flags, ...)
{
	mode_t mode;
	va_list ap;

	va_start(ap, flags);
	mode = va_arg(ap, mode_t);
	va_end(ap);
	return open_any(AT_FDCWD, path, flags, mode);
}

int WRAP(openat64)(int dirfd, const char *path, int flags, ...)
{
	mode_t mode;
	va_list ap;

	va_start(ap, flags);
	mode = va_arg(ap, mode_t);
	va_end(ap);
	return open_any(dirfd, path, flags, mode);
}

int WRAP(close)(int fd)
{
	if (fd >= 0 && fd < FDS_MAX && disk.fd[fd].place != ELSEWHERE) {
		free(disk.fd[fd].path);
		memset(&disk.fd[fd], 0, sizeof(disk.fd[fd]));
	}
	return __real_close(fd);
}

DIR *WRAP(fdopendir)(int fd)
{
	return __real_fdopendir(fd);
}

/* closedir(3) closes without asking us. */
int WRAP(closedir)(DIR *dir)
{
	int fd = dirfd(dir);

	if (fd >= 0 && fd < FDS_MAX && disk.fd[fd].place != ELSEWHERE) {
		free(disk.fd[fd].path);
		memset(&disk.fd[fd], 0, sizeof(disk.fd[fd]));
	}
	return __real_closedir(dir);
}

/*
 * What the daemon reads is not read at once: somebody may change it between two
 * pieces.
 */
ssize_t WRAP(pread64)(int fd, void *buf, size_t len, off_t off)
{
	bool whole =
		!sim_seeks_rare() || !disk_of_fd(fd) || disk.fd[fd].backing;
	size_t done = 0, part;
	ssize_t n;

	do {
		part = whole || len - done < PIECE ? len - done : PIECE;
		(void)disk_step("pread", fd, false);
		n = __real_pread64(fd, (uint8_t *)buf + done, part,
				   off + (off_t)done);
		if (n > 0)
			done += (size_t)n;
	} while (n > 0 && (size_t)n == part && done < len);
	return done > 0 ? (ssize_t)done : n;
}

static void changed(int fd, uint64_t blocks_before)
{
	struct file *f = disk_of_fd(fd);

	if (!f)
		return;
	f->mtime = disk_now();
	if (f->place == DISK)
		disk.used += disk_blocks_of(fd) - blocks_before;
}

ssize_t WRAP(pwrite64)(int fd, const void *buf, size_t len, off_t off)
{
	int rc = disk_step("pwrite", fd, true);
	uint64_t blocks;
	ssize_t n;

	if (rc == 0 && disk_on_disk(fd) && disk_free() < len)
		rc = ENOSPC;
	if (rc) {
		errno = rc;
		return -1;
	}
	blocks = disk_blocks_of(fd);
	disk_guard(fd, buf, (uint64_t)off, len);
	disk_keep_old(fd, (uint64_t)off, len);
	n = __real_pwrite64(fd, buf, len, off);
	if (n >= 0)
		changed(fd, blocks);
	return n;
}

int WRAP(ftruncate64)(int fd, off_t len)
{
	int rc = disk_step("ftruncate", fd, false);
	uint64_t blocks = disk_blocks_of(fd);
	struct stat sb;

	if (disk_on_disk(fd) && __real_fstat64(fd, &sb) == 0) {
		disk_begin_change(disk_of_fd(fd), (uint64_t)sb.st_size);
		if (sb.st_size > len) {
			disk_guard(fd, NULL, (uint64_t)len,
				   (uint64_t)(sb.st_size - len));
			disk_keep_old(fd, (uint64_t)len,
				      (uint64_t)(sb.st_size - len));
		}
	}
	rc = __real_ftruncate64(fd, len);
	if (rc == 0)
		changed(fd, blocks);
	return rc;
}

/* What is only to be there later would be memory of this machine. */
static int allocate(int fd, int mode, off_t off, off_t len)
{
	struct stat sb;

	if (mode == FALLOC_FL_KEEP_SIZE && disk_of_fd(fd) && !disk_on_disk(fd))
		return 0;
	if (mode != 0 || !disk_of_fd(fd))
		return __real_fallocate64(fd, mode, off, len);
	if (__real_fstat64(fd, &sb) < 0 || sb.st_size >= off + len)
		return 0;
	return __real_ftruncate64(fd, off + len);
}

int WRAP(fallocate64)(int fd, int mode, off_t off, off_t len)
{
	bool takes = !(mode & FALLOC_FL_PUNCH_HOLE);
	int rc = disk_step("fallocate", fd, takes);
	uint64_t blocks = disk_blocks_of(fd);
	struct stat sb = { 0 };

	if (rc == 0 && takes && disk_on_disk(fd) && disk_free() < (uint64_t)len)
		rc = ENOSPC;
	if (rc) {
		errno = rc;
		return -1;
	}
	if (disk_on_disk(fd) && __real_fstat64(fd, &sb) == 0) {
		disk_begin_change(disk_of_fd(fd), (uint64_t)sb.st_size);
		if (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE))
			disk_guard(fd, NULL, (uint64_t)off, (uint64_t)len);
		if (!takes)
			disk_keep_old(
				fd, (uint64_t)off,
				off + len > sb.st_size
					? off < sb.st_size
						  ? (uint64_t)(sb.st_size - off)
						  : 0
					: (uint64_t)len);
	}
	rc = allocate(fd, mode, off, len);
	if (rc == 0)
		changed(fd, blocks);
	return rc;
}

static int sync_any(int fd, const char *what)
{
	struct file *f = disk_of_fd(fd);
	int rc = disk_step(what, fd, true);

	if (rc) {
		errno = rc;
		return -1;
	}
	if (!f || f->place != DISK)
		return 0;
	if (f->dir)
		disk_names_synced(disk.fd[fd].path);
	else
		disk_synced(f);
	return 0;
}

int WRAP(fsync)(int fd)
{
	return sync_any(fd, "fsync");
}

int WRAP(fdatasync)(int fd)
{
	return sync_any(fd, "fdatasync");
}

static void name_point(const char *what, const char *path)
{
	char text[440];

	(void)snprintf(text, sizeof(text), "%s %s", what, disk_shown(path));
	sim_point("io", text);
}

int WRAP(unlinkat)(int dirfd, const char *path, int flags)
{
	char full[400];
	enum place place = disk_resolve(dirfd, path, full);
	uint64_t ino = 0;
	struct stat sb;
	int rc;

	if (place != ELSEWHERE)
		name_point("unlink", full);
	if (place == DISK &&
	    __real_fstatat64(dirfd, path, &sb, AT_SYMLINK_NOFOLLOW) == 0) {
		disk_guard_name(full);
		ino = sb.st_ino;
		disk_bury(full, ino);
	}
	rc = __real_unlinkat(dirfd, path, flags);
	if (rc == 0 && ino) {
		disk_note_name(full, ino, 0, false);
		if (disk.size != UINT64_MAX)
			disk.used -= (uint64_t)sb.st_blocks * 512;
	}
	return rc;
}

int WRAP(unlink)(const char *path)
{
	return WRAP(unlinkat)(AT_FDCWD, path, 0);
}

int WRAP(renameat)(int from_fd, const char *from, int to_fd, const char *to)
{
	char a[400], b[400];
	enum place place = disk_resolve(from_fd, from, a);
	uint64_t ino = 0, old = 0;
	int rc;

	(void)disk_resolve(to_fd, to, b);
	if (place != ELSEWHERE)
		name_point("rename", a);
	if (place == DISK) {
		disk_guard_name(a);
		ino = disk_ino_at(a);
		old = disk_ino_at(b);
		if (ino)
			disk_bury(a, ino);
		if (old)
			disk_bury(b, old);
	}
	rc = __real_renameat(from_fd, from, to_fd, to);
	if (rc == 0 && ino) {
		disk_note_name(a, ino, 0, false);
		disk_note_name(b, old, ino, true);
	}
	/* Open descriptors follow. */
	for (int i = 0; rc == 0 && i < FDS_MAX; i++)
		if (disk.fd[i].path && strcmp(disk.fd[i].path, a) == 0) {
			free(disk.fd[i].path);
			disk.fd[i].path = strdup(b);
		}
	return rc;
}

int WRAP(linkat)(int from_fd, const char *from, int to_fd, const char *to,
		  int flags)
{
	char full[400];
	enum place place = disk_resolve(to_fd, to, full);
	int rc;

	if (place != ELSEWHERE)
		name_point("link", full);
	rc = __real_linkat(from_fd, from, to_fd, to, flags);
	if (rc == 0 && place == DISK)
		disk_note_name(full, 0, disk_ino_at(full), false);
	return rc;
}

/* Of a new store only, and that is whole when it is used. */
int WRAP(mkdirat)(int dirfd, const char *path, mode_t mode)
{
	char full[400];

	if (disk_resolve(dirfd, path, full) == DISK && is_image_dir(full))
		return 0;
	return __real_mkdirat(dirfd, path, mode);
}

void *WRAP(mmap64)(void *at, size_t len, int prot, int flags, int fd,
		    off_t off)
{
	void *p = __real_mmap64(at, len, prot, flags, fd, off);

	if (p == MAP_FAILED || fd < 0 || fd >= FDS_MAX ||
	    disk.fd[fd].place == ELSEWHERE)
		return p;
	for (int i = 0; i < MAPS_MAX; i++)
		if (!disk.map[i].at) {
			disk.map[i].at = p;
			disk.map[i].len = len;
			disk.map[i].part = disk_part_of(disk.fd[fd].path);
			return p;
		}
	abort();
}

int WRAP(munmap)(void *at, size_t len)
{
	for (int i = 0; i < MAPS_MAX; i++)
		if (disk.map[i].at == at)
			disk.map[i].at = NULL;
	return __real_munmap(at, len);
}

/* Times of files are those of the run. */
static void set_times(struct stat *sb)
{
	for (size_t i = disk.file_count; i-- > 0;)
		if (disk.file[i]->ino == sb->st_ino) {
			sb->st_mtim = sb->st_ctim = disk.file[i]->mtime;
			sb->st_atim = disk.file[i]->mtime;
			return;
		}
}

int WRAP(fstat64)(int fd, struct stat *sb)
{
	int rc = __real_fstat64(fd, sb);

	if (rc == 0 && disk_of_fd(fd))
		set_times(sb);
	return rc;
}

int WRAP(fstatat64)(int dirfd, const char *path, struct stat *sb, int flags)
{
	char full[400];
	enum place place = disk_resolve(dirfd, path, full);
	int rc = __real_fstatat64(dirfd, path, sb, flags);

	if (rc == 0 && place != ELSEWHERE)
		set_times(sb);
	return rc;
}

static int times_set(struct file *f, const struct timespec times[2])
{
	if (!times || times[1].tv_nsec == UTIME_NOW)
		f->mtime = disk_now();
	else if (times[1].tv_nsec != UTIME_OMIT)
		f->mtime = times[1];
	return 0;
}

int WRAP(futimens)(int fd, const struct timespec times[2])
{
	struct file *f = disk_of_fd(fd);

	return f ? times_set(f, times) : __real_futimens(fd, times);
}

int WRAP(utimensat)(int dirfd, const char *path,
		     const struct timespec times[2], int flags)
{
	char full[400];
	enum place place = disk_resolve(dirfd, path, full);
	uint64_t ino;

	if (place == ELSEWHERE)
		return __real_utimensat(dirfd, path, times, flags);
	ino = disk_ino_at(full);
	if (!ino) {
		errno = ENOENT;
		return -1;
	}
	return times_set(disk_file_of(ino, place), times);
}

/* What is free elsewhere on the carrier is nobody's business. */
int WRAP(fstatvfs64)(int fd, struct statvfs *v)
{
	int rc = __real_fstatvfs64(fd, v);
	bool counted = disk_on_disk(fd) && disk.size != UINT64_MAX;

	if (rc < 0 || !disk_of_fd(fd))
		return rc;
	v->f_bsize = v->f_frsize = BLOCK;
	v->f_blocks = counted ? disk.size / BLOCK : 1u << 28;
	v->f_bfree = v->f_bavail = counted ? disk_free() / BLOCK : 1u << 27;
	v->f_files = 0; /* it counts no inodes */
	return 0;
}

int WRAP(fstatfs64)(int fd, struct statfs *v)
{
	int rc = __real_fstatfs64(fd, v);

	if (rc < 0 || !disk_of_fd(fd))
		return rc;
	/* Nothing is used: what is would not fit into a stage. */
	v->f_blocks = v->f_bfree = v->f_bavail = 1u << 28;
	return 0;
}

ssize_t WRAP(getrandom)(void *buf, size_t len, unsigned flags)
{
	uint8_t *p = buf;

	(void)flags;
	for (size_t i = 0; i < len; i++)
		p[i] = (uint8_t)chance_next(&disk.chance);
	return (ssize_t)len;
}
