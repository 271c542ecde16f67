/*
 * plan_ranks.h - sets of ranks, and who of a set has the least to read.
 *
 * Few sets are large, but those are shared by most shards: they are found
 * again by their contents, and each has a heap of its ranks. While shards are
 * picked for, loads only grow, so a heap may keep old ones: a rank whose load
 * has grown since is put where it belongs when it comes to the top. Small sets
 * are looked through. Where many large sets overlap, every heap would be out
 * of date each time; there the least loaded of all ranks are tried first, in
 * the order of one heap that is always up to date.
 *
 * For plan.c alone; one thread.
 */
#ifndef STORE_PLAN_RANKS_H
#define STORE_PLAN_RANKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_plan_shard;

/* Sets of no more ranks are not kept, but looked through each time. */
#define PLAN_SMALL_RANKS 16
#define PLAN_SET_SMALL UINT32_MAX

struct plan_heap_node {
	uint64_t load; /* its load, or less */
	uint32_t rank;
};

struct plan_set {
	const uint32_t *ranks; /* ascending; the caller's, or `owned` */
	uint32_t *owned;
	uint32_t count;
	uint32_t waiting; /* shards of it that are still to be placed */
	uint32_t seen_by; /* the last group of shards that was cut with it */
	struct plan_heap_node *heap; /* owned; NULL: not needed yet */
	uint64_t *bits; /* owned; by rank; NULL: it has too few ranks */
};

struct plan_ranks {
	uint32_t rank_count;
	uint64_t *loads; /* borrowed */
	uint32_t *stamps; /* owned; of each rank: who saw it last */
	uint32_t stamp;

	struct plan_set *sets; /* owned */
	size_t set_count, set_capacity;
	/* Owned hash tables of indexes into sets, plus 1. */
	struct plan_pointer {
		const uint32_t *ranks;
		uint32_t count, set;
	} * pointers;
	size_t pointer_count, pointer_slots;
	uint32_t *contents;
	size_t content_slots;

	/* A heap of all ranks, and where each is in it; NULL: not needed. */
	struct plan_heap_node *order;
	uint32_t *order_at;
};

#define PLAN_BITS_WORDS(ranks) (((size_t)(ranks) + 63) / 64)

/* -ENOMEM. loads has rank_count entries, and changes while this lives. */
int plan_ranks_init(struct plan_ranks *r, uint32_t rank_count, uint64_t *loads);
void plan_ranks_release(struct plan_ranks *r);

/*
 * Check the set of a shard and find it: *ret_set is its index, or
 * PLAN_SET_SMALL. The errors of ckpt_plan_reads(), with *ret_what, or -ENOMEM.
 */
int plan_ranks_add(struct plan_ranks *r, const struct ckpt_plan_shard *s,
		   uint32_t *ret_set, const char **ret_what);

bool plan_ranks_has(const struct plan_ranks *r, const struct ckpt_plan_shard *s,
		    uint32_t set, uint32_t rank);

/* Take from bits, one for each rank, those that the shard's set has not. */
void plan_ranks_cut(const struct plan_ranks *r, const struct ckpt_plan_shard *s,
		    uint32_t index, uint64_t *bits);

/*
 * All sets are known: from here on loads only grow, and plan_ranks_grown()
 * is told of each that does. -ENOMEM.
 */
int plan_ranks_begin(struct plan_ranks *r);
void plan_ranks_grown(struct plan_ranks *r, uint32_t rank);

/*
 * The least loaded of a shard's set, the lowest of these. How many shards of a
 * kept set are `waiting` tells whether a heap pays. -ENOMEM.
 */
int plan_ranks_pick(struct plan_ranks *r, const struct ckpt_plan_shard *s,
		    uint32_t index, uint32_t *ret_rank);

#endif
