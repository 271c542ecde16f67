/*
 * How much of what a cut at tensors would share is found in files whose tensors
 * are not listed, or lie in a row in one: laid out as OCDBT, HDF5 and DeepSpeed
 * do it, with the tensors of a small transformer.
 */
#include <xxhash.h>

#include "tests/unit/zip_fixture.h"

#define LAYERS 2
#define TENSORS_A_LAYER 6
#define TENSORS (LAYERS * TENSORS_A_LAYER)
#define LAYER_BYTES (32 * MIB)
#define ALL_BYTES (LAYERS * LAYER_BYTES)
#define FOUND_PERCENT_MIN 85

struct model {
	uint8_t *p; /* ALL_BYTES */
	uint64_t at[TENSORS + 1];
};

static void fill(uint8_t *p, size_t len, uint64_t seed)
{
	for (size_t i = 0; i < len; i += sizeof(seed)) {
		seed = XXH3_64bits_withSeed(&i, sizeof(i), seed);
		memcpy(p + i, &seed, sizeof(seed));
	}
}

static struct model model_new(void)
{
	struct model m = { .p = malloc(ALL_BYTES) };

	assert_non_null(m.p);
	for (unsigned i = 0; i < TENSORS; i++) {
		uint64_t bytes = i % TENSORS_A_LAYER < 4 ? 4 * MIB : 8 * MIB;

		m.at[i + 1] = m.at[i] + bytes;
		fill(m.p + m.at[i], bytes, i + 1);
	}
	assert_int_equal(m.at[TENSORS], ALL_BYTES);
	return m;
}

/* Train every other tensor but some. The bytes of those that stay. */
static uint64_t model_step(struct model *m)
{
	uint64_t same = 0;

	for (unsigned i = 0; i < TENSORS; i++) {
		uint64_t bytes = m->at[i + 1] - m->at[i];

		if (i % 5 < 2)
			fill(m->p + m->at[i], bytes, 100 + i);
		else
			same += bytes;
	}
	return same;
}

/* --- what a store with the one file finds of the other --- */

#define SEEN_MAX 4096

struct seen {
	uint64_t hash[SEEN_MAX];
	size_t count;
};

static uint64_t found_bytes(struct seen *s, struct file *f, bool add)
{
	uint8_t *buf = malloc(CHUNK_BYTES_MAX);
	struct cut c = file_cut(f);
	uint64_t at = 0, found = 0;

	assert_non_null(buf);
	for (size_t i = 0; i < c.count; at += c.len[i++]) {
		uint64_t hash;
		size_t k = 0;

		assert_int_equal(file_read(f, buf, c.len[i], at), 0);
		hash = XXH3_64bits_withSeed(buf, c.len[i], c.len[i]);
		while (k < s->count && s->hash[k] != hash)
			k++;
		if (k < s->count)
			found += c.len[i];
		else if (add && k < SEEN_MAX)
			s->hash[s->count++] = hash;
	}
	free(buf);
	cut_release(&c);
	return found;
}

static void assert_found(struct seen *s, struct file *f, uint64_t of_bytes)
{
	uint64_t found = found_bytes(s, f, false);

	print_message("found %.1f %% of %llu MiB\n",
		      100.0 * (double)found / (double)of_bytes,
		      (unsigned long long)(of_bytes >> 20));
	assert_true(found * 100 >= of_bytes * FOUND_PERCENT_MIN);
}

static void begin(struct file *f, enum cut_rule rule)
{
	file_init(f);
	f->rule = rule;
}

/* --- OCDBT: values in the order in which they were ready, and their index --- */

static void put_ocdbt(struct file *f, const struct model *m, unsigned step)
{
	uint8_t node[700];

	for (unsigned i = 0; i < TENSORS; i++) {
		unsigned t = (i * (step ? 5 : 7) + step) % TENSORS;

		file_put(f, m->p + m->at[t], m->at[t + 1] - m->at[t]);
		fill(node, sizeof(node) - 4, 1000 * step + i);
		file_put(f, node, 100 + 17 * i + step);
	}
}

/* --- HDF5: a header before each dataset; names of another length, once --- */

static void put_hdf5(struct file *f, const struct model *m, unsigned step)
{
	uint8_t header[4096] = "\x89HDF\r\n\x1a\n";

	file_put(f, header, 2048 + 8 * step);
	for (unsigned i = 0; i < TENSORS; i++) {
		fill(header, 512, 2000 * step + i);
		file_put(f, header, 272);
		file_put(f, m->p + m->at[i], m->at[i + 1] - m->at[i]);
	}
}

static void a_step_is_found(void (*put)(struct file *, const struct model *,
					unsigned))
{
	for (int rule = CUT_FIXED; rule <= CUT_BY_CONTENT; rule++) {
		struct seen *s = calloc(1, sizeof(*s));
		struct model m = model_new();
		struct file a, b;
		uint64_t same;

		assert_non_null(s);
		begin(&a, (enum cut_rule)rule);
		put(&a, &m, 0);
		found_bytes(s, &a, true);
		same = model_step(&m);
		begin(&b, (enum cut_rule)rule);
		put(&b, &m, 1);
		if (rule == CUT_FIXED) /* it is the cut that finds it */
			assert_int_equal(found_bytes(s, &b, false), 0);
		else
			assert_found(s, &b, same);
		file_release(&a);
		file_release(&b);
		free(m.p);
		free(s);
	}
}

static void ocdbt_shares_values_that_did_not_change(void **state)
{
	(void)state;
	a_step_is_found(put_ocdbt);
}

static void hdf5_shares_datasets_that_moved(void **state)
{
	(void)state;
	a_step_is_found(put_hdf5);
}

/* --- ZeRO: a torch archive with one tensor, a part of all parameters --- */

/* What torch pickles for { "flat": a tensor of `count` floats }. */
static void put_pickle(struct bytes *b, uint32_t count, bool matrix)
{
	static const char before[] =
		"\x80\2}q\0X\4\0\0\0flatq\1ctorch._utils\n"
		"_rebuild_tensor_v2\nq\2((X\7\0\0\0storageq\3"
		"ctorch\nFloatStorage\nq\4X\1\0\0\0000q\5X\3\0\0\0cpuq\6J";
	static const char after[] =
		"\x89" "ccollections\nOrderedDict\nq\n)Rq\13tq\14Rq\15s.";

	bytes_put(b, before, sizeof(before) - 1);
	bytes_put_u32(b, count);
	bytes_put(b, "tq\7QK\0", 6);
	if (matrix)
		bytes_put(b, "K\2", 2);
	bytes_put(b, "J", 1);
	bytes_put_u32(b, matrix ? count / 2 : count);
	if (matrix) {
		bytes_put(b, "\x86q\10J", 4);
		bytes_put_u32(b, count / 2);
		bytes_put(b, "K\1\x86q\t", 5);
	} else {
		bytes_put(b, "\x85q\10K\1\x85q\t", 8);
	}
	bytes_put(b, after, sizeof(after) - 1);
}

static void put_shard(struct file *f, const uint8_t *p, uint64_t len,
		      bool matrix)
{
	struct bytes pickle = { 0 };
	struct zip_out z;

	put_pickle(&pickle, (uint32_t)(len / 4), matrix);
	zip_begin(&z, f, ZIP_TORCH);
	zip_add_data(&z, "x/data.pkl", pickle.data, pickle.len);
	zip_add_data(&z, "x/data/0", p, len);
	zip_add(&z, "x/version", 2);
	zip_end(&z, "");
	bytes_release(&pickle);
}

/* Saved by 3 ranks, and then by 2: each of them has parts of two. */
static void a_flat_shard_shares_with_those_of_more_ranks(void **state)
{
	struct seen *s = calloc(1, sizeof(*s));
	struct model m = model_new();

	(void)state;
	assert_non_null(s);
	for (unsigned ranks = 3; ranks >= 2; ranks--) {
		for (unsigned r = 0; r < ranks; r++) {
			uint64_t len = ALL_BYTES / ranks;
			struct file f;

			begin(&f, CUT_BY_CONTENT);
			put_shard(&f, m.p + r * len, len, false);
			if (ranks == 3)
				found_bytes(s, &f, true);
			else
				assert_found(s, &f, len);
			file_release(&f);
		}
	}
	free(m.p);
	free(s);
}

/* By both rules the same. */
static void assert_cut_as_ever(const uint8_t *p, uint64_t len, bool matrix)
{
	struct cut by_place, by_content;
	struct file f;

	file_init(&f);
	put_shard(&f, p, len, matrix);
	by_place = file_cut(&f);
	f.rule = CUT_BY_CONTENT;
	by_content = file_cut(&f);
	assert_int_equal(by_place.count, by_content.count);
	assert_memory_equal(by_place.len, by_content.len,
			    by_place.count * sizeof(*by_place.len));
	cut_release(&by_place);
	cut_release(&by_content);
	file_release(&f);
}

/* What stores have of it must go on being found. */
static void a_tensor_of_a_layer_is_cut_as_ever(void **state)
{
	struct model m = model_new();

	(void)state;
	assert_cut_as_ever(m.p, ALL_BYTES / 2, true);
	/* Nor is one that is flat, but no more than a bias. */
	assert_cut_as_ever(m.p, CUT_FLAT_BYTES_MIN - 4, false);
	free(m.p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ocdbt_shares_values_that_did_not_change),
		cmocka_unit_test(hdf5_shares_datasets_that_moved),
		cmocka_unit_test(a_flat_shard_shares_with_those_of_more_ranks),
		cmocka_unit_test(a_tensor_of_a_layer_is_cut_as_ever),
	};

	return cmocka_run_group_tests_name("cut_found", tests, NULL, NULL);
}
