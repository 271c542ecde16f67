/*
 * inflight.c - the table of inflight.h: a hash's entry is of the oldest of the
 * works that have said, by a claim or a check, that they store such a chunk.
 */
#include "store/drain/inflight.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/scope.h"
#include "store/drain/work.h"

#define INFLIGHT_BUCKETS 16384

struct inflight_entry {
	struct inflight_entry *next;
	uint8_t hash[HASH_BYTES];
	struct work *work;
	uint32_t chunk;
};

struct inflight {
	struct lock lock;
	struct inflight_entry *bucket[INFLIGHT_BUCKETS];
};

struct inflight *inflight_new(void)
{
	struct inflight *t = calloc(1, sizeof(*t));

	if (t)
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

/* Jobs of another domain have chunks of their own. */
static struct inflight_entry *inflight_find(struct inflight_entry *e,
					    const uint8_t *hash,
					    const struct work *work)
{
	while (e && (e->work->domain != work->domain ||
		     memcmp(e->hash, hash, HASH_BYTES) != 0))
		e = e->next;
	return e;
}

bool inflight_claim(struct inflight *t, const uint8_t hash[HASH_BYTES],
		    struct work *work, uint32_t chunk, struct work **ret_owner,
		    uint32_t *ret_chunk)
{
	struct inflight_entry **b = inflight_bucket(t, hash);
	struct inflight_entry *e;

	HOLD(&t->lock);
	e = inflight_find(*b, hash, work);
	if (e && e->work->serial <= work->serial) {
		atomic_fetch_add(&e->work->refs, 1);
		*ret_owner = e->work;
		*ret_chunk = e->chunk;
		return false;
	}
	if (!e) {
		e = malloc(sizeof(*e));
		if (!e)
			return true; /* stored twice at worst */
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

	HOLD(&t->lock);
	e = inflight_find(*inflight_bucket(t, hash), hash, work);
	if (!e)
		return INFLIGHT_NOBODY;
	if (e->work->serial > work->serial) {
		e->work = work;
		e->chunk = chunk;
	}
	if (e->work == work && e->chunk == chunk)
		return INFLIGHT_MINE;
	atomic_fetch_add(&e->work->refs, 1);
	*ret_owner = e->work;
	*ret_chunk = e->chunk;
	return INFLIGHT_OTHER;
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
