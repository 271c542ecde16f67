/*
 * How items share transfer buffers and files: the vectors are what verl's and
 * nvidia-resiliency-ext's own functions gave for the same input.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gpu/ckpt_gpu.h"

#define ITEMS_MAX 8
#define KIB UINT64_C(1024)

struct bucket_vector {
	uint64_t bytes;
	unsigned rank;
	size_t count;
	size_t items[ITEMS_MAX];
};

struct pack_vector {
	size_t count;
	uint64_t sizes[ITEMS_MAX];
	size_t rank_count;
	unsigned ranks[2];
	uint64_t buffer_bytes, bucket_bytes;
	size_t bucket_count;
	struct bucket_vector buckets[6];
};

static const struct pack_vector packed[] = {
	{ 4,
	  { 1, 256, 257, 1000 },
	  2,
	  { 0, 1 },
	  1024,
	  1024,
	  3,
	  { { 768, 0, 2, { 0, 2 } },
	    { 256, 1, 1, { 1 } },
	    { 1024, 1, 1, { 3 } } } },
	{ 6,
	  { 600, 600, 600, 600, 600, 600 },
	  2,
	  { 0, 1 },
	  1024,
	  1024,
	  6,
	  { { 768, 0, 1, { 0 } },
	    { 768, 0, 1, { 2 } },
	    { 768, 0, 1, { 4 } },
	    { 768, 1, 1, { 1 } },
	    { 768, 1, 1, { 3 } },
	    { 768, 1, 1, { 5 } } } },
	{ 3,
	  { 5000, 10, 10 },
	  1,
	  { 0 },
	  1024,
	  5120,
	  2,
	  { { 5120, 0, 1, { 0 } }, { 512, 0, 2, { 1, 2 } } } },
	{ 8,
	  { 512, 512, 512, 512, 512, 512, 512, 512 },
	  2,
	  { 0, 1 },
	  1024,
	  1024,
	  4,
	  { { 1024, 0, 2, { 0, 2 } },
	    { 1024, 0, 2, { 4, 6 } },
	    { 1024, 1, 2, { 1, 3 } },
	    { 1024, 1, 2, { 5, 7 } } } },
	/* Ranks are sorted first; one of them has nothing to send. */
	{ 1, { 7 }, 2, { 9, 4 }, 256, 256, 1, { { 256, 4, 1, { 0 } } } },
	/* Nothing at all, and what has no bytes. */
	{ 0, { 0 }, 1, { 0 }, 1024, 1024, 0, { { 0 } } },
	{ 2, { 0, 0 }, 1, { 3 }, 1024, 1024, 1, { { 0, 3, 2, { 0, 1 } } } },
};

static void buckets_are_packed_as_upstream_packs_them(void **state)
{
	(void)state;
	for (size_t v = 0; v < sizeof(packed) / sizeof(*packed); v++) {
		const struct pack_vector *p = &packed[v];
		struct ckpt_bucket buckets[ITEMS_MAX];
		size_t order[ITEMS_MAX], made = 99;
		uint64_t bytes = 0;

		assert_int_equal(ckpt_pack_buckets(p->sizes, p->count, p->ranks,
						   p->rank_count,
						   p->buffer_bytes, buckets,
						   order, &made, &bytes),
				 0);
		assert_int_equal(bytes, p->bucket_bytes);
		assert_int_equal(made, p->bucket_count);
		for (size_t b = 0; b < made; b++) {
			const struct bucket_vector *want = &p->buckets[b];

			assert_int_equal(buckets[b].rank, want->rank);
			assert_int_equal(buckets[b].bytes, want->bytes);
			assert_int_equal(buckets[b].count, want->count);
			for (size_t i = 0; i < want->count; i++)
				assert_int_equal(order[buckets[b].first + i],
						 want->items[i]);
		}
	}
}

static void packing_refuses_what_has_no_answer(void **state)
{
	const uint64_t huge[] = { UINT64_MAX - 10 };
	const unsigned rank = 0;
	struct ckpt_bucket bucket;
	size_t order, made;
	uint64_t bytes;

	(void)state;
	assert_int_equal(ckpt_pack_buckets(huge, 1, &rank, 0, KIB, &bucket,
					   &order, &made, &bytes),
			 -EINVAL);
	assert_int_equal(ckpt_pack_buckets(huge, 1, &rank, 1, KIB, &bucket,
					   &order, &made, &bytes),
			 -EOVERFLOW);
}

/* obj1 a b obj2 c d e obj3 */
static const uint64_t sizes[] = { 0, 400, 240, 0, 200, 160, 120, 0 };
static const uint8_t is_object[] = { 1, 0, 0, 1, 0, 0, 0, 1 };

struct split_vector {
	size_t bins;
	size_t counts[3];
	uint64_t bytes[3];
	size_t items[3][8];
};

static const struct split_vector splits[] = {
	{ 1, { 8 }, { 1120 }, { { 0, 1, 2, 3, 4, 5, 6, 7 } } },
	{ 2, { 4, 4 }, { 560, 560 }, { { 0, 7, 1, 5 }, { 3, 2, 4, 6 } } },
	{ 3,
	  { 2, 3, 3 },
	  { 400, 360, 360 },
	  { { 0, 1 }, { 3, 2, 6 }, { 7, 4, 5 } } },
};

static void items_are_split_as_upstream_splits_them(void **state)
{
	(void)state;
	for (size_t v = 0; v < sizeof(splits) / sizeof(*splits); v++) {
		const struct split_vector *s = &splits[v];
		size_t bin_of[8], place_of[8], counts[3] = { 0 };
		uint64_t bytes[3] = { 0 };

		assert_int_equal(ckpt_split_items(sizes, is_object, 8, s->bins,
						  bin_of, place_of),
				 0);
		for (size_t i = 0; i < 8; i++) {
			assert_true(bin_of[i] < s->bins);
			assert_true(place_of[i] < s->counts[bin_of[i]]);
			assert_int_equal(s->items[bin_of[i]][place_of[i]], i);
			bytes[bin_of[i]] += sizes[i];
			counts[bin_of[i]]++;
		}
		for (size_t b = 0; b < s->bins; b++) {
			assert_int_equal(bytes[b], s->bytes[b]);
			assert_int_equal(counts[b], s->counts[b]);
		}
	}
}

static void equal_tensors_keep_their_order_and_spread(void **state)
{
	const uint64_t same[] = { 8, 8, 8, 8, 8 };
	const uint8_t none[5] = { 0 };
	const size_t bins[] = { 0, 1, 2, 0, 1 }, places[] = { 0, 0, 0, 1, 1 };
	size_t bin_of[5], place_of[5];

	(void)state;
	assert_int_equal(ckpt_split_items(same, none, 5, 3, bin_of, place_of),
			 0);
	assert_memory_equal(bin_of, bins, sizeof(bins));
	assert_memory_equal(place_of, places, sizeof(places));
	assert_int_equal(ckpt_split_items(same, none, 5, 0, bin_of, place_of),
			 -EINVAL);
	assert_int_equal(ckpt_split_items(NULL, NULL, 0, 4, NULL, NULL), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(buckets_are_packed_as_upstream_packs_them),
		cmocka_unit_test(packing_refuses_what_has_no_answer),
		cmocka_unit_test(items_are_split_as_upstream_splits_them),
		cmocka_unit_test(equal_tensors_keep_their_order_and_spread),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
