/*
 * Bytes that files have in common are stored once, where that saves enough:
 * copies, replicas, tensors at other offsets, and files that repeat themselves.
 */
#include <pthread.h>

#include "tests/unit/live_store.h"

#define FILE_BYTES (3 * MIB + 12345)

struct handle_writer {
	struct live *l;
	pthread_barrier_t *barrier;
	char name[32];
	const uint8_t *data;
	size_t len;
	pthread_t thread;
};

/* Write first; then close at the same moment as the others. */
static void *write_and_close(void *arg)
{
	struct handle_writer *w = arg;
	struct handle h = handle_open(w->l, w->name, O_WRONLY | O_CREAT);

	handle_write(&h, w->data, w->len, 0);
	pthread_barrier_wait(w->barrier);
	handle_close(&h);
	return NULL;
}

static void close_together(struct live *l, struct handle_writer *w, unsigned n)
{
	pthread_barrier_t barrier;

	CHECK(pthread_barrier_init(&barrier, NULL, n) == 0);
	for (unsigned i = 0; i < n; i++) {
		w[i].l = l;
		w[i].barrier = &barrier;
		CHECK(pthread_create(&w[i].thread, NULL, write_and_close,
				     &w[i]) == 0);
	}
	for (unsigned i = 0; i < n; i++)
		pthread_join(w[i].thread, NULL);
	pthread_barrier_destroy(&barrier);
}

static void
replicas_that_are_closed_together_cost_one_and_are_all_native(void **state)
{
	uint8_t *data = filled(FILE_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		for (unsigned round = 0; round < 8; round++) {
			struct live l = live_kind(kind);
			struct handle_writer w[2] = {
				{ .name = "a",
				  .data = data,
				  .len = FILE_BYTES },
				{ .name = "b",
				  .data = data,
				  .len = FILE_BYTES },
			};

			close_together(&l, w, 2);
			live_sync_all(&l);
			assert_true(live_native(&l, "a"));
			assert_true(live_native(&l, "b"));
			assert_int_equal(live_counter(&l, META_PHYSICAL),
					 FILE_BYTES);
			assert_int_equal(live_counter(&l, META_SHARED),
					 FILE_BYTES);
			assert_int_equal(live_counter(&l, META_LOGICAL),
					 2 * FILE_BYTES);
			assert_file(&l, "a", data, FILE_BYTES);
			assert_file(&l, "b", data, FILE_BYTES);
			live_reopen(&l);
			live_settle(&l);
			assert_int_equal(live_images(&l).count, 1);
			assert_file(&l, "a", data, FILE_BYTES);
			assert_file(&l, "b", data, FILE_BYTES);
			live_free(&l);
		}
	}
	free(data);
}

static void eight_replicas_cost_one(void **state)
{
	struct live l = live_kind(1);
	uint8_t *data = filled(FILE_BYTES, 1);
	struct handle_writer w[8] = { 0 };

	(void)state;
	for (unsigned i = 0; i < 8; i++) {
		(void)snprintf(w[i].name, sizeof(w[i].name), "rank_%u", i);
		w[i].data = data;
		w[i].len = FILE_BYTES;
	}
	close_together(&l, w, 8);
	live_sync_all(&l);
	assert_int_equal(live_counter(&l, META_PHYSICAL), FILE_BYTES);
	assert_int_equal(live_counter(&l, META_SHARED), 7 * FILE_BYTES);
	for (unsigned i = 0; i < 8; i++) {
		assert_true(live_native(&l, w[i].name));
		assert_file(&l, w[i].name, data, FILE_BYTES);
	}
	live_free(&l);
	free(data);
}

static void a_copy_of_a_durable_file_is_native_and_costs_nothing(void **state)
{
	uint8_t *data = filled(FILE_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);

		live_write(&l, "a", data, FILE_BYTES);
		live_sync_all(&l);
		live_write(&l, "b", data, FILE_BYTES);
		live_sync_all(&l);
		assert_true(live_native(&l, "b"));
		assert_int_equal(live_counter(&l, META_PHYSICAL), FILE_BYTES);
		live_settle(&l);
		assert_int_equal(live_images(&l).count, 1);
		assert_file(&l, "b", data, FILE_BYTES);
		live_free(&l);
	}
	free(data);
}

/* Two files that have `shared` bytes in common, of some 4 MiB. */
static void store_pair(struct live *l, size_t shared, size_t *ret_len)
{
	const struct payload a[] = { { 1, 2 * MIB },
				     { 2, shared },
				     { 3, MIB } };
	const struct payload b[] = { { 4, 2 * MIB },
				     { 2, shared },
				     { 5, MIB } };
	uint8_t *first, *second;
	size_t first_len;

	first = safetensors(a, 3, 10, &first_len);
	second = safetensors(b, 3, 301, ret_len);
	live_write(l, "a", first, first_len);
	live_write(l, "b", second, *ret_len);
	live_sync_all(l);
	assert_file(l, "a", first, first_len);
	assert_file(l, "b", second, *ret_len);
	assert_true(live_native(l, "a"));
	free(first);
	free(second);
}

static void a_file_that_shares_less_than_3_percent_stays_native(void **state)
{
	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		size_t len, shared = 64 * KIB; /* of 3.06 MiB: 2 % */

		store_pair(&l, shared, &len);
		assert_true(live_native(&l, "b"));
		assert_int_equal(live_counter(&l, META_SHARED), 0);
		live_free(&l);
	}
}

static void a_file_that_shares_10_percent_shares_them(void **state)
{
	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		size_t len, shared = 340 * KIB;

		store_pair(&l, shared, &len);
		assert_false(live_native(&l, "b"));
		assert_int_equal(live_counter(&l, META_SHARED), shared);
		live_free(&l);
	}
}

static void what_is_left_native_is_counted(void **state)
{
	struct live l = live_kind(1);
	struct drain_figures figures;
	size_t len;

	(void)state;
	store_pair(&l, 64 * KIB, &len);
	drain_figures(l.st->drain, &figures);
	assert_int_equal(figures.left_native, 1);
	assert_int_equal(figures.left_native_bytes, 64 * KIB);
	live_free(&l);
}

static void the_same_tensors_at_other_offsets_are_shared(void **state)
{
	struct payload t[40], reversed[40];
	size_t n = 40, first_len, second_len, third_len;
	uint8_t *first, *second, *third;
	uint64_t alone;

	(void)state;
	for (size_t i = 0; i < n; i++)
		t[i] = (struct payload){ i + 1, 100 * KIB + 777 * i };
	for (size_t i = 0; i < n; i++)
		reversed[i] = t[n - 1 - i];
	first = safetensors(t, n, 3, &first_len);
	second = safetensors(t, n, 1001, &second_len);
	third = safetensors(reversed, n, 50, &third_len);
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);

		live_write(&l, "a", first, first_len);
		live_sync_all(&l);
		alone = live_counter(&l, META_PHYSICAL);
		assert_int_equal(alone, first_len);
		live_write(&l, "b", second, second_len);
		live_write(&l, "c", third, third_len);
		live_sync_all(&l);
		assert_true(live_counter(&l, META_PHYSICAL) - alone <
			    (second_len + third_len) / 100);
		assert_true(live_counter(&l, META_SHARED) >
			    (second_len + third_len) / 100 * 99);
		assert_file(&l, "b", second, second_len);
		assert_file(&l, "c", third, third_len);
		live_reopen(&l);
		assert_file(&l, "b", second, second_len);
		assert_file(&l, "c", third, third_len);
		live_free(&l);
	}
	free(first);
	free(second);
	free(third);
}

static void a_file_that_repeats_itself_is_stored_once(void **state)
{
	size_t len = 6 * MIB;
	uint8_t *data = filled(len, 1);

	(void)state;
	for (size_t off = 2 * MIB; off < len; off += 2 * MIB)
		memcpy(data + off, data, 2 * MIB);
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);

		live_write(&l, "f", data, len);
		live_sync_all(&l);
		/* At the seams chunks have something of both sides. */
		assert_in_range(live_counter(&l, META_PHYSICAL), 2 * MIB,
				3 * MIB);
		assert_int_equal(live_counter(&l, META_SHARED),
				 len - live_counter(&l, META_PHYSICAL));
		assert_file(&l, "f", data, len);
		assert_int_equal(live_unlink(&l, "f"), 0);
		live_settle(&l);
		assert_int_equal(live_counter(&l, META_PHYSICAL), 0);
		assert_int_equal(live_images(&l).count, 0);
		live_free(&l);
	}
	free(data);
}

/*
 * A store that has the bytes cut by their places, as all were before there was
 * another rule, shares them with what would now be cut by content.
 */
static void what_is_there_cut_by_its_place_goes_on_being_found(void **state)
{
	static const struct payload tensor[] = { { 1, 20 * MIB } };
	uint8_t *data = filled(20 * MIB, 1), *file;
	size_t len;

	(void)state;
	file = safetensors(tensor, 1, 5, &len);
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		uint64_t before;

		live_write(&l, "model.safetensors", file, len);
		live_sync_all(&l);
		before = live_counter(&l, META_PHYSICAL);
		/* The greater part of it changes; what stays is found. */
		fill(data, 12 * MIB, 2);
		live_write(&l, "plain", data, 20 * MIB);
		live_sync_all(&l);
		assert_int_equal(live_counter(&l, META_SHARED), 8 * MIB);
		assert_int_equal(live_counter(&l, META_PHYSICAL) - before,
				 12 * MIB);
		assert_file(&l, "plain", data, 20 * MIB);
		/* What is there nowhere is cut by content, and so shares more. */
		fill(data, 12 * MIB, 3);
		before = live_counter(&l, META_PHYSICAL);
		live_write(&l, "other", data, 12 * MIB);
		live_sync_all(&l);
		live_write(&l, "moved", data + 1, 12 * MIB - 1);
		live_sync_all(&l);
		assert_in_range(live_counter(&l, META_PHYSICAL) - before,
				12 * MIB, 13 * MIB);
		live_free(&l);
	}
	free(data);
	free(file);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			what_is_there_cut_by_its_place_goes_on_being_found),
		cmocka_unit_test(
			replicas_that_are_closed_together_cost_one_and_are_all_native),
		cmocka_unit_test(eight_replicas_cost_one),
		cmocka_unit_test(
			a_copy_of_a_durable_file_is_native_and_costs_nothing),
		cmocka_unit_test(
			a_file_that_shares_less_than_3_percent_stays_native),
		cmocka_unit_test(a_file_that_shares_10_percent_shares_them),
		cmocka_unit_test(what_is_left_native_is_counted),
		cmocka_unit_test(the_same_tensors_at_other_offsets_are_shared),
		cmocka_unit_test(a_file_that_repeats_itself_is_stored_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
