/*
 * Whether a checkpoint holds together: a real one, then with one thing wrong
 * at a time; and chunks of random tensors against a count of every element.
 */
#include "store/step/closure.h"
#include "tests/unit/dcp_fixture.h"
#include "tests/unit/test_seed.h"

/* The files of the fixture as they were on disk. */
static const struct closure_file whole[] = {
	{ ".metadata", 3664 },     { "__0_0.distcp", 21732 },
	{ "__1_0.distcp", 21796 }, { "__2_0.distcp", 21732 },
	{ "__3_0.distcp", 25511 }, { "latest", 7 },
	{ "__4_0.distcp", 0 },
};
#define WHOLE (sizeof(whole) / sizeof(*whole))

struct given {
	struct dcp d;
	struct closure_file files[WHOLE + 1];
	size_t count;
};

static void given_init(struct given *g)
{
	g->d = dcp_fixture("torch-2.13-four-ranks");
	memcpy(g->files, whole, sizeof(whole));
	g->count = WHOLE;
}

static struct closure check(struct given *g)
{
	struct closure c;

	assert_int_equal(closure_check(&g->d, g->files, g->count, &c), 0);
	return c;
}

/* Check, and release all: this is found, of these, and nothing else. */
static void assert_finds(struct given *g, enum closure_kind kind,
			 const char *item, const char *file)
{
	struct closure c = check(g);

	assert_false(closure_holds(&c));
	assert_true(c.count >= 1);
	for (int i = 0; i < CLOSURE_KINDS; i++)
		if ((c.totals[i] > 0) != (i == (int)kind))
			fail_msg("%s: %zu",
				 closure_kind_name((enum closure_kind)i),
				 c.totals[i]);
	assert_int_equal(c.findings[0].kind, kind);
	if (item)
		assert_string_equal(c.findings[0].item, item);
	if (file)
		assert_string_equal(c.findings[0].file, file);
	assert_true(strlen(c.findings[0].what) > 0);
	closure_release(&c);
	dcp_release(&g->d);
}

static struct dcp_entry *entry_of(struct given *g, const char *item, uint32_t n)
{
	const struct dcp_item *i = dcp_fixture_item(&g->d, item);

	return &g->d.entries[i->dtype ? g->d.chunks[i->chunk_at + n].entry
				      : i->entry];
}

static struct dcp_chunk *chunk_of(struct given *g, const char *item, uint32_t n)
{
	return &g->d.chunks[dcp_fixture_item(&g->d, item)->chunk_at + n];
}

/* Offsets and sizes are const for readers; the fixture is the test's own. */
static uint64_t *writable(const uint64_t *p)
{
	uint64_t *w;

	memcpy(&w, &p, sizeof(w));
	return w;
}

static void a_real_checkpoint_holds(void **state)
{
	struct given g;
	struct closure c;

	(void)state;
	given_init(&g);
	c = check(&g);
	for (size_t i = 0; i < c.count; i++)
		print_message("%s: %s\n", closure_kind_name(c.findings[i].kind),
			      c.findings[i].what);
	assert_true(closure_holds(&c));
	assert_int_equal(c.count, 0);
	closure_release(&c);
	dcp_release(&g.d);
}

static void a_file_that_is_not_there_is_found(void **state)
{
	struct given g;

	(void)state;
	given_init(&g);
	g.files[3].name = "somewhere else";
	assert_finds(&g, CLOSURE_DANGLING, NULL, "__2_0.distcp");
}

static void a_file_that_is_cut_short_is_found(void **state)
{
	struct given g;

	(void)state;
	given_init(&g);
	g.files[4].size_bytes--;
	assert_finds(&g, CLOSURE_PAST_END, NULL, "__3_0.distcp");
}

static void bytes_that_nothing_names_are_found(void **state)
{
	struct given g;

	(void)state;
	given_init(&g); /* at the end of a file */
	g.files[1].size_bytes += 700;
	assert_finds(&g, CLOSURE_UNNAMED, NULL, "__0_0.distcp");
	given_init(&g); /* a file of a larger world */
	g.files[g.count++] = (struct closure_file){ "__7_0.distcp", 5 };
	assert_finds(&g, CLOSURE_ORPHAN, NULL, "__7_0.distcp");
}

static void ranges_that_overlap_are_found(void **state)
{
	struct given g;
	struct dcp_entry *e;

	(void)state;
	given_init(&g);
	e = entry_of(&g, "rows", 0);
	assert_int_equal(e->offset, 0);
	e->length++;
	assert_finds(&g, CLOSURE_OVERLAP, NULL, "__0_0.distcp");
}

static void lengths_that_cannot_be_are_found(void **state)
{
	struct given g;

	(void)state;
	given_init(&g); /* the shape grew, the bytes did not */
	writable(dcp_fixture_item(&g.d, "replicated")->shape)[0] = 1000;
	chunk_of(&g, "replicated", 0)->elements = 2000;
	writable(chunk_of(&g, "replicated", 0)->sizes)[0] = 1000;
	assert_finds(&g, CLOSURE_LENGTH, "replicated", NULL);

	given_init(&g); /* compressed: nothing can be said */
	writable(dcp_fixture_item(&g.d, "replicated")->shape)[0] = 1000;
	chunk_of(&g, "replicated", 0)->elements = 2000;
	writable(chunk_of(&g, "replicated", 0)->sizes)[0] = 1000;
	entry_of(&g, "replicated", 0)->transformed = true;
	{
		struct closure c = check(&g);

		assert_true(closure_holds(&c));
		closure_release(&c);
	}
	dcp_release(&g.d);
}

static void what_has_no_partner_is_found(void **state)
{
	struct given g;

	(void)state;
	given_init(&g);
	chunk_of(&g, "rows", 2)->entry = DCP_NONE;
	assert_finds(&g, CLOSURE_UNSTORED, "rows", NULL);
	given_init(&g);
	dcp_fixture_item(&g.d, "extra.lr")->entry = DCP_NONE;
	assert_finds(&g, CLOSURE_UNSTORED, "extra.lr", NULL);
	given_init(&g);
	entry_of(&g, "rows", 1)->chunk = DCP_NONE;
	assert_finds(&g, CLOSURE_UNKNOWN, "rows", "__1_0.distcp");
	given_init(&g);
	entry_of(&g, "extra.lr", 0)->item = DCP_NONE;
	assert_finds(&g, CLOSURE_UNKNOWN, "extra.lr", NULL);
}

static void chunks_that_do_not_tile_are_found(void **state)
{
	struct given g;
	struct dcp_item *item;

	(void)state;
	given_init(&g); /* a hole: one chunk less */
	item = dcp_fixture_item(&g.d, "f8");
	assert_int_equal(item->dimensions, 1);
	item->elements = writable(item->shape)[0] = 5;
	assert_finds(&g, CLOSURE_NOT_COVERED, "f8", NULL);
	given_init(&g);
	item = dcp_fixture_item(&g.d, "f8");
	assert_int_equal(item->dimensions, 1);
	item->elements = writable(item->shape)[0] = 3;
	assert_finds(&g, CLOSURE_OUTSIDE, "f8", NULL);
	given_init(&g); /* as many elements as the tensor has, but twice */
	writable(chunk_of(&g, "rows", 1)->offsets)[0] = 128;
	assert_finds(&g, CLOSURE_CHUNKS_OVERLAP, "rows", NULL);
}

/* --- Random tensors --------------------------------------------------------
 */

static uint64_t random_state;

static uint32_t below(uint32_t n)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (uint32_t)(random_state >> 33) % n;
}

#define SIDE 6
#define BOXES_MAX 40

struct tensor {
	struct dcp_item item;
	uint64_t shape[3];
	uint64_t offsets[BOXES_MAX][3], sizes[BOXES_MAX][3];
	struct dcp_chunk chunks[BOXES_MAX];
	struct dcp_entry entry;
	uint32_t count;
};

/* Cut a box at random planes until the pieces are few enough. */
static void tensor_tile(struct tensor *t)
{
	t->count = 1;
	for (unsigned n = 0; n < t->item.dimensions; n++) {
		t->shape[n] = 1 + below(SIDE);
		t->offsets[0][n] = 0;
		t->sizes[0][n] = t->shape[n];
	}
	for (unsigned cuts = below(BOXES_MAX); cuts > 0; cuts--) {
		uint32_t i = below(t->count), n = below(t->item.dimensions);
		uint64_t at;

		if (t->sizes[i][n] < 2)
			continue;
		at = 1 + below((uint32_t)t->sizes[i][n] - 1);
		memcpy(t->offsets[t->count], t->offsets[i],
		       sizeof(t->offsets[0]));
		memcpy(t->sizes[t->count], t->sizes[i], sizeof(t->sizes[0]));
		t->offsets[t->count][n] += at;
		t->sizes[t->count][n] -= at;
		t->sizes[i][n] = at;
		t->count++;
	}
}

/* Boxes anywhere: no plane may cut them. */
static void tensor_scatter(struct tensor *t)
{
	t->count = 1 + below(8);
	for (unsigned n = 0; n < t->item.dimensions; n++)
		t->shape[n] = SIDE;
	for (uint32_t i = 0; i < t->count; i++) {
		for (unsigned n = 0; n < t->item.dimensions; n++) {
			t->offsets[i][n] = below(SIDE);
			t->sizes[i][n] =
				below((uint32_t)(SIDE + 1 - t->offsets[i][n]));
		}
	}
}

/* Whether some element is in no chunk, and whether one is in several. */
static void count_elements(const struct tensor *t, bool *ret_none,
			   bool *ret_twice)
{
	*ret_none = *ret_twice = false;
	for (uint64_t z = 0; z < t->shape[2]; z++)
		for (uint64_t y = 0; y < t->shape[1]; y++)
			for (uint64_t x = 0; x < t->shape[0]; x++) {
				unsigned n = 0;

				for (uint32_t i = 0; i < t->count; i++)
					n += x - t->offsets[i][0] <
						     t->sizes[i][0] &&
					     y - t->offsets[i][1] <
						     t->sizes[i][1] &&
					     z - t->offsets[i][2] <
						     t->sizes[i][2];
				*ret_none = *ret_none || n == 0;
				*ret_twice = *ret_twice || n > 1;
			}
}

static void check_random(struct tensor *t, const struct dcp_dtype *dtype)
{
	struct dcp d = { .items = &t->item,
			 .chunks = t->chunks,
			 .entries = &t->entry,
			 .item_count = 1 };
	struct closure c;
	bool none, twice;

	t->item.name = "t";
	t->item.dtype = dtype;
	t->item.shape = t->shape;
	t->item.elements = t->shape[0] * t->shape[1] * t->shape[2];
	t->item.chunk_count = t->count;
	d.chunk_count = t->count;
	for (uint32_t i = 0; i < t->count; i++)
		t->chunks[i] = (struct dcp_chunk){
			.offsets = t->offsets[i],
			.sizes = t->sizes[i],
			.elements = t->sizes[i][0] * t->sizes[i][1] *
				    t->sizes[i][2],
		};
	count_elements(t, &none, &twice);
	assert_int_equal(closure_check(&d, NULL, 0, &c), 0);
	assert_int_equal(c.totals[CLOSURE_CHUNKS_OVERLAP], twice);
	/* With an overlap it is not known whether a hole is there as well. */
	if (!twice)
		assert_int_equal(c.totals[CLOSURE_NOT_COVERED], none);
	assert_int_equal(c.totals[CLOSURE_OUTSIDE], 0);
	assert_int_equal(c.totals[CLOSURE_UNSTORED], 0);
	closure_release(&c);
}

static void random_chunks_are_judged_as_by_counting(void **state)
{
	static const struct dcp_dtype dtype = { "float32", 32 };
	struct tensor t;

	(void)state;
	random_state = test_seed_spread(test_seed());
	for (int round = 0; round < 20000; round++) {
		memset(&t, 0, sizeof(t));
		t.item.dimensions = 3;
		if (round % 2 == 0) {
			tensor_tile(&t);
			if (below(3) == 0) /* one is lost, or moved */
				t.sizes[below(t.count)][below(3)] = below(2);
		} else {
			tensor_scatter(&t);
		}
		check_random(&t, &dtype);
	}
}

/*
 * Four bars around a square, as a pinwheel: no plane cuts them, although none
 * meet. Grown around one another they make any number of such chunks.
 */
static uint32_t pinwheels(uint64_t *at, uint32_t count)
{
	uint64_t side = 2 * (uint64_t)count + 1, lo = 0;
	uint32_t made = 0;

	for (; made + 4 <= count; made += 4, lo++, side -= 2) {
		const uint64_t bars[4][4] = {
			{ lo, lo, 1, side - 1 },
			{ lo, lo + side - 1, side - 1, 1 },
			{ lo + side - 1, lo + 1, 1, side - 1 },
			{ lo + 1, lo, side - 1, 1 },
		};

		memcpy(at + 4 * (size_t)made, bars, sizeof(bars));
	}
	return made;
}

static void what_costs_too_much_is_said_to_be_unchecked(void **state)
{
	static const struct dcp_dtype dtype = { "float32", 32 };
	const uint32_t room = 100000;
	uint64_t shape[2] = { 2 * (uint64_t)room + 1, 2 * (uint64_t)room + 1 };
	SCOPED(scope_free)
	struct dcp_chunk *chunks = calloc(room, sizeof(*chunks));
	SCOPED(scope_free) uint64_t *at = calloc(4 * (size_t)room, sizeof(*at));
	struct dcp_item item = {
		.name = "t",
		.dtype = &dtype,
		.dimensions = 2,
		.shape = shape,
		.elements = shape[0] * shape[1],
	};
	struct dcp d = { .items = &item, .chunks = chunks, .item_count = 1 };
	struct closure c;

	(void)state;
	assert_non_null(chunks);
	assert_non_null(at);
	d.chunk_count = item.chunk_count = pinwheels(at, room);
	for (uint32_t i = 0; i < d.chunk_count; i++) {
		const uint64_t *mine = at + 4 * (size_t)i;

		chunks[i] = (struct dcp_chunk){ .offsets = mine,
						.sizes = mine + 2,
						.elements = mine[2] * mine[3] };
	}
	assert_int_equal(closure_check(&d, NULL, 0, &c), 0);
	assert_int_equal(c.totals[CLOSURE_NOT_CHECKED], 1);
	assert_int_equal(c.totals[CLOSURE_CHUNKS_OVERLAP], 0);
	closure_release(&c);
	/* Few of them are compared pair by pair. */
	d.chunk_count = item.chunk_count = 1000;
	assert_int_equal(closure_check(&d, NULL, 0, &c), 0);
	assert_int_equal(c.totals[CLOSURE_NOT_CHECKED], 0);
	assert_int_equal(c.totals[CLOSURE_CHUNKS_OVERLAP], 0);
	closure_release(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_real_checkpoint_holds),
		cmocka_unit_test(a_file_that_is_not_there_is_found),
		cmocka_unit_test(a_file_that_is_cut_short_is_found),
		cmocka_unit_test(bytes_that_nothing_names_are_found),
		cmocka_unit_test(ranges_that_overlap_are_found),
		cmocka_unit_test(lengths_that_cannot_be_are_found),
		cmocka_unit_test(what_has_no_partner_is_found),
		cmocka_unit_test(chunks_that_do_not_tile_are_found),
		cmocka_unit_test(random_chunks_are_judged_as_by_counting),
		cmocka_unit_test(what_costs_too_much_is_said_to_be_unchecked),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
