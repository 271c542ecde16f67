/*
 * hash.h - the name of a chunk: XXH3-128 keyed with the store's own secret, so
 * that nobody outside the store can make two chunks collide. The drain still
 * compares bytes before it shares; see drain.c.
 *
 * The widest vector unit of the machine is used; every variant gives the same
 * value (tested).
 */
#ifndef STORE_HASH_H
#define STORE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define HASH_BYTES 16
#define HASH_SECRET_BYTES 192

/* ret_hash in canonical (big-endian) order, as xxhsum prints it. */
void chunk_hash(const uint8_t secret[HASH_SECRET_BYTES], const void *data,
		size_t len, uint8_t ret_hash[HASH_BYTES]);

/*
 * The digest of a content: XXH3-128 of its chunks' hashes and lengths, in order
 * (all zeros stand for a chunk without a byte that is not zero).
 */
struct digest;
struct digest *digest_new(void); /* NULL: out of memory */
void digest_add(struct digest *d, const uint8_t hash[HASH_BYTES], uint32_t len);
/* What it is in the end; d is freed. */
void digest_end(struct digest *d, uint8_t ret[HASH_BYTES]);

/* Which variant runs: "avx512", "avx2" or "generic". */
const char *chunk_hash_variant(void);

#endif
