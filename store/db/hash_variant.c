/*
 * hash_variant.c - XXH3-128 compiled for one vector unit. CMake builds this
 * file once per variant with HASH_FUNCTION and the matching -m flags.
 */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "store/db/hash.h"

void HASH_FUNCTION(const uint8_t *secret, const void *data, size_t len,
		   uint8_t *ret_hash);

void HASH_FUNCTION(const uint8_t *secret, const void *data, size_t len,
		   uint8_t *ret_hash)
{
	XXH128_canonical_t c;

	XXH128_canonicalFromHash(&c, XXH3_128bits_withSecret(
					     data, len, secret,
					     HASH_SECRET_BYTES));
	__builtin_memcpy(ret_hash, c.digest, HASH_BYTES);
}
