/*
 * plan.h - which rank reads which shard. Installed as ckpt_plan.h, with the
 * library ckpt_plan.
 *
 * A shard is what is read as one: a tensor, or the part of one that was saved
 * as a piece. It has a set of ranks that may read it and pass it on, and often
 * a source: the rank whose own file holds it. The plan gives every shard to
 * one rank of its set. It is a function of its input alone: not of the order
 * of the shards, nor of the machine, so ranks that plan the same need not talk.
 *
 * Policies:
 *   per_shard  a shard whose source is in its set goes there; the rest as
 *              greedy does it, on top of that
 *   pr3392     all shards of one source together: to the source, or, when it
 *              may not have all of them, to the least loaded rank that may;
 *              when no rank may, as greedy does it. Sources with more bytes
 *              come first, then lower ones.
 *   greedy     shards that only another group holds come last, then those that
 *              more ranks may read, then smaller ones, then by id; each goes
 *              to the least loaded rank of its set, the lowest of these
 *
 * No policy but greedy looks at balance; a cap makes them. When the shards
 * that went by source are more than the cap allows for a rank, its largest
 * ones are placed anew, with the rest. They may come back when there is no
 * better place, and the rest may go over the cap: it is a wish.
 *
 * Threads: any. Nothing is kept between calls.
 */
#ifndef STORE_PLAN_H
#define STORE_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define CKPT_PLAN_API __attribute__((visibility("default")))
#else
#define CKPT_PLAN_API
#endif

#define CKPT_PLAN_SHARDS_MAX (UINT32_C(1) << 28)
#define CKPT_PLAN_RANKS_MAX (UINT32_C(1) << 20)
#define CKPT_PLAN_NO_SOURCE UINT32_MAX
/* Dimensions of a tensor in an id. */
#define CKPT_PLAN_DIMENSIONS_MAX 64

enum ckpt_plan_policy {
	CKPT_PLAN_PER_SHARD,
	CKPT_PLAN_PR3392,
	CKPT_PLAN_GREEDY,
};

struct ckpt_plan_shard {
	/*
	 * Unique, of any bytes, compared as memcmp() does, a prefix first. Of
	 * UTF-8 that is the order of code points; see ckpt_plan_id().
	 */
	const char *id;
	size_t id_bytes;
	uint64_t bytes;
	/*
	 * The ranks that may read it, each once; NULL: all of them, and
	 * rank_count does not matter. Shards with the same set may share the
	 * array; in ascending order it costs least.
	 */
	const uint32_t *ranks;
	uint32_t rank_count;
	uint32_t source; /* a rank, or CKPT_PLAN_NO_SOURCE */
	bool cross; /* its main replica is another group's */
};

struct ckpt_plan_options {
	uint32_t rank_count; /* of the group, 1..CKPT_PLAN_RANKS_MAX */
	enum ckpt_plan_policy policy;
	/* 0: none; 1250: a quarter more than the mean. Not below 1000. */
	uint32_t cap_permille;
};

/* Where the input is wrong. */
struct ckpt_plan_fault {
	size_t shard; /* its index, or SIZE_MAX when it is an option */
	const char *what; /* "no rank may read it"; never freed */
};

/*
 * Plan. ret_ranks[i] is who reads shards[i]; ret_loads[r] has rank r's bytes.
 * Both are the caller's, with room for `count` and options->rank_count, and
 * are written on success only. ret_fault may be NULL; it is written with every
 * error but -ENOMEM.
 *
 * -EINVAL: options, an empty set, a rank in it twice. -ERANGE: a rank, or a
 * source, that is not below rank_count. -EEXIST: an id twice; the fault is one
 * of the two. -EOVERFLOW: more than 2^64 - 1 bytes. -E2BIG: too many shards.
 * -ENOMEM.
 */
CKPT_PLAN_API int ckpt_plan_reads(const struct ckpt_plan_shard *shards,
				  size_t count,
				  const struct ckpt_plan_options *options,
				  uint32_t *ret_ranks, uint64_t *ret_loads,
				  struct ckpt_plan_fault *ret_fault);

/*
 * The id of a piece of tensor `name`, which has no NUL, at these offsets (at
 * most CKPT_PLAN_DIMENSIONS_MAX): ids are in the order of names, then of the
 * offsets as numbers. It is not for people to read. Writes at most `size`
 * bytes and returns how many it has.
 */
CKPT_PLAN_API size_t ckpt_plan_id(char *buf, size_t size, const char *name,
				  size_t name_bytes, const uint64_t *offsets,
				  unsigned dimensions);

/* "per_shard", "pr3392", "greedy", or NULL; and back: false for others. */
CKPT_PLAN_API const char *ckpt_plan_policy_name(enum ckpt_plan_policy policy);
CKPT_PLAN_API bool ckpt_plan_policy_of(const char *name,
				       enum ckpt_plan_policy *ret_policy);

#ifdef __cplusplus
}
#endif

#endif
