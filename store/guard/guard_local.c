/*
 * guard_local.c - the store's own names and files, staged or durable, as the
 * guard walks through them. A number is an inode's, which is never used again,
 * so nothing has to be held.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/file/file.h"
#include "store/guard/guard.h"
#include "store/guard/guard_table.h"
#include "store/names/names.h"

#define PIECE_BYTES ((size_t)1 << 20)

struct opened {
	struct guard_uses *use;
	struct inode *in; /* a reference */
	int memory; /* what is read goes through this */
};

static int local_find(void *self, uint64_t parent, const char *name,
		      uint64_t *ret_id)
{
	struct guard_uses *use = self;
	struct inode *in;
	int rc = names_lookup(use->names, parent, name, &in);

	if (rc < 0)
		return rc;
	*ret_id = in->ino;
	inode_put(use->inodes, in, 1);
	return 0;
}

static int local_attr(void *self, uint64_t id, struct guard_attr *ret)
{
	struct guard_uses *use = self;
	struct inode *in;
	struct stat sb;
	struct attr a;
	int rc = inode_get(use->inodes, id, &in);

	if (rc < 0)
		return rc;
	a = inode_attr(in);
	rc = inode_stat(use->inodes, in, &sb);
	inode_put(use->inodes, in, 1);
	if (rc < 0)
		return rc;
	*ret = (struct guard_attr){ .parent = a.parent,
				    .number = id,
				    .mode = a.mode,
				    .nlink = a.nlink,
				    .uid = a.uid,
				    .size_bytes = (uint64_t)sb.st_size,
				    .mtime_ns = io_ns(&sb.st_mtim) };
	strcpy(ret->name, a.name);
	return 0;
}

struct listing {
	int (*fn)(void *arg, const char *name, uint32_t type, uint64_t number);
	void *arg;
};

static int list_one(void *arg, const char *name, const struct dirent_rec *entry,
		    uint64_t cookie)
{
	const struct listing *l = arg;

	(void)cookie;
	return l->fn(l->arg, name, entry->type, entry->ino);
}

static int local_list(void *self, uint64_t dir,
		      int (*fn)(void *arg, const char *name, uint32_t type,
				uint64_t number),
		      void *arg)
{
	struct guard_uses *use = self;
	struct listing l = { fn, arg };

	return names_list(use->names, dir, 0, list_one, &l);
}

static int local_target(void *self, uint64_t id, struct bytes *out)
{
	struct guard_uses *use = self;
	struct inode *in;
	int rc = inode_get(use->inodes, id, &in);
	const char *target;

	if (rc < 0)
		return rc;
	target = inode_attr(in).target;
	if (target)
		bytes_put(out, target, strlen(target));
	inode_put(use->inodes, in, 1);
	return !target ? -EINVAL : out->failed ? -ENOMEM : 0;
}

/*
 * The pieces may be mappings of files that somebody cuts short meanwhile:
 * system calls alone may touch them (see file_read), so they go through a file
 * in memory.
 */
static int read_piece(struct opened *o, void *buf, size_t len, uint64_t off,
		      size_t *ret_len)
{
	struct file_read r;
	size_t got = 0;
	int rc = file_read_begin(o->use->files, o->in, len, off, &r);

	for (int i = 0; rc == 0 && i < r.count; i++) {
		rc = io_write_full(o->memory, r.iov[i].iov_base,
				   r.iov[i].iov_len, got);
		got += r.iov[i].iov_len;
	}
	if (rc == -EFAULT)
		rc = file_read_failed(o->use->files, o->in, &r, len, off);
	file_read_end(o->use->files, &r);
	*ret_len = got;
	return rc == 0 ? io_read_full(o->memory, buf, got, 0) : rc;
}

/* Exactly those bytes. -ESTALE: it ends before. */
static int source_read(void *self, void *buf, size_t len, uint64_t off)
{
	struct opened *o = self;
	uint8_t *at = buf;
	int rc = 0;

	while (rc == 0 && len > 0) {
		size_t got = 0;

		rc = read_piece(o, at, len < PIECE_BYTES ? len : PIECE_BYTES,
				off, &got);
		if (rc == 0 && got == 0)
			rc = -ESTALE;
		at += got;
		off += got;
		len -= got;
	}
	return rc;
}

static int local_open(void *self, uint64_t id, struct cut_source *ret)
{
	SCOPED(scope_free) struct opened *o = malloc(sizeof(*o));
	struct guard_uses *use = self;
	struct inode *in;
	struct stat sb;
	int rc = o ? inode_get(use->inodes, id, &in) : -ENOMEM;

	if (rc < 0)
		return rc;
	rc = inode_stat(use->inodes, in, &sb);
	if (rc == 0 && !S_ISREG(sb.st_mode))
		rc = -EINVAL;
	if (rc == 0) {
		*o = (struct opened){ use, in,
				      memfd_create("ckptfs", MFD_CLOEXEC) };
		rc = o->memory < 0 ? -errno : 0;
	}
	if (rc < 0) {
		inode_put(use->inodes, in, 1);
		return rc;
	}
	*ret = (struct cut_source){ source_read, TAKE(o),
				    (uint64_t)sb.st_size };
	return 0;
}

static void local_close(void *self, struct cut_source *source)
{
	struct opened *o = source->self;

	(void)self;
	(void)close(o->memory);
	inode_put(o->use->inodes, o->in, 1);
	free(o);
}

static bool local_is_cached(void *self, uint64_t id)
{
	struct guard_uses *use = self;
	struct inode *in;
	bool cached = false;

	if (inode_get(use->inodes, id, &in) < 0)
		return false;
	{
		HOLD(&in->lock);
		cached = in->file && in->file->state.mode == IO_DAEMON &&
			 in->file->state.writers > 0;
	}
	inode_put(use->inodes, in, 1);
	return cached;
}

static void local_write_back(void *self, uint64_t id)
{
	const struct kernel_hooks *k =
		&((struct guard_uses *)self)->files->kernel;

	if (k->write_back)
		k->write_back(k->arg, id);
}

static bool local_digest(void *self, uint64_t id, uint64_t *ret_bytes,
			 uint8_t ret[HASH_BYTES])
{
	struct guard_uses *use = self;
	struct inode *in;
	bool known = false;

	if (inode_get(use->inodes, id, &in) < 0)
		return false;
	if (inode_load_file(use->inodes, in) == 0) {
		HOLD(&in->lock);
		known = in->file->content && !file_is_dirty(in->file);
		if (known) {
			*ret_bytes = in->file->content->c.size_bytes;
			memcpy(ret, in->file->content->c.digest, HASH_BYTES);
		}
	}
	inode_put(use->inodes, in, 1);
	return known;
}

static uint32_t local_world(void *self, uint64_t id)
{
	struct guard_uses *use = self;
	struct writer w = { .world_size = 0 };

	return names_get_writer(use->names, id, &w) < 0 ? 0 : w.world_size;
}

static int local_getxattr(void *self, uint64_t id, const char *name,
			  void **ret_value, size_t *ret_len)
{
	struct guard_uses *use = self;

	return names_getxattr(use->names, id, name, ret_value, ret_len);
}

static int local_setxattr(void *self, uint64_t id, const char *name,
			  const void *value, size_t len)
{
	struct guard_uses *use = self;
	struct inode *in;
	int rc = inode_get(use->inodes, id, &in);

	if (rc < 0)
		return rc;
	rc = names_setxattr(use->names, in, name, value, len, 0);
	inode_put(use->inodes, in, 1);
	return rc;
}

static int local_removexattr(void *self, uint64_t id, const char *name)
{
	struct guard_uses *use = self;
	struct inode *in;
	int rc = inode_get(use->inodes, id, &in);

	if (rc < 0)
		return rc;
	rc = names_removexattr(use->names, in, name);
	inode_put(use->inodes, in, 1);
	return rc;
}

static void local_path(void *self, uint64_t id, char *buf, size_t size)
{
	struct guard_uses *use = self;
	struct inode *in;

	(void)snprintf(buf, size, "?");
	if (inode_get(use->inodes, id, &in) < 0)
		return;
	inode_path(use->inodes, in, buf, size);
	inode_put(use->inodes, in, 1);
}

static int local_replaced(void *self, uint64_t id, void *buf, size_t size,
			  size_t *ret_len)
{
	(void)self;
	(void)id;
	(void)buf;
	(void)size;
	(void)ret_len;
	return -ENODATA;
}

static bool local_undo(void *self, uint64_t id)
{
	(void)self;
	(void)id;
	return false;
}

void guard_local_table(struct guard_uses *use, struct guard_table *ret)
{
	*ret = (struct guard_table){ .self = use,
				     .find = local_find,
				     .attr = local_attr,
				     .list = local_list,
				     .target = local_target,
				     .open = local_open,
				     .close = local_close,
				     .is_cached = local_is_cached,
				     .write_back = local_write_back,
				     .digest = local_digest,
				     .world = local_world,
				     .getxattr = local_getxattr,
				     .setxattr = local_setxattr,
				     .removexattr = local_removexattr,
				     .path = local_path,
				     .replaced = local_replaced,
				     .undo = local_undo };
}
