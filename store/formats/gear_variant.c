/*
 * gear_variant.c - the candidates of a block, compiled for one vector unit, as
 * db/hash_variant.c is. A sum over 16 places is made of sums over four: loops
 * over small arrays, each of which a compiler turns into vectors.
 */
#include "store/formats/gear.h"

#define CANDIDATE_BELOW 16u
/* So many places are asked for their least hash, which rarely is a candidate's.
 */
#define GROUP 128u

/* b[] has at each place the sum over four; the sum over 16. */
static inline uint16_t sum_16(const uint16_t *b)
{
	return (uint16_t)(b[0] + (b[-4] << 4) + (b[-8] << 8) + (b[-12] << 12));
}

static inline uint16_t gear(uint8_t byte)
{
	uint16_t x = (uint16_t)((byte + 1u) * 0x9e3bu);

	x ^= (uint16_t)(x >> 7);
	return (uint16_t)(x * 0xc2b3u);
}

size_t GEAR_SCAN_FUNCTION(const uint8_t *p, size_t len, uint16_t *at)
{
	uint16_t a[GEAR_BLOCK_BYTES + GEAR_WINDOW_BYTES];
	uint16_t b[GEAR_BLOCK_BYTES + GEAR_WINDOW_BYTES];
	size_t end = len + GEAR_WINDOW_BYTES, count = 0;

	p -= GEAR_WINDOW_BYTES;
	for (size_t i = 0; i < end; i++)
		a[i] = gear(p[i]);
	for (size_t i = 3; i < end; i++)
		b[i] = (uint16_t)(a[i] + (a[i - 1] << 1) + (a[i - 2] << 2) +
				  (a[i - 3] << 3));
	for (size_t i = GEAR_WINDOW_BYTES; i < end; i += GROUP) {
		size_t group_end = end - i < GROUP ? end : i + GROUP;
		uint16_t least = 0;

		if (group_end - i == GROUP) {
			least = UINT16_MAX;
			for (size_t k = 0; k < GROUP; k++) {
				uint16_t h = sum_16(b + i + k);

				least = h < least ? h : least;
			}
		}
		if (least >= CANDIDATE_BELOW)
			continue;
		for (size_t k = i; k < group_end; k++)
			if (sum_16(b + k) < CANDIDATE_BELOW)
				at[count++] = (uint16_t)(k - GEAR_WINDOW_BYTES);
	}
	return count;
}
