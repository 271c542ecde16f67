/*
 * kernels.cu - what runs on the device. The arithmetic is in xxh3_device.h and
 * stash_rows.h, where the tests reach it without a device; here is who does
 * which part of it, and when threads wait for each other.
 */
#include "gpu/stash_rows.h"
#include "gpu/xxh3_device.h"

#define ALL_LANES 0xffffffffu

/* --- Hashing ---------------------------------------------------------------
 */

struct words {
	uint64_t w[2];
};

/* 16 bytes that begin at a multiple of 16. */
__device__ static words load16(const uint8_t *p)
{
	ulonglong2 v = __ldcs((const ulonglong2 *)p);
	words r;

	r.w[0] = v.x;
	r.w[1] = v.y;
	return r;
}

/*
 * What a warp has loaded begins `shift` bytes before what it is to have: each
 * lane takes the rest from the lane behind it, the last one from the first
 * lane's next load. `next` is the first lane's; it becomes what `in` was.
 */
__device__ static words shifted(words in, words *next, unsigned shift,
				unsigned lane)
{
	words give = lane == 0 ? *next : in, behind, r;

#pragma unroll
	for (unsigned i = 0; i < 2; i++)
		behind.w[i] = __shfl_sync(ALL_LANES, give.w[i],
					  (lane + 1) % WARP_LANES);
	*next = in;
	xxh3_shift16(in.w, behind.w, shift, r.w);
	return r;
}

struct hash_shared {
	uint64_t secret[XXH3_SECRET_BYTES / 8];
	/* Of the tile that is loaded, and of the one before it. */
	uint64_t sums[2][HASH_TILE_BLOCKS][8];
	uint64_t acc[8];
};

/*
 * One warp's part of a tile: load, add up, fold, and store. SHIFTED: p is no
 * multiple of 16. A word that is read for some of its bytes lies in the same
 * allocation: those are multiples of 256 bytes.
 */
template <bool SHIFTED>
__device__ static void hash_load(const uint8_t *p, unsigned blocks,
				 unsigned lane, const xxh3_lane_keys *keys,
				 uint64_t (*sums)[8])
{
	unsigned shift = SHIFTED ? (uintptr_t)p % 16 : 0;
	uint64_t sum[XXH3_LANE_SUMS] = {};
	words in[XXH3_LANE_BLOCKS][2], next = {};

	p -= shift;
#pragma unroll
	for (unsigned b = 0; b < XXH3_LANE_BLOCKS; b++) {
		if (b >= blocks)
			continue; /* the whole warp; its sum is not used */
#pragma unroll
		for (unsigned half = 0; half < 2; half++)
			in[b][half] = load16(p + b * XXH3_BLOCK_BYTES +
					     512 * half + 16 * lane);
	}
	if (SHIFTED && lane == 0)
		next = load16(p + blocks * XXH3_BLOCK_BYTES);
#pragma unroll
	for (unsigned n = 2 * XXH3_LANE_BLOCKS; SHIFTED && n-- > 0;)
		if (n / 2 < blocks)
			in[n / 2][n % 2] = shifted(in[n / 2][n % 2], &next,
						   shift, lane);
#pragma unroll
	for (unsigned b = 0; b < XXH3_LANE_BLOCKS; b++) {
		if (b >= blocks)
			continue;
		uint64_t word[2][2] = { { in[b][0].w[0], in[b][0].w[1] },
					{ in[b][1].w[0], in[b][1].w[1] } };

		xxh3_lane_add(keys, word, &sum[2 * b]);
	}
#pragma unroll
	for (unsigned bit = 16, half = XXH3_LANE_SUMS / 2; bit >= 4;
	     bit /= 2, half /= 2) {
		uint64_t next[XXH3_LANE_SUMS / 2];

#pragma unroll
		for (unsigned i = 0; i < XXH3_LANE_SUMS / 2; i++)
			if (i < half)
				next[i] = xxh3_fold_keep(lane, bit, half, sum,
							 i) +
					  __shfl_xor_sync(
						  ALL_LANES,
						  xxh3_fold_give(lane, bit,
								 half, sum, i),
						  bit);
#pragma unroll
		for (unsigned i = 0; i < XXH3_LANE_SUMS / 2; i++)
			if (i < half)
				sum[i] = next[i];
	}
	sums[xxh3_fold_block(lane)][xxh3_fold_acc(lane)] = sum[0];
}

/* Add and scramble, block after block. */
__device__ static uint64_t hash_chain(uint64_t acc, uint64_t key,
				      uint64_t (*sums)[8], unsigned blocks,
				      unsigned i)
{
	if (blocks == HASH_TILE_BLOCKS) {
#pragma unroll 8
		for (unsigned b = 0; b < HASH_TILE_BLOCKS; b++)
			acc = xxh3_scramble(acc + sums[b][i], key);
	} else {
		for (unsigned b = 0; b < blocks; b++)
			acc = xxh3_scramble(acc + sums[b][i], key);
	}
	return acc;
}

/*
 * More than XXH3_SHORT_MAX bytes by all threads of the block: while the warps
 * load a tile, the last one goes through the sums of the tile before it.
 */
template <bool SHIFTED>
__device__ static void hash_long(hash_shared *sh, const uint8_t *p,
				 uint64_t len, uint8_t *digest)
{
	const uint8_t *secret = (const uint8_t *)sh->secret;
	unsigned warp = threadIdx.x / WARP_LANES;
	unsigned lane = threadIdx.x % WARP_LANES;
	uint64_t blocks = xxh3_blocks(len);
	uint64_t tiles = (blocks + HASH_TILE_BLOCKS - 1) / HASH_TILE_BLOCKS;
	xxh3_lane_keys keys = xxh3_lane_keys_of(lane, secret);
	uint64_t key = xxh3_scramble_key(secret, lane % 8);
	uint64_t acc = xxh3_start(lane % 8), tail = 0;

	for (uint64_t t = 0; t <= tiles; t++) {
		if (warp < HASH_LOAD_WARPS) {
			uint64_t first =
				t * HASH_TILE_BLOCKS + warp * XXH3_LANE_BLOCKS;

			if (first < blocks)
				hash_load<SHIFTED>(
					p + first * XXH3_BLOCK_BYTES,
					blocks - first < XXH3_LANE_BLOCKS ?
						(unsigned)(blocks - first) :
						XXH3_LANE_BLOCKS,
					lane, &keys,
					&sh->sums[t % 2]
						 [warp * XXH3_LANE_BLOCKS]);
		} else if (t > 0) {
			uint64_t left = blocks - (t - 1) * HASH_TILE_BLOCKS;

			acc = hash_chain(acc, key, sh->sums[(t - 1) % 2],
					 left < HASH_TILE_BLOCKS ?
						 (unsigned)left :
						 HASH_TILE_BLOCKS,
					 lane % 8);
		} else {
			tail = xxh3_lane_tail(lane, secret, p, len);
			tail += __shfl_xor_sync(ALL_LANES, tail, 8);
			tail += __shfl_xor_sync(ALL_LANES, tail, 16);
		}
		__syncthreads();
	}
	if (warp < HASH_LOAD_WARPS)
		return;
	if (lane < 8)
		sh->acc[lane] = acc + tail;
	__syncwarp();
	if (lane == 0)
		xxh3_put(xxh3_finish(sh->acc, secret, len), digest);
}

/* Chunk j by all threads of the block, when the kernel is for such ones. */
template <bool REST>
__device__ static void hash_one(hash_shared *sh, const hash_job *jobs,
				uint64_t j, uint8_t *digests)
{
	const uint8_t *p = (const uint8_t *)jobs[j].data;
	uint64_t len = jobs[j].len;
	uint8_t *digest = digests + 16 * j;

	if (hash_is_rest(&jobs[j]) != REST)
		return;
	if (!REST || len > XXH3_SHORT_MAX)
		hash_long<REST>(sh, p, len, digest);
	else if (threadIdx.x == 0)
		xxh3_put(xxh3_short((const uint8_t *)sh->secret, p, len),
			 digest);
	__syncthreads(); /* the next chunk uses the same sums */
}

template <bool REST>
__device__ static void hash_list(const hash_job *jobs, uint64_t count,
				 const uint8_t *secret, uint8_t *digests)
{
	__shared__ hash_shared sh;

	if (threadIdx.x < XXH3_SECRET_BYTES)
		((uint8_t *)sh.secret)[threadIdx.x] = secret[threadIdx.x];
	__syncthreads();
	for (uint64_t j = blockIdx.x; j < count; j += gridDim.x)
		hash_one<REST>(&sh, jobs, j, digests);
}

extern "C" __global__ void __launch_bounds__(HASH_THREADS, 3)
	hash_chunks(const hash_job *jobs, uint64_t count, const uint8_t *secret,
		    uint8_t *digests)
{
	hash_list<false>(jobs, count, secret, digests);
}

/* Apart from it: together they need more registers than there are. */
extern "C" __global__ void __launch_bounds__(HASH_THREADS, 2)
	hash_chunks_rest(const hash_job *jobs, uint64_t count,
			 const uint8_t *secret, uint8_t *digests)
{
	hash_list<true>(jobs, count, secret, digests);
}

/* --- Paged stash -----------------------------------------------------------
 */

__device__ static stash_lane stash_this_lane()
{
	stash_lane l;

	l.warp = (blockIdx.x * STASH_COPY_THREADS + threadIdx.x) / WARP_LANES;
	l.warps = gridDim.x * (STASH_COPY_THREADS / WARP_LANES);
	l.lane = threadIdx.x % WARP_LANES;
	l.lanes = WARP_LANES;
	return l;
}

extern "C" __global__ void
stash_plan_pack(const __grid_constant__ stash_view v,
		const __grid_constant__ stash_item_view item,
		const int64_t *rows)
{
	stash_plan_pack(&v, &item, rows);
}

extern "C" __global__ void
stash_plan_unpack(const __grid_constant__ stash_view v,
		  const __grid_constant__ stash_item_view item)
{
	stash_plan_unpack(&v, &item);
}

extern "C" __global__ void __launch_bounds__(STASH_COPY_THREADS, 5)
	stash_copy_in(const __grid_constant__ stash_view v,
		      const __grid_constant__ stash_item_view item,
		      const uint8_t *data)
{
	stash_copy_in(&v, &item, data, stash_this_lane());
}

extern "C" __global__ void __launch_bounds__(STASH_COPY_THREADS, 5)
	stash_copy_out(const __grid_constant__ stash_view v,
		       const __grid_constant__ stash_item_view item,
		       uint8_t *data)
{
	stash_copy_out(&v, &item, data, stash_this_lane());
}

extern "C" __global__ void stash_reset(const stash_view *views, uint32_t count)
{
	stash_reset(views, count, blockIdx.x * blockDim.x + threadIdx.x,
		    gridDim.x * blockDim.x);
}
