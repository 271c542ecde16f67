/*
 * A chunk's name is XXH3-128 with the store's secret, whichever vector unit
 * computes it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include <cmocka.h>

#include "store/db/hash.h"

#define LEN_MAX (1u << 20)

typedef void (*hash_fn)(const uint8_t *secret, const void *data, size_t len,
			uint8_t *ret_hash);

void hash_generic(const uint8_t *, const void *, size_t, uint8_t *);
#if defined(__x86_64__)
void hash_avx2(const uint8_t *, const void *, size_t, uint8_t *);
void hash_avx512(const uint8_t *, const void *, size_t, uint8_t *);
#endif

/* All lengths where the algorithm changes its way, and around its stripes. */
static size_t next_len(size_t len)
{
	if (len < 2100)
		return len + 1;
	if (len < 70000)
		return len + 509;
	return len + 104729;
}

static void assert_is_reference(hash_fn hash)
{
	uint8_t *data = malloc(LEN_MAX + 64);
	uint8_t secret[HASH_SECRET_BYTES];
	uint32_t x = 1;

	assert_non_null(data);
	for (size_t i = 0; i < LEN_MAX + 64; i++) {
		x = x * 1664525 + 1013904223;
		data[i] = (uint8_t)(x >> 24);
	}
	for (size_t i = 0; i < sizeof(secret); i++)
		secret[i] = (uint8_t)(data[i] ^ 0x5a);
	for (size_t len = 0; len <= LEN_MAX; len = next_len(len)) {
		const uint8_t *at = data + len % 61; /* of any alignment */
		XXH128_canonical_t canon;
		uint8_t got[HASH_BYTES];

		XXH128_canonicalFromHash(
			&canon, XXH3_128bits_withSecret(at, len, secret,
							sizeof(secret)));
		hash(secret, at, len, got);
		assert_memory_equal(got, canon.digest, HASH_BYTES);
	}
	free(data);
}

static void the_generic_variant_equals_the_library(void **state)
{
	(void)state;
	assert_is_reference(hash_generic);
}

static void the_avx2_variant_equals_the_library(void **state)
{
	(void)state;
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx2")) {
		assert_is_reference(hash_avx2);
		return;
	}
#endif
	skip();
}

static void the_avx512_variant_equals_the_library(void **state)
{
	(void)state;
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx512f")) {
		assert_is_reference(hash_avx512);
		return;
	}
#endif
	skip();
}

static void the_variant_that_runs_equals_the_library_and_has_a_name(void **state)
{
	const char *name = chunk_hash_variant();

	(void)state;
	assert_is_reference(chunk_hash);
	assert_true(strcmp(name, "generic") == 0 || strcmp(name, "avx2") == 0 ||
		    strcmp(name, "avx512") == 0);
}

static void two_stores_name_the_same_bytes_differently(void **state)
{
	uint8_t a[HASH_SECRET_BYTES], b[HASH_SECRET_BYTES];
	uint8_t of_a[HASH_BYTES], of_b[HASH_BYTES];
	uint8_t data[4096] = { 0 };

	(void)state;
	memset(a, 1, sizeof(a));
	memset(b, 2, sizeof(b));
	chunk_hash(a, data, sizeof(data), of_a);
	chunk_hash(b, data, sizeof(data), of_b);
	assert_memory_not_equal(of_a, of_b, HASH_BYTES);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_generic_variant_equals_the_library),
		cmocka_unit_test(the_avx2_variant_equals_the_library),
		cmocka_unit_test(the_avx512_variant_equals_the_library),
		cmocka_unit_test(
			the_variant_that_runs_equals_the_library_and_has_a_name),
		cmocka_unit_test(two_stores_name_the_same_bytes_differently),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
