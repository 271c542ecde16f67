/* text.h - UTF-8 (store/base/utf8.h) as strings of JSON. */
#ifndef GPU_TEXT_H
#define GPU_TEXT_H

#include "store/base/bytes.h"

/* s, which is UTF-8, in quotes and escaped. */
void text_put_json(struct bytes *b, const char *s);

#endif
