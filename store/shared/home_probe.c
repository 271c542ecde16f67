/*
 * home_probe.c - what DIR must be able to do is done once, with a file in
 * new/NAME, and looked at: a call that returns 0 and does nothing is found as
 * well. That directory is this node's alone, and its lock is held, so what is
 * left of a probe that was interrupted is removed, and nothing else.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "store/base/dir.h"
#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/shared/home.h"
#include "store/shared/home_private.h"

#define PROBE ".probe"
#define PROBE_OTHER ".probe-other"
#define WRITTEN_BYTES 4096
#define PROBE_BYTES 100 /* when the rest is cut off */
#define PROBE_TIME_S 1000000000 /* of 2001: no clock of now */
#define PROBE_OWNER 1 /* anybody but root */
#define PROBE_MODE 0640 /* of a file that is complete */

struct probe {
	const struct home_why *why;
	int dirfd, fd;
	struct stat st; /* of fd, when it was last looked at */
};

mode_t shared_pending_mode(void)
{
	/* Root opens what has no permissions; others only what they own. */
	return geteuid() == 0 ? S_ISVTX : S_ISVTX | S_IRUSR | S_IWUSR;
}

/* Nothing is said by that of what the file system can do. */
static bool is_trouble(int rc)
{
	return rc == -ENOSPC || rc == -EDQUOT || rc == -EIO || rc == -EROFS ||
	       rc == -ENOMEM || rc == -EMFILE || rc == -ENFILE;
}

/* need: "keep the sticky bit of a file"; rc 0: the call did as if it had. */
static int lacks(const struct probe *p, int rc, const char *need)
{
	if (is_trouble(rc))
		return home_refuse(p->why, rc,
				   "%s: cannot %s now: %s; that is tried when "
				   "it is mounted",
				   p->why->dir, need, strerror(-rc));
	return home_refuse(p->why, -EOPNOTSUPP,
			   "%s cannot be shared: its file system does not %s "
			   "(%s)",
			   p->why->dir, need,
			   rc < 0 ? strerror(-rc)
				  : "the call succeeds, and it is not so");
}

static bool look(struct probe *p)
{
	return fstat(p->fd, &p->st) == 0;
}

static void clear(const struct probe *p)
{
	(void)unlinkat(p->dirfd, PROBE, 0);
	(void)unlinkat(p->dirfd, PROBE_OTHER, 0);
}

static int create(const struct probe *p, const char *name)
{
	int fd = openat(p->dirfd, name,
			O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
			shared_pending_mode());

	return fd < 0 ? -errno : fd;
}

static int probe_create(struct probe *p)
{
	SCOPED(scope_close) int second = -1;

	p->fd = create(p, PROBE);
	if (p->fd < 0)
		return lacks(p, p->fd, "make a file in .ckptfs/new");
	second = create(p, PROBE);
	if (second != -EEXIST)
		return lacks(p, second < 0 ? second : 0,
			     "make a file only where there is none");
	return 0;
}

static int probe_mode(struct probe *p)
{
	const char *need = "keep the sticky bit of a file, which says that it "
			   "is not whole";

	if (!look(p))
		return lacks(p, -errno, "show what a file is");
	if ((p->st.st_mode & ALLPERMS) != shared_pending_mode())
		return lacks(p, 0, need);
	if (fchmod(p->fd, PROBE_MODE) < 0 || !look(p))
		return lacks(p, -errno, "change the mode of a file");
	if ((p->st.st_mode & ALLPERMS) != PROBE_MODE)
		return lacks(p, 0, "change the mode of a file");
	if (fchmod(p->fd, shared_pending_mode()) < 0 || !look(p))
		return lacks(p, -errno, need);
	if ((p->st.st_mode & ALLPERMS) != shared_pending_mode())
		return lacks(p, 0, need);
	return 0;
}

/* Root gives files to who made them, and goes on writing to them. */
static int probe_owner(struct probe *p)
{
	const char *need = "let root of this node give a file to its owner: is "
			   "it NFS with root_squash, or Lustre with a nodemap? "
			   "Have it trust this root, or mount as the user "
			   "whose directory it is";
	SCOPED(scope_close) int again = -1;

	if (geteuid() != 0)
		return 0;
	if (fchown(p->fd, PROBE_OWNER, PROBE_OWNER) < 0 || !look(p))
		return lacks(p, -errno, need);
	if (p->st.st_uid != PROBE_OWNER || p->st.st_gid != PROBE_OWNER)
		return lacks(p, 0, need);
	again = openat(p->dirfd, PROBE, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	if (again < 0)
		return lacks(p, -errno,
			     "let root of this node open a file that has no "
			     "permissions");
	return 0;
}

static int probe_bytes(struct probe *p)
{
	uint8_t out[WRITTEN_BYTES], in[WRITTEN_BYTES] = { 0 };
	int rc;

	memset(out, 'p', sizeof(out));
	rc = io_write_full(p->fd, out, sizeof(out), 0);
	if (rc == 0 && fsync(p->fd) < 0)
		rc = -errno;
	if (rc == 0)
		rc = io_read_full(p->fd, in, sizeof(in), 0);
	if (rc < 0 || memcmp(in, out, sizeof(in)) != 0)
		return lacks(p, rc, "write a file, sync it and read it again");
	if (ftruncate(p->fd, PROBE_BYTES) < 0 || !look(p))
		return lacks(p, -errno, "cut the end of a file off");
	if (p->st.st_size != PROBE_BYTES)
		return lacks(p, 0, "cut the end of a file off");
	return 0;
}

/* Whole seconds are enough. */
static int probe_times(struct probe *p)
{
	const struct timespec times[2] = { { .tv_sec = PROBE_TIME_S },
					   { .tv_sec = PROBE_TIME_S + 1 } };

	if (futimens(p->fd, times) < 0 || !look(p))
		return lacks(p, -errno, "set the times of a file");
	if (p->st.st_mtim.tv_sec != PROBE_TIME_S + 1)
		return lacks(p, 0, "set the times of a file");
	return 0;
}

/* Over another one, as what replaces a file is. */
static int probe_rename(struct probe *p)
{
	const char *need = "rename a file over another one";
	SCOPED(scope_close) int other = create(p, PROBE_OTHER);
	struct stat st;

	if (other < 0)
		return lacks(p, other, "make a second file in .ckptfs/new");
	if (renameat(p->dirfd, PROBE, p->dirfd, PROBE_OTHER) < 0 || !look(p) ||
	    fstatat(p->dirfd, PROBE_OTHER, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return lacks(p, -errno, need);
	if (st.st_dev != p->st.st_dev || st.st_ino != p->st.st_ino ||
	    st.st_size != PROBE_BYTES ||
	    faccessat(p->dirfd, PROBE, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
		return lacks(p, 0, need);
	return 0;
}

/* By its descriptor, as own/ gets its names; and of no permissions. */
static int probe_link(struct probe *p)
{
	const char *need = "give a file a second name (hard links)";
	int rc = dir_link(p->fd, p->dirfd, PROBE);

	if (rc < 0 || !look(p))
		return lacks(p, rc < 0 ? rc : -errno, need);
	return p->st.st_nlink == 2 ? 0 : lacks(p, 0, need);
}

static int probe_remove(struct probe *p)
{
	if (unlinkat(p->dirfd, PROBE_OTHER, 0) < 0)
		return lacks(p, -errno, "remove a file");
	if (faccessat(p->dirfd, PROBE_OTHER, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
		return lacks(p, 0, "remove a file");
	return 0;
}

int home_probe(const struct home_why *w, int newfd)
{
	static int (*const steps[])(struct probe * p) = {
		probe_create, probe_mode,   probe_owner, probe_bytes,
		probe_times,  probe_rename, probe_link,  probe_remove,
	};
	struct probe p = { .why = w, .dirfd = newfd, .fd = -1 };
	int rc = 0;

	clear(&p);
	for (size_t n = 0; rc == 0 && n < sizeof(steps) / sizeof(*steps); n++)
		rc = steps[n](&p);
	clear(&p);
	scope_close(&p.fd);
	return rc;
}
