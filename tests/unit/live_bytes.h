/*
 * live_bytes.h - bytes to write: no two chunks of them are alike, unless a seed
 * is used again.
 */
#ifndef TESTS_UNIT_LIVE_BYTES_H
#define TESTS_UNIT_LIVE_BYTES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define KIB 1024u
#define MIB (1024u * KIB)

/* The same seed gives the same bytes; no two chunks of them are alike. */
static inline void fill(void *buf, size_t len, uint64_t seed)
{
	uint64_t x = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
	uint8_t *p = buf;

	for (size_t i = 0; i < len; i += sizeof(x)) {
		size_t n = len - i < sizeof(x) ? len - i : sizeof(x);

		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		memcpy(p + i, &x, n);
	}
}

static inline uint8_t *filled(size_t len, uint64_t seed)
{
	uint8_t *p = malloc(len);

	assert_non_null(p);
	fill(p, len, seed);
	return p;
}

struct payload {
	uint64_t seed;
	size_t len;
};

/*
 * A safetensors file: `pad` more bytes in its header move every payload. The
 * caller frees it.
 */
static inline uint8_t *safetensors(const struct payload *t, size_t count,
				   size_t pad, size_t *ret_len)
{
	size_t payload = 0, at = 8, header_max = 256 + pad + count * 128;
	uint8_t *file;

	for (size_t i = 0; i < count; i++)
		payload += t[i].len;
	file = malloc(header_max + payload);
	assert_non_null(file);
	at += (size_t)sprintf((char *)file + at,
			      "{\"__metadata__\":{\"pad\":\"%*s\"}", (int)pad,
			      "");
	payload = 0;
	for (size_t i = 0; i < count; i++) {
		at += (size_t)sprintf((char *)file + at,
				      ",\"t%zu\":{\"dtype\":\"U8\",\"shape\":"
				      "[%zu],\"data_offsets\":[%zu,%zu]}",
				      i, t[i].len, payload, payload + t[i].len);
		payload += t[i].len;
	}
	file[at++] = '}';
	for (unsigned i = 0; i < 8; i++)
		file[i] = (uint8_t)((uint64_t)(at - 8) >> (8 * i));
	assert_true(at <= header_max);
	for (size_t i = 0; i < count; i++) {
		fill(file + at, t[i].len, t[i].seed);
		at += t[i].len;
	}
	*ret_len = at;
	return file;
}

#endif
