/* Backups of the database: made after a publish, not too often, two kept. */
#include "tests/unit/await.h"
#include "tests/unit/live_store.h"
#include "tests/unit/test_clock.h"

static void in_store(struct live *l, const char *name, char ret[4096])
{
	(void)snprintf(ret, 4096, "%s/%s", l->path, name);
}

static uint64_t made(struct live *l)
{
	struct backup_figures f;

	backup_figures(l->st, &f);
	assert_int_equal(f.failed, 0);
	return f.made;
}

static void wait_made(struct live *l, uint64_t count)
{
	AWAIT(made(l) >= count);
}

/* The one before the last `back`: how many files it knows; -1: none. */
static int files_in_backup(struct live *l, unsigned back)
{
	struct kv_backup_info info;
	char backup[4096], to[4096];
	struct kv_slice key, value;
	struct kv_iter *it;
	struct kv *kv;
	int files = 0;

	in_store(l, LAYOUT_BACKUP_DIR, backup);
	in_store(l, "restored", to);
	assert_int_equal(mkdir(to, 0700), 0);
	if (kv_backup_restore(backup, back, to, &info) == 0) {
		assert_int_equal(kv_open_readonly(to, &kv), 0);
		assert_int_equal(kv_iter_new(kv, "F", 1, NULL, 0, &it), 0);
		while (kv_iter_next(it, &key, &value) == 1)
			files++;
		kv_iter_free(it);
		kv_close(kv);
	} else {
		files = -1;
	}
	remove_tree(to);
	return files;
}

static void a_backup_has_what_was_durable_and_two_are_kept(void **state)
{
	struct store_options o = live_options();
	struct live l;
	char name[16];

	(void)state;
	o.backup_interval_s = 3600;
	l = live_new(&o);
	for (unsigned i = 1; i <= 3; i++) {
		(void)snprintf(name, sizeof(name), "f%u", i);
		live_write(&l, name, name, sizeof(name));
		live_sync_all(&l);
		backup_wanted(l.st);
		time_passes(o.backup_interval_s * SECOND_NS);
		wait_made(&l, i);
	}
	assert_int_equal(files_in_backup(&l, 0), 3);
	assert_int_equal(files_in_backup(&l, 1), 2);
	assert_int_equal(files_in_backup(&l, 2), -1);
	live_free(&l);
}

static void a_backup_is_made_when_wanted_and_not_before_it_is_due(void **state)
{
	struct store_options o = live_options();
	struct live l;

	(void)state;
	o.backup_interval_s = 3600;
	l = live_new(&o);
	live_write(&l, "f", "x", 1);
	live_sync_all(&l);
	assert_int_equal(made(&l), 0); /* nothing was published */
	backup_wanted(l.st);
	wait_made(&l, 1);
	backup_wanted(l.st);
	live_reopen(&l); /* the next mount knows when the last one was made */
	backup_wanted(l.st);
	live_write(&l, "g", "x", 1);
	live_sync_all(&l);
	live_close(&l);
	assert_int_equal(files_in_backup(&l, 0), 1);
	assert_int_equal(files_in_backup(&l, 1), -1);
	live_open(&l);
	live_free(&l);
}

static void without_an_interval_there_is_none(void **state)
{
	struct live l = live_new(NULL);
	char path[4096];

	(void)state;
	backup_wanted(l.st);
	in_store(&l, LAYOUT_BACKUP_DIR, path);
	live_reopen(&l);
	assert_int_equal(access(path, F_OK), -1);
	live_free(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			a_backup_has_what_was_durable_and_two_are_kept),
		cmocka_unit_test(
			a_backup_is_made_when_wanted_and_not_before_it_is_due),
		cmocka_unit_test(without_an_interval_there_is_none),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
