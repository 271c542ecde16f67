/* Archives as trainers write them, alone and in rows. */
#include "tests/unit/zip_fixture.h"

static const enum zip_style styles[] = { ZIP_TORCH, ZIP_PYTHON };
#define STYLES (sizeof(styles) / sizeof(*styles))

static void storages_are_counted_from_their_starts(void **state)
{
	(void)state;
	for (size_t i = 0; i < STYLES; i++) {
		struct zip_out z;
		struct file f;
		struct cut c;
		uint64_t a;
		uint64_t b;

		file_init(&f);
		zip_begin(&z, &f, styles[i]);
		zip_add(&z, "x/data.pkl", 3000);
		a = zip_add(&z, "x/data/0", 3 * MIB + 5);
		b = zip_add(&z, "x/data/1", CHUNK_BYTES_MIN);
		zip_add(&z, "x/version", 2);
		zip_end(&z, "");
		c = file_cut(&f);
		assert_string_equal(c.format, "torch_zip");
		assert_own_chunks(&c, a, 3 * MIB + 5);
		assert_own_chunks(&c, b, CHUNK_BYTES_MIN);
		assert_int_equal(c.count, 1 + 4 + 1 + 1 + 1);
		assert_passes_on_read_errors(&f);
		cut_release(&c);
		file_release(&f);
	}
}

static void same_tensor_at_other_offset_gives_same_chunks(void **state)
{
	(void)state;
	for (size_t i = 0; i < STYLES; i++) {
		const uint64_t len[] = { 28, 4 * MIB, 9 * MIB + 999, 70001 };
		uint64_t at[4];
		struct file f;
		struct file g;
		struct cut c;
		struct cut d;

		file_init(&f);
		for (size_t j = 0; j < 4; j++)
			at[j] = put_item(&f, styles[i], len[j]);
		c = file_cut(&f);
		for (size_t j = 1; j < 4; j++)
			assert_own_chunks(&c, at[j], len[j]);

		file_init(&g);
		for (size_t j = 4; j > 0; j--)
			at[j - 1] = put_item(&g, styles[i], len[j - 1]);
		d = file_cut(&g);
		for (size_t j = 1; j < 4; j++)
			assert_own_chunks(&d, at[j], len[j]);

		cut_release(&c);
		cut_release(&d);
		file_release(&f);
		file_release(&g);
	}
}

static void short_items_are_one_chunk(void **state)
{
	struct file f;
	struct cut c;

	(void)state;
	file_init(&f);
	for (int i = 0; i < 50; i++)
		put_item(&f, ZIP_TORCH, 4096);
	assert_true(f.size < CHUNK_BYTES_MAX);
	c = file_cut(&f);
	assert_string_equal(c.format, "torch_zip");
	assert_int_equal(c.count, 1);
	cut_release(&c);
	file_release(&f);
}

static void raw_bytes_between_archives_are_passed_over(void **state)
{
	static const uint64_t raw[] = { 1, 21, 22, 700, 20000, MIB - 500 };

	(void)state;
	for (size_t i = 0; i < sizeof(raw) / sizeof(*raw); i++) {
		struct file f;
		struct cut c;
		uint64_t at[3];

		file_init(&f);
		file_hole(&f, raw[i]);
		at[0] = put_item(&f, ZIP_TORCH, 2 * MIB + 1);
		file_hole(&f, raw[i]);
		at[1] = put_item(&f, ZIP_TORCH, 2 * MIB + 1);
		at[2] = put_item(&f, ZIP_TORCH, 2 * MIB + 1);
		c = file_cut(&f);
		for (size_t j = 0; j < 3; j++)
			assert_own_chunks(&c, at[j], 2 * MIB + 1);
		assert_passes_on_read_errors(&f);
		cut_release(&c);
		file_release(&f);
	}
}

static void raw_bytes_at_the_end_are_passed_over(void **state)
{
	struct file f;
	struct cut c;
	uint64_t at;
	uint64_t end;

	(void)state;
	file_init(&f);
	at = put_item(&f, ZIP_TORCH, 2 * MIB + 1);
	end = f.size;
	file_hole(&f, MIB - 100);
	c = file_cut(&f);
	assert_own_chunks(&c, at, 2 * MIB + 1);
	assert_own_chunks(&c, end, MIB - 100);
	cut_release(&c);
	file_release(&f);
}

/* No end of an archive within reach: one payload, and little was read. */
static void search_for_archives_is_bounded(void **state)
{
	struct file f;
	struct cut c;
	uint64_t at;

	(void)state;
	file_init(&f);
	put_item(&f, ZIP_TORCH, 2 * MIB);
	file_hole(&f, 100 * GIB);
	at = put_item(&f, ZIP_TORCH, 2 * MIB + 1);
	c = file_cut(&f);
	assert_own_chunks(&c, at, 2 * MIB + 1);
	assert_true(f.read_bytes < 2 * MIB);
	cut_release(&c);

	file_hole(&f, 2 * MIB); /* nor at the end */
	assert_one_payload(&f);
	assert_true(f.read_bytes < 2 * MIB);
	file_release(&f);
}

/* Only what is passed over in vain counts against the search. */
static void many_gaps_do_not_use_up_the_search(void **state)
{
	static uint64_t at[1000];
	struct file f;
	struct cut c;

	(void)state;
	file_init(&f);
	for (size_t i = 0; i < 1000; i++) {
		file_hole(&f, 700 + i);
		at[i] = put_item(&f, ZIP_TORCH, 100000);
	}
	c = file_cut(&f);
	for (size_t i = 0; i < 1000; i++)
		assert_own_chunks(&c, at[i], 100000);
	cut_release(&c);
	file_release(&f);
}

static void members_over_4_gib_are_found(void **state)
{
	(void)state;
	for (size_t i = 0; i < STYLES; i++) {
		struct zip_out z;
		struct file f;
		struct cut c;
		uint64_t a, b, d;

		file_init(&f);
		file_hole(&f, 1000);
		zip_begin(&z, &f, styles[i]);
		zip_add(&z, "archive/data.pkl", 150);
		a = zip_add(&z, "archive/data/0", 5 * GIB + 12345);
		b = zip_add(&z, "archive/data/1", 3 * MIB + 3);
		d = zip_add(&z, "archive/data/2", UINT32_MAX);
		zip_end(&z, "");
		c = file_cut(&f);
		assert_string_equal(c.format, "torch_zip");
		assert_own_chunks(&c, a, 5 * GIB + 12345);
		assert_own_chunks(&c, b, 3 * MIB + 3);
		assert_own_chunks(&c, d, UINT32_MAX);
		cut_release(&c);
		file_release(&f);
	}
}

static void hundred_gib_of_items_cost_three_reads_each(void **state)
{
	static uint64_t at[1000];
	struct file f;
	struct cut c;

	(void)state;
	file_init(&f);
	for (size_t i = 0; i < 1000; i++)
		at[i] = put_item(&f, ZIP_TORCH, 100 * MIB + i);
	c = file_cut(&f);
	for (size_t i = 0; i < 1000; i++)
		assert_own_chunks(&c, at[i], 100 * MIB + i);
	assert_true(f.reads <= 3 * 1000 + 10);
	assert_true(f.read_bytes <= 2000 * KIB);
	cut_release(&c);
	file_release(&f);
}

/* A directory of several windows, and local headers far from it. */
static void thousands_of_storages_are_found(void **state)
{
	static uint64_t at[3000];
	struct zip_out z;
	char name[32];
	struct file f;
	struct cut c;

	(void)state;
	file_init(&f);
	zip_begin(&z, &f, ZIP_TORCH);
	for (size_t i = 0; i < 3000; i++) {
		snprintf(name, sizeof(name), "rank_0/data/%zu", i);
		at[i] = zip_add(&z, name, 2 * MIB - i);
	}
	zip_end(&z, "");
	c = file_cut(&f);
	for (size_t i = 0; i < 3000; i++)
		assert_own_chunks(&c, at[i], 2 * MIB - i);
	assert_true(f.reads <= 3000 + 20);
	assert_true(f.read_bytes <= MIB);
	cut_release(&c);
	file_release(&f);
}

static void short_storages_are_gathered_whole(void **state)
{
	struct zip_out z;
	struct file f;
	struct cut c;

	(void)state;
	file_init(&f);
	zip_begin(&z, &f, ZIP_PYTHON);
	for (int i = 0; i < 300; i++)
		zip_add(&z, "data", 10000 - 34);
	zip_end(&z, "");
	c = file_cut(&f);
	for (size_t i = 0; i < 2; i++)
		assert_int_equal(c.len[i], MIB / 10000 * 10000);
	/* The rest; the directory is a short piece as well. */
	assert_int_equal(c.count, 3);
	cut_release(&c);
	file_release(&f);
}

static void arrays_in_npz_are_counted_from_their_starts(void **state)
{
	static const char head[] = "\x93NUMPY\1\0\166\0";
	struct zip_out z;
	struct file f;
	struct cut c;
	uint64_t local;
	uint64_t at;

	(void)state;
	file_init(&f);
	zip_begin(&z, &f, ZIP_PYTHON);
	zip_add(&z, "first.npy", 500);
	local = f.size;
	zip_put_local(&z, "w.npy", 128 + 3 * MIB, local);
	file_put(&f, head, 10);
	file_hole(&f, 118);
	at = f.size;
	file_hole(&f, 3 * MIB);
	zip_put_entry(&z, "w.npy", 128 + 3 * MIB, local);
	zip_end(&z, "");
	c = file_cut(&f);
	assert_own_chunks(&c, at, 3 * MIB);
	assert_passes_on_read_errors(&f);
	cut_release(&c);
	file_release(&f);
}

static void comment_and_prefix_are_passed_over(void **state)
{
	struct zip_out z;
	struct file f;
	struct cut c;
	uint64_t at;

	(void)state;
	file_init(&f);
	zip_begin(&z, &f, ZIP_PYTHON); /* offsets count from 0 */
	file_hole(&f, 777);
	zip_add(&z, "data.pkl", 1000);
	at = zip_add(&z, "data/0", MIB + 9);
	zip_end(&z, "a comment");
	put_item(&f, ZIP_TORCH, 9); /* so that archives are searched for */
	c = file_cut(&f);
	assert_own_chunks(&c, at, MIB + 9);
	cut_release(&c);
	file_release(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(storages_are_counted_from_their_starts),
		cmocka_unit_test(same_tensor_at_other_offset_gives_same_chunks),
		cmocka_unit_test(short_items_are_one_chunk),
		cmocka_unit_test(raw_bytes_between_archives_are_passed_over),
		cmocka_unit_test(raw_bytes_at_the_end_are_passed_over),
		cmocka_unit_test(search_for_archives_is_bounded),
		cmocka_unit_test(many_gaps_do_not_use_up_the_search),
		cmocka_unit_test(members_over_4_gib_are_found),
		cmocka_unit_test(hundred_gib_of_items_cost_three_reads_each),
		cmocka_unit_test(thousands_of_storages_are_found),
		cmocka_unit_test(short_storages_are_gathered_whole),
		cmocka_unit_test(arrays_in_npz_are_counted_from_their_starts),
		cmocka_unit_test(comment_and_prefix_are_passed_over),
	};

	return cmocka_run_group_tests_name("torch_zip", tests, NULL, NULL);
}
