/*
 * The paged stash, on host memory and, through the fake driver, on a device:
 * rows of any size come back as they went in, without a wait of the host; its
 * overflow, its counters, and what it refuses.
 */
#include "tests/unit/stash_fixture.h"

enum cu_results {
	CU_OUT_OF_MEMORY = 2,
	CU_CAPTURE_UNSUPPORTED = 900,
};

/* --- Bytes --- */

static void rows_of_any_size_come_back(void **state)
{
	static const uint32_t widths[] = { 1000, 1024, 1, 4099 };
	static const uint32_t elements[] = { 1, 2, 4, 8 };
	static const int64_t counts[] = { 0, 1, 63, 64, 65, 192 };

	(void)state;
	FOR_BOTH(device)
	{
		for (size_t w = 0; w < 16; w++) {
			/* One tier holds all of it, the other most. */
			struct ckpt_stash_type type = { elements[w % 4],
							widths[w / 4], 192,
							128 };
			struct ckpt_stash_item *i, *spilled;
			struct rig r;

			rig_init(&r, device, type, 0, 192);
			i = item_new(&r);
			spilled = item_new(&r);
			for (size_t n = 0; n < 6; n++) {
				/* Once aligned, then only as elements are. */
				r.in = (uint8_t *)r.memory[0] +
				       n % 3 * type.element_bytes;
				r.out = (uint8_t *)r.memory[1] +
					n % 2 * type.element_bytes;
				pack(&r, i, 1, 192);
				pack(&r, spilled, 2,
				     counts[n] < 128 ? counts[n] : 128);
				assert_unpacks(&r, i, 1, 192);
				assert_unpacks(&r, spilled, 2,
					       counts[n] < 128 ? counts[n]
							       : 128);
				pack(&r, i, 3, counts[n]);
				assert_unpacks(&r, i, 3, counts[n]);
			}
			assert_int_equal(state_of(&r).host_spill, 1);
			assert_false(overflowed(&r));
			ckpt_stash_item_free(i);
			ckpt_stash_item_free(spilled);
			rig_release(&r);
		}
	}
}

/* --- Without the host --- */

static void nothing_waits_and_the_count_is_kept(void **state)
{
	struct ckpt_stash_item *a, *b;
	struct gpu_stream *s;
	uint64_t syncs;
	void *pinned;
	struct rig r;

	(void)state;
	rig_init(&r, 1, SMALL, 4, 40);
	a = item_new(&r);
	b = item_new(&r);
	assert_int_equal(gpu_stream_wrap(r.c->gpu, 1, r.stream, &s), 0);
	assert_int_equal(gpu_host_alloc(r.c->gpu, 8, &pinned), 0);
	*(int64_t *)pinned = 40;
	fill(&r, 5, 21);
	memset(r.out, GUARD, 40 * r.row_bytes);
	syncs = fake_cuda_syncs();
	assert_int_equal(ckpt_stash_pack(a, r.in, r.rows, r.stream), 0);
	/* Somebody else's count, in the same place. */
	assert_int_equal(gpu_copy_h2d(s, r.rows, pinned, 8), 0);
	assert_int_equal(gpu_zero(s, r.in, 40 * r.row_bytes), 0);
	assert_int_equal(ckpt_stash_unpack(a, r.out, r.stream), 0);
	assert_int_equal(ckpt_stash_pack(b, r.in, r.rows, r.stream), 0);
	assert_int_equal(fake_cuda_syncs(), syncs);
	rig_wait(&r);
	assert_true(has_rows(&r, 5, 21));
	assert_false(overflowed(&r));
	gpu_host_free(r.c->gpu, pinned);
	gpu_stream_free(s);
	ckpt_stash_item_free(a);
	ckpt_stash_item_free(b);
	rig_release(&r);
}

static void a_graph_of_it_can_be_replayed(void **state)
{
	static const int64_t counts[] = { 5, 0, 40, 17 };
	struct ckpt_stash_item *i;
	void *graph, *exec;
	struct rig r;

	(void)state;
	rig_init(&r, 1, SMALL, 4, 40);
	i = item_new(&r);
	assert_int_equal(cuStreamBeginCapture_v2(r.stream, 0), 0);
	assert_int_equal(ckpt_stash_reset(r.s, r.stream), 0);
	assert_int_equal(ckpt_stash_pack(i, r.in, r.rows, r.stream), 0);
	assert_int_equal(ckpt_stash_unpack(i, r.out, r.stream), 0);
	/* The fake does refuse to wait now. */
	assert_int_equal(cuStreamSynchronize(r.stream), CU_CAPTURE_UNSUPPORTED);
	assert_int_equal(cuStreamEndCapture(r.stream, &graph), 0);
	assert_int_equal(cuGraphInstantiateWithFlags(&exec, graph, 0), 0);
	assert_int_equal(cuGraphDestroy(graph), 0);
	for (unsigned n = 0; n < 4; n++) {
		fill(&r, n, counts[n]);
		memset(r.out, GUARD, 40 * r.row_bytes);
		assert_int_equal(cuGraphLaunch(exec, r.stream), 0);
		rig_wait(&r);
		assert_true(has_rows(&r, n, counts[n]));
	}
	assert_int_equal(cuGraphExecDestroy(exec), 0);
	ckpt_stash_item_free(i);
	rig_release(&r);
}

/* --- Misuse and overflow --- */

static void a_second_unpack_does_nothing(void **state)
{
	(void)state;
	FOR_BOTH(device)
	{
		struct ckpt_stash_state before, after;
		struct ckpt_stash_item *i;
		struct rig r;

		rig_init(&r, device, SMALL, 4, 40);
		i = item_new(&r);
		assert_unpacks(&r, i, 0, 0); /* never packed */
		pack(&r, i, 1, 9);
		assert_unpacks(&r, i, 1, 9);
		before = state_of(&r);
		assert_unpacks(&r, i, 0, 0);
		after = state_of(&r);
		assert_memory_equal(&before, &after, sizeof(after));
		ckpt_stash_item_free(i);
		rig_release(&r);
	}
}

#define OVERFLOWS 8

/* What makes the flag go up. */
static void overflow_by(struct rig *r, struct ckpt_stash_item *held,
			unsigned how)
{
	static const struct {
		int64_t rows;
		uint64_t max_rows;
	} wrong[] = {
		{ -1, 40 },        { -1, UINT64_MAX },        { 9, 8 },
		{ INT64_MAX, 40 }, { INT64_MAX, UINT64_MAX }, { INT64_MIN, 0 },
		{ 40, 40 }, /* no tier has room for all */
	};
	struct ckpt_stash_item *other;

	if (how == OVERFLOWS - 1) {
		pack(r, held, 1, 1); /* is still packed */
		return;
	}
	assert_int_equal(ckpt_stash_item_new(r->s, r->type.element_bytes,
					     r->type.row_elements,
					     wrong[how].max_rows, &other),
			 0);
	pack(r, other, 1, wrong[how].rows);
	assert_unpacks(r, other, 0, 0);
	ckpt_stash_item_free(other);
}

static void an_overflow_stays_until_the_reset(void **state)
{
	(void)state;
	FOR_BOTH(device)
	{
		for (unsigned how = 0; how < OVERFLOWS; how++) {
			struct ckpt_stash_item *held, *i;
			struct ckpt_stash_state s;
			struct rig r;

			rig_init(&r, device, SMALL, 4, 40);
			held = item_new(&r);
			i = item_new(&r);
			pack(&r, held, 7, 4);
			assert_false(overflowed(&r));
			overflow_by(&r, held, how);
			assert_true(overflowed(&r));
			s = state_of(&r);
			assert_int_equal(s.overflow, 1);
			assert_int_equal(s.head[0], 1); /* nothing was taken */
			assert_int_equal(s.head[1], 0);
			/* From now on nothing goes in and nothing comes out. */
			pack(&r, i, 1, 1);
			assert_unpacks(&r, i, 0, 0);
			assert_unpacks(&r, held, 0, 0);
			assert_true(overflowed(&r));
			reset(&r);
			assert_false(overflowed(&r));
			s = state_of(&r);
			assert_int_equal(s.overflow, 0);
			assert_int_equal(s.tail[0] - s.head[0], 10);
			/* What was packed before is gone. */
			assert_unpacks(&r, held, 0, 0);
			s = state_of(&r);
			assert_int_equal(s.tail[0] - s.head[0], 10);
			pack(&r, held, 3, 40);
			assert_unpacks(&r, held, 3, 40);
			ckpt_stash_item_free(held);
			ckpt_stash_item_free(i);
			rig_release(&r);
		}
	}
}

static void types_do_not_share_pages(void **state)
{
	struct ckpt_stash_type types[] = { { 2, 8, 8, 0 }, { 1, 8, 4, 4 } };
	(void)state;
	FOR_BOTH(device)
	{
		struct ckpt_stash_options o = { device, 4, types, 2 };
		struct ckpt_stash_item *a, *b;
		struct ckpt_stash_state s;
		struct ckpt_stash *one;
		struct rig r;

		rig_init(&r, device, types[0], 4, 8);
		one = r.s;
		assert_int_equal(ckpt_stash_new(r.c, &o, &r.s), 0);
		assert_int_equal(ckpt_stash_item_new(r.s, 2, 8, 8, &a), 0);
		assert_int_equal(ckpt_stash_item_new(r.s, 1, 8, 8, &b), 0);
		pack(&r, a, 1, 8);
		pack(&r, b, 1, 5);
		/* One type is full; all are asked, each has a flag. */
		assert_true(overflowed(&r));
		assert_int_equal(state_of(&r).overflow, 0);
		assert_int_equal(ckpt_stash_get_state(r.s, 1, 8, r.stream, &s),
				 0);
		assert_int_equal(s.overflow, 1);
		assert_unpacks(&r, a, 1, 8);
		ckpt_stash_item_free(a);
		ckpt_stash_item_free(b);
		ckpt_stash_free(one);
		rig_release(&r);
	}
}

/* --- Counters --- */

static void counters_may_be_as_large_as_they_like(void **state)
{
	static const uint64_t starts[] = { (UINT64_C(1) << 32) - 2,
					   (UINT64_C(1) << 63) - 2,
					   UINT64_MAX - 20, UINT64_MAX };

	(void)state;
	FOR_BOTH(device)
	{
		for (size_t n = 0; n < sizeof(starts) / sizeof(*starts); n++) {
			struct ckpt_stash_type type = { 4, 33, 10, 7 };
			struct ckpt_stash_item *a, *b;
			struct stash_ring *ring;
			struct rig r;

			/* 10 and 7 pages: no powers of two. */
			rig_init(&r, device, type, 1, 10);
			a = item_new(&r);
			b = item_new(&r);
			ring = r.s->types[0].view.ring;
			for (unsigned t = 0; t < 2; t++) {
				uint64_t pages = ring->tail[t];

				ring->head[t] = starts[n] - starts[n] % pages;
				ring->tail[t] = ring->head[t] + pages;
			}
			for (unsigned round = 0; round < 30; round++) {
				pack(&r, a, round, 6);
				pack(&r, b, round + 1, 5); /* the host's */
				assert_unpacks(&r, a, round, 6);
				assert_unpacks(&r, b, round + 1, 5);
			}
			assert_false(overflowed(&r));
			assert_int_equal(ring->tail[0] - ring->head[0], 10);
			assert_int_equal(ring->tail[1] - ring->head[1], 7);
			ckpt_stash_item_free(a);
			ckpt_stash_item_free(b);
			rig_release(&r);
		}
	}
}

/* --- Refusals --- */

static void what_cannot_be_is_refused(void **state)
{
	struct ckpt_stash_type type = { 2, 8, 8, 8 };
	struct ckpt_stash_type twice[] = { type, type };
	struct ckpt_stash_options o = { CKPT_DEVICE_HOST, 0, &type, 1 };
	struct ckpt_options no_gpu = { .flags = CKPT_NO_GPU };
	struct ckpt_stash_item *i;
	struct ckpt_stash_state s;
	struct ckpt_stash *stash;
	struct ckpt *c;

	(void)state;
	assert_int_equal(ckpt_open(&no_gpu, &c), 0);
	o.type_count = 0;
	assert_int_equal(ckpt_stash_new(c, &o, &stash), -EINVAL);
	o.type_count = STASH_TYPES_MAX + 1;
	assert_int_equal(ckpt_stash_new(c, &o, &stash), -EINVAL);
	o.types = twice;
	o.type_count = 2;
	assert_int_equal(ckpt_stash_new(c, &o, &stash), -EINVAL);
	o.types = &type;
	o.type_count = 1;
	type.element_bytes = 3;
	assert_int_equal(ckpt_stash_new(c, &o, &stash), -EINVAL);
	type.element_bytes = 2;
	type.row_elements = 0;
	assert_int_equal(ckpt_stash_new(c, &o, &stash), -EINVAL);
	type.row_elements = UINT32_MAX;
	assert_int_equal(ckpt_stash_new(c, &o, &stash), -EOVERFLOW);
	type.row_elements = 8;
	type.device_rows = UINT64_MAX;
	assert_int_equal(ckpt_stash_new(c, &o, &stash), -EOVERFLOW);
	type.device_rows = 8;
	o.device = 0;
	assert_int_equal(ckpt_stash_new(c, &o, &stash), -ENODEV);
	o.device = CKPT_DEVICE_HOST;
	assert_int_equal(ckpt_stash_new(c, &o, &stash), 0);
	assert_int_equal(ckpt_stash_item_new(stash, 4, 8, 1, &i), -EINVAL);
	assert_int_equal(ckpt_stash_get_state(stash, 2, 9, NULL, &s), -EINVAL);
	ckpt_stash_free(stash);
	ckpt_stash_free(NULL);
	ckpt_stash_item_free(NULL);
	ckpt_close(c);
}

static int use_driver(struct ckpt *c)
{
	struct ckpt_stash_type types[] = { { 2, 8, 8, 8 }, { 4, 8, 8, 0 } };
	struct ckpt_stash_options o = { 0, 4, types, 2 };
	struct ckpt_stash_item *i = NULL;
	struct ckpt_stash *s = NULL;
	struct ckpt_stash_state got;
	int rc = ckpt_stash_new(c, &o, &s);

	if (rc == 0)
		rc = ckpt_stash_item_new(s, 2, 8, 8, &i);
	if (rc == 0)
		rc = ckpt_stash_get_state(s, 2, 8, NULL, &got);
	ckpt_stash_item_free(i);
	ckpt_stash_free(s);
	return rc;
}

static void every_failure_of_the_driver_is_told(void **state)
{
	static const char *const calls[] = {
		"cuMemAlloc_v2",        "cuMemHostAlloc",  "cuStreamCreate",
		"cuMemcpyHtoDAsync_v2", "cuLaunchKernel",  "cuModuleLoadData",
		"cuMemcpyDtoHAsync_v2", "cuMemsetD8Async", "cuStreamSynchronize"
	};

	(void)state;
	for (size_t n = 0; n < sizeof(calls) / sizeof(*calls); n++)
		for (unsigned at = 1;; at++) {
			struct ckpt_counters counters;
			struct ckpt *c;
			int rc;

			assert_int_equal(ckpt_open(NULL, &c), 0);
			fake_cuda_fail(calls[n], at, CU_OUT_OF_MEMORY);
			rc = use_driver(c);
			fake_cuda_fail("", 0, 0);
			ckpt_get_counters(c, &counters);
			assert_int_equal(counters.pinned_bytes, 0);
			ckpt_close(c);
			assert_int_equal(fake_cuda_device_bytes(), 0);
			assert_int_equal(fake_cuda_pinned_bytes(), 0);
			if (rc == 0) {
				assert_true(at > 1);
				break;
			}
			assert_int_equal(rc, -ENOMEM);
			assert_true(at < 20);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rows_of_any_size_come_back),
		cmocka_unit_test(nothing_waits_and_the_count_is_kept),
		cmocka_unit_test(a_graph_of_it_can_be_replayed),
		cmocka_unit_test(a_second_unpack_does_nothing),
		cmocka_unit_test(an_overflow_stays_until_the_reset),
		cmocka_unit_test(types_do_not_share_pages),
		cmocka_unit_test(counters_may_be_as_large_as_they_like),
		cmocka_unit_test(what_cannot_be_is_refused),
		cmocka_unit_test(every_failure_of_the_driver_is_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
