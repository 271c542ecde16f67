/*
 * hash.c - see hash.h. Distributions build libxxhash for the oldest CPU of
 * their architecture; hash_variant.c is compiled here once per vector unit
 * with xxHash's inline mode, and the machine picks one at its first call.
 */
#include "store/db/hash.h"

#include <endian.h>
#include <string.h>
#include <xxhash.h>

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

/* It has no fields: the state of xxHash is all that it is. */
struct digest *digest_new(void)
{
	XXH3_state_t *state = XXH3_createState();

	if (state)
		(void)XXH3_128bits_reset(state);
	return (struct digest *)state;
}

void digest_add(struct digest *d, const uint8_t hash[HASH_BYTES], uint32_t len)
{
	XXH3_state_t *state = (XXH3_state_t *)d;

	len = htole32(len);
	(void)XXH3_128bits_update(state, hash, HASH_BYTES);
	(void)XXH3_128bits_update(state, &len, sizeof(len));
}

void digest_end(struct digest *d, uint8_t ret[HASH_BYTES])
{
	XXH3_state_t *state = (XXH3_state_t *)d;
	XXH128_canonical_t canon;

	XXH128_canonicalFromHash(&canon, XXH3_128bits_digest(state));
	memcpy(ret, canon.digest, HASH_BYTES);
	(void)XXH3_freeState(state);
}
