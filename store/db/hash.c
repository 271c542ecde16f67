/*
 * hash.c - see hash.h. Distributions build libxxhash for the oldest CPU of
 * their architecture; hash_variant.c is compiled here once per vector unit
 * with xxHash's inline mode, and the machine picks one at its first call.
 */
#include "store/db/hash.h"

#include <string.h>

typedef void (*hash_fn)(const uint8_t *secret, const void *data, size_t len,
			uint8_t *ret_hash);

void hash_generic(const uint8_t *, const void *, size_t, uint8_t *);
#if defined(__x86_64__)
void hash_avx2(const uint8_t *, const void *, size_t, uint8_t *);
void hash_avx512(const uint8_t *, const void *, size_t, uint8_t *);
#endif

static hash_fn hash_chosen = hash_generic;
static const char *hash_name = "generic";

__attribute__((constructor)) static void hash_choose(void)
{
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx512f")) {
		hash_chosen = hash_avx512;
		hash_name = "avx512";
	} else if (__builtin_cpu_supports("avx2")) {
		hash_chosen = hash_avx2;
		hash_name = "avx2";
	}
#endif
}

void chunk_hash(const uint8_t secret[HASH_SECRET_BYTES], const void *data,
		size_t len, uint8_t ret_hash[HASH_BYTES])
{
	hash_chosen(secret, data, len, ret_hash);
}

const char *chunk_hash_variant(void)
{
	return hash_name;
}
