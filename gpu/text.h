/* text.h - UTF-8, checked, and as strings of JSON. */
#ifndef GPU_TEXT_H
#define GPU_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "store/base/bytes.h"

/* Length of the UTF-8 sequence at p, which has `left` bytes; 0: it is none. */
size_t text_utf8_length(const unsigned char *p, size_t left);
bool text_is_utf8(const char *s);
/* s, which is UTF-8, in quotes and escaped. */
void text_put_json(struct bytes *b, const char *s);

#endif
