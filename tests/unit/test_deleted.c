/*
 * Files that are deleted while somebody inside looks at them, who got there by
 * a name that was still there: he is told so, and reads nobody else's bytes.
 */
#include <pthread.h>

#include "store/guard/guard_private.h"
#include "tests/unit/live_store.h"

#define SMALL_BYTES 1000u
#define DATA_BYTES 100000u
#define ROUNDS 20000

static int read_it(struct live *l, struct inode *in, void *buf, size_t len)
{
	SCOPED(visit_end) struct guard_visit v;

	visit_begin(&v, l->st->guard);
	return visit_read(&v, in->ino, buf, len);
}

static void assert_deleted(const uint8_t *data, size_t len, bool loaded)
{
	struct live l = live_new(NULL);
	uint8_t *got = malloc(len);
	struct inode *in = NULL;
	struct stat sb;

	live_write(&l, "f", data, len);
	live_reopen(&l);
	assert_int_equal(live_lookup(&l, "f", &in), 0);
	if (loaded) {
		assert_int_equal(read_it(&l, in, got, len), 0);
		assert_memory_equal(got, data, len);
	}
	assert_int_equal(live_unlink(&l, "f"), 0);
	live_settle(&l);
	assert_int_equal(live_records(&l, 'F'), 0);
	assert_int_equal(read_it(&l, in, got, len), -ESTALE);
	assert_int_equal(inode_stat(l.st->inodes, in, &sb),
			 loaded ? 0 : -ESTALE);
	inode_put(l.st->inodes, in, 1);
	free(got);
	live_free(&l);
}

static void who_has_a_deleted_file_reads_nothing_more_of_it(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	for (int loaded = 0; loaded < 2; loaded++) {
		assert_deleted(data, SMALL_BYTES, loaded); /* in the database */
		assert_deleted(data, DATA_BYTES, loaded);
	}
	free(data);
}

static void deleting_twice_deletes_once(void **state)
{
	struct live l = live_new(NULL);
	struct inode *in = NULL;

	(void)state;
	live_write(&l, "f", "x", 1);
	live_sync_all(&l);
	assert_int_equal(live_lookup(&l, "f", &in), 0);
	assert_int_equal(live_unlink(&l, "f"), 0);
	file_unlinked(&l.st->files, in); /* as the kernel's last FORGET does */
	inode_put(l.st->inodes, in, 1);
	live_settle(&l);
	assert_int_equal(live_counter(&l, META_FILES), 0);
	assert_int_equal(live_counter(&l, META_PHYSICAL), 0);
	live_free(&l);
}

struct looker {
	struct live *l;
	atomic_bool stop;
	unsigned other; /* neither there nor absent */
};

static void *look_up(void *arg)
{
	struct looker *k = arg;

	while (!atomic_load(&k->stop)) {
		struct inode *in = NULL;
		int rc = names_lookup(k->l->st->names, ROOT_INO, "f", &in);

		if (rc == 0)
			inode_put(k->l->st->inodes, in, 1);
		k->other += rc != 0 && rc != -ENOENT;
	}
	return NULL;
}

static void a_name_that_goes_while_it_is_looked_up_is_absent(void **state)
{
	struct live l = live_new(NULL);
	struct looker k = { .l = &l };

	pthread_t thread;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, look_up, &k), 0);
	for (unsigned i = 0; i < ROUNDS; i++) {
		struct inode *in = NULL;

		assert_int_equal(live_make(&l, "f", S_IFIFO | 0600, &in), 0);
		inode_put(l.st->inodes, in, 1);
		assert_int_equal(live_unlink(&l, "f"), 0);
		if (i % 64 == 0)
			live_settle(&l);
	}
	atomic_store(&k.stop, true);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(k.other, 0);
	live_free(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			who_has_a_deleted_file_reads_nothing_more_of_it),
		cmocka_unit_test(deleting_twice_deletes_once),
		cmocka_unit_test(
			a_name_that_goes_while_it_is_looked_up_is_absent),
	};

	return cmocka_run_group_tests_name("deleted", tests, NULL, NULL);
}
