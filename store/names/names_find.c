/* names_find.c - reading directories, without a lock: see names.h. */
#include "store/names/names_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/db/kv.h"

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

	return records_each_from(nm->kv, key_dir(dir),
				 key_dir_at(dir, cookie + 1), list_one, &l);
}
