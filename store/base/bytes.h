/*
 * bytes.h - fixed-width integers in byte strings, and a growing buffer.
 *
 * Keys are big-endian (they sort), values little-endian. A reader never looks
 * past its end: once something was too short, `bad` stays set and every
 * further read gives 0; callers test it once, at the end.
 */
#ifndef STORE_BASE_BYTES_H
#define STORE_BASE_BYTES_H

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct bytes {
	uint8_t *data; /* owned; NULL when capacity is 0 */
	size_t len;
	size_t capacity;
	bool failed; /* an allocation failed: contents are not complete */
};

static inline void bytes_release(struct bytes *b)
{
	free(b->data);
	memset(b, 0, sizeof(*b));
}

static inline void bytes_put(struct bytes *b, const void *p, size_t len)
{
	if (b->failed)
		return;
	if (len > b->capacity - b->len) {
		size_t want = b->capacity ? b->capacity * 2 : 256;
		uint8_t *grown;

		while (want - b->len < len)
			want *= 2;
		grown = realloc(b->data, want);
		if (!grown) {
			b->failed = true;
			return;
		}
		b->data = grown;
		b->capacity = want;
	}
	if (len > 0)
		memcpy(b->data + b->len, p, len);
	b->len += len;
}

/* The low `len` bytes of v. */
static inline void bytes_put_le(struct bytes *b, uint64_t v, size_t len)
{
	v = htole64(v);
	bytes_put(b, &v, len);
}

struct bytes_reader {
	const uint8_t *at;
	size_t left;
	bool bad;
};

static inline struct bytes_reader bytes_reader_of(const void *p, size_t len)
{
	return (struct bytes_reader){ .at = p, .left = len };
}

/* The next len bytes (borrowed), or NULL and `bad` when there are fewer. */
static inline const void *bytes_take(struct bytes_reader *r, size_t len)
{
	const void *p = r->at;

	if (r->bad || len > r->left) {
		r->bad = true;
		return NULL;
	}
	r->at += len;
	r->left -= len;
	return p;
}

/* The low `len` bytes of a number. */
static inline uint64_t bytes_take_le(struct bytes_reader *r, size_t len)
{
	const void *p = bytes_take(r, len);
	uint64_t v = 0;

	if (p)
		memcpy(&v, p, len);
	return le64toh(v);
}

/* bytes_put_u8() and bytes_take_u8(), and so on: numbers of that width. */
#define BYTES_NUMBER(bits)                                           \
	static inline void bytes_put_u##bits(struct bytes *b,        \
					     uint##bits##_t v)       \
	{                                                            \
		bytes_put_le(b, v, sizeof(v));                       \
	}                                                            \
	static inline uint##bits##_t bytes_take_u##bits(             \
		struct bytes_reader *r)                              \
	{                                                            \
		return (uint##bits##_t)bytes_take_le(r, (bits) / 8); \
	}
BYTES_NUMBER(8)
BYTES_NUMBER(16)
BYTES_NUMBER(32)
BYTES_NUMBER(64)

/* len is at least 1. */
static inline bool bytes_are_zero(const uint8_t *p, size_t len)
{
	return p[0] == 0 && memcmp(p, p + 1, len - 1) == 0;
}

static inline void put_be64(uint8_t *p, uint64_t v)
{
	v = htobe64(v);
	memcpy(p, &v, sizeof(v));
}

static inline uint64_t get_be64(const uint8_t *p)
{
	uint64_t v;

	memcpy(&v, p, sizeof(v));
	return be64toh(v);
}

#endif
