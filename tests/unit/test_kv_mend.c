/*
 * After an error of the disk RocksDB takes no more writes. The door to the
 * database opens it again, and goes on with all that was written.
 *
 * A limit for the size of files makes the errors. What of it fails, and when,
 * must not hang on the database's own threads, which write its tables: a limit
 * that a log meets and no table is one error, and one that nothing fits into
 * fails all that is written.
 */
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include "tests/unit/await.h"
#include "tests/unit/live_store.h"
#include "tests/unit/test_clock.h"

#define VALUE_BYTES (64 * KIB)
#define LOG_BYTES_MAX MIB /* tables have one value, and are smaller */
#define NO_BYTES 16 /* nothing fits into a file */
#define COUNT 8
#define MEND_NS (60 * SECOND_NS) /* more than kv_mend() ever pauses */

struct db {
	char *dir, *path;
	struct kv *kv;
};

static struct db db_new(void)
{
	struct db d = { .dir = make_tmp() };

	log_set_level(LOG_CRIT); /* errors are made on purpose */
	(void)signal(SIGXFSZ, SIG_IGN);
	assert_true(asprintf(&d.path, "%s/db", d.dir) > 0);
	assert_int_equal(kv_open(d.path, true, &d.kv), 0);
	return d;
}

static void db_free(struct db *d)
{
	kv_close(d->kv);
	remove_tree(d->dir);
	free(d->path);
	free(d->dir);
}

/* Writes that reach beyond `bytes` of a file fail with EFBIG; 0: none do. */
static void limit_files(uint64_t bytes)
{
	struct rlimit limit;

	assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
	limit.rlim_cur = bytes ? bytes : limit.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* A value of which number i is the beginning. */
static int put(struct kv *kv, const char *key, uint64_t i)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	uint8_t *value = filled(VALUE_BYTES, i + 1);
	int rc;

	memcpy(value, &i, sizeof(i));
	kv_put(b, key, strlen(key), value, VALUE_BYTES);
	rc = kv_write(kv, b);
	free(value);
	return rc;
}

/* The number that put() gave it; UINT64_MAX: there is no such key. */
static uint64_t get(struct kv *kv, const char *key)
{
	void *value = NULL;
	size_t len;
	uint64_t i;
	int rc = kv_get(kv, key, strlen(key), &value, &len);

	if (rc == -ENOENT)
		return UINT64_MAX;
	assert_int_equal(rc, 0);
	assert_int_equal(len, VALUE_BYTES);
	memcpy(&i, value, sizeof(i));
	free(value);
	return i;
}

static int put_numbered(struct kv *kv, uint64_t i)
{
	char key[16];

	(void)snprintf(key, sizeof(key), "n%03u", (unsigned)i);
	return put(kv, key, i);
}

static void assert_numbered(struct kv *kv, uint64_t count)
{
	char key[16];

	for (uint64_t i = 0; i < count; i++) {
		(void)snprintf(key, sizeof(key), "n%03u", (unsigned)i);
		assert_int_equal(get(kv, key), i);
	}
}

/* Those that are COUNT, and then a disk that takes nothing. */
static void put_all_and_fail(struct kv *kv)
{
	for (uint64_t i = 0; i < COUNT; i++)
		assert_int_equal(put_numbered(kv, i), 0);
	limit_files(NO_BYTES);
	assert_int_equal(put_numbered(kv, COUNT), -EIO);
}

/* It does not try all the time. */
static void mend_later(struct kv *kv)
{
	assert_int_equal(kv_mend(kv), -EIO);
	time_passes(MEND_NS);
	assert_int_equal(kv_mend(kv), 0);
}

/* Its log cannot grow any more; a new one can. */
static void after_one_error_writing_goes_on(void **state)
{
	struct db d = db_new();

	(void)state;
	limit_files(LOG_BYTES_MAX);
	for (uint64_t i = 0; i < 5 * LOG_BYTES_MAX / VALUE_BYTES; i++) {
		assert_int_equal(put(d.kv, "key", i), 0);
		assert_int_equal(get(d.kv, "key"), i);
		assert_int_equal(kv_sync(d.kv), 0);
	}
	assert_int_equal(kv_health(d.kv), KV_FINE);
	limit_files(0);
	kv_close(d.kv);
	assert_int_equal(kv_open(d.path, false, &d.kv), 0);
	assert_int_equal(get(d.kv, "key"), 5 * LOG_BYTES_MAX / VALUE_BYTES - 1);
	db_free(&d);
}

/* Nothing can be written; then it can. What failed has not happened. */
static void errors_that_last_end_with_their_cause(void **state)
{
	struct db d = db_new();

	(void)state;
	time_stands();
	put_all_and_fail(d.kv);
	assert_int_equal(kv_health(d.kv), KV_FAILING);
	assert_int_equal(put_numbered(d.kv, COUNT), -EIO);
	assert_int_equal(kv_sync(d.kv), -EIO);
	assert_numbered(d.kv, COUNT); /* it can be read all the time */
	time_passes(MEND_NS);
	assert_int_equal(kv_mend(d.kv), -EIO); /* it lasts */
	assert_numbered(d.kv, COUNT);
	limit_files(0);
	mend_later(d.kv);
	assert_int_equal(kv_health(d.kv), KV_FINE);
	assert_numbered(d.kv, COUNT);
	assert_int_equal(put_numbered(d.kv, COUNT), 0);
	assert_int_equal(kv_sync(d.kv), 0);
	assert_numbered(d.kv, COUNT + 1);
	time_goes_on();
	kv_close(d.kv);
	assert_int_equal(kv_open(d.path, false, &d.kv), 0);
	assert_numbered(d.kv, COUNT + 1);
	db_free(&d);
}

static void what_is_condemned_is_not_written_again(void **state)
{
	struct db d = db_new();

	(void)state;
	put_all_and_fail(d.kv);
	kv_condemn(d.kv);
	limit_files(0);
	assert_int_equal(kv_health(d.kv), KV_CONDEMNED);
	time_passes(MEND_NS);
	assert_int_equal(kv_mend(d.kv), -EIO);
	assert_int_equal(put_numbered(d.kv, COUNT), -EIO);
	assert_int_equal(kv_sync(d.kv), -EIO);
	assert_numbered(d.kv, COUNT);
	db_free(&d);
}

/* It is not closed under who walks through it, and the walk goes on. */
static void a_walk_is_not_cut_off(void **state)
{
	struct db d = db_new();
	struct kv_slice key, value;
	struct kv_iter *it;
	uint64_t i = 0;

	(void)state;
	assert_int_equal(put(d.kv, "a", 1), 0);
	assert_int_equal(put(d.kv, "b", 2), 0);
	assert_int_equal(kv_iter_new(d.kv, "", 0, NULL, 0, &it), 0);
	time_stands();
	limit_files(LOG_BYTES_MAX);
	while (put(d.kv, "key", i) == 0)
		i++;
	assert_int_equal(kv_iter_next(it, &key, &value), 1);
	assert_memory_equal(key.data, "a", 1);
	assert_int_equal(kv_iter_next(it, &key, &value), 1);
	assert_memory_equal(key.data, "b", 1);
	assert_int_equal(get(d.kv, "key"), i - 1);
	kv_iter_free(it);
	limit_files(0);
	mend_later(d.kv);
	assert_int_equal(put(d.kv, "key", i), 0);
	assert_int_equal(get(d.kv, "key"), i);
	time_goes_on();
	db_free(&d);
}

struct reader {
	struct kv *kv;
	atomic_bool stop;
	pthread_t thread;
};

static void *read_all_the_time(void *arg)
{
	struct reader *r = arg;
	uint64_t last = 0;

	while (!atomic_load(&r->stop)) {
		struct kv_slice key, value;
		struct kv_iter *it;
		uint64_t now = get(r->kv, "key");

		assert_true(now >= last);
		last = now;
		assert_int_equal(kv_iter_new(r->kv, "k", 1, NULL, 0, &it), 0);
		assert_int_equal(kv_iter_next(it, &key, &value), 1);
		assert_true(get(r->kv, "key") >= last); /* within a walk */
		kv_iter_free(it);
	}
	return NULL;
}

/* Nor does who writes, as long as they take: no time passes meanwhile. */
static void readers_do_not_notice(void **state)
{
	struct db d = db_new();
	struct reader r[3] = { 0 };

	(void)state;
	assert_int_equal(put(d.kv, "key", 0), 0);
	for (unsigned i = 0; i < 3; i++) {
		r[i].kv = d.kv;
		CHECK(pthread_create(&r[i].thread, NULL, read_all_the_time,
				     &r[i]) == 0);
	}
	time_stands();
	limit_files(LOG_BYTES_MAX);
	for (uint64_t i = 1; i < 5 * LOG_BYTES_MAX / VALUE_BYTES; i++)
		assert_int_equal(put(d.kv, "key", i), 0);
	limit_files(0);
	for (unsigned i = 0; i < 3; i++) {
		atomic_store(&r[i].stop, true);
		pthread_join(r[i].thread, NULL);
	}
	time_goes_on();
	db_free(&d);
}

/* A store whose disk fails for a while, and then does not. */
static void a_store_goes_on_when_its_disk_does(void **state)
{
	uint8_t *data = filled(MIB, 1);
	struct live l = live_new(NULL);
	struct inode *in;
	int rc = 0;

	(void)state;
	live_write(&l, "before", data, MIB);
	live_sync_all(&l);
	limit_files(512);
	for (unsigned i = 0; i < 1000 && rc == 0; i++)
		rc = live_rename(&l, i % 2 ? "b" : "before",
				 i % 2 ? "before" : "b", 0);
	assert_int_equal(rc, -EIO);
	limit_files(0);
	while (kv_health(l.st->kv) != KV_FINE) /* the drain's timer does it */
		AWAIT_ANY_AFTER(time_passes(SECOND_NS));
	assert_int_equal(live_make(&l, "after", S_IFDIR | 0755, &in), 0);
	inode_put(l.st->inodes, in, 1);
	live_write(&l, "after/f", data, MIB);
	live_sync_all(&l);
	assert_file(&l, "after/f", data, MIB);
	live_reopen(&l);
	assert_file(&l, "after/f", data, MIB);
	live_free(&l);
	free(data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(after_one_error_writing_goes_on),
		cmocka_unit_test(errors_that_last_end_with_their_cause),
		cmocka_unit_test(what_is_condemned_is_not_written_again),
		cmocka_unit_test(a_walk_is_not_cut_off),
		cmocka_unit_test(readers_do_not_notice),
		cmocka_unit_test(a_store_goes_on_when_its_disk_does),
	};

	return cmocka_run_group_tests_name("kv_mend", tests, NULL, NULL);
}
