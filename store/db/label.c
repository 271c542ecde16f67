/*
 * label.c - see label.h. Numbers are written in as few bytes as they need (7
 * bits in each), and extents as the distance to where the one before ended: a
 * file of some hundred extents fits.
 */
#include "store/db/label.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <xxhash.h>

#include "store/base/scope.h"

#define LABEL_MAGIC 0x4c424c31 /* "LBL1" */
/* Flags. One that a label lacks says what was before there was that flag. */
#define LABEL_IDENTITY 1
#define LABEL_BY_CONTENT 2
#define CHECK_BYTES 8
#define EXTENT_BYTES_MAX 40 /* four numbers of at most 10 bytes */
/* Who may not write the first keeps it in the second. */
#define LABEL_TRUSTED "trusted.ckptfs.label"
#define LABEL_USER "user.ckptfs.label"

static void put_number(struct bytes *out, uint64_t v)
{
	while (v >= 0x80) {
		bytes_put_u8(out, (uint8_t)(v | 0x80));
		v >>= 7;
	}
	bytes_put_u8(out, (uint8_t)v);
}

static uint64_t take_number(struct bytes_reader *r)
{
	uint64_t v = 0;

	for (unsigned shift = 0; shift < 64; shift += 7) {
		uint8_t byte = bytes_take_u8(r);

		v |= (uint64_t)(byte & 0x7f) << shift;
		if (!(byte & 0x80))
			return v;
	}
	r->bad = true;
	return 0;
}

/* Small for a small number of either sign; adding wraps. */
static uint64_t zigzag(uint64_t difference)
{
	return difference << 1 ^ (uint64_t)((int64_t)difference >> 63);
}

static uint64_t unzigzag(uint64_t v)
{
	return v >> 1 ^ (UINT64_C(0) - (v & 1));
}

static void put_extents(const struct label *l, struct bytes *out)
{
	uint64_t end = 0, image = l->image, image_end = 0;
	size_t count_at = out->len;
	uint16_t count = 0;

	bytes_put_u16(out, 0);
	for (size_t i = 0; !l->identity && i < l->listed; i++) {
		const struct extent *e = &l->extents[i];

		if (out->len + EXTENT_BYTES_MAX + CHECK_BYTES > LABEL_BYTES_MAX)
			break;
		put_number(out, e->offset - end);
		put_number(out, e->len);
		put_number(out, zigzag(e->image - image));
		put_number(out, zigzag(e->image_offset - image_end));
		end = e->offset + e->len;
		image = e->image;
		image_end = e->image_offset + e->len;
		count++;
	}
	if (out->failed)
		return;
	out->data[count_at] = (uint8_t)count;
	out->data[count_at + 1] = (uint8_t)(count >> 8);
}

void label_encode(const struct label *l, struct bytes *out)
{
	size_t path_len = strlen(l->path);

	bytes_put_u32(out, LABEL_MAGIC);
	bytes_put(out, l->uuid, LAYOUT_UUID_BYTES - 1);
	bytes_put_u64(out, l->image);
	bytes_put_u64(out, l->ino);
	bytes_put_u64(out, l->generation);
	bytes_put_u64(out, l->size_bytes);
	bytes_put_u64(out, (uint64_t)l->mtime_ns);
	bytes_put_u32(out, l->mode);
	bytes_put_u32(out, l->uid);
	bytes_put_u32(out, l->gid);
	bytes_put_u64(out, l->domain);
	bytes_put(out, l->digest, sizeof(l->digest));
	bytes_put_u8(out, (l->identity ? LABEL_IDENTITY : 0) |
				  (l->by_content ? LABEL_BY_CONTENT : 0));
	bytes_put_u16(out, (uint16_t)path_len);
	bytes_put(out, l->path, path_len);
	put_number(out, l->extent_count);
	put_extents(l, out);
	if (!out->failed)
		bytes_put_u64(out, XXH3_64bits(out->data, out->len));
}

static int take_extents(struct bytes_reader *r, struct label *l)
{
	uint64_t end = 0, image = l->image, image_end = 0;

	l->extent_count = take_number(r);
	l->listed = bytes_take_u16(r);
	if (r->bad || l->listed > l->extent_count)
		return -EIO;
	l->extents = calloc(l->listed + 1, sizeof(*l->extents));
	if (!l->extents)
		return -ENOMEM;
	for (size_t i = 0; i < l->listed; i++) {
		struct extent *e = &l->extents[i];
		uint64_t gap = take_number(r);

		e->len = take_number(r);
		e->image = image + unzigzag(take_number(r));
		e->image_offset = image_end + unzigzag(take_number(r));
		if (r->bad || gap > l->size_bytes - end || e->len == 0 ||
		    e->len > l->size_bytes - end - gap)
			return -EIO;
		e->offset = end + gap;
		end = e->offset + e->len;
		image = e->image;
		image_end = e->image_offset + e->len;
	}
	return 0;
}

int label_decode(const void *p, size_t len, struct label *ret)
{
	struct bytes_reader r = bytes_reader_of(p, len);
	const void *text;
	uint64_t sum;
	uint8_t flags;
	size_t n;
	int rc;

	memset(ret, 0, sizeof(*ret));
	if (len < CHECK_BYTES)
		return -EIO;
	r.left -= CHECK_BYTES;
	memcpy(&sum, (const uint8_t *)p + r.left, sizeof(sum));
	if (le64toh(sum) != XXH3_64bits(p, r.left) ||
	    bytes_take_u32(&r) != LABEL_MAGIC)
		return -EIO;
	text = bytes_take(&r, LAYOUT_UUID_BYTES - 1);
	if (text)
		memcpy(ret->uuid, text, LAYOUT_UUID_BYTES - 1);
	ret->image = bytes_take_u64(&r);
	ret->ino = bytes_take_u64(&r);
	ret->generation = bytes_take_u64(&r);
	ret->size_bytes = bytes_take_u64(&r);
	ret->mtime_ns = (int64_t)bytes_take_u64(&r);
	ret->mode = bytes_take_u32(&r);
	ret->uid = bytes_take_u32(&r);
	ret->gid = bytes_take_u32(&r);
	ret->domain = bytes_take_u64(&r);
	text = bytes_take(&r, sizeof(ret->digest));
	if (text)
		memcpy(ret->digest, text, sizeof(ret->digest));
	flags = bytes_take_u8(&r);
	ret->identity = (flags & LABEL_IDENTITY) != 0;
	ret->by_content = (flags & LABEL_BY_CONTENT) != 0;
	n = bytes_take_u16(&r);
	text = n <= LABEL_PATH_MAX ? bytes_take(&r, n) : NULL;
	if (!text || memchr(text, 0, n) || ret->size_bytes > INT64_MAX)
		return -EIO;
	memcpy(ret->path, text, n);
	rc = take_extents(&r, ret);
	if (rc == 0 && (r.bad || r.left != 0))
		rc = -EIO;
	if (rc < 0)
		label_release(ret);
	return rc;
}

void label_release(struct label *l)
{
	free(l->extents);
	l->extents = NULL;
}

int label_set(int fd, const struct bytes *encoded)
{
	if (geteuid() == 0 && fsetxattr(fd, LABEL_TRUSTED, encoded->data,
					encoded->len, 0) == 0)
		return 0;
	return fsetxattr(fd, LABEL_USER, encoded->data, encoded->len, 0) < 0 ?
		       -errno :
		       0;
}

int label_get(int fd, struct label *ret)
{
	uint8_t value[LABEL_BYTES_MAX];
	ssize_t n = fgetxattr(fd, LABEL_TRUSTED, value, sizeof(value));

	if (n < 0)
		n = fgetxattr(fd, LABEL_USER, value, sizeof(value));
	if (n < 0)
		return errno == ERANGE ? -EIO : -ENODATA;
	return label_decode(value, (size_t)n, ret);
}
