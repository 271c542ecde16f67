/*
 * steps.c - the tree as the guard walks through it (guard_table.h): names and
 * attributes are DIR's, the bytes of what was written here come from here,
 * those of whole files of others from DIR. What another node has still is
 * there, with its size once that is known, and is not waited for.
 *
 * A number is held by a reference to its node, and of a local file by a look-up
 * of its inode, too: its bytes stay when the copy is given up meanwhile.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/file/file.h"
#include "store/guard/guard.h"
#include "store/names/names.h"
#include "store/shared/shared_private.h"

/* A local copy is given up between a look-up and the hold that follows. */
#define FIND_TRIES 8
#define TARGET_BYTES 4096

static const struct guard_table *local_of(const struct shared *s)
{
	return &s->local_table;
}

/* --- what is held --- */

static int steps_hold(void *self, uint64_t id)
{
	struct shared *s = self;
	struct node *n = node_get(s, id);

	if (!n)
		return -ESTALE;
	if (n->in) {
		inode_ref(n->in, 1);
		inode_remember(s->st->inodes, n->in);
	}
	return 0;
}

static void give_look_up_back(struct shared *s, struct inode *in)
{
	inode_forget(s->st->inodes, in, 1);
	file_forgotten(&s->st->files, in);
	inode_put(s->st->inodes, in, 1);
}

static void steps_put(void *self, uint64_t id)
{
	struct shared *s = self;
	struct node *n = node_get(s, id);

	CHECK(n); /* it was held */
	if (n->in)
		give_look_up_back(s, n->in);
	node_put(s, n);
	node_put(s, n);
}

/* shared_lookup() has given it a look-up, which the kernel is not told of. */
static void forget_looked_up(struct shared *s, uint64_t id)
{
	struct inode *in;

	if (shared_is_node(id)) {
		shared_forget(s, id, 1);
		return;
	}
	in = inode_peek(s->st->inodes, id);
	if (!in)
		return;
	give_look_up_back(s, in);
	inode_put(s->st->inodes, in, 1);
}

static int steps_find(void *self, uint64_t parent, const char *name,
		      uint64_t *ret_id)
{
	struct shared *s = self;
	struct shared_entry e;
	int rc = -ESTALE;

	for (unsigned tries = 0; rc == -ESTALE && tries < FIND_TRIES; tries++) {
		rc = shared_lookup(s, parent, name, SHARED_NOBODY, &e);
		if (rc < 0)
			return rc;
		rc = steps_hold(s, e.id);
		forget_looked_up(s, e.id);
	}
	if (rc == 0)
		*ret_id = e.id;
	return rc;
}

/* --- attributes --- */

/* DIR's; *ret_elsewhere: it is pending on another node. */
static int stat_dir(struct shared *s, struct node *n, struct stat *sb,
		    bool *ret_elsewhere, bool *ret_size_known)
{
	SCOPED(scope_close) int fd = -1;
	int rc = node_fd(s, n, &fd);

	*ret_elsewhere = false;
	*ret_size_known = true;
	if (rc < 0)
		return rc;
	if (fstat(fd, sb) < 0)
		return -errno;
	if (!pending_is(s, sb))
		return 0;
	*ret_elsewhere = true;
	*ret_size_known = sb->st_size > 0;
	pending_show(s, sb);
	return 0;
}

static void set_name(struct shared *s, const struct node *n,
		     struct guard_attr *ret)
{
	HOLD(&s->lock);
	ret->parent = n->parent ? n->parent->id : 0;
	(void)snprintf(ret->name, sizeof(ret->name), "%s",
		       n->name ? n->name : "");
	if (n->in)
		ret->number = n->engine ? n->engine : n->id;
}

static int steps_attr(void *self, uint64_t id, struct guard_attr *ret)
{
	SCOPED(node_use_end) struct node_use u = { 0 };
	bool elsewhere, size_known = true;
	struct shared *s = self;
	struct stat sb;
	int rc = node_use(s, id, &u);

	if (rc < 0)
		return rc;
	if (u.n->in)
		rc = inode_stat(s->st->inodes, u.n->in, &sb);
	else
		rc = stat_dir(s, u.n, &sb, &elsewhere, &size_known);
	if (rc < 0)
		return rc;
	*ret = (struct guard_attr){
		.number = sb.st_ino,
		.mode = sb.st_mode,
		/* Here it has one name, and loses it when it is given up. */
		.nlink = u.n->in ? 1 : (uint32_t)sb.st_nlink,
		.uid = sb.st_uid,
		.size_bytes =
			size_known ? (uint64_t)sb.st_size : GUARD_SIZE_UNKNOWN,
		.mtime_ns = io_ns(&sb.st_mtim),
	};
	/* Of a file some of DIR's kind keep whole seconds. */
	if (S_ISREG(sb.st_mode))
		ret->mtime_ns -= sb.st_mtim.tv_nsec;
	set_name(s, u.n, ret);
	return 0;
}

static int list_entries(struct shared *s, uint64_t dir, DIR *d,
			int (*fn)(void *arg, const char *name, uint32_t type,
				  uint64_t number),
			void *arg)
{
	struct dirent *e;
	int rc = 0;

	while (rc == 0 && (errno = 0, e = readdir(d))) {
		uint32_t type = (uint32_t)DTTOIF(e->d_type);
		struct stat sb;

		if (strcmp(e->d_name, ".") == 0 ||
		    strcmp(e->d_name, "..") == 0 ||
		    shared_is_hidden(s, dir, e->d_name))
			continue;
		if (e->d_type == DT_UNKNOWN) {
			if (fstatat(dirfd(d), e->d_name, &sb,
				    AT_SYMLINK_NOFOLLOW) < 0)
				continue; /* deleted since it was listed */
			type = sb.st_mode & S_IFMT;
		}
		rc = fn(arg, e->d_name, type, e->d_ino);
	}
	return rc == 0 && !e && errno != 0 ? -errno : rc;
}

static int steps_list(void *self, uint64_t dir,
		      int (*fn)(void *arg, const char *name, uint32_t type,
				uint64_t number),
		      void *arg)
{
	struct shared *s = self;
	int fd = -1, rc = shared_opendir(s, dir, &fd);
	DIR *d;

	if (rc < 0)
		return rc;
	d = fdopendir(fd);
	if (!d) {
		rc = -errno;
		(void)close(fd);
		return rc;
	}
	rc = list_entries(s, dir, d, fn, arg);
	(void)closedir(d);
	return rc;
}

static int steps_target(void *self, uint64_t id, struct bytes *out)
{
	char target[TARGET_BYTES + 1];
	int rc = shared_readlink(self, id, target, sizeof(target));

	if (rc == 0)
		bytes_put(out, target, strlen(target));
	return rc == 0 && out->failed ? -ENOMEM : rc;
}

/* --- bytes --- */

static int read_dir_file(void *self, void *buf, size_t len, uint64_t off)
{
	return io_read_full(*(int *)self, buf, len, off);
}

static int open_dir_file(struct shared *s, struct node *n,
			 struct cut_source *ret)
{
	SCOPED(scope_close) int path = -1, fd = -1;
	SCOPED(scope_free) int *own = malloc(sizeof(*own));
	struct stat sb;
	int rc = own ? node_fd(s, n, &path) : -ENOMEM;

	if (rc < 0)
		return rc;
	if (fstat(path, &sb) < 0)
		return -errno;
	if (!S_ISREG(sb.st_mode))
		return -EINVAL;
	if (pending_is(s, &sb))
		return -EINPROGRESS;
	fd = node_reopen(path, O_RDONLY);
	if (fd < 0)
		return fd;
	if (fstat(fd, &sb) < 0)
		return -errno;
	*own = fd;
	fd = -1;
	*ret = (struct cut_source){ read_dir_file, TAKE(own),
				    (uint64_t)sb.st_size };
	return 0;
}

static int steps_open(void *self, uint64_t id, struct cut_source *ret)
{
	SCOPED(node_use_end) struct node_use u = { 0 };
	struct shared *s = self;
	int rc = node_use(s, id, &u);

	if (rc < 0)
		return rc;
	return u.n->in ? local_of(s)->open(local_of(s)->self, id, ret)
		       : open_dir_file(s, u.n, ret);
}

static void steps_close(void *self, struct cut_source *source)
{
	struct shared *s = self;

	if (source->read != read_dir_file) {
		local_of(s)->close(local_of(s)->self, source);
		return;
	}
	(void)close(*(int *)source->self);
	free(source->self);
}

static bool steps_digest(void *self, uint64_t id, uint64_t *ret_bytes,
			 uint8_t ret[HASH_BYTES])
{
	const struct guard_table *local = local_of(self);

	/* A digest of a whole file in DIR would have to be read for. */
	return !shared_is_node(id) &&
	       local->digest(local->self, id, ret_bytes, ret);
}

static uint32_t steps_world(void *self, uint64_t id)
{
	const struct guard_table *local = local_of(self);

	return shared_is_node(id) ? 0 : local->world(local->self, id);
}

/* --- extended attributes, which are DIR's, so that all nodes have them --- */

static int steps_getxattr(void *self, uint64_t id, const char *name,
			  void **ret_value, size_t *ret_len)
{
	SCOPED(scope_close) int fd = -1;
	SCOPED(scope_free) char *value = malloc(XATTR_VALUE_MAX);
	char path[SHARED_PATH_BYTES];
	int rc = value ? shared_path(self, id, &fd, path) : -ENOMEM;
	ssize_t n;

	if (rc < 0)
		return rc;
	n = getxattr(path, name, value, XATTR_VALUE_MAX);
	if (n < 0)
		return errno == EOPNOTSUPP ? -ENODATA : -errno;
	*ret_value = TAKE(value);
	*ret_len = (size_t)n;
	return 0;
}

static int steps_setxattr(void *self, uint64_t id, const char *name,
			  const void *value, size_t len)
{
	SCOPED(scope_close) int fd = -1;
	char path[SHARED_PATH_BYTES];
	int rc = shared_path(self, id, &fd, path);

	return rc == 0 && setxattr(path, name, value, len, 0) < 0 ? -errno : rc;
}

static int steps_removexattr(void *self, uint64_t id, const char *name)
{
	SCOPED(scope_close) int fd = -1;
	char path[SHARED_PATH_BYTES];
	int rc = shared_path(self, id, &fd, path);

	return rc == 0 && removexattr(path, name) < 0 ? -errno : rc;
}

static void steps_path(void *self, uint64_t id, char *buf, size_t size)
{
	SCOPED(node_use_end) struct node_use u = { 0 };
	struct shared *s = self;

	(void)snprintf(buf, size, "/");
	if (node_use(s, id, &u) == 0)
		node_path(s, u.n, buf + 1, size - 1);
}

/* --- a tracker that replaces another one --- */

static int read_small(int fd, void *buf, size_t size, size_t *ret_len)
{
	struct stat sb;

	if (fstat(fd, &sb) < 0)
		return -errno;
	if (!S_ISREG(sb.st_mode))
		return -ENODATA;
	if ((uint64_t)sb.st_size > size)
		return -EFBIG;
	*ret_len = (size_t)sb.st_size;
	return io_read_full(fd, buf, *ret_len, 0);
}

static int steps_replaced(void *self, uint64_t id, void *buf, size_t size,
			  size_t *ret_len)
{
	SCOPED(node_use_end) struct node_use u = { 0 }, parent = { 0 };
	SCOPED(scope_close) int dirfd = -1, fd = -1;
	char name[STORE_NAME_MAX + 1];
	struct shared *s = self;
	struct stat sb;
	int rc = node_use(s, id, &u);

	if (rc < 0)
		return rc;
	{
		HOLD(&s->lock);
		if (!u.n->ticket)
			return -ENODATA;
		parent = (struct node_use){ s, node_ref_locked(u.n->parent) };
		(void)snprintf(name, sizeof(name), "%s", u.n->name);
	}
	rc = node_fd(s, parent.n, &dirfd);
	if (rc < 0)
		return rc;
	fd = openat(dirfd, name,
		    O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &sb) == 0 && pending_is(s, &sb))
		return -ENODATA;
	return read_small(fd, buf, size, ret_len);
}

static bool steps_undo(void *self, uint64_t id)
{
	SCOPED(node_use_end) struct node_use u = { 0 };
	struct shared *s = self;

	return node_use(s, id, &u) == 0 && u.n->in && replace_drop(s, u.n);
}

void steps_begin(struct shared *s)
{
	const struct guard_table table = { .self = s,
					   .hangs = true,
					   .find = steps_find,
					   .hold = steps_hold,
					   .put = steps_put,
					   .attr = steps_attr,
					   .list = steps_list,
					   .target = steps_target,
					   .open = steps_open,
					   .close = steps_close,
					   .digest = steps_digest,
					   .world = steps_world,
					   .getxattr = steps_getxattr,
					   .setxattr = steps_setxattr,
					   .removexattr = steps_removexattr,
					   .path = steps_path,
					   .replaced = steps_replaced,
					   .undo = steps_undo };

	s->local_table = *guard_table(s->st->guard);
	guard_set_table(s->st->guard, &table);
}
