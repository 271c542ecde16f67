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
