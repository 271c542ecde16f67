/*
 * Who is to change a file and was told ESTALE: what tells a call by name, which
 * looks the same inode up, from any other, which comes again without.
 */
#include "fuse/again.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { TID = 10, OTHER = 11 };
enum { INO = 100, ELSE = 101 };

static enum file_way way_of(struct again *a, pid_t tid, uint64_t ino)
{
	int rc;
	enum file_way way = again_way(a, tid, ino, &rc);

	assert_int_equal(rc, 0);
	return way;
}

static void who_comes_again_without_a_look_up_came_by_no_name(void **state)
{
	struct again *a = again_new();

	(void)state;
	assert_int_equal(way_of(a, TID, INO), FILE_BY_ANY);
	again_told(a, TID, INO, true);
	assert_true(again_is_told(a, TID));
	assert_int_equal(way_of(a, OTHER, INO), FILE_BY_ANY);
	assert_int_equal(way_of(a, TID, INO), FILE_BY_HANDLE);
	assert_int_equal(way_of(a, TID, INO), FILE_BY_ANY); /* a new call */
	assert_false(again_is_told(a, TID));
	again_free(a);
}

static void who_looks_it_up_came_by_its_name(void **state)
{
	struct again *a = again_new();
	bool empties;

	(void)state;
	for (int i = 0; i < 2; i++) {
		again_told(a, TID, INO, i == 1);
		assert_false(again_looks_up(a, OTHER, INO, &empties));
		assert_true(again_looks_up(a, TID, INO, &empties));
		assert_int_equal(empties, i == 1);
		assert_false(again_looks_up(a, TID, INO, &empties));
		assert_int_equal(way_of(a, TID, INO), FILE_BY_ANY);
	}
	again_free(a);
}

static void a_name_that_could_not_move_fails_the_call(void **state)
{
	struct again *a = again_new();
	bool empties;
	int rc;

	(void)state;
	again_told(a, TID, INO, true);
	assert_true(again_looks_up(a, TID, INO, &empties));
	again_failed(a, TID, INO, -ENOSPC);
	/* Looked up once more: nothing is tried again. */
	assert_false(again_looks_up(a, TID, INO, &empties));
	assert_int_equal(again_way(a, TID, INO, &rc), FILE_BY_HANDLE);
	assert_int_equal(rc, -ENOSPC);
	assert_int_equal(way_of(a, TID, INO), FILE_BY_ANY);
	again_free(a);
}

/* A note that nobody came for is of no use to what the thread does next. */
static void a_note_is_of_one_file_and_of_one_call(void **state)
{
	struct again *a = again_new();
	bool empties;

	(void)state;
	again_told(a, TID, INO, true);
	assert_false(again_looks_up(a, TID, ELSE, &empties));
	assert_int_equal(way_of(a, TID, INO), FILE_BY_ANY);
	again_told(a, TID, INO, true);
	assert_false(again_looks_up(a, TID, 0, &empties)); /* it failed */
	assert_int_equal(way_of(a, TID, INO), FILE_BY_ANY);
	again_told(a, TID, INO, true);
	assert_int_equal(way_of(a, TID, ELSE), FILE_BY_ANY);
	assert_int_equal(way_of(a, TID, INO), FILE_BY_ANY);
	again_told(a, TID, INO, true);
	again_told(a, TID, ELSE, true);
	assert_int_equal(way_of(a, TID, ELSE), FILE_BY_HANDLE);
	assert_int_equal(way_of(a, TID, INO), FILE_BY_ANY);
	again_free(a);
}

/* Its name has moved for another one, who has come and gone. */
static void who_is_led_elsewhere_is_carried_out_there(void **state)
{
	struct again *a = again_new();
	bool empties;

	(void)state;
	again_told(a, TID, INO, true);
	assert_false(again_looks_up(a, TID, ELSE, &empties));
	assert_int_equal(way_of(a, TID, ELSE), FILE_BY_HANDLE);
	assert_int_equal(way_of(a, TID, ELSE), FILE_BY_ANY);
	again_free(a);
}

static void the_oldest_notes_go_and_cost_a_failed_call(void **state)
{
	struct again *a = again_new();

	(void)state;
	for (int round = 0; round < 3; round++) {
		for (pid_t tid = 1; tid <= AGAIN_MAX + 1; tid++)
			again_told(a, tid, INO, true);
		assert_int_equal(way_of(a, AGAIN_MAX + 1, INO), FILE_BY_HANDLE);
		for (pid_t tid = 1; tid <= AGAIN_MAX; tid++)
			(void)way_of(a, tid, INO);
		for (pid_t tid = 1; tid <= AGAIN_MAX + 1; tid++)
			assert_false(again_is_told(a, tid));
	}
	again_free(a);
}

static void without_a_thread_each_call_is_one_by_name(void **state)
{
	struct again *a = again_new();
	bool empties;

	(void)state;
	again_told(a, 0, INO, true);
	assert_int_equal(way_of(a, 0, INO), FILE_BY_NAME);
	assert_false(again_looks_up(a, 0, INO, &empties));
	again_free(a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			who_comes_again_without_a_look_up_came_by_no_name),
		cmocka_unit_test(who_looks_it_up_came_by_its_name),
		cmocka_unit_test(a_name_that_could_not_move_fails_the_call),
		cmocka_unit_test(a_note_is_of_one_file_and_of_one_call),
		cmocka_unit_test(who_is_led_elsewhere_is_carried_out_there),
		cmocka_unit_test(the_oldest_notes_go_and_cost_a_failed_call),
		cmocka_unit_test(without_a_thread_each_call_is_one_by_name),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
