/*
 * identity.c - see identity.h. Each is a text of a few lines, so that it can be
 * copied by hand, and the last one is a check of those before it. A text must
 * be one of ours to the byte, or it is damaged: what was understood of it is
 * written once more, and compared.
 */
#include "store/db/identity.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "store/base/dir.h"
#include "store/base/scope.h"
#include "store/db/records.h"

#define FORMAT_BYTES_MAX 128
#define SECRET_TMP LAYOUT_SECRET_FILE ".tmp"
#define SECRET_TITLE "ckptfs secret"
#define SECRET_BYTES_MAX (64 + LAYOUT_UUID_BYTES + 2 * HASH_SECRET_BYTES + 64)

int identity_make_uuid(char ret[LAYOUT_UUID_BYTES])
{
	uint8_t b[16];

	if (getrandom(b, sizeof(b), 0) != (ssize_t)sizeof(b))
		return -errno;
	b[6] = (uint8_t)((b[6] & 0x0f) | 0x40); /* version 4, random */
	b[8] = (uint8_t)((b[8] & 0x3f) | 0x80);
	(void)snprintf(ret, LAYOUT_UUID_BYTES,
		       "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-"
		       "%02x%02x%02x%02x%02x%02x",
		       b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8],
		       b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
	return 0;
}

size_t identity_add_check(char *text, size_t len, size_t size)
{
	int added = snprintf(text + len, size - len, "check %016llx\n",
			     (unsigned long long)XXH3_64bits(text, len));

	CHECK(added > 0 && (size_t)added < size - len);
	return len + (size_t)added;
}

static size_t format_text(const struct format *f, char ret[FORMAT_BYTES_MAX])
{
	int len = snprintf(ret, FORMAT_BYTES_MAX,
			   "ckptfs store, format %u\nuuid %s\n", f->number,
			   f->uuid);

	CHECK(len > 0 && len < FORMAT_BYTES_MAX);
	if (f->number == STORE_FORMAT_OLD) /* it had no check */
		return (size_t)len;
	return identity_add_check(ret, (size_t)len, FORMAT_BYTES_MAX);
}

int format_read(int store_dirfd, struct format *ret)
{
	char text[FORMAT_BYTES_MAX], again[FORMAT_BYTES_MAX] = "";
	ssize_t n = dir_read_text(store_dirfd, LAYOUT_FORMAT_FILE, text,
				  sizeof(text));
	int fields;

	if (n < 0)
		return (int)n;
	*ret = (struct format){ .number = 0 };
	fields = sscanf(text, "ckptfs store, format %u uuid %36[0-9a-f-]",
			&ret->number, ret->uuid);
	if (fields >= 1 && ret->number > STORE_FORMAT)
		return -EPROTO;
	if (fields == 2 && ret->number >= STORE_FORMAT_OLD)
		(void)format_text(ret, again);
	return strlen(ret->uuid) == LAYOUT_UUID_BYTES - 1 &&
			       strcmp(text, again) == 0
		       ? 0
		       : -EINVAL;
}

int format_write(int store_dirfd, const char *name, const char *uuid)
{
	struct format f = { .number = STORE_FORMAT };
	char text[FORMAT_BYTES_MAX];

	memcpy(f.uuid, uuid, sizeof(f.uuid));
	return dir_write_text(store_dirfd, name, text, format_text(&f, text));
}

static size_t secret_text(const struct identity *id, char ret[SECRET_BYTES_MAX])
{
	char hex[2 * HASH_SECRET_BYTES + 1];
	int len;

	for (size_t i = 0; i < HASH_SECRET_BYTES; i++)
		(void)snprintf(hex + 2 * i, 3, "%02x", id->secret[i]);
	len = snprintf(ret, SECRET_BYTES_MAX,
		       SECRET_TITLE "\nuuid %s\nsecret %s\n", id->uuid, hex);
	CHECK(len > 0 && len < SECRET_BYTES_MAX);
	return identity_add_check(ret, (size_t)len, SECRET_BYTES_MAX);
}

int identity_read(int store_dirfd, struct identity *ret)
{
	char text[SECRET_BYTES_MAX + 1], again[SECRET_BYTES_MAX];
	char hex[2 * HASH_SECRET_BYTES + 1] = "";
	ssize_t n = dir_read_text(store_dirfd, LAYOUT_SECRET_FILE, text,
				  sizeof(text));

	if (n < 0)
		return n == -ENOENT ? -ENOENT : -EIO;
	*ret = (struct identity){ .uuid = "" };
	if (sscanf(text, SECRET_TITLE " uuid %36[0-9a-f-] secret %384[0-9a-f]",
		   ret->uuid, hex) != 2 ||
	    strlen(hex) != sizeof(hex) - 1)
		return -EIO;
	for (size_t i = 0; i < HASH_SECRET_BYTES; i++) {
		unsigned byte = 0;

		(void)sscanf(hex + 2 * i, "%2x", &byte);
		ret->secret[i] = (uint8_t)byte;
	}
	(void)secret_text(ret, again);
	return strcmp(text, again) == 0 ? 0 : -EIO;
}

int identity_write(int store_dirfd, const struct identity *id)
{
	char text[SECRET_BYTES_MAX];
	int rc = dir_write_text(store_dirfd, SECRET_TMP, text,
				secret_text(id, text));

	return rc < 0 ? rc
		      : dir_rename(store_dirfd, SECRET_TMP, LAYOUT_SECRET_FILE);
}

int identity_make_secret(uint8_t ret[HASH_SECRET_BYTES])
{
	return getrandom(ret, HASH_SECRET_BYTES, 0) == HASH_SECRET_BYTES ? 0
									 : -EIO;
}

int identity_load(struct kv *kv, uint8_t ret_secret[HASH_SECRET_BYTES])
{
	SCOPED(scope_free) void *value = NULL;
	size_t len;
	int rc = record_load(kv, key_meta(META_SECRET), &value, &len);

	if (rc == -ENOENT || (rc == 0 && len != HASH_SECRET_BYTES))
		return -EUCLEAN;
	if (rc == 0)
		memcpy(ret_secret, value, HASH_SECRET_BYTES);
	return rc;
}

int identity_is_foreign(int store_dirfd, const char *uuid, struct kv *kv)
{
	uint8_t secret[HASH_SECRET_BYTES];
	struct identity id;
	int rc;

	if (!uuid[0] || identity_read(store_dirfd, &id) < 0)
		return 0;
	rc = identity_load(kv, secret);
	if (rc < 0)
		return rc;
	return (strcmp(id.uuid, uuid) == 0) !=
	       (memcmp(id.secret, secret, sizeof(secret)) == 0);
}

int identity_begin(struct kv *kv, const uint8_t secret[HASH_SECRET_BYTES])
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	struct attr root = { .mode = S_IFDIR | 0755, .nlink = 2 };

	root.atime_ns = root.mtime_ns = root.ctime_ns = wall_ns();
	root.uid = geteuid();
	root.gid = getegid();
	record_save(b, key_meta(META_SECRET), secret, HASH_SECRET_BYTES);
	attr_save(b, key_ino('A', ROOT_INO), &root);
	u64_save(b, key_meta(META_NEXT_INO), ROOT_INO + 1);
	return kv_write(kv, b);
}
