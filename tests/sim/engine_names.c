/*
 * engine_names.c - calls of the shared directory that are about names: they come
 * and go, and are listed. See engine_calls.c.
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

#define STREAMS_MAX 256

struct stream { /* a DIR */
	bool used;
	int fd;
	struct dirent entry;
};

static struct stream streams[STREAMS_MAX];

/* --- names that come and go ----------------------------------------------- */

static void take_name(struct einode *dir, const char *name)
{
	struct einode *in = list_find(&dir->list, name)->in;

	list_remove(&dir->list, name);
	in->links = S_ISDIR(in->mode) ? 0 : in->links - 1;
	in->ctime_ns = engine_now();
	engine_touch_dir(dir);
	view_forget(in, sim_group());
	engine_changed(in, ENGINE_UNNAMED);
}

int __wrap_unlinkat(int dirfd, const char *path, int flags)
{
	struct place_at at;
	struct entry_of *e;
	int error;

	if (!engine_is_below(dirfd, path))
		return disk_unlinkat(dirfd, path, flags);
	error = engine_resolve(dirfd, path, &at);
	if (error == 0)
		error = at.self ? EINVAL : engine_begins("unlink", at.name, READS);
	e = error == 0 ? list_find(&at.dir->list, at.name) : NULL;
	if (error == 0 && !e)
		error = ENOENT;
	if (error == 0 && (flags & AT_REMOVEDIR))
		error = !S_ISDIR(e->in->mode)     ? ENOTDIR
			: e->in->list.count > 0 ? ENOTEMPTY
						: 0;
	else if (error == 0 && S_ISDIR(e->in->mode))
		error = EISDIR;
	if (error)
		return engine_failed(error);
	take_name(at.dir, at.name);
	return engine_ends(0);
}

int __wrap_unlink(const char *path)
{
	return __wrap_unlinkat(AT_FDCWD, path, 0);
}

static bool is_within(const struct einode *in, const struct einode *dir)
{
	while (in != dir && in != engine.all[0])
		in = in->parent;
	return in == dir;
}

/* May `from` take the place of `to`? 0, or an errno. */
static int may_replace(const struct einode *from, const struct einode *to)
{
	if (S_ISDIR(to->mode) && !S_ISDIR(from->mode))
		return EISDIR;
	if (!S_ISDIR(to->mode) && S_ISDIR(from->mode))
		return ENOTDIR;
	return S_ISDIR(to->mode) && to->list.count > 0 ? ENOTEMPTY : 0;
}

static void exchange(const struct place_at *a, struct entry_of *x,
		     const struct place_at *b, struct entry_of *y)
{
	struct einode *in = x->in;

	x->in = y->in;
	y->in = in;
	if (S_ISDIR(x->in->mode))
		x->in->parent = a->dir;
	if (S_ISDIR(y->in->mode))
		y->in->parent = b->dir;
	x->in->ctime_ns = y->in->ctime_ns = engine_now();
	engine_touch_dir(a->dir);
	engine_touch_dir(b->dir);
	view_forget(x->in, sim_group());
	view_forget(y->in, sim_group());
	engine_changed(x->in, ENGINE_NAMED);
	engine_changed(y->in, ENGINE_NAMED);
}

static int rename_here(const struct place_at *a, const struct place_at *b,
		       unsigned flags)
{
	struct entry_of *x = list_find(&a->dir->list, a->name);
	struct entry_of *y = list_find(&b->dir->list, b->name);
	struct einode *in;
	int error = 0;

	if (!x || b->dir->links == 0)
		return ENOENT;
	if (S_ISDIR(x->in->mode) && is_within(b->dir, x->in))
		return EINVAL;
	if (flags == RENAME_EXCHANGE) {
		if (!y)
			return ENOENT;
		exchange(a, x, b, y);
		return 0;
	}
	if (y && flags == RENAME_NOREPLACE)
		return EEXIST;
	if (y && y->in == x->in)
		return 0;
	if (y)
		error = may_replace(x->in, y->in);
	if (error)
		return error;
	in = x->in;
	/* At once: nobody sees it without either name. */
	if (y) {
		struct einode *over = y->in;

		y->in = in;
		over->links = S_ISDIR(over->mode) ? 0 : over->links - 1;
		over->ctime_ns = engine_now();
		view_forget(over, sim_group());
		list_remove(&a->dir->list, a->name);
		engine_changed(over, ENGINE_UNNAMED);
	} else {
		list_add(&b->dir->list, b->name, in);
		list_remove(&a->dir->list, a->name);
	}
	if (S_ISDIR(in->mode))
		in->parent = b->dir;
	in->ctime_ns = engine_now();
	engine_touch_dir(a->dir);
	engine_touch_dir(b->dir);
	view_forget(in, sim_group());
	engine_changed(in, ENGINE_NAMED);
	return 0;
}

static int rename_ours(int from_fd, const char *from, int to_fd, const char *to,
		       unsigned flags)
{
	struct place_at a, b;
	int error = engine_resolve(from_fd, from, &a);

	if (error == 0)
		error = engine_is_below(to_fd, to) ? engine_resolve(to_fd, to, &b) : EXDEV;
	if (error == 0 && (a.self || b.self))
		error = EBUSY;
	if (error == 0)
		error = engine_begins("rename", a.name, WRITES);
	if (error == 0)
		error = rename_here(&a, &b, flags);
	return error ? engine_failed(error) : engine_ends(0);
}

int __wrap_renameat(int from_fd, const char *from, int to_fd, const char *to)
{
	return engine_is_below(from_fd, from)
		       ? rename_ours(from_fd, from, to_fd, to, 0)
		       : disk_renameat(from_fd, from, to_fd, to);
}

int __wrap_renameat2(int from_fd, const char *from, int to_fd, const char *to,
		     unsigned flags)
{
	return engine_is_below(from_fd, from)
		       ? rename_ours(from_fd, from, to_fd, to, flags)
		       : __real_renameat2(from_fd, from, to_fd, to, flags);
}

int __wrap_linkat(int from_fd, const char *from, int to_fd, const char *to,
		  int flags)
{
	struct place_at a, b;
	struct entry_of *e;
	struct einode *in;
	int error;

	if (!engine_is_below(from_fd, from))
		return disk_linkat(from_fd, from, to_fd, to, flags);
	error = engine_resolve(from_fd, from, &a);
	if (error == 0)
		error = engine_resolve(to_fd, to, &b);
	if (error == 0)
		error = b.self ? EPERM : engine_begins("link", b.name, WRITES);
	e = error == 0 && !a.self ? list_find(&a.dir->list, a.name) : NULL;
	in = e ? e->in : a.self; /* by a descriptor */
	if (error == 0 && (!in || in->links == 0 || b.dir->links == 0))
		error = ENOENT;
	if (error == 0 && S_ISDIR(in->mode))
		error = EPERM;
	if (error == 0 && list_find(&b.dir->list, b.name))
		error = EEXIST;
	if (error)
		return engine_failed(error);
	engine_put_name(b.dir, b.name, in);
	return engine_ends(0);
}

static int make_ours(int dirfd, const char *path, mode_t mode,
		     const char *target)
{
	struct place_at at;
	struct einode *in;
	int error = engine_resolve(dirfd, path, &at);

	if (error == 0)
		error = at.self ? EEXIST : engine_begins("make", at.name, WRITES);
	if (error == 0 && list_find(&at.dir->list, at.name))
		error = EEXIST;
	if (error == 0 && at.dir->links == 0)
		error = ENOENT;
	if (error)
		return engine_failed(error);
	in = einode_new(mode);
	in->target = target ? strdup(target) : NULL;
	engine_put_name(at.dir, at.name, in);
	return engine_ends(0);
}

int __wrap_mkdirat(int dirfd, const char *path, mode_t mode)
{
	return engine_is_below(dirfd, path)
		       ? make_ours(dirfd, path, S_IFDIR | (mode & 07777), NULL)
		       : disk_mkdirat(dirfd, path, mode);
}

int __wrap_symlinkat(const char *target, int dirfd, const char *path)
{
	return engine_is_below(dirfd, path)
		       ? make_ours(dirfd, path, S_IFLNK | 0777, target)
		       : __real_symlinkat(target, dirfd, path);
}

int __wrap_mknodat(int dirfd, const char *path, mode_t mode, dev_t dev)
{
	return engine_is_below(dirfd, path) ? make_ours(dirfd, path, mode, NULL)
				     : __real_mknodat(dirfd, path, mode, dev);
}

ssize_t __wrap_readlinkat(int dirfd, const char *path, char *buf, size_t size)
{
	struct place_at at;
	struct einode *in = NULL;
	size_t len;
	int error;

	if (!engine_is_below(dirfd, path))
		return __real_readlinkat(dirfd, path, buf, size);
	error = engine_resolve(dirfd, path, &at);
	if (error == 0)
		error = engine_find(&at, false, &in);
	if (error == 0 && !in->target)
		error = EINVAL;
	if (error)
		return engine_failed(error);
	len = strlen(in->target);
	memcpy(buf, in->target, len < size ? len : size);
	return (ssize_t)(len < size ? len : size);
}

/* --- listings ------------------------------------------------------------- */

static struct stream *stream_of(DIR *dir)
{
	struct stream *s = (struct stream *)(void *)dir;

	return s >= streams && s < streams + STREAMS_MAX ? s : NULL;
}

DIR *__wrap_fdopendir(int fd)
{
	if (!engine_is_ours(fd))
		return disk_fdopendir(fd);
	for (int i = 0; i < STREAMS_MAX; i++)
		if (!streams[i].used) {
			streams[i] = (struct stream){ .used = true, .fd = fd };
			return (DIR *)(void *)&streams[i];
		}
	abort();
}

int __wrap_closedir(DIR *dir)
{
	struct stream *s = stream_of(dir);

	if (!s)
		return disk_closedir(dir);
	s->used = false;
	return __wrap_close(s->fd);
}

int __wrap_dirfd(DIR *dir)
{
	struct stream *s = stream_of(dir);

	return s ? s->fd : __real_dirfd(dir);
}

/* The next name, or NULL. "." and ".." come last: nobody may rely on it. */
static const char *next_name(struct description *d, struct einode **ret)
{
	static const char *const dots[] = { ".", ".." };

	if (!d->listed) {
		(void)engine_begins("list", "", NEVER);
		view_list(d->in, d->node, &d->list);
		d->listed = true;
	}
	if (d->at < d->list.count) {
		*ret = d->list.at[d->at].in;
		return d->list.at[d->at++].name;
	}
	*ret = d->in;
	return d->at < d->list.count + 2 ? dots[d->at++ - d->list.count] : NULL;
}

static unsigned char type_of(const struct einode *in)
{
	return (unsigned char)(in->mode >> 12);
}

struct dirent *__wrap_readdir64(DIR *dir)
{
	struct stream *s = stream_of(dir);
	struct einode *in;
	const char *name;

	if (!s)
		return __real_readdir64(dir);
	name = next_name(engine_fd(s->fd), &in);
	if (!name)
		return NULL;
	s->entry.d_ino = in->ino;
	s->entry.d_type = type_of(in);
	(void)snprintf(s->entry.d_name, sizeof(s->entry.d_name), "%s", name);
	return &s->entry;
}

static long getdents_ours(struct description *d, void *buf, size_t size)
{
	struct dirent64 *to = buf;
	struct einode *in;
	const char *name = next_name(d, &in);

	if (!name)
		return 0;
	CHECK(size >= sizeof(*to));
	*to = (struct dirent64){ .d_ino = in->ino,
				 .d_off = (off_t)d->at,
				 .d_reclen = sizeof(*to),
				 .d_type = type_of(in) };
	(void)snprintf(to->d_name, sizeof(to->d_name), "%s", name);
	return sizeof(*to);
}

off_t __wrap_lseek64(int fd, off_t off, int whence)
{
	struct description *d = engine_fd(fd);

	if (!engine_is_ours(fd))
		return __real_lseek64(fd, off, whence);
	if (!d || whence != SEEK_SET)
		return engine_failed(EINVAL);
	d->at = (size_t)off;
	return off;
}

long __wrap_syscall(long number, ...)
{
	long a[6];
	va_list ap;

	va_start(ap, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(ap, long);
	va_end(ap);
	if (number == SYS_getdents64 && engine_is_ours((int)a[0]))
		return engine_fd((int)a[0])
			       ? getdents_ours(engine_fd((int)a[0]),
					       (void *)(uintptr_t)a[1],
					       (size_t)a[2])
			       : engine_failed(EBADF);
	return __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

void engine_streams_dead(void)
{
	for (int i = 0; i < STREAMS_MAX; i++)
		if (streams[i].used && !engine_fd(streams[i].fd))
			streams[i].used = false;
}
