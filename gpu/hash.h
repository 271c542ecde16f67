/*
 * hash.h - names of chunks, computed where the bytes are: the same XXH3-128 as
 * the store's (store/db/hash.h), in the same canonical byte order.
 *
 * Errors:  0 or a negative errno, with a sentence (say.h).
 * Threads: one hasher belongs to one thread at a time.
 */
#ifndef GPU_HASH_H
#define GPU_HASH_H

#include "gpu/driver.h"

#define CHUNK_HASH_BYTES 16
#define CHUNK_SECRET_BYTES 192

struct hasher;

struct hash_range { /* gets one digest */
	const void *data;
	size_t len;
};

/*
 * For data on `device`, or in host memory (-1: g may be NULL). The secret is
 * copied. -ENODEV: this library was built without kernels.
 */
int hasher_new(struct gpu *g, int device,
	       const uint8_t secret[CHUNK_SECRET_BYTES],
	       struct hasher **ret_hasher);
void hasher_free(struct hasher *h); /* h may be NULL */

/*
 * Hash `count` ranges, after what the stream s (of that device; host: NULL)
 * has so far, and wait for it. The buffers it needs are kept for the next run.
 */
int hasher_run(struct hasher *h, struct gpu_stream *s,
	       const struct hash_range *ranges, size_t count,
	       uint8_t (*digests)[CHUNK_HASH_BYTES]);

#endif
