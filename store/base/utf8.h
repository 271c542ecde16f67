/* utf8.h - is a text UTF-8? */
#ifndef STORE_BASE_UTF8_H
#define STORE_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length of the character at p, of which there are `left` bytes; 0: none. */
static inline size_t utf8_length(const void *p, size_t left)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	const uint8_t *b = p;
	size_t len = 0;
	uint32_t code;

	if (left == 0)
		return 0;
	if (b[0] < 0x80)
		return 1;
	if (b[0] >= 0xc0 && b[0] < 0xe0)
		len = 2;
	else if (b[0] >= 0xe0 && b[0] < 0xf0)
		len = 3;
	else if (b[0] >= 0xf0 && b[0] < 0xf8)
		len = 4;
	if (len == 0 || len > left)
		return 0;
	code = b[0] & (0x7fu >> len);
	for (size_t i = 1; i < len; i++) {
		if ((b[i] & 0xc0) != 0x80)
			return 0;
		code = code << 6 | (b[i] & 0x3fu);
	}
	if (code < least[len] || code > 0x10ffff ||
	    (code >= 0xd800 && code < 0xe000))
		return 0;
	return len;
}

static inline bool utf8_is(const void *p, size_t len)
{
	const uint8_t *b = p;

	for (size_t at = 0; at < len;) {
		size_t step = utf8_length(b + at, len - at);

		if (step == 0)
			return false;
		at += step;
	}
	return true;
}

#endif
