/*
 * bulk.c - see bulk.h. glibc's memcpy() does the same, but only for one call
 * with more bytes than the whole machine's cache, which no thread of several
 * is given at a time.
 */
#include "gpu/bulk.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

#define LINE_BYTES 64u
/* Less is not worth the wait for the last line. */
#define BULK_BYTES_MIN (16u << 10)

__attribute__((target("avx2"))) static size_t
stream_lines(uint8_t *to, const uint8_t *from, size_t bytes)
{
	size_t done = 0;

	for (; bytes - done >= LINE_BYTES; done += LINE_BYTES) {
		const void *f = from + done;
		void *t = to + done;
		__m256i low = _mm256_loadu_si256(f);
		__m256i high = _mm256_loadu_si256((const __m256i_u *)f + 1);

		_mm256_stream_si256(t, low);
		_mm256_stream_si256((__m256i *)t + 1, high);
	}
	_mm_sfence();
	return done;
}

void bulk_copy(uint8_t *to, const uint8_t *from, size_t bytes)
{
	size_t done = -(uintptr_t)to % LINE_BYTES; /* up to a whole line */

	if (bytes < BULK_BYTES_MIN || !__builtin_cpu_supports("avx2")) {
		memcpy(to, from, bytes);
		return;
	}
	memcpy(to, from, done);
	done += stream_lines(to + done, from + done, bytes - done);
	memcpy(to + done, from + done, bytes - done);
}
#else
void bulk_copy(uint8_t *to, const uint8_t *from, size_t bytes)
{
	memcpy(to, from, bytes);
}
#endif
