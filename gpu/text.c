/* text.c - escape what JSON wants escaped: quotes and control characters. */
#include "gpu/text.h"

#include <stdio.h>

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
