/* The door to the database: order, atomicity, prefixes, errors. */
#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "store/base/bytes.h"
#include "store/base/log.h"
#include "tests/unit/small_disk.h"

struct db {
	char *dir; /* holds "db" */
	char *path;
	struct kv *kv;
};

static void db_open(struct db *d)
{
	assert_int_equal(kv_open(d->path, true, &d->kv), 0);
}

static struct db db_new(void)
{
	struct db d = { .dir = make_tmp() };

	assert_true(asprintf(&d.path, "%s/db", d.dir) > 0);
	db_open(&d);
	return d;
}

static void db_free(struct db *d)
{
	kv_close(d->kv);
	remove_tree(d->dir);
	free(d->path);
	free(d->dir);
}

static void put(struct kv *kv, const char *key, const char *value)
{
	struct kv_batch *b = kv_batch_new();

	kv_put(b, key, strlen(key), value, strlen(value));
	assert_int_equal(kv_write(kv, b), 0);
	kv_batch_free(b);
}

/* "-": there is none. */
static void assert_value(struct kv *kv, const char *key, const char *expected)
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

static uint64_t counter(struct kv *kv)
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
		"a",	 "b",	      "b1", "b2",   "b2\xff",
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

/* The log that holds what was written since the database was opened. */
static int open_log(const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *e;
	char newest[256] = "";
	int fd;

	assert_non_null(dir);
	while ((e = readdir(dir)) != NULL) {
		size_t len = strlen(e->d_name);

		if (len > 4 && strcmp(e->d_name + len - 4, ".log") == 0 &&
		    strcmp(e->d_name, newest) > 0)
			(void)snprintf(newest, sizeof(newest), "%s",
				       e->d_name);
	}
	fd = openat(dirfd(dir), newest, O_RDWR);
	assert_true(fd >= 0);
	closedir(dir);
	return fd;
}

static bool has(struct kv *kv, const char *key)
{
	size_t len;
	void *value;
	int rc = kv_get(kv, key, strlen(key), &value, &len);

	assert_true(rc == 0 || rc == -ENOENT);
	if (rc == 0)
		free(value);
	return rc == 0;
}

/*
 * A power cut leaves a prefix of the log. Whatever its length: batches are
 * there whole or not at all, and if one is, all earlier ones are.
 */
static void a_cut_log_leaves_whole_batches_in_order(void **state)
{
	struct db d = db_new();
	off_t size, cut, seen_none = 0, seen_all = 0;
	int fd;

	(void)state;
	for (unsigned n = 0; n < 3; n++) {
		struct kv_batch *b = kv_batch_new();
		char key[4] = { 'x', (char)('0' + n), 'a', 0 };

		kv_put(b, key, 3, "some value", 10);
		key[2] = 'b';
		kv_put(b, key, 3, "another", 7);
		kv_add(b, "n", 1, 1);
		assert_int_equal(kv_write(d.kv, b), 0);
		kv_batch_free(b);
	}
	assert_int_equal(kv_sync(d.kv), 0);
	fd = open_log(d.path);
	size = lseek(fd, 0, SEEK_END);
	assert_true(size > 0 && size < 4096);
	close(fd);

	for (cut = 0; cut <= size; cut += cut < size - 5 ? 5 : 1) {
		struct db copy = { .dir = make_tmp() };
		char *command = NULL;
		uint64_t batches = 0;

		assert_true(asprintf(&copy.path, "%s/db", copy.dir) > 0);
		assert_true(asprintf(&command, "cp -r '%s' '%s'", d.path,
				     copy.path) > 0);
		assert_int_equal(system(command), 0);
		free(command);
		fd = open_log(copy.path);
		assert_int_equal(ftruncate(fd, cut), 0);
		close(fd);
		assert_int_equal(kv_open(copy.path, false, &copy.kv), 0);
		for (unsigned n = 0; n < 3; n++) {
			char key[4] = { 'x', (char)('0' + n), 'a', 0 };
			bool first = has(copy.kv, key), second;

			key[2] = 'b';
			second = has(copy.kv, key);
			assert_int_equal(first, second);
			assert_true(!first || batches == n);
			batches += first;
		}
		if (batches > 0)
			assert_true(counter(copy.kv) == batches);
		else
			assert_value(copy.kv, "n", "-");
		seen_none += batches == 0;
		seen_all += batches == 3;
		db_free(&copy);
	}
	assert_true(seen_none > 0);
	assert_true(seen_all > 0);
	db_free(&d);
}

/* Needs a small file system of its own; skipped where it cannot be mounted. */
static void a_full_disk_is_said_to_be_full(void **state)
{
	char *dir = make_tmp();
	struct db d = { .dir = dir };
	uint8_t *value;
	int rc = 0;

	(void)state;
	if (mount("tmpfs", dir, "tmpfs", 0, "size=8m") < 0) {
		remove_tree(dir);
		free(dir);
		skip();
	}
	assert_true(asprintf(&d.path, "%s/db", dir) > 0);
	db_open(&d);
	value = malloc(1 << 20);
	memset(value, 0xa5, 1 << 20);
	for (unsigned n = 0; n < 20 && rc == 0; n++) {
		struct kv_batch *b = kv_batch_new();

		value[n] ^= 1;
		kv_put(b, &n, sizeof(n), value, 1 << 20);
		rc = kv_write(d.kv, b);
		if (rc == 0)
			rc = kv_sync(d.kv);
		kv_batch_free(b);
	}
	assert_int_equal(rc, -ENOSPC);
	kv_close(d.kv);
	assert_int_equal(umount(dir), 0);
	remove_tree(dir);
	free(value);
	free(d.path);
	free(dir);
}

static int put_large(struct kv *kv, const char *key)
{
	struct kv_batch *b = kv_batch_new();
	static uint8_t value[64 << 10];
	int rc;

	memset(value, 0xa5, sizeof(value));
	kv_put(b, key, strlen(key), value, sizeof(value));
	rc = kv_write(kv, b);
	kv_batch_free(b);
	return rc;
}

/*
 * The write that finds the disk full is the first since the database was
 * opened: RocksDB would go on with the log that failed, and end the process.
 */
static void a_log_that_failed_is_not_written_to_again(void **state)
{
	const struct timespec tick = { 0, 1000000 };
	char *disk = disk_mount();
	struct db d = { .dir = disk };
	int rc = -ENOSPC;

	(void)state;
	if (!disk)
		skip();
	assert_true(asprintf(&d.path, "%s/db", disk) > 0);
	db_open(&d);
	kv_close(d.kv);
	disk_fill(disk, 1 << 20); /* no room for a log beforehand */
	db_open(&d);
	disk_fill(disk, 0);
	assert_int_equal(put_large(d.kv, "refused"), -ENOSPC);
	assert_int_equal(kv_sync(d.kv), 0); /* all that was applied */
	assert_int_equal(put_large(d.kv, "refused"), -ENOSPC);
	disk_relieve(disk);
	/* RocksDB goes on by itself, some time after there is room. */
	for (unsigned i = 0; i < 100000 && rc == -ENOSPC; i++) {
		rc = put_large(d.kv, "taken");
		if (rc == -ENOSPC)
			(void)nanosleep(&tick, NULL);
	}
	assert_int_equal(rc, 0);
	assert_int_equal(kv_sync(d.kv), 0);
	for (int again = 0; again < 2; again++) {
		assert_true(has(d.kv, "taken"));
		assert_false(has(d.kv, "refused"));
		kv_close(d.kv);
		assert_int_equal(kv_open(d.path, false, &d.kv), 0);
	}
	kv_close(d.kv);
	free(d.path);
	disk_free(disk);
}

/* The mount ends while the disk is full yet. */
static void a_database_whose_log_failed_is_closed(void **state)
{
	char *disk = disk_mount();
	struct db d = { .dir = disk };

	(void)state;
	if (!disk)
		skip();
	assert_true(asprintf(&d.path, "%s/db", disk) > 0);
	db_open(&d);
	put(d.kv, "before", "1");
	assert_int_equal(kv_sync(d.kv), 0);
	kv_close(d.kv);
	disk_fill(disk, 1 << 20);
	db_open(&d);
	disk_fill(disk, 0);
	assert_int_equal(put_large(d.kv, "refused"), -ENOSPC);
	assert_int_equal(kv_sync(d.kv), 0);
	kv_close(d.kv);
	disk_relieve(disk);
	assert_int_equal(kv_open(d.path, false, &d.kv), 0);
	assert_true(has(d.kv, "before"));
	assert_false(has(d.kv, "refused"));
	kv_close(d.kv);
	free(d.path);
	disk_free(disk);
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
		cmocka_unit_test(a_cut_log_leaves_whole_batches_in_order),
		cmocka_unit_test(a_full_disk_is_said_to_be_full),
		cmocka_unit_test(a_log_that_failed_is_not_written_to_again),
		cmocka_unit_test(a_database_whose_log_failed_is_closed),
	};

	log_set_level(LOG_CRIT); /* errors are made on purpose */
	return cmocka_run_group_tests_name("kv", tests, NULL, NULL);
}
