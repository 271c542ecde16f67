/*
 * stage_file.c - the file of one stage: on the tmpfs, or an image. What is
 * sealed is marked append-only, see stage.h; the mark has to go for a moment
 * when the file is unlinked, cut by us, or gets its times.
 */
#include "store/space/stage_private.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/copy.h"
#include "store/base/log.h"
#include "store/base/scope.h"

void stage_file_name(uint64_t number, char ret[24])
{
	(void)snprintf(ret, 24, "s%016llx", (unsigned long long)number);
}

int stage_set_sealed(int fd, bool on)
{
	int flags = 0;

	if (ioctl(fd, FS_IOC_GETFLAGS, &flags) < 0)
		return -errno;
	flags = on ? flags | FS_APPEND_FL : flags & ~FS_APPEND_FL;
	return ioctl(fd, FS_IOC_SETFLAGS, &flags) < 0 ? -errno : 0;
}

bool stage_is_sealed(int fd)
{
	int flags = 0;

	return ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0 &&
	       (flags & FS_APPEND_FL);
}

void stage_unlink(struct stages *st, uint64_t number)
{
	char name[24];
	int fd;

	stage_file_name(number, name);
	if (unlinkat(st->dirfd, name, 0) == 0 || errno != EPERM)
		return;
	fd = openat(st->dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return;
	if (stage_set_sealed(fd, false) < 0 || unlinkat(st->dirfd, name, 0) < 0)
		log_warning("cannot remove %s/%s: %s", st->path, name,
			    strerror(errno));
	close(fd);
}

int stage_open(struct stages *st, const struct stage *s, int flags)
{
	char name[24];
	int fd;

	if (s->kind == STAGE_DISK)
		return image_open_fd(st->images, s->image, flags);
	stage_file_name(s->number, name);
	fd = openat(st->dirfd, name, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
	return fd < 0 ? -errno : fd;
}

int stage_stat(struct stages *st, const struct stage *s, struct stat *ret)
{
	char name[24];

	if (s->kind == STAGE_DISK)
		return image_stat(st->images, s->image, ret);
	stage_file_name(s->number, name);
	return fstatat(st->dirfd, name, ret, AT_SYMLINK_NOFOLLOW) < 0 ? -errno
								      : 0;
}

static int add_bytes(void *arg, uint64_t at, uint64_t end)
{
	uint64_t *sum = arg;

	*sum += end - at;
	return 0;
}

uint64_t stage_data_bytes(struct stages *st, const struct stage *s,
			  const struct stat *sb)
{
	SCOPED(scope_close) int fd = -1;
	uint64_t size = (uint64_t)sb->st_size, sum = 0;
	uint64_t has = (uint64_t)sb->st_blocks * 512;

	if (s->kind == STAGE_MEMORY && has > 0)
		fd = stage_open(st, s, O_RDONLY);
	if (fd >= 0 && copy_each_data(fd, size, add_bytes, &sum) == 0)
		return sum;
	return has < size ? has : size;
}

int stage_ask(struct stages *st, const struct stage *s, enum lease what)
{
	char name[24];

	if (s->kind == STAGE_DISK)
		return image_ask(st->images, s->image, what);
	stage_file_name(s->number, name);
	return lease_ask(st->dirfd, name, what);
}

int stage_seal(struct stages *st, struct stage *s, uint64_t size_bytes)
{
	SCOPED(scope_close) int fd = stage_open(st, s, O_RDONLY);
	struct stat sb;
	int rc = fd < 0 ? fd : stage_set_sealed(fd, true);

	if (rc < 0)
		return rc;
	s->sealed = true;
	if (fstat(fd, &sb) < 0)
		return -errno;
	return (uint64_t)sb.st_size == size_bytes ? 0 : -ESTALE;
}

uint64_t stage_beyond(struct stages *st, const struct stage *s,
		      uint64_t size_bytes)
{
	const uint64_t huge = UINT64_C(2) << 20;
	uint64_t whole = (size_bytes + huge - 1) / huge * huge, blocks;
	struct stat sb;

	if (stage_stat(st, s, &sb) < 0)
		return 0;
	blocks = (uint64_t)sb.st_blocks * 512;
	if (blocks > whole)
		return blocks - whole;
	return (uint64_t)sb.st_size > size_bytes
		       ? (uint64_t)sb.st_size - size_bytes
		       : 0;
}

int stage_cut(struct stages *st, struct stage *s, uint64_t size_bytes)
{
	SCOPED(scope_close) int flags_fd = stage_open(st, s, O_RDONLY);
	SCOPED(scope_close) int fd = -1;
	int rc;

	if (flags_fd < 0)
		return flags_fd;
	rc = stage_set_sealed(flags_fd, false);
	if (rc < 0)
		return rc;
	fd = stage_open(st, s, O_RDWR);
	rc = fd < 0 ? fd : ftruncate(fd, (off_t)size_bytes) < 0 ? -errno : 0;
	if (s->sealed && stage_set_sealed(flags_fd, true) < 0 && rc == 0)
		rc = -errno;
	return rc;
}

void stage_set_times(struct stages *st, struct stage *s,
		     const struct timespec times[2])
{
	SCOPED(scope_close) int fd = -1;
	char name[LAYOUT_IMAGE_NAME_BYTES];

	if (s->kind == STAGE_DISK) {
		layout_image_name(s->number, name);
		(void)utimensat(st->images->dirfd, name, times,
				AT_SYMLINK_NOFOLLOW);
		return;
	}
	if (s->sealed) {
		fd = stage_open(st, s, O_RDONLY);
		/* An append-only file takes no times but the present one. */
		if (fd < 0 || stage_set_sealed(fd, false) < 0)
			return;
	}
	stage_file_name(s->number, name);
	(void)utimensat(st->dirfd, name, times, AT_SYMLINK_NOFOLLOW);
	if (s->sealed && stage_set_sealed(fd, true) < 0)
		log_error("stage of inode %llu: cannot be sealed again: %s",
			  (unsigned long long)s->ino, strerror(errno));
}

int stage_copy(struct stages *st, const struct stage *from, struct stage *to)
{
	SCOPED(scope_close) int in = stage_open(st, from, O_RDONLY);
	SCOPED(scope_close) int out = stage_open(st, to, O_RDWR);
	struct stat sb;
	int rc;

	if (in < 0 || out < 0)
		return in < 0 ? in : out;
	rc = copy_file(in, out);
	if (rc == 0)
		rc = stage_stat(st, from, &sb);
	if (rc == 0)
		stage_set_times(st, to,
				(struct timespec[]){ sb.st_atim, sb.st_mtim });
	return rc;
}

const uint8_t *stage_map(struct stages *st, const struct stage *s,
			 uint64_t size)
{
	SCOPED(scope_close) int fd = -1;
	void *map;

	if (s->kind != STAGE_MEMORY || size == 0)
		return NULL;
	fd = stage_open(st, s, O_RDONLY);
	if (fd < 0)
		return NULL;
	map = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, fd, 0);
	return map == MAP_FAILED ? NULL : map;
}

void stage_unmap(const uint8_t *map, uint64_t size)
{
	if (map)
		(void)munmap((void *)(uintptr_t)map, (size_t)size);
}
