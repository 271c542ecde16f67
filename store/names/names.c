/*
 * names.c - what all changes of names and attributes have in common, and those
 * that are of a file and not of a directory: renumbering, attributes, and who
 * wrote it. Directories are in names_dir.c, extended attributes in
 * names_xattr.c.
 *
 * A change is one batch, put together while names.changing is held, and then
 * written: names_write().
 */
#include "store/names/names_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/db/kv.h"

static void drop_moved(struct moved_names *names)
{
	while (!STAILQ_EMPTY(names)) {
		struct moved_name *n = STAILQ_FIRST(names);

		STAILQ_REMOVE_HEAD(names, link);
		free(n);
	}
}

int names_new(struct kv *kv, struct inode_table *inodes,
	      const struct names_hooks *hooks, struct names **ret_names)
{
	struct names *nm = calloc(1, sizeof(*nm));

	if (!nm)
		return -ENOMEM;
	nm->kv = kv;
	nm->inodes = inodes;
	nm->hooks = *hooks;
	STAILQ_INIT(&nm->untold);
	lock_init(&nm->changing, LOCK_NAMES_CHANGING);
	*ret_names = nm;
	return 0;
}

void names_free(struct names *nm)
{
	if (!nm)
		return;
	for (unsigned i = 0; i < AWAITED_INODES_MAX; i++)
		inode_put(nm->inodes, nm->awaited[i], 1);
	drop_moved(&nm->untold);
	lock_destroy(&nm->changing);
	free(nm);
}

struct lock *names_changing(struct names *nm)
{
	return &nm->changing;
}

void names_put_entry(struct kv_batch *b, uint64_t parent, const char *name,
		     uint64_t ino, uint32_t mode)
{
	struct dirent_rec d = { .ino = ino, .type = mode & S_IFMT };

	dirent_save(b, key_dirent(parent, name_hash(name), name), &d);
}

void names_put_writer(struct kv_batch *b, uint64_t ino, const struct writer *w)
{
	if (w->source == WRITER_NOWHERE && !w->host[0] && !w->job[0])
		record_delete(b, key_ino('W', ino));
	else
		writer_save(b, key_ino('W', ino), w);
}

struct attr *names_changed_attr(struct names_change *c, struct inode *in)
{
	for (unsigned i = 0; i < c->count; i++)
		if (c->in[i] == in)
			return &c->attr[i];
	CHECK(c->count < CHANGED_INODES_MAX);
	c->in[c->count] = in;
	c->attr[c->count] = inode_attr(in);
	return &c->attr[c->count++];
}

int names_write(struct names *nm, struct kv_batch *b, struct names_change *c)
{
	return names_write_keeping(nm, b, c, NULL, NULL);
}

int names_write_keeping(struct names *nm, struct kv_batch *b,
			struct names_change *c, const struct inode *old,
			struct inode *in)
{
	int rc;

	for (unsigned i = 0; i < c->count; i++)
		attr_save(b, key_ino('A', c->in[i]->ino), &c->attr[i]);
	rc = old ? nm->hooks.keep(nm->hooks.arg, b, old, in)
		 : kv_write(nm->kv, b);
	for (unsigned i = 0; rc == 0 && i < c->count; i++) {
		HOLD(&c->in[i]->lock);
		c->in[i]->attr = c->attr[i];
	}
	return rc;
}

struct copying {
	struct kv_batch *b;
	uint64_t to;
};

static int copy_xattr(void *arg, struct kv_slice key, struct kv_slice value)
{
	struct copying *c = arg;
	struct key k = { .len = key.len };

	if (key.len > sizeof(k.data))
		return -EIO;
	memcpy(k.data, key.data, key.len);
	put_be64(k.data + 1, c->to);
	record_save(c->b, k, value.data, value.len);
	return 0;
}

static int copy_writer(struct names *nm, struct kv_batch *b, uint64_t from,
		       uint64_t to)
{
	struct writer w;
	int rc = names_get_writer(nm, from, &w);

	if (rc == 0)
		names_put_writer(b, to, &w);
	/* A damaged one must not keep anybody from writing. */
	return rc == -ENODATA || rc == -EIO ? 0 : rc;
}

struct link_walk {
	names_link_fn fn;
	void *arg;
};

static int link_one(void *arg, struct kv_slice key, struct kv_slice value)
{
	struct link_walk *w = arg;
	char name[STORE_NAME_MAX + 1];
	uint64_t parent;

	(void)value;
	return names_key_split(key, &parent, name) ? w->fn(w->arg, parent, name)
						   : -EIO;
}

int names_each_link(struct names *nm, uint64_t ino, names_link_fn fn, void *arg)
{
	struct link_walk w = { fn, arg };

	return records_each(nm->kv, key_ino('L', ino), link_one, &w);
}

struct moving {
	struct kv_batch *b;
	uint64_t from, to;
	uint32_t mode;
	struct moved_names names; /* of a file with several */
};

static int add_moved(struct moving *m, uint64_t parent, const char *name)
{
	size_t len = strlen(name) + 1;
	struct moved_name *n = malloc(sizeof(*n) + len);

	if (!n)
		return -ENOMEM;
	n->parent = parent;
	memcpy(n->name, name, len);
	STAILQ_INSERT_TAIL(&m->names, n, link);
	return 0;
}

static int move_link(void *arg, uint64_t parent, const char *name)
{
	struct moving *m = arg;

	record_delete(m->b, key_link(m->from, parent, name));
	record_mark(m->b, key_link(m->to, parent, name));
	names_put_entry(m->b, parent, name, m->to, m->mode);
	return add_moved(m, parent, name);
}

/* Keep it in memory for a while; names.changing is held. */
static void keep_awaited(struct names *nm, struct inode *fresh)
{
	unsigned at = nm->awaited_next++ % AWAITED_INODES_MAX;

	inode_put(nm->inodes, nm->awaited[at], 1);
	inode_ref(fresh, 1);
	nm->awaited[at] = fresh;
}

static int renumber(struct names *nm, struct inode *in)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	struct moving m = { .b = b, .from = in->ino };
	struct attr a, old;
	struct inode *fresh = NULL;
	int rc;

	STAILQ_INIT(&m.names);
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
	m.to = fresh->ino;
	m.mode = a.mode;
	names_put_entry(b, a.parent, a.name, fresh->ino, a.mode);
	attr_save(b, key_ino('A', fresh->ino), &a);
	rc = records_each(nm->kv, key_ino('X', in->ino), copy_xattr,
			  &(struct copying){ b, fresh->ino });
	if (rc == 0)
		rc = copy_writer(nm, b, in->ino, fresh->ino);
	if (rc == 0 && a.nlink > 1)
		rc = add_moved(&m, a.parent, a.name);
	if (rc == 0)
		rc = names_each_link(nm, in->ino, move_link, &m);
	old.nlink = 0;
	old.parent = 0;
	old.name[0] = 0;
	attr_save(b, key_ino('A', in->ino), &old);
	record_mark(b, key_ino('O', in->ino));
	if (rc == 0)
		rc = nm->hooks.clone(nm->hooks.arg, b, in->ino, fresh->ino);
	if (rc == 0) {
		HOLD(&in->lock);
		in->attr = old;
	}
	if (rc == 0) {
		keep_awaited(nm, fresh);
		if (!STAILQ_EMPTY(&m.names))
			atomic_store(&nm->untold_any, true);
		STAILQ_CONCAT(&nm->untold, &m.names);
	}
	drop_moved(&m.names);
	inode_put(nm->inodes, fresh, 1);
	return rc;
}

int names_renumber(struct names *nm, struct inode *in)
{
	int rc = renumber(nm, in);

	if (rc == 0) /* it has no name any more */
		nm->hooks.changed(nm->hooks.arg, in->ino);
	return rc;
}

static void tell_untold(struct names *nm)
{
	struct moved_names names = STAILQ_HEAD_INITIALIZER(names);
	struct moved_name *n;

	{
		HOLD(&nm->changing);
		STAILQ_CONCAT(&names, &nm->untold);
		atomic_store(&nm->untold_any, false);
	}
	STAILQ_FOREACH(n, &names, link)
	nm->hooks.renamed(nm->hooks.arg, n->parent, n->name);
	drop_moved(&names);
}

/* Whoever waits for a folder's lock does so for all: others go on. */
void names_tell_moved(struct names *nm)
{
	while (atomic_load(&nm->untold_any) &&
	       !atomic_exchange(&nm->telling, true)) {
		tell_untold(nm);
		atomic_store(&nm->telling, false);
	}
}

bool names_are_untold(const struct names *nm)
{
	return atomic_load(&nm->untold_any) || atomic_load(&nm->telling);
}

int names_setattr(struct names *nm, struct inode *in, unsigned valid,
		  const struct attr *to)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	struct names_change c = { .count = 0 };
	struct attr *a;

	HOLD(&nm->changing);
	a = names_changed_attr(&c, in);
	if (valid & SET_MODE)
		a->mode = (a->mode & S_IFMT) | (to->mode & 07777);
	if (valid & SET_UID)
		a->uid = to->uid;
	if (valid & SET_GID)
		a->gid = to->gid;
	if (valid & SET_ATIME)
		a->atime_ns = to->atime_ns;
	if (valid & SET_MTIME) {
		a->mtime_ns = to->mtime_ns;
		/* For what is drained or replaced, and nothing later. */
		a->mtime_gen =
			S_ISREG(a->mode) ? nm->hooks.number(nm->hooks.arg) : 0;
	}
	{
		HOLD(&in->lock);
		if (in->deleted) /* a record now would stay for ever */
			return -ESTALE;
	}
	a->ctime_ns = wall_ns();
	return names_write(nm, b, &c);
}

int names_get_writer(struct names *nm, uint64_t ino, struct writer *ret)
{
	int rc = writer_load(nm->kv, key_ino('W', ino), ret);

	if (rc == -ENOENT)
		return -ENODATA;
	if (rc == -EIO)
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

	rc = names_get_writer(nm, in->ino, &old);
	/* A damaged one is replaced. */
	if ((rc == 0 || rc == -ENODATA) && writer_equal(&old, w))
		return 0;
	names_put_writer(b, in->ino, w);
	HOLD(&nm->changing);
	{
		HOLD(&in->lock);
		/* Without a name it may be deleted: no record after that. */
		if (in->attr.nlink == 0)
			return 0;
	}
	return kv_write(nm->kv, b);
}
