/*
 * The database when its log was cut, or its disk is full or fails: batches are
 * whole, and nothing is written behind an error.
 */
#include <dirent.h>

#include "store/base/log.h"
#include "tests/unit/kv_fixture.h"
#include "tests/unit/small_disk.h"
#include "tests/unit/test_clock.h"

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
			(void)snprintf(newest, sizeof(newest), "%s", e->d_name);
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
	char *disk = disk_mount();
	struct db d = { .dir = disk };
	int rc;

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
	/* It is opened again some time after there is room. */
	while ((rc = put_large(d.kv, "taken")) == -ENOSPC)
		time_passes(SECOND_NS);
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
		cmocka_unit_test(a_cut_log_leaves_whole_batches_in_order),
		cmocka_unit_test(a_full_disk_is_said_to_be_full),
		cmocka_unit_test(a_log_that_failed_is_not_written_to_again),
		cmocka_unit_test(a_database_whose_log_failed_is_closed),
	};

	return cmocka_run_group_tests_name("kv", tests, NULL, NULL);
}
