/*
 * dcp_names.h - what dcp.c builds its result with: memory that stays where it
 * is until all of it is given back, and tables that find things again.
 *
 * Names come from a file that nobody vouches for, so the tables' hash has a
 * seed that it cannot know.
 */
#ifndef STORE_FORMATS_DCP_NAMES_H
#define STORE_FORMATS_DCP_NAMES_H

#include <stddef.h>
#include <stdint.h>

struct dcp_block {
	struct dcp_block *next;
	size_t used, capacity; /* bytes */
	uint64_t data[];
};

/* `bytes` for 8-byte things, in *blocks; NULL: no memory. */
void *dcp_alloc(struct dcp_block **blocks, size_t bytes);
void dcp_blocks_release(struct dcp_block **blocks);

/* A hash table of numbers: what they stand for is the caller's. */
struct dcp_table {
	struct dcp_slot {
		uint32_t hash;
		uint32_t number; /* plus 1; 0: free */
	} * slots; /* owned */
	size_t slot_count, count;
	uint64_t seed;
};

/* Whether this number has that key. */
typedef int dcp_same(const void *self, uint32_t number, const void *key);

void dcp_table_init(struct dcp_table *t);
void dcp_table_release(struct dcp_table *t);
uint32_t dcp_table_hash(const struct dcp_table *t, const void *p, size_t len,
			uint64_t more);
/* The number with this key, or UINT32_MAX. */
uint32_t dcp_table_find(const struct dcp_table *t, uint32_t hash,
			dcp_same *same, const void *self, const void *key);
/* -ENOMEM. The key is not there yet. */
int dcp_table_add(struct dcp_table *t, uint32_t hash, uint32_t number);

#endif
