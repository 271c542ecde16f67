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

/* Which variant runs: "avx512", "avx2" or "generic". */
const char *chunk_hash_variant(void);

#endif
