/*
 * live_files.h - names and open files of a store without a mount: what the
 * kernel does for a mount is done here. A file is reached by its path from the
 * root.
 *
 * With `passthrough` a handle reads and writes the descriptor that backs it.
 * Without, the bytes go through file_read_begin() and file_write().
 */
#ifndef TESTS_UNIT_LIVE_FILES_H
#define TESTS_UNIT_LIVE_FILES_H

#include "store/file/file.h"
#include "store/names/names.h"
#include "tests/unit/live_life.h"

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

static inline uint32_t links_of(struct live *l, const char *path)
{
	struct inode *in = NULL;
	struct stat sb;

	assert_int_equal(live_lookup(l, path, &in), 0);
	assert_int_equal(inode_stat(l->st->inodes, in, &sb), 0);
	inode_put(l->st->inodes, in, 1);
	return (uint32_t)sb.st_nlink;
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
				  to_name, flags, false, &replaced);
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

/* --- open files --- */

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
	rc = file_open_for(&l->st->files, in, flags,
			   &(struct file_opener){ .way = FILE_BY_NAME },
			   &opened);
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

#endif
