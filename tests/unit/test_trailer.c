/*
 * What a node writes behind a pending file another one reads as it was, or it
 * is no trailer: no byte of it can change unseen.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <cmocka.h>

#include "store/base/bytes.h"
#include "store/shared/trailer.h"

#define UUID "01234567-89ab-4def-8123-456789abcdef"
#define LONG_NAME \
	"a123456789b123456789c123456789d123456789e123456789f123456789g12"
_Static_assert(sizeof(LONG_NAME) == SHARED_NODE_MAX + 1, "the longest");

static struct trailer good(void)
{
	return (struct trailer){ .node = "gpu-07.rack_3",
				 .uuid = UUID,
				 .number = 0x1122334455667788,
				 .size_bytes = 0x0102030405060708,
				 .mode = S_IFREG | 0640,
				 .atime_ns = 1795376110123456789,
				 .mtime_ns = -1 };
}

static void assert_same(const struct trailer *a, const struct trailer *b)
{
	assert_string_equal(a->node, b->node);
	assert_string_equal(a->uuid, b->uuid);
	assert_true(a->number == b->number);
	assert_true(a->size_bytes == b->size_bytes);
	assert_int_equal(a->mode, b->mode);
	assert_int_equal(a->writing, b->writing);
	assert_true(a->atime_ns == b->atime_ns);
	assert_true(a->mtime_ns == b->mtime_ns);
}

static void what_was_written_is_read(void **state)
{
	struct trailer some[6];
	uint8_t bytes[TRAILER_BYTES];

	(void)state;
	for (size_t n = 0; n < 6; n++)
		some[n] = good();
	some[1].writing = true;
	some[2].size_bytes = 0;
	some[2].atime_ns = INT64_MIN;
	some[2].mtime_ns = INT64_MAX;
	some[3].size_bytes = INT64_MAX - TRAILER_BYTES;
	some[3].number = UINT64_MAX;
	some[4].mode = S_IFREG | S_ISUID | S_ISGID | 0777;
	strcpy(some[5].node, LONG_NAME);
	for (size_t n = 0; n < 6; n++) {
		struct trailer read = { .node = "" };

		trailer_encode(&some[n], bytes);
		assert_int_equal(trailer_decode(bytes, &read), 0);
		assert_same(&read, &some[n]);
	}
}

/* Other nodes have other versions of ckptfs: where a field lies stays. */
static void each_field_lies_where_the_header_says(void **state)
{
	const uint8_t number[] = { 0x88, 0x77, 0x66, 0x55,
				   0x44, 0x33, 0x22, 0x11 };
	const uint8_t mode[] = { 0xa0, 0x81, 0, 0, 0, 0, 0, 0 };
	struct trailer t = good();
	uint8_t bytes[TRAILER_BYTES];
	uint64_t check;

	(void)state;
	t.writing = true;
	trailer_encode(&t, bytes);
	assert_memory_equal(bytes, "ckptrail\1\0\0\0\1\0\0\0" UUID "\0\0\0\0",
			    56);
	assert_memory_equal(bytes + 56, number, 8);
	assert_memory_equal(bytes + 64, "\x08\7\6\5\4\3\2\1", 8);
	assert_memory_equal(bytes + 72, mode, 8);
	assert_int_equal(bytes[80], 1795376110123456789 & 0xff);
	assert_memory_equal(bytes + 88, "\xff\xff\xff\xff\xff\xff\xff\xff", 8);
	assert_string_equal((const char *)bytes + 96, t.node);
	assert_true(bytes_are_zero(bytes + 160, 4088 - 160));
	memcpy(&check, bytes + 4088, 8);
	assert_true(le64toh(check) == XXH3_64bits(bytes, 4088));
}

static void every_flipped_bit_is_found(void **state)
{
	struct trailer t = good(), read = { .node = "untouched" };
	uint8_t bytes[TRAILER_BYTES];

	(void)state;
	trailer_encode(&t, bytes);
	for (size_t bit = 0; bit < TRAILER_BYTES * 8; bit++) {
		bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
		assert_int_equal(trailer_decode(bytes, &read),
				 bit < 64 ? -ENODATA : -EUCLEAN);
		bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
	assert_string_equal(read.node, "untouched");
	assert_int_equal(trailer_decode(bytes, &read), 0);
}

/* With a check that is right: who wrote it meant something else, or harm. */
static void what_is_out_of_range_is_damaged(void **state)
{
	static const struct {
		size_t at, len;
		const char *bytes;
	} changes[] = {
		{ 8, 1, "\2" }, /* a newer version */
		{ 8, 1, "" },
		{ 12, 1, "\2" }, /* an unknown flag */
		{ 15, 1, "\x80" },
		{ 16, 1, "X" }, /* no UUID */
		{ 51, 1, "" },
		{ 52, 1, "0" },
		{ 53, 1, "0" }, /* behind the end of a text */
		{ 64, 8, "\xff\xff\xff\xff\xff\xff\xff\x7f" }, /* too large */
		{ 71, 1, "\xff" },
		{ 72, 2, "\xff\x83" }, /* sticky */
		{ 72, 2, "\xa4\x41" }, /* a directory */
		{ 72, 2, "\xa4\xa1" }, /* a symbolic link */
		{ 74, 1, "\1" },
		{ 76, 1, "\1" },
		{ 96, 1, "." }, /* a name that is none */
		{ 96, 1, "/" },
		{ 96, 1, "" },
		{ 97, 1, "\n" },
		{ 110, 1, "x" }, /* behind the end of a text */
		{ 159, 1, "x" },
		{ 160, 1, "\1" },
		{ 4087, 1, "\1" },
	};
	struct trailer t = good(), read;
	uint8_t bytes[TRAILER_BYTES];

	(void)state;
	for (size_t n = 0; n < sizeof(changes) / sizeof(*changes); n++) {
		uint64_t check;

		trailer_encode(&t, bytes);
		memcpy(bytes + changes[n].at, changes[n].bytes, changes[n].len);
		check = htole64(XXH3_64bits(bytes, 4088));
		memcpy(bytes + 4088, &check, 8);
		assert_int_equal(trailer_decode(bytes, &read), -EUCLEAN);
	}
}

static void what_is_no_trailer_is_told_from_a_damaged_one(void **state)
{
	uint8_t bytes[TRAILER_BYTES] = { 0 };
	struct trailer read;

	(void)state;
	assert_int_equal(trailer_decode(bytes, &read), -ENODATA);
	memset(bytes, 'x', sizeof(bytes));
	assert_int_equal(trailer_decode(bytes, &read), -ENODATA);
	memcpy(bytes, "ckptrail", 8);
	assert_int_equal(trailer_decode(bytes, &read), -EUCLEAN);
}

static void a_node_has_a_name_that_is_a_file_name_everywhere(void **state)
{
	static const char *const good_ones[] = {
		"a", "gpu-07.Rack_3", "-", "_", "7", "a..", LONG_NAME
	};
	static const char *const bad_ones[] = {
		"",    ".",        "..", ".a",  "a/b",         "a b",
		"a\n", "\xc3\xa4", "a*", "a\\", LONG_NAME "x",
	};

	(void)state;
	for (size_t n = 0; n < sizeof(good_ones) / sizeof(*good_ones); n++)
		assert_true(shared_node_is_name(good_ones[n]));
	for (size_t n = 0; n < sizeof(bad_ones) / sizeof(*bad_ones); n++)
		assert_false(shared_node_is_name(bad_ones[n]));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_was_written_is_read),
		cmocka_unit_test(each_field_lies_where_the_header_says),
		cmocka_unit_test(every_flipped_bit_is_found),
		cmocka_unit_test(what_is_out_of_range_is_damaged),
		cmocka_unit_test(what_is_no_trailer_is_told_from_a_damaged_one),
		cmocka_unit_test(
			a_node_has_a_name_that_is_a_file_name_everywhere),
	};

	return cmocka_run_group_tests_name("trailer", tests, NULL, NULL);
}
