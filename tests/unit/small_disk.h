/*
 * small_disk.h - a small file system of a test's own, that runs full.
 *
 * Large enough for RocksDB to go on by itself once it is free again: it wants
 * room for more than what it has in memory.
 */
#ifndef TESTS_UNIT_SMALL_DISK_H
#define TESTS_UNIT_SMALL_DISK_H

#include <sys/mount.h>
#include <sys/statvfs.h>

#include "tests/unit/store_fixture.h"

/* Its directory; NULL: it cannot be mounted here. */
static inline char *disk_mount_size(const char *option)
{
	char *dir = make_tmp();

	if (mount("tmpfs", dir, "tmpfs", 0, option) == 0)
		return dir;
	remove_tree(dir);
	free(dir);
	return NULL;
}

static inline char *disk_mount(void)
{
	return disk_mount_size("size=96m");
}

static inline uint64_t disk_room(const char *dir)
{
	struct statvfs v;

	assert_int_equal(statvfs(dir, &v), 0);
	return (uint64_t)v.f_bavail * v.f_frsize;
}

/* Take what is left of it but this many bytes, rounded to pages. */
static inline void disk_fill(const char *dir, uint64_t leave)
{
	static const uint8_t page[4096];
	char *path = NULL;
	int fd;

	assert_true(asprintf(&path, "%s/filler", dir) > 0);
	fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	while (disk_room(dir) > leave)
		assert_int_equal(write(fd, page, sizeof(page)), sizeof(page));
	close(fd);
	free(path);
}

static inline void disk_relieve(const char *dir)
{
	char *path = NULL;

	assert_true(asprintf(&path, "%s/filler", dir) > 0);
	assert_int_equal(unlink(path), 0);
	free(path);
}

static inline void disk_free(char *dir)
{
	assert_int_equal(umount(dir), 0);
	remove_tree(dir);
	free(dir);
}

#endif
