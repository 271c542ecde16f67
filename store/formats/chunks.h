/*
 * chunks.h - what is cut, and what comes of it: a file that can be read, and
 * the lengths of its chunks. cut.h has the rule.
 */
#ifndef STORE_FORMATS_CHUNKS_H
#define STORE_FORMATS_CHUNKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/io.h"

/* The unit of hashing and sharing; the last chunk of a payload is shorter. */
#ifndef CHUNK_BYTES_MAX /* a simulator's files are small */
#define CHUNK_BYTES_MAX (UINT32_C(1) << 20)
#endif
/* A run of neighbouring pieces that are all shorter than this is one chunk. */
#define CHUNK_BYTES_MIN (UINT32_C(16) << 10)

/* No longer header (safetensors) or directory (zip) is looked at. */
#define CUT_HEADER_BYTES_MAX (UINT32_C(100) << 20)
/* After so many chunks what is left of the file is one payload. */
#define CUT_CHUNKS_MAX (UINT32_C(1) << 22)
/* No larger file is cut: it is what ext4 can hold, and images lie there. */
#define CUT_FILE_BYTES_MAX ((UINT64_C(1) << 44) - 4096)

struct cut_source {
	/*
	 * Read exactly len bytes at off into buf: 0, or -errno. The cutter
	 * asks only for ranges inside [0, size_bytes).
	 */
	int (*read)(void *self, void *buf, size_t len, uint64_t off);
	void *self;
	uint64_t size_bytes;
};

/* For cut_source.read: self is a descriptor, as an intptr_t. */
static inline int cut_read_fd(void *self, void *buf, size_t len, uint64_t off)
{
	return io_read_full((int)(intptr_t)self, buf, len, off);
}

/* A part of a file that is cut by itself. */
struct cut_piece {
	uint64_t at, bytes;
	bool by_content; /* else into chunks of CHUNK_BYTES_MAX */
};

/* Chunk lengths in file order; together they cover the file exactly. */
struct cut {
	uint32_t *len; /* owned, count entries, each 1..CHUNK_BYTES_MAX */
	size_t count;
	size_t capacity;
	const char *format; /* "torch_zip", "safetensors", "npy" or "plain" */
};

/* Free the lengths and leave c empty; NULL is a no-op. */
static inline void cut_release(struct cut *c)
{
	if (!c)
		return;
	free(c->len);
	memset(c, 0, sizeof(*c));
}

#endif
