/* kv_map.c - see kv_map.h; and the batches of store/db/kv.h. */
#include "tests/sim/kv_map.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

struct text text_of(const void *data, size_t len)
{
	struct text t = { .data = malloc(len ? len : 1), .len = len };

	CHECK(t.data);
	if (len > 0)
		memcpy(t.data, data, len);
	return t;
}

int text_compare(const struct text *a, const void *data, size_t len)
{
	int rc = memcmp(a->data, data, a->len < len ? a->len : len);

	return rc ? rc : a->len < len ? -1 : a->len > len;
}

/* The place of the first key that is not smaller. */
size_t map_find(const struct map *m, const void *key, size_t len)
{
	size_t low = 0, high = m->count;

	while (low < high) {
		size_t mid = (low + high) / 2;

		if (text_compare(&m->at[mid].key, key, len) < 0)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

struct entry *map_get(const struct map *m, const void *key, size_t len)
{
	size_t i = map_find(m, key, len);

	if (i < m->count && text_compare(&m->at[i].key, key, len) == 0)
		return &m->at[i];
	return NULL;
}

static void map_put(struct map *m, const struct text *key, const void *value,
		    size_t len)
{
	size_t i = map_find(m, key->data, key->len);
	struct entry *e;

	if (i == m->count ||
	    text_compare(&m->at[i].key, key->data, key->len) != 0) {
		grow(&m->at, m->count, &m->room, sizeof(*m->at));
		memmove(&m->at[i + 1], &m->at[i],
			(m->count++ - i) * sizeof(*m->at));
		m->at[i] =
			(struct entry){ .key = text_of(key->data, key->len) };
	}
	e = &m->at[i];
	free(e->value.data);
	e->value = text_of(value, len);
}

static void map_delete(struct map *m, const struct text *key)
{
	struct entry *e = map_get(m, key->data, key->len);

	if (!e)
		return;
	free(e->key.data);
	free(e->value.data);
	memmove(e, e + 1, (size_t)(m->at + --m->count - e) * sizeof(*e));
}

void map_clear(struct map *m)
{
	for (size_t i = 0; i < m->count; i++) {
		free(m->at[i].key.data);
		free(m->at[i].value.data);
	}
	free(m->at);
	*m = (struct map){ 0 };
}

void map_apply(struct map *m, const struct kv_batch *b)
{
	for (size_t i = 0; i < b->count; i++) {
		const struct change *c = &b->at[i];
		const struct entry *e;
		uint64_t n = 0;

		switch (c->kind) {
		case CHANGE_PUT:
			map_put(m, &c->key, c->value.data, c->value.len);
			break;
		case CHANGE_DELETE:
			map_delete(m, &c->key);
			break;
		case CHANGE_ADD:
			e = map_get(m, c->key.data, c->key.len);
			if (e && e->value.len == sizeof(n))
				memcpy(&n, e->value.data, sizeof(n));
			n = htole64(le64toh(n) + (uint64_t)c->delta);
			map_put(m, &c->key, &n, sizeof(n));
			break;
		}
	}
}

struct kv_batch *kv_batch_new(void)
{
	struct kv_batch *b = calloc(1, sizeof(*b));

	CHECK(b);
	return b;
}

void kv_batch_clear(struct kv_batch *b)
{
	for (size_t i = 0; i < b->count; i++) {
		free(b->at[i].key.data);
		free(b->at[i].value.data);
	}
	b->count = 0;
}

void kv_batch_free(struct kv_batch *b)
{
	if (!b)
		return;
	kv_batch_clear(b);
	free(b->at);
	free(b);
}

static struct change *change_new(struct kv_batch *b, enum change_kind kind,
				 const void *key, size_t len)
{
	struct change *c;

	grow(&b->at, b->count, &b->room, sizeof(*b->at));
	c = &b->at[b->count++];
	*c = (struct change){ .kind = kind, .key = text_of(key, len) };
	return c;
}

void kv_put(struct kv_batch *b, const void *key, size_t key_len,
	    const void *value, size_t value_len)
{
	change_new(b, CHANGE_PUT, key, key_len)->value =
		text_of(value, value_len);
}

void kv_delete(struct kv_batch *b, const void *key, size_t key_len)
{
	(void)change_new(b, CHANGE_DELETE, key, key_len);
}

void kv_add(struct kv_batch *b, const void *key, size_t key_len, int64_t delta)
{
	change_new(b, CHANGE_ADD, key, key_len)->delta = delta;
}

struct kv_batch batch_copy(const struct kv_batch *b)
{
	struct kv_batch copy = { .room = b->count, .count = b->count };

	copy.at = calloc(b->count ? b->count : 1, sizeof(*copy.at));
	CHECK(copy.at);
	for (size_t i = 0; i < b->count; i++) {
		copy.at[i] = b->at[i];
		copy.at[i].key = text_of(b->at[i].key.data, b->at[i].key.len);
		copy.at[i].value =
			text_of(b->at[i].value.data, b->at[i].value.len);
	}
	return copy;
}
