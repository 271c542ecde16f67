/*
 * magic.h - what a file is that is not understood here, by its first bytes.
 */
#ifndef STORE_FORMATS_MAGIC_H
#define STORE_FORMATS_MAGIC_H

#include "store/formats/chunks.h"

struct magic {
	const char *format; /* one word */
	const char *note; /* what it is, and what looks into it */
};

/* How much of a file is looked at. */
#define MAGIC_BYTES 1024

/* What the first len bytes are of; NULL: not known. */
const struct magic *magic_of(const void *bytes, size_t len);

#endif
