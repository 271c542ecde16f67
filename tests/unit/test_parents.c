/*
 * A store whose place another user could give to something else is refused,
 * with the directory's name; what a sticky directory protects is not.
 */
#include "store/base/scope.h"
#include "store/db/parents.h"
#include "tests/unit/live_store.h"

#define OTHER 1234 /* a user without a name */

struct place {
	char *top, *folder, *store;
};

/* top/folder/store; the last is not made. */
static struct place place_new(void)
{
	struct place p = { .top = make_tmp() };

	assert_true(asprintf(&p.folder, "%s/folder", p.top) > 0);
	assert_true(asprintf(&p.store, "%s/store", p.folder) > 0);
	assert_int_equal(mkdir(p.folder, 0755), 0);
	return p;
}

static void place_free(struct place *p)
{
	remove_tree(p->top);
	free(p->store);
	free(p->folder);
	free(p->top);
}

/* What it says of a store that is there, and of one that is not, is one. */
static int check(const struct place *p, const char *path, const char *named)
{
	char why[1024] = "";
	char *real = NULL;
	int rc = parents_check(path, &real, why, sizeof(why));

	if (rc == 0) {
		assert_non_null(real);
		assert_string_equal(real, p->store);
	} else {
		assert_null(real);
		assert_non_null(strstr(why, named));
	}
	free(real);
	return rc;
}

static void a_folder_that_others_write_to_is_refused(void **state)
{
	struct place p = place_new();

	(void)state;
	for (unsigned made = 0; made < 2; made++) {
		assert_int_equal(check(&p, p.store, ""), 0);
		assert_int_equal(chmod(p.folder, 0775), 0);
		assert_int_equal(check(&p, p.store, p.folder), -EPERM);
		assert_int_equal(chmod(p.folder, 0757), 0);
		assert_int_equal(check(&p, p.store, p.folder), -EPERM);
		assert_int_equal(chmod(p.folder, 01777), 0);
		assert_int_equal(check(&p, p.store, ""), 0);
		assert_int_equal(chmod(p.folder, 0755), 0);
		(void)mkdir(p.store, 0700);
	}
	place_free(&p);
}

static void each_folder_above_it_is_looked_at(void **state)
{
	struct place p = place_new();

	(void)state;
	assert_int_equal(chmod(p.top, 0777), 0);
	assert_int_equal(check(&p, p.store, p.top), -EPERM);
	place_free(&p);
}

static void a_folder_of_another_user_is_refused(void **state)
{
	struct place p = place_new();

	(void)state;
	if (geteuid() != 0)
		skip();
	assert_int_equal(chown(p.folder, OTHER, OTHER), 0);
	assert_int_equal(check(&p, p.store, p.folder), -EPERM);
	assert_int_equal(mkdir(p.store, 0700), 0);
	assert_int_equal(check(&p, p.store, p.folder), -EPERM);
	assert_int_equal(chmod(p.folder, 01755), 0); /* sticky: yet his */
	assert_int_equal(check(&p, p.store, p.folder), -EPERM);
	place_free(&p);
}

/* A link is followed once: where it lies does not matter, but where it ends. */
static void a_path_through_a_link_is_the_place_behind_it(void **state)
{
	struct place p = place_new(), other = place_new();
	char *link = NULL;

	(void)state;
	assert_int_equal(mkdir(p.store, 0700), 0);
	assert_int_equal(chmod(other.folder, 0777), 0);
	assert_int_equal(symlink(p.folder, other.store), 0);
	assert_true(asprintf(&link, "%s/store", other.store) > 0);
	assert_int_equal(check(&p, link, ""), 0);
	assert_int_equal(chmod(p.folder, 0777), 0);
	assert_int_equal(check(&p, link, p.folder), -EPERM);
	free(link);
	place_free(&other);
	place_free(&p);
}

static void a_store_in_such_a_folder_is_not_opened(void **state)
{
	struct place p = place_new();
	struct store_options options = { 0 };
	struct store *st = NULL;
	char why[1024] = "";

	(void)state;
	assert_int_equal(chmod(p.folder, 0777), 0);
	assert_int_equal(store_open(p.store, &options, &st, why, sizeof(why)),
			 -EPERM);
	assert_non_null(strstr(why, p.folder));
	assert_int_equal(access(p.store, F_OK), -1); /* and nothing was made */
	place_free(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_folder_that_others_write_to_is_refused),
		cmocka_unit_test(each_folder_above_it_is_looked_at),
		cmocka_unit_test(a_folder_of_another_user_is_refused),
		cmocka_unit_test(a_path_through_a_link_is_the_place_behind_it),
		cmocka_unit_test(a_store_in_such_a_folder_is_not_opened),
	};

	return cmocka_run_group_tests_name("parents", tests, NULL, NULL);
}
