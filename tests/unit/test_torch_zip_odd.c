/* Archives that are broken or lie: never an error, and little work. */
#include "tests/unit/zip_fixture.h"

/* Cut off anywhere: still the exact cover, and never a failure. */
static void truncated_archive_is_one_payload(void **state)
{
	struct file f;
	uint64_t size;

	(void)state;
	file_init(&f);
	put_item(&f, ZIP_TORCH, 2 * MIB);
	size = f.size;
	for (uint64_t n = 1; n < 1000; n++) {
		file_truncate(&f, size - n);
		assert_one_payload(&f);
	}
	for (uint64_t n = 1000; n > 0; n--) {
		file_truncate(&f, n);
		assert_one_payload(&f);
	}
	file_release(&f);
}

/* One member, whose directory entry claims what it likes. */
static struct cut cut_claim(struct file *f, uint64_t len, uint64_t local,
			    uint64_t *ret_good)
{
	struct zip_out z;

	file_init(f);
	zip_begin(&z, f, ZIP_TORCH);
	*ret_good = zip_add(&z, "data/0", 3 * MIB + 3);
	zip_put_entry(&z, "data/1", len, local);
	zip_end(&z, "");
	return file_cut(f);
}

static void claims_outside_the_archive_are_left_out(void **state)
{
	static const struct {
		uint64_t len;
		uint64_t local;
	} claims[] = {
		{ 100000, 100 * MIB },
		{ 100000, UINT64_MAX },
		{ 100000, UINT64_MAX - 10 },
		{ UINT64_MAX, 0 },
		{ UINT64_MAX, 3 * MIB },
		{ UINT64_MAX - 30, 3 * MIB },
		{ 10 * MIB, 0 },
		{ 100000, MIB }, /* inside the first member's payload */
		{ 100, MIB },
		{ 3 * MIB + 3, 0 }, /* the same again */
		{ 100000, 3 * MIB + 60 }, /* where no local header is */
	};

	(void)state;
	for (size_t i = 0; i < sizeof(claims) / sizeof(*claims); i++) {
		struct file f;
		uint64_t good;
		struct cut c =
			cut_claim(&f, claims[i].len, claims[i].local, &good);

		assert_own_chunks(&c, good, 3 * MIB + 3);
		cut_release(&c);
		file_release(&f);
	}
}

static void put_end(struct file *f, uint32_t dir_bytes, uint32_t dir_off)
{
	struct bytes b = { 0 };

	bytes_put(&b, "PK\5\6\0\0\0\0\1\0\1\0", 12);
	bytes_put_u32(&b, dir_bytes);
	bytes_put_u32(&b, dir_off);
	bytes_put_u16(&b, 0);
	file_put_bytes(f, &b);
	bytes_release(&b);
}

static void end_records_that_lie_find_nothing(void **state)
{
	static const uint32_t words[] = {
		0,         1,          45,         46,
		400,       477,        1000,       1 << 20,
		INT32_MAX, 0x80000000, UINT32_MAX, UINT32_MAX - 1,
	};
	const size_t n = sizeof(words) / sizeof(*words);

	(void)state;
	for (size_t i = 0; i < n * n; i++) {
		struct file f;

		file_init(&f);
		file_put(&f, "PK\3\4", 4);
		file_hole(&f, 500);
		put_end(&f, words[i / n], words[i % n]);
		assert_one_payload(&f);
		file_release(&f);
	}
}

/* Each of these costs a look, so there must be an end to it. */
static void many_false_ends_cost_little(void **state)
{
	struct file f;

	(void)state;
	file_init(&f);
	file_put(&f, "PK\3\4", 4);
	for (int i = 0; i < 100000; i++)
		put_end(&f, 46, 22);
	file_put(&f, "x", 1);
	assert_one_payload(&f);
	assert_true(f.reads < 2000);
	assert_true(f.read_bytes < 16 * MIB);
	file_release(&f);
}

/* The smallest archive, again and again: memory and time stay bounded. */
static void million_tiny_archives_are_bounded(void **state)
{
	struct bytes one = { 0 };
	struct file f;
	struct cut c;

	(void)state;
	bytes_put(&one, "PK\3\4", 4);
	for (int i = 0; i < 26; i++)
		bytes_put_u8(&one, 0);
	bytes_put(&one, "PK\1\2", 4);
	for (int i = 0; i < 42; i++)
		bytes_put_u8(&one, 0);
	bytes_put(&one, "PK\5\6\0\0\0\0\1\0\1\0", 12);
	bytes_put_u32(&one, 46);
	bytes_put_u32(&one, 30);
	bytes_put_u16(&one, 0);
	assert_int_equal(one.len, 98);

	file_init(&f);
	for (int i = 0; i < 1000000; i++)
		bytes_put(&f.data, one.data, one.len);
	file_add_run(&f, (struct run){ 0, f.data.len, 0, false });
	c = file_cut(&f);
	assert_string_equal(c.format, "torch_zip");
	assert_true(f.reads < 1000000);
	cut_release(&c);
	file_release(&f);
	bytes_release(&one);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(truncated_archive_is_one_payload),
		cmocka_unit_test(claims_outside_the_archive_are_left_out),
		cmocka_unit_test(end_records_that_lie_find_nothing),
		cmocka_unit_test(many_false_ends_cost_little),
		cmocka_unit_test(million_tiny_archives_are_bounded),
	};

	return cmocka_run_group_tests_name("torch_zip_odd", tests, NULL, NULL);
}
