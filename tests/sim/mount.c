/*
 * mount.c - see mount.h. A call of a program is what the kernel makes of it: some
 * requests, one after the other, of which mount_fuse.c has the answers.
 */
#include "tests/sim/mount.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <time.h>

#include "store/base/scope.h"
#include "store/shared/shared.h"
#include "tests/sim/engine_wrap.h"
#include "tests/sim/mount_private.h"
#include "tests/sim/sim.h"

#define RANK_MOUNT ((enum lock_rank) - 1)
#define DIRS_MAX 64
#define DEPTH_MAX 8

/* --- mounts --------------------------------------------------------------- */

/* Whoever changes names in a directory; no lock of base/sync.h has its order. */
struct dir_use {
	uint64_t id; /* 0: free */
	bool taken;
};

struct mount_file {
	struct mount *m;
	uint64_t id;
	int flags;
	struct fuse_file_info file;
	void (*released)(unsigned what);
	unsigned what;
	TAILQ_ENTRY(mount_file) link;
};
TAILQ_HEAD(mount_files, mount_file);

struct mount {
	struct fs fs;
	struct chance chance;
	struct lock lock; /* guards what follows */
	struct cond work, idle;
	struct mount_files released; /* a RELEASE is to be sent */
	unsigned busy;
	bool ending;
	struct thread releaser;
	struct dir_use dir[DIRS_MAX];
	unsigned dirs;
};

#define OPS (&fs_shared_ops)

static struct fuse_req request(struct mount *m)
{
	return (struct fuse_req){ .fs = &m->fs,
				  .ctx = { .pid = 1 + (pid_t)sim_self() } };
}

static void forget(struct mount *m, uint64_t id)
{
	struct fuse_req r = request(m);

	if (id != ROOT_INO)
		OPS->forget(&r, id, 1);
}

static void release(struct mount_file *f)
{
	struct fuse_req r = request(f->m);

	OPS->release(&r, f->id, &f->file);
	CHECK(r.answered);
	if (f->released)
		f->released(f->what);
	forget(f->m, f->id);
	free(f);
}

static void *releaser_main(void *arg)
{
	struct mount *m = arg;

	sim_name("releaser");
	lock_take(&m->lock);
	for (;;) {
		struct mount_file *f = TAILQ_FIRST(&m->released);

		if (!f && m->ending)
			break;
		if (!f) {
			cond_wait(&m->work, &m->lock);
			continue;
		}
		TAILQ_REMOVE(&m->released, f, link);
		m->busy++;
		lock_give(&m->lock);
		release(f);
		lock_take(&m->lock);
		if (--m->busy == 0 && TAILQ_EMPTY(&m->released))
			cond_broadcast(&m->idle);
	}
	lock_give(&m->lock);
	return NULL;
}

struct mount *mount_new(struct store *st, struct shared *s, uint64_t seed)
{
	struct mount *m = calloc(1, sizeof(*m));

	CHECK(m);
	m->fs.store = st;
	m->fs.shared = s;
	m->fs.is_shared = true;
	m->fs.threads = 8;
	m->chance = chance_of(seed, 31);
	TAILQ_INIT(&m->released);
	lock_init(&m->lock, RANK_MOUNT);
	cond_init(&m->work);
	cond_init(&m->idle);
	CHECK(thread_create(&m->releaser, releaser_main, m) == 0);
	return m;
}

void mount_end(struct mount *m)
{
	lock_take(&m->lock);
	while (m->busy > 0 || !TAILQ_EMPTY(&m->released))
		cond_wait(&m->idle, &m->lock);
	m->ending = true;
	cond_broadcast(&m->work);
	lock_give(&m->lock);
	thread_join(&m->releaser);
	free(m);
}

void mount_sleep(int64_t ns)
{
	int64_t until = mono_ns() + ns;
	struct lock lock;
	struct cond never;

	lock_init(&lock, RANK_MOUNT);
	cond_init(&never);
	lock_take(&lock);
	while (cond_wait_until(&never, &lock, until))
		;
	lock_give(&lock);
}

/* What the store sleeps, with its locks held or not. */
int __wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
	(void)left;
	CHECK(sim_running());
	mount_sleep((int64_t)time->tv_sec * 1000000000 + time->tv_nsec);
	return 0;
}

/* --- directories that are changed ------------------------------------------ */

static bool is_free(void *arg)
{
	return !((struct dir_use *)arg)->taken;
}

static struct dir_use *dir_take(struct mount *m, uint64_t id)
{
	struct dir_use *d = m->dir;

	while (d < m->dir + m->dirs && d->id != id)
		d++;
	if (d == m->dir + m->dirs) {
		CHECK(m->dirs < DIRS_MAX);
		m->dirs++;
		d->id = id;
	}
	while (d->taken)
		sim_wait(is_free, d);
	d->taken = true;
	return d;
}

static void dir_give(struct dir_use *d)
{
	d->taken = false;
}

/* --- paths ---------------------------------------------------------------- */

static int lookup(struct mount *m, uint64_t parent, const char *name,
		  struct fuse_entry_param *ret)
{
	struct fuse_req r = request(m);

	OPS->lookup(&r, parent, name);
	CHECK(r.answered);
	if (r.rc == 0)
		*ret = r.entry;
	return r.rc;
}

/* The directory that a path lies in, with a look-up, and the name there. */
static int walk(struct mount *m, const char *path, uint64_t *ret_dir,
		const char **ret_name)
{
	struct fuse_entry_param e;
	uint64_t dir = ROOT_INO;
	const char *slash;
	char part[256];
	int rc;

	while ((slash = strchr(path, '/'))) {
		(void)snprintf(part, sizeof(part), "%.*s", (int)(slash - path),
			       path);
		rc = lookup(m, dir, part, &e);
		forget(m, dir);
		if (rc < 0)
			return rc;
		dir = e.ino;
		path = slash + 1;
		if (!S_ISDIR(e.attr.st_mode)) {
			forget(m, dir);
			return -ENOTDIR;
		}
	}
	*ret_dir = dir;
	*ret_name = path;
	return 0;
}

/* ESTALE: once more, and then who asked is told. */
#define TWICE(call)                        \
	({                                 \
		int rc_ = (call);          \
		if (rc_ == -ESTALE)        \
			rc_ = (call);      \
		rc_;                       \
	})

static int create_in(struct mount *m, uint64_t dir, const char *name, int flags,
		     struct fuse_req *r)
{
	struct dir_use *d = dir_take(m, dir);
	struct fuse_file_info fi = { .flags = flags };

	OPS->create(r, dir, name, 0644, &fi);
	dir_give(d);
	CHECK(r->answered);
	return r->rc;
}

static int open_once(struct mount *m, const char *path, int flags,
		     struct mount_file **ret)
{
	struct fuse_req r = request(m);
	struct fuse_file_info fi = { .flags = flags & ~O_CREAT };
	struct fuse_entry_param e;
	const char *name;
	uint64_t dir;
	int rc = walk(m, path, &dir, &name);

	if (rc < 0)
		return rc;
	rc = lookup(m, dir, name, &e);
	if (rc == -ENOENT && (flags & O_CREAT)) {
		rc = create_in(m, dir, name, flags, &r);
		e = r.entry;
	} else if (rc == 0 && (flags & O_CREAT) && (flags & O_EXCL)) {
		forget(m, e.ino);
		rc = -EEXIST;
	} else if (rc == 0 && S_ISDIR(e.attr.st_mode)) {
		forget(m, e.ino);
		rc = -EISDIR;
	} else if (rc == 0) {
		OPS->open(&r, e.ino, &fi);
		CHECK(r.answered);
		rc = r.rc;
		if (rc < 0)
			forget(m, e.ino);
	}
	forget(m, dir);
	if (rc < 0)
		return rc;
	*ret = calloc(1, sizeof(**ret));
	CHECK(*ret);
	**ret = (struct mount_file){
		.m = m, .id = e.ino, .flags = flags, .file = r.file
	};
	return 0;
}

int mount_open(struct mount *m, const char *path, int flags,
	       struct mount_file **ret)
{
	return TWICE(open_once(m, path, flags, ret));
}

bool mount_is_of_dir(const struct mount_file *f)
{
	return shared_is_node(f->id);
}

int mount_fd(const struct mount_file *f)
{
	return (int)(f->file.fh >> 32);
}

int mount_write(struct mount_file *f, const void *buf, size_t len, uint64_t off)
{
	struct fuse_req r = request(f->m);

	OPS->write(&r, f->id, buf, len, (off_t)off, &f->file);
	CHECK(r.answered);
	return r.rc;
}

ssize_t mount_read(struct mount_file *f, void *buf, size_t len, uint64_t off)
{
	struct fuse_req r = request(f->m);

	r.buf = buf;
	r.size = len;
	OPS->read(&r, f->id, len, (off_t)off, &f->file);
	CHECK(r.answered);
	return r.rc < 0 ? r.rc : (ssize_t)r.len;
}

int mount_fsync(struct mount_file *f)
{
	struct fuse_req r = request(f->m);

	OPS->fsync(&r, f->id, 0, &f->file);
	CHECK(r.answered);
	return r.rc;
}

int mount_truncate(struct mount_file *f, uint64_t size)
{
	struct fuse_req r = request(f->m);
	struct stat sb = { .st_size = (off_t)size };

	OPS->setattr(&r, f->id, &sb, FUSE_SET_ATTR_SIZE, &f->file);
	CHECK(r.answered);
	return r.rc;
}

int mount_close(struct mount_file *f, void (*released)(unsigned what),
		unsigned what)
{
	struct fuse_req r = request(f->m);
	struct mount *m = f->m;
	bool writes = (f->flags & O_ACCMODE) != O_RDONLY;

	if (writes || !f->file.noflush) {
		OPS->flush(&r, f->id, &f->file);
		CHECK(r.answered);
	}
	f->released = released;
	f->what = what;
	HOLD(&m->lock);
	TAILQ_INSERT_TAIL(&m->released, f, link);
	cond_signal(&m->work);
	return r.rc;
}

/* --- names ---------------------------------------------------------------- */

static int mkdir_once(struct mount *m, const char *path)
{
	struct fuse_req r = request(m);
	struct fuse_entry_param e;
	struct dir_use *d;
	const char *name;
	uint64_t dir;
	int rc = walk(m, path, &dir, &name);

	if (rc < 0)
		return rc;
	d = dir_take(m, dir);
	if (lookup(m, dir, name, &e) == 0) {
		forget(m, e.ino);
		rc = -EEXIST;
	} else {
		OPS->mkdir(&r, dir, name, 0755);
		rc = r.rc;
		if (rc == 0)
			forget(m, r.entry.ino);
	}
	dir_give(d);
	forget(m, dir);
	return rc;
}

int mount_mkdir(struct mount *m, const char *path)
{
	return TWICE(mkdir_once(m, path));
}

static int remove_once(struct mount *m, const char *path, bool is_dir)
{
	struct fuse_req r = request(m);
	struct fuse_entry_param e;
	struct dir_use *d;
	const char *name;
	uint64_t dir;
	int rc = walk(m, path, &dir, &name);

	if (rc < 0)
		return rc;
	d = dir_take(m, dir);
	rc = lookup(m, dir, name, &e);
	if (rc == 0) {
		(is_dir ? OPS->rmdir : OPS->unlink)(&r, dir, name);
		rc = r.rc;
		forget(m, e.ino);
	}
	dir_give(d);
	forget(m, dir);
	return rc;
}

int mount_unlink(struct mount *m, const char *path)
{
	return TWICE(remove_once(m, path, false));
}

int mount_rmdir(struct mount *m, const char *path)
{
	return TWICE(remove_once(m, path, true));
}

static int rename_in(struct mount *m, uint64_t a, const char *from, uint64_t b,
		     const char *to, unsigned flags)
{
	struct fuse_req r = request(m);
	struct fuse_entry_param x, y;
	struct dir_use *first = dir_take(m, a < b ? a : b);
	struct dir_use *second = a == b ? NULL : dir_take(m, a < b ? b : a);
	bool over = false;
	int rc = lookup(m, a, from, &x);

	if (rc == 0) {
		over = lookup(m, b, to, &y) == 0;
		OPS->rename(&r, a, from, b, to, flags);
		rc = r.rc;
		forget(m, x.ino);
		if (over)
			forget(m, y.ino);
	}
	dir_give(first);
	if (second)
		dir_give(second);
	return rc;
}

static int rename_once(struct mount *m, const char *from, const char *to,
		       unsigned flags)
{
	const char *from_name, *to_name;
	uint64_t a, b;
	int rc = walk(m, from, &a, &from_name);

	if (rc < 0)
		return rc;
	rc = walk(m, to, &b, &to_name);
	if (rc == 0) {
		rc = rename_in(m, a, from_name, b, to_name, flags);
		forget(m, b);
	}
	forget(m, a);
	return rc;
}

int mount_rename(struct mount *m, const char *from, const char *to,
		 unsigned flags)
{
	return TWICE(rename_once(m, from, to, flags));
}

static int link_once(struct mount *m, const char *from, const char *to)
{
	struct fuse_req r = request(m);
	struct fuse_entry_param e;
	struct dir_use *d;
	const char *name;
	uint64_t dir;
	int rc = walk(m, from, &dir, &name);

	if (rc < 0)
		return rc;
	rc = lookup(m, dir, name, &e);
	forget(m, dir);
	if (rc < 0)
		return rc;
	rc = walk(m, to, &dir, &name);
	if (rc == 0) {
		d = dir_take(m, dir);
		OPS->link(&r, e.ino, dir, name);
		rc = r.rc;
		if (rc == 0)
			forget(m, r.entry.ino);
		dir_give(d);
		forget(m, dir);
	}
	forget(m, e.ino);
	return rc;
}

int mount_link(struct mount *m, const char *from, const char *to)
{
	return TWICE(link_once(m, from, to));
}

static int find_once(struct mount *m, const char *path,
		     struct fuse_entry_param *ret)
{
	const char *name;
	uint64_t dir;
	int rc = walk(m, path, &dir, &name);

	if (rc < 0)
		return rc;
	rc = lookup(m, dir, name, ret);
	forget(m, dir);
	return rc;
}

static int stat_once(struct mount *m, const char *path, struct stat *ret)
{
	struct fuse_req r = request(m);
	struct fuse_entry_param e;
	int rc = find_once(m, path, &e);

	if (rc < 0)
		return rc;
	OPS->getattr(&r, e.ino, NULL);
	forget(m, e.ino);
	*ret = r.stat;
	return r.rc;
}

int mount_stat(struct mount *m, const char *path, struct stat *ret)
{
	return TWICE(stat_once(m, path, ret));
}

ssize_t mount_list(struct mount *m, const char *path, char *buf, size_t size)
{
	struct fuse_req opened = request(m), closed = request(m);
	struct fuse_req r = request(m);
	struct fuse_file_info fi = { 0 };
	struct fuse_entry_param e;
	int rc = TWICE(find_once(m, path, &e));

	if (rc < 0)
		return rc;
	OPS->opendir(&opened, e.ino, &fi);
	rc = opened.rc;
	if (rc == 0) {
		r.buf = buf;
		r.size = size;
		OPS->readdir(&r, e.ino, size, 0, &opened.file);
		rc = r.rc;
		OPS->releasedir(&closed, e.ino, &opened.file);
	}
	forget(m, e.ino);
	return rc < 0 ? rc : (ssize_t)r.len;
}
