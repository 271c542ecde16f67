/*
 * identity.c - see identity.h. A text of four lines, so that it can be copied
 * by hand: a title, the uuid, the secret in hex, and a check of these three.
 */
#include "store/db/identity.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "store/base/io.h"
#include "store/base/scope.h"

#define TMP LAYOUT_SECRET_FILE ".tmp"
#define TITLE "ckptfs secret"
#define TEXT_BYTES (64 + LAYOUT_UUID_BYTES + 2 * HASH_SECRET_BYTES + 64)

/* All of the text; its length. */
static size_t text_of(const struct identity *id, char ret[TEXT_BYTES])
{
	char hex[2 * HASH_SECRET_BYTES + 1];
	int len;

	for (size_t i = 0; i < HASH_SECRET_BYTES; i++)
		(void)snprintf(hex + 2 * i, 3, "%02x", id->secret[i]);
	len = snprintf(ret, TEXT_BYTES, TITLE "\nuuid %s\nsecret %s\n",
		       id->uuid, hex);
	CHECK(len > 0 && len < TEXT_BYTES);
	len += snprintf(ret + len, (size_t)(TEXT_BYTES - len),
			"check %016llx\n",
			(unsigned long long)XXH3_64bits(ret, (size_t)len));
	CHECK(len < TEXT_BYTES);
	return (size_t)len;
}

static int parse(const char *text, struct identity *ret)
{
	char hex[2 * HASH_SECRET_BYTES + 1] = "", again[TEXT_BYTES];

	memset(ret, 0, sizeof(*ret));
	if (sscanf(text, TITLE " uuid %36[0-9a-f-] secret %384[0-9a-f]",
		   ret->uuid, hex) != 2 ||
	    strlen(hex) != sizeof(hex) - 1)
		return -EIO;
	for (size_t i = 0; i < HASH_SECRET_BYTES; i++) {
		unsigned byte = 0;

		(void)sscanf(hex + 2 * i, "%2x", &byte);
		ret->secret[i] = (uint8_t)byte;
	}
	(void)text_of(ret, again);
	return strcmp(text, again) == 0 ? 0 : -EIO;
}

int identity_read(int store_dirfd, struct identity *ret)
{
	SCOPED(scope_close)
	int fd = openat(store_dirfd, LAYOUT_SECRET_FILE,
			O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	char text[TEXT_BYTES + 1];
	size_t len = 0;

	if (fd < 0)
		return errno == ENOENT ? -ENOENT : -EIO;
	if (io_read(fd, text, TEXT_BYTES, 0, &len) < 0)
		return -EIO;
	text[len] = 0;
	return parse(text, ret);
}

int identity_write(int store_dirfd, const struct identity *id)
{
	SCOPED(scope_close)
	int fd = openat(store_dirfd, TMP,
			O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC,
			0600);
	char text[TEXT_BYTES];
	size_t len = text_of(id, text);
	int rc;

	if (fd < 0)
		return -errno;
	rc = io_write_full(fd, text, len, 0);
	if (rc == 0 && (fsync(fd) < 0 ||
			renameat(store_dirfd, TMP, store_dirfd,
				 LAYOUT_SECRET_FILE) < 0 ||
			fsync(store_dirfd) < 0))
		rc = -errno;
	return rc;
}
