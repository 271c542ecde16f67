/*
 * gear.c - see gear.h. Which vector unit scans for candidates is chosen when
 * the program starts; all of them find the same.
 */
#include "store/formats/gear.h"

#include <stdbool.h>
#include <string.h>
#include <xxhash.h>

#define STRENGTH_WINDOW_BYTES 32
/* So many at a chunk's beginning are one by themselves. */
#define ZEROS_BYTES_MIN 4096
/* What a candidate is by itself: one place in 2^12. */
#define CANDIDATE_BITS 12
#define NORMAL_BITS ((unsigned)__builtin_ctz(CONTENT_BYTES_NORMAL))
#define MASK(bits) ((UINT64_C(1) << ((bits) - CANDIDATE_BITS)) - 1)

_Static_assert((CONTENT_BYTES_NORMAL & (CONTENT_BYTES_NORMAL - 1)) == 0,
	       "a power of two");
_Static_assert(CONTENT_BYTES_MIN >= STRENGTH_WINDOW_BYTES,
	       "no window goes beyond the chunk's beginning");
_Static_assert(CONTENT_BYTES_NORMAL >= 1u << (CANDIDATE_BITS + 1),
	       "candidates are frequent enough");

static gear_scan_fn scan = gear_scan_generic;

__attribute__((constructor)) static void scan_choose(void)
{
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx2"))
		scan = gear_scan_avx2;
#endif
}

/* Does the chunk that starts at p end with the byte p[last]? */
static bool ends_with(const uint8_t *p, uint32_t last)
{
	uint64_t strength =
		XXH3_64bits(p + last + 1 - STRENGTH_WINDOW_BYTES,
			    STRENGTH_WINDOW_BYTES);

	return (strength & (last < CONTENT_BYTES_NORMAL ?
				    MASK(NORMAL_BITS + 3) :
				    MASK(NORMAL_BITS - 1))) == 0;
}

/* How many of len bytes are zero, up to the first that is not. */
static uint32_t zeros_at(const uint8_t *p, uint32_t len)
{
	uint32_t n = 0;
	uint64_t word;

	while (len - n >= sizeof(word)) {
		memcpy(&word, p + n, sizeof(word));
		if (word != 0)
			break;
		n += (uint32_t)sizeof(word);
	}
	while (n < len && p[n] == 0)
		n++;
	return n;
}

/*
 * Where CONTENT_BYTES_MIN zeros begin, or len. So many have one of the places
 * that are looked at among them.
 */
static uint32_t before_zeros(const uint8_t *p, uint32_t len)
{
	uint32_t step = CONTENT_BYTES_MIN / 2;

	for (uint32_t at = step; at < len; at += step) {
		uint32_t first = at, rest = len - at;

		if (p[at] != 0)
			continue;
		while (first > 0 && p[first - 1] == 0)
			first--;
		if (rest > CONTENT_BYTES_MIN)
			rest = CONTENT_BYTES_MIN;
		if (at - first + zeros_at(p + at, rest) >= CONTENT_BYTES_MIN)
			return first;
	}
	return len;
}

uint32_t gear_cut(const uint8_t *p, uint32_t len)
{
	uint16_t found[GEAR_BLOCK_BYTES];
	uint32_t at = CONTENT_BYTES_MIN;
	uint32_t zeros = zeros_at(p, len);

	if (zeros >= ZEROS_BYTES_MIN || zeros == len)
		return zeros;
	len = before_zeros(p, len);
	while (at < len) {
		uint32_t n = len - at < GEAR_BLOCK_BYTES ? len - at :
							   GEAR_BLOCK_BYTES;
		size_t count = scan(p + at, n, found);

		for (size_t i = 0; i < count; i++)
			if (ends_with(p, at + found[i]))
				return at + found[i] + 1;
		at += n;
	}
	return len;
}
