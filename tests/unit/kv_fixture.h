/*
 * kv_fixture.h - a database in a directory of its own, and what it holds.
 */
#ifndef TESTS_UNIT_KV_FIXTURE_H
#define TESTS_UNIT_KV_FIXTURE_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/base/bytes.h"
#include "tests/unit/store_fixture.h"

struct db {
	char *dir; /* holds "db" */
	char *path;
	struct kv *kv;
};

static inline void db_open(struct db *d)
{
	assert_int_equal(kv_open(d->path, true, &d->kv), 0);
}

static inline struct db db_new(void)
{
	struct db d = { .dir = make_tmp() };

	assert_true(asprintf(&d.path, "%s/db", d.dir) > 0);
	db_open(&d);
	return d;
}

static inline void db_free(struct db *d)
{
	kv_close(d->kv);
	remove_tree(d->dir);
	free(d->path);
	free(d->dir);
}

static inline void put(struct kv *kv, const char *key, const char *value)
{
	struct kv_batch *b = kv_batch_new();

	kv_put(b, key, strlen(key), value, strlen(value));
	assert_int_equal(kv_write(kv, b), 0);
	kv_batch_free(b);
}

/* "-": there is none. */
static inline void assert_value(struct kv *kv, const char *key,
				const char *expected)
{
	void *value = NULL;
	size_t len = 0;
	int rc = kv_get(kv, key, strlen(key), &value, &len);

	if (strcmp(expected, "-") == 0) {
		assert_int_equal(rc, -ENOENT);
		assert_null(value);
		return;
	}
	assert_int_equal(rc, 0);
	assert_non_null(value);
	assert_int_equal(len, strlen(expected));
	assert_memory_equal(value, expected, len);
	free(value);
}

static inline uint64_t counter(struct kv *kv)
{
	void *value;
	uint64_t le;
	size_t len;

	assert_int_equal(kv_get(kv, "n", 1, &value, &len), 0);
	assert_int_equal(len, sizeof(le));
	memcpy(&le, value, sizeof(le));
	free(value);
	return le64toh(le);
}

#endif
