/*
 * kv_map.h - an ordered map in memory, and batches of changes of it.
 */
#ifndef TESTS_SIM_KV_MAP_H
#define TESTS_SIM_KV_MAP_H

#include <stddef.h>
#include <stdint.h>

#include "store/base/scope.h"
#include "store/base/vec.h"
#include "store/db/kv.h"

struct text {
	uint8_t *data;
	size_t len;
};

struct entry {
	struct text key, value;
};

struct map {
	struct entry *at;
	size_t count, room;
};

enum change_kind {
	CHANGE_PUT,
	CHANGE_DELETE,
	CHANGE_ADD,
};

struct change {
	enum change_kind kind;
	struct text key, value;
	int64_t delta;
};

struct kv_batch {
	struct change *at;
	size_t count, room;
};

static inline void grow(void *vec, size_t count, size_t *room, size_t size)
{
	CHECK(vec_grow(vec, count, room, size) == 0);
}

/* A copy. */
struct text text_of(const void *data, size_t len);
int text_compare(const struct text *a, const void *data, size_t len);

/* The place of the first key that is not smaller. */
size_t map_find(const struct map *m, const void *key, size_t len);
/* NULL: there is none. Until the next change. */
struct entry *map_get(const struct map *m, const void *key, size_t len);
void map_clear(struct map *m);
void map_apply(struct map *m, const struct kv_batch *b);

struct kv_batch batch_copy(const struct kv_batch *b);

#endif
