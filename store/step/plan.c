/*
 * plan.c - where shards are read. First the ids are sorted, once: from then on
 * an id is its place, and every comparison is one of numbers. See plan.h.
 */
#include "store/step/plan.h"

#include "store/base/scope.h"
#include "store/step/plan_ids.h"
#include "store/step/plan_ranks.h"

#define NO_RANK UINT32_MAX

struct plan {
	const struct ckpt_plan_shard *shards;
	uint32_t count;
	const struct ckpt_plan_options *options;
	struct ckpt_plan_fault fault;
	uint64_t total;

	uint32_t *places; /* owned; of each shard's id among all of them */
	uint32_t *sets; /* owned; of each shard, see plan_ranks_add() */
	uint32_t *ranks; /* owned; the answer, NO_RANK before it is known */
	uint64_t *loads; /* owned; of the ranks */
	struct plan_ranks all;
};

static int fault(struct plan *p, size_t shard, const char *what, int rc)
{
	p->fault = (struct ckpt_plan_fault){ shard, what };
	return rc;
}

/* --- Placing -------------------------------------------------------------- */

static void place(struct plan *p, uint32_t shard, uint32_t rank)
{
	CHECK(rank < p->options->rank_count);
	CHECK(p->ranks[shard] == NO_RANK);
	p->ranks[shard] = rank;
	p->loads[rank] += p->shards[shard].bytes;
}

static bool may_read(const struct plan *p, uint32_t shard, uint32_t rank)
{
	return plan_ranks_has(&p->all, &p->shards[shard], p->sets[shard], rank);
}

/* Numbers that say in which order shards are placed. */
struct order {
	uint64_t first, second;
	uint32_t third;
	uint32_t shard;
};

static int order_compare(const void *a, const void *b)
{
	const struct order *x = a, *y = b;

	if (x->first != y->first)
		return x->first < y->first ? -1 : 1;
	if (x->second != y->second)
		return x->second < y->second ? -1 : 1;
	return (x->third > y->third) - (x->third < y->third);
}

static uint32_t readers(const struct plan *p, uint32_t shard)
{
	const struct ckpt_plan_shard *s = &p->shards[shard];

	return s->ranks ? s->rank_count : p->options->rank_count;
}

/* All that has no rank yet. */
static int place_greedy(struct plan *p)
{
	SCOPED(scope_free) struct order *order = NULL;
	size_t count = 0;
	uint32_t rank;
	int rc;

	order = calloc(p->count, sizeof(*order));
	if (!order)
		return -ENOMEM;
	for (uint32_t i = 0; i < p->count; i++) {
		const struct ckpt_plan_shard *s = &p->shards[i];

		if (p->ranks[i] != NO_RANK)
			continue;
		order[count++] = (struct order){
			.first = (uint64_t)s->cross << 32 | readers(p, i),
			.second = ~s->bytes, /* large ones first */
			.third = p->places[i],
			.shard = i,
		};
		if (p->sets[i] != PLAN_SET_SMALL)
			p->all.sets[p->sets[i]].waiting++;
	}
	if (count > 1)
		qsort(order, count, sizeof(*order), order_compare);
	rc = plan_ranks_begin(&p->all);
	if (rc < 0)
		return rc;
	for (size_t i = 0; i < count; i++) {
		uint32_t shard = order[i].shard;

		rc = plan_ranks_pick(&p->all, &p->shards[shard], p->sets[shard],
				     &rank);
		if (rc < 0)
			return rc;
		place(p, shard, rank);
		plan_ranks_grown(&p->all, rank);
	}
	return 0;
}

static void place_at_sources(struct plan *p)
{
	for (uint32_t i = 0; i < p->count; i++) {
		uint32_t source = p->shards[i].source;

		if (source != CKPT_PLAN_NO_SOURCE && may_read(p, i, source))
			place(p, i, source);
	}
}

/* Shards in an order of their own, by a number below `keys` that each has. */
struct groups {
	uint32_t *shards; /* owned */
	uint32_t *starts; /* owned; of group k: [starts[k], starts[k + 1]) */
};

static void groups_release(struct groups *g)
{
	free(g->shards);
	free(g->starts);
}

/* key_of: NO_RANK leaves the shard out. */
static int groups_make(struct groups *g, const struct plan *p,
		       uint32_t (*key_of)(const struct plan *p, uint32_t shard))
{
	uint32_t keys = p->options->rank_count;
	uint32_t key;

	g->shards = calloc(p->count, sizeof(*g->shards));
	g->starts = calloc((size_t)keys + 2, sizeof(*g->starts));
	if (!g->shards || !g->starts)
		return -ENOMEM;
	/* starts[k + 2] counts, then [k + 1] is where k's next one goes. */
	for (uint32_t i = 0; i < p->count; i++) {
		key = key_of(p, i);
		if (key != NO_RANK)
			g->starts[key + 2]++;
	}
	for (uint32_t k = 0; k < keys; k++)
		g->starts[k + 2] += g->starts[k + 1];
	for (uint32_t i = 0; i < p->count; i++) {
		key = key_of(p, i);
		if (key != NO_RANK)
			g->shards[g->starts[key + 1]++] = i;
	}
	return 0;
}

static uint32_t source_of(const struct plan *p, uint32_t shard)
{
	_Static_assert(CKPT_PLAN_NO_SOURCE == NO_RANK, "one for both");
	return p->shards[shard].source;
}

static uint32_t rank_of(const struct plan *p, uint32_t shard)
{
	return p->ranks[shard];
}

/*
 * Who may read all of these: in `bits`, one for each rank. False: all ranks
 * may, and nothing was written.
 */
static bool common_ranks(struct plan *p, const uint32_t *shards, size_t count,
			 uint32_t group, uint64_t *bits)
{
	uint32_t ranks = p->options->rank_count;
	bool cut = false;

	for (size_t i = 0; i < count; i++) {
		uint32_t index = p->sets[shards[i]];

		if (index != PLAN_SET_SMALL) {
			struct plan_set *set = &p->all.sets[index];

			if (set->seen_by == group + 1 || set->count == ranks)
				continue;
			set->seen_by = group + 1;
		}
		if (!cut) {
			memset(bits, 0xff, PLAN_BITS_WORDS(ranks) * 8);
			if (ranks % 64 != 0)
				bits[ranks / 64] >>= 64 - ranks % 64;
		}
		cut = true;
		plan_ranks_cut(&p->all, &p->shards[shards[i]], index, bits);
	}
	return cut;
}

/* Where a group goes; NO_RANK: greedy has to find places, one by one. */
static uint32_t group_rank(struct plan *p, const uint32_t *shards, size_t count,
			   uint32_t source, uint64_t *bits)
{
	uint32_t best = NO_RANK;

	if (!common_ranks(p, shards, count, source, bits) ||
	    (bits[source / 64] >> source % 64 & 1) != 0)
		return source;
	for (size_t i = 0; i < PLAN_BITS_WORDS(p->options->rank_count); i++) {
		for (uint64_t left = bits[i]; left != 0; left &= left - 1) {
			uint32_t rank = (uint32_t)i * 64 +
					(uint32_t)__builtin_ctzll(left);

			if (best == NO_RANK || p->loads[rank] < p->loads[best])
				best = rank;
		}
	}
	return best;
}

static void place_group(struct plan *p, const struct groups *g, uint32_t source,
			uint64_t *bits)
{
	const uint32_t *shards = g->shards + g->starts[source];
	size_t count = g->starts[source + 1] - g->starts[source];
	uint32_t rank = group_rank(p, shards, count, source, bits);

	for (size_t i = 0; i < count && rank != NO_RANK; i++)
		place(p, shards[i], rank);
}

static int place_groups(struct plan *p)
{
	SCOPED(groups_release) struct groups g = { 0 };
	SCOPED(scope_free) struct order *order = NULL;
	SCOPED(scope_free) uint64_t *bits = NULL;
	uint32_t ranks = p->options->rank_count;
	size_t count = 0;
	int rc = groups_make(&g, p, source_of);

	if (rc < 0)
		return rc;
	order = calloc(ranks, sizeof(*order));
	bits = calloc(PLAN_BITS_WORDS(ranks), sizeof(*bits));
	if (!order || !bits)
		return -ENOMEM;
	for (uint32_t source = 0; source < ranks; source++) {
		uint64_t bytes = 0;

		if (g.starts[source] == g.starts[source + 1])
			continue;
		for (uint32_t i = g.starts[source]; i < g.starts[source + 1];
		     i++)
			bytes += p->shards[g.shards[i]].bytes;
		order[count++] =
			(struct order){ .first = ~bytes, .second = source };
	}
	if (count > 1)
		qsort(order, count, sizeof(*order), order_compare);
	for (size_t i = 0; i < count; i++)
		place_group(p, &g, (uint32_t)order[i].second, bits);
	return 0;
}

/* --- The cap -------------------------------------------------------------- */

static bool above_cap(const struct plan *p, uint64_t load)
{
	__extension__ typedef unsigned __int128 wide;

	return (wide)load * 1000 * p->options->rank_count >
	       (wide)p->total * p->options->cap_permille;
}

/* Take from a rank its largest shards, which others may read as well. */
static void spill(struct plan *p, uint32_t rank, const uint32_t *shards,
		  size_t count, struct order *order)
{
	for (size_t i = 0; i < count; i++)
		order[i] = (struct order){
			.first = ~p->shards[shards[i]].bytes,
			.second = p->places[shards[i]],
			.shard = shards[i],
		};
	if (count > 1)
		qsort(order, count, sizeof(*order), order_compare);
	for (size_t i = 0; i < count && above_cap(p, p->loads[rank]); i++) {
		uint32_t shard = order[i].shard;

		if (readers(p, shard) == 1)
			continue;
		p->ranks[shard] = NO_RANK;
		p->loads[rank] -= p->shards[shard].bytes;
	}
}

static int spill_all(struct plan *p)
{
	SCOPED(groups_release) struct groups g = { 0 };
	SCOPED(scope_free) struct order *order = NULL;
	int rc = groups_make(&g, p, rank_of);

	if (rc < 0)
		return rc;
	order = calloc(p->count, sizeof(*order));
	if (!order)
		return -ENOMEM;
	for (uint32_t rank = 0; rank < p->options->rank_count; rank++)
		if (above_cap(p, p->loads[rank]))
			spill(p, rank, g.shards + g.starts[rank],
			      g.starts[rank + 1] - g.starts[rank], order);
	return 0;
}

/* --- The call ------------------------------------------------------------- */

static int options_check(struct plan *p, size_t count)
{
	const struct ckpt_plan_options *o = p->options;

	if (o->rank_count == 0 || o->rank_count > CKPT_PLAN_RANKS_MAX)
		return fault(p, SIZE_MAX,
			     "the number of ranks is not from 1 to 2^20",
			     -EINVAL);
	if (!ckpt_plan_policy_name(o->policy))
		return fault(p, SIZE_MAX, "there is no such policy", -EINVAL);
	if (o->cap_permille > 0 && o->cap_permille < 1000)
		return fault(p, SIZE_MAX, "a cap below the mean cannot be kept",
			     -EINVAL);
	if (count > CKPT_PLAN_SHARDS_MAX)
		return fault(p, SIZE_MAX, "more than 2^28 shards", -E2BIG);
	return 0;
}

static int shards_check(struct plan *p)
{
	const char *what = NULL;
	int rc;

	for (uint32_t i = 0; i < p->count; i++) {
		const struct ckpt_plan_shard *s = &p->shards[i];

		rc = plan_ranks_add(&p->all, s, &p->sets[i], &what);
		if (rc == -ENOMEM)
			return rc;
		if (rc < 0)
			return fault(p, i, what, rc);
		if (s->source != CKPT_PLAN_NO_SOURCE &&
		    s->source >= p->options->rank_count)
			return fault(p, i,
				     "its source is not below the number of "
				     "ranks",
				     -ERANGE);
		if (s->bytes > UINT64_MAX - p->total)
			return fault(p, i,
				     "with it there are more than 2^64 - 1 "
				     "bytes",
				     -EOVERFLOW);
		p->total += s->bytes;
		p->ranks[i] = NO_RANK;
	}
	return 0;
}

static void plan_release(struct plan *p)
{
	plan_ranks_release(&p->all);
	free(p->places);
	free(p->sets);
	free(p->ranks);
	free(p->loads);
}

static int plan_make(struct plan *p)
{
	/* One more: there may be no shards, and NULL means no memory. */
	size_t room = (size_t)p->count + 1;
	uint32_t twice = 0;
	int rc;

	p->places = calloc(room, sizeof(*p->places));
	p->sets = calloc(room, sizeof(*p->sets));
	p->ranks = calloc(room, sizeof(*p->ranks));
	p->loads = calloc(p->options->rank_count, sizeof(*p->loads));
	if (!p->places || !p->sets || !p->ranks || !p->loads)
		return -ENOMEM;
	rc = plan_ranks_init(&p->all, p->options->rank_count, p->loads);
	if (rc == 0)
		rc = shards_check(p);
	if (rc < 0 || p->count == 0)
		return rc;
	rc = plan_ids_sort(p->shards, p->count, p->places, &twice);
	if (rc == -EEXIST)
		return fault(p, twice, "its id is another shard's too", rc);
	if (rc < 0)
		return rc;

	if (p->options->policy == CKPT_PLAN_PER_SHARD)
		place_at_sources(p);
	else if (p->options->policy == CKPT_PLAN_PR3392)
		rc = place_groups(p);
	if (rc == 0 && p->options->cap_permille > 0)
		rc = spill_all(p);
	return rc < 0 ? rc : place_greedy(p);
}

int ckpt_plan_reads(const struct ckpt_plan_shard *shards, size_t count,
		    const struct ckpt_plan_options *options,
		    uint32_t *ret_ranks, uint64_t *ret_loads,
		    struct ckpt_plan_fault *ret_fault)
{
	SCOPED(plan_release)
	struct plan p = { .shards = shards, .options = options };
	int rc = options_check(&p, count);

	if (rc == 0) {
		p.count = (uint32_t)count;
		rc = plan_make(&p);
	}
	if (rc < 0) {
		if (ret_fault && p.fault.what)
			*ret_fault = p.fault;
		return rc;
	}
	if (count > 0)
		memcpy(ret_ranks, p.ranks, count * sizeof(*ret_ranks));
	memcpy(ret_loads, p.loads, options->rank_count * sizeof(*ret_loads));
	return 0;
}

/* --- Names ---------------------------------------------------------------- */

static const char *const policy_names[] = {
	[CKPT_PLAN_PER_SHARD] = "per_shard",
	[CKPT_PLAN_PR3392] = "pr3392",
	[CKPT_PLAN_GREEDY] = "greedy",
};
#define POLICIES (sizeof(policy_names) / sizeof(*policy_names))

const char *ckpt_plan_policy_name(enum ckpt_plan_policy policy)
{
	return (size_t)policy < POLICIES ? policy_names[policy] : NULL;
}

bool ckpt_plan_policy_of(const char *name, enum ckpt_plan_policy *ret_policy)
{
	for (size_t i = 0; i < POLICIES; i++) {
		if (strcmp(policy_names[i], name) == 0) {
			*ret_policy = (enum ckpt_plan_policy)i;
			return true;
		}
	}
	return false;
}
