/*
 * What the paged stash holds after each of many calls: what the vectors say,
 * made by a transcription of Megatron-LM's kernels, and what a model says, in
 * any order of calls.
 */
#include "tests/unit/stash_fixture.h"
#include "tests/unit/stash_vectors.h"
#include "tests/unit/test_seed.h"

#define ITEMS 8

/* --- Vectors --- */

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

/* --- A model --- */

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
	uint32_t seed = (uint32_t)test_seed();

	(void)state;
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_step_of_the_vectors_leaves_their_state),
		cmocka_unit_test(any_order_of_calls_follows_the_model),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
