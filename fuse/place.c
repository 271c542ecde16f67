/*
 * place.c - see place.h.
 *
 * Directories are compared by device and inode, not by name, so a bind mount
 * of the store counts as the store. What is not seen is a bind mount of one of
 * its subdirectories.
 */
#include "fuse/place.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "store/base/scope.h"

#define MOUNT_TYPE "fuse.ckptfs"

/* A line of the mount table; the texts lie in `line`. */
struct mount_line {
	unsigned id;
	dev_t dev;
	const char *target, *type, *source;
	char *line;
	size_t size;
};

/* The kernel writes spaces, backslashes and others as \ooo. */
static void decode_octal(char *text)
{
	char *to = text;

	for (const char *from = text; *from; to++) {
		if (from[0] == '\\' && from[1] >= '0' && from[1] <= '3' &&
		    from[2] >= '0' && from[2] <= '7' && from[3] >= '0' &&
		    from[3] <= '7') {
			*to = (char)((from[1] - '0') << 6 |
				     (from[2] - '0') << 3 | (from[3] - '0'));
			from += 4;
		} else {
			*to = *from++;
		}
	}
	*to = 0;
}

/*
 * "36 35 98:0 /root /target options optional... - type source options": true
 * when it has all of that.
 */
static bool mount_line_parse(struct mount_line *m)
{
	char *rest = m->line, *field, *target = NULL, *type, *source;
	unsigned major = 0, minor = 0;

	for (unsigned n = 0; (field = strsep(&rest, " ")) != NULL; n++) {
		if (n == 0)
			m->id = (unsigned)strtoul(field, NULL, 10);
		if (n == 2 && sscanf(field, "%u:%u", &major, &minor) != 2)
			return false;
		if (n == 4)
			target = field;
		if (n >= 6 && strcmp(field, "-") == 0)
			break;
	}
	type = strsep(&rest, " ");
	source = strsep(&rest, " ");
	if (!target || !type || !source)
		return false;
	decode_octal(target);
	decode_octal(type);
	decode_octal(source);
	m->dev = makedev(major, minor);
	m->target = target;
	m->type = type;
	m->source = source;
	return true;
}

/*
 * The last mount of ckptfs of this store, on this directory, with this device
 * number (NULL: of any): where it is, for the caller to free, and its device
 * number. NULL: there is none.
 */
static char *find_mount(const char *store, const char *directory,
			const dev_t *dev, dev_t *ret_dev)
{
	FILE *f = fopen("/proc/self/mountinfo", "re");
	struct mount_line m = { 0 };
	char *found = NULL;

	while (f && getline(&m.line, &m.size, f) > 0) {
		if (!mount_line_parse(&m) || strcmp(m.type, MOUNT_TYPE) != 0 ||
		    (store && strcmp(m.source, store) != 0) ||
		    (directory && strcmp(m.target, directory) != 0) ||
		    (dev && m.dev != *dev))
			continue;
		free(found);
		found = strdup(m.target);
		*ret_dev = m.dev;
	}
	free(m.line);
	if (f)
		(void)fclose(f);
	return found;
}

bool place_has_mount_of(const char *store)
{
	dev_t dev;
	SCOPED(scope_free) char *found = find_mount(store, NULL, NULL, &dev);

	return found != NULL;
}

dev_t place_device(const char *mountpoint)
{
	dev_t dev = 0;
	SCOPED(scope_free)
	char *found = find_mount(NULL, mountpoint, NULL, &dev);

	return found ? dev : 0;
}

bool place_is_mount(pid_t pid, unsigned id, dev_t dev)
{
	struct mount_line m = { 0 };
	bool is = false;
	char path[64];
	FILE *f;

	(void)snprintf(path, sizeof(path), "/proc/%d/mountinfo", (int)pid);
	f = fopen(path, "re");
	while (f && !is && getline(&m.line, &m.size, f) > 0)
		is = mount_line_parse(&m) && m.id == id && m.dev == dev;
	free(m.line);
	if (f)
		(void)fclose(f);
	return is;
}

__attribute__((format(printf, 2, 3))) static int refuse(int rc,
							const char *format, ...)
{
	va_list ap;

	CHECK(rc < 0);
	(void)fputs("ckptfs: ", stderr);
	va_start(ap, format);
	(void)vfprintf(stderr, format, ap);
	va_end(ap);
	(void)fputc('\n', stderr);
	return rc;
}

static int refuse_dead(const char *what, const char *path)
{
	return refuse(-ENOTCONN,
		      "%s %s: a daemon that died left its mount there; unmount "
		      "it (umount %s) and try again",
		      what, path, path);
}

/* The kernel answers stat(2) by itself for a while; open(2) it does not. */
static int refuse_mounted(const char *mountpoint)
{
	SCOPED(scope_close)
	int fd = open(mountpoint, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0 && (errno == ENOTCONN || errno == ECONNABORTED))
		return refuse_dead("mount point", mountpoint);
	return refuse(-EBUSY,
		      "a ckptfs is mounted on %s already; unmount it, or give "
		      "another directory",
		      mountpoint);
}

/*
 * The path of the directory without symbolic links, the caller's. `what` is
 * "mount point" or "store"; the others say what to do when there is none.
 */
static int find_directory(const char *what, const char *path,
			  const char *make_it, const char *give,
			  char **ret_full)
{
	SCOPED(scope_free) char *full = realpath(path, NULL);
	struct stat sb;
	int rc = !full || stat(full, &sb) < 0 ? -errno : 0;

	if (rc == -ENOENT)
		return refuse(rc, "%s %s does not exist; %s", what, path,
			      make_it);
	if (rc == -ENOTCONN)
		return refuse_dead(what, path);
	if (rc < 0)
		return refuse(rc, "%s %s: %s", what, path, strerror(-rc));
	if (!S_ISDIR(sb.st_mode))
		return refuse(-ENOTDIR, "%s %s is not a directory; %s", what,
			      path, give);
	*ret_full = TAKE(full);
	return 0;
}

/* Not the whole check: whether it is a store is seen when it is opened. */
static int find_store(const char *path, bool must_be_store, char **ret_full)
{
	int rc = find_directory("store", path,
				must_be_store
					? "is its disk mounted? 'ckptctl init' "
					  "makes a new store"
					: "for a new store make an empty "
					  "directory first",
				must_be_store ? "give a store"
					      : "give a store or an empty "
						"directory",
				ret_full);

	if (rc < 0 || access(*ret_full, R_OK | W_OK | X_OK) == 0)
		return rc;
	rc = -errno;
	return refuse(rc, "store %s cannot be written: %s%s", path,
		      strerror(-rc),
		      rc == -EACCES ? "; it belongs to another user"
				    : "; give a directory that can be");
}

static bool same_directory(const char *a, const char *b)
{
	struct stat sa, sb;

	return stat(a, &sa) == 0 && stat(b, &sb) == 0 &&
	       sa.st_dev == sb.st_dev && sa.st_ino == sb.st_ino;
}

/* Is `inner` the directory `outer`, or below it? Both are absolute. */
static bool lies_in(const char *inner, const char *outer)
{
	SCOPED(scope_free) char *path = strdup(inner);
	char *slash;

	while (path && *path) {
		if (same_directory(path, outer))
			return true;
		slash = strrchr(path, '/');
		if (!slash)
			return false;
		*slash = 0;
	}
	return same_directory("/", outer);
}

/*
 * The daemon would wait for itself, or for another daemon that may go first.
 * `what` is "store" or "stage".
 */
static int refuse_on_ckptfs(const char *what, const char *path)
{
	SCOPED(scope_free) char *mount = NULL;
	struct stat sb;
	dev_t dev;

	if (stat(path, &sb) < 0)
		return 0; /* said when it is used */
	mount = find_mount(NULL, NULL, &sb.st_dev, &dev);
	if (!mount)
		return 0;
	return refuse(-EINVAL,
		      "%s %s lies on the ckptfs that is mounted on %s; give a "
		      "directory of a local disk",
		      what, path, mount);
}

/* Paths that lie in each other: the mount would hide what it is made of. */
static int refuse_overlap(const struct place *p)
{
	int rc;

	if (same_directory(p->store, p->mountpoint))
		return refuse(-EINVAL,
			      "%s cannot be both the store and the mount "
			      "point; give another directory to mount it on",
			      p->mountpoint);
	if (lies_in(p->mountpoint, p->store))
		return refuse(-EINVAL,
			      "mount point %s lies in the store %s; give a "
			      "directory outside of it",
			      p->mountpoint, p->store);
	if (lies_in(p->store, p->mountpoint))
		return refuse(-EINVAL,
			      "store %s lies below the mount point %s, which "
			      "would hide it; give another directory to mount "
			      "it on",
			      p->store, p->mountpoint);
	if (p->stage && lies_in(p->stage, p->mountpoint))
		return refuse(-EINVAL,
			      "stage %s lies below the mount point %s, which "
			      "would hide it; give another directory for it",
			      p->stage, p->mountpoint);
	rc = refuse_on_ckptfs("store", p->store);
	if (rc == 0 && p->stage)
		rc = refuse_on_ckptfs("stage", p->stage);
	return rc;
}

int place_find(const char *store, const char *mountpoint, const char *stage,
	       bool must_be_store, struct place *ret)
{
	struct place p = { 0 };
	int rc = find_directory("mount point", mountpoint,
				"make the directory first", "give one that is",
				&p.mountpoint);

	if (rc == 0 && place_device(p.mountpoint) != 0)
		rc = refuse_mounted(p.mountpoint);
	if (rc == 0)
		rc = find_store(store, must_be_store, &p.store);
	if (rc == 0 && stage)
		p.stage = realpath(stage, NULL);
	if (rc == 0)
		rc = refuse_overlap(&p);
	if (rc < 0) {
		place_release(&p);
		return rc;
	}
	*ret = p;
	return 0;
}

void place_release(struct place *p)
{
	free(p->store);
	free(p->mountpoint);
	free(p->stage);
	*p = (struct place){ 0 };
}
