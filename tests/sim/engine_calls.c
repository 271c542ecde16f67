/*
 * engine_calls.c - the calls of all nodes come here (--wrap): those of the
 * shared directory are done by engine.c, all others are handed to disk_calls.c,
 * or to the system. See engine.h.
 *
 * A descriptor of it is a number from FIRST_FD on, which the system has not.
 */
#include "tests/sim/engine_private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "store/base/scope.h"
#include "store/base/sync.h"
#include "tests/sim/engine_wrap.h"

#define FDS_MAX 16384

static struct description *fds[FDS_MAX];

/* --- descriptors ---------------------------------------------------------- */

struct description *engine_fd(int fd)
{
	return fd >= FIRST_FD && fd < FIRST_FD + FDS_MAX ? fds[fd - FIRST_FD]
							 : NULL;
}

bool engine_is_ours(int fd)
{
	return fd >= FIRST_FD;
}

int engine_failed(int error)
{
	errno = error;
	return -1;
}

int engine_new_fd(struct description *d)
{
	for (int i = 0; i < FDS_MAX; i++)
		if (!fds[i]) {
			fds[i] = d;
			d->refs++;
			return FIRST_FD + i;
		}
	return engine_failed(EMFILE);
}

static void unlock(struct description *d)
{
	if (d->locked)
		d->in->locked = NULL;
	if (d->locks)
		d->in->locks--;
	d->locked = d->locks = false;
}

static void drop_fd(int fd)
{
	struct description *d = engine_fd(fd);

	CHECK(d);
	fds[fd - FIRST_FD] = NULL;
	if (--d->refs > 0)
		return;
	unlock(d);
	list_clear(&d->list);
	free(d->list.at);
	free(d);
}

struct einode *engine_of_fd(int fd)
{
	struct description *d = engine_fd(fd);

	return d ? d->in : NULL;
}

void engine_dead(unsigned node, bool cut)
{
	for (size_t i = 0; i < engine.count; i++) {
		struct einode *in = engine.all[i];

		if (cut) {
			einode_lose(in, node, chance_one_in(&engine.chance, 2));
			view_forget(in, node);
		} else {
			einode_flush(in, node);
		}
	}
	for (int i = 0; i < FDS_MAX; i++)
		if (fds[i] && fds[i]->node == node)
			drop_fd(FIRST_FD + i);
	engine_streams_dead();
}

unsigned engine_open(unsigned node)
{
	unsigned n = 0;
	char path[600];

	for (int i = 0; i < FDS_MAX; i++)
		if (fds[i] && fds[i]->node == node) {
			if (!engine_path(fds[i]->in, path, sizeof(path)))
				strcpy(path, "(without a name)");
			fprintf(stderr, "node %u has open: %s\n", node, path);
			n++;
		}
	return n;
}

/* --- points, and errors --------------------------------------------------- */

/*
 * What fails in a call of a user's, he is told; what he makes of that has to be
 * judged, so it is left to --rare.
 */
static bool may_fail(void)
{
	return sim_seeks_rare() || !(sim_has_name("rank") ||
				     sim_has_name("churn"));
}

/* Before a call is done: 0, or the errno that it fails with. */
int engine_begins(const char *what, const char *name, enum fails how)
{
	unsigned node = sim_group();
	char text[400];

	if (!sim_running())
		return 0;
	engine.calls[node]++;
	(void)snprintf(text, sizeof(text), "%s %.300s", what, name);
	sim_point("dir", text);
	if (how == NEVER || !engine.errors_one_in || node == 0 ||
	    !may_fail() || !chance_one_in(&engine.chance, engine.errors_one_in))
		return 0;
	sim_note(2);
	if (how == READS || chance_one_in(&engine.chance, 2))
		return EIO;
	return chance_one_in(&engine.chance, 2) ? ENOSPC : EDQUOT;
}

/* It is done, and whoever called has not heard yet. */
int engine_ends(int rc)
{
	int error = errno;

	sim_point("dir", "done");
	errno = error;
	return rc;
}

/* --- names ---------------------------------------------------------------- */

bool engine_is_below(int dirfd, const char *path)
{
	size_t len = strlen(ENGINE_PATH);
	int n;

	if (sscanf(path, "/proc/self/fd/%d", &n) == 1)
		return engine_is_ours(n);
	if (path[0] == '/')
		return strncmp(path, ENGINE_PATH, len) == 0 &&
		       (path[len] == '/' || !path[len]);
	return engine_is_ours(dirfd);
}

bool engine_anew_for(unsigned node)
{
	return node == 0;
}

/* 0, or an errno. */
int engine_resolve(int dirfd, const char *path, struct place_at *ret)
{
	unsigned node = sim_group();
	struct description *d;
	struct einode *in;
	int n;

	*ret = (struct place_at){ 0 };
	if (sscanf(path, "/proc/self/fd/%d", &n) == 1) {
		d = engine_fd(n);
		ret->self = d ? d->in : NULL;
		return d ? 0 : EBADF;
	}
	if (path[0] == '/') {
		in = engine.all[0];
		path += strlen(ENGINE_PATH);
	} else {
		d = engine_fd(dirfd);
		if (!d)
			return EBADF;
		in = d->in;
	}
	for (;;) {
		size_t len;

		path += strspn(path, "/");
		len = strcspn(path, "/");
		if (len == 0 || (len == 1 && path[0] == '.')) {
			ret->self = in;
			return 0;
		}
		if (!S_ISDIR(in->mode))
			return ENOTDIR;
		if (len > ENGINE_NAME_MAX)
			return ENAMETOOLONG;
		memcpy(ret->name, path, len);
		ret->name[len] = 0;
		ret->dir = in;
		path += len;
		if (!path[strspn(path, "/")])
			return 0;
		in = view_lookup(in, node, ret->name, engine_anew_for(node));
		if (!in)
			return ENOENT;
	}
}

/* The file at the place; anew: as it is now. 0, or an errno. */
int engine_find(const struct place_at *at, bool anew, struct einode **ret)
{
	unsigned node = sim_group();

	*ret = at->self ? at->self
			: view_lookup(at->dir, node, at->name,
				      anew || engine_anew_for(node));
	return *ret ? 0 : ENOENT;
}

const char *engine_shown(const struct place_at *at)
{
	return at->self ? "." : at->name;
}

void engine_touch_dir(struct einode *dir)
{
	dir->mtime_ns = dir->ctime_ns = engine_now();
	view_forget(dir, sim_group());
}

void engine_put_name(struct einode *dir, const char *name, struct einode *in)
{
	list_add(&dir->list, name, in);
	in->links++;
	in->ctime_ns = engine_now();
	if (S_ISDIR(in->mode)) {
		in->links = 2;
		in->parent = dir;
	}
	engine_touch_dir(dir);
	view_forget(in, sim_group());
	engine_changed(in, ENGINE_NAMED);
}

/* --- open and close ------------------------------------------------------- */

/* As the server has it: it is made, or is there. 0, or an errno. */
static int make_or_find(const struct place_at *at, int flags, mode_t mode,
			struct einode **ret)
{
	struct entry_of *e = list_find(&at->dir->list, at->name);

	if (e) {
		*ret = e->in;
		return flags & O_EXCL ? EEXIST : 0;
	}
	if (at->dir->links == 0)
		return ENOENT;
	*ret = einode_new(S_IFREG | (mode & 07777));
	engine_put_name(at->dir, at->name, *ret);
	return 0;
}

static int open_here(const struct place_at *at, int flags, mode_t mode,
		     struct einode **ret)
{
	unsigned node = sim_group();
	struct einode *in;
	struct stat sb;
	int error;

	if ((flags & O_CREAT) && !at->self)
		error = make_or_find(at, flags, mode, &in);
	else
		error = engine_find(at, false, &in);
	/* A server is asked by a handle; when it has none, by name once more. */
	if (error == 0 && !(flags & O_PATH) && in->links == 0 && !at->self)
		error = engine_find(at, true, &in);
	if (error)
		return error;
	if (S_ISLNK(in->mode) && (flags & O_NOFOLLOW) && !(flags & O_PATH))
		return ELOOP;
	if ((flags & O_DIRECTORY) && !S_ISDIR(in->mode))
		return ENOTDIR;
	if (S_ISDIR(in->mode) && (flags & O_ACCMODE) != O_RDONLY &&
	    !(flags & O_PATH))
		return EISDIR;
	*ret = in;
	if (flags & O_PATH)
		return 0;
	if (in->links == 0 && engine.kind.gone_is_stale)
		return ESTALE;
	if (S_ISREG(in->mode)) { /* from close to open */
		einode_recall(in, node);
		view_stat(in, node, &sb, true);
	}
	if ((flags & O_TRUNC) && (flags & O_ACCMODE) != O_RDONLY) {
		einode_cut(in, node, 0);
		view_forget(in, node);
		engine_changed(in, ENGINE_BYTES);
	}
	return 0;
}

static int open_ours(int dirfd, const char *path, int flags, mode_t mode)
{
	struct description *d;
	struct place_at at;
	struct einode *in = NULL;
	int error = engine_resolve(dirfd, path, &at), fd;

	if (error == 0)
		error = engine_begins(flags & O_CREAT  ? "create"
			       : flags & O_PATH ? "find"
						: "open",
			       engine_shown(&at), flags & O_CREAT ? WRITES : READS);
	if (error == 0)
		error = open_here(&at, flags, mode, &in);
	if (error)
		return engine_failed(error);
	d = calloc(1, sizeof(*d));
	CHECK(d);
	*d = (struct description){ .in = in,
				   .flags = flags,
				   .node = sim_group() };
	fd = engine_new_fd(d);
	return engine_ends(fd);
}

int __wrap_open64(const char *path, int flags, ...)
{
	mode_t mode;
	va_list ap;

	va_start(ap, flags);
	mode = va_arg(ap, mode_t);
	va_end(ap);
	return engine_is_below(AT_FDCWD, path)
		       ? open_ours(AT_FDCWD, path, flags, mode)
		       : disk_open64(path, flags, mode);
}

int __wrap_openat64(int dirfd, const char *path, int flags, ...)
{
	mode_t mode;
	va_list ap;

	va_start(ap, flags);
	mode = va_arg(ap, mode_t);
	va_end(ap);
	return engine_is_below(dirfd, path) ? open_ours(dirfd, path, flags, mode)
				     : disk_openat64(dirfd, path, flags, mode);
}

int __wrap_close(int fd)
{
	struct description *d = engine_fd(fd);

	if (!engine_is_ours(fd))
		return disk_close(fd);
	if (!d)
		return engine_failed(EBADF);
	if (engine.kind.set_flushes && !(d->flags & O_PATH))
		einode_flush(d->in, d->node);
	drop_fd(fd);
	return 0;
}

int __wrap_fcntl64(int fd, int op, ...)
{
	struct description *d = engine_fd(fd);
	void *arg;
	va_list ap;

	va_start(ap, op);
	arg = va_arg(ap, void *);
	va_end(ap);
	if (!engine_is_ours(fd))
		return __real_fcntl64(fd, op, arg);
	if (!d)
		return engine_failed(EBADF);
	if (op != F_DUPFD_CLOEXEC) /* locks of ranges: nobody tries */
		return engine_failed(ENOSYS);
	return engine_new_fd(d);
}

int __wrap_flock(int fd, int op)
{
	struct description *d = engine_fd(fd);

	if (!engine_is_ours(fd))
		return __real_flock(fd, op);
	if (!d)
		return engine_failed(EBADF);
	(void)engine_begins("flock", "", NEVER);
	unlock(d);
	if (op & LOCK_UN)
		return 0;
	if (d->in->locked || ((op & LOCK_EX) && d->in->locks > 0))
		return engine_failed(EWOULDBLOCK);
	if (op & LOCK_EX) {
		d->locked = true;
		d->in->locked = d;
	} else {
		d->locks = true;
		d->in->locks++;
	}
	return engine_ends(0);
}

