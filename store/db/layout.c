/*
 * layout.c - see layout.h. What it keeps true: nothing is written into a
 * directory that is not a store or empty, and a directory with a `format` file
 * is a whole store, because that file appears last and at once (rename). While
 * a store is made its text lies under another name: that says of the rest that
 * it is ours, and holds nothing yet.
 */
#include "store/db/layout.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "store/base/scope.h"
#include "store/db/identity.h"
#include "store/db/records.h"

/* There while the store is made: what else is there counts for nothing. */
#define FORMAT_TMP ".ckptfs-format.tmp"
#define FORMAT_NEW ".ckptfs-format.new" /* of an old store */
#define FORMAT_TEXT "ckptfs store, format %u\nuuid %s\n"
#define FORMAT_CHECK "check %016llx\n" /* of what stands before it */
#define FORMAT_BYTES_MAX 128
#define LOCK_BYTES_MAX LAYOUT_LOCK_BYTES_MAX
#define LOCK_CHARACTERS \
	"0123456789 abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-"
#define STORE_MODE 0700 /* what is inside has its own permissions */

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
	int rc;

	if (mkdir(r->path, STORE_MODE) == 0) {
		rc = sync_parent(r->path);
		if (rc == 0)
			return 0;
		return refuse(r, rc, "%s: cannot make it durable: %s", r->path,
			      strerror(-rc));
	}
	if (errno == EEXIST)
		return 0;
	if (errno == ENOENT)
		return refuse(r, -ENOENT,
			      "%s: the directory above it does not exist; make "
			      "that one first",
			      r->path);
	return refuse_call(r, "make this directory");
}

static int open_dir(const struct refusal *r, bool create, int *ret_fd)
{
	int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
	int fd = open(r->path, flags);
	int rc;

	if (fd < 0 && errno == ENOENT && create) {
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
		return refuse(r, -ENOTDIR,
			      "%s is not a directory; give %s", r->path,
			      create ? "an empty one" :
				       "the directory of a ckptfs store");
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

/* A small file's text, ended with a NUL; its length, or -errno. */
static ssize_t read_text(int dirfd, const char *name, char *ret, size_t size)
{
	SCOPED(scope_close)
	int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW |
					     O_NONBLOCK | O_NOCTTY);
	ssize_t n;

	if (fd < 0)
		return -errno;
	n = read(fd, ret, size - 1);
	if (n < 0)
		return -errno;
	ret[n] = 0;
	return n;
}

/* Left of a store that was not finished: a lock file holds at most one line. */
static bool is_our_lock(int dirfd)
{
	char text[LOCK_BYTES_MAX + 1];
	ssize_t n = read_text(dirfd, LAYOUT_LOCK_FILE, text, sizeof(text));

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

static int each_is(int dirfd, const char *path,
		   bool (*fn)(int dirfd, const char *name));

static bool is_dot(int dirfd, const char *name)
{
	(void)dirfd;
	return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* A directory of images in which there is none. */
static bool is_empty_dir(int dirfd, const char *name)
{
	return is_dot(dirfd, name) || each_is(dirfd, name, is_dot) == 1;
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
	       each_is(dirfd, name, is_empty_dir) == 1;
}

/* True for what may lie in a directory that is about to become a store. */
static bool is_no_data(int dirfd, const char *name)
{
	if (is_dot(dirfd, name) || is_half_made(dirfd, name))
		return true;
	if (strcmp(name, "lost+found") == 0 || strcmp(name, FORMAT_TMP) == 0)
		return true;
	return strcmp(name, LAYOUT_LOCK_FILE) == 0 && is_our_lock(dirfd);
}

/* 1: fn says yes to every name in the directory. 0: not to all. */
static int each_is(int dirfd, const char *path,
		   bool (*fn)(int dirfd, const char *name))
{
	int fd = openat(dirfd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct dirent *d;
	int rc = 1;
	DIR *dir;

	if (fd < 0)
		return -errno;
	dir = fdopendir(fd);
	if (!dir) {
		rc = -errno;
		(void)close(fd);
		return rc;
	}
	do {
		errno = 0;
		d = readdir(dir);
		if (!d && errno != 0)
			rc = -errno;
		else if (d && !fn(fd, d->d_name))
			rc = 0;
	} while (d && rc == 1);
	(void)closedir(dir);
	return rc;
}

/* What the file holds that says so; its length. */
static int format_text(unsigned format, const char *uuid,
		       char ret[FORMAT_BYTES_MAX])
{
	int len = snprintf(ret, FORMAT_BYTES_MAX, FORMAT_TEXT, format, uuid);

	CHECK(len > 0 && len < FORMAT_BYTES_MAX);
	if (format > STORE_FORMAT_OLD)
		len += snprintf(ret + len, (size_t)(FORMAT_BYTES_MAX - len),
				FORMAT_CHECK,
				(unsigned long long)XXH3_64bits(ret,
								(size_t)len));
	CHECK(len < FORMAT_BYTES_MAX);
	return len;
}

/* The text must be one of ours to the byte: anything else is damage. */
static int parse_format(const struct refusal *r, const char *text,
			char ret_uuid[LAYOUT_UUID_BYTES])
{
	char uuid[LAYOUT_UUID_BYTES] = "";
	char again[FORMAT_BYTES_MAX] = "";
	unsigned format = 0;
	int fields = sscanf(text, "ckptfs store, format %u uuid %36[0-9a-f-]",
			    &format, uuid);

	if (fields >= 1 && format > STORE_FORMAT)
		return refuse(r, -EPROTO,
			      "%s was written by a newer ckptfs (format %u, "
			      "this one reads up to %u); upgrade ckptfs",
			      r->path, format, STORE_FORMAT);
	if (fields == 2 && format >= STORE_FORMAT_OLD)
		(void)format_text(format, uuid, again);
	if (strlen(uuid) != LAYOUT_UUID_BYTES - 1 || strcmp(text, again) != 0)
		return refuse(r, -EINVAL,
			      "%s/%s is damaged or not from ckptfs; put that "
			      "file back from a copy, give another directory, "
			      "or run 'ckptctl rebuild %s' if it is a store",
			      r->path, LAYOUT_FORMAT_FILE, r->path);
	memcpy(ret_uuid, uuid, LAYOUT_UUID_BYTES);
	return 0;
}

/* 1: a store of a format that we read. 0: no store, but may become one. */
static int look(const struct refusal *r, int dirfd, bool create,
		char ret_uuid[LAYOUT_UUID_BYTES])
{
	char text[FORMAT_BYTES_MAX];
	ssize_t n = read_text(dirfd, LAYOUT_FORMAT_FILE, text, sizeof(text));
	int rc;

	if (n >= 0) {
		rc = parse_format(r, text, ret_uuid);
		return rc < 0 ? rc : 1;
	}
	if (n != -ENOENT)
		return refuse(r, (int)n, "%s/%s: cannot be read: %s", r->path,
			      LAYOUT_FORMAT_FILE, strerror((int)-n));
	/* While a store is made there is the temporary one. */
	if (is_dir(dirfd, LAYOUT_DB_DIR) && is_dir(dirfd, LAYOUT_IMAGE_DIR) &&
	    faccessat(dirfd, FORMAT_TMP, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
		return refuse(r, -EUCLEAN,
			      "%s: its file '%s' is missing; nothing was "
			      "changed: put it back from a copy, or run "
			      "'ckptctl rebuild %s'",
			      r->path, LAYOUT_FORMAT_FILE, r->path);
	if (!create)
		return refuse(r, -EINVAL,
			      "%s is not a ckptfs store (it has no file '%s'); "
			      "give the directory that ckptfs was given as "
			      "STORE",
			      r->path, LAYOUT_FORMAT_FILE);
	rc = each_is(dirfd, ".", is_no_data);
	if (rc < 0)
		return refuse(r, rc, "%s: cannot be listed: %s", r->path,
			      strerror(-rc));
	if (rc == 0)
		return refuse(r, -EINVAL,
			      "%s is not empty and not a ckptfs store; give an "
			      "empty directory",
			      r->path);
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
	int fd = openat(dirfd, LAYOUT_LOCK_FILE, flags | O_RDWR | O_CREAT,
			0600);
	int rc;

	/* A check may look at a store that lies on a read-only disk. */
	if (fd < 0 && errno == EROFS)
		fd = openat(dirfd, LAYOUT_LOCK_FILE, O_RDONLY | flags);
	if (fd < 0)
		return refuse_call(r, "open the file 'lock' in it");
	if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		rc = errno == EWOULDBLOCK ? refuse_busy(r, fd) :
					    refuse_call(r, "lock it");
		(void)close(fd);
		return rc;
	}
	*ret_lockfd = fd;
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

int layout_make_uuid(char ret[LAYOUT_UUID_BYTES])
{
	uint8_t b[16];

	if (getrandom(b, sizeof(b), 0) != (ssize_t)sizeof(b))
		return -errno;
	b[6] = (uint8_t)((b[6] & 0x0f) | 0x40); /* version 4, random */
	b[8] = (uint8_t)((b[8] & 0x3f) | 0x80);
	(void)snprintf(ret, LAYOUT_UUID_BYTES,
		       "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-"
		       "%02x%02x%02x%02x%02x%02x",
		       b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8],
		       b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
	return 0;
}

/* The file `name` says that this is a store, durably. */
static int write_format(int dirfd, const char *name, const char *uuid)
{
	SCOPED(scope_close)
	int fd = openat(dirfd, name,
			O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC,
			0600);
	char text[FORMAT_BYTES_MAX];
	ssize_t n;
	int len;

	if (fd < 0)
		return -errno;
	len = format_text(STORE_FORMAT, uuid, text);
	n = write(fd, text, (size_t)len);
	if (n != len)
		return n < 0 ? -errno : -ENOSPC;
	return fsync(fd) < 0 || fsync(dirfd) < 0 ? -errno : 0;
}

int layout_finish(int dirfd, const char uuid[LAYOUT_UUID_BYTES])
{
	const char *name = layout_is_old(dirfd) ? FORMAT_NEW : FORMAT_TMP;
	int rc = write_format(dirfd, name, uuid);

	if (rc == 0 &&
	    (renameat(dirfd, name, dirfd, LAYOUT_FORMAT_FILE) < 0 ||
	     fsync(dirfd) < 0))
		rc = -errno;
	return rc;
}

bool layout_is_old(int dirfd)
{
	char text[FORMAT_BYTES_MAX];
	unsigned format = 0;

	return read_text(dirfd, LAYOUT_FORMAT_FILE, text, sizeof(text)) > 0 &&
	       sscanf(text, "ckptfs store, format %u", &format) == 1 &&
	       format < STORE_FORMAT;
}

/* What was left of a database when the making was interrupted. */
static int empty_db(int dirfd)
{
	int fd = openat(dirfd, LAYOUT_DB_DIR,
			O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *d;
	int rc = 0;

	if (!dir)
		return -errno;
	while (rc == 0 && (d = readdir(dir)) != NULL)
		if (!is_dot(fd, d->d_name) && unlinkat(fd, d->d_name, 0) < 0)
			rc = -errno;
	closedir(dir);
	return rc;
}

/* All of it but the database, and the name of the format file. */
static int make_store(const struct refusal *r, int dirfd,
		      char ret_uuid[LAYOUT_UUID_BYTES])
{
	static const char *const names[] = { LAYOUT_DB_DIR, LAYOUT_IMAGE_DIR,
					     LAYOUT_STAGE_DIR };
	int rc = layout_make_uuid(ret_uuid);

	if (rc == 0)
		rc = write_format(dirfd, FORMAT_TMP, ret_uuid);
	for (size_t i = 0; rc == 0 && i < sizeof(names) / sizeof(*names); i++)
		if (mkdirat(dirfd, names[i], STORE_MODE) < 0 && errno != EEXIST)
			rc = -errno;
	if (rc == 0)
		rc = empty_db(dirfd);
	if (rc == 0 && unlinkat(dirfd, LAYOUT_MARK_FILE, 0) < 0 &&
	    errno != ENOENT)
		rc = -errno;
	if (rc == 0 && fsync(dirfd) < 0)
		rc = -errno;
	if (rc < 0)
		return refuse(r, rc, "%s: cannot make a store here: %s",
			      r->path, strerror(-rc));
	return 1;
}

/*
 * What is in it must be nobody else's to change, and without its images a store
 * is not one to write to. The other two are looked at by who opens them.
 */
static int look_parts(const struct refusal *r, int dirfd)
{
	static const char *const names[] = { LAYOUT_DB_DIR, LAYOUT_IMAGE_DIR,
					     LAYOUT_STAGE_DIR };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		struct stat sb;

		if (fstatat(dirfd, names[i], &sb, AT_SYMLINK_NOFOLLOW) < 0) {
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
				      r->path, names[i], geteuid());
	}
	if (is_dir(dirfd, LAYOUT_IMAGE_DIR))
		return 0;
	return refuse(r, -EUCLEAN,
		      "%s: its directory '%s' is missing; nothing was changed: "
		      "put it back from a copy of this store, or run 'ckptctl "
		      "rebuild %s' to go on without what was in it",
		      r->path, LAYOUT_IMAGE_DIR, r->path);
}

int layout_open(const char *path, bool create, int *ret_dirfd, int *ret_lockfd,
		char ret_uuid[LAYOUT_UUID_BYTES], char *why, size_t why_size)
{
	const struct refusal r = { .path = path, .why = why, .size = why_size };
	SCOPED(scope_close) int dirfd = -1;
	SCOPED(scope_close) int lockfd = -1;
	char uuid[LAYOUT_UUID_BYTES];
	int rc;

	rc = open_dir(&r, create, &dirfd);
	if (rc == 0 && create)
		rc = layout_check_owner(dirfd, path, why, why_size);
	if (rc < 0)
		return rc;
	/* Look before the lock file is made: it may be a foreign directory. */
	rc = look(&r, dirfd, create, uuid);
	if (rc < 0)
		return rc;
	rc = take_lock(&r, dirfd, &lockfd);
	if (rc < 0)
		return rc;
	/* And again: until now another process may have made it a store. */
	rc = look(&r, dirfd, create, uuid);
	if (rc == 0)
		rc = make_store(&r, dirfd, uuid);
	else if (rc == 1)
		rc = 0;
	if (rc >= 0 && create) {
		int parts = look_parts(&r, dirfd);

		rc = parts < 0 ? parts : rc;
	}
	if (rc < 0)
		return rc;
	memcpy(ret_uuid, uuid, sizeof(uuid));
	*ret_dirfd = dirfd;
	*ret_lockfd = lockfd;
	dirfd = -1;
	lockfd = -1;
	return rc;
}

int layout_open_damaged(const char *path, int *ret_dirfd, int *ret_lockfd,
			char ret_uuid[LAYOUT_UUID_BYTES], char *why,
			size_t why_size)
{
	const struct refusal r = { .path = path, .why = why, .size = why_size };
	SCOPED(scope_close) int dirfd = -1;
	char text[FORMAT_BYTES_MAX];
	char uuid[LAYOUT_UUID_BYTES] = "";
	struct identity id;
	ssize_t n;
	int rc = open_dir(&r, false, &dirfd);

	if (rc == 0)
		rc = layout_check_owner(dirfd, path, why, why_size);
	if (rc < 0)
		return rc;
	n = read_text(dirfd, LAYOUT_FORMAT_FILE, text, sizeof(text));
	rc = n >= 0 ? parse_format(&r, text, uuid) : -ENOENT;
	if (rc == -EPROTO)
		return rc;
	if (rc < 0 && identity_read(dirfd, &id) == 0)
		memcpy(uuid, id.uuid, sizeof(uuid));
	/* Two of its parts at least: a directory may be called `images`. */
	if ((n >= 0) + is_dir(dirfd, LAYOUT_IMAGE_DIR) +
		    is_dir(dirfd, LAYOUT_DB_DIR) + (uuid[0] != 0) < 2)
		return refuse(&r, -EINVAL, "%s is not a ckptfs store", path);
	rc = take_lock(&r, dirfd, ret_lockfd);
	if (rc < 0)
		return rc;
	if (mkdirat(dirfd, LAYOUT_IMAGE_DIR, STORE_MODE) < 0 &&
	    errno != EEXIST) {
		rc = refuse_call(&r, "make its directory 'images'");
		close(*ret_lockfd);
		return rc;
	}
	memcpy(ret_uuid, uuid, sizeof(uuid));
	*ret_dirfd = dirfd;
	dirfd = -1;
	return 0;
}
