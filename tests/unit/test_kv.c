/*
 * The door to the database: what is put is got, in the order of the keys, and
 * who may open it. Its disk's errors are test_kv_errors.c's.
 */
#include "tests/unit/kv_fixture.h"

static void what_was_put_is_got_also_by_the_next_opener(void **state)
{
	struct db d = db_new();

	(void)state;
	put(d.kv, "a", "1");
	put(d.kv, "empty", "");
	assert_value(d.kv, "a", "1");
	assert_value(d.kv, "empty", "");
	assert_value(d.kv, "b", "-");
	kv_close(d.kv);
	db_open(&d);
	assert_value(d.kv, "a", "1");
	assert_value(d.kv, "empty", "");
	db_free(&d);
}

static void keys_and_values_may_hold_any_byte(void **state)
{
	struct db d = db_new();
	struct kv_batch *b = kv_batch_new();
	uint8_t key[256], *value;
	void *got;
	size_t len;

	(void)state;
	for (size_t n = 0; n < sizeof(key); n++)
		key[n] = (uint8_t)n;
	value = calloc(1, 100000);
	kv_put(b, key, sizeof(key), value, 100000);
	assert_int_equal(kv_write(d.kv, b), 0);
	assert_int_equal(kv_get(d.kv, key, sizeof(key), &got, &len), 0);
	assert_int_equal(len, 100000);
	assert_memory_equal(got, value, len);
	free(got);
	free(value);
	kv_batch_free(b);
	db_free(&d);
}

static void later_operations_of_a_batch_win(void **state)
{
	struct db d = db_new();
	struct kv_batch *b = kv_batch_new();

	(void)state;
	put(d.kv, "old", "1");
	kv_put(b, "a", 1, "1", 1);
	kv_put(b, "a", 1, "2", 1);
	kv_put(b, "b", 1, "1", 1);
	kv_delete(b, "b", 1);
	kv_delete(b, "old", 3);
	kv_delete(b, "never", 5);
	assert_value(d.kv, "a", "-"); /* not before it is written */
	assert_int_equal(kv_write(d.kv, b), 0);
	assert_value(d.kv, "a", "2");
	assert_value(d.kv, "b", "-");
	assert_value(d.kv, "old", "-");
	kv_batch_clear(b);
	kv_put(b, "c", 1, "3", 1);
	assert_int_equal(kv_write(d.kv, b), 0);
	assert_value(d.kv, "c", "3");
	kv_batch_free(b);
	db_free(&d);
}

static void counters_add_up_also_over_a_restart(void **state)
{
	static const int64_t deltas[] = { 5, -2, 0, INT64_MAX, INT64_MIN, -4 };
	struct db d = db_new();
	uint64_t expected = 0;

	(void)state;
	for (size_t n = 0; n < sizeof(deltas) / sizeof(*deltas); n++) {
		struct kv_batch *b = kv_batch_new();

		kv_add(b, "n", 1, deltas[n]);
		kv_add(b, "n", 1, 1);
		expected += (uint64_t)deltas[n] + 1;
		assert_int_equal(kv_write(d.kv, b), 0);
		kv_batch_free(b);
		assert_true(counter(d.kv) == expected);
		if (n % 2) {
			kv_close(d.kv);
			db_open(&d);
		}
	}
	assert_true(counter(d.kv) == expected);
	db_free(&d);
}

static void many_values_come_at_once_in_the_order_of_the_keys(void **state)
{
	struct db d = db_new();
	char names[KV_MULTI_MAX][16];
	struct kv_slice keys[KV_MULTI_MAX];
	void *values[KV_MULTI_MAX];
	size_t lens[KV_MULTI_MAX];

	(void)state;
	for (size_t n = 0; n < KV_MULTI_MAX; n++) {
		/* In no order; every third is not there; one is empty. */
		(void)snprintf(names[n], sizeof(names[n]), "k%03zu",
			       n * 37 % KV_MULTI_MAX);
		keys[n] = (struct kv_slice){ names[n], 4 };
		if (n % 3 != 0)
			put(d.kv, names[n], n == 1 ? "" : names[n]);
	}
	assert_int_equal(kv_multi_get(d.kv, 0, keys, values, lens), 0);
	assert_int_equal(kv_multi_get(d.kv, KV_MULTI_MAX, keys, values, lens),
			 0);
	for (size_t n = 0; n < KV_MULTI_MAX; n++) {
		if (n % 3 == 0) {
			assert_null(values[n]);
			continue;
		}
		assert_non_null(values[n]);
		assert_int_equal(lens[n], n == 1 ? 0 : 4);
		assert_memory_equal(values[n], names[n], lens[n]);
		free(values[n]);
	}
	db_free(&d);
}

/* The keys of a walk, one after the other, each with a space behind it. */
static void walk(struct kv *kv, const char *prefix, const char *start,
		 char ret[256])
{
	struct kv_slice key, value;
	struct kv_iter *it;
	size_t at = 0;
	int rc;

	assert_int_equal(kv_iter_new(kv, prefix, strlen(prefix), start,
				     start ? strlen(start) : 0, &it),
			 0);
	while ((rc = kv_iter_next(it, &key, &value)) == 1) {
		assert_true(at + key.len + 2 < 256);
		memcpy(ret + at, key.data, key.len);
		at += key.len;
		ret[at++] = ' ';
	}
	ret[at] = 0;
	assert_int_equal(rc, 0);
	kv_iter_free(it);
}

static void a_walk_keeps_to_its_prefix_and_starts_where_it_should(void **state)
{
	static const char *const names[] = {
		"a",     "b",         "b1", "b2",   "b2\xff",
		"b\xff", "b\xff\xff", "c",  "\xff", "\xff\xff",
	};
	static const struct {
		const char *prefix, *start, *expected;
	} walks[] = {
		{ "b", NULL, "b b1 b2 b2\xff b\xff b\xff\xff " },
		{ "b", "b2", "b2 b2\xff b\xff b\xff\xff " },
		{ "b", "b11", "b2 b2\xff b\xff b\xff\xff " },
		{ "b", "b\xff\xff\xff", "" },
		{ "b2", NULL, "b2 b2\xff " },
		{ "\xff", NULL, "\xff \xff\xff " },
		{ "bb", NULL, "" },
		{ "d", NULL, "" },
		{ "", NULL,
		  "a b b1 b2 b2\xff b\xff b\xff\xff c \xff \xff\xff " },
		{ "", "c", "c \xff \xff\xff " },
	};
	struct db d = db_new();
	char got[256];

	(void)state;
	for (size_t n = 0; n < sizeof(names) / sizeof(*names); n++)
		put(d.kv, names[n], "v");
	for (size_t n = 0; n < sizeof(walks) / sizeof(*walks); n++) {
		walk(d.kv, walks[n].prefix, walks[n].start, got);
		assert_string_equal(got, walks[n].expected);
	}
	db_free(&d);
}

static void a_walk_sees_what_was_there_when_it_began(void **state)
{
	struct db d = db_new();
	struct kv_slice key, value;
	struct kv_iter *it;

	(void)state;
	put(d.kv, "a", "1");
	put(d.kv, "c", "1");
	assert_int_equal(kv_iter_new(d.kv, "", 0, NULL, 0, &it), 0);
	assert_int_equal(kv_iter_next(it, &key, &value), 1);
	put(d.kv, "b", "1");
	put(d.kv, "c", "2");
	assert_int_equal(kv_iter_next(it, &key, &value), 1);
	assert_memory_equal(key.data, "c", 1);
	assert_memory_equal(value.data, "1", 1);
	assert_int_equal(kv_iter_next(it, &key, &value), 0);
	assert_int_equal(kv_iter_next(it, &key, &value), 0);
	kv_iter_free(it);
	db_free(&d);
}

static void a_database_that_is_not_there_is_an_error_unless_made(void **state)
{
	char *dir = make_tmp();
	char *path = NULL;
	struct kv *kv = NULL;

	(void)state;
	assert_true(asprintf(&path, "%s/db", dir) > 0);
	assert_int_equal(kv_open(path, false, &kv), -EIO);
	assert_int_equal(kv_open_readonly(path, &kv), -EIO);
	assert_null(kv);
	kv_close(kv); /* a no-op */
	free(path);
	remove_tree(dir);
	free(dir);
}

static void a_database_is_opened_for_writing_once(void **state)
{
	struct db d = db_new();
	struct kv *second = NULL;

	(void)state;
	assert_int_equal(kv_open(d.path, false, &second), -EBUSY);
	assert_null(second);
	db_free(&d);
}

static void a_read_only_opener_sees_all_but_cannot_write(void **state)
{
	struct db d = db_new();
	struct kv_batch *b = kv_batch_new();

	(void)state;
	put(d.kv, "a", "1");
	kv_close(d.kv);
	assert_int_equal(kv_open_readonly(d.path, &d.kv), 0);
	assert_value(d.kv, "a", "1");
	kv_put(b, "b", 1, "1", 1);
	assert_true(kv_write(d.kv, b) < 0);
	kv_batch_free(b);
	db_free(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_was_put_is_got_also_by_the_next_opener),
		cmocka_unit_test(keys_and_values_may_hold_any_byte),
		cmocka_unit_test(later_operations_of_a_batch_win),
		cmocka_unit_test(counters_add_up_also_over_a_restart),
		cmocka_unit_test(
			many_values_come_at_once_in_the_order_of_the_keys),
		cmocka_unit_test(
			a_walk_keeps_to_its_prefix_and_starts_where_it_should),
		cmocka_unit_test(a_walk_sees_what_was_there_when_it_began),
		cmocka_unit_test(
			a_database_that_is_not_there_is_an_error_unless_made),
		cmocka_unit_test(a_database_is_opened_for_writing_once),
		cmocka_unit_test(a_read_only_opener_sees_all_but_cannot_write),
	};

	return cmocka_run_group_tests_name("kv", tests, NULL, NULL);
}
