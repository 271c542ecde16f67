/*
 * What no chunk of a native file covers is zeros, for its image is read in its
 * place: a scrub and verify=open look there, and write zeros where there are
 * none, but for what may be somebody else's bytes.
 */
#include "tests/unit/mend_fixture.h"

/* In a block with a chunk's end, in one of its own, and at its other end. */
static const uint64_t in_hole[] = { HOLE, HOLE + 40000, HOLE_END - 1 };

static void a_scrub_mends_zeros_that_are_none(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 6; i++) {
		struct two t = two_of(2, HOLE_END);

		if (i < 3)
			flip(t.image[0], in_hole[i]);
		else
			make_bad(t.image[0], in_hole[i - 3]);
		assert_int_equal(scrub(&t, false), 1);
		assert_false(is_whole(&t, 0));
		assert_int_equal(scrub(&t, true), 0);
		assert_true(t.mended > 0);
		assert_int_equal(disk.ino, 0);
		assert_true(is_whole(&t, 0) && is_whole(&t, 1));
		assert_int_equal(scrub(&t, true), 0);
		assert_int_equal(t.mended, 0);
		two_free(&t);
	}
}

static void zeros_to_the_end_of_a_file_are_looked_at(void **state)
{
	(void)state;
	for (unsigned bad = 0; bad < 2; bad++) {
		struct two t = two_of(1, FILE_BYTES);

		if (bad)
			make_bad(t.image[0], FILE_BYTES - 1);
		else
			flip(t.image[0], FILE_BYTES - 1);
		assert_int_equal(scrub(&t, true), 0);
		assert_int_equal(t.mended, 1);
		assert_int_equal(disk.ino, 0);
		assert_true(is_whole(&t, 0));
		two_free(&t);
	}
}

/* A chunk that is mended does not hide what is wrong beside it. */
static void a_sector_with_a_chunk_and_zeros_is_mended_as_a_whole(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		struct two t = two_of(2, HOLE_END);

		make_bad(t.image[0], HOLE); /* rubbish, ... */
		disk.ino = 0; /* ... which can be read */
		t.l.options.verify = VERIFY_OPEN;
		if (i == 0) {
			assert_int_equal(scrub(&t, true), 0);
		} else {
			live_open(&t.l);
			assert_file(&t.l, "a", t.data, FILE_BYTES);
			live_close(&t.l);
		}
		assert_true(is_whole(&t, 0));
		two_free(&t);
	}
}

static void verify_open_mends_zeros_that_are_none(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 3; i++) {
		struct two t = two_of(1, HOLE_END);

		flip(t.image[0], in_hole[i]);
		t.l.options.verify = VERIFY_OPEN;
		live_open(&t.l);
		disk.watched = ino_of_path(t.image[0]);
		disk.deciding = reclaim_deciding(t.l.st->files.reclaim);
		assert_file(&t.l, "a", t.data, FILE_BYTES);
		assert_true(disk.writes + disk.given_up > 0);
		assert_true(is_whole(&t, 0));
		live_close(&t.l);
		two_free(&t);
	}
}

/* It may be written, or somebody may read it yet. */
static void what_may_be_others_bytes_is_not_taken_for_zeros(void **state)
{
	struct two t = two_of(1, HOLE_END);
	struct stage_slot slot = { .kind = STAGE_DISK };
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	struct mend m;

	(void)state;
	live_open(&t.l);
	slot.number = image_of(&t.l, "a");
	m = mend_of(&t.l);
	u64_save(b, key_punch(slot.number, HOLE), HOLE_END - HOLE);
	assert_int_equal(kv_write(m.kv, b), 0);
	flip(t.image[0], in_hole[1]);
	assert_int_equal(mend_zeros(&m, slot.number, HOLE, HOLE_END, true), 0);
	assert_false(is_whole(&t, 0));
	live_close(&t.l);
	live_open(&t.l); /* which gives it back */
	live_settle(&t.l);
	live_close(&t.l);
	flip(t.image[0], in_hole[1]);
	t.staged = (struct stage_table){ .slots = &slot, .count = 1 };
	t.only_damage = true;
	assert_int_equal(scrub(&t, true), 0);
	assert_false(is_whole(&t, 0));
	two_free(&t);
}

/* What a file that shares parts has elsewhere is nothing in its own image. */
static void beside_the_chunks_of_a_file_that_shares_is_nothing(void **state)
{
	struct two t = two_of(1, 0);
	char path[4352];
	struct content c;

	(void)state;
	live_open(&t.l);
	fill(t.data, MIB / 2, 7);
	live_write(&t.l, "c", t.data, FILE_BYTES);
	live_sync_all(&t.l);
	assert_false(live_native(&t.l, "c"));
	image_path(&t.l, "c", path);
	c = live_content(&t.l, "c");
	assert_true(c.extent_count == 2);
	live_close(&t.l);
	assert_int_equal(truncate(path, FILE_BYTES), 0);
	flip(path, FILE_BYTES - 100);
	t.only_damage = true;
	(void)scrub(&t, true);
	assert_int_equal(t.mended + t.damaged, 0);
	content_release(&c);
	two_free(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_scrub_mends_zeros_that_are_none),
		cmocka_unit_test(zeros_to_the_end_of_a_file_are_looked_at),
		cmocka_unit_test(
			a_sector_with_a_chunk_and_zeros_is_mended_as_a_whole),
		cmocka_unit_test(verify_open_mends_zeros_that_are_none),
		cmocka_unit_test(
			what_may_be_others_bytes_is_not_taken_for_zeros),
		cmocka_unit_test(
			beside_the_chunks_of_a_file_that_shares_is_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
