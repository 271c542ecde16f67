/*
 * inflight.c - the table of inflight.h: a hash's entries are of the oldest of
 * the works that have said, by a claim or a check, that they store such a
 * chunk.
 */
#include "store/drain/inflight.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/scope.h"
#include "store/db/records.h"
#include "store/drain/work.h"

#define INFLIGHT_BUCKETS 16384

struct inflight_entry {
	struct inflight_entry *next;
	uint8_t hash[HASH_BYTES];
	struct work *work;
	uint32_t chunk;
};

struct inflight {
	unsigned copies;
	struct lock lock;
	struct inflight_entry *bucket[INFLIGHT_BUCKETS];
};

struct inflight *inflight_new(unsigned copies)
{
	struct inflight *t = calloc(1, sizeof(*t));

	CHECK(copies >= 1 && copies <= CHUNK_COPIES_MAX);
	if (!t)
		return NULL;
	t->copies = copies;
	lock_init(&t->lock, LOCK_INFLIGHT);
	return t;
}

void inflight_free(struct inflight *t)
{
	if (!t)
		return;
	for (unsigned i = 0; i < INFLIGHT_BUCKETS; i++)
		CHECK(t->bucket[i] == NULL);
	lock_destroy(&t->lock);
	free(t);
}

static struct inflight_entry **inflight_bucket(struct inflight *t,
					       const uint8_t *hash)
{
	uint32_t h;

	memcpy(&h, hash, sizeof(h));
	return &t->bucket[h % INFLIGHT_BUCKETS];
}

/* Who has a chunk, the oldest first. */
struct holders {
	unsigned count;
	struct inflight_entry *at[CHUNK_COPIES_MAX];
	struct inflight_entry *own; /* among them, the asking work's */
};

/* Jobs of another domain have chunks of their own. */
static struct holders holders_of(struct inflight_entry *e, const uint8_t *hash,
				 const struct work *work)
{
	struct holders h = { .count = 0 };

	for (; e; e = e->next) {
		unsigned i = h.count;

		if (e->work->domain != work->domain ||
		    memcmp(e->hash, hash, HASH_BYTES) != 0)
			continue;
		CHECK(h.count < CHUNK_COPIES_MAX);
		for (; i > 0 && h.at[i - 1]->work->serial > e->work->serial;
		     i--)
			h.at[i] = h.at[i - 1];
		h.at[i] = e;
		h.count++;
		if (e->work == work)
			h.own = e;
	}
	return h;
}

/* The one in whose stead `work`, an older one, has it; NULL: none. */
static struct inflight_entry *younger_holder(const struct inflight *t,
					     const struct holders *h,
					     const struct work *work)
{
	struct inflight_entry *youngest = h->count ? h->at[h->count - 1] : NULL;

	if (h->own || h->count < t->copies ||
	    youngest->work->serial < work->serial)
		return NULL;
	return youngest;
}

/*
 * Whose chunk the work's is to be: its own, or that of a holder, the same one
 * of each chunk, counted from the youngest, as find_equal() counts when they
 * are committed.
 */
static void refer(const struct holders *h, const struct work *work,
		  struct work **ret_owner, uint32_t *ret_chunk)
{
	const struct inflight_entry *e =
		h->own ? h->own
		       : h->at[h->count - 1 - work->turn % h->count];

	atomic_fetch_add(&e->work->refs, 1);
	*ret_owner = e->work;
	*ret_chunk = e->chunk;
}

bool inflight_claim(struct inflight *t, const uint8_t hash[HASH_BYTES],
		    struct work *work, uint32_t chunk, struct work **ret_owner,
		    uint32_t *ret_chunk)
{
	struct inflight_entry **b = inflight_bucket(t, hash);
	struct inflight_entry *e;
	struct holders h;

	HOLD(&t->lock);
	h = holders_of(*b, hash, work);
	e = younger_holder(t, &h, work);
	if (!e && (h.own || h.count == t->copies)) {
		refer(&h, work, ret_owner, ret_chunk);
		return false;
	}
	if (!e) {
		e = malloc(sizeof(*e));
		if (!e)
			return true; /* stored once more at worst */
		memcpy(e->hash, hash, HASH_BYTES);
		e->next = *b;
		*b = e;
	}
	e->work = work;
	e->chunk = chunk;
	return true;
}

enum inflight_owner inflight_check(struct inflight *t,
				   const uint8_t hash[HASH_BYTES],
				   struct work *work, uint32_t chunk,
				   struct work **ret_owner, uint32_t *ret_chunk)
{
	struct inflight_entry *e;
	struct holders h;

	HOLD(&t->lock);
	h = holders_of(*inflight_bucket(t, hash), hash, work);
	e = younger_holder(t, &h, work);
	if (e) {
		e->work = work;
		e->chunk = chunk;
	}
	if (e || (h.own && h.own->chunk == chunk))
		return INFLIGHT_MINE;
	if (!h.own && h.count < t->copies)
		return INFLIGHT_NOBODY;
	refer(&h, work, ret_owner, ret_chunk);
	return INFLIGHT_OTHER;
}

bool inflight_owned_by(struct inflight *t, const uint8_t hash[HASH_BYTES],
		       const struct work *work,
		       const struct drain_origin *origin,
		       struct work **ret_owner, uint32_t *ret_chunk)
{
	struct holders h;

	HOLD(&t->lock);
	h = holders_of(*inflight_bucket(t, hash), hash, work);
	for (unsigned i = 0; i < h.count; i++)
		if (h.at[i]->work->origin == origin) {
			atomic_fetch_add(&h.at[i]->work->refs, 1);
			*ret_owner = h.at[i]->work;
			*ret_chunk = h.at[i]->chunk;
			return true;
		}
	return false;
}

void inflight_drop(struct inflight *t, const uint8_t hash[HASH_BYTES],
		   const struct work *work, uint32_t chunk)
{
	struct inflight_entry **at = inflight_bucket(t, hash);
	struct inflight_entry *e;

	HOLD(&t->lock);
	while (*at && !((*at)->work == work && (*at)->chunk == chunk &&
			memcmp((*at)->hash, hash, HASH_BYTES) == 0))
		at = &(*at)->next;
	e = *at;
	if (e)
		*at = e->next;
	free(e);
}
