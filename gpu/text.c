/* text.c - see text.h. */
#include "gpu/text.h"

#include <stdio.h>

size_t text_utf8_length(const unsigned char *p, size_t left)
{
	/* The first byte's range, and the second's: no overlong forms, no
	 * surrogates, nothing above U+10FFFF. (Unicode, table 3-7.) */
	static const struct {
		unsigned char from, to, second_from, second_to, len;
	} forms[] = {
		{ 0x00, 0x7f, 0, 0, 1 },       { 0xc2, 0xdf, 0x80, 0xbf, 2 },
		{ 0xe0, 0xe0, 0xa0, 0xbf, 3 }, { 0xe1, 0xec, 0x80, 0xbf, 3 },
		{ 0xed, 0xed, 0x80, 0x9f, 3 }, { 0xee, 0xef, 0x80, 0xbf, 3 },
		{ 0xf0, 0xf0, 0x90, 0xbf, 4 }, { 0xf1, 0xf3, 0x80, 0xbf, 4 },
		{ 0xf4, 0xf4, 0x80, 0x8f, 4 },
	};

	for (size_t i = 0; i < sizeof(forms) / sizeof(*forms); i++) {
		if (p[0] < forms[i].from || p[0] > forms[i].to)
			continue;
		if (left < forms[i].len)
			return 0;
		if (forms[i].len > 1 &&
		    (p[1] < forms[i].second_from || p[1] > forms[i].second_to))
			return 0;
		for (size_t n = 2; n < forms[i].len; n++)
			if ((p[n] & 0xc0) != 0x80)
				return 0;
		return forms[i].len;
	}
	return 0;
}

bool text_is_utf8(const char *s)
{
	size_t left = strlen(s), step;

	for (; left > 0; s += step, left -= step) {
		step = text_utf8_length((const unsigned char *)s, left);
		if (step == 0)
			return false;
	}
	return true;
}

void text_put_json(struct bytes *b, const char *s)
{
	char escape[8];

	bytes_put_u8(b, '"');
	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;

		if (c == '"' || c == '\\') {
			bytes_put_u8(b, '\\');
			bytes_put_u8(b, c);
		} else if (c < ' ') {
			(void)snprintf(escape, sizeof(escape), "\\u%04x", c);
			bytes_put(b, escape, 6);
		} else {
			bytes_put_u8(b, c);
		}
	}
	bytes_put_u8(b, '"');
}
