/*
 * reserve.c - see reserve.h. The reserve is larger than what the database has
 * in memory, which it writes out before it goes on after a full disk, and than
 * what must be left before anything is retried (kv_room()).
 */
#include "store/space/reserve.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "store/base/log.h"
#include "store/db/kv.h"
#include "store/db/layout.h"

#define RESERVE_BYTES (UINT64_C(32) << 20)
/* A smaller disk has better use for it. */
#define RESERVE_ROOM_BYTES (UINT64_C(256) << 20)

void reserve_init(struct reserve *r, const char *path, int dirfd, struct kv *kv)
{
	struct stat sb;

	*r = (struct reserve){ .path = path, .dirfd = dirfd, .kv = kv };
	r->made = fstatat(r->dirfd, LAYOUT_RESERVE_FILE, &sb, 0) == 0 &&
		  (uint64_t)sb.st_blocks * 512 >= RESERVE_BYTES;
}

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
}

void reserve_look(struct reserve *r)
{
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
