/* The rule by which pieces become chunks, and the simple formats. */
#include "tests/unit/cut_fixture.h"

static void empty_file_has_no_chunks(void **state)
{
	struct file f;
	struct cut c;

	(void)state;
	file_init(&f);
	c = file_cut(&f);
	assert_int_equal(c.count, 0);
	assert_string_equal(c.format, "plain");
	assert_int_equal(f.reads, 0);
	cut_release(&c);
	file_release(&f);
}

static void one_byte_is_one_chunk(void **state)
{
	struct file f;
	struct cut c;

	(void)state;
	file_init(&f);
	file_put(&f, "P", 1);
	c = file_cut(&f);
	assert_int_equal(c.count, 1);
	assert_int_equal(c.len[0], 1);
	cut_release(&c);
	file_release(&f);
}

static void plain_file_is_one_payload(void **state)
{
	static const uint64_t sizes[] = {
		2,
		CHUNK_BYTES_MIN - 1,
		CHUNK_BYTES_MIN,
		CHUNK_BYTES_MAX - 1,
		CHUNK_BYTES_MAX,
		CHUNK_BYTES_MAX + 1,
		5 * MIB + 3,
	};

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		struct file f;

		file_init(&f);
		file_hole(&f, sizes[i]);
		assert_one_payload(&f);
		assert_true(f.reads <= 4);
		assert_true(f.read_bytes <= 4 * KIB);
		file_release(&f);
	}
}

static void larger_than_the_limit_is_refused(void **state)
{
	struct cut c = { .count = 99 };
	struct file f;

	(void)state;
	file_init(&f);
	file_hole(&f, CUT_FILE_BYTES_MAX + 1);
	assert_int_equal(file_try_cut(&f, &c), -EFBIG);
	assert_int_equal(c.count, 99);
	file_release(&f);
}

static void release_takes_null_and_leaves_nothing(void **state)
{
	struct file f;
	struct cut c;

	(void)state;
	file_init(&f);
	file_hole(&f, MIB);
	c = file_cut(&f);
	cut_release(&c);
	assert_null(c.len);
	cut_release(&c);
	cut_release(NULL);
	file_release(&f);
}

static void npy_put_header(struct file *f, uint8_t major, uint32_t header_bytes)
{
	struct bytes b = { 0 };

	bytes_put(&b, "\x93NUMPY", 6);
	bytes_put_u8(&b, major);
	bytes_put_u8(&b, 0);
	if (major == 1)
		bytes_put_u16(&b, (uint16_t)header_bytes);
	else
		bytes_put_u32(&b, header_bytes);
	file_put_bytes(f, &b);
	bytes_release(&b);
}

static void npy_array_is_counted_from_its_start(void **state)
{
	(void)state;
	for (uint8_t major = 1; major <= 3; major++) {
		struct file f;
		struct cut c;
		uint64_t at;

		file_init(&f);
		npy_put_header(&f, major, 118);
		file_hole(&f, 118);
		at = f.size;
		file_hole(&f, 2 * MIB + 77);
		c = file_cut(&f);
		assert_string_equal(c.format, "npy");
		assert_own_chunks(&c, at, 2 * MIB + 77);
		assert_passes_on_read_errors(&f);
		cut_release(&c);
		file_release(&f);
	}
}

static void odd_npy_header_is_one_payload(void **state)
{
	struct file f;

	(void)state;
	file_init(&f); /* the header is longer than the file */
	npy_put_header(&f, 2, 5000);
	file_hole(&f, 4999);
	assert_one_payload(&f);
	file_release(&f);

	file_init(&f); /* longer than any header */
	npy_put_header(&f, 3, CUT_HEADER_BYTES_MAX + 1);
	file_hole(&f, CUT_HEADER_BYTES_MAX + 2);
	assert_one_payload(&f);
	file_release(&f);

	file_init(&f); /* an unknown version */
	npy_put_header(&f, 4, 100);
	file_hole(&f, 200);
	assert_one_payload(&f);
	file_release(&f);

	file_init(&f); /* cut off inside the length */
	npy_put_header(&f, 1, 118);
	file_truncate(&f, 9);
	assert_one_payload(&f);
	file_release(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(empty_file_has_no_chunks),
		cmocka_unit_test(one_byte_is_one_chunk),
		cmocka_unit_test(plain_file_is_one_payload),
		cmocka_unit_test(larger_than_the_limit_is_refused),
		cmocka_unit_test(release_takes_null_and_leaves_nothing),
		cmocka_unit_test(npy_array_is_counted_from_its_start),
		cmocka_unit_test(odd_npy_header_is_one_payload),
	};

	return cmocka_run_group_tests_name("cut", tests, NULL, NULL);
}
