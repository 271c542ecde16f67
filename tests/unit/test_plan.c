/*
 * A plan who reads what, and when: the vectors, the cap, and input that is
 * refused. test_plan_model.c compares it with a model.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "store/base/scope.h"
#include "tests/unit/plan_vectors.h"

/* --- The vectors --- */

static void check_vector(const struct vector *v, enum ckpt_plan_policy policy)
{
	const struct ckpt_plan_options o = { v->rank_count, policy, 0 };
	struct ckpt_plan_shard shards[SHARDS_MAX];
	uint64_t loads[RANKS_MAX];
	uint32_t ranks[SHARDS_MAX];

	for (unsigned i = 0; i < v->count; i++) {
		const struct vector_shard *s = &v->shards[i];

		shards[i] = (struct ckpt_plan_shard){
			.id = s->id,
			.id_bytes = strlen(s->id),
			.bytes = s->bytes,
			.ranks = s->ranks,
			.rank_count = s->rank_count,
			.source = s->source,
			.cross = s->cross,
		};
	}
	assert_int_equal(
		ckpt_plan_reads(shards, v->count, &o, ranks, loads, NULL), 0);
	for (unsigned i = 0; i < v->count; i++)
		if (ranks[i] != v->shards[i].to[policy])
			fail_msg("%s, %s: %s goes to %u instead of %u", v->name,
				 ckpt_plan_policy_name(policy), v->shards[i].id,
				 ranks[i], v->shards[i].to[policy]);
	for (uint32_t r = 0; r < v->rank_count; r++)
		assert_int_equal(loads[r], v->loads[policy][r]);
}

static void every_vector_is_met(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(vectors) / sizeof(*vectors); i++)
		for (int n = 0; n < POLICIES; n++)
			check_vector(&vectors[i], policies[n]);
}

/*
 * Upstream names a shard by its tensor and offsets: 8 comes before 16. D1 to
 * D3b of the vectors, whose sources are of tensors and not of shards.
 */
struct piece {
	const char *name;
	uint64_t offset;
	uint32_t source, to;
};

static void check_pieces(const struct piece *pieces, size_t count,
			 enum ckpt_plan_policy policy)
{
	static const uint32_t both[] = { 0, 1 };
	const struct ckpt_plan_options o = { 2, policy, 0 };
	struct ckpt_plan_shard shards[4];
	char ids[4][64];
	uint64_t loads[2];
	uint32_t ranks[4];

	for (size_t i = 0; i < count; i++)
		shards[i] = (struct ckpt_plan_shard){
			.id = ids[i],
			.id_bytes = ckpt_plan_id(
				ids[i], sizeof(ids[i]), pieces[i].name,
				strlen(pieces[i].name), &pieces[i].offset, 1),
			.bytes = 8,
			.ranks = both,
			.rank_count = 2,
			.source = pieces[i].source,
		};
	assert_int_equal(ckpt_plan_reads(shards, count, &o, ranks, loads, NULL),
			 0);
	for (size_t i = 0; i < count; i++)
		assert_int_equal(ranks[i], pieces[i].to);
}

static void pieces_are_in_the_order_of_their_offsets(void **state)
{
	static const struct piece d1[] = { { "W", 4096, 0, 0 },
					   { "ln", 0, NONE, 1 } };
	static const struct piece d2[] = { { "W", 4096, 0, 0 },
					   { "ln.__tp_replica_1", 0, 0, 0 } };
	static const struct piece d3[] = { { "experts.W", 0, 0, 0 },
					   { "experts.W", 8, 0, 0 },
					   { "experts.W", 16, 0, 0 },
					   { "experts.W", 24, 0, 0 } };
	static const struct piece d3b[] = { { "experts.W", 0, NONE, 0 },
					    { "experts.W", 8, NONE, 1 },
					    { "experts.W", 16, NONE, 0 },
					    { "experts.W", 24, NONE, 1 } };

	(void)state;
	check_pieces(d1, 2, CKPT_PLAN_PR3392);
	check_pieces(d2, 2, CKPT_PLAN_PR3392);
	check_pieces(d3, 4, CKPT_PLAN_PR3392);
	check_pieces(d3b, 4, CKPT_PLAN_GREEDY);
}

static void an_id_says_how_long_it_is(void **state)
{
	static const uint64_t offsets[] = { 1, UINT64_MAX };
	char id[32];

	(void)state;
	memset(id, 'x', sizeof(id));
	assert_int_equal(ckpt_plan_id(id, 5, "ab", 2, offsets, 2), 19);
	assert_memory_equal(id, "ab\0\0\0xx", 7);
	assert_int_equal(ckpt_plan_id(NULL, 0, "ab", 2, offsets, 2), 19);
	assert_int_equal(ckpt_plan_id(id, sizeof(id), "ab", 2, offsets, 2), 19);
	assert_memory_equal(id,
			    "ab\0\0\0\0\0\0\0\0\1"
			    "\xff\xff\xff\xff\xff\xff\xff\xff",
			    19);
	assert_int_equal(ckpt_plan_id(id, 1, "ab", 2, NULL, 0), 3);
}

/* --- The cap --- */

static void a_cap_spills_the_largest_first(void **state)
{
	static const struct ckpt_plan_shard shards[] = {
		{ "huge", 4, 1000, NULL, 0, 0, false },
		{ "h2", 2, 900, NULL, 0, 0, false },
		{ "t", 1, 1, NULL, 0, 1, false },
	};
	struct ckpt_plan_options o = { 2, CKPT_PLAN_PER_SHARD, 1000 };
	uint64_t loads[2];
	uint32_t ranks[3];

	(void)state;
	assert_int_equal(ckpt_plan_reads(shards, 3, &o, ranks, loads, NULL), 0);
	assert_int_equal(ranks[0], 1);
	assert_int_equal(ranks[1], 0);
	assert_int_equal(loads[0], 900);
	assert_int_equal(loads[1], 1001);
	o.cap_permille = 2000; /* 1900 is not above twice the mean */
	assert_int_equal(ckpt_plan_reads(shards, 3, &o, ranks, loads, NULL), 0);
	assert_int_equal(loads[0], 1900);
}

static void what_only_one_rank_may_read_is_not_spilled(void **state)
{
	static const uint32_t zero[] = { 0 };
	static const struct ckpt_plan_shard shards[] = {
		{ "a", 1, 1000, zero, 1, 0, false },
		{ "b", 1, 10, NULL, 0, 0, false },
	};
	struct ckpt_plan_options o = { 2, CKPT_PLAN_PER_SHARD, 1000 };
	uint64_t loads[2];
	uint32_t ranks[2];

	(void)state;
	assert_int_equal(ckpt_plan_reads(shards, 2, &o, ranks, loads, NULL), 0);
	assert_int_equal(ranks[0], 0);
	assert_int_equal(ranks[1], 1);
}

/* --- Bad input --- */

struct bad {
	struct ckpt_plan_shard shards[3];
	struct ckpt_plan_options o;
	int rc;
	size_t at;
};

static void bad_input_is_refused_by_name(void **state)
{
	static const uint32_t out[] = { 0, 2 }, twice[] = { 1, 0, 1 };
	static const uint32_t both[] = { 0, 1 };
	static const struct bad bad[] = {
		{ { { "a", 1, 1, both, 2, 0, false },
		    { "b", 1, 1, both, 0, 0, false } },
		  { 2, CKPT_PLAN_GREEDY, 0 },
		  -EINVAL,
		  1 },
		{ { { "a", 1, 1, out, 2, 0, false },
		    { "b", 1, 1, both, 2, 0, false } },
		  { 2, CKPT_PLAN_GREEDY, 0 },
		  -ERANGE,
		  0 },
		{ { { "a", 1, 1, both, 2, 0, false },
		    { "b", 1, 1, twice, 3, 0, false } },
		  { 2, CKPT_PLAN_GREEDY, 0 },
		  -EINVAL,
		  1 },
		{ { { "a", 1, 1, both, 2, 0, false },
		    { "b", 1, 1, both, 2, 2, false } },
		  { 2, CKPT_PLAN_PER_SHARD, 0 },
		  -ERANGE,
		  1 },
		{ { { "a", 1, UINT64_MAX, both, 2, 0, false },
		    { "b", 1, 1, both, 2, 0, false } },
		  { 2, CKPT_PLAN_PR3392, 0 },
		  -EOVERFLOW,
		  1 },
		{ { { "a", 1, 1, both, 2, 0, false } },
		  { 0, CKPT_PLAN_GREEDY, 0 },
		  -EINVAL,
		  SIZE_MAX },
		{ { { "a", 1, 1, both, 2, 0, false } },
		  { 2, (enum ckpt_plan_policy)3, 0 },
		  -EINVAL,
		  SIZE_MAX },
		{ { { "a", 1, 1, both, 2, 0, false } },
		  { 2, CKPT_PLAN_GREEDY, 999 },
		  -EINVAL,
		  SIZE_MAX },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		struct ckpt_plan_fault fault = { 77, NULL };
		size_t count = bad[i].shards[1].id ? 2 : 1;
		uint64_t loads[2] = { 7, 7 };
		uint32_t ranks[3] = { 7, 7, 7 };

		assert_int_equal(ckpt_plan_reads(bad[i].shards, count,
						 &bad[i].o, ranks, loads,
						 &fault),
				 bad[i].rc);
		assert_true(fault.shard == bad[i].at);
		assert_non_null(fault.what);
		assert_int_equal(ranks[0], 7);
		assert_int_equal(loads[0], 7);
	}
}

static void an_id_that_comes_twice_is_found(void **state)
{
	static const char *const ids[] = { "aaaaaaa", "aaaaaaaaaaaaaa", "b",
					   "aaaaaaa\0", "aaaaaaaaaaaaaab" };
	static const size_t lens[] = { 7, 14, 1, 8, 15 };
	const struct ckpt_plan_options o = { 2, CKPT_PLAN_GREEDY, 0 };
	struct ckpt_plan_shard shards[6] = { 0 };
	struct ckpt_plan_fault fault;
	uint64_t loads[2];
	uint32_t ranks[6];

	(void)state;
	for (size_t i = 0; i < 5; i++)
		shards[i] = (struct ckpt_plan_shard){ .id = ids[i],
						      .id_bytes = lens[i],
						      .source = NONE };
	assert_int_equal(ckpt_plan_reads(shards, 5, &o, ranks, loads, NULL), 0);
	for (size_t i = 0; i < 5; i++) {
		shards[5] = shards[i];
		assert_int_equal(
			ckpt_plan_reads(shards, 6, &o, ranks, loads, &fault),
			-EEXIST);
		assert_true(fault.shard == i || fault.shard == 5);
	}
}

static void nothing_to_read_is_a_plan_too(void **state)
{
	const struct ckpt_plan_options o = { 3, CKPT_PLAN_PER_SHARD, 1000 };
	uint64_t loads[3] = { 1, 1, 1 };

	(void)state;
	assert_int_equal(ckpt_plan_reads(NULL, 0, &o, NULL, loads, NULL), 0);
	assert_int_equal(loads[0] + loads[1] + loads[2], 0);
}

static void policies_have_names(void **state)
{
	enum ckpt_plan_policy policy;

	(void)state;
	for (int i = 0; i < POLICIES; i++) {
		const char *name = ckpt_plan_policy_name(policies[i]);

		assert_true(ckpt_plan_policy_of(name, &policy));
		assert_int_equal(policy, policies[i]);
	}
	assert_false(ckpt_plan_policy_of("", &policy));
	assert_null(ckpt_plan_policy_name((enum ckpt_plan_policy)3));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_vector_is_met),
		cmocka_unit_test(pieces_are_in_the_order_of_their_offsets),
		cmocka_unit_test(an_id_says_how_long_it_is),
		cmocka_unit_test(a_cap_spills_the_largest_first),
		cmocka_unit_test(what_only_one_rank_may_read_is_not_spilled),
		cmocka_unit_test(bad_input_is_refused_by_name),
		cmocka_unit_test(an_id_that_comes_twice_is_found),
		cmocka_unit_test(nothing_to_read_is_a_plan_too),
		cmocka_unit_test(policies_have_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
