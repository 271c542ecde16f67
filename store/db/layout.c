/*
 * layout.c - see layout.h. What it keeps true: nothing is written into a
 * directory that is not a store or empty, and a directory with a `format` file
 * is a whole store, because that file appears last and at once (rename). While
 * a store is made its text lies under another name: that says of the rest that
 * it is ours, and holds nothing yet.
 */
#include "store/db/layout.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/dir.h"
#include "store/base/scope.h"
#include "store/db/identity.h"
#include "store/db/records.h"

/* There while the store is made: what else is there counts for nothing. */
#define FORMAT_TMP ".ckptfs-format.tmp"
#define FORMAT_NEW ".ckptfs-format.new" /* of an old store */
#define LOCK_BYTES_MAX LAYOUT_LOCK_BYTES_MAX
#define LOCK_CHARACTERS \
	"0123456789 abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-"
#define STORE_MODE 0700 /* what is inside has its own permissions */

/* What each store has from the day it is made. */
static const char *const folders[] = { LAYOUT_DB_DIR, LAYOUT_IMAGE_DIR,
				       LAYOUT_STAGE_DIR };
#define FOLDER_COUNT (sizeof(folders) / sizeof(*folders))

/* Where the sentence for the user goes. */
struct refusal {
	const char *path;
	char *why;
	size_t size;
};

__attribute__((format(printf, 3, 4))) static int
refuse(const struct refusal *r, int rc, const char *format, ...)
{
	va_list ap;

	CHECK(rc < 0);
	va_start(ap, format);
	(void)vsnprintf(r->why, r->size, format, ap);
	va_end(ap);
	return rc;
}

/* A call that failed for a reason which the error itself explains. */
static int refuse_call(const struct refusal *r, const char *what)
{
	int rc = -errno;

	return refuse(r, rc, "%s: cannot %s: %s", r->path, what, strerror(-rc));
}

static int sync_parent(const char *path)
{
	SCOPED(scope_close) int fd = -1;
	char copy[PATH_MAX];

	(void)snprintf(copy, sizeof(copy), "%s", path);
	fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || fsync(fd) < 0)
		return -errno;
	return 0;
}

static int make_dir(const struct refusal *r)
{
	if (mkdir(r->path, STORE_MODE) == 0)
		return sync_parent(r->path) == 0
			       ? 0
			       : refuse_call(r, "make it durable");
	if (errno == EEXIST)
		return 0;
	if (errno == ENOENT)
		return refuse(r, -ENOENT,
			      "%s: the directory above it does not exist; make "
			      "that one first",
			      r->path);
	return refuse_call(r, "make this directory");
}

static bool may_become_one(enum layout_want want)
{
	return want == LAYOUT_ANY || want == LAYOUT_NEW;
}

static int open_dir(const struct refusal *r, enum layout_want want, int *ret_fd)
{
	int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
	int fd = open(r->path, flags);
	int rc;

	if (fd < 0 && errno == ENOENT && may_become_one(want)) {
		rc = make_dir(r);
		if (rc < 0)
			return rc;
		fd = open(r->path, flags);
	}
	if (fd < 0 && errno == ENOENT)
		return refuse(r, -ENOENT,
			      "%s does not exist; name the directory of a "
			      "ckptfs store",
			      r->path);
	if (fd < 0 && errno == ENOTDIR)
		return refuse(r, -ENOTDIR, "%s is not a directory; give %s",
			      r->path,
			      may_become_one(want)
				      ? "an empty one"
				      : "the directory of a ckptfs store");
	if (fd < 0)
		return refuse_call(r, "open this directory");
	*ret_fd = fd;
	return 0;
}

int layout_check_owner(int dirfd, const char *path, char *why, size_t why_size)
{
	const struct refusal r = { .path = path, .why = why, .size = why_size };
	struct stat sb;

	if (fstat(dirfd, &sb) < 0)
		return refuse_call(&r, "look at this directory");
	if (sb.st_uid != geteuid())
		return refuse(&r, -EPERM,
			      "%s belongs to another user (%u), who could have "
			      "other files changed through links in it; give a "
			      "directory of user %u, or chown it",
			      path, sb.st_uid, geteuid());
	if (sb.st_mode & (S_IWGRP | S_IWOTH))
		return refuse(&r, -EPERM,
			      "%s can be written by other users, who could "
			      "have other files changed through links in it; "
			      "chmod go-w it, or give another directory",
			      path);
	return 0;
}

/* Left of a store that was not finished: a lock file holds at most one line. */
static bool is_our_lock(int dirfd)
{
	char text[LOCK_BYTES_MAX + 1];
	ssize_t n = dir_read_text(dirfd, LAYOUT_LOCK_FILE, text, sizeof(text));

	if (n < 0 || n == LOCK_BYTES_MAX)
		return false;
	/* A power cut can leave the size without the bytes, or without some. */
	while (n > 0 && text[n - 1] == 0)
		n--;
	if (n > 0 && text[n - 1] == '\n')
		text[--n] = 0;
	return n == 0 || (text[0] >= '1' && text[0] <= '9' &&
			  strspn(text, LOCK_CHARACTERS) == (size_t)n);
}

static bool is_dir(int dirfd, const char *name)
{
	struct stat sb;

	return fstatat(dirfd, name, &sb, AT_SYMLINK_NOFOLLOW) == 0 &&
	       S_ISDIR(sb.st_mode);
}

/* A directory of images in which there is none. */
static int look_no_images(void *arg, int dirfd, const char *name)
{
	(void)arg;
	return dir_is_empty(dirfd, name) ? 0 : -ENOTEMPTY;
}

/* What make_store() and the first mount make before there is a format file. */
static bool is_half_made(int dirfd, const char *name)
{
	static const char *const parts[] = { LAYOUT_DB_DIR, LAYOUT_STAGE_DIR,
					     LAYOUT_MARK_FILE,
					     LAYOUT_SECRET_FILE,
					     (LAYOUT_SECRET_FILE ".tmp") };
	struct stat sb;

	if (fstatat(dirfd, FORMAT_TMP, &sb, AT_SYMLINK_NOFOLLOW) < 0 ||
	    !S_ISREG(sb.st_mode))
		return false;
	for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
		if (strcmp(name, parts[i]) == 0)
			return true;
	return strcmp(name, LAYOUT_IMAGE_DIR) == 0 &&
	       dir_each(dirfd, name, look_no_images, NULL) == 0;
}

/* -ENOTEMPTY: it may not lie in a directory that is about to become a store. */
static int look_no_data(void *arg, int dirfd, const char *name)
{
	(void)arg;
	if (is_half_made(dirfd, name) || strcmp(name, "lost+found") == 0 ||
	    strcmp(name, FORMAT_TMP) == 0 ||
	    (strcmp(name, LAYOUT_LOCK_FILE) == 0 && is_our_lock(dirfd)))
		return 0;
	return -ENOTEMPTY;
}

/* Why the file `format` is not believed: what format_read() said, and found. */
static int refuse_format(const struct refusal *r, int rc, unsigned number)
{
	if (rc == -EPROTO)
		return refuse(r, rc,
			      "%s was written by a newer ckptfs (format %u, "
			      "this one reads up to %u); upgrade ckptfs",
			      r->path, number, STORE_FORMAT);
	if (rc == -EINVAL)
		return refuse(r, rc,
			      "%s/%s is damaged or not from ckptfs; put that "
			      "file back from a copy, give another directory, "
			      "or run 'ckptctl rebuild %s' if it is a store",
			      r->path, LAYOUT_FORMAT_FILE, r->path);
	return refuse(r, rc, "%s/%s: cannot be read: %s", r->path,
		      LAYOUT_FORMAT_FILE, strerror(-rc));
}

/*
 * It has no format file, and must: the disk of the store is not mounted, say,
 * and this is the directory below it.
 */
static int refuse_no_store(const struct refusal *r, int dirfd,
			   enum layout_want want)
{
	if (want == LAYOUT_CHECK)
		return refuse(r, -EINVAL,
			      "%s is not a ckptfs store (it has no file '%s'); "
			      "give the directory that ckptfs was given as "
			      "STORE",
			      r->path, LAYOUT_FORMAT_FILE);
	if (faccessat(dirfd, FORMAT_TMP, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
		return refuse(r, -EINVAL,
			      "%s is a ckptfs store of which the making was "
			      "interrupted; 'ckptctl init %s' makes it anew",
			      r->path, r->path);
	return refuse(r, -EINVAL,
		      "%s is not a ckptfs store (it has no file '%s'), and "
		      "create=no was given: is its disk mounted? 'ckptctl init "
		      "%s' makes a new store",
		      r->path, LAYOUT_FORMAT_FILE, r->path);
}

/* 1: a store of a format that we read. 0: no store, but may become one. */
static int look(const struct refusal *r, int dirfd, enum layout_want want,
		char ret_uuid[LAYOUT_UUID_BYTES])
{
	struct format format = { .number = 0 };
	int rc = format_read(dirfd, &format);

	if (rc == 0 && want == LAYOUT_NEW)
		return refuse(r, -EEXIST,
			      "%s is a ckptfs store already; it was left as it "
			      "is",
			      r->path);
	if (rc == 0) {
		memcpy(ret_uuid, format.uuid, LAYOUT_UUID_BYTES);
		return 1;
	}
	if (rc != -ENOENT)
		return refuse_format(r, rc, format.number);
	/* While a store is made there is the temporary one. */
	if (is_dir(dirfd, LAYOUT_DB_DIR) && is_dir(dirfd, LAYOUT_IMAGE_DIR) &&
	    faccessat(dirfd, FORMAT_TMP, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
		return refuse(r, -EUCLEAN,
			      "%s: its file '%s' is missing; nothing was "
			      "changed: put it back from a copy, or run "
			      "'ckptctl rebuild %s'",
			      r->path, LAYOUT_FORMAT_FILE, r->path);
	if (!may_become_one(want))
		return refuse_no_store(r, dirfd, want);
	rc = dir_each(dirfd, ".", look_no_data, NULL);
	if (rc == -ENOTEMPTY)
		return refuse(r, -EINVAL,
			      "%s is not empty and not a ckptfs store; give an "
			      "empty directory",
			      r->path);
	if (rc < 0)
		return refuse(r, rc, "%s: cannot be listed: %s", r->path,
			      strerror(-rc));
	return 0;
}

/* Who holds the lock is written in the file; it may have died or forked. */
static int refuse_busy(const struct refusal *r, int lockfd)
{
	char text[LOCK_BYTES_MAX + 1] = "";
	char program[LOCK_BYTES_MAX] = "";
	ssize_t n = pread(lockfd, text, sizeof(text) - 1, 0);
	int fields = 0;
	long pid = 0;

	if (n > 0)
		fields = sscanf(text, "%ld %32[a-zA-Z0-9._-]", &pid, program);
	if (fields < 1 || pid <= 0 ||
	    (kill((pid_t)pid, 0) < 0 && errno == ESRCH))
		return refuse(r, -EBUSY,
			      "%s is mounted already; unmount it first",
			      r->path);
	if (strcmp(program, "ckptctl") == 0)
		return refuse(r, -EBUSY,
			      "%s is being checked (by process %ld); wait "
			      "until that is done",
			      r->path, pid);
	return refuse(r, -EBUSY,
		      "%s is mounted already (process %ld has it open); "
		      "unmount it first",
		      r->path, pid);
}

static int take_lock(const struct refusal *r, int dirfd, int *ret_lockfd)
{
	int flags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
	SCOPED(scope_close)
	int fd =
		openat(dirfd, LAYOUT_LOCK_FILE, flags | O_RDWR | O_CREAT, 0600);

	/* A check may look at a store that lies on a read-only disk. */
	if (fd < 0 && errno == EROFS)
		fd = openat(dirfd, LAYOUT_LOCK_FILE, O_RDONLY | flags);
	if (fd < 0)
		return refuse_call(r, "open the file 'lock' in it");
	if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		return errno == EWOULDBLOCK ? refuse_busy(r, fd)
					    : refuse_call(r, "lock it");
	*ret_lockfd = fd;
	fd = -1;
	return 0;
}

/* Only for a message, so a full disk is no reason to fail. */
void layout_unsay(int lockfd, const struct layout_lock_text *old)
{
	if (old->len > LOCK_BYTES_MAX) /* not ours: it was left as it is */
		return;
	if (ftruncate(lockfd, 0) == 0)
		(void)!pwrite(lockfd, old->text, old->len, 0);
}

void layout_say_who(int lockfd, struct layout_lock_text *ret_old)
{
	struct layout_lock_text us;
	ssize_t n;

	if (ret_old) {
		n = pread(lockfd, ret_old->text, sizeof(ret_old->text), 0);
		ret_old->len = n > 0 ? (size_t)n : 0;
		if (ret_old->len > LOCK_BYTES_MAX)
			return;
	}
	(void)snprintf(us.text, sizeof(us.text), "%ld %.32s\n", (long)getpid(),
		       program_invocation_short_name);
	us.len = strlen(us.text);
	layout_unsay(lockfd, &us);
}

int layout_finish(int dirfd, const char uuid[LAYOUT_UUID_BYTES])
{
	const char *name = layout_is_old(dirfd) ? FORMAT_NEW : FORMAT_TMP;
	int rc = format_write(dirfd, name, uuid);

	return rc < 0 ? rc : dir_rename(dirfd, name, LAYOUT_FORMAT_FILE);
}

bool layout_is_old(int dirfd)
{
	struct format format;

	return format_read(dirfd, &format) == 0 && format.number < STORE_FORMAT;
}

static int remove_name(void *arg, int dirfd, const char *name)
{
	(void)arg;
	return unlinkat(dirfd, name, 0) < 0 ? -errno : 0;
}

/* All of it but the database, and the name of the format file. */
static int make_store(const struct refusal *r, int dirfd,
		      char ret_uuid[LAYOUT_UUID_BYTES])
{
	int rc = identity_make_uuid(ret_uuid);

	if (rc == 0)
		rc = format_write(dirfd, FORMAT_TMP, ret_uuid);
	for (size_t i = 0; rc == 0 && i < FOLDER_COUNT; i++)
		if (mkdirat(dirfd, folders[i], STORE_MODE) < 0 &&
		    errno != EEXIST)
			rc = -errno;
	if (rc == 0) /* what was left when the making was interrupted */
		rc = dir_each(dirfd, LAYOUT_DB_DIR, remove_name, NULL);
	if (rc == 0 && unlinkat(dirfd, LAYOUT_MARK_FILE, 0) < 0 &&
	    errno != ENOENT)
		rc = -errno;
	if (rc == 0 && fsync(dirfd) < 0)
		rc = -errno;
	if (rc < 0)
		return refuse(r, rc, "%s: cannot make a store here: %s",
			      r->path, strerror(-rc));
	return 0;
}

/*
 * What is in it must be nobody else's to change, and without its images a store
 * is not one to write to. The other two are looked at by who opens them.
 */
static int look_parts(const struct refusal *r, int dirfd)
{
	for (size_t i = 0; i < FOLDER_COUNT; i++) {
		struct stat sb;

		if (fstatat(dirfd, folders[i], &sb, AT_SYMLINK_NOFOLLOW) < 0) {
			if (errno == ENOENT)
				continue;
			return refuse_call(r, "look at the directories in it");
		}
		if (!S_ISDIR(sb.st_mode) || sb.st_uid != geteuid() ||
		    (sb.st_mode & (S_IWGRP | S_IWOTH)))
			return refuse(r, -EPERM,
				      "%s/%s is not a directory that user %u "
				      "alone can change; put it right, or give "
				      "another store",
				      r->path, folders[i], geteuid());
	}
	if (is_dir(dirfd, LAYOUT_IMAGE_DIR))
		return 0;
	return refuse(r, -EUCLEAN,
		      "%s: its directory '%s' is missing; nothing was changed: "
		      "put it back from a copy of this store, or run 'ckptctl "
		      "rebuild %s' to go on without what was in it",
		      r->path, LAYOUT_IMAGE_DIR, r->path);
}

int layout_open(const char *path, enum layout_want want, int *ret_dirfd,
		int *ret_lockfd, char ret_uuid[LAYOUT_UUID_BYTES], char *why,
		size_t why_size)
{
	const struct refusal r = { .path = path, .why = why, .size = why_size };
	SCOPED(scope_close) int dirfd = -1;
	SCOPED(scope_close) int lockfd = -1;
	char uuid[LAYOUT_UUID_BYTES];
	bool fresh;
	int rc;

	rc = open_dir(&r, want, &dirfd);
	if (rc == 0 && want != LAYOUT_CHECK)
		rc = layout_check_owner(dirfd, path, why, why_size);
	if (rc < 0)
		return rc;
	/* Look before the lock file is made: it may be a foreign directory. */
	rc = look(&r, dirfd, want, uuid);
	if (rc < 0)
		return rc;
	rc = take_lock(&r, dirfd, &lockfd);
	if (rc < 0)
		return rc;
	/* And again: until now another process may have made it a store. */
	rc = look(&r, dirfd, want, uuid);
	fresh = rc == 0;
	if (fresh)
		rc = make_store(&r, dirfd, uuid);
	if (rc >= 0 && want != LAYOUT_CHECK)
		rc = look_parts(&r, dirfd);
	if (rc < 0)
		return rc;
	memcpy(ret_uuid, uuid, sizeof(uuid));
	*ret_dirfd = dirfd;
	*ret_lockfd = lockfd;
	dirfd = lockfd = -1;
	return fresh;
}

int layout_open_damaged(const char *path, int *ret_dirfd, int *ret_lockfd,
			char ret_uuid[LAYOUT_UUID_BYTES], char *why,
			size_t why_size)
{
	const struct refusal r = { .path = path, .why = why, .size = why_size };
	SCOPED(scope_close) int dirfd = -1;
	SCOPED(scope_close) int lockfd = -1;
	const char *uuid = "";
	struct format format;
	struct identity id;
	int found;
	int rc = open_dir(&r, LAYOUT_CHECK, &dirfd);

	if (rc == 0)
		rc = layout_check_owner(dirfd, path, why, why_size);
	if (rc < 0)
		return rc;
	rc = format_read(dirfd, &format);
	if (rc == -EPROTO)
		return refuse_format(&r, rc, format.number);
	/* Two of its parts at least: a directory may be called `images`. */
	found = rc == 0 || rc == -EINVAL;
	if (rc == 0)
		uuid = format.uuid;
	else if (identity_read(dirfd, &id) == 0)
		uuid = id.uuid;
	found += uuid[0] != 0;
	found += is_dir(dirfd, LAYOUT_IMAGE_DIR);
	found += is_dir(dirfd, LAYOUT_DB_DIR);
	if (found < 2)
		return refuse(&r, -EINVAL, "%s is not a ckptfs store", path);
	rc = take_lock(&r, dirfd, &lockfd);
	if (rc < 0)
		return rc;
	if (mkdirat(dirfd, LAYOUT_IMAGE_DIR, STORE_MODE) < 0 && errno != EEXIST)
		return refuse_call(&r, "make its directory 'images'");
	strcpy(ret_uuid, uuid);
	*ret_dirfd = dirfd;
	*ret_lockfd = lockfd;
	dirfd = lockfd = -1;
	return 0;
}
