/*
 * live_store.h - a store that runs without a mount: opened, written to, closed
 * and checked. What the kernel does for a mount is done here.
 *
 * A file is reached by its path from the root. With `passthrough` the store
 * believes that the kernel moves the bytes: opens are backed by a descriptor,
 * and a handle reads and writes that one. Without, the bytes go through
 * file_read_begin() and file_write().
 *
 * live_free() closes the store and checks it: every record must fit every
 * other one, and every chunk is hashed again. So each test ends with a proof
 * that nothing was lost and nothing was counted twice.
 *
 * Whatever ends a daemon at once runs in a child (live_child()): it is this
 * program again, so that no thread of the database is forked.
 */
#ifndef TESTS_UNIT_LIVE_STORE_H
#define TESTS_UNIT_LIVE_STORE_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/check/check.h"
#include "store/drain/commit.h"
#include "store/file/file.h"
#include "store/names/names.h"
#include "store/space/reclaim.h"
#include "store/store.h"
#include "tests/unit/store_fixture.h"

#define KIB 1024u
#define MIB (1024u * KIB)

struct live {
	char *path; /* of the store */
	char *stage; /* its stage, a directory in memory */
	struct store_options options;
	bool passthrough;
	struct store *st; /* NULL: closed */
};

/* Where a stage can be without a mount: in memory when there is such a place.
 */
static inline char *live_stage_dir(void)
{
	char *path = NULL;

	if (asprintf(&path, "/dev/shm/ckptfs-unit-XXXXXX") < 0)
		abort();
	if (mkdtemp(path))
		return path;
	free(path);
	return make_tmp();
}

/* As the kernel does it: the file is opened anew, to read and to write. */
static inline int live_backing_open(void *arg, int fd)
{
	char path[32];
	int own;

	(void)arg;
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	own = open(path, O_RDWR | O_CLOEXEC);
	if (own < 0 && errno == EPERM) /* sealed */
		own = open(path, O_RDONLY | O_CLOEXEC);
	return own;
}

static inline void live_backing_close(void *arg, int id)
{
	(void)arg;
	if (close(id) < 0)
		abort();
}

/* Open, but do not start: nothing is drained, committed or punched. */
static inline int live_try_open(struct live *l, char why[512])
{
	int rc;

	l->options.stage_dir = l->stage;
	rc = store_open(l->path, &l->options, &l->st, why, 512);
	if (rc < 0) {
		l->st = NULL;
		return rc;
	}
	if (l->passthrough) {
		l->st->files.kernel.backing_open = live_backing_open;
		l->st->files.kernel.backing_close = live_backing_close;
	}
	return 0;
}

static inline void live_open(struct live *l)
{
	char why[512] = "";
	int rc = live_try_open(l, why);

	if (rc < 0)
		fail_msg("store_open: %d: %s", rc, why);
	assert_int_equal(store_start(l->st), 0);
}

/* Options for a test: nothing happens by itself. */
static inline struct store_options live_options(void)
{
	struct store_options o = STORE_OPTIONS_DEFAULT;

	o.drain_interval_s = 0;
	o.backup_interval_s = 0;
	o.drain_threads = 4;
	return o;
}

static inline struct live live_closed(const struct store_options *options)
{
	struct live l = { .path = make_tmp(), .stage = live_stage_dir() };

	log_set_level(LOG_CRIT); /* errors are provoked here */
	l.options = options ? *options : live_options();
	return l;
}

static inline struct live live_new(const struct store_options *options)
{
	struct live l = live_closed(options);

	live_open(&l);
	return l;
}

/* A store with one of the kinds of stage, with or without passthrough. */
#define LIVE_KINDS 4
static inline struct live live_kind(unsigned kind)
{
	struct live l = live_closed(NULL);

	l.options.stage_all_in_memory = (kind & 1) != 0;
	l.passthrough = (kind & 2) != 0;
	live_open(&l);
	return l;
}

static inline void live_close(struct live *l)
{
	int rc = store_close(l->st);

	l->st = NULL;
	assert_int_equal(rc, 0);
}

static inline void live_reopen(struct live *l)
{
	live_close(l);
	live_open(l);
}

static inline void live_problem(void *self, const struct check_problem *p)
{
	(void)self;
	print_error("%s: %s: %s\n", p->code, p->object, p->text);
}

/* The closed store is sound, to its last byte. */
static inline void live_check(struct live *l)
{
	struct check_options options = { .scrub = true,
					 .threads = 1,
					 .problem = live_problem };
	struct check_result result;
	char db[4096], images[4096];
	struct kv *kv;
	int fd, rc;

	(void)snprintf(db, sizeof(db), "%s/" LAYOUT_DB_DIR, l->path);
	(void)snprintf(images, sizeof(images), "%s/" LAYOUT_IMAGE_DIR, l->path);
	assert_int_equal(kv_open_readonly(db, &kv), 0);
	fd = open(images, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(fd >= 0);
	rc = check_store(kv, fd, &options, &result);
	close(fd);
	kv_close(kv);
	assert_int_equal(rc, 0);
	assert_int_equal(result.problems, 0);
}

static inline void live_remove(struct live *l)
{
	remove_tree(l->path);
	remove_tree(l->stage);
	free(l->path);
	free(l->stage);
}

static inline void live_free(struct live *l)
{
	if (l->st)
		live_close(l);
	live_check(l);
	live_remove(l);
}

/* What a power cut leaves of the stage: nothing. The store is not open. */
static inline void live_empty_stage(struct live *l)
{
	remove_tree(l->stage);
	assert_int_equal(mkdir(l->stage, 0700), 0);
}

/* --- names ------------------------------------------------------------------
 */

/* The directory of a path and its last part, which points into it. */
static inline int live_walk(struct live *l, const char *path, uint64_t *ret_dir,
			    const char **ret_name)
{
	uint64_t dir = ROOT_INO;
	const char *slash;

	while ((slash = strchr(path, '/')) != NULL) {
		char name[STORE_NAME_MAX + 1];
		struct inode *in;
		int rc;

		(void)snprintf(name, sizeof(name), "%.*s", (int)(slash - path),
			       path);
		rc = names_lookup(l->st->names, dir, name, &in);
		if (rc < 0)
			return rc;
		dir = in->ino;
		inode_put(l->st->inodes, in, 1);
		path = slash + 1;
	}
	*ret_dir = dir;
	*ret_name = path;
	return 0;
}

/* One reference, or -errno. */
static inline int live_lookup(struct live *l, const char *path,
			      struct inode **ret)
{
	const char *name;
	uint64_t dir;
	int rc = live_walk(l, path, &dir, &name);

	return rc < 0 ? rc : names_lookup(l->st->names, dir, name, ret);
}

static inline uint64_t live_ino(struct live *l, const char *path)
{
	struct inode *in = NULL;
	uint64_t ino;

	assert_int_equal(live_lookup(l, path, &in), 0);
	ino = in->ino;
	inode_put(l->st->inodes, in, 1);
	return ino;
}

/* Make something of this mode; one reference. */
static inline int live_make(struct live *l, const char *path, uint32_t mode,
			    struct inode **ret)
{
	struct names_new n = { .mode = mode };
	const char *name;
	uint64_t dir;
	int rc = live_walk(l, path, &dir, &name);

	if (rc == 0)
		rc = names_create(l->st->names, dir, name, &n, ret);
	if (rc == 0 && S_ISREG(mode))
		file_created(*ret);
	return rc;
}

static inline void live_mkdir(struct live *l, const char *path)
{
	struct inode *in = NULL;

	assert_int_equal(live_make(l, path, S_IFDIR | 0755, &in), 0);
	inode_put(l->st->inodes, in, 1);
}

static inline int live_unlink(struct live *l, const char *path)
{
	struct inode *in;
	const char *name;
	uint64_t dir;
	int rc = live_walk(l, path, &dir, &name);

	if (rc == 0)
		rc = names_unlink(l->st->names, dir, name, &in);
	if (rc < 0)
		return rc;
	file_unlinked(&l->st->files, in);
	inode_put(l->st->inodes, in, 1);
	return 0;
}

/* As a mount with publish=async does it: without a wait. */
static inline int live_rename(struct live *l, const char *from, const char *to,
			      unsigned flags)
{
	struct inode *replaced;
	const char *from_name, *to_name;
	uint64_t from_dir, to_dir;
	int rc = live_walk(l, from, &from_dir, &from_name);

	if (rc == 0)
		rc = live_walk(l, to, &to_dir, &to_name);
	if (rc == 0)
		rc = names_rename(l->st->names, from_dir, from_name, to_dir,
				  to_name, flags, &replaced);
	if (rc < 0 || !replaced)
		return rc;
	file_unlinked(&l->st->files, replaced);
	inode_put(l->st->inodes, replaced, 1);
	return 0;
}

static inline int live_link(struct live *l, const char *path, const char *to)
{
	struct inode *in;
	const char *name;
	uint64_t dir;
	int rc = live_lookup(l, path, &in);

	if (rc < 0)
		return rc;
	rc = live_walk(l, to, &dir, &name);
	if (rc == 0)
		rc = names_link(l->st->names, in, dir, name);
	inode_put(l->st->inodes, in, 1);
	return rc;
}

/* --- open files -------------------------------------------------------------
 */

struct handle {
	struct live *l;
	struct inode *in; /* a reference, which is a look-up of the kernel's */
	int flags;
	int fd; /* what backs it, or -1 */
};

static inline int handle_try(struct live *l, const char *path, int flags,
			     struct handle *ret)
{
	struct file_opened opened;
	struct inode *in = NULL;
	int rc = live_lookup(l, path, &in);

	if (rc == -ENOENT && (flags & O_CREAT)) {
		rc = live_make(l, path, S_IFREG | 0644, &in);
		flags &= ~O_TRUNC; /* as fuse/ does it */
	}
	if (rc < 0)
		return rc;
	rc = file_open(&l->st->files, in, flags, &opened);
	if (rc < 0) {
		inode_put(l->st->inodes, in, 1);
		return rc;
	}
	inode_remember(l->st->inodes, in);
	*ret = (struct handle){ .l = l, .in = in, .flags = flags & O_ACCMODE };
	ret->fd = opened.backing_id > 0 ? opened.backing_id : -1;
	return 0;
}

/*
 * Once more after -ESTALE. The kernel tries only once again; here threads may
 * come between it and the file every time.
 */
static inline struct handle handle_open(struct live *l, const char *path,
					int flags)
{
	struct handle h = { .l = l };
	int rc = handle_try(l, path, flags, &h);

	while (rc == -ESTALE)
		rc = handle_try(l, path, flags, &h);
	if (rc < 0 || !h.in) {
		fail_msg("open %s: %d", path, rc);
		abort(); /* it does not return, but the compiler cannot know */
	}
	return h;
}

static inline void handle_write(struct handle *h, const void *data, size_t len,
				uint64_t off)
{
	if (h->fd < 0)
		assert_int_equal(
			file_write(&h->l->st->files, h->in, data, len, off), 0);
	else
		assert_int_equal(pwrite(h->fd, data, len, (off_t)off), len);
}

/* Up to len bytes at off: how many there were, or -errno. */
static inline ssize_t handle_read(struct handle *h, void *buf, size_t len,
				  uint64_t off)
{
	struct file_read r;
	size_t done = 0;
	int rc;

	if (h->fd >= 0) {
		ssize_t n = pread(h->fd, buf, len, (off_t)off);

		return n < 0 ? -errno : n;
	}
	rc = file_read_begin(&h->l->st->files, h->in, len, off, &r);
	for (int i = 0; rc == 0 && i < r.count; i++) {
		memcpy((uint8_t *)buf + done, r.iov[i].iov_base,
		       r.iov[i].iov_len);
		done += r.iov[i].iov_len;
	}
	file_read_end(&h->l->st->files, &r);
	return rc < 0 ? rc : (ssize_t)done;
}

/* The kernel forgets a file here as soon as nobody has it open. */
static inline void handle_release(struct handle *h)
{
	file_release(&h->l->st->files, h->in, h->flags);
	inode_forget(h->l->st->inodes, h->in, 1);
	file_forgotten(&h->l->st->files, h->in);
	inode_put(h->l->st->inodes, h->in, 1);
}

static inline void handle_close(struct handle *h)
{
	assert_int_equal(file_flush(&h->l->st->files, h->in, h->flags), 0);
	handle_release(h);
}

static inline int live_sync(struct live *l, const char *path)
{
	struct inode *in;
	int rc = live_lookup(l, path, &in);

	if (rc < 0)
		return rc;
	rc = file_sync(&l->st->files, in);
	inode_put(l->st->inodes, in, 1);
	return rc;
}

/*
 * The committer stands from here to the end of the block. Another thread holds
 * its lock: this one goes on to use the store, and takes locks that come before
 * that one.
 */
struct commits_paused {
	pthread_t thread;
	struct lock *turn;
	sem_t held, over;
};

static inline void *commits_hold(void *arg)
{
	struct commits_paused *p = arg;

	HOLD(p->turn);
	CHECK(sem_post(&p->held) == 0);
	while (sem_wait(&p->over) != 0)
		;
	return NULL;
}

static inline void commits_pause(struct commits_paused *p, struct live *l)
{
	p->turn = reclaim_deciding(l->st->reclaim);
	CHECK(sem_init(&p->held, 0, 0) == 0 && sem_init(&p->over, 0, 0) == 0);
	CHECK(pthread_create(&p->thread, NULL, commits_hold, p) == 0);
	while (sem_wait(&p->held) != 0)
		;
}

static inline void commits_go_on(struct commits_paused *p)
{
	CHECK(sem_post(&p->over) == 0);
	CHECK(pthread_join(p->thread, NULL) == 0);
	(void)sem_destroy(&p->held);
	(void)sem_destroy(&p->over);
}

#define PAUSE_COMMITS(l)                                    \
	SCOPED(commits_go_on)                               \
	struct commits_paused SCOPE_CAT(paused_, __LINE__); \
	commits_pause(&SCOPE_CAT(paused_, __LINE__), l)

/*
 * Nobody is in the middle of a job: its end is seen before those who worked on
 * it have let go of its stage, its image and its inode. Workers have when they
 * have ended, the committer when it gives its lock up. Waits for what may
 * start; one thread at a time.
 */
static inline void live_quiet(struct live *l)
{
	drain_stop(l->st->drain);
	assert_int_equal(drain_start(l->st->drain), 0);
	HOLD(reclaim_deciding(l->st->reclaim));
}

/* All is durable, and what followed from that has happened. */
static inline void live_sync_all(struct live *l)
{
	assert_int_equal(drain_sync_tree(l->st->drain, ROOT_INO), 0);
	assert_int_equal(drain_wait_drained(l->st->drain), 0);
	live_quiet(l);
}

/* Write a whole file and close it; it is queued then. */
static inline void live_write(struct live *l, const char *path,
			      const void *data, size_t len)
{
	struct handle h = handle_open(l, path, O_WRONLY | O_CREAT | O_TRUNC);

	if (len > 0)
		handle_write(&h, data, len, 0);
	handle_close(&h);
}

/* Durable and not staged: the next open finds committed content. */
static inline struct live live_durable(unsigned kind, const char *path,
				       const void *data, size_t len)
{
	struct live l = live_kind(kind);

	live_write(&l, path, data, len);
	live_reopen(&l);
	return l;
}

/* The file has exactly these bytes. */
static inline void assert_handle_bytes(struct handle *h, const void *data,
				       size_t len)
{
	uint8_t *got = malloc(len + 2);
	size_t done = 0;
	ssize_t n;

	assert_non_null(got);
	while ((n = handle_read(h, got + done, len + 1 - done, done)) > 0)
		done += (size_t)n;
	assert_int_equal(n, 0);
	assert_int_equal(done, len);
	if (len > 0)
		assert_memory_equal(got, data, len);
	free(got);
}

static inline void assert_file(struct live *l, const char *path,
			       const void *data, size_t len)
{
	struct handle h = handle_open(l, path, O_RDONLY);
	struct stat sb;

	assert_int_equal(inode_stat(l->st->inodes, h.in, &sb), 0);
	assert_int_equal(sb.st_size, len);
	assert_handle_bytes(&h, data, len);
	handle_release(&h);
}

static inline void assert_absent(struct live *l, const char *path)
{
	struct inode *in;

	assert_int_equal(live_lookup(l, path, &in), -ENOENT);
}

/* --- what the database says --------------------------------------------------
 */

/* Descriptors that this process has open. */
static inline unsigned open_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	assert_non_null(dir);
	while (readdir(dir) != NULL)
		n++;
	closedir(dir);
	return n;
}

static inline bool live_has(struct live *l, struct key k)
{
	void *value;
	size_t len;
	int rc = kv_get(l->st->kv, k.data, k.len, &value, &len);

	if (rc == 0)
		free(value);
	else
		assert_int_equal(rc, -ENOENT);
	return rc == 0;
}

static inline bool committed(struct live *l, uint64_t ino)
{
	return live_has(l, key_ino('F', ino));
}

/* The committed content of an inode: content_release() it. */
static inline struct content live_content_ino(struct live *l, uint64_t ino)
{
	struct key k = key_ino('F', ino);
	struct content c = { 0 };
	void *value = NULL;
	size_t len;

	assert_int_equal(kv_get(l->st->kv, k.data, k.len, &value, &len), 0);
	assert_int_equal(content_decode(value, len, &c), 0);
	free(value);
	return c;
}

/* What a power cut now would leave of the file; 0: nothing. */
static inline size_t committed_size(struct live *l, const char *path)
{
	uint64_t ino = live_ino(l, path);
	struct content c;
	size_t len;

	if (!committed(l, ino))
		return 0;
	c = live_content_ino(l, ino);
	len = (size_t)c.size_bytes;
	content_release(&c);
	return len;
}

static inline struct content live_content(struct live *l, const char *path)
{
	return live_content_ino(l, live_ino(l, path));
}

static inline bool live_native(struct live *l, const char *path)
{
	struct content c = live_content(l, path);
	bool native = c.native;

	content_release(&c);
	return native;
}

static inline uint64_t live_generation(struct live *l, const char *path)
{
	struct content c = live_content(l, path);
	uint64_t generation = c.generation;

	content_release(&c);
	return generation;
}

static inline uint64_t live_counter(struct live *l, const char *name)
{
	uint64_t v = 0;

	assert_int_equal(store_counter(l->st, name, &v), 0);
	return v;
}

/* Records of this kind. */
static inline unsigned live_records(struct live *l, char kind)
{
	struct kv_slice key, value;
	struct kv_iter *it;
	unsigned n = 0;
	int rc;

	assert_int_equal(kv_iter_new(l->st->kv, &kind, 1, NULL, 0, &it), 0);
	while ((rc = kv_iter_next(it, &key, &value)) == 1)
		n++;
	kv_iter_free(it);
	assert_int_equal(rc, 0);
	return n;
}

/* Until every deletion is committed and its bytes are given back. */
static inline void live_settle(struct live *l)
{
	uint64_t freed;

	live_quiet(l);
	commit_wait(l->st->drain);
	reclaim_drain(l->st->reclaim, &freed);
}

/* Image files that hold something, and the bytes that they take of the disk. */
struct live_images {
	unsigned count;
	uint64_t bytes;
};

static inline struct live_images live_images(struct live *l)
{
	struct live_images sum = { 0 };

	for (unsigned x = 0; x < 256; x++) {
		char path[4096];
		struct dirent *d;
		struct stat sb;
		DIR *dir;

		(void)snprintf(path, sizeof(path),
			       "%s/" LAYOUT_IMAGE_DIR "/%02x", l->path, x);
		dir = opendir(path);
		assert_non_null(dir);
		while ((d = readdir(dir)) != NULL) {
			if (d->d_name[0] == '.')
				continue;
			/*
			 * Another thread may just have removed it; empty ones
			 * are kept to be used again.
			 */
			if (fstatat(dirfd(dir), d->d_name, &sb, 0) < 0 ||
			    sb.st_size == 0)
				continue;
			sum.count++;
			sum.bytes += (uint64_t)sb.st_blocks * 512;
		}
		closedir(dir);
	}
	return sum;
}

/* --- bytes
 * -------------------------------------------------------------------- */

/* The same seed gives the same bytes; no two chunks of them are alike. */
static inline void fill(void *buf, size_t len, uint64_t seed)
{
	uint64_t x = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
	uint8_t *p = buf;

	for (size_t i = 0; i < len; i += sizeof(x)) {
		size_t n = len - i < sizeof(x) ? len - i : sizeof(x);

		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		memcpy(p + i, &x, n);
	}
}

static inline uint8_t *filled(size_t len, uint64_t seed)
{
	uint8_t *p = malloc(len);

	assert_non_null(p);
	fill(p, len, seed);
	return p;
}

struct payload {
	uint64_t seed;
	size_t len;
};

/*
 * A safetensors file: `pad` more bytes in its header move every payload. The
 * caller frees it.
 */
static inline uint8_t *safetensors(const struct payload *t, size_t count,
				   size_t pad, size_t *ret_len)
{
	size_t payload = 0, at = 8, header_max = 256 + pad + count * 128;
	uint8_t *file;

	for (size_t i = 0; i < count; i++)
		payload += t[i].len;
	file = malloc(header_max + payload);
	assert_non_null(file);
	at += (size_t)sprintf((char *)file + at,
			      "{\"__metadata__\":{\"pad\":\"%*s\"}", (int)pad,
			      "");
	payload = 0;
	for (size_t i = 0; i < count; i++) {
		at += (size_t)sprintf((char *)file + at,
				      ",\"t%zu\":{\"dtype\":\"U8\",\"shape\":"
				      "[%zu],\"data_offsets\":[%zu,%zu]}",
				      i, t[i].len, payload, payload + t[i].len);
		payload += t[i].len;
	}
	file[at++] = '}';
	for (unsigned i = 0; i < 8; i++)
		file[i] = (uint8_t)((uint64_t)(at - 8) >> (8 * i));
	assert_true(at <= header_max);
	for (size_t i = 0; i < count; i++) {
		fill(file + at, t[i].len, t[i].seed);
		at += t[i].len;
	}
	*ret_len = at;
	return file;
}

/* --- children
 * ------------------------------------------------------------------ */

/*
 * Run this program as `PROGRAM child NAME STORE STAGE [ARGUMENT]`, which must
 * exit with 0. main() hands that to live_child_main().
 */
static inline void live_child(struct live *l, const char *name,
			      const char *argument)
{
	char self[] = "/proc/self/exe", child[] = "child";
	char *copy = strdup(name), *last = strdup(argument ? argument : "");
	char *argv[] = { self, child, copy, l->path, l->stage, last, NULL };
	int status;
	pid_t pid;

	assert_int_equal(posix_spawn(&pid, self, NULL, NULL, argv, environ), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	free(copy);
	free(last);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		fail_msg("child %s ended with status %#x", name,
			 (unsigned)status);
}

struct live_child_entry {
	const char *name;
	/* Does not return, or returns when the daemon is to end at once. */
	void (*run)(struct live *l, const char *argument);
};

static inline int live_child_main(int argc, char **argv,
				  const struct live_child_entry *entries,
				  size_t count)
{
	for (size_t i = 0; argc == 6 && i < count; i++) {
		struct live l = { .path = argv[3], .stage = argv[4] };

		if (strcmp(argv[2], entries[i].name) != 0)
			continue;
		log_set_level(LOG_CRIT);
		l.options = live_options();
		entries[i].run(&l, argv[5]);
		_exit(0); /* as kill -9 would end it */
	}
	return 2;
}

#endif
