/*
 * A chunk has the same name wherever it is hashed: by xxHash, by our own
 * arithmetic on the host, and by the kernel (here in the fake driver, which
 * runs the kernel's functions lane after lane).
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include <cmocka.h>

#include "gpu/handle.h"
#include "gpu/hash.h"
#include "gpu/xxh3_device.h"
#include "tests/gpu/fake_cuda.h"
#include "tests/unit/test_seed.h"

#define LEN_MAX ((size_t)1 << 20)
#define SLACK 64
#define RANDOM_RUNS 48

static uint8_t *data;
static uint8_t secret[CHUNK_SECRET_BYTES];
static struct gpu *gpu;
static uint32_t random_state;

static uint32_t random_next(void)
{
	random_state = random_state * 1664525 + 1013904223;
	return random_state >> 8;
}

static int make_data(void **state)
{
	char text[160];

	(void)state;
	random_state = 1;
	data = malloc(LEN_MAX + SLACK);
	if (!data)
		return -1;
	for (size_t i = 0; i < LEN_MAX + SLACK; i++)
		data[i] = (uint8_t)random_next();
	for (size_t i = 0; i < sizeof(secret); i++)
		secret[i] = (uint8_t)random_next();
	return gpu_open(&gpu, text, sizeof(text));
}

static int free_data(void **state)
{
	(void)state;
	gpu_close(gpu);
	free(data);
	return 0;
}

static void reference(const void *p, size_t len, uint8_t *digest)
{
	XXH128_canonical_t c;

	XXH128_canonicalFromHash(
		&c, XXH3_128bits_withSecret(p, len, secret, sizeof(secret)));
	memcpy(digest, c.digest, CHUNK_HASH_BYTES);
}

static void assert_is_reference(const void *p, size_t len, const uint8_t *got)
{
	uint8_t want[CHUNK_HASH_BYTES];

	reference(p, len, want);
	if (memcmp(want, got, sizeof(want)) != 0)
		fail_msg("%zu bytes at an alignment of %u", len,
			 (unsigned)((uintptr_t)p % 16));
}

static void our_arithmetic_equals_the_library(void **state)
{
	uint8_t got[CHUNK_HASH_BYTES];

	(void)state;
	for (size_t len = 0; len <= 4096; len++) {
		xxh3_put(xxh3_hash(secret, data + len % 17, len), got);
		assert_is_reference(data + len % 17, len, got);
	}
	for (size_t len = LEN_MAX - 1100; len <= LEN_MAX; len += 41) {
		xxh3_put(xxh3_hash(secret, data + len % 17, len), got);
		assert_is_reference(data + len % 17, len, got);
	}
}

/* All ranges lie in one buffer that is on the device. */
static void assert_device_hashes(struct hasher *h, struct gpu_stream *s,
				 const struct hash_range *host, size_t count)
{
	struct hash_range *ranges = calloc(count, sizeof(*ranges));
	uint8_t(*digests)[CHUNK_HASH_BYTES] = calloc(count, sizeof(*digests));
	void *device, *pinned;

	assert_non_null(ranges);
	assert_non_null(digests);
	assert_int_equal(gpu_alloc(gpu, 1, LEN_MAX + SLACK, &device), 0);
	assert_int_equal(gpu_host_alloc(gpu, LEN_MAX + SLACK, &pinned), 0);
	memcpy(pinned, data, LEN_MAX + SLACK);
	for (size_t i = 0; i < count; i++) {
		ranges[i] = host[i];
		ranges[i].data = (uint8_t *)device +
				 ((const uint8_t *)host[i].data - data);
	}
	/* The hasher has to run behind this copy. */
	assert_int_equal(gpu_copy_h2d(s, device, pinned, LEN_MAX + SLACK), 0);
	assert_int_equal(hasher_run(h, s, ranges, count, digests), 0);
	for (size_t i = 0; i < count; i++)
		assert_is_reference(host[i].data, host[i].len, digests[i]);
	gpu_host_free(gpu, pinned);
	gpu_free(gpu, 1, device);
	free(digests);
	free(ranges);
}

static void the_kernel_equals_the_library(void **state)
{
	size_t count = 0;
	struct hash_range *ranges = calloc(2200 + RANDOM_RUNS, sizeof(*ranges));
	struct gpu_stream *s;
	struct hasher *h;

	(void)state;
	random_state = (uint32_t)test_seed();
	assert_non_null(ranges);
	/* Every length around where the way of hashing changes, ... */
	for (size_t len = 0; len <= 2048; len++)
		ranges[count++] =
			(struct hash_range){ data + random_next() % 33, len };
	/* ... whole blocks, tiles and chunks, and what is next to them, ... */
	for (size_t len = 32768; len <= LEN_MAX; len *= 2)
		for (size_t off = 0; off < 3; off++)
			ranges[count++] = (struct hash_range){ data + 8 * off,
							       len + off - 1 };
	/* ... and any. */
	for (unsigned i = 0; i < RANDOM_RUNS; i++)
		ranges[count++] =
			(struct hash_range){ data + random_next() % 33,
					     random_next() % LEN_MAX };
	assert_int_equal(gpu_stream_new(gpu, 1, &s), 0);
	assert_int_equal(hasher_new(gpu, 1, secret, &h), 0);
	assert_device_hashes(h, s, ranges, count);
	assert_device_hashes(h, s, ranges, 1); /* the buffers were kept */
	hasher_free(h);
	gpu_stream_free(s);
	free(ranges);
}

static void a_run_waits_once_and_gives_everything_back(void **state)
{
	uint64_t device_bytes = fake_cuda_device_bytes();
	uint64_t pinned_bytes = fake_cuda_pinned_bytes(), syncs;
	uint8_t digests[3][CHUNK_HASH_BYTES];
	struct hash_range ranges[3];
	struct gpu_stream *s;
	struct hasher *h;
	void *device;

	(void)state;
	assert_int_equal(gpu_alloc(gpu, 1, LEN_MAX, &device), 0);
	for (size_t i = 0; i < 3; i++)
		ranges[i] = (struct hash_range){ device, 1000 * i };
	assert_int_equal(gpu_stream_new(gpu, 1, &s), 0);
	assert_int_equal(hasher_new(gpu, 1, secret, &h), 0);
	syncs = fake_cuda_syncs();
	assert_int_equal(hasher_run(h, s, ranges, 3, digests), 0);
	assert_int_equal(fake_cuda_syncs(), syncs + 1);
	assert_int_equal(hasher_run(h, s, ranges, 0, digests), 0);
	assert_int_equal(fake_cuda_syncs(), syncs + 1);
	hasher_free(h);
	gpu_stream_free(s);
	gpu_free(gpu, 1, device);
	assert_int_equal(fake_cuda_device_bytes(), device_bytes);
	assert_int_equal(fake_cuda_pinned_bytes(), pinned_bytes);
}

static void every_failure_of_the_driver_is_told(void **state)
{
	static const char *const calls[] = {
		"cuMemAlloc_v2",        "cuMemHostAlloc",
		"cuMemcpyHtoDAsync_v2", "cuLaunchKernel",
		"cuMemcpyDtoHAsync_v2", "cuStreamSynchronize"
	};
	uint64_t device_bytes = fake_cuda_device_bytes();
	uint8_t digest[1][CHUNK_HASH_BYTES];
	struct hash_range range = { NULL, 300 };
	struct gpu_stream *s;
	void *device;

	(void)state;
	assert_int_equal(gpu_stream_new(gpu, 0, &s), 0);
	assert_int_equal(gpu_alloc(gpu, 0, 300, &device), 0);
	range.data = device;
	for (size_t c = 0; c < sizeof(calls) / sizeof(*calls); c++)
		for (unsigned n = 1;; n++) {
			struct hasher *h = NULL;
			int rc;

			fake_cuda_fail(calls[c], n, 2);
			rc = hasher_new(gpu, 0, secret, &h);
			if (rc == 0)
				rc = hasher_run(h, s, &range, 1, digest);
			hasher_free(h);
			if (rc == 0)
				break;
			assert_int_equal(rc, -ENOMEM);
			assert_non_null(strstr(ckpt_last_error(),
					       "CUDA_ERROR_OUT_OF_MEMORY"));
			assert_true(n < 9);
		}
	fake_cuda_fail("", 0, 0);
	gpu_free(gpu, 0, device);
	gpu_stream_free(s);
	assert_int_equal(fake_cuda_device_bytes(), device_bytes);
}

static void host_memory_needs_no_driver(void **state)
{
	struct hash_range ranges[] = { { data, 0 },
				       { data + 1, 77 },
				       { data + 3, LEN_MAX } };
	uint8_t digests[3][CHUNK_HASH_BYTES];
	struct hasher *h;

	(void)state;
	assert_int_equal(hasher_new(NULL, 0, secret, &h), -ENODEV);
	assert_int_equal(hasher_new(NULL, -1, secret, &h), 0);
	assert_int_equal(hasher_run(h, NULL, ranges, 3, digests), 0);
	for (size_t i = 0; i < 3; i++)
		assert_is_reference(ranges[i].data, ranges[i].len, digests[i]);
	hasher_free(h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(our_arithmetic_equals_the_library),
		cmocka_unit_test(the_kernel_equals_the_library),
		cmocka_unit_test(a_run_waits_once_and_gives_everything_back),
		cmocka_unit_test(every_failure_of_the_driver_is_told),
		cmocka_unit_test(host_memory_needs_no_driver),
	};

	return cmocka_run_group_tests(tests, make_data, free_data);
}
