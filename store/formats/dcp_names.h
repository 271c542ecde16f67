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

/* A hash table of numbers, by their keys: some bytes, and one number more. */
struct dcp_table {
	struct dcp_slot {
		const void *key; /* borrowed */
		uint32_t len, more;
		uint32_t hash;
		uint32_t number; /* plus 1; 0: free */
	} * slots; /* owned */
	size_t slot_count, count;
	uint64_t seed;
};

void dcp_table_init(struct dcp_table *t);
void dcp_table_release(struct dcp_table *t);
/* The number with this key, or UINT32_MAX. */
uint32_t dcp_table_find(const struct dcp_table *t, const void *key, size_t len,
			uint32_t more);
/* -ENOMEM. The key is not there yet, and stays as long as the table. */
int dcp_table_add(struct dcp_table *t, const void *key, size_t len,
		  uint32_t more, uint32_t number);

#endif
