/* Cuts that the bytes choose (gear.h): the rule, and what follows from it. */
#include <xxhash.h>

#include "store/formats/gear.h"
#include "tests/unit/cut_fixture.h"

static uint64_t splitmix(uint64_t *seed)
{
	uint64_t z = *seed += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

/* len bytes, of which only the bits in mask are not 0. */
static uint8_t *noise(size_t len, uint64_t seed, uint64_t mask)
{
	uint8_t *p = malloc(len + 8);

	assert_non_null(p);
	for (size_t i = 0; i < len; i += 8) {
		uint64_t word = splitmix(&seed) & mask;

		for (size_t k = 0; k < 8; k++)
			p[i + k] = (uint8_t)(word >> 8 * k);
	}
	return p;
}

/* --- the rule, as gear.h states it: slow, and plainly right --- */

static uint16_t plain_gear(uint8_t b)
{
	uint32_t x = (b + 1u) * 0x9e3b % 65536;

	x ^= x >> 7;
	return (uint16_t)(x * 0xc2b3 % 65536);
}

static bool plain_is_candidate(const uint8_t *last)
{
	uint32_t h = 0;

	for (unsigned i = 0; i < 16; i++)
		h += (uint32_t)plain_gear(*(last - i)) << i;
	return h % 65536 < 16;
}

static uint32_t plain_cut(const uint8_t *p, uint32_t len)
{
	for (uint32_t i = 64 * KIB; i < len; i++) {
		unsigned zeros = i < 128 * KIB ? 8 : 4;

		if (plain_is_candidate(p + i) &&
		    XXH3_64bits(p + i - 31, 32) % (1u << zeros) == 0)
			return i + 1;
	}
	return len;
}

static void every_vector_unit_follows_the_rule(void **state)
{
	static const uint64_t masks[] = { UINT64_MAX, 0x0101010101010101,
					  0xffff0000ffff, 0 };
	uint8_t *p = noise(GEAR_BLOCK_BYTES + 16, 1, UINT64_MAX);

	(void)state;
	for (unsigned round = 0; round < 400; round++) {
		size_t len = round < 200 ? GEAR_BLOCK_BYTES : round;
		uint16_t want[GEAR_BLOCK_BYTES], got[GEAR_BLOCK_BYTES];
		size_t count = 0;

		free(p);
		p = noise(len + 16, round, masks[round % 4]);
		for (size_t i = 0; i < len; i++)
			if (plain_is_candidate(p + 16 + i))
				want[count++] = (uint16_t)i;
		assert_int_equal(gear_scan_generic(p + 16, len, got), count);
		assert_memory_equal(got, want, count * sizeof(*got));
#if defined(__x86_64__)
		if (!__builtin_cpu_supports("avx2"))
			continue;
		assert_int_equal(gear_scan_avx2(p + 16, len, got), count);
		assert_memory_equal(got, want, count * sizeof(*got));
#endif
	}
	free(p);
}

static void chunks_end_where_the_rule_says(void **state)
{
	uint8_t *p = noise(8 * MIB, 7, UINT64_MAX);
	uint32_t at = 0;

	(void)state;
	while (at < 8 * MIB) {
		uint32_t left = (uint32_t)(8 * MIB) - at;
		uint32_t len = left < CONTENT_BYTES_MAX ? left :
							  CONTENT_BYTES_MAX;
		uint32_t cut = gear_cut(p + at, len);

		assert_int_equal(cut, plain_cut(p + at, len));
		at += cut;
	}
	free(p);
}

/* A store depends on it: no other cut finds what is there. */
static void the_cut_of_known_bytes_is_known(void **state)
{
	static const uint32_t want[] = { 145294, 197635, 182205, 150567,
					 187469, 193420, 386121, 90318 };
	uint8_t *p = noise(4 * MIB, 1, UINT64_MAX);
	uint32_t at = 0;

	(void)state;
	for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++) {
		uint32_t cut = gear_cut(p + at, CONTENT_BYTES_MAX);

		assert_int_equal(cut, want[i]);
		at += cut;
	}
	free(p);
}

/* --- files --- */

static void file_of(struct file *f, const void *p, size_t len)
{
	file_init(f);
	f->rule = CUT_BY_CONTENT;
	file_put(f, p, len);
}

static void assert_sizes(const struct cut *c, uint32_t max)
{
	for (size_t i = 0; i + 1 < c->count; i++)
		assert_in_range(c->len[i], CONTENT_BYTES_MIN, max);
}

static void what_no_format_knows_is_cut_by_content(void **state)
{
	static const size_t sizes[] = { 1, CONTENT_BYTES_MIN - 1,
					CONTENT_BYTES_MIN,
					CONTENT_BYTES_MIN + 1,
					CONTENT_BYTES_MAX + 1, 9 * MIB + 5 };
	uint8_t *p = noise(9 * MIB + 5, 3, UINT64_MAX);

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		struct file f;
		struct cut c;

		file_of(&f, p, sizes[i]);
		c = file_cut(&f);
		assert_string_equal(c.format, "plain");
		assert_sizes(&c, CONTENT_BYTES_MAX);
		assert_true(sizes[i] > CONTENT_BYTES_MIN || c.count == 1);
		assert_passes_on_read_errors(&f);
		cut_release(&c);
		file_release(&f);
	}
	free(p);
}

/* Two chunks on, what was inserted is forgotten; four are allowed here. */
static void after_an_insertion_the_cut_is_the_same_again(void **state)
{
	static const size_t inserted[] = { 1, 7, 4096, 100001, 3 * MIB + 1 };
	uint8_t *p = noise(16 * MIB, 5, UINT64_MAX);
	uint8_t *q = malloc(20 * MIB);

	(void)state;
	assert_non_null(q);
	for (size_t i = 0; i < sizeof(inserted) / sizeof(*inserted); i++) {
		struct file f, g;
		struct cut c, d;
		size_t same = 0;

		memset(q, 0x5a, inserted[i]);
		memcpy(q + inserted[i], p, 16 * MIB);
		file_of(&f, p, 16 * MIB);
		file_of(&g, q, 16 * MIB + inserted[i]);
		c = file_cut(&f);
		d = file_cut(&g);
		while (same < c.count && same < d.count &&
		       c.len[c.count - 1 - same] == d.len[d.count - 1 - same])
			same++;
		assert_true(c.count > 40);
		assert_in_range(same, c.count - 4, c.count);
		cut_release(&c);
		cut_release(&d);
		file_release(&f);
		file_release(&g);
	}
	free(p);
	free(q);
}

static void equal_bytes_make_chunks_of_the_greatest_length(void **state)
{
	uint8_t *p = malloc(3 * MIB);

	(void)state;
	assert_non_null(p);
	for (unsigned byte = 0; byte < 256; byte++) {
		memset(p, (int)byte, 3 * MIB);
		assert_int_equal(gear_cut(p, CONTENT_BYTES_MAX),
				 CONTENT_BYTES_MAX);
	}
	free(p);
}

/* --- zeros, and holes --- */

static void zeros_are_chunks_by_themselves(void **state)
{
	static const struct {
		uint64_t data, zeros;
	} parts[] = { { 3 * MIB, 2 * MIB },
		      { 1, 64 * KIB },
		      { 70 * KIB, 64 * KIB - 1 }, /* too few */
		      { 100, 9 * MIB + 1 },
		      { 4096, 100 * KIB } };
	uint8_t *p = noise(3 * MIB, 11, UINT64_MAX);
	uint64_t at = 0, data = 0;
	struct file f;
	struct cut c;

	(void)state;
	/* None that is not zero is, so that the parts end where they say. */
	for (size_t i = 0; i < 3 * MIB; i++)
		p[i] |= 1;
	file_of(&f, p, 0);
	for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
		file_put(&f, p, parts[i].data);
		file_hole(&f, parts[i].zeros);
		data += parts[i].data;
	}
	c = file_cut(&f);
	for (size_t i = 0; i < c.count; at += c.len[i++]) {
		uint8_t *buf = malloc(c.len[i]);
		size_t zeros = 0;

		assert_int_equal(file_read(&f, buf, c.len[i], at), 0);
		while (zeros < c.len[i] && buf[zeros] == 0)
			zeros++;
		if (zeros < c.len[i])
			data -= c.len[i];
		free(buf);
	}
	/* What is stored has those zeros alone that are too few. */
	assert_int_equal(data + 64 * KIB - 1, 0);
	cut_release(&c);
	file_release(&f);
	free(p);
}

#define HOLE_AT (2 * MIB + 12345)
#define HOLE_END (UINT64_C(40) * MIB + 777)

struct sparse {
	struct file *f;
	uint8_t window[CHUNK_BYTES_MAX];
};

static uint64_t sparse_data_at(void *self, uint64_t off)
{
	(void)self;
	return off >= HOLE_AT && off < HOLE_END ? HOLE_END : off;
}

static int sparse_peek(void *self, uint64_t off, size_t len,
		       const uint8_t **ret)
{
	struct sparse *s = self;

	/* What begins in the hole is only looked at near its end. */
	assert_true(off < HOLE_AT || off + CONTENT_BYTES_MAX > HOLE_END);
	*ret = s->window;
	return file_read(s->f, s->window, len, off);
}

static void a_hole_is_cut_as_zeros_are_and_not_looked_at(void **state)
{
	uint8_t *p = noise(4 * MIB, 9, UINT64_MAX);
	struct sparse *s = calloc(1, sizeof(*s));
	struct cut_source source = { .read = file_read };
	const struct cut_bytes bytes = { sparse_peek, sparse_data_at, s };
	struct cutter *cutter;
	struct file f;
	struct cut c;
	uint32_t len;

	(void)state;
	assert_non_null(s);
	file_of(&f, p, HOLE_AT);
	file_hole(&f, HOLE_END - HOLE_AT);
	file_put(&f, p, 4 * MIB);
	c = file_cut(&f); /* all of it is read */

	s->f = &f;
	source.self = &f;
	source.size_bytes = f.size;
	assert_int_equal(cutter_open(&source, &bytes, CUT_BY_CONTENT, &cutter),
			 0);
	assert_true(cutter_count_max(cutter) >= c.count);
	for (size_t i = 0; i < c.count; i++) {
		assert_int_equal(cutter_next(cutter, &len), 1);
		assert_int_equal(len, c.len[i]);
	}
	assert_int_equal(cutter_next(cutter, &len), 0);
	cutter_close(cutter);
	cut_release(&c);
	file_release(&f);
	free(s);
	free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_vector_unit_follows_the_rule),
		cmocka_unit_test(chunks_end_where_the_rule_says),
		cmocka_unit_test(the_cut_of_known_bytes_is_known),
		cmocka_unit_test(what_no_format_knows_is_cut_by_content),
		cmocka_unit_test(after_an_insertion_the_cut_is_the_same_again),
		cmocka_unit_test(
			equal_bytes_make_chunks_of_the_greatest_length),
		cmocka_unit_test(zeros_are_chunks_by_themselves),
		cmocka_unit_test(a_hole_is_cut_as_zeros_are_and_not_looked_at),
	};

	return cmocka_run_group_tests_name("cut_content", tests, NULL, NULL);
}
