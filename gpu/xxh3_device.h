/*
 * xxh3_device.h - XXH3-128 with a secret of 192 bytes, bit for bit what
 * xxHash's XXH3_128bits_withSecret() gives, for the device and for the host.
 *
 * More than 240 bytes are hashed in blocks of 16 stripes of 64 bytes. Eight
 * accumulators add up what the stripes of a block contribute, and are
 * scrambled after each block. A sum does not care about its order, and what a
 * stripe contributes does not depend on what came before it: so 32 lanes take
 * a block's stripes at once, their sums are folded together, and only the
 * scrambling goes from block to block.
 *
 * How the lanes of a warp share XXH3_LANE_BLOCKS blocks: lane l loads the 16
 * bytes at 16 l and at 512 + 16 l of each block, which are the words 2 (l % 4)
 * and 2 (l % 4) + 1 of the stripes l / 4 and l / 4 + 8. A stripe's word also
 * goes to its neighbour's accumulator, and both are in the same lane.
 */
#ifndef GPU_XXH3_DEVICE_H
#define GPU_XXH3_DEVICE_H

#include <string.h>

#include "gpu/host_device.h"

#define XXH3_SECRET_BYTES 192u
#define XXH3_SHORT_MAX 240u
#define XXH3_STRIPE_BYTES 64u
#define XXH3_BLOCK_STRIPES ((XXH3_SECRET_BYTES - XXH3_STRIPE_BYTES) / 8u)
#define XXH3_BLOCK_BYTES (XXH3_BLOCK_STRIPES * XXH3_STRIPE_BYTES)
#define XXH3_LANE_BLOCKS 4u
/* What a lane has to add up: two words for each of its blocks. */
#define XXH3_LANE_SUMS (2u * XXH3_LANE_BLOCKS)

#define XXH3_P32_1 UINT64_C(0x9E3779B1)
#define XXH3_P32_2 UINT64_C(0x85EBCA77)
#define XXH3_P32_3 UINT64_C(0xC2B2AE3D)
#define XXH3_P64_1 UINT64_C(0x9E3779B185EBCA87)
#define XXH3_P64_2 UINT64_C(0xC2B2AE3D27D4EB4F)
#define XXH3_P64_3 UINT64_C(0x165667B19E3779F9)
#define XXH3_P64_4 UINT64_C(0x85EBCA77C2B2AE63)
#define XXH3_P64_5 UINT64_C(0x27D4EB2F165667C5)

/* The kernels of hash.c hash an array of these. */
struct hash_job {
	uint64_t data; /* a device pointer */
	uint64_t len;
};

/* Short, or no multiple of 16: hash_chunks_rest's, not hash_chunks'. */
HOST_DEVICE bool hash_is_rest(const struct hash_job *j)
{
	return j->len <= XXH3_SHORT_MAX || j->data % 16 != 0;
}

/* A block of threads: so many warps load, one more goes from block to block. */
#define HASH_LOAD_WARPS 8u
#define HASH_THREADS ((HASH_LOAD_WARPS + 1u) * WARP_LANES)
#define HASH_TILE_BLOCKS (HASH_LOAD_WARPS * XXH3_LANE_BLOCKS)

struct xxh3_digest {
	uint64_t low, high;
};

/* --- Words ---------------------------------------------------------------
 * Little-endian, as are all machines this runs on; of any alignment.
 */

HOST_DEVICE uint64_t xxh3_read64(const uint8_t *p)
{
#ifdef __CUDA_ARCH__
	uint64_t v = 0;

	if (((uintptr_t)p & 7) == 0)
		return *(const uint64_t *)p;
#pragma unroll
	for (unsigned i = 0; i < 8; i++)
		v |= (uint64_t)p[i] << (8 * i);
	return v;
#else
	uint64_t v;

	memcpy(&v, p, sizeof(v));
	return v;
#endif
}

HOST_DEVICE uint32_t xxh3_read32(const uint8_t *p)
{
	return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
	       (uint32_t)p[3] << 24;
}

HOST_DEVICE uint32_t xxh3_swap32(uint32_t v)
{
	return v << 24 | (v << 8 & 0xff0000u) | (v >> 8 & 0xff00u) | v >> 24;
}

HOST_DEVICE uint64_t xxh3_swap64(uint64_t v)
{
	return (uint64_t)xxh3_swap32((uint32_t)v) << 32 |
	       xxh3_swap32((uint32_t)(v >> 32));
}

HOST_DEVICE uint64_t xxh3_mul_high(uint64_t a, uint64_t b)
{
#ifdef __CUDA_ARCH__
	return __umul64hi(a, b);
#else
	__extension__ typedef unsigned __int128 wide;

	return (uint64_t)((wide)a * b >> 64);
#endif
}

HOST_DEVICE uint64_t xxh3_mul_fold(uint64_t a, uint64_t b)
{
	return (a * b) ^ xxh3_mul_high(a, b);
}

HOST_DEVICE uint64_t xxh3_avalanche(uint64_t h)
{
	h ^= h >> 37;
	h *= UINT64_C(0x165667919E3779F9);
	return h ^ h >> 32;
}

HOST_DEVICE uint64_t xxh3_avalanche64(uint64_t h)
{
	h ^= h >> 33;
	h *= XXH3_P64_2;
	h ^= h >> 29;
	h *= XXH3_P64_3;
	return h ^ h >> 32;
}

/* The digest as xxhsum prints it: big-endian, the high half first. */
HOST_DEVICE void xxh3_put(struct xxh3_digest d, uint8_t *out)
{
	for (unsigned i = 0; i < 8; i++) {
		out[i] = (uint8_t)(d.high >> (56 - 8 * i));
		out[8 + i] = (uint8_t)(d.low >> (56 - 8 * i));
	}
}

/* --- Up to 240 bytes ------------------------------------------------------
 */

HOST_DEVICE struct xxh3_digest xxh3_to_8(const uint8_t *secret,
					 const uint8_t *p, size_t len)
{
	uint64_t keyed =
		(xxh3_read32(p) | (uint64_t)xxh3_read32(p + len - 4) << 32) ^
		xxh3_read64(secret + 16) ^ xxh3_read64(secret + 24);
	uint64_t factor = XXH3_P64_1 + ((uint64_t)len << 2);
	struct xxh3_digest d;

	d.low = keyed * factor;
	d.high = xxh3_mul_high(keyed, factor) + (d.low << 1);
	d.low ^= d.high >> 3;
	d.low ^= d.low >> 35;
	d.low *= UINT64_C(0x9FB21C651E98DF25);
	d.low ^= d.low >> 28;
	d.high = xxh3_avalanche(d.high);
	return d;
}

HOST_DEVICE struct xxh3_digest xxh3_to_16(const uint8_t *secret,
					  const uint8_t *p, size_t len)
{
	uint64_t lo = xxh3_read64(p), hi = xxh3_read64(p + len - 8);
	uint64_t keyed =
		lo ^ hi ^ xxh3_read64(secret + 32) ^ xxh3_read64(secret + 40);
	uint64_t low = keyed * XXH3_P64_1;
	uint64_t high = xxh3_mul_high(keyed, XXH3_P64_1);
	struct xxh3_digest d;

	low += (uint64_t)(len - 1) << 54;
	hi ^= xxh3_read64(secret + 48) ^ xxh3_read64(secret + 56);
	high += hi + (uint64_t)(uint32_t)hi * (XXH3_P32_2 - 1);
	low ^= xxh3_swap64(high);
	d.low = xxh3_avalanche(low * XXH3_P64_2);
	d.high = xxh3_avalanche(xxh3_mul_high(low, XXH3_P64_2) +
				high * XXH3_P64_2);
	return d;
}

HOST_DEVICE struct xxh3_digest xxh3_to_3(const uint8_t *secret,
					 const uint8_t *p, size_t len)
{
	uint32_t lo = (uint32_t)p[0] << 16 | (uint32_t)p[len >> 1] << 24 |
		      (uint32_t)p[len - 1] | (uint32_t)len << 8;
	uint32_t swapped = xxh3_swap32(lo);
	uint32_t hi = swapped << 13 | swapped >> 19;
	struct xxh3_digest d;

	d.low = xxh3_avalanche64(
		lo ^ (uint64_t)(xxh3_read32(secret) ^ xxh3_read32(secret + 4)));
	d.high = xxh3_avalanche64(hi ^ (uint64_t)(xxh3_read32(secret + 8) ^
						  xxh3_read32(secret + 12)));
	return d;
}

HOST_DEVICE uint64_t xxh3_mix16(const uint8_t *p, const uint8_t *secret)
{
	return xxh3_mul_fold(xxh3_read64(p) ^ xxh3_read64(secret),
			     xxh3_read64(p + 8) ^ xxh3_read64(secret + 8));
}

HOST_DEVICE void xxh3_mix32(struct xxh3_digest *d, const uint8_t *a,
			    const uint8_t *b, const uint8_t *secret)
{
	d->low += xxh3_mix16(a, secret);
	d->low ^= xxh3_read64(b) + xxh3_read64(b + 8);
	d->high += xxh3_mix16(b, secret + 16);
	d->high ^= xxh3_read64(a) + xxh3_read64(a + 8);
}

/* 17 to 240 bytes. */
HOST_DEVICE struct xxh3_digest xxh3_mid(const uint8_t *secret, const uint8_t *p,
					size_t len)
{
	struct xxh3_digest d, mixed;

	d.low = len * XXH3_P64_1;
	d.high = 0;
	if (len <= 128) {
		for (size_t i = (len - 1) / 32 + 1; i-- > 0;)
			xxh3_mix32(&d, p + 16 * i, p + len - 16 * (i + 1),
				   secret + 32 * i);
	} else {
		for (size_t i = 0; i < len / 32; i++) {
			xxh3_mix32(&d, p + 32 * i, p + 32 * i + 16,
				   i < 4 ? secret + 32 * i :
					   secret + 3 + 32 * (i - 4));
			if (i == 3) {
				d.low = xxh3_avalanche(d.low);
				d.high = xxh3_avalanche(d.high);
			}
		}
		xxh3_mix32(&d, p + len - 16, p + len - 32,
			   secret + 136 - 17 - 16);
	}
	mixed.low = xxh3_avalanche(d.low + d.high);
	mixed.high = 0 - xxh3_avalanche(d.low * XXH3_P64_1 +
					d.high * XXH3_P64_4 + len * XXH3_P64_2);
	return mixed;
}

/* At most XXH3_SHORT_MAX bytes. */
HOST_DEVICE struct xxh3_digest xxh3_short(const uint8_t *secret,
					  const uint8_t *p, size_t len)
{
	struct xxh3_digest d;

	if (len > 16)
		return xxh3_mid(secret, p, len);
	if (len > 8)
		return xxh3_to_16(secret, p, len);
	if (len >= 4)
		return xxh3_to_8(secret, p, len);
	if (len > 0)
		return xxh3_to_3(secret, p, len);
	d.low = xxh3_avalanche64(xxh3_read64(secret + 64) ^
				 xxh3_read64(secret + 72));
	d.high = xxh3_avalanche64(xxh3_read64(secret + 80) ^
				  xxh3_read64(secret + 88));
	return d;
}

/* --- More: accumulators --------------------------------------------------
 */

HOST_DEVICE uint64_t xxh3_start(unsigned i)
{
	switch (i) {
	case 0:
		return XXH3_P32_3;
	case 1:
		return XXH3_P64_1;
	case 2:
		return XXH3_P64_2;
	case 3:
		return XXH3_P64_3;
	case 4:
		return XXH3_P64_4;
	case 5:
		return XXH3_P32_2;
	case 6:
		return XXH3_P64_5;
	default:
		return XXH3_P32_1;
	}
}

/* What a word and its neighbour add to the word's accumulator. */
HOST_DEVICE uint64_t xxh3_word(uint64_t word, uint64_t neighbour, uint64_t key)
{
	uint64_t keyed = word ^ key;

	return neighbour + (uint64_t)(uint32_t)keyed * (keyed >> 32);
}

HOST_DEVICE uint64_t xxh3_scramble(uint64_t acc, uint64_t key)
{
	return (acc ^ acc >> 47 ^ key) * XXH3_P32_1;
}

HOST_DEVICE uint64_t xxh3_scramble_key(const uint8_t *secret, unsigned i)
{
	return xxh3_read64(secret + XXH3_SECRET_BYTES - XXH3_STRIPE_BYTES +
			   8 * i);
}

/* Blocks that are scrambled; the last one, whole or not, is not. */
HOST_DEVICE uint64_t xxh3_blocks(uint64_t len)
{
	return (len - 1) / XXH3_BLOCK_BYTES;
}

/*
 * What lane l adds to accumulator l % 8 for every fourth stripe behind the
 * scrambled blocks. The very last stripe is the last 64 bytes, wherever they
 * begin, with a key of its own.
 */
HOST_DEVICE uint64_t xxh3_lane_tail(unsigned lane, const uint8_t *secret,
				    const uint8_t *p, uint64_t len)
{
	uint64_t from = xxh3_blocks(len) * XXH3_BLOCK_BYTES;
	unsigned stripes = (unsigned)((len - 1 - from) / XXH3_STRIPE_BYTES);
	unsigned i = lane % 8;
	uint64_t sum = 0;

	for (unsigned n = lane / 8; n <= stripes; n += WARP_LANES / 8) {
		const uint8_t *at = p + from + n * XXH3_STRIPE_BYTES;
		const uint8_t *key = secret + 8 * n;

		if (n == stripes) {
			at = p + len - XXH3_STRIPE_BYTES;
			key = secret + XXH3_SECRET_BYTES - XXH3_STRIPE_BYTES -
			      7;
		}
		sum += xxh3_word(xxh3_read64(at + 8 * i),
				 xxh3_read64(at + 8 * (i ^ 1)),
				 xxh3_read64(key + 8 * i));
	}
	return sum;
}

/* start, and four times two accumulators, mixed into half of the digest. */
HOST_DEVICE uint64_t xxh3_merge(const uint64_t *acc, const uint8_t *secret,
				uint64_t start)
{
	for (unsigned i = 0; i < 4; i++)
		start += xxh3_mul_fold(
			acc[2 * i] ^ xxh3_read64(secret + 16 * i),
			acc[2 * i + 1] ^ xxh3_read64(secret + 16 * i + 8));
	return xxh3_avalanche(start);
}

HOST_DEVICE struct xxh3_digest xxh3_finish(const uint64_t *acc,
					   const uint8_t *secret, uint64_t len)
{
	struct xxh3_digest d;

	d.low = xxh3_merge(acc, secret + 11, len * XXH3_P64_1);
	d.high = xxh3_merge(acc,
			    secret + XXH3_SECRET_BYTES - XXH3_STRIPE_BYTES - 11,
			    ~(len * XXH3_P64_2));
	return d;
}

/* --- More: how a warp shares blocks -----------------------------------------
 */

/* The keys of a lane's two stripes, two words each. */
struct xxh3_lane_keys {
	uint64_t key[2][2];
};

HOST_DEVICE struct xxh3_lane_keys xxh3_lane_keys_of(unsigned lane,
						    const uint8_t *secret)
{
	struct xxh3_lane_keys k;

	for (unsigned half = 0; half < 2; half++) {
		unsigned stripe = lane / 4 + 8 * half;
		const uint8_t *at = secret + 8 * stripe + 16 * (lane % 4);

		k.key[half][0] = xxh3_read64(at);
		k.key[half][1] = xxh3_read64(at + 8);
	}
	return k;
}

/* 16 bytes that begin 1 to 15 bytes behind `at`; `behind` are the next 16. */
HOST_DEVICE void xxh3_shift16(const uint64_t *at, const uint64_t *behind,
			      unsigned shift, uint64_t *out)
{
	unsigned bits = 8 * (shift % 8);
	uint64_t a = shift < 8 ? at[0] : at[1];
	uint64_t b = shift < 8 ? at[1] : behind[0];
	uint64_t c = shift < 8 ? behind[0] : behind[1];

	out[0] = a >> bits | b << 1 << (63 - bits);
	out[1] = b >> bits | c << 1 << (63 - bits);
}

/* word[half][i], as loaded, into the lane's sums of one block. */
HOST_DEVICE void xxh3_lane_add(const struct xxh3_lane_keys *k,
			       const uint64_t word[2][2], uint64_t *sums)
{
	for (unsigned half = 0; half < 2; half++) {
		const uint64_t *w = word[half];

		sums[0] += xxh3_word(w[0], w[1], k->key[half][0]);
		sums[1] += xxh3_word(w[1], w[0], k->key[half][1]);
	}
}

/*
 * Folding: with bit 16, then 8, then 4, each lane gives half of its sums to
 * the lane whose number differs in that bit, and adds what it gets to the
 * other half. In the end it holds one accumulator's sum of one block.
 */
HOST_DEVICE uint64_t xxh3_fold_give(unsigned lane, unsigned bit, unsigned half,
				    const uint64_t *sums, unsigned i)
{
	return lane & bit ? sums[i] : sums[i + half];
}

HOST_DEVICE uint64_t xxh3_fold_keep(unsigned lane, unsigned bit, unsigned half,
				    const uint64_t *sums, unsigned i)
{
	return lane & bit ? sums[i + half] : sums[i];
}

HOST_DEVICE unsigned xxh3_fold_block(unsigned lane)
{
	return (lane >> 4 & 1) * 2 + (lane >> 3 & 1);
}

HOST_DEVICE unsigned xxh3_fold_acc(unsigned lane)
{
	return (lane & 3) * 2 + (lane >> 2 & 1);
}

/* --- All of it, by one thread ------------------------------------------------
 */

HOST_DEVICE struct xxh3_digest xxh3_hash(const uint8_t *secret,
					 const uint8_t *p, size_t len)
{
	uint64_t acc[8];

	if (len <= XXH3_SHORT_MAX)
		return xxh3_short(secret, p, len);
	for (unsigned i = 0; i < 8; i++)
		acc[i] = xxh3_start(i);
	for (uint64_t b = 0; b < xxh3_blocks(len); b++) {
		const uint8_t *at = p + b * XXH3_BLOCK_BYTES;

		for (unsigned n = 0; n < XXH3_BLOCK_STRIPES; n++)
			for (unsigned i = 0; i < 8; i++)
				acc[i] += xxh3_word(
					xxh3_read64(at + 64 * n + 8 * i),
					xxh3_read64(at + 64 * n + 8 * (i ^ 1)),
					xxh3_read64(secret + 8 * n + 8 * i));
		for (unsigned i = 0; i < 8; i++)
			acc[i] = xxh3_scramble(acc[i],
					       xxh3_scramble_key(secret, i));
	}
	for (unsigned lane = 0; lane < WARP_LANES; lane++)
		acc[lane % 8] += xxh3_lane_tail(lane, secret, p, len);
	return xxh3_finish(acc, secret, len);
}

#endif
