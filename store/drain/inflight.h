/*
 * inflight.h - chunks that running drain jobs are about to store, by hash, so
 * that replicas which are closed at the same moment are stored once.
 *
 * As many jobs own a chunk as copies of it are kept, mostly one: of the running
 * jobs that have it, the oldest. So the oldest of several replicas keep all
 * their chunks, and each of the others maps onto one of those as a whole. A
 * younger one refers to it (CHUNK_DEFERRED), also when it had claimed the chunk
 * first; it finds that out before it is settled. Waiting goes from younger to
 * older jobs only. A job owns a chunk once, however often it has it.
 *
 * Jobs share within their domain (records.h) only.
 *
 * Threads: any. The table's lock is a leaf.
 */
#ifndef STORE_INFLIGHT_H
#define STORE_INFLIGHT_H

#include <stdbool.h>
#include <stdint.h>

#include "store/db/hash.h"

struct work;
struct drain_origin;
struct inflight;

/* copies: how many jobs may own a chunk, 1 to CHUNK_COPIES_MAX. */
struct inflight *inflight_new(unsigned copies);
void inflight_free(struct inflight *t);
/*
 * True: (work, chunk) owns the hash now, maybe in a younger one's stead. False:
 * *ret_owner (with a reference taken) and *ret_chunk do.
 */
bool inflight_claim(struct inflight *t, const uint8_t hash[HASH_BYTES],
		    struct work *work, uint32_t chunk, struct work **ret_owner,
		    uint32_t *ret_chunk);
/*
 * Whose is what (work, chunk) has claimed? A younger one can have claimed it
 * since, when an older one took it over and is over: it is this one's again.
 */
enum inflight_owner {
	INFLIGHT_MINE,
	INFLIGHT_OTHER, /* *ret_owner, a reference, and *ret_chunk */
	INFLIGHT_NOBODY, /* an older work had it and is committed, or gave up */
};
enum inflight_owner inflight_check(struct inflight *t,
				   const uint8_t hash[HASH_BYTES],
				   struct work *work, uint32_t chunk,
				   struct work **ret_owner,
				   uint32_t *ret_chunk);
/*
 * Does the work with this origin own the hash? Then it is *ret_owner, with a
 * reference taken.
 */
bool inflight_owned_by(struct inflight *t, const uint8_t hash[HASH_BYTES],
		       const struct work *work,
		       const struct drain_origin *origin,
		       struct work **ret_owner, uint32_t *ret_chunk);
/* Give up what (work, chunk) owns; nothing when it does not own it. */
void inflight_drop(struct inflight *t, const uint8_t hash[HASH_BYTES],
		   const struct work *work, uint32_t chunk);

#endif
