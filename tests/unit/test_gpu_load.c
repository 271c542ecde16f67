/* Safetensors files as ckpt_file_open() shows them, refuses them, and reads
 * them: into host memory, and to the devices of the tests' own driver. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "gpu/handle.h"
#include "store/base/bytes.h"
#include "store/base/io.h"
#include "store/base/scope.h"
#include "tests/gpu/fake_cuda.h"

#define MIB (UINT64_C(1) << 20)
#define TENSORS_MAX 3000

static char dir[] = "/tmp/test_gpu_load.XXXXXX";
static char path[sizeof(dir) + 32];
static struct ckpt *host; /* without a driver */

/* Bytes of every file here, behind its header: again and again, with a period
 * that no size and no buffer has. */
#define PERIOD 65521u
static uint8_t pattern[PERIOD];

static void make_pattern(void)
{
	for (uint64_t i = 0; i < PERIOD; i++)
		pattern[i] = (uint8_t)((i + 1) * UINT64_C(0x9e3779b97f4a7c15) >>
				       56);
}

/* Of the pattern, from an offset of the file on: at most len bytes. */
static size_t pattern_at(uint64_t offset, uint64_t len, const uint8_t **ret)
{
	uint64_t left = PERIOD - offset % PERIOD;

	*ret = pattern + offset % PERIOD;
	return (size_t)(left < len ? left : len);
}

static void put_data(struct bytes *b, uint64_t count)
{
	const uint8_t *p;

	for (size_t n; count > 0; count -= n) {
		n = pattern_at(b->len, count, &p);
		bytes_put(b, p, n);
	}
}

static void put_file(const struct bytes *b)
{
	SCOPED(scope_close)
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_false(b->failed);
	assert_int_equal(io_write_full(fd, b->data, b->len, 0), 0);
}

/* A header of json[len], and so many bytes of data. */
static void put_json_len(const char *json, size_t len, uint64_t data_bytes)
{
	struct bytes b = { 0 };

	bytes_put_u64(&b, len);
	bytes_put(&b, json, len);
	put_data(&b, data_bytes);
	put_file(&b);
	bytes_release(&b);
}

static void put_json(const char *json, uint64_t data_bytes)
{
	put_json_len(json, strlen(json), data_bytes);
}

/* Tensors "0", "1", ... of so many bytes, one after the other. */
static void put_tensors(const uint64_t *sizes, size_t count)
{
	struct bytes json = { 0 };
	uint64_t at = 0;

	bytes_put(&json, "{", 1);
	for (size_t i = 0; i < count; i++) {
		char entry[160];
		int n = snprintf(entry, sizeof(entry),
				 "%s\"%zu\":{\"dtype\":\"U8\",\"shape\":[%llu],"
				 "\"data_offsets\":[%llu,%llu]}",
				 i ? "," : "", i, (unsigned long long)sizes[i],
				 (unsigned long long)at,
				 (unsigned long long)(at + sizes[i]));

		bytes_put(&json, entry, (size_t)n);
		at += sizes[i];
	}
	bytes_put(&json, "}", 1);
	put_json_len((const char *)json.data, json.len, at);
	bytes_release(&json);
}

static struct ckpt_file *open_good(struct ckpt *c)
{
	struct ckpt_file *f;
	int rc = ckpt_file_open(c, path, &f);

	if (rc != 0)
		fail_msg("%d: %s", rc, ckpt_last_error());
	return f;
}

static void assert_says(const char *words)
{
	if (!strstr(ckpt_last_error(), words))
		fail_msg("\"%s\" does not say \"%s\"", ckpt_last_error(),
			 words);
}

/* Not such a file; the message names the path and says `words`. */
static void assert_refused(const char *words)
{
	struct ckpt_file *f;

	assert_int_equal(ckpt_file_open(host, path, &f), -EBADMSG);
	assert_says(path);
	assert_says(words);
}

static void assert_bytes(const uint8_t *got, const struct ckpt_entry *e)
{
	const uint8_t *p;
	size_t n;

	for (uint64_t at = 0; at < e->bytes; at += n) {
		n = pattern_at(e->offset + at, e->bytes - at, &p);
		if (memcmp(got + at, p, n) != 0)
			fail_msg("tensor '%s' differs at byte %llu or behind",
				 e->name, (unsigned long long)at);
	}
}

/* --- What a file shows -----------------------------------------------------
 */

#define TENSOR(dtype, shape, from, to)                           \
	"{\"dtype\":\"" dtype "\",\"shape\":" shape              \
	",\"data_offsets\":[" #from "," #to "]}"

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

/* --- What is refused -------------------------------------------------------
 */

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
	static const struct {
		const char *json;
		const char *words;
	} bad[] = {
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
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		put_json(bad[i].json, 0);
		assert_refused(bad[i].words);
	}
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
	static const struct {
		const char *json;
		const char *words;
	} bad[] = { /* with 8 bytes of data */
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
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		put_json(bad[i].json, 8);
		assert_refused(bad[i].words);
	}
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
	static const struct {
		const char *json;
		const char *words;
	} bad[] = { /* with 8 bytes of data */
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
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		put_json(bad[i].json, 8);
		assert_refused(bad[i].words);
	}
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

/* --- Reading into host memory ----------------------------------------------
 */

/* More than a slice, less, nothing; neighbours that share a slice. */
static const uint64_t some_sizes[] = {
	9 * MIB + 5, 0, 1, 4096, 4 * MIB, 3, 4 * MIB - 1, 700000, 17, 12 * MIB,
};
#define SOME (sizeof(some_sizes) / sizeof(*some_sizes))

struct reads {
	struct ckpt_target targets[TENSORS_MAX];
	size_t count;
};

/* Room on the host for every entry, the last one first. */
static void want_all(struct reads *r, const struct ckpt_file *f)
{
	size_t count = ckpt_file_count(f);

	assert_true(count <= TENSORS_MAX);
	r->count = count;
	for (size_t i = 0; i < count; i++) {
		const struct ckpt_entry *e = ckpt_file_entry(f, count - 1 - i);

		r->targets[i] = (struct ckpt_target){
			.entry = e,
			.data = e->bytes ? malloc(e->bytes) : NULL,
			.device = CKPT_DEVICE_HOST,
		};
	}
}

static void assert_have_all(const struct reads *r)
{
	for (size_t i = 0; i < r->count; i++)
		assert_bytes(r->targets[i].data, r->targets[i].entry);
}

static void reads_release(struct reads *r)
{
	for (size_t i = 0; i < r->count; i++)
		free(r->targets[i].data);
}

/* Read what is wanted; then the file is closed. */
static void assert_reads_all(struct ckpt_file *f, struct reads *r)
{
	assert_int_equal(ckpt_file_read(f, r->targets, r->count), 0);
	assert_have_all(r);
	reads_release(r);
	ckpt_file_close(f);
}

static void every_byte_is_read(void **state)
{
	static struct reads r;
	struct ckpt_file *f;
	uint64_t sum = 0;

	(void)state;
	for (size_t i = 0; i < SOME; i++)
		sum += some_sizes[i];
	put_tensors(some_sizes, SOME);
	for (unsigned threads = 1; threads < 6; threads++) {
		struct ckpt_options o = { .flags = CKPT_NO_GPU,
					  .copy_threads = threads };
		struct ckpt_counters counted;
		struct ckpt *c;

		assert_int_equal(ckpt_open(&o, &c), 0);
		f = open_good(c);
		want_all(&r, f);
		assert_reads_all(f, &r);
		ckpt_get_counters(c, &counted);
		assert_int_equal(counted.host_bytes, sum);
		assert_int_equal(counted.h2d_bytes, 0);
		ckpt_close(c);
	}
}

static void small_tensors_are_read_together(void **state)
{
	static struct reads r;
	uint64_t sizes[TENSORS_MAX];
	struct ckpt_file *f;

	(void)state;
	for (size_t i = 0; i < TENSORS_MAX; i++)
		sizes[i] = i % 97 * (i % 13 ? 1 : 512);
	put_tensors(sizes, TENSORS_MAX);
	f = open_good(host);
	want_all(&r, f);
	assert_reads_all(f, &r);
}

static void any_choice_of_tensors_can_be_read(void **state)
{
	static const unsigned chosen[] = { 5, 8, 5, 2, 1 };
	static struct reads r;
	struct ckpt_file *f;

	(void)state;
	put_tensors(some_sizes, SOME);
	f = open_good(host);
	assert_int_equal(ckpt_file_read(f, NULL, 0), 0);
	r.count = sizeof(chosen) / sizeof(*chosen);
	for (size_t i = 0; i < r.count; i++) {
		r.targets[i].entry = ckpt_file_entry(f, chosen[i]);
		r.targets[i].data = malloc(r.targets[i].entry->bytes + 1);
		r.targets[i].device = CKPT_DEVICE_HOST;
	}
	assert_reads_all(f, &r);
}

static void an_open_file_keeps_its_version(void **state)
{
	static struct reads r;
	struct ckpt_file *f;

	(void)state;
	put_tensors(some_sizes, SOME);
	f = open_good(host);
	assert_int_equal(unlink(path), 0);
	put_json("{}", 0);
	want_all(&r, f);
	assert_reads_all(f, &r);
}

static void a_file_that_shrinks_is_an_error(void **state)
{
	static struct reads r;
	struct ckpt_file *f;

	(void)state;
	put_tensors(some_sizes, SOME);
	f = open_good(host);
	want_all(&r, f);
	assert_int_equal(truncate(path, 10 * MIB), 0);
	assert_int_equal(ckpt_file_read(f, r.targets, r.count), -ESTALE);
	assert_says(path);
	assert_says("it is shorter now than when it was opened");
	reads_release(&r);
	ckpt_file_close(f);
}

static void wrong_targets_are_refused(void **state)
{
	struct ckpt_entry foreign = { .name = "x" };
	struct ckpt_target t = { .device = CKPT_DEVICE_HOST };
	struct ckpt_file *f;
	struct ckpt_file *other;
	uint8_t byte = 7;

	(void)state;
	put_json("{\"w\":" TENSOR("U8", "[1]", 0, 1) "}", 1);
	f = open_good(host);
	other = open_good(host);
	assert_int_equal(ckpt_file_read(f, &t, 1), -EINVAL);
	assert_says("a target's entry is not one of this file");
	t.entry = &foreign;
	assert_int_equal(ckpt_file_read(f, &t, 1), -EINVAL);
	t.entry = ckpt_file_entry(other, 0);
	assert_int_equal(ckpt_file_read(f, &t, 1), -EINVAL);
	t.entry = ckpt_file_entry(f, 0);
	assert_int_equal(ckpt_file_read(f, &t, 1), -EINVAL);
	assert_says("tensor 'w': NULL was given for its 1 bytes");
	t.data = &byte;
	t.device = 0;
	assert_int_equal(ckpt_file_read(f, &t, 1), -EINVAL);
	assert_says("tensor 'w': there is no device 0: not looked for");
	t.device = CKPT_DEVICE_ANY;
	assert_int_equal(ckpt_file_read(f, &t, 1), -EINVAL);
	assert_says("there is no device -2");
	assert_int_equal(byte, 7);
	t.device = CKPT_DEVICE_HOST;
	assert_int_equal(ckpt_file_read(f, &t, 1), 0);
	assert_bytes(&byte, t.entry);
	ckpt_file_close(other);
	ckpt_file_close(f);
}

static void a_child_opens_its_own(void **state)
{
	struct ckpt_file *f;
	int status;
	pid_t child;

	(void)state;
	put_json("{}", 0);
	f = open_good(host);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		status = ckpt_file_read(f, NULL, 0) != -ECHILD;
		status |= ckpt_file_open(host, path, &f) != -ECHILD;
		_exit(status);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	ckpt_file_close(f);
}

/* --- Reading to devices ----------------------------------------------------
 */

#define OUT_OF_MEMORY 2 /* the driver's */

static struct ckpt *open_with_driver(uint64_t buffer_bytes)
{
	struct ckpt_options o = { .buffer_bytes = buffer_bytes };
	struct ckpt *c;

	fake_cuda_fail("", 0, 0);
	assert_int_equal(ckpt_open(&o, &c), 0);
	assert_non_null(c->gpu);
	return c;
}

/* Room for every entry: on device 0, on device 1, on the host, in turn. */
static uint64_t want_everywhere(struct reads *r, const struct ckpt_file *f,
				struct gpu *gpu)
{
	uint64_t on_devices = 0;

	want_all(r, f);
	for (size_t i = 0; i < r->count; i++) {
		struct ckpt_target *t = &r->targets[i];

		if (i % 3 == 2 || t->entry->bytes == 0)
			continue;
		free(t->data);
		t->device = (int)(i % 3);
		assert_int_equal(gpu_alloc(gpu, t->device, t->entry->bytes,
					   &t->data),
				 0);
		on_devices += t->entry->bytes;
	}
	return on_devices;
}

/* What is on a device is compared here, and given back. */
static void assert_have_everywhere(struct reads *r, struct gpu *gpu)
{
	for (size_t i = 0; i < r->count; i++) {
		struct ckpt_target *t = &r->targets[i];
		struct gpu_stream *s;
		void *copy;

		if (t->device == CKPT_DEVICE_HOST)
			continue;
		copy = malloc(t->entry->bytes);
		assert_non_null(copy);
		assert_int_equal(gpu_stream_new(gpu, t->device, &s), 0);
		assert_int_equal(gpu_copy_d2h(s, copy, t->data,
					      t->entry->bytes),
				 0);
		assert_int_equal(gpu_stream_sync(s), 0);
		gpu_stream_free(s);
		gpu_free(gpu, t->device, t->data);
		t->data = copy;
		t->device = CKPT_DEVICE_HOST;
	}
	assert_have_all(r);
	reads_release(r);
}

static void every_byte_goes_to_its_device_once(void **state)
{
	/* Smaller than tensors, odd, and larger than all of them. */
	static const uint64_t buffers[] = { 1 * MIB, 5 * MIB - 3, 64 * MIB };
	static struct reads r;

	(void)state;
	put_tensors(some_sizes, SOME);
	for (size_t i = 0; i < sizeof(buffers) / sizeof(*buffers); i++) {
		struct ckpt *c = open_with_driver(buffers[i]);
		struct ckpt_file *f = open_good(c);
		uint64_t bytes = want_everywhere(&r, f, c->gpu);
		uint64_t before = fake_cuda_h2d_bytes();
		struct ckpt_counters counted;

		assert_int_equal(ckpt_file_read(f, r.targets, r.count), 0);
		assert_int_equal(fake_cuda_h2d_bytes() - before, bytes);
		ckpt_get_counters(c, &counted);
		assert_int_equal(counted.h2d_bytes, bytes);
		assert_int_equal(counted.pin_failures, 0);
		assert_have_everywhere(&r, c->gpu);
		ckpt_file_close(f);
		ckpt_close(c);
		assert_int_equal(fake_cuda_device_bytes(), 0);
	}
}

static void small_tensors_share_a_buffer(void **state)
{
	uint64_t sizes[TENSORS_MAX];
	static struct reads r;
	struct ckpt *c = open_with_driver(1 * MIB);
	struct ckpt_file *f;
	uint64_t syncs;

	(void)state;
	for (size_t i = 0; i < TENSORS_MAX; i++)
		sizes[i] = i % 200; /* 300 KB */
	put_tensors(sizes, TENSORS_MAX);
	f = open_good(c);
	(void)want_everywhere(&r, f, c->gpu);
	syncs = fake_cuda_syncs();
	assert_int_equal(ckpt_file_read(f, r.targets, r.count), 0);
	assert_int_equal(fake_cuda_syncs() - syncs, 2); /* one for a device */
	assert_have_everywhere(&r, c->gpu);
	ckpt_file_close(f);
	ckpt_close(c);
}

static void buffers_stay_with_the_handle(void **state)
{
	const uint64_t before = fake_cuda_pinned_bytes();
	static struct reads r;
	struct ckpt *c = open_with_driver(2 * MIB);

	(void)state;
	put_tensors(some_sizes, SOME);
	for (int again = 0; again < 3; again++) {
		struct ckpt_file *f = open_good(c);
		struct ckpt_counters counted;

		(void)want_everywhere(&r, f, c->gpu);
		assert_int_equal(ckpt_file_read(f, r.targets, r.count), 0);
		assert_have_everywhere(&r, c->gpu);
		ckpt_get_counters(c, &counted);
		assert_int_equal(counted.pinned_bytes, 4 * MIB);
		assert_int_equal(fake_cuda_pinned_bytes() - before, 4 * MIB);
		ckpt_file_close(f);
	}
	ckpt_close(c);
	assert_int_equal(fake_cuda_pinned_bytes(), before);
}

/* One of the two buffers, the other, both. */
static void memory_that_cannot_be_pinned_is_used_as_it_is(void **state)
{
	static struct reads r;

	(void)state;
	put_tensors(some_sizes, SOME);
	for (unsigned n = 1; n <= 2; n++) {
		struct ckpt *c = open_with_driver(2 * MIB);
		struct ckpt_file *f = open_good(c);
		struct ckpt_counters counted;

		(void)want_everywhere(&r, f, c->gpu);
		fake_cuda_fail("cuMemHostAlloc", n, OUT_OF_MEMORY);
		assert_int_equal(ckpt_file_read(f, r.targets, r.count), 0);
		assert_have_everywhere(&r, c->gpu);
		ckpt_get_counters(c, &counted);
		assert_int_equal(counted.pin_failures, 1);
		assert_int_equal(counted.pinned_bytes,
				 fake_cuda_pinned_bytes());
		ckpt_file_close(f);
		ckpt_close(c);
		assert_int_equal(fake_cuda_pinned_bytes(), 0);
	}
}

/* Fail the 1st, 2nd, ... call of each until a read goes through untouched. */
static void every_failure_of_the_driver_is_reported(void **state)
{
	static const char *const symbols[] = {
		"cuPointerGetAttributes", "cuStreamCreate",
		"cuEventCreate",	  "cuMemcpyHtoDAsync_v2",
		"cuEventRecord",	  "cuEventSynchronize",
		"cuStreamSynchronize",
	};
	static struct reads r;
	struct ckpt *c = open_with_driver(2 * MIB);
	struct ckpt_file *f;

	(void)state;
	put_tensors(some_sizes, SOME);
	f = open_good(c);
	(void)want_everywhere(&r, f, c->gpu);
	for (size_t i = 0; i < sizeof(symbols) / sizeof(*symbols); i++) {
		unsigned n = 0;
		int rc;

		do {
			fake_cuda_fail(symbols[i], ++n, OUT_OF_MEMORY);
			rc = ckpt_file_read(f, r.targets, r.count);
			assert_true(rc == 0 || rc == -ENOMEM);
		} while (rc < 0 && n < 1000);
		assert_true(n > 1);
		assert_int_equal(rc, 0);
	}
	fake_cuda_fail("", 0, 0);
	assert_have_everywhere(&r, c->gpu);
	ckpt_file_close(f);
	ckpt_close(c);
	assert_int_equal(fake_cuda_pinned_bytes(), 0);
}

static void a_file_that_shrinks_is_an_error_for_devices(void **state)
{
	static struct reads r;
	struct ckpt *c = open_with_driver(2 * MIB);
	struct ckpt_file *f;

	(void)state;
	put_tensors(some_sizes, SOME);
	f = open_good(c);
	(void)want_everywhere(&r, f, c->gpu);
	assert_int_equal(truncate(path, 10 * MIB), 0);
	assert_int_equal(ckpt_file_read(f, r.targets, r.count), -ESTALE);
	assert_says("it is shorter now than when it was opened");
	put_tensors(some_sizes, SOME); /* the same inode is whole again */
	assert_int_equal(ckpt_file_read(f, r.targets, r.count), 0);
	assert_have_everywhere(&r, c->gpu);
	ckpt_file_close(f);
	ckpt_close(c);
}

static void a_pointer_is_where_it_is_said_to_be(void **state)
{
	static const struct {
		int there;
		int said;
		const char *words;
	} wrong[] = {
		{ 0, 1, "its pointer is on device 0, and was said to be on 1" },
		{ 1, 0, "its pointer is on device 1, and was said to be on 0" },
		{ 1, CKPT_DEVICE_HOST, "its pointer is on device 1, and was" },
		{ 0, 2, "there is no device 2: CUDA driver" },
	};
	struct ckpt *c = open_with_driver(0);
	struct ckpt_target t = { .entry = NULL };
	struct ckpt_file *f;
	uint8_t byte;

	(void)state;
	put_json("{\"w\":" TENSOR("U8", "[1]", 0, 1) "}", 1);
	f = open_good(c);
	t.entry = ckpt_file_entry(f, 0);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		assert_int_equal(gpu_alloc(c->gpu, wrong[i].there, 1, &t.data),
				 0);
		t.device = wrong[i].said;
		assert_int_equal(ckpt_file_read(f, &t, 1), -EINVAL);
		assert_says("tensor 'w'");
		assert_says(wrong[i].words);
		gpu_free(c->gpu, wrong[i].there, t.data);
	}
	t.data = &byte;
	t.device = 0;
	assert_int_equal(ckpt_file_read(f, &t, 1), -EINVAL);
	assert_says("said to be on device 0, and is in host memory");
	ckpt_file_close(f);
	ckpt_close(c);
}

/* --- The frame -------------------------------------------------------------
 */

static int set_up(void **state)
{
	struct ckpt_options o = { .flags = CKPT_NO_GPU };

	(void)state;
	make_pattern();
	if (!mkdtemp(dir))
		return -1;
	snprintf(path, sizeof(path), "%s/a.safetensors", dir);
	return ckpt_open(&o, &host);
}

static int tear_down(void **state)
{
	(void)state;
	ckpt_close(host);
	(void)unlink(path);
	return rmdir(dir);
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
		cmocka_unit_test(every_byte_is_read),
		cmocka_unit_test(small_tensors_are_read_together),
		cmocka_unit_test(any_choice_of_tensors_can_be_read),
		cmocka_unit_test(an_open_file_keeps_its_version),
		cmocka_unit_test(a_file_that_shrinks_is_an_error),
		cmocka_unit_test(wrong_targets_are_refused),
		cmocka_unit_test(a_child_opens_its_own),
		cmocka_unit_test(every_byte_goes_to_its_device_once),
		cmocka_unit_test(small_tensors_share_a_buffer),
		cmocka_unit_test(buffers_stay_with_the_handle),
		cmocka_unit_test(memory_that_cannot_be_pinned_is_used_as_it_is),
		cmocka_unit_test(every_failure_of_the_driver_is_reported),
		cmocka_unit_test(a_file_that_shrinks_is_an_error_for_devices),
		cmocka_unit_test(a_pointer_is_where_it_is_said_to_be),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
