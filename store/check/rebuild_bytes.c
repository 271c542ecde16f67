/*
 * rebuild_bytes.c - does a file consist of bytes that are there, and are they
 * what was stored? A content of a database names chunks with hashes; a label
 * names places, and the file is cut anew, which gives the same chunks, as its
 * digest proves. Each chunk is read once, however many files share it, and a
 * hole is not read at all.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/base/vec.h"
#include "store/check/rebuild_work.h"
#include "store/formats/cut.h"

/* The chunk of this place, or the free slot where it belongs. */
static struct rebuild_chunk *slot_of(const struct rebuild_table *t,
				     uint64_t image, uint64_t offset)
{
	const uint64_t key[] = { image, offset };
	struct rebuild_chunk *c;

	for (size_t i = (size_t)XXH3_64bits(key, sizeof(key));; i++) {
		c = &t->at[i & (t->capacity - 1)];
		if (c->image == 0 || (c->image == image && c->offset == offset))
			return c;
	}
}

static struct rebuild_chunk *find(const struct rebuild_table *t, uint64_t image,
				  uint64_t offset)
{
	struct rebuild_chunk *c =
		t->capacity > 0 ? slot_of(t, image, offset) : NULL;

	return c && c->image != 0 ? c : NULL;
}

static int table_grow(struct rebuild_table *t)
{
	struct rebuild_table big = { .count = t->count };

	big.capacity = t->capacity ? 2 * t->capacity : 1024;
	big.at = calloc(big.capacity, sizeof(*big.at));
	if (!big.at)
		return -ENOMEM;
	for (size_t i = 0; i < t->capacity; i++)
		if (t->at[i].image != 0)
			*slot_of(&big, t->at[i].image, t->at[i].offset) =
				t->at[i];
	free(t->at);
	*t = big;
	return 0;
}

struct rebuild_chunk *rebuild_add(struct rebuild_table *t, uint64_t image,
				  uint64_t offset)
{
	struct rebuild_chunk *c;

	if (2 * t->count >= t->capacity && table_grow(t) < 0)
		return NULL;
	c = slot_of(t, image, offset);
	if (c->image == 0) {
		c->image = image;
		c->offset = offset;
		t->count++;
	}
	return c;
}

/* Why the chunk's bytes cannot be had; NULL: they are what was stored. */
static const char *chunk_lacks(struct rebuild *r, struct rebuild_chunk *c)
{
	uint8_t hash[HASH_BYTES];
	int fd = rebuild_image(r, c->image);

	if (fd < 0)
		return "its image is gone: it was deleted or replaced since";
	if (c->state == 0) {
		c->state = -1;
		if (c->len <= CHUNK_BYTES_MAX &&
		    io_read_full(fd, r->buffer, c->len, c->offset) == 0) {
			chunk_hash(r->secret, r->buffer, c->len, hash);
			if (memcmp(hash, c->hash, sizeof(hash)) == 0)
				c->state = 1;
		}
	}
	return c->state > 0 ? NULL
			    : "its bytes are not what was stored: it was "
			      "deleted or replaced since, or is damaged";
}

/* Why a chunk of the content cannot be had; or all are there and `count`ed. */
static const char *each_chunk(struct rebuild *r, const struct content *f,
			      bool count)
{
	const char *reason = NULL;

	for (size_t i = 0; !reason && i < f->extent_count; i++) {
		const struct extent *e = &f->extents[i];
		uint64_t at = e->image_offset, end = at + e->len;

		while (!reason && at < end) {
			struct rebuild_chunk *c =
				find(&r->chunks, e->image, at);

			if (!c || c->len == 0 || c->len > end - at)
				return "the database lacks a part of it";
			if (count)
				c->refs++;
			else
				reason = chunk_lacks(r, c);
			at += c->len;
		}
	}
	return reason;
}

const char *rebuild_use(struct rebuild *r, const struct content *f)
{
	const char *reason = each_chunk(r, f, false);

	return reason ? reason : each_chunk(r, f, true);
}

/* --- a label --- */

struct source {
	struct rebuild *r;
	const struct label *l;
	/* Of the part that was looked at last: data, and the hole behind it. */
	uint64_t data_at, hole_at;
};

/* The part that has the file's byte at `offset`; the next one: its beginning.
 */
static bool place_of(const struct label *l, uint64_t offset, struct extent *ret,
		     uint64_t *ret_next)
{
	*ret_next = l->size_bytes;
	if (l->identity) {
		*ret = (struct extent){ 0, l->size_bytes, l->image, 0 };
		return true;
	}
	for (size_t i = 0; i < l->listed; i++) {
		const struct extent *e = &l->extents[i];

		if (offset >= e->offset && offset < e->offset + e->len) {
			*ret = *e;
			return true;
		}
		if (e->offset > offset) {
			*ret_next = e->offset;
			break;
		}
	}
	return false;
}

/* Bytes of the file that the label is of; what no part has is zero. */
static int source_read(void *self, void *buf, size_t len, uint64_t off)
{
	const struct source *s = self;
	uint8_t *to = buf;

	while (len > 0) {
		struct extent e;
		uint64_t next;
		size_t n;

		if (place_of(s->l, off, &e, &next)) {
			uint64_t left = e.offset + e.len - off;
			int fd = rebuild_image(s->r, e.image);
			int rc;

			n = left < len ? (size_t)left : len;
			if (fd < 0)
				return -ENOENT;
			rc = io_read_full(fd, to, n,
					  e.image_offset + (off - e.offset));
			if (rc < 0)
				return rc;
		} else {
			n = next - off < len ? (size_t)(next - off) : len;
			memset(to, 0, n);
		}
		to += n;
		off += n;
		len -= n;
	}
	return 0;
}

/*
 * The part e begins at or before `off`: where in it the next data begins and
 * ends, in offsets of the file. An image that is too short has no holes, but
 * is read, and found out.
 */
static void seek_part(struct source *s, const struct extent *e, uint64_t off)
{
	uint64_t end = e->offset + e->len,
		 to_file = e->offset - e->image_offset;
	int fd = rebuild_image(s->r, e->image);
	struct stat sb;
	off_t at;

	s->data_at = off;
	s->hole_at = end;
	if (fd < 0 || fstat(fd, &sb) < 0 ||
	    (uint64_t)sb.st_size < e->image_offset + e->len)
		return;
	at = lseek(fd, (off_t)(off - to_file), SEEK_DATA);
	if (at < 0 && errno != ENXIO)
		return; /* no such call here */
	if (at < 0 || (uint64_t)at + to_file >= end) {
		s->data_at = end;
		return;
	}
	s->data_at = (uint64_t)at + to_file;
	at = lseek(fd, at, SEEK_HOLE);
	if (at >= 0 && (uint64_t)at + to_file < end)
		s->hole_at = (uint64_t)at + to_file;
}

/* The first offset >= off that is not in a hole; off only grows. */
static uint64_t source_data_at(void *self, uint64_t off)
{
	struct source *s = self;
	uint64_t from = off, next;
	struct extent e;

	while (s->hole_at <= off && from < s->l->size_bytes) {
		if (!place_of(s->l, from, &e, &next)) {
			from = next;
			continue;
		}
		seek_part(s, &e, from);
		if (s->data_at < s->hole_at)
			break;
		from = s->hole_at; /* a hole to the end of the part */
		s->hole_at = 0;
	}
	if (from >= s->l->size_bytes)
		return UINT64_MAX;
	return off > s->data_at ? off : s->data_at;
}

/* One chunk of the file, whose bytes are in the buffer. 0: its place is odd. */
static int label_chunk(struct rebuild *r, const struct label *l,
		       uint64_t offset, uint32_t len, struct content *c,
		       uint8_t hash[HASH_BYTES])
{
	struct extent e = { 0 };
	struct rebuild_chunk *k;
	uint64_t next;

	memset(hash, 0, HASH_BYTES);
	if (bytes_are_zero(r->buffer, len))
		return 1;
	if (!place_of(l, offset, &e, &next) || offset + len > e.offset + e.len)
		return 0;
	chunk_hash(r->secret, r->buffer, len, hash);
	e = (struct extent){ offset, len, e.image,
			     e.image_offset + (offset - e.offset) };
	k = rebuild_add(&r->chunks, e.image, e.image_offset);
	if (!k)
		return -ENOMEM;
	if (k->len == 0) {
		k->len = len;
		k->domain = l->domain;
		memcpy(k->hash, hash, HASH_BYTES);
	}
	if (k->len != len || memcmp(k->hash, hash, HASH_BYTES) != 0)
		return 0;
	k->state = 1;
	c->data_bytes += len;
	extent_append(c->extents, &c->extent_count, &e);
	return 1;
}

static bool is_native(struct rebuild *r, const struct content *c, uint64_t own)
{
	struct stat sb;
	int fd;

	for (size_t i = 0; i < c->extent_count; i++)
		if (c->extents[i].image != c->extents[0].image ||
		    c->extents[i].offset != c->extents[i].image_offset)
			return false;
	if (c->extent_count == 0 ||
	    (c->data_bytes != c->size_bytes && c->extents[0].image != own))
		return false;
	fd = rebuild_image(r, c->extents[0].image);
	return fd >= 0 && fstat(fd, &sb) == 0 &&
	       (uint64_t)sb.st_size == c->size_bytes;
}

/* The next chunk of the file, cut already, becomes a part of the content. */
static int add_chunk(struct source *s, uint64_t offset, uint32_t len,
		     struct content *c, size_t *capacity, struct digest *digest)
{
	uint8_t hash[HASH_BYTES] = { 0 };
	int rc = vec_grow(&c->extents, c->extent_count, capacity,
			  sizeof(*c->extents));

	if (rc < 0)
		return rc;
	if (offset + len > source_data_at(s, offset)) {
		rc = source_read(s, s->r->buffer, len, offset);
		if (rc == 0)
			rc = label_chunk(s->r, s->l, offset, len, c, hash);
		if (rc != 1)
			return rc;
	}
	digest_add(digest, hash, len);
	return 1;
}

static int content_of_cut(struct source *s, struct cutter *cutter,
			  struct content *c, const char **ret_reason)
{
	struct digest *digest = digest_new();
	uint64_t offset = 0;
	size_t capacity = 0;
	uint32_t len;
	int rc;

	CHECK(digest);
	while ((rc = cutter_next(cutter, &len)) == 1) {
		rc = add_chunk(s, offset, len, c, &capacity, digest);
		if (rc != 1)
			break;
		offset += len;
	}
	digest_end(digest, c->digest);
	if (rc < 0)
		return rc;
	*ret_reason = "its parts do not lie where its label says";
	if (offset < s->l->size_bytes)
		return 0;
	if (!s->r->secret_is_new &&
	    memcmp(c->digest, s->l->digest, sizeof(c->digest)) != 0) {
		*ret_reason = "its bytes are not those that its label was "
			      "made of: it was not finished, or is damaged";
		return 0;
	}
	return 1;
}

int rebuild_content(struct rebuild *r, const struct label *l,
		    struct content *ret, const char **ret_reason)
{
	struct source s = { .r = r, .l = l };
	const struct cut_source source = { .read = source_read,
					   .self = &s,
					   .size_bytes = l->size_bytes };
	const struct cut_bytes bytes = { .data_at = source_data_at,
					 .self = &s };
	struct cutter *cutter;
	int rc;

	memset(ret, 0, sizeof(*ret));
	*ret_reason = "it has so many parts that its label does not have all";
	if (!l->identity && l->listed < l->extent_count)
		return 0;
	*ret_reason = "its bytes are not all there";
	rc = cutter_open(&source, &bytes,
			 l->by_content ? CUT_BY_CONTENT : CUT_FIXED, &cutter);
	if (rc < 0)
		return rc == -ENOMEM ? rc : 0;
	ret->generation = l->generation;
	ret->size_bytes = l->size_bytes;
	ret->mtime_ns = l->mtime_ns;
	ret->kind = CONTENT_EXTENTS;
	rc = content_of_cut(&s, cutter, ret, ret_reason);
	cutter_close(cutter);
	if (rc == 1)
		ret->native = is_native(r, ret, l->image);
	else
		content_release(ret);
	return rc == -ENOMEM ? rc : rc == 1 ? 1 : 0;
}
