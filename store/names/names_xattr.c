/* names_xattr.c - extended attributes of files and directories: names.h. */
#include "store/names/names_private.h"

#include <errno.h>
#include <string.h>
#include <sys/xattr.h>

#include "store/base/scope.h"
#include "store/db/kv.h"

int names_getxattr(struct names *nm, uint64_t ino, const char *name,
		   void **ret_value, size_t *ret_len)
{
	int rc;

	if (strlen(name) > STORE_NAME_MAX)
		return -ERANGE;
	rc = record_load(nm->kv, key_xattr(ino, name), ret_value, ret_len);
	return rc == -ENOENT ? -ENODATA : rc;
}

#define CAPS_XATTR "security.capability"

/*
 * Write b, which changes an attribute of in, with a new ctime. names.changing
 * is held.
 */
static int xattr_write_locked(struct names *nm, struct kv_batch *b,
			      struct inode *in)
{
	struct names_change c = { .count = 0 };

	names_changed_attr(&c, in)->ctime_ns = wall_ns();
	{
		HOLD(&in->lock);
		if (in->deleted)
			return -ESTALE;
	}
	return names_write(nm, b, &c);
}

int names_setxattr(struct names *nm, struct inode *in, const char *name,
		   const void *value, size_t len, int flags)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	struct key k;
	int rc;

	if (strlen(name) > STORE_NAME_MAX)
		return -ERANGE;
	if (len > XATTR_VALUE_MAX)
		return -E2BIG;
	k = key_xattr(in->ino, name);
	rc = record_find(nm->kv, k);
	if (rc < 0 && rc != -ENOENT)
		return rc;
	if (rc == 0 && (flags & XATTR_CREATE))
		return -EEXIST;
	if (rc == -ENOENT && (flags & XATTR_REPLACE))
		return -ENODATA;
	rc = kv_room(nm->kv);
	if (rc < 0)
		return rc;
	record_save(b, k, value, len);
	HOLD(&nm->changing);
	rc = xattr_write_locked(nm, b, in);
	if (strcmp(name, CAPS_XATTR) == 0)
		atomic_store(&in->no_caps, false);
	return rc;
}

int names_removexattr(struct names *nm, struct inode *in, const char *name)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	struct key k;
	int rc;

	if (strlen(name) > STORE_NAME_MAX)
		return -ERANGE;
	k = key_xattr(in->ino, name);
	rc = record_find(nm->kv, k);
	if (rc < 0)
		return rc == -ENOENT ? -ENODATA : rc;
	record_delete(b, k);
	HOLD(&nm->changing);
	return xattr_write_locked(nm, b, in);
}

int names_drop_caps(struct names *nm, struct inode *in)
{
	SCOPED(scope_batch) struct kv_batch *b = NULL;
	struct key k;
	int rc;

	if (atomic_load(&in->no_caps))
		return 0;
	k = key_xattr(in->ino, CAPS_XATTR);
	HOLD(&nm->changing);
	rc = record_find(nm->kv, k);
	if (rc == 0) {
		b = kv_batch_new();
		record_delete(b, k);
		rc = xattr_write_locked(nm, b, in);
	}
	if (rc < 0 && rc != -ENOENT)
		return rc;
	atomic_store(&in->no_caps, true);
	return 0;
}

static int list_one(void *arg, struct kv_slice key, struct kv_slice value)
{
	struct bytes *out = arg;

	(void)value;
	bytes_put(out, (const uint8_t *)key.data + 9, key.len - 9);
	bytes_put_u8(out, 0);
	return 0;
}

int names_listxattr(struct names *nm, uint64_t ino, struct bytes *out)
{
	int rc = records_each(nm->kv, key_ino('X', ino), list_one, out);

	return rc < 0 ? rc : out->failed ? -ENOMEM : 0;
}
