/*
 * inflight.h - chunks that works in flight are about to store, by hash, so that
 * replicas which are closed at the same moment are stored once.
 *
 * Of the works that have a chunk as many are to store it as copies of it are to
 * be made, mostly one: the oldest. As a rule they are committed first, so that
 * the oldest of several replicas keep all their chunks. Who comes later, or
 * loses a chunk to an older one that comes later still, is told of one that
 * keeps it: see work_lost(). A work has a chunk once, however often it repeats
 * it.
 *
 * Works share within their domain (records.h) only.
 *
 * Threads: any. The table's lock is a leaf.
 */
#ifndef STORE_INFLIGHT_H
#define STORE_INFLIGHT_H

#include <stdint.h>

#include "store/db/hash.h"

struct work;
struct inflight;

struct inflight *inflight_new(void);
void inflight_free(struct inflight *t);

enum inflight_claim {
	INFLIGHT_MINE, /* `other`: the younger one that loses it, or NULL */
	INFLIGHT_REPEATED, /* the work has it already, as `same` */
	INFLIGHT_OLDER, /* `other`: the youngest of those that keep it */
};

/*
 * A chunk of a work: so many works are to store it, 1 to CHUNK_COPIES_MAX. Is
 * this one of them? It asks again when fewer will do.
 */
struct inflight_ask {
	const uint8_t *hash; /* borrowed; HASH_BYTES */
	uint32_t chunk;
	unsigned copies;
	/* The answer: */
	enum inflight_claim claim;
	struct work *other; /* a reference; never the work itself */
	uint32_t same;
};
#define INFLIGHT_AT_ONCE 64u
/*
 * (work, chunk) of each is in the table from now on, up to the first that has
 * an `other`: who claims more has told that one by then. Returned is how many
 * these are; count is 1 to INFLIGHT_AT_ONCE.
 */
unsigned inflight_claim(struct inflight *t, struct work *work,
			struct inflight_ask *asks, unsigned count);
/* Give up what (work, chunk) has; nothing when it does not have it. */
void inflight_drop(struct inflight *t, const uint8_t hash[HASH_BYTES],
		   struct work *work, uint32_t chunk);
/* All that the work has; nobody claims anything for it any more. */
void inflight_leave(struct inflight *t, struct work *work);

#endif
