/*
 * Plans of random inputs are those of a model that does what plan.h says in the
 * most straightforward way.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "store/base/scope.h"
#include "tests/unit/plan_vectors.h"
#include "tests/unit/test_seed.h"

/* --- The model --- */

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

/* --- Random inputs --- */

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
	uint64_t loads[MODEL_RANKS_MAX], again[MODEL_RANKS_MAX];
	uint32_t ranks[MODEL_SHARDS_MAX], moved[MODEL_SHARDS_MAX];
	size_t was[MODEL_SHARDS_MAX];

	(void)state;
	random_state = test_seed_spread(test_seed());
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_inputs_are_planned_as_the_model_does),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
