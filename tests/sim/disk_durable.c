/*
 * disk_durable.c - images as a power cut would leave them now, at the worst:
 * who reads them here sees what was synced, and whoever changes what the
 * database refers to is caught in the act.
 *
 * So what is wrong is found when it happens, and not only by a power cut that
 * comes in the right moment and keeps the wrong blocks.
 */
#include "tests/sim/disk_private.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/base/scope.h"
#include "store/db/layout.h"

static bool (*is_used)(uint64_t image, uint64_t off, uint64_t len);

void disk_on_change(bool (*fn)(uint64_t image, uint64_t off, uint64_t len))
{
	is_used = fn;
}

/* Is it an image under its own name? */
static bool image_of(const char *path, uint64_t *ret_image)
{
	const char *name = path ? strstr(path, "/" LAYOUT_IMAGE_DIR "/") : NULL;
	int end = 0;

	return name &&
	       sscanf(name + strlen("/" LAYOUT_IMAGE_DIR "/XX/"),
		      "%16" SCNx64 "%n", ret_image, &end) == 1 &&
	       end == 16 &&
	       !name[strlen("/" LAYOUT_IMAGE_DIR "/XX/") + (size_t)end];
}

/* bytes: NULL when zeros take their place. */
static bool is_same(int fd, const uint8_t *bytes, uint64_t off, uint64_t len)
{
	SCOPED(scope_close) int own = -1;
	char path[40];

	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	own = __real_open64(path, O_RDONLY | O_CLOEXEC);
	CHECK(own >= 0);
	while (len > 0) {
		uint8_t now[BLOCK], zeros[BLOCK] = { 0 };
		size_t part = len < BLOCK ? len : BLOCK;
		ssize_t n = __real_pread64(own, now, part, (off_t)off);

		if (n <= 0)
			return n == 0; /* behind its end */
		if (memcmp(now, bytes ? bytes : zeros, (size_t)n) != 0)
			return false;
		bytes = bytes ? bytes + n : NULL;
		off += (uint64_t)n;
		len -= (uint64_t)n;
	}
	return true;
}

void disk_guard(int fd, const void *bytes, uint64_t off, uint64_t len)
{
	uint64_t image;

	if (!is_used || !disk_on_disk(fd) || len == 0 ||
	    !image_of(disk.fd[fd].path, &image) || !is_used(image, off, len) ||
	    is_same(fd, bytes, off, len))
		return;
	sim_fail("in place: image %" PRIu64 " is %s from %" PRIu64 ", %" PRIu64
		 " bytes, and a power cut may leave a file that has them",
		 image, bytes ? "written" : "cut or punched", off, len);
}

void disk_guard_name(const char *path)
{
	uint64_t image;

	if (is_used && image_of(path, &image) &&
	    is_used(image, 0, UINT64_MAX / 2))
		sim_fail("in place: image %" PRIu64 " goes, and a power cut "
			 "may leave a file that has its bytes",
			 image);
}

/* The blocks that were not synced since they were changed are as they are? */
static bool is_range_synced(const struct file *f, const uint8_t *now,
			    uint64_t off, size_t len)
{
	static const uint8_t zeros[BLOCK];

	for (uint64_t b = off / BLOCK; b * BLOCK < off + len; b++) {
		uint64_t from = b * BLOCK < off ? off : b * BLOCK;
		uint64_t to = (b + 1) * BLOCK < off + len ? (b + 1) * BLOCK
							  : off + len;
		const uint8_t *old = b < f->blocks ? f->old[b] : NULL;

		if (!old)
			continue;
		old = old == disk_hole ? zeros : old;
		if (memcmp(old + from % BLOCK, now + (from - off), to - from) !=
		    0)
			return false;
	}
	return true;
}

/* Of the file that is open as fd. */
static const char *read_synced(int fd, uint64_t off, size_t len, uint8_t *buf)
{
	const struct file *f;
	struct stat sb;

	CHECK(__real_fstat64(fd, &sb) == 0);
	f = disk_file_of(sb.st_ino, DISK);
	if (__real_pread64(fd, buf, len, (off_t)off) != (ssize_t)len ||
	    (f->changed && f->durable_size < off + len))
		return "its image is too short";
	return is_range_synced(f, buf, off, len) ? NULL
						 : "its bytes are not synced";
}

/* A power cut may leave the name with this file: has it the same bytes? */
static const char *read_other(uint64_t ino, uint64_t off, size_t len,
			      const uint8_t *bytes)
{
	SCOPED(scope_free) uint8_t *buf = malloc(len);
	SCOPED(scope_close) int fd = -1;
	char path[200];
	const char *why;

	(void)snprintf(path, sizeof(path), "%s/%" PRIu64, disk.grave, ino);
	if (ino != 0)
		fd = __real_open64(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return "its image's name is not synced";
	CHECK(buf);
	why = read_synced(fd, off, len, buf);
	if (!why && memcmp(buf, bytes, len) != 0)
		why = "a power cut may leave another file with its name";
	return why;
}

const char *disk_read_durable(uint64_t image, uint64_t off, size_t len,
			      uint8_t *buf)
{
	char name[LAYOUT_IMAGE_NAME_BYTES], path[400], dir[200], last[100];
	SCOPED(scope_close) int fd = -1;
	const char *why;
	uint64_t ino;

	layout_image_name(image, name);
	(void)snprintf(path, sizeof(path), "%s/" LAYOUT_IMAGE_DIR "/%s",
		       disk.store, name);
	ino = disk_ino_at(path);
	fd = __real_open64(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return "its image is not there";
	disk_split(path, dir, last);
	why = read_synced(fd, off, len, buf);
	for (size_t i = 0; i < disk.change_count && !why; i++) {
		const struct name_change *c = &disk.change[i];

		if (strcmp(c->name, last) != 0 || strcmp(c->dir, dir) != 0)
			continue;
		if (c->before != ino)
			why = read_other(c->before, off, len, buf);
		if (!why && c->after != ino)
			why = read_other(c->after, off, len, buf);
	}
	return why;
}
