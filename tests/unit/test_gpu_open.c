/*
 * Safetensors files as ckpt_file_open() shows them and refuses them, with the
 * words that say what is wrong and where.
 */
#include "tests/unit/tensors_fixture.h"

/* --- What a file shows --- */

static void entries_come_in_the_order_of_their_offsets(void **state)
{
	static const char json[] =
		"{\"b\":" TENSOR("BF16", "[2,3]", 4, 16) ",\"a\":"
		TENSOR("F32", "[]", 0, 4) ",\"empty\":"
		TENSOR("I64", "[0,7]", 16, 16) ",\"\xc3\xa4\\\"\\u00e4\":"
		TENSOR("F4", "[3,2]", 16, 19) "}  \n";
	static const char *const names[] = { "a", "b", "empty",
					     "\xc3\xa4\"\xc3\xa4" };
	const uint64_t start = 8 + sizeof(json) - 1;
	const struct ckpt_entry *e;
	struct ckpt_file *f;
	uint64_t len = 0;

	(void)state;
	put_json(json, 19);
	f = open_good(host);
	assert_int_equal(ckpt_file_count(f), 4);
	assert_null(ckpt_file_entry(f, 4));
	for (size_t i = 0; i < 4; i++) {
		e = ckpt_file_entry(f, i);
		assert_string_equal(e->name, names[i]);
		assert_ptr_equal(ckpt_file_find(f, names[i]), e);
	}
	assert_null(ckpt_file_find(f, "c"));
	assert_null(ckpt_file_find(f, ""));
	e = ckpt_file_find(f, "b");
	assert_string_equal(e->dtype, "BF16");
	assert_int_equal(e->rank, 2);
	assert_int_equal(e->shape[0], 2);
	assert_int_equal(e->shape[1], 3);
	assert_int_equal(e->offset, start + 4);
	assert_int_equal(e->bytes, 12);
	assert_int_equal(ckpt_file_find(f, "a")->rank, 0);
	assert_int_equal(ckpt_file_find(f, "empty")->bytes, 0);
	assert_non_null(ckpt_file_map(f, &len));
	assert_int_equal(len, start + 19);
	assert_bytes((const uint8_t *)ckpt_file_map(f, &len) + e->offset, e);
	ckpt_file_close(f);
	ckpt_file_close(NULL);
}

static void metadata_is_shown_in_the_order_of_the_file(void **state)
{
	const char *key;
	const char *value;
	struct ckpt_file *f;

	(void)state;
	put_json("{\"__metadata__\":{\"z\":\"1\",\"\":\"\",\"a\":\"\\n\"}}",
		 0);
	f = open_good(host);
	assert_int_equal(ckpt_file_count(f), 0);
	assert_int_equal(ckpt_file_metadata(f, 0, &key, &value), 0);
	assert_string_equal(key, "z");
	assert_string_equal(value, "1");
	assert_int_equal(ckpt_file_metadata(f, 1, &key, &value), 0);
	assert_string_equal(key, "");
	assert_int_equal(ckpt_file_metadata(f, 2, &key, &value), 0);
	assert_string_equal(value, "\n");
	assert_int_equal(ckpt_file_metadata(f, 3, &key, &value), -ENOENT);
	ckpt_file_close(f);
}

static void what_safetensors_reads_is_read(void **state)
{
	static const char *const good[] = {
		"{}",
		"{\"__metadata__\":null}",
		"{\"__metadata__\":{}}",
		"{ \"a\" :\n{\"x\":[{\"dtype\":1}],\"data_offsets\":[ 0 , 0 ],"
		"\"shape\":[0,9007199254740991],\"dtype\":\"U8\"}\t}\r\n ",
		"{\"\":" TENSOR("F64", "[0]", 0, 0) "}",
		"{\"dtype\":" TENSOR("F8_E8M0", "[0]", 0, 0) "}",
	};

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
		put_json(good[i], 0);
		ckpt_file_close(open_good(host));
	}
}

/* --- What is refused --- */

struct refusal {
	const char *json;
	const char *words;
};

static void assert_all_refused(const struct refusal *bad, size_t count,
			       uint64_t data_bytes)
{
	for (size_t i = 0; i < count; i++) {
		put_json(bad[i].json, data_bytes);
		assert_refused(bad[i].words);
	}
}

static void damaged_lengths_are_refused(void **state)
{
	struct bytes b = { 0 };

	(void)state;
	put_file(&b);
	assert_refused("not a safetensors file: it has 0 bytes");
	bytes_put(&b, "1234567", 7);
	put_file(&b);
	assert_refused("not a safetensors file: it has 7 bytes");
	b.len = 0;
	bytes_put_u64(&b, 100000001);
	put_file(&b);
	assert_refused("a header of 100000001 bytes");
	b.len = 0;
	bytes_put_u64(&b, 3);
	bytes_put(&b, "{}", 2);
	put_file(&b);
	assert_refused("a header of 3 bytes, but the file ends after 10");
	b.len = 0;
	bytes_put_u64(&b, 0);
	put_file(&b);
	assert_refused("no '{'");
	bytes_release(&b);
}

static void damaged_text_is_refused(void **state)
{
	static const struct refusal bad[] = {
		{ " {}", "no '{'" },
		{ "[]", "no '{'" },
		{ "{", "not JSON" },
		{ "{}{}", "byte 2 of its header: not JSON" },
		{ "{\"a\":1,}", "not JSON" },
		{ "{\"a\":1,", "not JSON" },
		{ "{\"a", "not JSON" },
		{ "{\"a\":tru}", "not JSON" },
		{ "{\"a\":[}", "not JSON" },
		{ "{}]", "byte 2 of its header: a bracket that closes" },
		{ "{\\\"a\":1}", "byte 1 of its header: a backslash outside" },
		{ "{\"\\x\":1}", "not JSON" },
		{ "{\"\\ud800\":1}", "not JSON" },
		{ "{\"a\\u0000b\":1}", "byte 3 of its header: a NUL" },
		{ "{\"a\nb\":1}", "byte 3 of its header: a control" },
		{ "{\"\xff\":1}", "byte 2 of its header: not UTF-8" },
		{ "{\"\xc0\x80\":1}", "not UTF-8" },
		{ "{\"\xed\xa0\x80\":1}", "not UTF-8" },
		{ "{\"\xf4\x90\x80\x80\":1}", "not UTF-8" },
		{ "{\"\xe2\x82\":1}", "not UTF-8" },
		{ "{\"\xe2", "not UTF-8" },
	};

	(void)state;
	assert_all_refused(bad, sizeof(bad) / sizeof(*bad), 0);
	put_json_len("{\"a\0b\":1}", 9, 0);
	assert_refused("byte 3 of its header: a control character");
	put_json_len("{}\0", 3, 0);
	assert_refused("byte 2 of its header: a control character");
}

static void deep_nesting_is_refused(void **state)
{
	struct bytes b = { 0 };

	(void)state;
	bytes_put(&b, "{\"a\":", 5);
	for (int i = 0; i < 1000000; i++)
		bytes_put(&b, "[", 1);
	put_json_len((const char *)b.data, b.len, 0);
	assert_refused("nested too deeply");
	bytes_release(&b);
}

static void more_values_than_memory_are_refused(void **state)
{
	struct bytes b = { 0 };

	(void)state;
	bytes_put(&b, "{\"a\":[", 6);
	for (int i = 0; i < 17 << 20; i++)
		bytes_put(&b, "0,", 2);
	put_json_len((const char *)b.data, b.len, 0);
	assert_refused("too many values");
	bytes_release(&b);
}

static void damaged_tensors_are_refused(void **state)
{
	static const struct refusal bad[] = { /* with 8 bytes of data */
		{ "{\"w\":7}", "tensor 'w': not an object" },
		{ "{\"w\":[]}", "tensor 'w': not an object" },
		{ "{\"w\":{}}", "tensor 'w': dtype is missing" },
		{ "{\"w\":{\"dtype\":\"U8\",\"data_offsets\":[0,8]}}",
		  "tensor 'w': shape is missing" },
		{ "{\"w\":{\"dtype\":\"U8\",\"shape\":[8]}}",
		  "tensor 'w': data_offsets is missing" },
		{ "{\"w\":{\"dtype\":\"U8\",\"DTYPE\":1,\"dtype\":\"U8\"}}",
		  "tensor 'w': dtype is there twice" },
		{ "{\"w\":{\"dtype\":8,\"shape\":[8],\"data_offsets\":[0,8]}}",
		  "tensor 'w': its dtype is not a string" },
		{ "{\"w\":" TENSOR("U9", "[8]", 0, 8) "}",
		  "tensor 'w': unknown dtype 'U9'" },
		{ "{\"w\":" TENSOR("U8", "8", 0, 8) "}",
		  "tensor 'w': its shape is not a list" },
		{ "{\"w\":" TENSOR("U8", "{\"a\":8}", 0, 8) "}",
		  "tensor 'w': its shape is not a list" },
		{ "{\"w\":" TENSOR("U8", "[1,-8]", 0, 8) "}",
		  "tensor 'w': dimension 1 of its shape" },
		{ "{\"w\":" TENSOR("U8", "[8.5]", 0, 8) "}",
		  "tensor 'w': dimension 0 of its shape" },
		{ "{\"w\":" TENSOR("U8", "[\"8\"]", 0, 8) "}",
		  "tensor 'w': dimension 0 of its shape" },
		{ "{\"w\":" TENSOR("U8", "[null]", 0, 8) "}",
		  "tensor 'w': dimension 0 of its shape" },
		{ "{\"w\":" TENSOR("U8", "[9007199254740992]", 0, 8) "}",
		  "tensor 'w': dimension 0 of its shape" },
		{ "{\"w\":" TENSOR("U8", "[1e999]", 0, 8) "}",
		  "tensor 'w': dimension 0 of its shape" },
		{ "{\"w\":" TENSOR("U8", "[4294967296,4294967296]", 0, 8) "}",
		  "tensor 'w': its shape has more elements" },
		{ "{\"w\":" TENSOR("F64", "[2147483648,1073741824]", 0, 8) "}",
		  "tensor 'w': its shape has more elements" },
		{ "{\"w\":" TENSOR("F4", "[17]", 0, 8) "}",
		  "tensor 'w': its elements are no whole number of bytes" },
		{ "{\"w\":" TENSOR("F6_E2M3", "[3]", 0, 2) "}",
		  "tensor 'w': its elements are no whole number of bytes" },
		{ "{\"w\":" TENSOR("F32", "[3]", 0, 8) "}",
		  "tensor 'w': its shape and dtype make 12 bytes, its "
		  "data_offsets 8" },
		{ "{\"w\":" TENSOR("U8", "[8]", 8, 0) "}",
		  "tensor 'w': its data_offsets are 8 to 0" },
		{ "{\"w\":" TENSOR("U8", "[9]", 0, 9) "}",
		  "tensor 'w': its data_offsets are 0 to 9, and the file has "
		  "8 bytes" },
		{ "{\"w\":" TENSOR("U8", "[8]", -1, 7) "}",
		  "tensor 'w': its data_offsets are not two numbers" },
		{ "{\"w\":" TENSOR("U8", "[8]", 0, 9007199254740992) "}",
		  "tensor 'w': its data_offsets are not two numbers" },
		{ "{\"w\":{\"dtype\":\"U8\",\"shape\":[8],"
		  "\"data_offsets\":[8]}}",
		  "tensor 'w': its data_offsets are not two numbers" },
		{ "{\"w\":{\"dtype\":\"U8\",\"shape\":[8],"
		  "\"data_offsets\":[0,8,8]}}",
		  "tensor 'w': its data_offsets are not two numbers" },
		{ "{\"w\":{\"dtype\":\"U8\",\"shape\":[8],"
		  "\"data_offsets\":8}}",
		  "tensor 'w': its data_offsets are not a list" },
	};

	(void)state;
	assert_all_refused(bad, sizeof(bad) / sizeof(*bad), 8);
}

static void a_shape_of_too_many_dimensions_is_refused(void **state)
{
	char json[512] = "{\"w\":{\"dtype\":\"U8\",\"data_offsets\":[0,1],"
			 "\"shape\":[1";

	(void)state;
	for (unsigned i = 1; i < CKPT_RANK_MAX; i++)
		strcat(json, ",1");
	put_json(strcat(json, "]}}"), 1);
	ckpt_file_close(open_good(host));
	json[strlen(json) - 3] = '\0';
	put_json(strcat(json, ",1]}}"), 1);
	assert_refused("tensor 'w': more than 64 dimensions");
}

static void data_is_covered_once_and_wholly(void **state)
{
	static const struct refusal bad[] = { /* with 8 bytes of data */
		{ "{}", "the tensors have 0 bytes, the file has 8" },
		{ "{\"a\":" TENSOR("U8", "[7]", 0, 7) "}",
		  "the tensors have 7 bytes, the file has 8" },
		{ "{\"a\":" TENSOR("U8", "[7]", 1, 8) "}",
		  "tensor 'a': a gap before it: it starts at byte 1" },
		{ "{\"b\":" TENSOR("U8", "[3]", 5, 8) ",\"a\":"
		  TENSOR("U8", "[4]", 0, 4) "}",
		  "tensor 'b': a gap before it" },
		{ "{\"a\":" TENSOR("U8", "[5]", 0, 5) ",\"b\":"
		  TENSOR("U8", "[4]", 4, 8) "}",
		  "tensor 'b': overlaps another" },
		{ "{\"a\":" TENSOR("U8", "[8]", 0, 8) ",\"b\":"
		  TENSOR("U8", "[8]", 0, 8) "}",
		  "tensor 'b': overlaps another" },
		{ "{\"a\":" TENSOR("U8", "[8]", 0, 8) ",\"b\":"
		  TENSOR("U8", "[0]", 4, 4) "}",
		  "tensor 'b': overlaps another" },
	};

	(void)state;
	assert_all_refused(bad, sizeof(bad) / sizeof(*bad), 8);
}

static void a_name_means_one_thing(void **state)
{
	(void)state;
	put_json("{\"w\":" TENSOR("U8", "[4]", 0, 4) ",\"x\":"
		 TENSOR("U8", "[0]", 4, 4) ",\"\\u0077\":"
		 TENSOR("U8", "[4]", 4, 8) "}", 8);
	assert_refused("tensor 'w': there are two of that name");
	put_json("{\"__metadata__\":{\"k\":\"1\",\"l\":\"2\",\"k\":\"1\"}}",
		 0);
	assert_refused("__metadata__: the key 'k' is there twice");
	put_json("{\"__metadata__\":{},\"__metadata__\":{}}", 0);
	assert_refused("__metadata__ is there twice");
}

static void metadata_is_a_map_of_strings(void **state)
{
	(void)state;
	put_json("{\"__metadata__\":[\"k\"]}", 0);
	assert_refused("__metadata__ is not an object");
	put_json("{\"__metadata__\":\"k\"}", 0);
	assert_refused("__metadata__ is not an object");
	put_json("{\"__metadata__\":{\"a\":\"\",\"k\":1}}", 0);
	assert_refused("__metadata__: the value of 'k' is not a string");
}

static void long_names_leave_room_for_the_reason(void **state)
{
	struct bytes b = { 0 };

	(void)state;
	bytes_put(&b, "{\"", 2);
	for (int i = 0; i < 100000; i++)
		bytes_put(&b, "n", 1);
	bytes_put(&b, "\":{}}", 5);
	put_json_len((const char *)b.data, b.len, 0);
	assert_refused("nnn': dtype is missing");
	bytes_release(&b);
}

static void what_is_no_file_is_told(void **state)
{
	struct ckpt_file *f;

	(void)state;
	assert_int_equal(ckpt_file_open(host, dir, &f), -EISDIR);
	assert_says("a directory");
	assert_int_equal(ckpt_file_open(host, "/dev/null", &f), -EINVAL);
	assert_says("/dev/null: not a regular file");
	(void)unlink(path);
	assert_int_equal(ckpt_file_open(host, path, &f), -ENOENT);
	assert_says("No such file");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(entries_come_in_the_order_of_their_offsets),
		cmocka_unit_test(metadata_is_shown_in_the_order_of_the_file),
		cmocka_unit_test(what_safetensors_reads_is_read),
		cmocka_unit_test(damaged_lengths_are_refused),
		cmocka_unit_test(damaged_text_is_refused),
		cmocka_unit_test(deep_nesting_is_refused),
		cmocka_unit_test(more_values_than_memory_are_refused),
		cmocka_unit_test(damaged_tensors_are_refused),
		cmocka_unit_test(a_shape_of_too_many_dimensions_is_refused),
		cmocka_unit_test(data_is_covered_once_and_wholly),
		cmocka_unit_test(a_name_means_one_thing),
		cmocka_unit_test(metadata_is_a_map_of_strings),
		cmocka_unit_test(long_names_leave_room_for_the_reason),
		cmocka_unit_test(what_is_no_file_is_told),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
