/*
 * disk_cut.c - what of the changes is not durable, and a power cut that takes
 * some of it back.
 */
#include "tests/sim/disk_private.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/scope.h"
#include "store/base/vec.h"

uint8_t disk_hole[BLOCK];

static void old_free(struct file *f)
{
	for (size_t i = 0; i < f->blocks; i++)
		if (f->old[i] && f->old[i] != disk_hole)
			free(f->old[i]);
	free(f->old);
	f->old = NULL;
	f->blocks = 0;
}

void disk_begin_change(struct file *f, uint64_t size)
{
	if (f->changed)
		return;
	f->changed = true;
	f->durable_size = size;
}

/* Keep what [off, off + len) is, before it changes. */
void disk_keep_old(int fd, uint64_t off, uint64_t len)
{
	struct file *f = disk_of_fd(fd);
	SCOPED(scope_close) int own = -1;
	char path[40];
	struct stat sb;

	if (!f || f->place != DISK || len == 0)
		return;
	CHECK(__real_fstat64(fd, &sb) == 0);
	disk_begin_change(f, (uint64_t)sb.st_size);
	if ((off + len + BLOCK - 1) / BLOCK > f->blocks) {
		size_t want = (off + len + BLOCK - 1) / BLOCK;

		f->old = reallocarray(f->old, want, sizeof(*f->old));
		CHECK(f->old);
		memset(f->old + f->blocks, 0,
		       (want - f->blocks) * sizeof(*f->old));
		f->blocks = want;
	}
	for (uint64_t b = off / BLOCK; b * BLOCK < off + len; b++) {
		if (f->old[b])
			continue;
		f->old[b] = disk_hole;
		if (b * BLOCK >= (uint64_t)sb.st_size)
			continue;
		if (own < 0) {
			(void)snprintf(path, sizeof(path), "/proc/self/fd/%d",
				       fd);
			own = __real_open64(path, O_RDONLY | O_CLOEXEC);
			CHECK(own >= 0);
		}
		f->old[b] = calloc(1, BLOCK);
		CHECK(f->old[b]);
		CHECK(__real_pread64(own, f->old[b], BLOCK,
				     (off_t)(b * BLOCK)) >= 0);
	}
}

void disk_synced(struct file *f)
{
	if (!f)
		return;
	old_free(f);
	f->changed = false;
}

void disk_split(const char *path, char dir[200], char name[100])
{
	const char *slash = strrchr(path, '/');

	CHECK(slash && slash - path < 200 && strlen(slash + 1) < 100);
	memcpy(dir, path, (size_t)(slash - path));
	dir[slash - path] = 0;
	strcpy(name, slash + 1);
}

void disk_note_name(const char *path, uint64_t before, uint64_t after,
		    bool joined)
{
	struct name_change *c;

	CHECK(vec_grow(&disk.change, disk.change_count, &disk.change_room,
		       sizeof(*disk.change)) == 0);
	c = &disk.change[disk.change_count++];
	*c = (struct name_change){ .before = before,
				   .after = after,
				   .joined = joined };
	disk_split(path, c->dir, c->name);
}

void disk_names_synced(const char *dir)
{
	size_t kept = 0;

	for (size_t i = 0; i < disk.change_count; i++)
		if (strcmp(disk.change[i].dir, dir) != 0)
			disk.change[kept++] = disk.change[i];
	disk.change_count = kept;
}

uint64_t disk_ino_at(const char *path)
{
	struct stat sb;

	return __real_fstatat64(AT_FDCWD, path, &sb, AT_SYMLINK_NOFOLLOW) == 0
		       ? sb.st_ino
		       : 0;
}

/* It is about to lose a name: it may have to come back. */
void disk_bury(const char *path, uint64_t ino)
{
	char grave[200];

	(void)snprintf(grave, sizeof(grave), "%s/%llu", disk.grave,
		       (unsigned long long)ino);
	(void)__real_linkat(AT_FDCWD, path, AT_FDCWD, grave, 0);
}

static void undo_name(const struct name_change *c)
{
	char path[400], grave[200];

	(void)snprintf(path, sizeof(path), "%s/%s", c->dir, c->name);
	if (c->after) {
		uint64_t ino = disk_ino_at(path);

		if (ino)
			disk_bury(path, ino);
		if (__real_unlinkat(AT_FDCWD, path, 0) < 0)
			(void)__real_unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
	}
	if (c->before) {
		(void)snprintf(grave, sizeof(grave), "%s/%llu", disk.grave,
			       (unsigned long long)c->before);
		(void)__real_linkat(AT_FDCWD, grave, AT_FDCWD, path, 0);
	}
}

/* part: -1: of all. */
static bool is_of(const struct name_change *n, int part)
{
	return part < 0 || disk_part_of(n->dir) == part;
}

/* Of each directory some first changes stay. */
static void cut_names(struct chance *c, int part)
{
	size_t kept = 0;
	bool *gone = calloc(disk.change_count + 1, sizeof(*gone));

	CHECK(gone);
	for (size_t i = 0; i < disk.change_count; i++) {
		struct name_change *n = &disk.change[i];

		if (!is_of(n, part))
			continue;
		for (size_t k = 0; k < i && !gone[i]; k++)
			gone[i] = gone[k] &&
				  strcmp(disk.change[k].dir, n->dir) == 0;
		if (!gone[i] && n->joined)
			continue;
		gone[i] = gone[i] || chance_one_in(c, 3);
	}
	for (size_t i = disk.change_count; i-- > 0;) {
		if (!is_of(&disk.change[i], part))
			continue;
		if (!gone[i] && i + 1 < disk.change_count &&
		    disk.change[i + 1].joined)
			gone[i] = gone[i + 1];
		if (gone[i])
			undo_name(&disk.change[i]);
	}
	free(gone);
	for (size_t i = 0; i < disk.change_count; i++)
		if (!is_of(&disk.change[i], part))
			disk.change[kept++] = disk.change[i];
	disk.change_count = kept;
}

static void cut_file(struct file *f, const char *path, struct chance *c)
{
	SCOPED(scope_close) int fd = __real_open64(path, O_RDWR | O_CLOEXEC);
	uint64_t how = chance_below(c, 4); /* 0: none stay, 1: all, else some */
	struct stat sb;
	uint64_t size;

	CHECK(fd >= 0 && __real_fstat64(fd, &sb) == 0);
	size = (uint64_t)sb.st_size;
	for (size_t b = 0; b < f->blocks; b++) {
		bool stays = how == 1 || (how > 1 && chance_one_in(c, 2));
		off_t at = (off_t)(b * BLOCK);

		if (!f->old[b] || stays || b * BLOCK >= size)
			continue;
		if (f->old[b] == disk_hole)
			CHECK(__real_fallocate64(fd,
						 FALLOC_FL_PUNCH_HOLE |
							 FALLOC_FL_KEEP_SIZE,
						 at, BLOCK) == 0);
		else
			CHECK(__real_pwrite64(fd, f->old[b], BLOCK, at) ==
			      BLOCK);
	}
	/* A larger size is on the disk before or after the bytes are. */
	if (f->durable_size > size || how == 0 ||
	    (how > 1 && chance_one_in(c, 2)))
		size = f->durable_size;
	CHECK(__real_ftruncate64(fd, (off_t)size) == 0);
	disk_synced(f);
}

static void cut_tree(const char *path, struct chance *c)
{
	DIR *dir = opendir(path);
	struct dirent *e;

	CHECK(dir);
	while ((e = readdir(dir)) != NULL) {
		char below[400];

		if (e->d_name[0] == '.')
			continue;
		(void)snprintf(below, sizeof(below), "%s/%s", path, e->d_name);
		if (e->d_type == DT_DIR) {
			cut_tree(below, c);
			continue;
		}
		for (size_t i = 0; i < disk.file_count; i++) {
			struct chance own = chance_of(c->x, i);

			if (disk.file[i]->ino == e->d_ino &&
			    disk.file[i]->changed)
				cut_file(disk.file[i], below, &own);
		}
	}
	closedir(dir);
}

void disk_remove_tree(const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *e;

	while (dir && (e = readdir(dir)) != NULL) {
		char below[400];

		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		(void)snprintf(below, sizeof(below), "%s/%s", path, e->d_name);
		if (e->d_type == DT_DIR) {
			disk_remove_tree(below);
		} else if (__real_unlinkat(AT_FDCWD, below, 0) < 0) {
			int fd = __real_open64(below, O_RDONLY | O_CLOEXEC);
			int none = 0;

			/* a sealed stage: append only */
			(void)ioctl(fd, FS_IOC_SETFLAGS, &none);
			__real_close(fd);
			(void)__real_unlinkat(AT_FDCWD, below, 0);
		}
	}
	if (dir)
		closedir(dir);
	(void)__real_unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

void disk_part_cut(unsigned part, struct chance *c)
{
	char path[DISK_PART_BYTES];

	cut_names(c, (int)part);
	(void)snprintf(path, sizeof(path), "%s/%u", disk.store, part);
	cut_tree(path, c);
	chance_next(c);
	(void)snprintf(path, sizeof(path), "%s/%u", disk.stage, part);
	disk_remove_tree(path);
	CHECK(__real_mkdirat(AT_FDCWD, path, 0700) == 0);
}

void disk_cut(struct chance *c)
{
	cut_names(c, -1);
	cut_tree(disk.store, c);
	chance_next(c);
	disk_remove_tree(disk.stage);
	CHECK(__real_mkdirat(AT_FDCWD, disk.stage, 0700) == 0);
	disk_remove_tree(disk.grave);
	CHECK(__real_mkdirat(AT_FDCWD, disk.grave, 0700) == 0);
}
