/*
 * names_find.c - what names there are, without a lock: from a directory down to
 * its inodes (names.h), and from an inode up to the root (inode.h).
 */
#include "store/names/names_private.h"

#include <errno.h>
#include <string.h>

#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/db/kv.h"

#define PATH_DEPTH_MAX 256

int names_get_entry(struct names *nm, uint64_t parent, const char *name,
		    struct dirent_rec *ret)
{
	int rc;

	if (strlen(name) > STORE_NAME_MAX)
		return -ENAMETOOLONG;
	rc = dirent_load(nm->kv, key_dirent(parent, name_hash(name), name),
			 ret);
	if (rc == -EIO)
		log_error("name %s in inode %llu: damaged entry: run ckptctl "
			  "fsck",
			  name, (unsigned long long)parent);
	return rc;
}

bool inode_has_name(struct inode *in)
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
		int rc = names_get_entry(nm, parent, name, &d);

		if (rc < 0)
			return rc;
		rc = inode_get(nm->inodes, d.ino, ret_inode);
		if (rc == 0 && (d.ino == before || inode_has_name(*ret_inode)))
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

bool names_key_split(struct kv_slice key, uint64_t *ret_middle,
		     char ret_name[STORE_NAME_MAX + 1])
{
	const uint8_t *p = key.data;
	size_t len = key.len - 17;

	if (key.len <= 17 || len > STORE_NAME_MAX)
		return false;
	*ret_middle = get_be64(p + 9);
	memcpy(ret_name, p + 17, len);
	ret_name[len] = 0;
	return true;
}

struct listing {
	names_fn fn;
	void *arg;
	uint64_t dir;
};

static int list_one(void *arg, struct kv_slice key, struct kv_slice value)
{
	struct listing *l = arg;
	char name[STORE_NAME_MAX + 1];
	struct dirent_rec d;
	uint64_t hash;

	if (!names_key_split(key, &hash, name) ||
	    dirent_decode(value.data, value.len, &d) < 0) {
		log_error("inode %llu: damaged directory entry: run ckptctl "
			  "fsck",
			  (unsigned long long)l->dir);
		return -EIO;
	}
	return l->fn(l->arg, name, &d, hash);
}

int names_list(struct names *nm, uint64_t dir, uint64_t cookie, names_fn fn,
	       void *arg)
{
	struct listing l = { fn, arg, dir };

	return records_each_from(nm->kv, key_ino('E', dir),
				 key_dir_at(dir, cookie + 1), list_one, &l);
}

/* Parent and name of an inode; false at the root or when it has no name. */
static bool inode_up(struct inode_table *t, uint64_t ino, uint64_t *ret_parent,
		     char ret_name[STORE_NAME_MAX + 1])
{
	struct attr a;

	if (ino == ROOT_INO || inode_attr_of(t, ino, &a) < 0)
		return false;
	*ret_parent = a.parent;
	strcpy(ret_name, a.name);
	return a.parent != 0;
}

void inode_path(struct inode_table *t, struct inode *in, char *buf, size_t size)
{
	char name[STORE_NAME_MAX + 1];
	uint64_t ino = in->ino, parent;
	size_t at = size - 1;

	buf[at] = 0;
	for (int depth = 0; depth < PATH_DEPTH_MAX && ino != ROOT_INO;
	     depth++) {
		size_t len;

		if (!inode_up(t, ino, &parent, name)) {
			(void)snprintf(buf, size, "(inode %llu)",
				       (unsigned long long)in->ino);
			return;
		}
		len = strlen(name);
		if (len + 1 > at)
			break; /* the end of a very long path will do */
		at -= len;
		memcpy(buf + at, name, len);
		buf[--at] = '/';
		ino = parent;
	}
	if (buf[at] == 0)
		buf[--at] = '/';
	memmove(buf, buf + at, size - at);
}

bool inode_is_under(struct inode_table *t, struct inode *in, uint64_t dir)
{
	char name[STORE_NAME_MAX + 1];
	uint64_t ino = in->ino;

	for (int depth = 0; depth < 4 * PATH_DEPTH_MAX; depth++) {
		if (ino == dir)
			return true;
		if (!inode_up(t, ino, &ino, name))
			return false;
	}
	return false;
}
