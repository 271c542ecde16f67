/* names.c - see names.h. */
#include "store/names/names.h"

#include <errno.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#include "store/base/io.h"
#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/db/kv.h"
#include "store/drain/drain.h"

#define LINKS_MAX 65000

#define RESERVED_INODES_MAX 64

struct names {
	struct kv *kv;
	struct inode_table *inodes;
	struct names_hooks hooks;
	/*
	 * Held while a change of names or attributes is put together and
	 * written: a directory's record is changed by what happens in it and
	 * by its own rename, which the kernel does not serialise. Taken before
	 * any inode.lock; the committer never takes it.
	 */
	struct lock changing;
	/*
	 * The last inodes that renumbering made, a reference each, so that they
	 * remember for whom they are reserved until he comes. changing
	 */
	struct inode *reserved[RESERVED_INODES_MAX];
	unsigned reserved_next;
};

int names_new(struct kv *kv, struct inode_table *inodes,
	      const struct names_hooks *hooks, struct names **ret_names)
{
	struct names *nm = calloc(1, sizeof(*nm));

	if (!nm)
		return -ENOMEM;
	nm->kv = kv;
	nm->inodes = inodes;
	nm->hooks = *hooks;
	lock_init(&nm->changing, LOCK_NAMES_CHANGING);
	*ret_names = nm;
	return 0;
}

void names_free(struct names *nm)
{
	if (!nm)
		return;
	for (unsigned i = 0; i < RESERVED_INODES_MAX; i++)
		inode_put(nm->inodes, nm->reserved[i], 1);
	lock_destroy(&nm->changing);
	free(nm);
}

struct lock *names_changing(struct names *nm)
{
	return &nm->changing;
}

static struct attr inode_attr(struct inode *in)
{
	HOLD(&in->lock);
	return in->attr; /* target stays the inode's: do not release */
}

static int dirent_get(struct names *nm, uint64_t parent, const char *name,
		      struct dirent_rec *ret)
{
	SCOPED(scope_free) void *value = NULL;
	struct key k;
	size_t len;
	int rc;

	if (strlen(name) > STORE_NAME_MAX)
		return -ENAMETOOLONG;
	k = key_dirent(parent, name_hash(name), name);
	rc = kv_get(nm->kv, k.data, k.len, &value, &len);
	if (rc < 0)
		return rc;
	rc = dirent_decode(value, len, ret);
	if (rc < 0)
		log_error("name %s in inode %llu: damaged entry: run ckptctl "
			  "fsck",
			  name, (unsigned long long)parent);
	return rc;
}

static void dirent_put(struct kv_batch *b, uint64_t parent, const char *name,
		       uint64_t ino, uint32_t mode)
{
	struct dirent_rec d = { .ino = ino, .type = mode & S_IFMT };
	struct key k = key_dirent(parent, name_hash(name), name);
	struct bytes value = { 0 };

	dirent_encode(&d, &value);
	CHECK(!value.failed);
	kv_put(b, k.data, k.len, value.data, value.len);
	bytes_release(&value);
}

static void dirent_delete(struct kv_batch *b, uint64_t parent, const char *name)
{
	struct key k = key_dirent(parent, name_hash(name), name);

	kv_delete(b, k.data, k.len);
}

static void mark(struct kv_batch *b, char kind, uint64_t ino)
{
	struct key k = key_ino(kind, ino);

	kv_put(b, k.data, k.len, "", 0);
}

static void count(struct kv_batch *b, const char *name, int64_t delta)
{
	struct key k = key_meta(name);

	kv_add(b, k.data, k.len, delta);
}

/* Into b: a writer of whom nothing is known has no record. */
static void writer_put(struct kv_batch *b, uint64_t ino, const struct writer *w)
{
	struct key k = key_ino('W', ino);
	struct bytes value = { 0 };

	if (w->source == WRITER_NOWHERE && !w->host[0] && !w->job[0]) {
		kv_delete(b, k.data, k.len);
		return;
	}
	writer_encode(w, &value);
	CHECK(!value.failed);
	kv_put(b, k.data, k.len, value.data, value.len);
	bytes_release(&value);
}

static bool has_name(struct inode *in)
{
	HOLD(&in->lock);
	return in->attr.nlink > 0;
}

/*
 * Without names.changing the name may be gone by the time its inode is read,
 * and the inode with it, or be about to be deleted. Then the name is read once
 * more: an inode that it still leads to is in nobody's way.
 */
int names_lookup(struct names *nm, uint64_t parent, const char *name,
		 struct inode **ret_inode)
{
	uint64_t before = 0;

	for (;;) {
		struct dirent_rec d;
		int rc = dirent_get(nm, parent, name, &d);

		if (rc < 0)
			return rc;
		rc = inode_get(nm->inodes, d.ino, ret_inode);
		if (rc == 0 && (d.ino == before || has_name(*ret_inode)))
			return 0;
		if (rc == 0)
			inode_put(nm->inodes, *ret_inode, 1);
		*ret_inode = NULL;
		if (rc < 0 && rc != -ENOENT)
			return rc;
		if (rc == -ENOENT && d.ino == before) {
			log_error("name %s in inode %llu leads nowhere: run "
				  "ckptctl fsck",
				  name, (unsigned long long)parent);
			return -EIO;
		}
		before = d.ino;
	}
}

/*
 * What the inodes of a batch become once it is written. Not before: a full
 * disk refuses the batch, and then nothing has changed; and nobody may see
 * an inode without a name while the name can still be read. names.changing is
 * held, as by everybody who changes attributes.
 */
#define CHANGED_INODES_MAX 4
struct changed {
	struct inode *in[CHANGED_INODES_MAX]; /* the caller's references */
	struct attr attr[CHANGED_INODES_MAX];
	unsigned count;
};

/* To be changed by the caller; changed_write() puts it into the batch. */
static struct attr *changed_attr(struct changed *c, struct inode *in)
{
	for (unsigned i = 0; i < c->count; i++)
		if (c->in[i] == in)
			return &c->attr[i];
	CHECK(c->count < CHANGED_INODES_MAX);
	c->in[c->count] = in;
	c->attr[c->count] = inode_attr(in);
	return &c->attr[c->count++];
}

static int changed_write(struct names *nm, struct kv_batch *b,
			 struct changed *c)
{
	int rc;

	for (unsigned i = 0; i < c->count; i++)
		inode_put_attr(b, c->in[i]->ino, &c->attr[i]);
	rc = kv_write(nm->kv, b);
	for (unsigned i = 0; rc == 0 && i < c->count; i++) {
		struct inode *in = c->in[i];

		HOLD(&in->lock);
		in->attr = c->attr[i];
	}
	return rc;
}

/* A directory after a name in it changed: times, and its subdirectories. */
static void touch(struct changed *c, struct inode *dir, int subdirs)
{
	struct attr *a = changed_attr(c, dir);

	a->mtime_ns = a->ctime_ns = wall_ns();
	a->nlink += (uint32_t)subdirs;
}

/* A directory that was removed takes no new names. */
static int dir_get(struct names *nm, uint64_t ino, struct inode **ret_dir)
{
	int rc = inode_get(nm->inodes, ino, ret_dir);

	return rc == 0 && !has_name(*ret_dir) ? -ENOENT : rc;
}

/*
 * The kernel's lock keeps others away from the name, but not a commit of a
 * segment, which comes by an ioctl. names.changing is held.
 */
static int names_create_check(struct names *nm, uint64_t parent,
			      const char *name, struct inode *dir)
{
	struct dirent_rec d;
	int rc = dirent_get(nm, parent, name, &d);

	if (rc != -ENOENT)
		return rc < 0 ? rc : -EEXIST;
	return has_name(dir) ? 0 : -ENOENT;
}

int names_create(struct names *nm, uint64_t parent, const char *name,
		 const struct names_new *n, struct inode **ret_inode)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	struct inode *in = NULL, *dir = NULL;
	struct changed c = { .count = 0 };
	struct dirent_rec d;
	struct attr a = { 0 };
	int rc;

	if (!b)
		return -ENOMEM;
	rc = dirent_get(nm, parent, name, &d);
	if (rc != -ENOENT)
		return rc < 0 ? rc : -EEXIST;
	rc = kv_room(nm->kv);
	if (rc < 0)
		return rc;
	rc = dir_get(nm, parent, &dir);
	if (rc < 0)
		goto out;
	a.mode = n->mode;
	a.uid = n->uid;
	a.gid = n->gid;
	a.rdev = n->rdev;
	a.nlink = S_ISDIR(n->mode) ? 2 : 1;
	a.atime_ns = a.mtime_ns = a.ctime_ns = wall_ns();
	a.parent = parent;
	strcpy(a.name, name);
	{
		HOLD(&dir->lock);
		if (dir->attr.mode & S_ISGID) {
			a.gid = dir->attr.gid;
			if (S_ISDIR(a.mode))
				a.mode |= S_ISGID;
		}
	}
	if (n->target) {
		a.target = strdup(n->target);
		if (!a.target) {
			rc = -ENOMEM;
			goto out;
		}
	}
	rc = inode_new(nm->inodes, &a, &in);
	if (rc < 0) {
		attr_release(&a);
		goto out;
	}
	if (S_ISREG(a.mode))
		rc = nm->hooks.prepare(nm->hooks.arg, in, n);
	if (rc < 0)
		goto out;
	{
		HOLD(&nm->changing);
		rc = names_create_check(nm, parent, name, dir);
		if (rc == 0) {
			dirent_put(b, parent, name, in->ino, a.mode);
			inode_put_attr(b, in->ino, &a);
			if (S_ISREG(a.mode)) {
				mark(b, 'U', in->ino);
				count(b, META_FILES, 1);
				if (n->writer)
					writer_put(b, in->ino, n->writer);
			}
			touch(&c, dir, S_ISDIR(a.mode) ? 1 : 0);
			rc = changed_write(nm, b, &c);
		}
	}
	if (rc < 0)
		goto unprepare;
	*ret_inode = in;
	in = NULL;
	goto out;
unprepare: /* it was never there: what prepare() gave it goes */
	if (S_ISREG(a.mode)) {
		{
			HOLD(&in->lock);
			in->attr.nlink = 0;
		}
		nm->hooks.unlinked(nm->hooks.arg, in);
	}
out:
	inode_put(nm->inodes, in, 1);
	inode_put(nm->inodes, dir, 1);
	return rc;
}

static void link_key_put(struct kv_batch *b, uint64_t ino, uint64_t parent,
			 const char *name)
{
	struct key k = key_link(ino, parent, name);

	kv_put(b, k.data, k.len, "", 0);
}

static void link_key_delete(struct kv_batch *b, uint64_t ino, uint64_t parent,
			    const char *name)
{
	struct key k = key_link(ino, parent, name);

	kv_delete(b, k.data, k.len);
}

int names_link(struct names *nm, struct inode *in, uint64_t parent,
	       const char *name)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	struct changed c = { .count = 0 };
	struct inode *dir = NULL;
	struct dirent_rec d;
	struct attr *a;
	int rc;

	if (!b)
		return -ENOMEM;
	HOLD(&nm->changing);
	rc = dirent_get(nm, parent, name, &d);
	if (rc != -ENOENT)
		return rc < 0 ? rc : -EEXIST;
	rc = kv_room(nm->kv);
	if (rc < 0)
		return rc;
	a = changed_attr(&c, in);
	rc = dir_get(nm, parent, &dir);
	if (rc == 0 && a->nlink == 0)
		rc = -ENOENT;
	if (rc == 0 && a->nlink >= LINKS_MAX)
		rc = -EMLINK;
	if (rc == 0) {
		a->nlink++;
		a->ctime_ns = wall_ns();
		dirent_put(b, parent, name, in->ino, a->mode);
		link_key_put(b, in->ino, parent, name);
		touch(&c, dir, 0);
		rc = changed_write(nm, b, &c);
	}
	inode_put(nm->inodes, dir, 1);
	return rc;
}

/* Some further name of ino: -ENOENT when it has none. */
static int link_first(struct names *nm, uint64_t ino, uint64_t *ret_parent,
		      char ret_name[STORE_NAME_MAX + 1])
{
	struct key k = key_ino('L', ino);
	struct kv_slice key, value;
	struct kv_iter *it;
	size_t len;
	int rc;

	rc = kv_iter_new(nm->kv, k.data, k.len, NULL, 0, &it);
	if (rc < 0)
		return rc;
	rc = kv_iter_next(it, &key, &value);
	if (rc == 1) {
		const uint8_t *p = key.data;

		len = key.len - (1 + 8 + 8);
		if (key.len <= 1 + 8 + 8 || len > STORE_NAME_MAX) {
			rc = -EIO;
		} else {
			*ret_parent = get_be64(p + 9);
			memcpy(ret_name, p + 17, len);
			ret_name[len] = 0;
			rc = 0;
		}
	} else if (rc == 0) {
		rc = -ENOENT;
	}
	kv_iter_free(it);
	return rc;
}

/*
 * Into b: the inode loses the name (parent, name), whose entry the caller
 * removes or replaces. With nlink 0 it is an orphan that the next start
 * deletes, if nobody does before.
 */
static int drop_name(struct names *nm, struct kv_batch *b, struct changed *c,
		     struct inode *in, uint64_t parent, const char *name)
{
	struct attr *a = changed_attr(c, in);
	bool first = a->parent == parent && strcmp(a->name, name) == 0;
	int rc;

	if (S_ISDIR(a->mode) || a->nlink <= 1) {
		a->nlink = 0;
		a->parent = 0;
		a->name[0] = 0;
		mark(b, 'O', in->ino);
		if (S_ISREG(a->mode))
			count(b, META_FILES, -1);
		if (!first && !S_ISDIR(a->mode))
			link_key_delete(b, in->ino, parent, name);
	} else {
		a->nlink--;
		if (first) { /* another name becomes the first one */
			rc = link_first(nm, in->ino, &a->parent, a->name);
			if (rc < 0)
				return rc == -ENOENT ? -EIO : rc;
			link_key_delete(b, in->ino, a->parent, a->name);
		} else {
			link_key_delete(b, in->ino, parent, name);
		}
	}
	a->ctime_ns = wall_ns();
	return 0;
}

static int stop_at_first(void *arg, const char *name,
			 const struct dirent_rec *entry, uint64_t cookie)
{
	(void)arg;
	(void)name;
	(void)entry;
	(void)cookie;
	return 1;
}

static int dir_is_empty(struct names *nm, uint64_t dir)
{
	int rc = names_list(nm, dir, 0, stop_at_first, NULL);

	return rc == 1 ? -ENOTEMPTY : rc;
}

static int remove_name(struct names *nm, uint64_t parent, const char *name,
		       bool dir, struct inode **ret_inode)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	struct inode *in = NULL, *parent_dir = NULL;
	struct changed c = { .count = 0 };
	int rc;

	if (!b)
		return -ENOMEM;
	HOLD(&nm->changing);
	rc = names_lookup(nm, parent, name, &in);
	if (rc < 0)
		return rc;
	rc = dir_get(nm, parent, &parent_dir);
	if (rc == 0 && S_ISDIR(inode_attr(in).mode) != dir)
		rc = dir ? -ENOTDIR : -EISDIR;
	if (rc == 0 && dir)
		rc = dir_is_empty(nm, in->ino);
	if (rc == 0)
		rc = drop_name(nm, b, &c, in, parent, name);
	if (rc == 0) {
		dirent_delete(b, parent, name);
		touch(&c, parent_dir, dir ? -1 : 0);
		rc = changed_write(nm, b, &c);
	}
	inode_put(nm->inodes, parent_dir, 1);
	if (rc < 0) {
		inode_put(nm->inodes, in, 1);
		return rc;
	}
	*ret_inode = in;
	return 0;
}

int names_unlink(struct names *nm, uint64_t parent, const char *name,
		 struct inode **ret_inode)
{
	return remove_name(nm, parent, name, false, ret_inode);
}

int names_rmdir(struct names *nm, uint64_t parent, const char *name,
		struct inode **ret_inode)
{
	return remove_name(nm, parent, name, true, ret_inode);
}

/* Into b: what was (parent, name) of `in` is (new_parent, new_name) now. */
static void move_name(struct kv_batch *b, struct changed *c, struct inode *in,
		      uint64_t parent, const char *name, uint64_t new_parent,
		      const char *new_name)
{
	struct attr *a = changed_attr(c, in);

	if (a->parent == parent && strcmp(a->name, name) == 0) {
		a->parent = new_parent;
		strcpy(a->name, new_name);
	} else {
		link_key_delete(b, in->ino, parent, name);
		link_key_put(b, in->ino, new_parent, new_name);
	}
	a->ctime_ns = wall_ns();
	dirent_put(b, new_parent, new_name, in->ino, a->mode);
}

struct rename_state {
	struct inode *in, *old; /* references; old: what is replaced, or NULL */
	struct inode *from, *to; /* references: the directories */
};

static int rename_check(struct names *nm, struct rename_state *r,
			unsigned flags)
{
	bool dir = S_ISDIR(inode_attr(r->in).mode);
	bool old_dir;

	if (!r->old)
		return (flags & RENAME_EXCHANGE) ? -ENOENT : 0;
	if (flags & RENAME_NOREPLACE)
		return -EEXIST;
	if (flags & RENAME_EXCHANGE)
		return 0;
	old_dir = S_ISDIR(inode_attr(r->old).mode);
	if (dir && !old_dir)
		return -ENOTDIR;
	if (!dir && old_dir)
		return -EISDIR;
	return old_dir ? dir_is_empty(nm, r->old->ino) : 0;
}

static int rename_write(struct names *nm, struct rename_state *r,
			uint64_t parent, const char *name, uint64_t new_parent,
			const char *new_name, unsigned flags)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	struct changed c = { .count = 0 };
	bool dir = S_ISDIR(inode_attr(r->in).mode);
	int to_delta = dir ? 1 : 0;
	int from_delta = dir ? -1 : 0;
	int rc;

	if (!b)
		return -ENOMEM;
	if (flags & RENAME_EXCHANGE) {
		if (S_ISDIR(inode_attr(r->old).mode)) {
			to_delta--;
			from_delta++;
		}
		move_name(b, &c, r->in, parent, name, new_parent, new_name);
		move_name(b, &c, r->old, new_parent, new_name, parent, name);
	} else {
		if (r->old) {
			rc = drop_name(nm, b, &c, r->old, new_parent, new_name);
			if (rc < 0)
				return rc;
			if (S_ISDIR(inode_attr(r->old).mode))
				to_delta--;
		}
		dirent_delete(b, parent, name);
		move_name(b, &c, r->in, parent, name, new_parent, new_name);
	}
	touch(&c, r->from, from_delta);
	touch(&c, r->to, to_delta);
	return changed_write(nm, b, &c);
}

int names_rename(struct names *nm, uint64_t parent, const char *name,
		 uint64_t new_parent, const char *new_name, unsigned flags,
		 struct inode **ret_replaced)
{
	struct rename_state r = { 0 };
	int rc;

	*ret_replaced = NULL;
	HOLD(&nm->changing);
	rc = names_lookup(nm, parent, name, &r.in);
	if (rc == 0)
		rc = names_lookup(nm, new_parent, new_name, &r.old);
	if (rc == -ENOENT && r.in)
		rc = 0;
	if (rc == 0)
		rc = dir_get(nm, parent, &r.from);
	if (rc == 0)
		rc = dir_get(nm, new_parent, &r.to);
	if (rc < 0)
		goto out;
	if (r.in == r.old) /* two names of one file: nothing to do */
		goto out;
	rc = rename_check(nm, &r, flags);
	if (rc == 0)
		rc = rename_write(nm, &r, parent, name, new_parent, new_name,
				  flags);
	if (rc == 0 && r.old && !(flags & RENAME_EXCHANGE)) {
		*ret_replaced = r.old;
		r.old = NULL;
	}
out:
	inode_put(nm->inodes, r.in, 1);
	inode_put(nm->inodes, r.old, 1);
	inode_put(nm->inodes, r.from, 1);
	inode_put(nm->inodes, r.to, 1);
	return rc;
}

int names_list(struct names *nm, uint64_t dir, uint64_t cookie, names_fn fn,
	       void *arg)
{
	struct key prefix = key_dir(dir);
	struct key start = key_dir_at(dir, cookie + 1);
	char name[STORE_NAME_MAX + 1];
	struct kv_slice key, value;
	struct kv_iter *it;
	int rc;

	rc = kv_iter_new(nm->kv, prefix.data, prefix.len, start.data, start.len,
			 &it);
	if (rc < 0)
		return rc;
	while ((rc = kv_iter_next(it, &key, &value)) == 1) {
		const uint8_t *p = key.data;
		struct dirent_rec d;
		size_t len = key.len - 17;

		if (key.len <= 17 || len > STORE_NAME_MAX ||
		    dirent_decode(value.data, value.len, &d) < 0) {
			log_error("inode %llu: damaged directory entry: run "
				  "ckptctl fsck",
				  (unsigned long long)dir);
			rc = -EIO;
			break;
		}
		memcpy(name, p + 17, len);
		name[len] = 0;
		rc = fn(arg, name, &d, get_be64(p + 9));
		if (rc != 0)
			break;
	}
	kv_iter_free(it);
	return rc;
}

/* Into b: what carries the number `from` in the X records, copied to `to`. */
static int copy_xattrs(struct names *nm, struct kv_batch *b, uint64_t from,
		       uint64_t to)
{
	struct key prefix = key_ino('X', from);
	struct kv_slice key, value;
	struct kv_iter *it;
	int rc;

	rc = kv_iter_new(nm->kv, prefix.data, prefix.len, NULL, 0, &it);
	if (rc < 0)
		return rc;
	while ((rc = kv_iter_next(it, &key, &value)) == 1) {
		struct key k = { .len = key.len };

		if (key.len > sizeof(k.data)) {
			rc = -EIO;
			break;
		}
		memcpy(k.data, key.data, key.len);
		put_be64(k.data + 1, to);
		kv_put(b, k.data, k.len, value.data, value.len);
	}
	kv_iter_free(it);
	return rc;
}

static int copy_writer(struct names *nm, struct kv_batch *b, uint64_t from,
		       uint64_t to)
{
	struct writer w;
	int rc = names_get_writer(nm, from, &w);

	if (rc == 0)
		writer_put(b, to, &w);
	/* A damaged one must not keep anybody from writing. */
	return rc == -ENODATA || rc == -EIO ? 0 : rc;
}

/* Into b: every further name of `from` becomes one of `to`. */
static int move_links(struct names *nm, struct kv_batch *b, uint64_t from,
		      uint64_t to, uint32_t mode)
{
	struct key prefix = key_ino('L', from);
	char name[STORE_NAME_MAX + 1];
	struct kv_slice key, value;
	struct kv_iter *it;
	int rc;

	rc = kv_iter_new(nm->kv, prefix.data, prefix.len, NULL, 0, &it);
	if (rc < 0)
		return rc;
	while ((rc = kv_iter_next(it, &key, &value)) == 1) {
		const uint8_t *p = key.data;
		size_t len = key.len - 17;
		uint64_t parent;

		if (key.len <= 17 || len > STORE_NAME_MAX) {
			rc = -EIO;
			break;
		}
		parent = get_be64(p + 9);
		memcpy(name, p + 17, len);
		name[len] = 0;
		link_key_delete(b, from, parent, name);
		link_key_put(b, to, parent, name);
		dirent_put(b, parent, name, to, mode);
	}
	kv_iter_free(it);
	return rc;
}

/* Keep it in memory for a while; names.changing is held. */
static void reserve(struct names *nm, struct inode *fresh)
{
	unsigned at = nm->reserved_next++ % RESERVED_INODES_MAX;

	inode_put(nm->inodes, nm->reserved[at], 1);
	inode_ref(nm->inodes, fresh, 1);
	nm->reserved[at] = fresh;
}

static int renumber(struct names *nm, struct inode *in, uint64_t *ret_ino)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	struct attr a, old;
	struct inode *fresh = NULL;
	int rc;

	if (!b)
		return -ENOMEM;
	rc = inode_load_file(nm->inodes, in);
	if (rc < 0)
		return rc;
	HOLD(&nm->changing);
	a = inode_attr(in);
	old = a;
	if (a.nlink == 0)
		return -ENOENT;
	rc = inode_new(nm->inodes, &a, &fresh);
	if (rc < 0)
		return rc;
	{
		/* Read back what is committed when it is first looked at. */
		HOLD(&fresh->lock);
		fresh->file->content_loaded = false;
		fresh->file->state.name = NAME_AWAITED;
	}
	dirent_put(b, a.parent, a.name, fresh->ino, a.mode);
	inode_put_attr(b, fresh->ino, &a);
	rc = copy_xattrs(nm, b, in->ino, fresh->ino);
	if (rc == 0)
		rc = copy_writer(nm, b, in->ino, fresh->ino);
	if (rc == 0)
		rc = move_links(nm, b, in->ino, fresh->ino, a.mode);
	old.nlink = 0;
	old.parent = 0;
	old.name[0] = 0;
	inode_put_attr(b, in->ino, &old);
	mark(b, 'O', in->ino);
	if (rc == 0)
		rc = nm->hooks.clone(nm->hooks.arg, b, in->ino, fresh->ino);
	if (rc == 0) {
		HOLD(&in->lock);
		in->attr = old;
	}
	if (rc == 0)
		reserve(nm, fresh);
	*ret_ino = fresh->ino;
	inode_put(nm->inodes, fresh, 1);
	return rc;
}

/*
 * The kernel looks the name again that it is opening, but not the others of a
 * file with several. No lock is held: it takes the directories' own.
 */
static void forget_names(struct names *nm, const struct attr *a, uint64_t ino)
{
	struct key prefix = key_ino('L', ino);
	char name[STORE_NAME_MAX + 1];
	struct kv_slice key, value;
	struct kv_iter *it;

	nm->hooks.renamed(nm->hooks.arg, a->parent, a->name);
	if (kv_iter_new(nm->kv, prefix.data, prefix.len, NULL, 0, &it) < 0)
		return;
	while (kv_iter_next(it, &key, &value) == 1) {
		const uint8_t *p = key.data;
		size_t len = key.len - 17;

		if (key.len <= 17 || len > STORE_NAME_MAX)
			break;
		memcpy(name, p + 17, len);
		name[len] = 0;
		nm->hooks.renamed(nm->hooks.arg, get_be64(p + 9), name);
	}
	kv_iter_free(it);
}

int names_renumber(struct names *nm, struct inode *in)
{
	struct attr a = inode_attr(in);
	uint64_t ino = 0;
	int rc = renumber(nm, in, &ino);

	if (rc == 0 && a.nlink > 1)
		forget_names(nm, &a, ino);
	if (rc == 0) /* it has no name any more */
		nm->hooks.changed(nm->hooks.arg, in->ino);
	return rc;
}

/*
 * The generation for which a time set now counts: when the bytes are waiting
 * to be committed and nobody can change them, the next one too.
 */
static uint64_t mtime_generation_locked(struct inode *in)
{
	const struct file *f = in->file;
	uint64_t generation;

	if (!f)
		return 0;
	generation = f->content ? f->content->c.generation : 0;
	generation += f->versions.replaced;
	if (file_is_dirty(f) && f->state.writers == 0)
		generation++;
	return generation;
}

int names_setattr(struct names *nm, struct inode *in, unsigned valid,
		  const struct attr *to)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	struct changed c = { .count = 0 };
	struct attr *a;

	if (!b)
		return -ENOMEM;
	HOLD(&nm->changing);
	a = changed_attr(&c, in);
	if (valid & SET_MODE)
		a->mode = (a->mode & S_IFMT) | (to->mode & 07777);
	if (valid & SET_UID)
		a->uid = to->uid;
	if (valid & SET_GID)
		a->gid = to->gid;
	if (valid & SET_ATIME)
		a->atime_ns = to->atime_ns;
	{
		HOLD(&in->lock);
		if (in->deleted) /* a record now would stay for ever */
			return -ESTALE;
		if (valid & SET_MTIME) {
			a->mtime_ns = to->mtime_ns;
			a->mtime_gen = mtime_generation_locked(in);
		}
	}
	a->ctime_ns = wall_ns();
	return changed_write(nm, b, &c);
}

int names_get_writer(struct names *nm, uint64_t ino, struct writer *ret)
{
	SCOPED(scope_free) void *value = NULL;
	struct key k = key_ino('W', ino);
	size_t len;
	int rc = kv_get(nm->kv, k.data, k.len, &value, &len);

	if (rc < 0)
		return rc == -ENOENT ? -ENODATA : rc;
	rc = writer_decode(value, len, ret);
	if (rc < 0)
		log_error("inode %llu: damaged record of its writer: run "
			  "ckptctl fsck",
			  (unsigned long long)ino);
	return rc;
}

int names_set_writer(struct names *nm, struct inode *in, const struct writer *w)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	struct writer old = { 0 };
	int rc;

	if (!b)
		return -ENOMEM;
	rc = names_get_writer(nm, in->ino, &old);
	/* A damaged one is replaced. */
	if ((rc == 0 || rc == -ENODATA) && writer_equal(&old, w))
		return 0;
	writer_put(b, in->ino, w);
	HOLD(&nm->changing);
	{
		HOLD(&in->lock);
		/* Without a name it may be deleted: no record after that. */
		if (in->attr.nlink == 0)
			return 0;
	}
	return kv_write(nm->kv, b);
}

int names_getxattr(struct names *nm, uint64_t ino, const char *name,
		   void **ret_value, size_t *ret_len)
{
	struct key k;
	int rc;

	if (strlen(name) > STORE_NAME_MAX)
		return -ERANGE;
	k = key_xattr(ino, name);
	rc = kv_get(nm->kv, k.data, k.len, ret_value, ret_len);
	return rc == -ENOENT ? -ENODATA : rc;
}

/* Write b, which changes an attribute of in, with a new ctime. */
static int xattr_write(struct names *nm, struct kv_batch *b, struct inode *in)
{
	struct changed c = { .count = 0 };

	HOLD(&nm->changing);
	changed_attr(&c, in)->ctime_ns = wall_ns();
	{
		HOLD(&in->lock);
		if (in->deleted)
			return -ESTALE;
	}
	return changed_write(nm, b, &c);
}

int names_setxattr(struct names *nm, struct inode *in, const char *name,
		   const void *value, size_t len, int flags)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	void *old = NULL;
	struct key k;
	size_t old_len;
	int rc;

	if (!b)
		return -ENOMEM;
	if (strlen(name) > STORE_NAME_MAX)
		return -ERANGE;
	if (len > XATTR_VALUE_MAX)
		return -E2BIG;
	k = key_xattr(in->ino, name);
	rc = kv_get(nm->kv, k.data, k.len, &old, &old_len);
	free(old);
	if (rc < 0 && rc != -ENOENT)
		return rc;
	if (rc == 0 && (flags & XATTR_CREATE))
		return -EEXIST;
	if (rc == -ENOENT && (flags & XATTR_REPLACE))
		return -ENODATA;
	rc = kv_room(nm->kv);
	if (rc < 0)
		return rc;
	kv_put(b, k.data, k.len, value, len);
	return xattr_write(nm, b, in);
}

int names_removexattr(struct names *nm, struct inode *in, const char *name)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	void *old = NULL;
	struct key k;
	size_t old_len;
	int rc;

	if (!b)
		return -ENOMEM;
	rc = names_getxattr(nm, in->ino, name, &old, &old_len);
	free(old);
	if (rc < 0)
		return rc;
	k = key_xattr(in->ino, name);
	kv_delete(b, k.data, k.len);
	return xattr_write(nm, b, in);
}

int names_listxattr(struct names *nm, uint64_t ino, struct bytes *out)
{
	struct key prefix = key_ino('X', ino);
	struct kv_slice key, value;
	struct kv_iter *it;
	int rc;

	rc = kv_iter_new(nm->kv, prefix.data, prefix.len, NULL, 0, &it);
	if (rc < 0)
		return rc;
	while ((rc = kv_iter_next(it, &key, &value)) == 1) {
		bytes_put(out, (const uint8_t *)key.data + 9, key.len - 9);
		bytes_put_u8(out, 0);
	}
	kv_iter_free(it);
	return rc < 0 ? rc : out->failed ? -ENOMEM : 0;
}
