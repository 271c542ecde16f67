/*
 * plan_bench.c - how long planning takes: one line for each shape of a job and
 * each policy. Not a test: nothing fails when it is slow.
 *
 *     plan_bench [SHARDS [RANKS]]      (1,000,000 over 4,096)
 */
#include <stdio.h>
#include <sys/resource.h>

#include "store/base/scope.h"
#include "store/step/plan.h"

#define ID_BYTES 64
#define FEW 8

struct job {
	const char *name;
	/* The set of shard i; own[FEW] is room for one of its own. */
	void (*set)(struct job *j, uint32_t i, uint32_t *own,
		    struct ckpt_plan_shard *s);
	uint32_t rank_count;
	uint32_t *lists; /* owned; what set() shares */
};

static uint64_t mix(uint64_t v)
{
	v = (v + 1) * UINT64_C(0x9e3779b97f4a7c15);
	v ^= v >> 31;
	v *= UINT64_C(0xbf58476d1ce4e5b9);
	return v ^ v >> 29;
}

static void all_ranks(struct job *j, uint32_t i, uint32_t *own,
		      struct ckpt_plan_shard *s)
{
	(void)j;
	(void)i;
	(void)own;
	s->ranks = NULL;
}

/* Data-parallel groups: every 64th rank, 64 sets. */
static void strided_groups(struct job *j, uint32_t i, uint32_t *own,
			   struct ckpt_plan_shard *s)
{
	uint32_t groups = 64, size = j->rank_count / groups;

	(void)own;
	s->ranks = j->lists + (size_t)(i % groups) * size;
	s->rank_count = size;
}

/* All but one: as many large sets as there are ranks, up to 1024. */
static void all_but_one(struct job *j, uint32_t i, uint32_t *own,
			struct ckpt_plan_shard *s)
{
	(void)own;
	s->ranks = j->lists + (size_t)(i % 1024) * (j->rank_count - 1);
	s->rank_count = j->rank_count - 1;
}

static void few_of_its_own(struct job *j, uint32_t i, uint32_t *own,
			   struct ckpt_plan_shard *s)
{
	uint32_t first = (uint32_t)(mix(i) % (j->rank_count - FEW));

	for (uint32_t n = 0; n < FEW; n++)
		own[n] = first + n;
	s->ranks = own;
	s->rank_count = FEW;
}

static void lists_fill(struct job *j)
{
	uint32_t n = j->rank_count, size;

	if (j->set == strided_groups) {
		size = n / 64;
		j->lists = calloc(n, sizeof(*j->lists));
		CHECK(j->lists);
		for (uint32_t g = 0; g < 64; g++)
			for (uint32_t i = 0; i < size; i++)
				j->lists[(size_t)g * size + i] = g + 64 * i;
	} else if (j->set == all_but_one) {
		j->lists = calloc((size_t)1024 * (n - 1), sizeof(*j->lists));
		CHECK(j->lists);
		for (size_t g = 0; g < 1024; g++)
			for (uint32_t i = 0; i < n - 1; i++)
				j->lists[g * (n - 1) + i] = i + (i >= g % n);
	}
}

static double seconds(void)
{
	struct timespec t;

	CHECK(clock_gettime(CLOCK_MONOTONIC, &t) == 0);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void measure(struct job *j, const struct ckpt_plan_shard *shards,
		    uint32_t count, uint32_t *ranks, uint64_t *loads)
{
	static const struct {
		enum ckpt_plan_policy policy;
		uint32_t cap;
	} runs[] = { { CKPT_PLAN_PER_SHARD, 0 },
		     { CKPT_PLAN_PER_SHARD, 1050 },
		     { CKPT_PLAN_PR3392, 0 },
		     { CKPT_PLAN_GREEDY, 0 } };
	struct rusage u;

	for (size_t i = 0; i < sizeof(runs) / sizeof(*runs); i++) {
		struct ckpt_plan_options o = { j->rank_count, runs[i].policy,
					       runs[i].cap };
		double start = seconds();

		CHECK(ckpt_plan_reads(shards, count, &o, ranks, loads, NULL) ==
		      0);
		start = seconds() - start;
		CHECK(getrusage(RUSAGE_SELF, &u) == 0);
		printf("%-16s %-10s cap %-5u %8.3f s  %6ld MiB at most\n",
		       j->name, ckpt_plan_policy_name(o.policy), o.cap_permille,
		       start, u.ru_maxrss / 1024);
	}
}

int main(int argc, char **argv)
{
	uint32_t count = argc > 1 ? (uint32_t)atol(argv[1]) : 1000000;
	uint32_t rank_count = argc > 2 ? (uint32_t)atol(argv[2]) : 4096;
	struct job jobs[] = {
		{ "all ranks", all_ranks, rank_count, NULL },
		{ "64 groups", strided_groups, rank_count, NULL },
		{ "8 of its own", few_of_its_own, rank_count, NULL },
		{ "all but one", all_but_one, rank_count, NULL },
	};
	SCOPED(scope_free)
	struct ckpt_plan_shard *shards = calloc(count + 1, sizeof(*shards));
	SCOPED(scope_free) char *ids = calloc(count + 1, ID_BYTES);
	SCOPED(scope_free) uint32_t *own = calloc(count + 1, FEW * 4);
	SCOPED(scope_free) uint32_t *ranks = calloc(count + 1, sizeof(*ranks));
	SCOPED(scope_free) uint64_t *loads = calloc(rank_count, sizeof(*loads));

	CHECK(shards && ids && own && ranks && loads && rank_count >= 64);
	for (size_t n = 0; n < sizeof(jobs) / sizeof(*jobs); n++) {
		lists_fill(&jobs[n]);
		for (uint32_t i = 0; i < count; i++) {
			char *id = ids + (size_t)i * ID_BYTES;
			uint64_t v = mix(i);

			shards[i] = (struct ckpt_plan_shard){ .id = id };
			shards[i].id_bytes = (size_t)snprintf(
				id, ID_BYTES,
				"optimizer.state.layers.%u.mlp.experts.%u.w%u",
				(unsigned)(v % 128), i, (unsigned)(v % 3));
			shards[i].bytes = (v >> 20) % 50 << 16;
			shards[i].source =
				v % 4 ? (uint32_t)((v >> 8) % rank_count)
				      : CKPT_PLAN_NO_SOURCE;
			jobs[n].set(&jobs[n], i, own + (size_t)i * FEW,
				    &shards[i]);
		}
		measure(&jobs[n], shards, count, ranks, loads);
		free(jobs[n].lists);
	}
	return 0;
}
