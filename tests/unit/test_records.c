/*
 * Every record survives a round trip, and no value, however short, long or
 * wrong, is read past its end or accepted half. Values lie in memory of exactly
 * their size, so that a sanitizer sees a read beyond.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "store/db/records.h"
#include "tests/unit/test_seed.h"

/* Decode a copy that ends where its memory ends; encode what came of it. */
struct codec {
	const char *name;
	int (*recode)(const void *p, size_t len, struct bytes *out);
	void (*sample)(struct bytes *out);
};

static int attr_recode(const void *p, size_t len, struct bytes *out)
{
	struct attr a;
	int rc = attr_decode(p, len, &a);

	if (rc == 0) {
		attr_encode(&a, out);
		attr_release(&a);
	}
	return rc;
}

static void attr_sample(struct bytes *out)
{
	char target[] = "../elsewhere";
	struct attr a = { .mode = S_IFLNK | 0777,
			  .uid = 1000,
			  .gid = 1001,
			  .nlink = 3,
			  .rdev = 0x1234,
			  .atime_ns = -5,
			  .mtime_ns = INT64_MAX,
			  .ctime_ns = INT64_MIN,
			  .mtime_gen = 7,
			  .parent = UINT64_MAX,
			  .name = "a name",
			  .target = target };

	attr_encode(&a, out);
}

static int dirent_recode(const void *p, size_t len, struct bytes *out)
{
	struct dirent_rec d;
	int rc = dirent_decode(p, len, &d);

	if (rc == 0)
		dirent_encode(&d, out);
	return rc;
}

static void dirent_sample(struct bytes *out)
{
	struct dirent_rec d = { .ino = 12, .type = S_IFREG };

	dirent_encode(&d, out);
}

static int content_recode(const void *p, size_t len, struct bytes *out)
{
	struct content c;
	int rc = content_decode(p, len, &c);

	if (rc == 0) {
		content_encode(&c, out);
		content_release(&c);
	}
	return rc;
}

static void content_sample(struct bytes *out)
{
	struct extent e[] = {
		{ 0, 4096, 1, 0 },
		{ 4096, 1, 2, INT64_MAX - 1 },
		{ 100000, 900000, 1, 100000 },
	};
	struct content c = { .generation = 3,
			     .size_bytes = 1000000,
			     .data_bytes = 904097,
			     .mtime_ns = 1,
			     .kind = CONTENT_EXTENTS,
			     .native = true,
			     .digest = { 1, 2, 3 },
			     .extent_count = 3,
			     .extents = e };

	content_encode(&c, out);
}

static int chunk_recode(const void *p, size_t len, struct bytes *out)
{
	struct chunk_rec k;
	int rc = chunk_decode(p, len, &k);

	if (rc == 0)
		chunk_encode(&k, out);
	return rc;
}

static void chunk_sample(struct bytes *out)
{
	struct chunk_rec k = { .len = 1u << 20,
			       .refs = 2,
			       .hash = { 9, 8 },
			       .domain = DOMAIN_ALL };

	chunk_encode(&k, out);
}

static void own_chunk_sample(struct bytes *out)
{
	struct chunk_rec k = {
		.len = 1u << 20, .refs = 2, .hash = { 9, 8 }, .domain = 1000
	};

	chunk_encode(&k, out);
}

static int loc_recode(const void *p, size_t len, struct bytes *out)
{
	struct chunk_locs l;
	int rc = locs_decode(p, len, &l);

	if (rc == 0)
		locs_encode(&l, out);
	return rc;
}

static void loc_sample(struct bytes *out)
{
	struct chunk_locs l = { .count = 0 };

	locs_add(&l, &(struct chunk_loc){ 1, INT64_MAX, 5 });
	locs_encode(&l, out);
}

static int series_recode(const void *p, size_t len, struct bytes *out)
{
	struct series_rec s;
	int rc = series_decode(p, len, &s);

	if (rc == 0)
		series_encode(&s, out);
	return rc;
}

static void series_sample(struct bytes *out)
{
	struct series_rec s = { .size_bytes = UINT64_MAX, .count = 1 };

	series_encode(&s, out);
}

static int u64_recode(const void *p, size_t len, struct bytes *out)
{
	uint64_t v;
	int rc = u64_decode(p, len, &v);

	if (rc == 0)
		bytes_put_u64(out, v);
	return rc;
}

static void u64_sample(struct bytes *out)
{
	bytes_put_u64(out, UINT64_C(0x0123456789abcdef));
}

static int writer_recode(const void *p, size_t len, struct bytes *out)
{
	struct writer w;
	int rc = writer_decode(p, len, &w);

	if (rc == 0)
		writer_encode(&w, out);
	return rc;
}

static void writer_sample(struct bytes *out)
{
	struct writer w = { .source = WRITER_NAME,
			    .kind = WRITER_DATA_PARALLEL,
			    .rank = 12,
			    .world_size = 64,
			    .host = "node-7",
			    .job = "run:12" };

	writer_encode(&w, out);
}

static const struct codec codecs[] = {
	{ "attr", attr_recode, attr_sample },
	{ "dirent", dirent_recode, dirent_sample },
	{ "content", content_recode, content_sample },
	{ "chunk", chunk_recode, chunk_sample },
	{ "chunk of a domain", chunk_recode, own_chunk_sample },
	{ "loc", loc_recode, loc_sample },
	{ "series", series_recode, series_sample },
	{ "u64", u64_recode, u64_sample },
	{ "writer", writer_recode, writer_sample },
};
#define CODECS (sizeof(codecs) / sizeof(*codecs))

static int recode_exactly(const struct codec *c, const void *p, size_t len,
			  struct bytes *out)
{
	void *copy = malloc(len ? len : 1);
	int rc;

	assert_non_null(copy);
	if (len > 0)
		memcpy(copy, p, len);
	rc = c->recode(copy, len, out);
	free(copy);
	return rc;
}

static void every_record_survives_a_round_trip(void **state)
{
	(void)state;
	for (size_t n = 0; n < CODECS; n++) {
		struct bytes in = { 0 }, out = { 0 };

		codecs[n].sample(&in);
		assert_false(in.failed);
		assert_int_equal(
			recode_exactly(&codecs[n], in.data, in.len, &out), 0);
		assert_int_equal(out.len, in.len);
		assert_memory_equal(out.data, in.data, in.len);
		bytes_release(&in);
		bytes_release(&out);
	}
}

static void every_shorter_or_longer_value_is_refused(void **state)
{
	(void)state;
	for (size_t n = 0; n < CODECS; n++) {
		struct bytes in = { 0 }, out = { 0 };

		codecs[n].sample(&in);
		for (size_t len = 0; len < in.len; len++)
			assert_int_equal(
				recode_exactly(&codecs[n], in.data, len, &out),
				-EIO);
		for (size_t more = 1; more < 70; more++) {
			bytes_put_u8(&in, 0);
			assert_int_equal(recode_exactly(&codecs[n], in.data,
							in.len, &out),
					 -EIO);
		}
		assert_int_equal(out.len, 0);
		bytes_release(&in);
		bytes_release(&out);
	}
}

/* What is accepted is settled: decoding it again gives the same. */
static void recode_twice(const struct codec *c, const void *p, size_t len)
{
	struct bytes once = { 0 }, twice = { 0 };
	int rc = recode_exactly(c, p, len, &once);

	if (rc == 0) {
		assert_int_equal(recode_exactly(c, once.data, once.len, &twice),
				 0);
		assert_int_equal(once.len, twice.len);
		assert_memory_equal(once.data, twice.data, once.len);
	} else {
		assert_int_equal(rc, -EIO);
		assert_int_equal(once.len, 0);
	}
	bytes_release(&once);
	bytes_release(&twice);
}

static void a_changed_byte_is_refused_or_means_something(void **state)
{
	(void)state;
	for (size_t n = 0; n < CODECS; n++) {
		struct bytes in = { 0 };

		codecs[n].sample(&in);
		for (size_t at = 0; at < in.len; at++)
			for (unsigned value = 0; value < 256; value++) {
				uint8_t saved = in.data[at];

				in.data[at] = (uint8_t)value;
				recode_twice(&codecs[n], in.data, in.len);
				in.data[at] = saved;
			}
		bytes_release(&in);
	}
}

static void garbage_is_refused_or_means_something(void **state)
{
	uint8_t garbage[512];

	(void)state;
	srand((unsigned)test_seed());
	for (unsigned round = 0; round < 20000; round++) {
		size_t len = (size_t)rand() % sizeof(garbage);

		for (size_t n = 0; n < len; n++)
			garbage[n] = (uint8_t)(rand() % (round % 2 ? 256 : 4));
		recode_twice(&codecs[round % CODECS], garbage, len);
	}
}

static int decode_content(const struct content *c)
{
	struct bytes value = { 0 };
	struct content out;
	int rc;

	content_encode(c, &value);
	rc = content_decode(value.data, value.len, &out);
	bytes_release(&value);
	if (rc == 0)
		content_release(&out);
	return rc;
}

static int recode_locs(const struct chunk_locs *l)
{
	struct bytes in = { 0 }, out = { 0 };
	int rc;

	locs_encode(l, &in);
	rc = loc_recode(in.data, in.len, &out);
	if (rc == 0) {
		assert_int_equal(out.len, in.len);
		assert_memory_equal(out.data, in.data, in.len);
	}
	bytes_release(&in);
	bytes_release(&out);
	return rc;
}

static void copies_of_a_chunk_are_listed_the_newest_first(void **state)
{
	struct chunk_locs l = { .count = 0 };
	struct bytes five = { 0 }, out = { 0 };

	(void)state;
	for (uint64_t i = 1; i <= CHUNK_COPIES_MAX + 1; i++) {
		locs_add(&l, &(struct chunk_loc){ i, 10 * i, 7 });
		assert_int_equal(l.at[0].image, i);
		assert_int_equal(recode_locs(&l), 0);
	}
	assert_int_equal(l.count, CHUNK_COPIES_MAX);
	assert_int_equal(l.at[CHUNK_COPIES_MAX - 1].image, 2);
	locs_encode(&l, &five);
	locs_encode(&(struct chunk_locs){ 1, { { 1, 10, 7 } } }, &five);
	assert_int_equal(loc_recode(five.data, five.len, &out), -EIO);
	bytes_release(&five);
	/* A file's repeats are one copy. */
	locs_add(&l, &(struct chunk_loc){ 3, 31, 7 });
	assert_int_equal(l.count, CHUNK_COPIES_MAX);
	assert_int_equal(l.at[0].offset, 31);
	assert_int_equal(l.at[1].image, 5);
	assert_int_equal(l.at[CHUNK_COPIES_MAX - 1].image, 2);
	locs_add(&l, &(struct chunk_loc){ 4, 41, 7 });
	locs_add(&l, &(struct chunk_loc){ 5, 51, 7 });
	locs_add(&l, &(struct chunk_loc){ 3, 30, 7 });
	locs_add(&l, &(struct chunk_loc){ 5, 50, 7 });
	assert_int_equal(l.at[1].offset, 30);
	locs_remove(&l, 3, 31);
	assert_int_equal(l.count, CHUNK_COPIES_MAX);
	locs_remove(&l, 3, 30);
	assert_int_equal(l.count, CHUNK_COPIES_MAX - 1);
	assert_int_equal(l.at[0].image, 5);
	assert_int_equal(l.at[2].image, 2);
	l.at[2].len = 8;
	assert_int_equal(recode_locs(&l), -EIO);
}

static void extents_that_cannot_be_are_refused(void **state)
{
	static const struct {
		struct extent e[2];
		const char *why;
	} wrong[] = {
		{ { { 0, 0, 1, 0 }, { 10, 1, 1, 0 } }, "empty" },
		{ { { 0, 10, 0, 0 }, { 10, 1, 1, 0 } }, "image 0" },
		{ { { 0, 10, 1, 0 }, { 9, 1, 1, 0 } }, "overlap" },
		{ { { 20, 10, 1, 0 }, { 0, 1, 1, 0 } }, "not sorted" },
		{ { { 0, 10, 1, 0 }, { 95, 6, 1, 0 } }, "past the end" },
		{ { { 0, 10, 1, 0 }, { 101, 1, 1, 0 } }, "after the end" },
		{ { { 0, 10, 1, 0 }, { UINT64_MAX, 1, 1, 0 } }, "wraps" },
		{ { { 0, 10, 1, 0 }, { 50, UINT64_MAX, 1, 0 } }, "len wraps" },
		{ { { 0, 10, 1, UINT64_MAX }, { 50, 1, 1, 0 } },
		  "image offset" },
		{ { { 0, 10, 1, INT64_MAX - 9 }, { 50, 1, 1, 0 } },
		  "image end" },
	};

	(void)state;
	for (size_t n = 0; n < sizeof(wrong) / sizeof(*wrong); n++) {
		struct extent e[2] = { wrong[n].e[0], wrong[n].e[1] };
		struct content c = { .generation = 1,
				     .size_bytes = 100,
				     .kind = CONTENT_EXTENTS,
				     .extent_count = 2,
				     .extents = e };

		if (decode_content(&c) != -EIO)
			fail_msg("accepted: %s", wrong[n].why);
	}
}

static void small_contents_are_small_and_have_no_extents(void **state)
{
	struct extent e = { 0, 1, 1, 0 };
	struct content c = { .generation = 1,
			     .size_bytes = SMALL_BYTES_MAX,
			     .kind = CONTENT_SMALL };

	(void)state;
	assert_int_equal(decode_content(&c), 0);
	c.size_bytes++;
	assert_int_equal(decode_content(&c), -EIO);
	c.size_bytes = 1;
	c.extent_count = 1;
	c.extents = &e;
	assert_int_equal(decode_content(&c), -EIO);
	c.kind = CONTENT_EXTENTS;
	assert_int_equal(decode_content(&c), 0);
	c.kind = 3;
	assert_int_equal(decode_content(&c), -EIO);
	c.kind = 0;
	assert_int_equal(decode_content(&c), -EIO);
}

/* The count alone must not make anybody allocate. */
static void an_extent_count_beyond_the_value_is_refused(void **state)
{
	static const uint64_t counts[] = { 2, UINT64_MAX, UINT64_MAX / 32 + 2,
					   UINT64_C(1) << 59 };
	struct extent e = { 0, 1, 1, 0 };
	struct content c = { .generation = 1,
			     .size_bytes = 1,
			     .kind = CONTENT_EXTENTS,
			     .extent_count = 1,
			     .extents = &e };
	struct bytes value = { 0 };
	struct content out;

	(void)state;
	content_encode(&c, &value);
	for (size_t n = 0; n < sizeof(counts) / sizeof(*counts); n++) {
		uint64_t le = htole64(counts[n]);

		memcpy(value.data + value.len - 32 - 8, &le, sizeof(le));
		assert_int_equal(content_decode(value.data, value.len, &out),
				 -EIO);
	}
	bytes_release(&value);
}

static void the_longest_name_and_target_are_kept(void **state)
{
	struct attr a = { .mode = S_IFLNK, .nlink = 1 }, out;
	struct bytes value = { 0 };
	char target[4096 + 2];

	(void)state;
	memset(a.name, 'n', STORE_NAME_MAX);
	memset(target, 't', sizeof(target));
	a.target = target;
	target[4096] = 0;
	attr_encode(&a, &value);
	assert_int_equal(attr_decode(value.data, value.len, &out), 0);
	assert_int_equal(strlen(out.name), STORE_NAME_MAX);
	assert_string_equal(out.target, target);
	attr_release(&out);
	assert_null(out.target);
	value.len = 0;
	target[4096] = 't';
	target[4097] = 0;
	attr_encode(&a, &value);
	assert_int_equal(attr_decode(value.data, value.len, &out), -EIO);
	bytes_release(&value);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_record_survives_a_round_trip),
		cmocka_unit_test(every_shorter_or_longer_value_is_refused),
		cmocka_unit_test(a_changed_byte_is_refused_or_means_something),
		cmocka_unit_test(garbage_is_refused_or_means_something),
		cmocka_unit_test(copies_of_a_chunk_are_listed_the_newest_first),
		cmocka_unit_test(extents_that_cannot_be_are_refused),
		cmocka_unit_test(small_contents_are_small_and_have_no_extents),
		cmocka_unit_test(an_extent_count_beyond_the_value_is_refused),
		cmocka_unit_test(the_longest_name_and_target_are_kept),
	};

	return cmocka_run_group_tests_name("records", tests, NULL, NULL);
}
