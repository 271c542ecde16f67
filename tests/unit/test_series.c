/* Which files are of one series, and what is learnt from its last one. */
#include "store/names/series.h"
#include "tests/unit/live_store.h"

#define EXACT 0
#define GENERAL 1

static bool alike(const char *a, const char *b, int which)
{
	uint64_t of_a[2], of_b[2];

	series_keys(a, of_a);
	series_keys(b, of_b);
	return of_a[which] == of_b[which];
}

static void step_directories_are_one_series(void **state)
{
	(void)state;
	assert_true(alike("/run/step_100/rank_3.pt", "/run/step_200/rank_3.pt",
			  EXACT));
	assert_true(alike("/run/step_9/rank_3.pt", "/run/step_10/rank_3.pt",
			  EXACT));
	assert_true(alike("/1/2/a.pt", "/30/40/a.pt", EXACT));
}

static void another_rank_is_another_series(void **state)
{
	(void)state;
	assert_false(alike("/run/step_100/rank_3.pt", "/run/step_100/rank_4.pt",
			   EXACT));
	assert_false(alike("/run/step_100/__3_0.distcp",
			   "/run/step_200/__3_1.distcp", EXACT));
}

static void a_number_in_the_name_is_of_the_general_series(void **state)
{
	(void)state;
	assert_false(alike("/run/ckpt_100.pt", "/run/ckpt_200.pt", EXACT));
	assert_true(alike("/run/ckpt_100.pt", "/run/ckpt_200.pt", GENERAL));
	assert_true(alike("/run/ckpt_99.pt", "/run/ckpt_100.pt", GENERAL));
	assert_true(alike("/run/step_1/rank_3.pt", "/run/step_2/rank_4.pt",
			  GENERAL));
}

static void what_is_not_a_number_makes_another_series(void **state)
{
	(void)state;
	for (int which = EXACT; which <= GENERAL; which++) {
		assert_false(alike("/a/step_1/f.pt", "/b/step_1/f.pt", which));
		assert_false(alike("/a/step_1/f.pt", "/a/step_1/g.pt", which));
		assert_false(alike("/a/step_1/f.pt", "/a/step_/f.pt", which));
		assert_false(alike("/a/f.pt", "/a/b/f.pt", which));
		assert_false(alike("/1a/f.pt", "/1/a/f.pt", which));
	}
}

static void an_exact_key_is_never_a_general_one(void **state)
{
	static const char *const paths[] = { "/a", "/1", "/a/1/b.2", "/x/y" };
	uint64_t keys[2];

	(void)state;
	for (size_t i = 0; i < sizeof(paths) / sizeof(*paths); i++) {
		series_keys(paths[i], keys);
		assert_true(keys[EXACT] & 1);
		assert_false(keys[GENERAL] & 1);
	}
}

static uint64_t size_of(struct live *l, const char *path)
{
	uint64_t keys[2];

	series_keys(path, keys);
	return series_size(l->st->kv, keys);
}

static void the_last_file_tells_the_size_of_the_next(void **state)
{
	struct live l = live_new(NULL);
	uint8_t *data = filled(200000, 1);

	(void)state;
	live_mkdir(&l, "step_1");
	live_mkdir(&l, "step_2");
	assert_int_equal(size_of(&l, "/step_2/rank_0.pt"), 0);
	live_write(&l, "step_1/rank_0.pt", data, 100000);
	live_write(&l, "step_1/rank_1.pt", data, 5000);
	live_sync_all(&l);
	assert_int_equal(size_of(&l, "/step_2/rank_0.pt"), 100000);
	assert_int_equal(size_of(&l, "/step_2/rank_1.pt"), 5000);
	/* Not seen before: what the last one of any rank had. */
	assert_int_equal(size_of(&l, "/step_2/rank_7.pt"), 5000);
	assert_int_equal(size_of(&l, "/step_2/other.pt"), 0);
	live_write(&l, "step_2/rank_0.pt", data, 200000);
	live_sync_all(&l);
	live_reopen(&l);
	assert_int_equal(size_of(&l, "/step_3/rank_0.pt"), 200000);
	live_free(&l);
	free(data);
}

static void a_renamed_file_counts_under_the_name_it_was_written_by(void **state)
{
	struct live l = live_new(NULL);
	uint8_t *data = filled(60000, 1);

	(void)state;
	live_write(&l, "f.tmp", data, 60000);
	assert_int_equal(live_rename(&l, "f.tmp", "f", 0), 0);
	live_sync_all(&l);
	/* The next one is created as f.tmp, too. */
	assert_int_equal(size_of(&l, "/f.tmp"), 60000);
	live_free(&l);
	free(data);
}

static void random_names_of_a_directory_are_one_series(void **state)
{
	uint64_t keys[2];

	(void)state;
	assert_true(alike("/run/step_1/.tmpAbC123", "/run/step_2/.tmpzzzzzz",
			  GENERAL));
	assert_true(alike("/run/tmpk3j_x9ab", "/run/tmpq8w7e6r5", GENERAL));
	assert_false(alike("/a/.tmpAbC123", "/b/.tmpAbC123", GENERAL));
	series_keys("/run/.tmpAbC123", keys); /* it will not come again */
	assert_int_equal(keys[EXACT], 0);
	assert_true(
		alike("/run/step_1/.f.bin.Qw12er", "/run/step_2/f.bin", EXACT));
	/* These are names as any other. */
	assert_false(alike("/run/tmp", "/run/.tmp", GENERAL));
	assert_false(alike("/run/.tmp-a-b-c", "/run/.tmp-x-y-z", GENERAL));
	assert_false(alike("/run/.f.bin", "/run/f", EXACT));
	series_keys("/run/.tmp_thumbnails_x", keys);
	assert_int_not_equal(keys[EXACT], 0);
}

static void a_size_that_is_set_is_known_before_it_is_durable(void **state)
{
	struct live l = live_kind(0);
	struct handle h;

	(void)state;
	h = handle_open(&l, ".tmpAbC123", O_RDWR | O_CREAT);
	assert_int_equal(size_of(&l, "/.tmpXXXXXX"), 0);
	assert_int_equal(file_truncate(&l.st->files, h.in, 3 << 20), 0);
	assert_int_equal(size_of(&l, "/.tmpXXXXXX"), 3 << 20);
	handle_close(&h);
	live_free(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(step_directories_are_one_series),
		cmocka_unit_test(another_rank_is_another_series),
		cmocka_unit_test(a_number_in_the_name_is_of_the_general_series),
		cmocka_unit_test(what_is_not_a_number_makes_another_series),
		cmocka_unit_test(an_exact_key_is_never_a_general_one),
		cmocka_unit_test(the_last_file_tells_the_size_of_the_next),
		cmocka_unit_test(
			a_renamed_file_counts_under_the_name_it_was_written_by),
		cmocka_unit_test(random_names_of_a_directory_are_one_series),
		cmocka_unit_test(
			a_size_that_is_set_is_known_before_it_is_durable),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
