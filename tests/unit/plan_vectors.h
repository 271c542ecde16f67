/*
 * plan_vectors.h - who reads what, as Megatron-LM's own functions had it: main
 * (greedy) and pull request 3392; and with the policy that is the default here.
 */
#ifndef TESTS_UNIT_PLAN_VECTORS_H
#define TESTS_UNIT_PLAN_VECTORS_H

#include <stdbool.h>
#include <stdint.h>

#include "store/step/plan.h"

#define RANKS_MAX 4
#define SHARDS_MAX 8
#define NONE CKPT_PLAN_NO_SOURCE

static const enum ckpt_plan_policy policies[] = {
	CKPT_PLAN_PER_SHARD,
	CKPT_PLAN_PR3392,
	CKPT_PLAN_GREEDY,
};
#define POLICIES 3

struct vector_shard {
	const char *id;
	uint64_t bytes;
	uint32_t ranks[RANKS_MAX];
	uint32_t rank_count;
	uint32_t source;
	bool cross;
	uint32_t to[3]; /* by policy: per_shard, pr3392, greedy */
};

struct vector {
	const char *name;
	uint32_t rank_count;
	unsigned count;
	struct vector_shard shards[SHARDS_MAX];
	uint64_t loads[3][RANKS_MAX];
};

/* clang-format off */
static const struct vector vectors[] = {
	{ "C1 uniform, all ranks hold all",
	  2, 4,
	  {
	    { "a", 10, { 0, 1 }, 2, NONE, false, { 0, 0, 0 } },
	    { "b", 10, { 0, 1 }, 2, NONE, false, { 1, 1, 1 } },
	    { "c", 10, { 0, 1 }, 2, NONE, false, { 0, 0, 0 } },
	    { "d", 10, { 0, 1 }, 2, NONE, false, { 1, 1, 1 } },
	  },
	  { { 20, 20 },
	    { 20, 20 },
	    { 20, 20 } } },
	{ "C2 LPT greedy",
	  3, 7,
	  {
	    { "a", 7, { 0, 1, 2 }, 3, NONE, false, { 0, 0, 0 } },
	    { "b", 7, { 0, 1, 2 }, 3, NONE, false, { 1, 1, 1 } },
	    { "c", 6, { 0, 1, 2 }, 3, NONE, false, { 2, 2, 2 } },
	    { "d", 5, { 0, 1, 2 }, 3, NONE, false, { 2, 2, 2 } },
	    { "e", 4, { 0, 1, 2 }, 3, NONE, false, { 0, 0, 0 } },
	    { "f", 4, { 0, 1, 2 }, 3, NONE, false, { 1, 1, 1 } },
	    { "g", 3, { 0, 1, 2 }, 3, NONE, false, { 0, 0, 0 } },
	  },
	  { { 14, 11, 11 },
	    { 14, 11, 11 },
	    { 14, 11, 11 } } },
	{ "C3 low coverage first",
	  3, 3,
	  {
	    { "big", 100, { 0, 1, 2 }, 3, NONE, false, { 0, 0, 0 } },
	    { "only2", 1, { 2 }, 1, NONE, false, { 2, 2, 2 } },
	    { "pair", 50, { 1, 2 }, 2, NONE, false, { 1, 1, 1 } },
	  },
	  { { 100, 50, 1 },
	    { 100, 50, 1 },
	    { 100, 50, 1 } } },
	{ "C4 cross-group loads last",
	  2, 3,
	  {
	    { "x", 100, { 0, 1 }, 2, NONE, true, { 0, 0, 0 } },
	    { "y", 10, { 0, 1 }, 2, NONE, false, { 0, 0, 0 } },
	    { "z", 10, { 0, 1 }, 2, NONE, false, { 1, 1, 1 } },
	  },
	  { { 110, 10 },
	    { 110, 10 },
	    { 110, 10 } } },
	{ "C5 zero-size shards",
	  2, 3,
	  {
	    { "e0", 0, { 0, 1 }, 2, NONE, false, { 1, 1, 1 } },
	    { "e1", 0, { 0, 1 }, 2, NONE, false, { 1, 1, 1 } },
	    { "t", 8, { 0, 1 }, 2, NONE, false, { 0, 0, 0 } },
	  },
	  { { 8, 0 },
	    { 8, 0 },
	    { 8, 0 } } },
	{ "C6 locality: 4 ranks, own files",
	  4, 8,
	  {
	    { "s0", 64, { 0, 1, 2, 3 }, 4, 0, false, { 0, 0, 0 } },
	    { "s1", 8, { 0, 1, 2, 3 }, 4, 1, false, { 1, 1, 2 } },
	    { "s2", 32, { 0, 1, 2, 3 }, 4, 2, false, { 2, 2, 2 } },
	    { "s3", 16, { 0, 1, 2, 3 }, 4, 3, false, { 3, 3, 2 } },
	    { "s4", 8, { 0, 1, 2, 3 }, 4, 0, false, { 0, 0, 3 } },
	    { "s5", 64, { 0, 1, 2, 3 }, 4, 1, false, { 1, 1, 1 } },
	    { "s6", 16, { 0, 1, 2, 3 }, 4, 2, false, { 2, 2, 3 } },
	    { "s7", 32, { 0, 1, 2, 3 }, 4, 3, false, { 3, 3, 3 } },
	  },
	  { { 72, 72, 48, 48 },
	    { 72, 72, 48, 48 },
	    { 64, 64, 56, 56 } } },
	{ "C7 locality beats balance",
	  2, 3,
	  {
	    { "huge", 1000, { 0, 1 }, 2, 0, false, { 0, 0, 0 } },
	    { "h2", 900, { 0, 1 }, 2, 0, false, { 0, 0, 1 } },
	    { "t", 1, { 0, 1 }, 2, 1, false, { 1, 1, 1 } },
	  },
	  { { 1900, 1 },
	    { 1900, 1 },
	    { 1000, 901 } } },
	{ "C8 source rank cannot hold the shard",
	  3, 3,
	  {
	    { "a", 10, { 1, 2 }, 2, 0, false, { 2, 1, 2 } },
	    { "b", 20, { 1, 2 }, 2, 0, false, { 1, 1, 1 } },
	    { "c", 5, { 0, 1, 2 }, 3, 2, false, { 2, 2, 0 } },
	  },
	  { { 0, 20, 15 },
	    { 0, 30, 5 },
	    { 5, 20, 10 } } },
	{ "C9 empty intersection -> per-shard greedy",
	  2, 4,
	  {
	    { "a", 100, { 0 }, 1, 0, false, { 0, 0, 0 } },
	    { "b", 1, { 1 }, 1, 0, false, { 1, 1, 1 } },
	    { "c", 5, { 0, 1 }, 2, 0, false, { 0, 1, 1 } },
	    { "d", 6, { 0, 1 }, 2, 0, false, { 0, 1, 1 } },
	  },
	  { { 111, 1 },
	    { 100, 12 },
	    { 100, 12 } } },
	{ "C10 mix of hinted and unhinted",
	  3, 5,
	  {
	    { "a", 40, { 0, 1, 2 }, 3, 1, false, { 1, 1, 0 } },
	    { "b", 30, { 0, 1, 2 }, 3, 1, false, { 1, 1, 1 } },
	    { "u1", 25, { 0, 1, 2 }, 3, NONE, false, { 0, 0, 2 } },
	    { "u2", 20, { 0, 1, 2 }, 3, NONE, false, { 2, 2, 2 } },
	    { "u3", 5, { 0, 1, 2 }, 3, NONE, false, { 2, 2, 1 } },
	  },
	  { { 25, 70, 25 },
	    { 25, 70, 25 },
	    { 40, 35, 45 } } },
	{ "C11 two file groups whose source rank is no candidate spread over the valid ranks",
	  4, 3,
	  {
	    { "a", 10, { 2, 3 }, 2, 0, false, { 2, 2, 2 } },
	    { "b", 10, { 2, 3 }, 2, 1, false, { 3, 3, 3 } },
	    { "c", 10, { 2, 3 }, 2, 0, false, { 2, 2, 2 } },
	  },
	  { { 0, 0, 20, 10 },
	    { 0, 0, 20, 10 },
	    { 0, 0, 20, 10 } } },
	{ "C12 hints override cross ordering",
	  2, 2,
	  {
	    { "x", 100, { 0, 1 }, 2, 0, true, { 0, 0, 1 } },
	    { "y", 10, { 0, 1 }, 2, 1, false, { 1, 1, 0 } },
	  },
	  { { 100, 10 },
	    { 100, 10 },
	    { 10, 100 } } },
	{ "C13 tie-break is code-point order of the key",
	  4, 4,
	  {
	    { "layer.10", 5, { 0, 1, 2, 3 }, 4, NONE, false, { 2, 2, 2 } },
	    { "layer.2", 5, { 0, 1, 2, 3 }, 4, NONE, false, { 3, 3, 3 } },
	    { "layer.1", 5, { 0, 1, 2, 3 }, 4, NONE, false, { 1, 1, 1 } },
	    { "Layer.1", 5, { 0, 1, 2, 3 }, 4, NONE, false, { 0, 0, 0 } },
	  },
	  { { 5, 5, 5, 5 },
	    { 5, 5, 5, 5 },
	    { 5, 5, 5, 5 } } },
	{ "C14 equal group totals: lower source first, fallback spreads",
	  4, 2,
	  {
	    { "a", 10, { 2, 3 }, 2, 1, false, { 2, 3, 2 } },
	    { "b", 10, { 2, 3 }, 2, 0, false, { 3, 2, 3 } },
	  },
	  { { 0, 0, 10, 10 },
	    { 0, 0, 10, 10 },
	    { 0, 0, 10, 10 } } },
};
/* clang-format on */

#endif
