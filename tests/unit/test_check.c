/*
 * What a check says of a sound store, of damaged bytes and images, and of what
 * a killed daemon leaves behind. test_check_invariants.c breaks one invariant
 * after the other.
 */
#include "tests/unit/check_fixture.h"

static void a_sound_store_passes_without_a_word(void **state)
{
	for (unsigned threads = 0; threads < 4; threads++) {
		struct found found = { .f = fixture_new() };

		(void)state;
		assert_int_equal(run_check(&found, true, threads), 0);
		assert_int_equal(found.problems, 0);
		assert_int_equal(found.notes, 0);
		assert_int_equal(found.result.problems, 0);
		assert_int_equal(found.result.inodes, 10);
		assert_int_equal(found.result.files, 5);
		assert_int_equal(found.result.directories, 3);
		assert_int_equal(found.result.chunks, 3);
		assert_int_equal(found.result.images, 2);
		assert_int_equal(found.result.scrubbed_bytes,
				 CHUNK_A + CHUNK_B + CHUNK_C);
		assert_int_equal(found.progress_done,
				 found.result.scrubbed_bytes);
		fixture_free(found.f);
	}
}

static void flip(struct fixture *f, const char *name, off_t at)
{
	int fd = openat(f->images_dirfd, name, O_RDWR);
	uint8_t byte;

	assert_int_equal(pread(fd, &byte, 1, at), 1);
	byte ^= 0x10;
	assert_int_equal(pwrite(fd, &byte, 1, at), 1);
	close(fd);
}

static void scrub_names_every_file_with_a_flipped_byte(void **state)
{
	static const struct {
		off_t at;
		unsigned files;
	} flips[] = {
		{ 0, 3 },
		{ 4096, 3 },
		{ CHUNK_A - 1, 3 },
		{ CHUNK_A, 2 },
		{ CHUNK_A + CHUNK_B - 1, 2 },
	};

	(void)state;
	for (size_t n = 0; n < sizeof(flips) / sizeof(*flips); n++) {
		struct found found = { .f = fixture_new() };

		flip(found.f, "01/0000000000000001", flips[n].at);
		assert_int_equal(run_check(&found, true, 2), 1);
		assert_int_equal(found.problems, 1);
		assert_string_equal(found.codes[0], "damaged");
		assert_int_equal(found.result.damaged_chunks, 1);
		assert_int_equal(found.file_count, flips[n].files);
		assert_true(has_file(&found, "/d/big"));
		assert_true(has_file(&found, "/d/copy"));
		assert_int_equal(has_file(&found, "/part"),
				 flips[n].files == 3);
		assert_non_null(strstr(found.last_text, "/d/copy"));
		fixture_free(found.f);
	}
}

static void a_flipped_byte_is_not_seen_without_scrub(void **state)
{
	struct found found = { .f = fixture_new() };

	(void)state;
	flip(found.f, "01/0000000000000001", 0);
	assert_int_equal(run_check(&found, false, 0), 0);
	fixture_free(found.f);
}

static void bytes_that_no_chunk_covers_do_not_matter(void **state)
{
	struct found found = { .f = fixture_new() };

	(void)state;
	flip(found.f, "02/0000000000000002", 0);
	assert_int_equal(run_check(&found, true, 0), 0);
	fixture_free(found.f);
}

static void a_short_image_names_its_files_without_scrub(void **state)
{
	struct found found = { .f = fixture_new() };

	(void)state;
	cut_image_file(found.f);
	assert_int_equal(run_check(&found, false, 0), 1);
	assert_true(has_code(&found, "image-short"));
	assert_true(has_code(&found, "damaged"));
	/* Only the second chunk is cut, which /part does not use. */
	assert_int_equal(found.file_count, 2);
	assert_true(has_file(&found, "/d/big"));
	assert_true(has_file(&found, "/d/copy"));
	fixture_free(found.f);
}

static void a_missing_image_names_its_files(void **state)
{
	struct found found = { .f = fixture_new() };

	(void)state;
	lose_image_file(found.f);
	assert_int_equal(run_check(&found, true, 0), 1);
	assert_int_equal(found.file_count, 3);
	assert_true(has_file(&found, "/part"));
	fixture_free(found.f);
}

static void an_image_whose_bytes_are_being_given_back_is_fine(void **state)
{
	struct found found = { .f = fixture_new() };
	struct key k = key_chunk(3, 4096);

	(void)state;
	fixture_u64(found.f, key_ino('I', 3), 0);
	fixture_u64(found.f, key_meta(META_IMAGES), 3);
	k.data[0] = 'P';
	fixture_u64(found.f, k, 4096);
	/* And one that is in use gives back some of its bytes. */
	k = key_chunk(2, 0);
	k.data[0] = 'P';
	fixture_u64(found.f, k, CHUNK_A);
	assert_int_equal(run_check(&found, true, 0), 0);
	assert_int_equal(found.notes, 0);
	fixture_free(found.f);
}

static void what_a_killed_daemon_left_is_only_remarked_on(void **state)
{
	struct found found = { .f = fixture_new() };

	(void)state;
	assert_int_equal(mkdirat(found.f->images_dirfd, "08", 0700), 0);
	write_file(found.f->images_dirfd, "08/0000000000000008", "x", 1);
	write_file(found.f->images_dirfd, "02/0000000000000102", "", 0);
	write_file(found.f->images_dirfd, "02/README", "x", 1);
	fixture_u64(found.f, key_meta(META_UNFINISHED), 8);
	fixture_u64(found.f, key_meta("later"), 1);
	assert_int_equal(run_check(&found, true, 0), 0);
	assert_int_equal(found.problems, 0);
	assert_int_equal(found.notes, 4);
	assert_int_equal(found.result.notes, 4);
	fixture_free(found.f);
}

/* Nobody had begun it: the database may be what is wrong. */
static void an_image_that_the_database_does_not_know_is_a_problem(void **state)
{
	static const char *const names[] = { "02/0000000000000102",
					     "07/0000000000000007" };

	(void)state;
	for (size_t n = 0; n < 2; n++) {
		struct found found = { .f = fixture_new() };

		assert_int_equal(mkdirat(found.f->images_dirfd, "07", 0700), 0);
		write_file(found.f->images_dirfd, names[n], "x", 1);
		fixture_u64(found.f, key_meta(META_UNFINISHED), 8);
		assert_int_equal(run_check(&found, true, 0), 1);
		assert_int_equal(found.problems, 1);
		fixture_free(found.f);
	}
}

/* Many records between those of the store, so that there are table files. */
static void fill(struct fixture *f)
{
	for (uint64_t i = 0; i < 2000; i++) {
		struct series_rec s = { .size_bytes = i * i, .count = i };
		struct bytes value = { 0 };

		series_encode(&s, &value);
		fixture_put_bytes(f, key_series(1000 + i), &value);
	}
}

static void damage_tables(const char *db_path)
{
	char *command = NULL;

	/* In the first block of every table file. */
	assert_true(asprintf(&command,
			     "for f in '%s'/*.sst; do printf 'broken bytes' | "
			     "dd of=\"$f\" bs=1 seek=200 conv=notrunc "
			     "status=none || exit 1; done",
			     db_path) > 0);
	assert_int_equal(system(command), 0);
	free(command);
}

static void a_damaged_database_is_a_problem_not_a_crash(void **state)
{
	struct found found = { .f = fixture_new() };

	(void)state;
	fill(found.f);
	/* Opening again moves the log into a table file. */
	kv_close(found.f->kv);
	assert_int_equal(kv_open(found.f->db_path, false, &found.f->kv), 0);
	kv_close(found.f->kv);
	damage_tables(found.f->db_path);
	assert_int_equal(kv_open_readonly(found.f->db_path, &found.f->kv), 0);
	assert_int_equal(run_check(&found, true, 0), 1);
	assert_true(has_code(&found, "database"));
	fixture_free(found.f);
}

/* Deep, and with every length up to the longest name. */
static void paths_are_told_at_any_depth(void **state)
{
	struct found found = { .f = fixture_new() };
	char name[STORE_NAME_MAX + 1];
	struct fixture *f = found.f;

	(void)state;
	fixture_inode(f, 1, S_IFDIR | 0755, 4, 0, "");
	for (uint64_t i = 0; i < 40; i++) {
		uint64_t parent = i == 0 ? 1 : 20 + i - 1;

		memset(name, 'n', sizeof(name));
		name[STORE_NAME_MAX - i] = 0;
		fixture_inode(f, 20 + i, S_IFDIR | 0755, i == 39 ? 5 : 3,
			      parent, name);
		fixture_name(f, parent, name, 20 + i, S_IFDIR);
	}
	/* Longer than a path can be: told by its number. */
	assert_int_equal(run_check(&found, false, 0), 1);
	assert_true(has_code(&found, "nlink"));
	assert_non_null(strstr(found.last_text, "inode 59"));
	fixture_free(found.f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_sound_store_passes_without_a_word),
		cmocka_unit_test(scrub_names_every_file_with_a_flipped_byte),
		cmocka_unit_test(a_flipped_byte_is_not_seen_without_scrub),
		cmocka_unit_test(bytes_that_no_chunk_covers_do_not_matter),
		cmocka_unit_test(a_short_image_names_its_files_without_scrub),
		cmocka_unit_test(a_missing_image_names_its_files),
		cmocka_unit_test(
			an_image_whose_bytes_are_being_given_back_is_fine),
		cmocka_unit_test(what_a_killed_daemon_left_is_only_remarked_on),
		cmocka_unit_test(
			an_image_that_the_database_does_not_know_is_a_problem),
		cmocka_unit_test(a_damaged_database_is_a_problem_not_a_crash),
		cmocka_unit_test(paths_are_told_at_any_depth),
	};

	return cmocka_run_group_tests_name("check", tests, NULL, NULL);
}
