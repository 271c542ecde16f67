/*
 * fake_kernels.c - what kernels.cu does, with the functions that it is made
 * of. What differs is how lanes and warps come together: there they run at the
 * same time, here in any order.
 */
#include "tests/gpu/fake_kernels.h"

#include <stdbool.h>
#include <string.h>

#include "gpu/stash_rows.h"
#include "gpu/xxh3_device.h"
#include "store/base/scope.h"
#include "tests/gpu/busy.h"

static uint64_t random_state = 0x9e3779b97f4a7c15u;

static uint64_t random_next(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state;
}

/* Numbers below n, each once, in an order of its own. */
struct shuffled {
	unsigned n, at, step;
};

static unsigned gcd(unsigned a, unsigned b)
{
	while (b > 0) {
		unsigned rest = a % b;

		a = b;
		b = rest;
	}
	return a;
}

static struct shuffled shuffled_of(unsigned n)
{
	struct shuffled s = { .n = n,
			      .at = (unsigned)(random_next() % n),
			      .step = (unsigned)(random_next() % n) };

	while (gcd(s.step, n) != 1)
		s.step++;
	return s;
}

static unsigned shuffled_next(struct shuffled *s)
{
	s->at = (unsigned)(((uint64_t)s->at + s->step) % s->n);
	return s->at;
}

/*
 * Word `index` of those that begin at multiples of 16, p in the first one;
 * what lies outside of the data is anything.
 */
static void load16(const uint8_t *p, uint64_t len, uint64_t index,
		   uint64_t word[2])
{
	uint8_t *to = (uint8_t *)word;

	for (unsigned i = 0; i < 16; i++) {
		uint64_t at = 16 * index + i - (uintptr_t)p % 16;

		to[i] = at < len ? p[at] : (uint8_t)random_next();
	}
}

/* As hash_load() in kernels.cu, the 32 lanes one after the other. */
static void hash_load(const uint8_t *p, uint64_t len, unsigned blocks,
		      const uint8_t *secret, uint64_t (*sums)[8])
{
	unsigned shift = (uintptr_t)p % 16;

	uint64_t sum[WARP_LANES][XXH3_LANE_SUMS] = { { 0 } };
	uint64_t next[WARP_LANES][XXH3_LANE_SUMS];

	for (unsigned lane = 0; lane < WARP_LANES; lane++) {
		struct xxh3_lane_keys keys = xxh3_lane_keys_of(lane, secret);

		for (unsigned b = 0; b < blocks; b++) {
			uint64_t word[2][2];

			for (unsigned half = 0; half < 2; half++) {
				uint64_t at = 64 * b + 32 * half + lane;
				uint64_t in[2], behind[2];

				load16(p, len, at, in);
				load16(p, len, at + 1, behind);
				if (shift > 0)
					xxh3_shift16(in, behind, shift,
						     word[half]);
				else
					memcpy(word[half], in, sizeof(in));
			}
			xxh3_lane_add(&keys, (const uint64_t(*)[2])word,
				      &sum[lane][2 * b]);
		}
	}
	for (unsigned bit = 16, half = XXH3_LANE_SUMS / 2; bit >= 4;
	     bit /= 2, half /= 2) {
		for (unsigned lane = 0; lane < WARP_LANES; lane++)
			for (unsigned i = 0; i < half; i++)
				next[lane][i] =
					xxh3_fold_keep(lane, bit, half,
						       sum[lane], i) +
					xxh3_fold_give(lane ^ bit, bit, half,
						       sum[lane ^ bit], i);
		memcpy(sum, next, sizeof(sum));
	}
	for (unsigned lane = 0; lane < WARP_LANES; lane++)
		sums[xxh3_fold_block(lane)][xxh3_fold_acc(lane)] = sum[lane][0];
}

/* As hash_long() there. */
static void hash_long(const uint8_t *secret, const uint8_t *p, uint64_t len,
		      uint8_t *digest)
{
	uint64_t blocks = xxh3_blocks(len), acc[8];
	uint64_t sums[HASH_TILE_BLOCKS][8];

	for (unsigned i = 0; i < 8; i++)
		acc[i] = xxh3_start(i);
	for (uint64_t tile = 0; tile < blocks; tile += HASH_TILE_BLOCKS) {
		struct shuffled warps = shuffled_of(HASH_LOAD_WARPS);

		for (unsigned n = 0; n < HASH_LOAD_WARPS; n++) {
			unsigned in = shuffled_next(&warps) * XXH3_LANE_BLOCKS;
			uint64_t first = tile + in;

			if (first < blocks)
				hash_load(p + first * XXH3_BLOCK_BYTES,
					  len - first * XXH3_BLOCK_BYTES,
					  blocks - first < XXH3_LANE_BLOCKS ?
						  (unsigned)(blocks - first) :
						  XXH3_LANE_BLOCKS,
					  secret, &sums[in]);
		}
		for (unsigned b = 0; b < HASH_TILE_BLOCKS && tile + b < blocks;
		     b++)
			for (unsigned i = 0; i < 8; i++)
				acc[i] = xxh3_scramble(
					acc[i] + sums[b][i],
					xxh3_scramble_key(secret, i));
	}
	for (unsigned lane = 0; lane < WARP_LANES; lane++)
		acc[lane % 8] += xxh3_lane_tail(lane, secret, p, len);
	xxh3_put(xxh3_finish(acc, secret, len), digest);
}

static void run_hash(void *const *args, unsigned grid, unsigned block,
		     bool rest)
{
	const struct hash_job *jobs = *(struct hash_job **)args[0];
	uint64_t count = *(uint64_t *)args[1];
	const uint8_t *secret = *(uint8_t **)args[2];
	uint8_t *digests = *(uint8_t **)args[3];
	struct shuffled blocks = shuffled_of(grid);

	CHECK(block == HASH_THREADS);
	for (unsigned n = 0; n < grid; n++)
		for (uint64_t j = shuffled_next(&blocks); j < count;
		     j += grid) {
			const uint8_t *p =
				(const uint8_t *)(uintptr_t)jobs[j].data;

			if (hash_is_rest(&jobs[j]) != rest)
				continue;
			if (jobs[j].len <= XXH3_SHORT_MAX)
				xxh3_put(xxh3_short(secret, p, jobs[j].len),
					 digests + 16 * j);
			else
				hash_long(secret, p, jobs[j].len,
					  digests + 16 * j);
		}
}

static void run_hash_chunks(void *const *args, unsigned grid, unsigned block)
{
	run_hash(args, grid, block, false);
}

static void run_hash_chunks_rest(void *const *args, unsigned grid,
				    unsigned block)
{
	run_hash(args, grid, block, true);
}

static void run_plan_pack(void *const *args, unsigned grid, unsigned block)
{
	CHECK(grid == 1 && block == 1);
	stash_plan_pack(args[0], args[1], *(const int64_t **)args[2]);
}

static void run_plan_unpack(void *const *args, unsigned grid, unsigned block)
{
	CHECK(grid == 1 && block == 1);
	stash_plan_unpack(args[0], args[1]);
}

static void run_copy(void *const *args, unsigned grid, unsigned block, bool in)
{
	unsigned warps = grid * (block / WARP_LANES);
	struct shuffled order = shuffled_of(warps);

	CHECK(block == STASH_COPY_THREADS);
	for (unsigned n = 0; n < warps; n++) {
		struct stash_lane l = { .warp = shuffled_next(&order),
					.warps = warps,
					.lanes = WARP_LANES };

		for (l.lane = 0; l.lane < l.lanes; l.lane++)
			if (in)
				stash_copy_in(args[0], args[1],
					      *(uint8_t **)args[2], l);
			else
				stash_copy_out(args[0], args[1],
					       *(uint8_t **)args[2], l);
	}
}

static void run_copy_in(void *const *args, unsigned grid, unsigned block)
{
	run_copy(args, grid, block, true);
}

static void run_copy_out(void *const *args, unsigned grid, unsigned block)
{
	run_copy(args, grid, block, false);
}

static void run_reset(void *const *args, unsigned grid, unsigned block)
{
	struct shuffled threads = shuffled_of(grid * block);

	for (unsigned n = 0; n < grid * block; n++)
		stash_reset(*(struct stash_view **)args[0],
			    *(uint32_t *)args[1], shuffled_next(&threads),
			    grid * block);
}

static void run_busy(void *const *args, unsigned grid, unsigned block)
{
	uint32_t *out = *(uint32_t **)args[0];

	for (unsigned i = 0; i < grid * block; i++)
		out[i] = busy_value(i, *(uint32_t *)args[1]);
}

#define VIEW sizeof(struct stash_view)
#define ITEM sizeof(struct stash_item_view)

static const struct kernel kernels[] = {
	{ "hash_chunks", 4, { 8, 8, 8, 8 }, run_hash_chunks },
	{ "hash_chunks_rest", 4, { 8, 8, 8, 8 }, run_hash_chunks_rest },
	{ "stash_plan_pack", 3, { VIEW, ITEM, 8 }, run_plan_pack },
	{ "stash_plan_unpack", 2, { VIEW, ITEM }, run_plan_unpack },
	{ "stash_copy_in", 3, { VIEW, ITEM, 8 }, run_copy_in },
	{ "stash_copy_out", 3, { VIEW, ITEM, 8 }, run_copy_out },
	{ "stash_reset", 2, { 8, 4 }, run_reset },
	{ "bench_busy", 2, { 8, 4 }, run_busy }, /* gpu_bench's */
};

const struct kernel *kernel_find(const char *name)
{
	for (size_t i = 0; i < sizeof(kernels) / sizeof(*kernels); i++)
		if (strcmp(kernels[i].name, name) == 0)
			return &kernels[i];
	return NULL;
}
