/*
 * plan_ranks.c - sets are found again by the address of their list, and that
 * not being there yet, by its contents. See plan_ranks.h for the heaps.
 */
#include "store/step/plan_ranks.h"

#include "store/base/scope.h"
#include "store/base/vec.h"
#include "store/step/plan.h"

/* For fewer shards a look through the set costs less than its heap. */
#define HEAP_PAYS_AT 4
#define SLOTS_MIN 64
/* A set has bits when they take no more room than its ranks do. */
#define BITS_PAY_AT(rank_count) ((rank_count) / 32)
/* With more sets than these, large ones try this many of all ranks first. */
#define ORDER_PAYS_AT 16
#define ORDER_PAYS_FOR(rank_count) ((rank_count) / 8)
#define ORDER_TRIES 32

int plan_ranks_init(struct plan_ranks *r, uint32_t rank_count, uint64_t *loads)
{
	memset(r, 0, sizeof(*r));
	r->rank_count = rank_count;
	r->loads = loads;
	r->stamps = calloc(rank_count, sizeof(*r->stamps));
	return r->stamps ? 0 : -ENOMEM;
}

void plan_ranks_release(struct plan_ranks *r)
{
	for (size_t i = 0; i < r->set_count; i++) {
		free(r->sets[i].owned);
		free(r->sets[i].heap);
		free(r->sets[i].bits);
	}
	free(r->sets);
	free(r->pointers);
	free(r->contents);
	free(r->stamps);
	free(r->order);
	free(r->order_at);
	memset(r, 0, sizeof(*r));
}

static uint64_t mix(uint64_t h, uint64_t v)
{
	h = (h ^ v) * UINT64_C(0x9e3779b97f4a7c15);
	return h ^ (h >> 29);
}

/* --- Finding sets again --------------------------------------------------- */

static struct plan_pointer *pointer_slot(const struct plan_ranks *r,
					 const uint32_t *ranks, uint32_t count)
{
	size_t n = (size_t)mix((uintptr_t)ranks, count);

	for (;; n++) {
		struct plan_pointer *p =
			&r->pointers[n & (r->pointer_slots - 1)];

		if (p->set == 0 || (p->ranks == ranks && p->count == count))
			return p;
	}
}

static int pointers_grow(struct plan_ranks *r)
{
	size_t slots = r->pointer_slots ? 2 * r->pointer_slots : SLOTS_MIN;
	struct plan_pointer *old = r->pointers;
	size_t old_slots = r->pointer_slots;
	struct plan_pointer *grown = calloc(slots, sizeof(*grown));

	if (!grown)
		return -ENOMEM;
	r->pointers = grown;
	r->pointer_slots = slots;
	for (size_t i = 0; i < old_slots; i++)
		if (old[i].set != 0)
			*pointer_slot(r, old[i].ranks, old[i].count) = old[i];
	free(old);
	return 0;
}

static uint64_t content_hash(const uint32_t *ranks, uint32_t count)
{
	uint64_t h = count;

	for (uint32_t i = 0; i < count; i++)
		h = mix(h, ranks[i]);
	return h;
}

static uint32_t *content_slot(const struct plan_ranks *r, const uint32_t *ranks,
			      uint32_t count)
{
	size_t n = (size_t)content_hash(ranks, count);

	for (;; n++) {
		uint32_t *slot = &r->contents[n & (r->content_slots - 1)];
		const struct plan_set *s = *slot ? &r->sets[*slot - 1] : NULL;

		if (!s ||
		    (s->count == count &&
		     memcmp(s->ranks, ranks, count * sizeof(*ranks)) == 0))
			return slot;
	}
}

static int contents_grow(struct plan_ranks *r)
{
	size_t slots = r->content_slots ? 2 * r->content_slots : SLOTS_MIN;
	uint32_t *grown = calloc(slots, sizeof(*grown));

	if (!grown)
		return -ENOMEM;
	free(r->contents);
	r->contents = grown;
	r->content_slots = slots;
	for (size_t i = 0; i < r->set_count; i++)
		*content_slot(r, r->sets[i].ranks, r->sets[i].count) =
			(uint32_t)i + 1;
	return 0;
}

static int set_append(struct plan_ranks *r, const struct plan_set *s)
{
	struct plan_set *set;
	int rc = vec_grow(&r->sets, r->set_count, &r->set_capacity,
			  sizeof(*set));

	if (rc < 0)
		return rc;
	set = &r->sets[r->set_count];
	*set = *s;
	if (set->count >= BITS_PAY_AT(r->rank_count)) {
		set->bits = calloc(PLAN_BITS_WORDS(r->rank_count),
				   sizeof(*set->bits));
		if (!set->bits)
			return -ENOMEM;
		for (uint32_t i = 0; i < set->count; i++)
			set->bits[set->ranks[i] / 64] |= UINT64_C(1)
							 << set->ranks[i] % 64;
	}
	r->set_count++;
	return 0;
}

/* --- Checking sets -------------------------------------------------------- */

static int ranks_check(struct plan_ranks *r, const uint32_t *ranks,
		       uint32_t count, bool *ret_ascending,
		       const char **ret_what)
{
	*ret_ascending = true;
	if (++r->stamp == 0) {
		memset(r->stamps, 0, r->rank_count * sizeof(*r->stamps));
		r->stamp = 1;
	}
	for (uint32_t i = 0; i < count; i++) {
		if (ranks[i] >= r->rank_count) {
			*ret_what = "one of its ranks is not below the number "
				    "of ranks";
			return -ERANGE;
		}
		if (r->stamps[ranks[i]] == r->stamp) {
			*ret_what = "one of its ranks is given twice";
			return -EINVAL;
		}
		r->stamps[ranks[i]] = r->stamp;
		if (i > 0 && ranks[i] < ranks[i - 1])
			*ret_ascending = false;
	}
	return 0;
}

/* All those that the last check has seen, in order. */
static uint32_t *ranks_sorted(const struct plan_ranks *r, uint32_t count)
{
	uint32_t *sorted = malloc(count * sizeof(*sorted));
	uint32_t at = 0;

	for (uint32_t i = 0; sorted && i < r->rank_count; i++)
		if (r->stamps[i] == r->stamp)
			sorted[at++] = i;
	CHECK(!sorted || at == count);
	return sorted;
}

/* The index of a set whose contents are not at this address yet. */
static int set_find(struct plan_ranks *r, const struct ckpt_plan_shard *s,
		    uint32_t *ret_set, const char **ret_what)
{
	struct plan_set set = { .ranks = s->ranks, .count = s->rank_count };
	bool ascending = false;
	uint32_t *slot;
	int rc = 0;

	if (s->ranks)
		rc = ranks_check(r, s->ranks, s->rank_count, &ascending,
				 ret_what);
	if (rc < 0)
		return rc;
	if (!s->ranks) {
		r->stamp = 1;
		for (uint32_t i = 0; i < r->rank_count; i++)
			r->stamps[i] = 1;
		set.count = r->rank_count;
	}
	if (!ascending) {
		set.owned = ranks_sorted(r, set.count);
		set.ranks = set.owned;
		if (!set.owned)
			return -ENOMEM;
	}
	if (2 * (r->set_count + 1) > r->content_slots)
		rc = contents_grow(r);
	if (rc == 0) {
		slot = content_slot(r, set.ranks, set.count);
		if (*slot == 0) {
			rc = set_append(r, &set);
			if (rc == 0) {
				*slot = (uint32_t)r->set_count;
				set.owned = NULL;
			}
		}
		*ret_set = *slot - 1;
	}
	free(set.owned);
	return rc;
}

int plan_ranks_add(struct plan_ranks *r, const struct ckpt_plan_shard *s,
		   uint32_t *ret_set, const char **ret_what)
{
	uint32_t count = s->ranks ? s->rank_count : r->rank_count;
	struct plan_pointer *slot;
	bool ascending;
	int rc;

	if (count == 0) {
		*ret_what = "no rank may read it";
		return -EINVAL;
	}
	if (s->ranks && count <= PLAN_SMALL_RANKS) {
		*ret_set = PLAN_SET_SMALL;
		return ranks_check(r, s->ranks, count, &ascending, ret_what);
	}
	if (2 * (r->pointer_count + 1) > r->pointer_slots) {
		rc = pointers_grow(r);
		if (rc < 0)
			return rc;
	}
	slot = pointer_slot(r, s->ranks, count);
	if (slot->set == 0) {
		rc = set_find(r, s, ret_set, ret_what);
		if (rc < 0)
			return rc;
		*slot = (struct plan_pointer){ s->ranks, count, *ret_set + 1 };
		r->pointer_count++;
	}
	*ret_set = slot->set - 1;
	return 0;
}

/* The shard's set is small, and its own. */
static bool small_has(const struct ckpt_plan_shard *s, uint32_t rank)
{
	for (uint32_t i = 0; i < s->rank_count; i++)
		if (s->ranks[i] == rank)
			return true;
	return false;
}

static bool set_has(const struct plan_set *set, uint32_t rank)
{
	uint32_t lo = 0, hi = set->count;

	if (set->bits)
		return (set->bits[rank / 64] >> rank % 64 & 1) != 0;
	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (set->ranks[mid] < rank)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < set->count && set->ranks[lo] == rank;
}

bool plan_ranks_has(const struct plan_ranks *r, const struct ckpt_plan_shard *s,
		    uint32_t set, uint32_t rank)
{
	return set == PLAN_SET_SMALL ? small_has(s, rank)
				     : set_has(&r->sets[set], rank);
}

void plan_ranks_cut(const struct plan_ranks *r, const struct ckpt_plan_shard *s,
		    uint32_t index, uint64_t *bits)
{
	const struct plan_set *set = NULL;
	size_t words = PLAN_BITS_WORDS(r->rank_count);

	if (index != PLAN_SET_SMALL)
		set = &r->sets[index];
	if (set && set->bits) {
		for (size_t i = 0; i < words; i++)
			bits[i] &= set->bits[i];
		return;
	}
	for (size_t i = 0; i < words; i++) {
		uint64_t left = bits[i];

		while (left != 0) {
			uint64_t lowest = left & -left;
			uint32_t rank = (uint32_t)i * 64 +
					(uint32_t)__builtin_ctzll(left);

			if (set ? !set_has(set, rank) : !small_has(s, rank))
				bits[i] -= lowest;
			left -= lowest;
		}
	}
}

/* --- The least loaded ----------------------------------------------------- */

static struct plan_heap_node node_of(const struct plan_ranks *r, uint32_t rank)
{
	return (struct plan_heap_node){ .load = r->loads[rank], .rank = rank };
}

static bool node_before(struct plan_heap_node a, struct plan_heap_node b)
{
	return a.load < b.load || (a.load == b.load && a.rank < b.rank);
}

static uint32_t ranks_least(const struct plan_ranks *r, const uint32_t *ranks,
			    uint32_t count)
{
	struct plan_heap_node best = node_of(r, ranks[0]);

	for (uint32_t i = 1; i < count; i++) {
		struct plan_heap_node one = node_of(r, ranks[i]);

		if (node_before(one, best))
			best = one;
	}
	return best.rank;
}

/* places, if it is not NULL, has where each rank is in the heap. */
static void heap_put(struct plan_heap_node *heap, uint32_t at,
		     struct plan_heap_node node, uint32_t *places)
{
	heap[at] = node;
	if (places)
		places[node.rank] = at;
}

static void heap_sink(struct plan_heap_node *heap, uint32_t count, uint32_t at,
		      uint32_t *places)
{
	struct plan_heap_node node = heap[at];

	for (;;) {
		uint32_t child = 2 * at + 1;

		if (child + 1 < count &&
		    node_before(heap[child + 1], heap[child]))
			child++;
		if (child >= count || !node_before(heap[child], node))
			break;
		heap_put(heap, at, heap[child], places);
		at = child;
	}
	heap_put(heap, at, node, places);
}

/* Of these ranks; NULL: of the first `count`. */
static struct plan_heap_node *heap_new(const struct plan_ranks *r,
				       const uint32_t *ranks, uint32_t count,
				       uint32_t *places)
{
	struct plan_heap_node *heap = malloc(count * sizeof(*heap));

	if (!heap)
		return NULL;
	for (uint32_t i = 0; i < count; i++)
		heap_put(heap, i, node_of(r, ranks ? ranks[i] : i), places);
	for (uint32_t i = count / 2; i-- > 0;)
		heap_sink(heap, count, i, places);
	return heap;
}

int plan_ranks_begin(struct plan_ranks *r)
{
	if (r->set_count <= ORDER_PAYS_AT)
		return 0;
	r->order_at = calloc(r->rank_count, sizeof(*r->order_at));
	if (!r->order_at)
		return -ENOMEM;
	r->order = heap_new(r, NULL, r->rank_count, r->order_at);
	return r->order ? 0 : -ENOMEM;
}

void plan_ranks_grown(struct plan_ranks *r, uint32_t rank)
{
	if (!r->order)
		return;
	r->order[r->order_at[rank]].load = r->loads[rank];
	heap_sink(r->order, r->rank_count, r->order_at[rank], r->order_at);
}

/*
 * The first of a set among the least loaded of all ranks: false when it is
 * not among the first ORDER_TRIES. What lies next in the heap is kept in
 * `next`, the least loaded of it at its end.
 */
static bool order_pick(const struct plan_ranks *r, const struct plan_set *set,
		       uint32_t *ret_rank)
{
	uint32_t next[ORDER_TRIES + 2]; /* places in the heap */
	unsigned count = 0;

	next[count++] = 0;
	for (unsigned tries = 0; tries < ORDER_TRIES && count > 0; tries++) {
		uint32_t at = next[--count];
		uint32_t rank = r->order[at].rank;

		if (set_has(set, rank)) {
			*ret_rank = rank;
			return true;
		}
		for (uint32_t child = 2 * at + 1;
		     child <= 2 * at + 2 && child < r->rank_count; child++) {
			unsigned n = count++;

			for (; n > 0 && node_before(r->order[next[n - 1]],
						    r->order[child]);
			     n--)
				next[n] = next[n - 1];
			next[n] = child;
		}
	}
	return false;
}

int plan_ranks_pick(struct plan_ranks *r, const struct ckpt_plan_shard *s,
		    uint32_t index, uint32_t *ret_rank)
{
	struct plan_set *set;

	if (index == PLAN_SET_SMALL) {
		*ret_rank = ranks_least(r, s->ranks, s->rank_count);
		return 0;
	}
	set = &r->sets[index];
	if (r->order && set->count >= ORDER_PAYS_FOR(r->rank_count) &&
	    order_pick(r, set, ret_rank))
		return 0;
	if (!set->heap) {
		CHECK(set->waiting > 0);
		if (set->waiting-- < HEAP_PAYS_AT) {
			*ret_rank = ranks_least(r, set->ranks, set->count);
			return 0;
		}
		set->heap = heap_new(r, set->ranks, set->count, NULL);
		if (!set->heap)
			return -ENOMEM;
	}
	while (set->heap[0].load != r->loads[set->heap[0].rank]) {
		set->heap[0].load = r->loads[set->heap[0].rank];
		heap_sink(set->heap, set->count, 0, NULL);
	}
	*ret_rank = set->heap[0].rank;
	return 0;
}
