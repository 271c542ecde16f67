/*
 * dcp_names.c - blocks, filled from the front and freed together; and open
 * addressing, by a hash that is seeded anew for each table.
 */
#include "store/formats/dcp_names.h"

#include <sys/random.h>
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include "store/base/scope.h"

#define BLOCK_BYTES (size_t)(256 << 10)
#define SLOTS_MIN 64

void *dcp_alloc(struct dcp_block **blocks, size_t bytes)
{
	struct dcp_block *b = *blocks;
	size_t want;

	bytes = (bytes + 7) & ~(size_t)7;
	if (!b || bytes > b->capacity - b->used) {
		want = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
		b = malloc(sizeof(*b) + want);
		if (!b)
			return NULL;
		b->next = *blocks;
		b->used = 0;
		b->capacity = want;
		*blocks = b;
	}
	b->used += bytes;
	return (char *)b->data + b->used - bytes;
}

void dcp_blocks_release(struct dcp_block **blocks)
{
	while (*blocks) {
		struct dcp_block *b = *blocks;

		*blocks = b->next;
		free(b);
	}
}

void dcp_table_init(struct dcp_table *t)
{
	memset(t, 0, sizeof(*t));
	/* Without it all works, but somebody could make it slow. */
	(void)!getrandom(&t->seed, sizeof(t->seed), GRND_NONBLOCK);
}

void dcp_table_release(struct dcp_table *t)
{
	free(t->slots);
	memset(t, 0, sizeof(*t));
}

static uint32_t table_hash(const struct dcp_table *t, const void *key,
			   size_t len, uint32_t more)
{
	uint64_t h = XXH3_64bits_withSeed(key, len, t->seed);

	h = (h ^ more) * UINT64_C(0x9e3779b97f4a7c15);
	return (uint32_t)(h >> 32);
}

uint32_t dcp_table_find(const struct dcp_table *t, const void *key, size_t len,
			uint32_t more)
{
	uint32_t hash = table_hash(t, key, len, more);

	for (size_t n = hash; t->count > 0; n++) {
		const struct dcp_slot *s = &t->slots[n & (t->slot_count - 1)];

		if (s->number == 0)
			break;
		if (s->hash == hash && s->more == more && s->len == len &&
		    memcmp(s->key, key, len) == 0)
			return s->number - 1;
	}
	return UINT32_MAX;
}

static void table_put(struct dcp_table *t, struct dcp_slot slot)
{
	size_t n = slot.hash;

	while (t->slots[n & (t->slot_count - 1)].number != 0)
		n++;
	t->slots[n & (t->slot_count - 1)] = slot;
}

int dcp_table_add(struct dcp_table *t, const void *key, size_t len,
		  uint32_t more, uint32_t number)
{
	struct dcp_slot slot = { .key = key,
				 .len = (uint32_t)len,
				 .more = more,
				 .hash = table_hash(t, key, len, more),
				 .number = number + 1 };

	if (4 * (t->count + 1) > 3 * t->slot_count) {
		struct dcp_table old = *t;
		size_t want = t->slot_count ? 2 * t->slot_count : SLOTS_MIN;

		t->slots = calloc(want, sizeof(*t->slots));
		if (!t->slots) {
			t->slots = old.slots;
			return -ENOMEM;
		}
		t->slot_count = want;
		for (size_t i = 0; i < old.slot_count; i++)
			if (old.slots[i].number != 0)
				table_put(t, old.slots[i]);
		free(old.slots);
	}
	table_put(t, slot);
	t->count++;
	return 0;
}
