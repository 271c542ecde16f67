/*
 * trailer.c - a trailer in bytes. What was understood of one is encoded once
 * more and compared: so every byte of it is looked at, also those that have no
 * meaning yet, and what one version reads there is only ever one text.
 */
#include "store/shared/trailer.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "store/base/bytes.h"
#include "store/base/scope.h"

#define MAGIC "ckptrail"
#define MAGIC_BYTES 8
#define VERSION 1u
#define FLAG_WRITING 1u
#define UUID_CHARACTERS "0123456789abcdef-"
#define NODE_CHARACTERS \
	"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-"

enum {
	AT_VERSION = 8,
	AT_FLAGS = 12,
	AT_UUID = 16,
	AT_NUMBER = 56,
	AT_SIZE = 64,
	AT_MODE = 72,
	AT_ATIME = 80,
	AT_MTIME = 88,
	AT_NODE = 96,
	AT_ZEROS = 160,
	AT_CHECK = TRAILER_BYTES - 8,
};
#define UUID_FIELD (AT_NUMBER - AT_UUID)
#define NODE_FIELD (AT_ZEROS - AT_NODE)
_Static_assert(UUID_FIELD >= LAYOUT_UUID_BYTES, "a UUID fits in its field");
_Static_assert(NODE_FIELD >= SHARED_NODE_MAX + 1, "a name fits in its field");

bool shared_node_is_name(const char *name)
{
	size_t len = strlen(name);

	return len >= 1 && len <= SHARED_NODE_MAX && name[0] != '.' &&
	       strspn(name, NODE_CHARACTERS) == len;
}

bool trailer_is_fine(const struct trailer *t)
{
	/* Neither text need end where it should. */
	return memchr(t->node, 0, sizeof(t->node)) &&
	       shared_node_is_name(t->node) &&
	       memchr(t->uuid, 0, sizeof(t->uuid)) &&
	       strspn(t->uuid, UUID_CHARACTERS) == LAYOUT_UUID_BYTES - 1 &&
	       t->size_bytes <= INT64_MAX - TRAILER_BYTES && S_ISREG(t->mode) &&
	       (t->mode & ~(uint32_t)(S_IFMT | ALLPERMS)) == 0 &&
	       (t->mode & S_ISVTX) == 0;
}

static void put(uint8_t *out, size_t at, uint64_t value, size_t len)
{
	value = htole64(value);
	memcpy(out + at, &value, len);
}

static uint64_t get(const uint8_t *in, size_t at, size_t len)
{
	uint64_t value = 0;

	memcpy(&value, in + at, len);
	return le64toh(value);
}

void trailer_encode(const struct trailer *t, uint8_t out[TRAILER_BYTES])
{
	CHECK(trailer_is_fine(t));
	memset(out, 0, TRAILER_BYTES);
	memcpy(out, MAGIC, MAGIC_BYTES);
	put(out, AT_VERSION, VERSION, 4);
	put(out, AT_FLAGS, t->writing ? FLAG_WRITING : 0, 4);
	memcpy(out + AT_UUID, t->uuid, strlen(t->uuid));
	put(out, AT_NUMBER, t->number, 8);
	put(out, AT_SIZE, t->size_bytes, 8);
	put(out, AT_MODE, t->mode, 4);
	put(out, AT_ATIME, (uint64_t)t->atime_ns, 8);
	put(out, AT_MTIME, (uint64_t)t->mtime_ns, 8);
	memcpy(out + AT_NODE, t->node, strlen(t->node));
	put(out, AT_CHECK, XXH3_64bits(out, AT_CHECK), 8);
}

int trailer_decode(const uint8_t in[TRAILER_BYTES], struct trailer *ret)
{
	uint8_t again[TRAILER_BYTES];
	struct trailer t = {
		.number = get(in, AT_NUMBER, 8),
		.size_bytes = get(in, AT_SIZE, 8),
		.mode = (uint32_t)get(in, AT_MODE, 4),
		.writing = get(in, AT_FLAGS, 4) & FLAG_WRITING,
		.atime_ns = (int64_t)get(in, AT_ATIME, 8),
		.mtime_ns = (int64_t)get(in, AT_MTIME, 8),
	};

	if (memcmp(in, MAGIC, MAGIC_BYTES) != 0)
		return -ENODATA;
	memcpy(t.uuid, in + AT_UUID, sizeof(t.uuid));
	memcpy(t.node, in + AT_NODE, sizeof(t.node));
	if (!trailer_is_fine(&t))
		return -EUCLEAN;
	trailer_encode(&t, again);
	if (memcmp(in, again, TRAILER_BYTES) != 0)
		return -EUCLEAN;
	*ret = t;
	return 0;
}
