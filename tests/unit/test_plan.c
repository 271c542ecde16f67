/*
 * Who reads which shard: the vectors, and properties on random inputs against
 * a model that does what plan.h says in the most straightforward way.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "store/base/scope.h"
#include "tests/unit/plan_vectors.h"

static const enum ckpt_plan_policy policies[] = {
	CKPT_PLAN_PER_SHARD,
	CKPT_PLAN_PR3392,
	CKPT_PLAN_GREEDY,
};
#define POLICIES 3

/* --- The vectors -----------------------------------------------------------
 */

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

/* --- The model -------------------------------------------------------------
 */

#define MODEL_SHARDS_MAX 200
#define MODEL_RANKS_MAX 70

struct model {
	const struct ckpt_plan_shard *shards;
	size_t count;
	struct ckpt_plan_options o;
	uint64_t loads[MODEL_RANKS_MAX];
	uint32_t ranks[MODEL_SHARDS_MAX]; /* NONE: not yet */
};

static bool may(const struct model *m, size_t i, uint32_t rank)
{
	const struct ckpt_plan_shard *s = &m->shards[i];

	for (uint32_t n = 0; s->ranks && n < s->rank_count; n++)
		if (s->ranks[n] == rank)
			return true;
	return !s->ranks;
}

static uint32_t readers(const struct model *m, size_t i)
{
	uint32_t count = 0;

	for (uint32_t r = 0; r < m->o.rank_count; r++)
		count += may(m, i, r);
	return count;
}

static void give(struct model *m, size_t i, uint32_t rank)
{
	m->ranks[i] = rank;
	m->loads[rank] += m->shards[i].bytes;
}

static int id_compare(const struct ckpt_plan_shard *a,
		      const struct ckpt_plan_shard *b)
{
	size_t both = a->id_bytes < b->id_bytes ? a->id_bytes : b->id_bytes;
	int order = memcmp(a->id, b->id, both);

	if (order != 0)
		return order;
	return (a->id_bytes > b->id_bytes) - (a->id_bytes < b->id_bytes);
}

static bool greedy_before(const struct model *m, size_t a, size_t b)
{
	const struct ckpt_plan_shard *x = &m->shards[a], *y = &m->shards[b];

	if (x->cross != y->cross)
		return y->cross;
	if (readers(m, a) != readers(m, b))
		return readers(m, a) < readers(m, b);
	if (x->bytes != y->bytes)
		return x->bytes > y->bytes;
	return id_compare(x, y) < 0;
}

static void model_greedy(struct model *m)
{
	for (;;) {
		size_t best = m->count;
		uint32_t to = NONE;

		for (size_t i = 0; i < m->count; i++)
			if (m->ranks[i] == NONE &&
			    (best == m->count || greedy_before(m, i, best)))
				best = i;
		if (best == m->count)
			return;
		for (uint32_t r = 0; r < m->o.rank_count; r++)
			if (may(m, best, r) &&
			    (to == NONE || m->loads[r] < m->loads[to]))
				to = r;
		give(m, best, to);
	}
}

static uint64_t source_bytes(const struct model *m, uint32_t source)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < m->count; i++)
		if (m->shards[i].source == source)
			sum += m->shards[i].bytes;
	return sum;
}

static void model_group(struct model *m, uint32_t source)
{
	uint32_t to = NONE;

	for (uint32_t r = 0; r < m->o.rank_count; r++) {
		bool all = true;

		for (size_t i = 0; i < m->count; i++)
			if (m->shards[i].source == source && !may(m, i, r))
				all = false;
		if (all && (r == source || to == NONE ||
			    (to != source && m->loads[r] < m->loads[to])))
			to = r;
	}
	for (size_t i = 0; i < m->count && to != NONE; i++)
		if (m->shards[i].source == source)
			give(m, i, to);
}

static void model_pr3392(struct model *m)
{
	bool done[MODEL_RANKS_MAX] = { false };

	for (uint32_t n = 0; n < m->o.rank_count; n++) {
		uint32_t best = NONE;

		for (uint32_t r = 0; r < m->o.rank_count; r++)
			if (!done[r] &&
			    (best == NONE ||
			     source_bytes(m, r) > source_bytes(m, best)))
				best = r;
		done[best] = true;
		model_group(m, best);
	}
}

static bool over(const struct model *m, uint32_t rank)
{
	uint64_t total = 0;

	for (size_t i = 0; i < m->count; i++)
		total += m->shards[i].bytes;
	return m->loads[rank] * 1000 * m->o.rank_count >
	       total * m->o.cap_permille;
}

static void model_spill(struct model *m, uint32_t rank)
{
	while (over(m, rank)) {
		size_t best = m->count;

		for (size_t i = 0; i < m->count; i++) {
			if (m->ranks[i] != rank || readers(m, i) == 1)
				continue;
			if (best == m->count ||
			    m->shards[i].bytes > m->shards[best].bytes ||
			    (m->shards[i].bytes == m->shards[best].bytes &&
			     id_compare(&m->shards[i], &m->shards[best]) < 0))
				best = i;
		}
		if (best == m->count)
			return;
		m->ranks[best] = NONE;
		m->loads[rank] -= m->shards[best].bytes;
	}
}

static void model_run(struct model *m)
{
	memset(m->loads, 0, sizeof(m->loads));
	for (size_t i = 0; i < m->count; i++)
		m->ranks[i] = NONE;
	if (m->o.policy == CKPT_PLAN_PR3392)
		model_pr3392(m);
	for (size_t i = 0; i < m->count && m->o.policy == CKPT_PLAN_PER_SHARD;
	     i++)
		if (m->shards[i].source != NONE &&
		    may(m, i, m->shards[i].source))
			give(m, i, m->shards[i].source);
	for (uint32_t r = 0; r < m->o.rank_count && m->o.cap_permille; r++)
		model_spill(m, r);
	model_greedy(m);
}

/* --- Random inputs ---------------------------------------------------------
 */

static uint64_t random_state;

static uint32_t below(uint32_t n)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (uint32_t)(random_state >> 33) % n;
}

struct input {
	struct ckpt_plan_shard shards[MODEL_SHARDS_MAX];
	size_t count;
	struct ckpt_plan_options o;
	char ids[MODEL_SHARDS_MAX][32];
	uint32_t ranks[MODEL_SHARDS_MAX][MODEL_RANKS_MAX];
};

/* A set of n ranks in any order. */
static void random_set(uint32_t *set, uint32_t n, uint32_t rank_count)
{
	uint32_t all[MODEL_RANKS_MAX];

	for (uint32_t i = 0; i < rank_count; i++)
		all[i] = i;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t other = i + below(rank_count - i), was = all[i];

		all[i] = all[other];
		all[other] = was;
		set[i] = all[i];
	}
}

static void random_id(struct input *in, size_t i)
{
	/* Long common beginnings, prefixes of one another, bytes > 127. */
	static const char *const starts[] = { "", "a", "layers.weight.",
					      "layers.weight.\xc3\xa4." };
	int n = snprintf(in->ids[i], sizeof(in->ids[i]), "%s%.*s%zu",
			 starts[below(4)], (int)below(12), "------------", i);

	in->shards[i].id = in->ids[i];
	in->shards[i].id_bytes = (size_t)n;
}

static void random_input(struct input *in)
{
	uint32_t ranks = 1 + below(below(2) ? 6 : MODEL_RANKS_MAX);
	uint32_t sizes = 1 + below(20);

	in->o = (struct ckpt_plan_options){
		.rank_count = ranks,
		.policy = policies[below(POLICIES)],
		.cap_permille = below(2) ? 0 : 1000 + below(800),
	};
	in->count = below(below(2) ? 12 : MODEL_SHARDS_MAX);
	for (size_t i = 0; i < in->count; i++) {
		struct ckpt_plan_shard *s = &in->shards[i];

		random_id(in, i);
		s->bytes = below(sizes) * (below(3) ? 1 : 100);
		s->source = below(3) ? below(ranks) : NONE;
		s->cross = below(4) == 0;
		s->rank_count = 1 + below(ranks);
		s->ranks = in->ranks[i];
		if (i > 0 && below(2)) {
			*s = (struct ckpt_plan_shard){
				s->id,
				s->id_bytes,
				s->bytes,
				in->shards[i - 1].ranks,
				in->shards[i - 1].rank_count,
				s->source,
				s->cross
			};
		} else if (below(4) == 0) {
			s->ranks = NULL;
		} else {
			random_set(in->ranks[i], s->rank_count, ranks);
		}
	}
}

static void assert_plan(const struct input *in, const struct model *m,
			const uint32_t *ranks, const uint64_t *loads)
{
	uint64_t sums[MODEL_RANKS_MAX] = { 0 };

	for (size_t i = 0; i < in->count; i++) {
		uint32_t source = in->shards[i].source;

		assert_true(may(m, i, ranks[i]));
		sums[ranks[i]] += in->shards[i].bytes;
		if (in->o.policy == CKPT_PLAN_PER_SHARD &&
		    in->o.cap_permille == 0 && source != NONE &&
		    may(m, i, source))
			assert_int_equal(ranks[i], source);
		assert_int_equal(ranks[i], m->ranks[i]);
	}
	assert_memory_equal(loads, sums, in->o.rank_count * sizeof(*loads));
	assert_memory_equal(loads, m->loads, in->o.rank_count * sizeof(*loads));
}

/* The same shards in another order. */
static void shuffle(struct ckpt_plan_shard *shards, size_t count, size_t *was)
{
	for (size_t i = 0; i < count; i++)
		was[i] = i;
	for (size_t i = 0; i + 1 < count; i++) {
		size_t other = i + below((uint32_t)(count - i));
		struct ckpt_plan_shard s = shards[i];
		size_t w = was[i];

		shards[i] = shards[other];
		shards[other] = s;
		was[i] = was[other];
		was[other] = w;
	}
}

static void random_inputs_are_planned_as_the_model_does(void **state)
{
	static struct input in;
	static struct model m;
	uint64_t seed = (uint64_t)time(NULL) * UINT64_C(0x9e3779b97f4a7c15) | 1;
	uint64_t loads[MODEL_RANKS_MAX], again[MODEL_RANKS_MAX];
	uint32_t ranks[MODEL_SHARDS_MAX], moved[MODEL_SHARDS_MAX];
	size_t was[MODEL_SHARDS_MAX];

	(void)state;
	random_state = seed;
	print_message("seed %#llx\n", (unsigned long long)seed);
	for (int round = 0; round < 400; round++) {
		random_input(&in);
		m.shards = in.shards;
		m.count = in.count;
		m.o = in.o;
		model_run(&m);
		assert_int_equal(ckpt_plan_reads(in.shards, in.count, &in.o,
						 ranks, loads, NULL),
				 0);
		assert_plan(&in, &m, ranks, loads);

		shuffle(in.shards, in.count, was);
		assert_int_equal(ckpt_plan_reads(in.shards, in.count, &in.o,
						 moved, again, NULL),
				 0);
		for (size_t i = 0; i < in.count; i++)
			assert_int_equal(moved[i], ranks[was[i]]);
		assert_memory_equal(loads, again,
				    in.o.rank_count * sizeof(*loads));
	}
}

/* --- The cap ---------------------------------------------------------------
 */

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

/* --- Bad input -------------------------------------------------------------
 */

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
		cmocka_unit_test(random_inputs_are_planned_as_the_model_does),
		cmocka_unit_test(a_cap_spills_the_largest_first),
		cmocka_unit_test(what_only_one_rank_may_read_is_not_spilled),
		cmocka_unit_test(bad_input_is_refused_by_name),
		cmocka_unit_test(an_id_that_comes_twice_is_found),
		cmocka_unit_test(nothing_to_read_is_a_plan_too),
		cmocka_unit_test(policies_have_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
