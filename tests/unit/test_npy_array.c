/*
 * What numpy's headers say of an array, those that it writes and those that it
 * never would: an array lies in its file, or it is bytes, or it was cut off.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "store/base/bytes.h"
#include "store/base/check.h"
#include "store/base/scope.h"
#include "store/formats/dtype.h"
#include "store/formats/magic.h"
#include "store/formats/npy_array.h"

#define HEADER(descr, order, shape)                                        \
	"{'descr': " descr ", 'fortran_order': " order ", 'shape': " shape \
	", }    \n"

static int read_bytes(void *self, void *buf, size_t len, uint64_t off)
{
	const struct bytes *b = self;

	CHECK(off <= b->len && len <= b->len - off);
	memcpy(buf, b->data + off, len);
	return 0;
}

/* A file of one array: this header, and so many bytes behind it. */
static int look(struct tensors *l, uint8_t major, const char *header,
		size_t data)
{
	SCOPED(bytes_release) struct bytes b = { 0 };
	struct cut_source source = { read_bytes, &b, 0 };
	static const uint8_t zeros[64];
	int rc;

	bytes_put(&b, "\x93NUMPY", 6);
	bytes_put_u8(&b, major);
	bytes_put_u8(&b, 0);
	bytes_put_le(&b, strlen(header), major == 1 ? 2 : 4);
	bytes_put(&b, header, strlen(header));
	bytes_put(&b, zeros, data);
	source.size_bytes = b.len;
	rc = npy_array_add(l, &source, 0, b.len, "a", NULL);
	for (size_t i = 0; rc == 0 && i < l->count; i++)
		assert_true(l->all[i].offset + l->all[i].bytes <= b.len);
	return rc;
}

static void what_numpy_writes_is_understood(void **state)
{
	static const struct {
		const char *header, *dtype;
		unsigned rank;
		size_t bytes;
		bool strided;
		uint8_t major;
	} rows[] = {
		{ HEADER("'<f4'", "False", "(2, 3)"), "float32", 2, 24, false,
		  1 },
		{ HEADER("'<f4'", "True", "(2, 3)"), "float32", 2, 24, true,
		  2 },
		{ HEADER("'<f4'", "True", "(6,)"), "float32", 1, 24, false, 3 },
		{ HEADER("'|b1'", "False", "()"), "bool", 0, 1, false, 1 },
		{ HEADER("'<c16'", "False", "(1L,)"), "complex128", 1, 16,
		  false, 1 },
		{ HEADER("'>i8'", "False", "(1,)"), ">i8", 1, 8, false, 1 },
		{ HEADER("'<U3'", "False", "(2,)"), "<U3", 1, 24, false, 1 },
		{ HEADER("'|V2'", "False", "(3,)"), "|V2", 1, 6, false, 1 },
		{ HEADER("'<f8'", "True", "(0, 99999999999999)"), "float64", 2,
		  0, false, 1 },
		{ "{'shape':(2,),'descr':'<i2','fortran_order':False}", "int16",
		  1, 4, false, 1 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		struct tensors l = { .all = NULL };

		assert_int_equal(
			look(&l, rows[i].major, rows[i].header, rows[i].bytes),
			0);
		assert_int_equal(l.count, 1);
		assert_string_equal(l.all[0].dtype, rows[i].dtype);
		assert_int_equal(l.all[0].rank, rows[i].rank);
		assert_int_equal(l.all[0].bytes, rows[i].bytes);
		assert_int_equal(l.all[0].strides != NULL, rows[i].strided);
		tensors_release(&l);
	}
}

static void any_other_header_is_bytes(void **state)
{
	static const char *const headers[] = {
		"",
		"{",
		"{}",
		"{'descr': '<f4'}",
		HEADER("[('a', '<f4')]", "False", "(2,)"),
		HEADER("'|O'", "False", "(2,)"),
		HEADER("'<f4'", "Maybe", "(2,)"),
		HEADER("'<f4'", "False", "(-2,)"),
		HEADER("'<f4'", "False", "(2"),
		HEADER("'<f4'", "False", "2"),
		HEADER("'<f99999999'", "False", "(2,)"),
		HEADER("'<f4\xff'", "False", "(2,)"),
		HEADER("'<f4", "False", "(2,)"),
		HEADER("__import__('os')", "False", "(2,)"),
		HEADER("'<f4'", "False", "(99999999999999999999999,)"),
	};

	(void)state;
	for (size_t i = 0; i < sizeof(headers) / sizeof(*headers); i++) {
		struct tensors l = { .all = NULL };

		assert_int_equal(look(&l, 1, headers[i], 8), 0);
		assert_int_equal(l.count, 1);
		assert_null(l.all[0].dtype);
		assert_int_equal(l.all[0].offset, 0);
		tensors_release(&l);
	}
}

static void an_array_that_is_longer_than_its_file_was_cut_off(void **state)
{
	static const char *const headers[] = {
		HEADER("'<f4'", "False", "(3,)"),
		HEADER("'<f4'", "True", "(4294967296, 4294967296, 4)"),
		HEADER("'<f8'", "False", "(18446744073709551615,)"),
	};

	(void)state;
	for (size_t i = 0; i < sizeof(headers) / sizeof(*headers); i++) {
		struct tensors l = { .all = NULL };

		assert_int_equal(look(&l, 1, headers[i], 11), -EBADMSG);
		assert_non_null(strstr(l.error, "cut off"));
		tensors_release(&l);
	}
}

static void what_follows_an_array_is_not_passed_over(void **state)
{
	struct tensors l = { .all = NULL };

	(void)state;
	assert_int_equal(look(&l, 1, HEADER("'|u1'", "False", "(3,)"), 8), 0);
	assert_int_equal(l.count, 2);
	assert_int_equal(l.all[1].bytes, 5);
	assert_int_equal(l.all[1].offset, l.all[0].offset + 3);
	assert_null(l.all[1].dtype);
	tensors_release(&l);
}

static void a_type_has_one_spelling(void **state)
{
	size_t bytes;

	(void)state;
	assert_string_equal(dtype_of_safetensors("BF16"), "bfloat16");
	assert_string_equal(dtype_of_safetensors("F4"), "F4");
	assert_string_equal(dtype_of_safetensors(""), "");
	assert_string_equal(dtype_of_numpy("<f2", &bytes), "float16");
	assert_int_equal(bytes, 2);
	assert_string_equal(dtype_of_numpy("f2", &bytes), "f2");
	assert_int_equal(bytes, 0);
	assert_int_equal(dtype_bits("bfloat16"), 16);
	assert_int_equal(dtype_bits("complex128"), 128);
	assert_int_equal(dtype_bits("quint4x2"), 0);
}

static void a_magic_is_looked_for_in_what_is_there(void **state)
{
	uint8_t block[MAGIC_BYTES] = { 0 };

	(void)state;
	memcpy(block + 257, "ustar", 5);
	assert_string_equal(magic_of(block, sizeof(block))->format, "tar");
	assert_string_equal(magic_of(block, 262)->format, "tar");
	assert_null(magic_of(block, 261));
	assert_null(magic_of(block, 0));
	assert_null(magic_of("GGU", 3));
	assert_string_equal(magic_of("GGUF", 4)->format, "gguf");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_numpy_writes_is_understood),
		cmocka_unit_test(any_other_header_is_bytes),
		cmocka_unit_test(
			an_array_that_is_longer_than_its_file_was_cut_off),
		cmocka_unit_test(what_follows_an_array_is_not_passed_over),
		cmocka_unit_test(a_type_has_one_spelling),
		cmocka_unit_test(a_magic_is_looked_for_in_what_is_there),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
