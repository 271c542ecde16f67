/*
 * inflight.c - the table of inflight.h: an entry for each work that has claimed
 * a hash, also for those that are too young to be asked to store it.
 */
#include "store/drain/inflight.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/scope.h"
#include "store/db/records.h"
#include "store/drain/work.h"

#define INFLIGHT_BUCKETS 16384
#define LEAVE_AT_ONCE 256u

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

	if (!t)
		return NULL;
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

/* Who has a chunk: the oldest so many, the oldest first. */
struct holders {
	unsigned count;
	struct inflight_entry *at[CHUNK_COPIES_MAX + 1];
	struct inflight_entry *own; /* the asking work's */
	unsigned older; /* than that work */
};

/* e is one more; the youngest falls out, if there is no room. */
static void holders_add(struct holders *h, struct inflight_entry *e)
{
	unsigned i = h->count;

	if (i == CHUNK_COPIES_MAX + 1) {
		if (h->at[--i]->work->serial < e->work->serial)
			return;
	} else {
		h->count++;
	}
	for (; i > 0 && h->at[i - 1]->work->serial > e->work->serial; i--)
		h->at[i] = h->at[i - 1];
	h->at[i] = e;
}

/* Works of another domain have chunks of their own. */
static struct holders holders_of(struct inflight_entry *e, const uint8_t *hash,
				 const struct work *work)
{
	struct holders h = { .count = 0 };

	for (; e; e = e->next) {
		if (e->work->domain != work->domain ||
		    memcmp(e->hash, hash, HASH_BYTES) != 0)
			continue;
		if (e->work == work)
			h.own = e;
		else
			holders_add(&h, e);
		if (e->work->serial < work->serial)
			h.older++;
	}
	return h;
}

static void entry_add(struct inflight_entry **b, const uint8_t *hash,
		      struct work *work, uint32_t chunk)
{
	struct inflight_entry *e = malloc(sizeof(*e));

	if (!e)
		return; /* the chunk is stored once more at worst */
	memcpy(e->hash, hash, HASH_BYTES);
	e->work = work;
	e->chunk = chunk;
	e->next = *b;
	*b = e;
	work->claims++;
}

static void entry_remove(struct inflight_entry **at, struct inflight_entry *e)
{
	while (*at != e)
		at = &(*at)->next;
	*at = e->next;
	e->work->claims--;
	free(e);
}

static struct work *work_of(const struct inflight_entry *e)
{
	atomic_fetch_add(&e->work->refs, 1);
	return e->work;
}

static void claim_locked(struct inflight *t, struct work *work,
			 struct inflight_ask *a)
{
	struct inflight_entry **b = inflight_bucket(t, a->hash);
	struct holders h = holders_of(*b, a->hash, work);

	CHECK(a->copies >= 1 && a->copies <= CHUNK_COPIES_MAX);
	a->other = NULL;
	if (h.own && h.own->chunk != a->chunk) {
		a->claim = INFLIGHT_REPEATED;
		a->same = h.own->chunk;
		return;
	}
	if (!h.own)
		entry_add(b, a->hash, work, a->chunk);
	a->claim = h.older >= a->copies ? INFLIGHT_OLDER : INFLIGHT_MINE;
	/* If it is this one's, those after it are stored no more. */
	if (h.count >= a->copies)
		a->other = work_of(h.at[a->copies - 1]);
}

unsigned inflight_claim(struct inflight *t, struct work *work,
			struct inflight_ask *asks, unsigned count)
{
	unsigned done = 0;

	HOLD(&t->lock);
	do
		claim_locked(t, work, &asks[done]);
	while (!asks[done++].other && done < count);
	return done;
}

static void drop_locked(struct inflight *t, const uint8_t *hash,
			struct work *work, uint32_t chunk)
{
	struct inflight_entry **b = inflight_bucket(t, hash);
	struct holders h = holders_of(*b, hash, work);

	if (h.own && h.own->chunk == chunk)
		entry_remove(b, h.own);
}

void inflight_drop(struct inflight *t, const uint8_t hash[HASH_BYTES],
		   struct work *work, uint32_t chunk)
{
	HOLD(&t->lock);
	drop_locked(t, hash, work, chunk);
}

/* Those of a few chunks from `at` on, so that others come in between. */
static uint32_t leave_some(struct inflight *t, struct work *work, uint32_t at)
{
	uint32_t end = at + LEAVE_AT_ONCE;

	HOLD(&t->lock);
	if (work->claims == 0)
		return work->chunk_count;
	for (; at < end && at < work->chunk_count; at++)
		if (work->chunks[at].kind == CHUNK_NEW)
			drop_locked(t, work->chunks[at].hash, work, at);
	return at;
}

void inflight_leave(struct inflight *t, struct work *work)
{
	uint32_t at = 0;

	while (at < work->chunk_count)
		at = leave_some(t, work, at);
}
