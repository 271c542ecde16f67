/*
 * What is opened as a store, what is refused, and with which words. Who has it
 * open is test_layout_lock.c's.
 */
#include "store/base/scope.h"
#include "store/db/identity.h"
#include "tests/unit/layout_fixture.h"

static bool has_name(const char *dir, const char *name)
{
	int fd = open(dir, O_RDONLY | O_DIRECTORY);
	bool has = faccessat(fd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;

	close(fd);
	return has;
}

static void an_empty_directory_becomes_a_store_and_stays_it(void **state)
{
	static const char *const names[] = { "format", "lock", "db", "images",
					     "stage" };
	char *dir = make_tmp();
	struct opened first = open_layout(dir, true), again;

	(void)state;
	close_layout(&first);
	assert_int_equal(strlen(first.uuid), LAYOUT_UUID_BYTES - 1);
	for (size_t n = 0; n < sizeof(names) / sizeof(*names); n++)
		assert_true(has_name(dir, names[n]));
	for (int create = 0; create < 2; create++) {
		again = open_layout(dir, create);
		close_layout(&again);
		assert_string_equal(again.uuid, first.uuid);
	}
	remove_tree(dir);
	free(dir);
}

static void a_directory_that_is_not_there_is_made(void **state)
{
	char *dir = make_tmp();
	struct opened o;
	struct stat st;

	(void)state;
	assert_int_equal(rmdir(dir), 0);
	o = open_layout(dir, false);
	assert_int_equal(o.rc, -ENOENT);
	assert_int_equal(access(dir, F_OK), -1);
	o = open_layout(dir, true);
	close_layout(&o);
	assert_int_equal(stat(dir, &st), 0);
	assert_int_equal(st.st_mode & 077, 0); /* nobody else looks in */
	remove_tree(dir);
	free(dir);
}

static void only_the_last_directory_is_made(void **state)
{
	char *dir = make_tmp();
	char *below = NULL;
	struct opened o;

	(void)state;
	assert_true(asprintf(&below, "%s/a/b", dir) > 0);
	o = open_layout(below, true);
	assert_int_equal(o.rc, -ENOENT);
	assert_non_null(strstr(o.why, "make that one first"));
	assert_false(has_name(dir, "a"));
	free(below);
	remove_tree(dir);
	free(dir);
}

static void two_stores_have_different_ids(void **state)
{
	char *a = make_tmp(), *b = make_tmp();
	struct opened oa = open_layout(a, true), ob = open_layout(b, true);

	(void)state;
	assert_string_not_equal(oa.uuid, ob.uuid);
	close_layout(&oa);
	close_layout(&ob);
	remove_tree(a);
	remove_tree(b);
	free(a);
	free(b);
}

static void somebodys_data_is_refused_and_left_as_it_is(void **state)
{
	static const struct {
		const char *name, *text;
	} foreign[] = {
		{ "thesis.tex", "" },
		{ ".hidden", "x" },
		{ "lock", "not a lock of ours\n" },
		{ "lock", "12 ckptfs\n13 ckptfs\n" },
		{ "db", "" },
		{ "images", "" },
	};

	(void)state;
	for (size_t n = 0; n < sizeof(foreign) / sizeof(*foreign); n++) {
		char *dir = make_tmp();
		struct opened o;

		put_text(dir, foreign[n].name, foreign[n].text);
		o = open_layout(dir, true);
		assert_int_equal(o.rc, -EINVAL);
		assert_non_null(strstr(o.why, "give an empty directory"));
		assert_false(has_name(dir, "format"));
		assert_int_equal(has_name(dir, "lock"),
				 strcmp(foreign[n].name, "lock") == 0);
		remove_tree(dir);
		free(dir);
	}
}

static void what_an_interrupted_start_left_is_no_data(void **state)
{
	char *dir = make_tmp();
	char *lost = NULL;
	struct opened o;

	(void)state;
	assert_true(asprintf(&lost, "%s/lost+found", dir) > 0);
	assert_int_equal(mkdir(lost, 0700), 0);
	put_text(dir, "lock", "4711 ckpt"); /* the end of it is not there */
	put_text(dir, ".ckptfs-format.tmp", "ckptfs sto");
	o = open_layout(dir, true);
	close_layout(&o);
	assert_false(has_name(dir, ".ckptfs-format.tmp"));
	free(lost);
	remove_tree(dir);
	free(dir);
}

static void fsck_makes_nothing(void **state)
{
	char *dir = make_tmp();
	struct opened o = open_layout(dir, false);

	(void)state;
	assert_int_equal(o.rc, -EINVAL);
	assert_non_null(strstr(o.why, "not a ckptfs store"));
	assert_int_equal(rmdir(dir), 0); /* still empty */
	free(dir);
}

static void a_newer_format_is_refused(void **state)
{
	char *dir = make_tmp();

	(void)state;
	put_text(dir, "format",
		 "ckptfs store, format 7\nuuid " GOOD_UUID "\nand more\n");
	for (int create = 0; create < 2; create++) {
		struct opened o = open_layout(dir, create);

		assert_int_equal(o.rc, -EPROTO);
		assert_non_null(strstr(o.why, "format 7"));
		assert_non_null(strstr(o.why, "up to 3"));
		assert_non_null(strstr(o.why, "upgrade ckptfs"));
		assert_false(has_name(dir, "lock"));
	}
	remove_tree(dir);
	free(dir);
}

static void format_is(const char *dir, unsigned want)
{
	SCOPED(scope_free) char *path = NULL;
	unsigned got = 0;
	FILE *f;

	assert_true(asprintf(&path, "%s/format", dir) > 0);
	f = fopen(path, "r");
	assert_non_null(f);
	assert_int_equal(fscanf(f, "ckptfs store, format %u", &got), 1);
	(void)fclose(f);
	assert_int_equal(got, want);
}

static void a_damaged_format_file_is_refused(void **state)
{
	static const char *const texts[] = {
		"",
		"\n",
		"ckptfs store, format 1",
		"ckptfs store, format 1\n",
		"ckptfs store, format 1\nuuid 0123\n",
		"ckptfs store, format 1\nuuid " GOOD_UUID,
		"ckptfs store, format 1\nuuid " GOOD_UUID "\nmore\n",
		"ckptfs store, format 0\nuuid " GOOD_UUID "\n",
		"ckptfs store, format -1\nuuid " GOOD_UUID "\n",
		"ckptfs store, format 01\nuuid " GOOD_UUID "\n",
		"ckptfs store,  format 1\nuuid " GOOD_UUID "\n",
		"another store, format 1\nuuid " GOOD_UUID "\n",
		"ckptfs store, format 2\nuuid " GOOD_UUID "\n",
		"ckptfs store, format 2\nuuid " GOOD_UUID
		"\ncheck 0000000000000000\n",
	};

	(void)state;
	for (size_t n = 0; n < sizeof(texts) / sizeof(*texts); n++) {
		char *dir = make_tmp();
		struct opened o;

		put_text(dir, "format", texts[n]);
		o = open_layout(dir, true);
		/* "-1" is a very large unsigned number. */
		assert_int_equal(o.rc,
				 strstr(texts[n], "-1\n") ? -EPROTO : -EINVAL);
		remove_tree(dir);
		free(dir);
	}
}

static void a_format_that_is_no_file_is_refused(void **state)
{
	char *dir = make_tmp();
	char *format = NULL;
	struct opened o;

	(void)state;
	assert_true(asprintf(&format, "%s/format", dir) > 0);
	assert_int_equal(mkdir(format, 0700), 0);
	o = open_layout(dir, true);
	assert_int_equal(o.rc, -EISDIR);
	assert_int_equal(rmdir(format), 0);
	assert_int_equal(symlink("/dev/zero", format), 0);
	o = open_layout(dir, true);
	assert_int_equal(o.rc, -ELOOP);
	free(format);
	remove_tree(dir);
	free(dir);
}

static void a_file_is_refused(void **state)
{
	char *dir = make_tmp();
	char *file = NULL;
	struct opened o;

	(void)state;
	assert_true(asprintf(&file, "%s/file", dir) > 0);
	put_text(dir, "file", "x");
	o = open_layout(file, true);
	assert_int_equal(o.rc, -ENOTDIR);
	free(file);
	remove_tree(dir);
	free(dir);
}

/* Whoever finds `format` believes that there was a database. */
static void the_format_file_is_the_last_to_appear(void **state)
{
	char *dir = make_tmp();
	struct opened o = { .dirfd = -7, .lockfd = -7 };
	char first[LAYOUT_UUID_BYTES];

	(void)state;
	for (int again = 0; again < 2; again++) { /* and interrupted here */
		assert_int_equal(layout_open(dir, LAYOUT_ANY, &o.dirfd,
					     &o.lockfd, o.uuid, o.why,
					     sizeof(o.why)),
				 1);
		assert_false(has_name(dir, "format"));
		assert_true(has_name(dir, "db"));
		put_text(dir, "db/CURRENT", "half a database");
		put_text(dir, "mark", "and its mark");
		close(o.dirfd);
		close(o.lockfd);
	}
	o = open_layout(dir, true);
	close_layout(&o);
	memcpy(first, o.uuid, sizeof(first));
	assert_true(has_name(dir, "format"));
	assert_false(has_name(dir, "db/CURRENT"));
	assert_false(has_name(dir, "mark"));
	o = open_layout(dir, false);
	close_layout(&o);
	assert_string_equal(o.uuid, first);
	remove_tree(dir);
	free(dir);
}

static void what_holds_an_image_is_not_half_made(void **state)
{
	char *dir = make_tmp();
	struct opened o = { .dirfd = -7, .lockfd = -7 };

	(void)state;
	assert_int_equal(layout_open(dir, LAYOUT_ANY, &o.dirfd, &o.lockfd,
				     o.uuid, o.why, sizeof(o.why)),
			 1);
	assert_int_equal(mkdirat(o.dirfd, "images/01", 0700), 0);
	put_text(dir, "images/01/0000000000000001", "somebody's bytes");
	close(o.dirfd);
	close(o.lockfd);
	o = open_layout(dir, true);
	assert_int_equal(o.rc, -EINVAL);
	assert_true(has_name(dir, "images/01/0000000000000001"));
	remove_tree(dir);
	free(dir);
}

static void a_store_without_its_format_is_named_and_left(void **state)
{
	char *dir = make_tmp();
	struct opened o = open_layout(dir, true);

	(void)state;
	close_layout(&o);
	o.dirfd = open(dir, O_RDONLY | O_DIRECTORY);
	assert_int_equal(unlinkat(o.dirfd, "format", 0), 0);
	close(o.dirfd);
	for (int create = 0; create < 2; create++) {
		o = open_layout(dir, create);
		assert_int_equal(o.rc, -EUCLEAN);
		assert_non_null(strstr(o.why, "ckptctl rebuild"));
		assert_false(has_name(dir, "format"));
	}
	remove_tree(dir);
	free(dir);
}

static void a_store_without_its_images_is_named_and_left(void **state)
{
	char *dir = make_tmp();
	char *images = NULL;
	struct opened o = open_layout(dir, true);

	(void)state;
	close_layout(&o);
	assert_true(asprintf(&images, "%s/images", dir) > 0);
	assert_int_equal(rmdir(images), 0);
	o = open_layout(dir, false); /* a check says it in its own words */
	close_layout(&o);
	o = open_layout(dir, true);
	assert_int_equal(o.rc, -EUCLEAN);
	assert_non_null(strstr(o.why, "'images' is missing"));
	assert_false(has_name(dir, "images"));
	free(images);
	remove_tree(dir);
	free(dir);
}

static void an_old_store_becomes_a_new_one(unsigned number, const char *text)
{
	char *dir = make_tmp();
	struct opened o = open_layout(dir, true);

	close_layout(&o);
	put_text(dir, "format", text);
	o = open_layout(dir, false);
	close_layout(&o);
	format_is(dir, number); /* looking does not change it */
	o = open_layout(dir, true);
	assert_int_equal(o.rc, 0);
	assert_string_equal(o.uuid, GOOD_UUID);
	assert_true(layout_is_old(o.dirfd));
	assert_int_equal(layout_finish(o.dirfd, o.uuid), 0);
	assert_false(layout_is_old(o.dirfd));
	format_is(dir, STORE_FORMAT);
	close_layout(&o);
	o = open_layout(dir, false);
	assert_string_equal(o.uuid, GOOD_UUID);
	close_layout(&o);
	remove_tree(dir);
	free(dir);
}

static void an_old_store_is_opened_and_becomes_a_new_one(void **state)
{
	char text[256] = "ckptfs store, format 2\nuuid " GOOD_UUID "\n";

	(void)state;
	an_old_store_becomes_a_new_one(1, "ckptfs store, format 1\n"
					  "uuid " GOOD_UUID "\n");
	(void)identity_add_check(text, strlen(text), sizeof(text));
	an_old_store_becomes_a_new_one(2, text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			an_empty_directory_becomes_a_store_and_stays_it),
		cmocka_unit_test(a_directory_that_is_not_there_is_made),
		cmocka_unit_test(only_the_last_directory_is_made),
		cmocka_unit_test(two_stores_have_different_ids),
		cmocka_unit_test(somebodys_data_is_refused_and_left_as_it_is),
		cmocka_unit_test(what_an_interrupted_start_left_is_no_data),
		cmocka_unit_test(fsck_makes_nothing),
		cmocka_unit_test(a_newer_format_is_refused),
		cmocka_unit_test(a_damaged_format_file_is_refused),
		cmocka_unit_test(a_format_that_is_no_file_is_refused),
		cmocka_unit_test(a_file_is_refused),
		cmocka_unit_test(the_format_file_is_the_last_to_appear),
		cmocka_unit_test(what_holds_an_image_is_not_half_made),
		cmocka_unit_test(a_store_without_its_format_is_named_and_left),
		cmocka_unit_test(a_store_without_its_images_is_named_and_left),
		cmocka_unit_test(an_old_store_is_opened_and_becomes_a_new_one),
	};

	return cmocka_run_group_tests_name("layout", tests, NULL, NULL);
}
