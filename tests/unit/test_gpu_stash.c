/*
 * The paged stash, on host memory and, through the fake driver, on a device:
 * after every step of the vectors (made by a transcription of Megatron-LM's
 * kernels) its counters and lists are what they should be, and rows come back
 * as they went in.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "gpu/stash.h"
#include "tests/gpu/fake_cuda.h"
#include "tests/unit/stash_vectors.h"

#define ITEMS 8
#define GUARD 0x5c
/* In front of the data, so that it begins at any alignment. */
#define SHIFT_MAX 16u

enum cu_results {
	CU_OUT_OF_MEMORY = 2,
	CU_CAPTURE_UNSUPPORTED = 900,
};

static const int both[] = { CKPT_DEVICE_HOST, 1 };

#define FOR_BOTH(device)                      \
	for (int both_ = 0, device = both[0]; \
	     both_ < 2 && (device = both[both_], true); both_++)

/* A stash of one type, and room for rows where the stash is. */
struct rig {
	int device;
	struct ckpt *c;
	struct ckpt_stash *s;
	void *stream; /* raw; NULL: host memory */
	struct ckpt_stash_type type;
	uint64_t row_bytes, max_rows;
	uint8_t *in, *out; /* where the stash is */
	int64_t *rows;
	void *memory[3];
};

static void *rig_alloc(struct rig *r, size_t len)
{
	void *p = NULL;

	if (r->device == CKPT_DEVICE_HOST)
		assert_int_equal(posix_memalign(&p, 64, len), 0);
	else
		assert_int_equal(gpu_alloc(r->c->gpu, r->device, len, &p), 0);
	return p;
}

static void rig_init(struct rig *r, int device, struct ckpt_stash_type type,
		     uint32_t page_rows, uint64_t max_rows)
{
	struct ckpt_stash_options options = { .device = device,
					      .page_rows = page_rows,
					      .types = &r->type,
					      .type_count = 1 };
	void *context;

	memset(r, 0, sizeof(*r));
	r->device = device;
	r->type = type;
	r->row_bytes = (uint64_t)type.element_bytes * type.row_elements;
	r->max_rows = max_rows;
	assert_int_equal(ckpt_open(NULL, &r->c), 0);
	if (device != CKPT_DEVICE_HOST) {
		assert_int_equal(cuDevicePrimaryCtxRetain(&context, device), 0);
		assert_int_equal(cuCtxPushCurrent_v2(context), 0);
		assert_int_equal(cuStreamCreate(&r->stream, 1), 0);
	}
	assert_int_equal(ckpt_stash_new(r->c, &options, &r->s), 0);
	for (size_t i = 0; i < 2; i++)
		r->memory[i] =
			rig_alloc(r, max_rows * r->row_bytes + 2 * SHIFT_MAX);
	r->memory[2] = rig_alloc(r, sizeof(*r->rows));
	r->in = r->memory[0];
	r->out = r->memory[1];
	r->rows = r->memory[2];
}

static void rig_release(struct rig *r)
{
	void *context;

	ckpt_stash_free(r->s);
	for (size_t i = 0; i < 3; i++) {
		if (r->device == CKPT_DEVICE_HOST)
			free(r->memory[i]);
		else
			gpu_free(r->c->gpu, r->device, r->memory[i]);
	}
	if (r->device != CKPT_DEVICE_HOST) {
		assert_int_equal(cuStreamDestroy_v2(r->stream), 0);
		assert_int_equal(cuCtxPopCurrent_v2(&context), 0);
		assert_int_equal(cuDevicePrimaryCtxRelease_v2(r->device), 0);
	}
	ckpt_close(r->c);
	assert_int_equal(fake_cuda_device_bytes(), 0);
	assert_int_equal(fake_cuda_pinned_bytes(), 0);
}

static void rig_wait(struct rig *r)
{
	if (r->stream)
		assert_int_equal(cuStreamSynchronize(r->stream), 0);
}

static uint8_t pattern(unsigned key, uint64_t at)
{
	uint64_t x = (at + 1) * 0x9e3779b97f4a7c15u + key * 0x85ebca77u;

	return (uint8_t)(x >> 37);
}

static struct ckpt_stash_item *item_new(struct rig *r)
{
	struct ckpt_stash_item *i;

	assert_int_equal(ckpt_stash_item_new(r->s, r->type.element_bytes,
					     r->type.row_elements, r->max_rows,
					     &i),
			 0);
	return i;
}

static void fill(struct rig *r, unsigned key, int64_t n)
{
	uint64_t rows = n < 0                     ? 0 :
			(uint64_t)n > r->max_rows ? r->max_rows :
						    (uint64_t)n;

	for (uint64_t i = 0; i < rows * r->row_bytes; i++)
		r->in[i] = pattern(key, i);
	*r->rows = n;
}

/* Pack n rows of a content of their own; the device is idle before. */
static void pack(struct rig *r, struct ckpt_stash_item *i, unsigned key,
		 int64_t n)
{
	fill(r, key, n);
	assert_int_equal(ckpt_stash_pack(i, r->in, r->rows, r->stream), 0);
	rig_wait(r);
}

static bool has_rows(struct rig *r, unsigned key, int64_t n)
{
	uint64_t len = (uint64_t)n * r->row_bytes;

	for (uint64_t i = 0; i < len; i++)
		if (r->out[i] != pattern(key, i))
			return false;
	for (uint64_t i = len; i < r->max_rows * r->row_bytes; i++)
		if (r->out[i] != GUARD)
			return false; /* it wrote past the last row */
	return true;
}

static void unpack(struct rig *r, struct ckpt_stash_item *i)
{
	memset(r->out, GUARD, r->max_rows * r->row_bytes);
	assert_int_equal(ckpt_stash_unpack(i, r->out, r->stream), 0);
	rig_wait(r);
}

/* n rows come back; or, with n 0, nothing. */
static void assert_unpacks(struct rig *r, struct ckpt_stash_item *i,
			   unsigned key, int64_t n)
{
	unpack(r, i);
	assert_true(has_rows(r, key, n));
}

static struct ckpt_stash_state state_of(struct rig *r)
{
	struct ckpt_stash_state s;

	assert_int_equal(ckpt_stash_get_state(r->s, r->type.element_bytes,
					      r->type.row_elements, r->stream,
					      &s),
			 0);
	return s;
}

static bool overflowed(struct rig *r)
{
	uint32_t plain = 7, *flag = &plain;
	void *pinned = NULL;
	bool is;

	if (r->stream) {
		assert_int_equal(gpu_host_alloc(r->c->gpu, 4, &pinned), 0);
		flag = pinned;
		*flag = 7;
	}
	assert_int_equal(ckpt_stash_overflowed(r->s, flag, r->stream), 0);
	if (r->stream)
		assert_int_equal(*flag, 7); /* it did not wait */
	rig_wait(r);
	is = *flag == 1;
	assert_true(*flag <= 1);
	if (r->stream)
		gpu_host_free(r->c->gpu, pinned);
	return is;
}

static void reset(struct rig *r)
{
	assert_int_equal(ckpt_stash_reset(r->s, r->stream), 0);
	rig_wait(r);
}

/* --- Vectors ----------------------------------------------------------------
 */

static void assert_step(struct rig *r, const struct step *want)
{
	struct ckpt_stash_state s = state_of(r);
	const struct stash_view *v = &r->s->types[0].view;

	for (unsigned t = 0; t < 2; t++) {
		assert_int_equal(s.head[t], want->head[t]);
		assert_int_equal(s.tail[t], want->tail[t]);
	}
	assert_int_equal(s.overflow, want->overflow);
	assert_int_equal(s.host_spill, want->host_spill);
	assert_int_equal(overflowed(r), want->overflow);
	/* The fake's device memory can be looked at. */
	assert_memory_equal(v->free_pages[0], want->free_device,
			    s.capacity[0] * 4);
	assert_memory_equal(v->free_pages[1], want->free_host,
			    s.capacity[1] * 4);
}

static void run_step(struct rig *r, struct ckpt_stash_item **items,
		     int64_t *rows, const struct step *step)
{
	unsigned n = (unsigned)step->item - 'A';

	switch (step->op) {
	case INIT:
		break;
	case RESET:
		reset(r);
		break;
	case PACK:
		items[n] = items[n] ? items[n] : item_new(r);
		rows[n] = step->rows;
		pack(r, items[n], n, step->rows);
		assert_int_equal(items[n]->view.packed->spill, step->spilled);
		assert_int_equal(items[n]->view.packed->epoch != 0,
				 step->result == OK);
		assert_memory_equal(items[n]->view.record, step->record,
				    step->record_count * 4);
		break;
	case UNPACK:
		assert_unpacks(r, items[n], n,
			       step->result == OK ? rows[n] : 0);
		break;
	}
}

static void every_step_of_the_vectors_leaves_their_state(void **state)
{
	(void)state;
	FOR_BOTH(device)
	{
		for (size_t v = 0; v < sizeof(vectors) / sizeof(*vectors);
		     v++) {
			const struct vector *p = &vectors[v];
			struct ckpt_stash_type type = { 2, 24, p->device_rows,
							p->host_rows };
			struct ckpt_stash_item *items[ITEMS] = { NULL };
			int64_t rows[ITEMS];
			struct rig r;

			rig_init(&r, device, type, p->page_rows, 80);
			for (unsigned i = 0; i < p->count; i++) {
				run_step(&r, items, rows, &p->steps[i]);
				assert_step(&r, &p->steps[i]);
			}
			for (size_t i = 0; i < ITEMS; i++)
				ckpt_stash_item_free(items[i]);
			rig_release(&r);
		}
	}
}

/* --- Bytes -------------------------------------------------------------------
 */

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
					       counts[n] < 128 ? counts[n] :
								 128);
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

/* --- Without the host
 * ----------------------------------------------------------
 */

#define SMALL ((struct ckpt_stash_type){ 4, 33, 40, 8 })

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

/* --- Misuse and overflow
 * --------------------------------------------------------
 */

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

/* --- Counters
 * ------------------------------------------------------------------
 */

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

/* --- A model
 * -------------------------------------------------------------------
 */

static uint32_t random_state;

static uint32_t random_next(void)
{
	random_state = random_state * 1664525 + 1013904223;
	return random_state >> 8;
}

struct model {
	uint64_t free[2];
	bool overflow;
	struct {
		bool packed;
		int64_t rows;
		unsigned tier, key;
	} items[ITEMS];
};

static void model_pack(struct model *m, unsigned n, int64_t rows, unsigned key)
{
	uint64_t need = ((uint64_t)rows + 2) / 3;

	if (m->overflow)
		return;
	for (unsigned t = 0; t < 2; t++) {
		if (m->items[n].packed || m->free[t] < need)
			continue;
		m->free[t] -= need;
		m->items[n].packed = true;
		m->items[n].rows = rows;
		m->items[n].tier = t;
		m->items[n].key = key;
		return;
	}
	m->overflow = true;
}

static int64_t model_unpack(struct model *m, unsigned n)
{
	if (m->overflow || !m->items[n].packed)
		return 0;
	m->items[n].packed = false;
	m->free[m->items[n].tier] += ((uint64_t)m->items[n].rows + 2) / 3;
	return m->items[n].rows;
}

static void model_reset(struct model *m)
{
	*m = (struct model){ .free = { 13, 5 } };
}

static void assert_is_model(struct rig *r, const struct model *m)
{
	struct ckpt_stash_state s = state_of(r);

	assert_int_equal(s.overflow, m->overflow);
	for (unsigned t = 0; t < 2; t++)
		assert_int_equal(s.tail[t] - s.head[t], m->free[t]);
}

static void any_order_of_calls_follows_the_model(void **state)
{
	uint32_t seed = (uint32_t)time(NULL);

	(void)state;
	print_message("seed %u\n", seed);
	FOR_BOTH(device)
	{
		struct ckpt_stash_type type = { 2, 7, 39, 15 };
		struct ckpt_stash_item *items[ITEMS];
		struct model m;
		struct rig r;

		random_state = seed;
		rig_init(&r, device, type, 3, 40);
		model_reset(&m);
		for (unsigned n = 0; n < ITEMS; n++)
			items[n] = item_new(&r);
		for (unsigned turn = 0; turn < 3000; turn++) {
			unsigned n = random_next() % ITEMS;

			if (random_next() % 50 == 0) {
				reset(&r);
				model_reset(&m);
			} else if (!m.items[n].packed ||
				   random_next() % 100 == 0) {
				int64_t rows = random_next() % 12;

				pack(&r, items[n], turn, rows);
				model_pack(&m, n, rows, turn);
			} else {
				assert_unpacks(&r, items[n], m.items[n].key,
					       model_unpack(&m, n));
			}
			assert_is_model(&r, &m);
		}
		for (unsigned n = 0; n < ITEMS; n++)
			ckpt_stash_item_free(items[n]);
		rig_release(&r);
	}
}

/* --- Refusals
 * --------------------------------------------------------------------
 */

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
		cmocka_unit_test(every_step_of_the_vectors_leaves_their_state),
		cmocka_unit_test(rows_of_any_size_come_back),
		cmocka_unit_test(nothing_waits_and_the_count_is_kept),
		cmocka_unit_test(a_graph_of_it_can_be_replayed),
		cmocka_unit_test(a_second_unpack_does_nothing),
		cmocka_unit_test(an_overflow_stays_until_the_reset),
		cmocka_unit_test(types_do_not_share_pages),
		cmocka_unit_test(counters_may_be_as_large_as_they_like),
		cmocka_unit_test(any_order_of_calls_follows_the_model),
		cmocka_unit_test(what_cannot_be_is_refused),
		cmocka_unit_test(every_failure_of_the_driver_is_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
