/* Where tensors lie in a safetensors file, and what odd headers do. */
#include <inttypes.h>
#include <stdio.h>

#include "tests/unit/cut_fixture.h"

/* The header as given, padded with spaces to `header_bytes` if that is more. */
static void put_header(struct file *f, const char *json, size_t header_bytes)
{
	struct bytes b = { 0 };
	size_t len = strlen(json);

	bytes_put_u64(&b, header_bytes > len ? header_bytes : len);
	bytes_put(&b, json, len);
	for (; len < header_bytes; len++)
		bytes_put_u8(&b, ' ');
	file_put_bytes(f, &b);
	bytes_release(&b);
}

static struct cut cut_json(struct file *f, const char *json, uint64_t data)
{
	file_init(f);
	put_header(f, json, 0);
	file_hole(f, data);
	return file_cut(f);
}

/* Tensors [0, 1 MiB + 5) and [1 MiB + 5, 3 MiB) are found with this header. */
static void assert_finds_two(const char *json)
{
	struct file f;
	struct cut c = cut_json(&f, json, 3 * MIB);
	uint64_t data = 8 + strlen(json);

	assert_string_equal(c.format, "safetensors");
	assert_own_chunks(&c, data, MIB + 5);
	assert_own_chunks(&c, data + MIB + 5, 2 * MIB - 5);
	cut_release(&c);
	file_release(&f);
}

/* Nothing is found in this header, and the data is one payload. */
static void assert_finds_none(const char *json)
{
	struct file f;
	struct cut c = cut_json(&f, json, 3 * MIB + 1);

	assert_own_chunks(&c, 8 + strlen(json), 3 * MIB + 1);
	cut_release(&c);
	file_release(&f);
}

#define A "{\"dtype\":\"U8\",\"shape\":[1048581],\"data_offsets\":[0,1048581]}"
#define B "{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[1048581,3145728]}"

static void tensors_are_counted_from_their_starts(void **state)
{
	(void)state;
	assert_finds_two("{\"a\":" A ",\"b\":" B "}");
	assert_finds_two("{\"b\":" B ",\"a\":" A "}   ");
	assert_finds_two("{ \"a\" :\n" A "\t, \r\"b\": " B " }");
	assert_finds_two("{\"a\":{\"data_offsets\":[ 0 , 1048581 ],"
			 "\"shape\":[[],{\"x\":[1,{}]}],\"dtype\":null},"
			 "\"b\":" B "}");
}

static void metadata_is_passed_over(void **state)
{
	(void)state;
	assert_finds_two("{\"__metadata__\":{\"format\":\"pt\"},\"a\":" A
			 ",\"b\":" B "}");
	assert_finds_two(
		"{\"__metadata__\":{\"data_offsets\":[7,70000]},\"a\":" A
		",\"b\":" B "}");
	assert_finds_two("{\"a\":" A ",\"__metadata__\":{\"k\":"
			 "\"{\\\"data_offsets\\\":[7,70000]}\"},\"b\":" B "}");
	assert_finds_two("{\"__metadata__\":{},\"a\":" A ",\"b\":" B "}");
}

static void tensor_names_may_hold_anything(void **state)
{
	(void)state;
	assert_finds_two("{\"data_offsets\":" A ",\"\":" B "}");
	assert_finds_two("{\"a\\\"},{\\\"b\":" A ",\"\\\\\":" B "}");
	assert_finds_two("{\"\\\"data_offsets\\\":[7,70000]\":" A ",\"]}{[\":" B
			 "}");
	assert_finds_two("{\"\\u0022\":" A ",\"\xe2\x82\xac\":" B "}");
	assert_finds_two("{\"x\":{\"note\":\"data_offsets\",\"data_offsets_\":"
			 "[7,70000],\"data\\_offsets\":[7,70000],"
			 "\"data_offsets\":[0,1048581]},\"b\":" B "}");
}

static void deep_nesting_is_passed_over(void **state)
{
	struct bytes json = { 0 };

	(void)state;
	bytes_put(&json, "{\"deep\":{\"x\":", 13);
	for (int i = 0; i < 200000; i++)
		bytes_put(&json, "[{\"data_offsets\":", 17);
	for (int i = 0; i < 200000; i++)
		bytes_put(&json, "}]", 2);
	bytes_put(&json, "},\"a\":" A ",\"b\":" B "}",
		  sizeof("},\"a\":" A ",\"b\":" B "}"));
	assert_finds_two((const char *)json.data);
	bytes_release(&json);
}

static void bad_offsets_are_left_out(void **state)
{
	static const char *const bad[] = {
		"[70000,70000]",
		"[70001,70000]",
		"[18446744073709551615,18446744073709551615]",
		"[18446744073709551615,0]",
		"[3145729,3145730]", /* out of the file */
		"[9223372036854775808,9223372036854775809]",
		"\"[7,70000]\"",
		"null",
		"{\"a\":[7,70000]}",
	};
	char json[1024];

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		snprintf(json, sizeof(json),
			 "{\"a\":%s,\"x\":{\"data_offsets\":%s},\"b\":%s}", A,
			 bad[i], B);
		assert_finds_two(json);
	}
}

static void unreadable_header_ends_the_search(void **state)
{
	static const char *const bad[] = {
		"{}",
		"{\"a\"",
		"{\"a\":",
		"{\"a\":{\"data_offsets\":[NaN,70000]}}",
		"{\"a\":{\"data_offsets\":[-1,70000]}}",
		"{\"a\":{\"data_offsets\":[7.5,70000]}}",
		"{\"a\":{\"data_offsets\":[7e0,70000]}}",
		"{\"a\":{\"data_offsets\":[18446744073709551616,1]}}",
		"{\"a\":{\"data_offsets\":[70000]}}",
		"{\"a\":{\"data_offsets\":[7,70000,9]}}",
		"{\"a\":{\"data_offsets\":[]}}",
		"{\"a\":{\"data_offsets\":[7",
		"{\"a\":[{\"data_offsets\":[7,70000]}]}",
		"{\"a",
		"{\"a\\",
		"{{{{{{",
		"{]]]]",
	};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		assert_finds_none(bad[i]);
	/* What was found before that is kept. */
	assert_finds_two("{\"a\":" A ",\"b\":" B ",\"c\":{\"data_offsets\":[x");
}

static void overlaps_and_holes_are_only_more_cuts(void **state)
{
	struct file f;
	struct cut c = cut_json(&f,
				"{\"a\":{\"data_offsets\":[100000,300000]},"
				"\"b\":{\"data_offsets\":[200000,400000]},"
				"\"c\":{\"data_offsets\":[100000,300000]}}",
				MIB);
	uint64_t data = f.size - MIB;

	(void)state;
	assert_own_chunks(&c, data, 100000);
	assert_own_chunks(&c, data + 100000, 100000);
	assert_own_chunks(&c, data + 200000, 100000);
	assert_own_chunks(&c, data + 300000, 100000);
	assert_own_chunks(&c, data + 400000, MIB - 400000);
	cut_release(&c);
	file_release(&f);
}

static void header_length_out_of_bounds_is_one_payload(void **state)
{
	static const uint64_t bad[] = {
		0,
		1,
		501,
		UINT64_MAX,
		UINT64_MAX - 7,
		UINT64_C(1) << 63,
		UINT64_C(1) << 32,
	};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		struct bytes b = { 0 };
		struct file f;

		file_init(&f);
		bytes_put_u64(&b, bad[i]);
		bytes_put(&b, "{", 1);
		file_put_bytes(&f, &b);
		file_hole(&f, 499);
		assert_one_payload(&f);
		file_release(&f);
		bytes_release(&b);
	}
}

static void truncated_header_is_one_payload(void **state)
{
	(void)state;
	for (uint64_t size = 1; size < 8 + strlen("{\"a\":" A "}"); size++) {
		struct file f;

		file_init(&f);
		put_header(&f, "{\"a\":" A "}", 0);
		file_truncate(&f, size);
		assert_one_payload(&f);
		file_release(&f);
	}
}

static void header_over_the_limit_is_one_payload(void **state)
{
	struct bytes b = { 0 };
	struct file f;

	(void)state;
	file_init(&f);
	bytes_put_u64(&b, CUT_HEADER_BYTES_MAX + 1);
	bytes_put(&b, "{\"a\":" A, strlen("{\"a\":" A));
	file_put_bytes(&f, &b);
	file_hole(&f, CUT_HEADER_BYTES_MAX + 10 * MIB);
	assert_one_payload(&f);
	file_release(&f);
	bytes_release(&b);
}

/* A drain of a file that is still open must not be for nothing. */
static void growing_file_is_cut_like_the_complete_one(void **state)
{
	const char *json = "{\"a\":" A ",\"b\":" B "}";
	struct file f;
	struct cut whole = cut_json(&f, json, 3 * MIB);
	struct cut part;

	(void)state;
	file_truncate(&f, 8 + strlen(json) + 2 * MIB);
	part = file_cut(&f);
	assert_true(part.count < whole.count);
	assert_memory_equal(part.len, whole.len,
			    (part.count - 1) * sizeof(*part.len));
	cut_release(&part);
	cut_release(&whole);
	file_release(&f);
}

/* A header of another length moves everything, and nothing must change. */
static void same_tensor_at_other_offset_gives_same_chunks(void **state)
{
	struct file f;
	struct file g;
	struct cut c;
	struct cut d;

	(void)state;
	c = cut_json(&f, "{\"a\":" A ",\"b\":" B "}", 3 * MIB);
	file_init(&g);
	put_header(&g, "{\"b\":" B ",\"a\":" A "}", 70000);
	file_hole(&g, 3 * MIB);
	d = file_cut(&g);
	assert_own_chunks(&d, 0, 8 + 70000);
	assert_int_equal(c.count, d.count);
	assert_memory_equal(c.len + 1, d.len + 1,
			    (c.count - 1) * sizeof(*c.len));
	cut_release(&c);
	cut_release(&d);
	file_release(&f);
	file_release(&g);
}

/* 100 tensors of 10 KiB, then a long one: whole ones up to 1 MiB a chunk. */
static void short_tensors_are_gathered_whole(void **state)
{
	struct bytes json = { 0 };
	char entry[128];
	struct file f;
	struct cut c;
	uint64_t data;

	(void)state;
	for (int i = 0; i < 200; i++) {
		snprintf(entry, sizeof(entry),
			 "%c\"%d\":{\"data_offsets\":[%d,%d]}",
			 i == 0 ? '{' : ',', i, i * 10240, (i + 1) * 10240);
		bytes_put(&json, entry, strlen(entry));
	}
	bytes_put(&json, "}", 2);
	data = 8 + json.len - 1;
	c = cut_json(&f, (const char *)json.data, 200 * 10240 + MIB + 7);
	assert_true(data < CHUNK_BYTES_MIN);

	/* The header is a short piece too: it and 101 tensors fit. */
	assert_int_equal(c.len[0], data + 101 * 10240);
	assert_int_equal(c.len[1], 99 * 10240);
	assert_int_equal(c.len[2], CHUNK_BYTES_MAX);
	assert_int_equal(c.len[3], 7); /* a long piece's end stays its own */
	assert_int_equal(c.count, 4);
	cut_release(&c);
	file_release(&f);
	bytes_release(&json);
}

/* So that memory is bounded: the rest of the file is one payload. */
static void tensors_after_the_chunk_limit_are_left_out(void **state)
{
	const uint64_t many = CUT_CHUNKS_MAX * MIB;
	char json[256];
	struct file f;
	struct cut c;

	(void)state;
	snprintf(json, sizeof(json),
		 "{\"a\":{\"data_offsets\":[0,%" PRIu64 "]},"
		 "\"b\":{\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}}",
		 many, many, many + 100000);
	c = cut_json(&f, json, many + 2 * MIB);
	/* The header's chunk, all of a's; b ends where nothing is cut. */
	assert_int_equal(c.count, 1 + CUT_CHUNKS_MAX + 2);
	assert_own_chunks(&c, 8 + strlen(json) + many, 2 * MIB);
	cut_release(&c);
	file_release(&f);
}

static void read_errors_are_passed_on(void **state)
{
	struct bytes json = { 0 };
	struct file f;

	(void)state;
	file_init(&f);
	bytes_put(&json, "{\"a\":" A, strlen("{\"a\":" A));
	while (json.len < 200000) /* several windows */
		bytes_put(&json, ",\"b\":" B, strlen(",\"b\":" B));
	bytes_put(&json, "}", 2);
	put_header(&f, (const char *)json.data, 0);
	file_hole(&f, 3 * MIB);
	assert_passes_on_read_errors(&f);
	file_release(&f);
	bytes_release(&json);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tensors_are_counted_from_their_starts),
		cmocka_unit_test(metadata_is_passed_over),
		cmocka_unit_test(tensor_names_may_hold_anything),
		cmocka_unit_test(deep_nesting_is_passed_over),
		cmocka_unit_test(bad_offsets_are_left_out),
		cmocka_unit_test(unreadable_header_ends_the_search),
		cmocka_unit_test(overlaps_and_holes_are_only_more_cuts),
		cmocka_unit_test(header_length_out_of_bounds_is_one_payload),
		cmocka_unit_test(truncated_header_is_one_payload),
		cmocka_unit_test(header_over_the_limit_is_one_payload),
		cmocka_unit_test(growing_file_is_cut_like_the_complete_one),
		cmocka_unit_test(same_tensor_at_other_offset_gives_same_chunks),
		cmocka_unit_test(short_tensors_are_gathered_whole),
		cmocka_unit_test(tensors_after_the_chunk_limit_are_left_out),
		cmocka_unit_test(read_errors_are_passed_on),
	};

	return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}
