/*
 * reserve.c - see reserve.h. The reserve is larger than what the database has
 * in memory, which it writes out before it goes on after a full disk, and than
 * what must be left before anything is retried (kv_room()).
 */
#include "store/space/reserve.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/db/kv.h"
#include "store/db/layout.h"

#define RESERVE_BYTES (UINT64_C(32) << 20)
/* A smaller disk has better use for it. */
#define RESERVE_ROOM_BYTES (UINT64_C(256) << 20)
/* An open of the database makes some ten files, and one for each table. */
#define RESERVE_INODES 32u
#define RESERVE_ROOM_INODES (UINT64_C(16) * RESERVE_INODES)
#define INODE_NAME_BYTES 12

/* --- inodes --------------------------------------------------------------- */

/* Where a file system makes them as they are needed it counts none. */
static bool counts_inodes(int dirfd, struct statvfs *ret)
{
	return fstatvfs(dirfd, ret) == 0 && ret->f_files > 0;
}

static bool inodes_below(int dirfd, unsigned count)
{
	struct statvfs v;

	return counts_inodes(dirfd, &v) && v.f_favail < count;
}

static void inode_name(unsigned n, char name[INODE_NAME_BYTES])
{
	(void)snprintf(name, INODE_NAME_BYTES, "%u", n);
}

static int open_inodes(int dirfd)
{
	return openat(dirfd, LAYOUT_RESERVE_DIR,
		      O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static void remove_inodes(int dirfd)
{
	SCOPED(scope_close) int fd = open_inodes(dirfd);
	char name[INODE_NAME_BYTES];

	for (unsigned i = 0; fd >= 0 && i < RESERVE_INODES; i++) {
		inode_name(i, name);
		(void)unlinkat(fd, name, 0);
	}
	(void)unlinkat(dirfd, LAYOUT_RESERVE_DIR, AT_REMOVEDIR);
}

static bool make_inodes(int dirfd)
{
	SCOPED(scope_close) int fd = -1;
	char name[INODE_NAME_BYTES];
	bool made;

	if (mkdirat(dirfd, LAYOUT_RESERVE_DIR, 0700) < 0 && errno != EEXIST)
		return false;
	fd = open_inodes(dirfd);
	made = fd >= 0;
	for (unsigned i = 0; made && i < RESERVE_INODES; i++) {
		int file;

		inode_name(i, name);
		file = openat(fd, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
		made = file >= 0;
		if (file >= 0)
			(void)close(file);
	}
	if (!made)
		remove_inodes(dirfd);
	return made;
}

static void give_inodes_up(const char *path, int dirfd, const char *what_for)
{
	log_warning("%s: its file system has no inode left; those of its "
		    "reserve are given up so that %s",
		    path, what_for);
	remove_inodes(dirfd);
	(void)fsync(dirfd);
}

/* The last of them is there: a daemon may have died as it made them. */
static bool has_inodes(int dirfd)
{
	SCOPED(scope_close) int fd = open_inodes(dirfd);
	char name[INODE_NAME_BYTES];

	inode_name(RESERVE_INODES - 1, name);
	return fd >= 0 && faccessat(fd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

void reserve_init(struct reserve *r, const char *path, int dirfd, struct kv *kv)
{
	struct stat sb;

	*r = (struct reserve){ .path = path, .dirfd = dirfd, .kv = kv };
	r->made = fstatat(r->dirfd, LAYOUT_RESERVE_FILE, &sb, 0) == 0 &&
		  (uint64_t)sb.st_blocks * 512 >= RESERVE_BYTES;
	r->inodes_made = has_inodes(dirfd);
}

/* --- bytes ---------------------------------------------------------------- */

static bool reserve_make(struct reserve *r)
{
	int fd = openat(r->dirfd, LAYOUT_RESERVE_FILE,
			O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	bool made;

	if (fd < 0)
		return false;
	made = fallocate(fd, 0, 0, (off_t)RESERVE_BYTES) == 0;
	close(fd);
	if (!made)
		(void)unlinkat(r->dirfd, LAYOUT_RESERVE_FILE, 0);
	return made;
}

static bool room_below(int dirfd, uint64_t bytes)
{
	struct statvfs v;

	return fstatvfs(dirfd, &v) == 0 &&
	       (uint64_t)v.f_bavail * v.f_frsize < bytes;
}

static void give_up(const char *path, int dirfd, const char *what_for)
{
	log_warning("%s: the disk is full; its reserve is given up so that %s",
		    path, what_for);
	if (unlinkat(dirfd, LAYOUT_RESERVE_FILE, 0) < 0)
		log_error("%s/" LAYOUT_RESERVE_FILE ": %s", path,
			  strerror(errno));
	/* ext4 has the room once this is on the disk. */
	(void)fsync(dirfd);
}

void reserve_give_up(const char *path, int dirfd)
{
	if (faccessat(dirfd, LAYOUT_RESERVE_FILE, F_OK, AT_SYMLINK_NOFOLLOW) ==
		    0 &&
	    room_below(dirfd, RESERVE_BYTES))
		give_up(path, dirfd, "it can be mounted");
	if (faccessat(dirfd, LAYOUT_RESERVE_DIR, F_OK, AT_SYMLINK_NOFOLLOW) ==
		    0 &&
	    inodes_below(dirfd, RESERVE_INODES))
		give_inodes_up(path, dirfd, "it can be mounted");
}

static void look_at_inodes(struct reserve *r)
{
	struct statvfs v;

	if (r->inodes_made) {
		if (kv_health(r->kv) == KV_FINE || !inodes_below(r->dirfd, 1))
			return;
		give_inodes_up(r->path, r->dirfd, "files can be deleted");
		r->inodes_made = false;
	} else if (!r->inodes_never && counts_inodes(r->dirfd, &v) &&
		   v.f_favail >= RESERVE_ROOM_INODES) {
		r->inodes_made = make_inodes(r->dirfd);
		r->inodes_never = !r->inodes_made;
	}
}

void reserve_look(struct reserve *r)
{
	look_at_inodes(r);
	if (r->made) {
		if (!kv_is_full(r->kv))
			return;
		give_up(r->path, r->dirfd, "files can be deleted");
		r->made = false;
		return;
	}
	if (!r->never && !room_below(r->dirfd, RESERVE_ROOM_BYTES)) {
		r->made = reserve_make(r);
		r->never = !r->made;
	}
}
