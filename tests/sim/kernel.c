/*
 * kernel.c - see kernel.h. What is a call of fuse/ops_*.c there is the same
 * sequence of calls of store/ here.
 */
#include "tests/sim/kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <unistd.h>

#include "store/base/scope.h"
#include "store/db/kv.h"
#include "store/drain/drain.h"
#include "store/file/file.h"
#include "store/names/names.h"
#include "store/publish.h"
#include "tests/sim/disk.h"
#include "tests/sim/sim.h"

/* Above all locks of the store: the kernel calls it with these held. */
#define RANK_KERNEL ((enum lock_rank) - 2)
#define RANK_CLIENT ((enum lock_rank) - 1)

#define RELEASERS 2
#define SLOW_READ_NS UINT64_C(5000000000)

struct kernel_file {
	struct inode *in; /* a reference, which is a look-up */
	int flags, fd;
	TAILQ_ENTRY(kernel_file) link;
};
TAILQ_HEAD(kernel_files, kernel_file);

static struct {
	struct store *st;
	struct chance chance;
	struct lock names; /* the i_rwsem of all directories */
	struct lock lock; /* guards what follows */
	struct cond work, idle;
	struct kernel_files released; /* a RELEASE is to be sent */
	struct kernel_files
		known; /* no handle, but a look-up that stays for now */
	unsigned busy;
	bool ending;
	bool slow_reads;
	struct thread releaser[RELEASERS];
} k;

static void forget(struct inode *in)
{
	inode_forget(k.st->inodes, in, 1);
	file_forgotten(&k.st->files, in);
	inode_put(k.st->inodes, in, 1);
}

/* RELEASE, and sometimes FORGET at once. */
static void release(struct kernel_file *f)
{
	file_release(&k.st->files, f->in, f->flags);
	f->fd = -1;
	if (chance_one_in(&k.chance, 2)) {
		forget(f->in);
		free(f);
		return;
	}
	TAILQ_INSERT_TAIL(&k.known, f, link);
	f = TAILQ_FIRST(&k.known);
	if (chance_one_in(&k.chance, 2)) {
		TAILQ_REMOVE(&k.known, f, link);
		forget(f->in);
		free(f);
	}
}

static void *releaser_main(void *arg)
{
	(void)arg;
	sim_name("releaser");
	lock_take(&k.lock);
	for (;;) {
		struct kernel_file *f = TAILQ_FIRST(&k.released);

		if (!f && k.ending)
			break;
		if (!f) {
			cond_wait(&k.work, &k.lock);
			continue;
		}
		TAILQ_REMOVE(&k.released, f, link);
		k.busy++;
		lock_give(&k.lock);
		release(f);
		lock_take(&k.lock);
		if (--k.busy == 0 && TAILQ_EMPTY(&k.released))
			cond_broadcast(&k.idle);
	}
	lock_give(&k.lock);
	return NULL;
}

void kernel_mount(struct store *st, bool passthrough, bool slow_reads,
		  uint64_t seed)
{
	memset(&k, 0, sizeof(k));
	k.slow_reads = slow_reads;
	k.st = st;
	k.chance = chance_of(seed, 3);
	TAILQ_INIT(&k.released);
	TAILQ_INIT(&k.known);
	lock_init(&k.names, RANK_KERNEL);
	lock_init(&k.lock, RANK_CLIENT);
	cond_init(&k.work);
	cond_init(&k.idle);
	if (passthrough) {
		st->files.kernel.backing_open = disk_backing_open;
		st->files.kernel.backing_close = disk_backing_close;
	}
	for (unsigned i = 0; i < RELEASERS; i++)
		CHECK(thread_create(&k.releaser[i], releaser_main, NULL) == 0);
}

void kernel_settle(void)
{
	lock_take(&k.lock);
	while (k.busy > 0 || !TAILQ_EMPTY(&k.released))
		cond_wait(&k.idle, &k.lock);
	lock_give(&k.lock);
}

void kernel_unmount(void)
{
	struct kernel_file *f;

	kernel_settle();
	lock_take(&k.lock);
	k.ending = true;
	cond_broadcast(&k.work);
	lock_give(&k.lock);
	for (unsigned i = 0; i < RELEASERS; i++)
		thread_join(&k.releaser[i]);
	while ((f = TAILQ_FIRST(&k.known)) != NULL) {
		TAILQ_REMOVE(&k.known, f, link);
		forget(f->in);
		free(f);
	}
	k.st = NULL;
}

void kernel_forget_all(void)
{
	memset(&k, 0, sizeof(k));
}

/* --- names
 * --------------------------------------------------------------------- */

static int walk(const char *path, uint64_t *ret_dir, const char **ret_name)
{
	const char *slash = strchr(path, '/');
	struct inode *in;
	char dir[64];
	int rc;

	*ret_dir = ROOT_INO;
	*ret_name = path;
	if (!slash)
		return 0;
	(void)snprintf(dir, sizeof(dir), "%.*s", (int)(slash - path), path);
	rc = names_lookup(k.st->names, ROOT_INO, dir, &in);
	if (rc < 0)
		return rc;
	*ret_dir = in->ino;
	*ret_name = slash + 1;
	inode_put(k.st->inodes, in, 1);
	return 0;
}

static int lookup(const char *path, struct inode **ret)
{
	const char *name;
	uint64_t dir;
	int rc = walk(path, &dir, &name);

	return rc < 0 ? rc : names_lookup(k.st->names, dir, name, ret);
}

static int make(const char *path, uint32_t mode, struct inode **ret)
{
	struct names_new n = { .mode = mode };
	const char *name;
	uint64_t dir;
	int rc = walk(path, &dir, &name);

	if (rc == 0)
		rc = names_create(k.st->names, dir, name, &n, ret);
	if (rc == 0 && S_ISREG(mode))
		file_created(*ret);
	return rc;
}

bool kernel_has(const char *path)
{
	struct inode *in;

	if (lookup(path, &in) < 0)
		return false;
	inode_put(k.st->inodes, in, 1);
	return true;
}

int kernel_mkdir(const char *path)
{
	struct inode *in;
	int rc;

	HOLD(&k.names);
	rc = make(path, S_IFDIR | 0755, &in);
	if (rc == 0)
		inode_put(k.st->inodes, in, 1);
	return rc;
}

static void unlinked(struct inode *in)
{
	file_unlinked(&k.st->files, in);
	inode_put(k.st->inodes, in, 1);
}

int kernel_unlink(const char *path)
{
	struct inode *in;
	const char *name;
	uint64_t dir;
	int rc;

	HOLD(&k.names);
	rc = walk(path, &dir, &name);
	if (rc == 0)
		rc = names_unlink(k.st->names, dir, name, &in);
	if (rc == 0)
		unlinked(in);
	return rc;
}

/* As in fuse/ops_name.c. */
int kernel_rename(const char *from, const char *to, unsigned flags)
{
	struct publish_rename r = { .flags = flags };
	struct inode *replaced;
	int rc;

	HOLD(&k.names);
	rc = walk(from, &r.parent, &r.name);
	if (rc == 0)
		rc = walk(to, &r.new_parent, &r.new_name);
	if (rc == 0)
		rc = publish_before(k.st, &r);
	if (rc == 0)
		rc = publish_name(k.st, &r, &replaced);
	if (rc < 0)
		return rc;
	if (replaced)
		unlinked(replaced);
	return publish_after(k.st, &r);
}

int kernel_link(const char *from, const char *to)
{
	bool waits = k.st->options.publish != PUBLISH_ASYNC;
	struct inode *in;
	const char *name;
	uint64_t dir;
	int rc;

	HOLD(&k.names);
	rc = lookup(from, &in);
	if (rc < 0)
		return rc;
	rc = waits ? drain_publish_closed(k.st->drain, in) : 0;
	if (rc == 0)
		rc = walk(to, &dir, &name);
	if (rc == 0)
		rc = names_link(k.st->names, in, dir, name);
	if (rc == 0 && waits)
		rc = kv_sync(k.st->kv);
	inode_put(k.st->inodes, in, 1);
	return rc;
}

/* --- open files
 * ---------------------------------------------------------------- */

/* Of a name for a call that was told ESTALE of `told` (0: none): again.h. */
static int lookup_again(const char *path, bool empties, uint64_t *told,
			struct inode **ret)
{
	int rc = lookup(path, ret);

	if (rc == 0 && (*ret)->ino == *told &&
	    file_renumber(&k.st->files, *ret, empties) == 0) {
		inode_put(k.st->inodes, *ret, 1);
		rc = lookup(path, ret);
	}
	*told = 0;
	return rc;
}

static int open_once(const char *path, int flags, uint64_t *told,
		     struct kernel_file **ret)
{
	struct file_opened opened;
	struct inode *in = NULL;
	int rc = lookup_again(path, (flags & O_TRUNC) != 0, told, &in);

	if (rc == -ENOENT && (flags & O_CREAT)) {
		HOLD(&k.names);
		rc = make(path, S_IFREG | 0644, &in);
		flags &= ~O_TRUNC; /* as op_create() does it */
	}
	if (rc < 0)
		return rc;
	inode_remember(k.st->inodes, in);
	rc = file_open(&k.st->files, in, flags, &opened);
	if (rc < 0) {
		*told = in->ino;
		forget(in);
		return rc;
	}
	*ret = calloc(1, sizeof(**ret));
	CHECK(*ret);
	**ret = (struct kernel_file){ .in = in, .flags = flags & O_ACCMODE };
	(*ret)->fd = opened.backing_id > 0 ? opened.backing_id : -1;
	return 0;
}

/* The kernel looks a name up once more, and then who asked is told. */
int kernel_open(const char *path, int flags, struct kernel_file **ret)
{
	uint64_t told = 0;
	int rc = open_once(path, flags, &told, ret);

	if (rc == -ESTALE)
		rc = open_once(path, flags, &told, ret);
	if (rc == -EEXIST) /* somebody else made it meanwhile */
		rc = open_once(path, flags, &told, ret);
	names_tell_moved(k.st->names);
	return rc;
}

int kernel_write(struct kernel_file *f, const void *data, size_t len,
		 uint64_t off)
{
	ssize_t n;

	if (f->fd < 0)
		return file_write(&k.st->files, f->in, data, len, off);
	n = pwrite(f->fd, data, len, (off_t)off);
	if (n < 0)
		return -errno;
	return (size_t)n == len ? 0 : -ENOSPC;
}

ssize_t kernel_read(struct kernel_file *f, void *buf, size_t len, uint64_t off)
{
	struct file_read r;
	size_t done = 0;
	int rc;

	if (f->fd >= 0) {
		ssize_t n = pread(f->fd, buf, len, (off_t)off);

		return n < 0 ? -errno : n;
	}
	rc = file_read_begin(&k.st->files, f->in, len, off, &r);
	if (rc == 0 &&
	    chance_one_in(&k.chance,
			  k.slow_reads ? 1 : 4)) /* its answer takes long */
		kernel_sleep((int64_t)chance_below(&k.chance, SLOW_READ_NS));
	for (int i = 0; rc == 0 && i < r.count; i++) {
		sim_point("copy", "read");
		memcpy((uint8_t *)buf + done, r.iov[i].iov_base,
		       r.iov[i].iov_len);
		done += r.iov[i].iov_len;
	}
	file_read_end(&k.st->files, &r);
	return rc < 0 ? rc : (ssize_t)done;
}

int kernel_fsync(struct kernel_file *f)
{
	return file_sync(&k.st->files, f->in);
}

int kernel_ftruncate(struct kernel_file *f, uint64_t size)
{
	return file_truncate(&k.st->files, f->in, size);
}

int kernel_fallocate(struct kernel_file *f, int mode, uint64_t off,
		     uint64_t len)
{
	return file_fallocate(&k.st->files, f->in, mode, off, len);
}

static int truncate_once(const char *path, uint64_t size, uint64_t *told)
{
	struct inode *in;
	int rc = lookup_again(path, false, told, &in);

	if (rc < 0)
		return rc;
	rc = file_truncate_path(&k.st->files, in, size, FILE_BY_ANY);
	*told = in->ino;
	inode_put(k.st->inodes, in, 1);
	return rc;
}

/* As open(2), truncate(2) looks the name up once more. */
int kernel_truncate(const char *path, uint64_t size)
{
	uint64_t told = 0;
	int rc = truncate_once(path, size, &told);

	return rc == -ESTALE ? truncate_once(path, size, &told) : rc;
}

int kernel_close(struct kernel_file *f)
{
	int rc = file_flush(&k.st->files, f->in, f->flags);

	HOLD(&k.lock);
	TAILQ_INSERT_TAIL(&k.released, f, link);
	cond_signal(&k.work);
	return rc;
}

int kernel_sync(const char *path)
{
	struct kernel_file *f;
	int rc = kernel_open(path, O_RDONLY, &f);

	if (rc < 0)
		return rc;
	rc = kernel_fsync(f);
	(void)kernel_close(f);
	return rc;
}

int kernel_sync_all(void)
{
	return drain_sync_tree(k.st->drain, ROOT_INO);
}

void kernel_sleep(int64_t ns)
{
	int64_t until = mono_ns() + ns;
	struct lock lock;
	struct cond never;

	lock_init(&lock, RANK_CLIENT);
	cond_init(&never);
	lock_take(&lock);
	while (cond_wait_until(&never, &lock, until))
		;
	lock_give(&lock);
}
