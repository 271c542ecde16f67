/*
 * plan_ids.c - the order of ids, and an id that sorts as its tensor does.
 *
 * Seven bytes of each id at a time; those that agree so far are sorted by
 * their next seven. The last byte of a key says how many of the seven there
 * are, 8 for more: what ends first is first, and what ends together is equal.
 */
#include "store/step/plan_ids.h"

#include "store/base/scope.h"

#define KEY_BYTES 7
#define KEY_MORE 8

struct id_key {
	uint64_t key;
	uint32_t shard;
};

struct id_run {
	uint32_t lo, hi; /* keys[lo, hi) agree in their first `depth` bytes */
	size_t depth;
};

static uint64_t id_key(const struct ckpt_plan_shard *s, size_t depth)
{
	size_t left = s->id_bytes - depth;
	size_t bytes = left < KEY_BYTES ? left : KEY_BYTES;
	uint64_t key = 0;

	for (size_t i = 0; i < KEY_BYTES; i++)
		key = key << 8 |
		      (i < bytes ? (unsigned char)s->id[depth + i] : 0);
	return key << 8 | (left > KEY_BYTES ? KEY_MORE : bytes);
}

static int id_key_compare(const void *a, const void *b)
{
	const struct id_key *x = a, *y = b;

	return (x->key > y->key) - (x->key < y->key);
}

/* Sort one run, and put those that are to be looked at further on the stack. */
static int run_sort(const struct ckpt_plan_shard *shards, struct id_key *keys,
		    struct id_run run, struct id_run *stack, size_t *depth,
		    uint32_t *ret_twice)
{
	bool equal = true;

	for (uint32_t i = run.lo; i < run.hi; i++) {
		keys[i].key = id_key(&shards[keys[i].shard], run.depth);
		equal = equal && keys[i].key == keys[run.lo].key;
	}
	if (!equal)
		qsort(keys + run.lo, run.hi - run.lo, sizeof(*keys),
		      id_key_compare);
	for (uint32_t lo = run.lo, hi; lo < run.hi; lo = hi) {
		for (hi = lo + 1; hi < run.hi && keys[hi].key == keys[lo].key;)
			hi++;
		if (hi - lo == 1)
			continue;
		if ((keys[lo].key & 0xff) != KEY_MORE) {
			*ret_twice = keys[lo].shard;
			return -EEXIST;
		}
		stack[(*depth)++] =
			(struct id_run){ lo, hi, run.depth + KEY_BYTES };
	}
	return 0;
}

int plan_ids_sort(const struct ckpt_plan_shard *shards, uint32_t count,
		  uint32_t *places, uint32_t *ret_twice)
{
	SCOPED(scope_free) struct id_key *keys = NULL;
	SCOPED(scope_free) struct id_run *stack = NULL;
	size_t depth = 0;
	int rc = 0;

	keys = calloc(count, sizeof(*keys));
	/* Runs on the stack are disjoint, and none has less than two. */
	stack = calloc(count / 2 + 1, sizeof(*stack));
	if (!keys || !stack)
		return -ENOMEM;
	for (uint32_t i = 0; i < count; i++)
		keys[i].shard = i;
	stack[depth++] = (struct id_run){ 0, count, 0 };
	while (depth > 0 && rc == 0) {
		struct id_run run = stack[--depth];

		rc = run_sort(shards, keys, run, stack, &depth, ret_twice);
	}
	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < count; i++)
		places[keys[i].shard] = i;
	return 0;
}

size_t ckpt_plan_id(char *buf, size_t size, const char *name, size_t name_bytes,
		    const uint64_t *offsets, unsigned dimensions)
{
	size_t want = name_bytes + 1 + (size_t)dimensions * 8;
	size_t at = name_bytes < size ? name_bytes : size;

	if (at > 0)
		memcpy(buf, name, at);
	/* The NUL is below all that a longer name could go on with. */
	if (at < size)
		buf[at++] = 0;
	for (unsigned i = 0; i < dimensions; i++)
		for (unsigned n = 0; n < 8 && at < size; n++)
			buf[at++] = (char)(offsets[i] >> (56 - 8 * n));
	return want;
}
