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

/* --- dedup_copies --- */

static struct live live_of_copies(unsigned kind, unsigned copies)
{
	struct live l = live_closed(NULL);

	l.options.dedup_copies = copies;
	live_open_kind(&l, kind);
	return l;
}

/* How many copies of each of a file's chunks the index knows: all as many. */
static size_t copies_of(struct live *l, const char *path)
{
	struct content c = live_content(l, path);
	struct chunk_rec k;
	struct chunk_locs at;
	uint64_t off = c.extents[0].image_offset, end = off + c.size_bytes;
	size_t count = 0;

	assert_int_equal(c.extent_count, 1);
	for (; off < end; off += k.len) {
		struct key key = key_chunk(c.extents[0].image, off);

		assert_int_equal(chunk_load(l->st->kv, key, &k), 0);
		assert_int_equal(
			locs_load(l->st->kv, key_hash(k.hash, k.domain), &at),
			0);
		assert_true(count == 0 || count == at.count);
		count = at.count;
	}
	content_release(&c);
	return count;
}

static uint64_t image_of(struct live *l, const char *path)
{
	struct content c = live_content(l, path);
	uint64_t image = c.extents[0].image;

	content_release(&c);
	return image;
}

static void
so_many_files_store_a_copy_each_and_all_others_share_one(void **state)
{
	static const char *const names[] = { "a", "b", "c", "d" };
	uint8_t *data = filled(FILE_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_of_copies(kind, 2);

		for (unsigned i = 0; i < 4; i++) {
			live_write(&l, names[i], data, FILE_BYTES);
			live_sync_all(&l);
			assert_true(live_native(&l, names[i]));
			assert_int_equal(live_counter(&l, META_PHYSICAL),
					 (i == 0 ? 1 : 2) * FILE_BYTES);
		}
		assert_int_equal(copies_of(&l, "d"), 2);
		assert_int_not_equal(image_of(&l, "a"), image_of(&l, "b"));
		live_settle(&l);
		assert_int_equal(live_images(&l).count, 2);
		live_reopen(&l);
		for (unsigned i = 0; i < 4; i++)
			assert_file(&l, names[i], data, FILE_BYTES);
		live_free(&l);
	}
	free(data);
}

static void of_eight_replicas_that_close_together_three_are_stored(void **state)
{
	uint8_t *data = filled(FILE_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_of_copies(kind, 3);
		struct handle_writer w[8] = { 0 };

		for (unsigned i = 0; i < 8; i++) {
			(void)snprintf(w[i].name, sizeof(w[i].name), "rank_%u",
				       i);
			w[i].data = data;
			w[i].len = FILE_BYTES;
		}
		close_together(&l, w, 8);
		live_sync_all(&l);
		assert_int_equal(live_counter(&l, META_PHYSICAL),
				 3 * FILE_BYTES);
		for (unsigned i = 0; i < 8; i++) {
			assert_true(live_native(&l, w[i].name));
			assert_int_equal(copies_of(&l, w[i].name), 3);
			assert_file(&l, w[i].name, data, FILE_BYTES);
		}
		live_settle(&l);
		assert_int_equal(live_images(&l).count, 3);
		live_free(&l);
	}
	free(data);
}

/* What is gone is in the index no more, and one more is stored. */
static void a_copy_that_goes_is_made_anew_by_who_comes_next(void **state)
{
	struct live l = live_of_copies(1, 2);
	uint8_t *data = filled(FILE_BYTES, 1);

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		live_write(&l, i % 2 ? "b" : "a", data, FILE_BYTES);
		live_sync_all(&l);
		assert_int_equal(copies_of(&l, i % 2 ? "b" : "a"), i ? 2 : 1);
		if (i == 3)
			break;
		assert_int_equal(live_unlink(&l, i % 2 ? "a" : "b"),
				 i ? 0 : -ENOENT);
		live_settle(&l);
		assert_int_equal(copies_of(&l, i % 2 ? "b" : "a"), 1);
		assert_int_equal(live_counter(&l, META_PHYSICAL), FILE_BYTES);
	}
	/* One copy is enough from now on. */
	live_close(&l);
	l.options.dedup_copies = 1;
	live_open(&l);
	assert_int_equal(live_unlink(&l, "b"), 0); /* the newest */
	live_write(&l, "c", data, FILE_BYTES);
	live_sync_all(&l);
	assert_int_equal(copies_of(&l, "c"), 1);
	assert_int_equal(image_of(&l, "c"), image_of(&l, "a"));
	live_free(&l);
	free(data);
}

/* A change of its last bytes makes no copy of the others. */
static void a_large_file_keeps_what_it_has(void **state)
{
	struct live l = live_of_copies(1, 2);
	size_t len = 80 * MIB;
	uint8_t *data = filled(len, 1);
	uint64_t image;

	(void)state;
	live_write(&l, "a", data, len);
	live_sync_all(&l);
	image = image_of(&l, "a");
	data[len - 1] ^= 1;
	live_write(&l, "a", data, len);
	live_sync_all(&l);
	assert_int_equal(live_counter(&l, META_PHYSICAL), len);
	assert_int_equal(image_of(&l, "a"), image); /* not written again */
	assert_file(&l, "a", data, len);
	live_free(&l);
	free(data);
}

static void a_chunk_that_a_file_repeats_is_stored_once_for_it(void **state)
{
	struct live l = live_of_copies(1, 2);
	size_t len = 6 * MIB;
	uint8_t *data = filled(len, 1);
	uint64_t once;

	(void)state;
	for (size_t off = 2 * MIB; off < len; off += 2 * MIB)
		memcpy(data + off, data, 2 * MIB);
	live_write(&l, "a", data, len);
	live_sync_all(&l);
	once = live_counter(&l, META_PHYSICAL);
	assert_in_range(once, 2 * MIB, 3 * MIB);
	live_write(&l, "b", data, len);
	live_sync_all(&l);
	assert_int_equal(live_counter(&l, META_PHYSICAL), 2 * once);
	assert_file(&l, "a", data, len);
	assert_file(&l, "b", data, len);
	live_free(&l);
	free(data);
}

/* Too few bytes to be shared with itself: it has them twice, and counts once. */
static void a_file_with_a_few_repeats_counts_once(void **state)
{
	struct live l = live_of_copies(1, 2);
	const struct payload with_few[] = { { 1, 64 * MIB },
					    { 2, MIB },
					    { 2, MIB } };
	const struct payload few[] = { { 2, MIB } };
	size_t len, few_len;
	uint8_t *file = safetensors(with_few, 3, 0, &len);
	uint8_t *second = safetensors(few, 1, 0, &few_len);
	uint64_t before;

	(void)state;
	live_write(&l, "a", file, len);
	live_sync_all(&l);
	assert_true(live_native(&l, "a"));
	before = live_counter(&l, META_PHYSICAL);
	live_write(&l, "b", second, few_len);
	live_sync_all(&l);
	assert_in_range(live_counter(&l, META_PHYSICAL) - before, MIB, 2 * MIB);
	live_free(&l);
	free(file);
	free(second);
}

/* Of one that was saved with other bytes before them, too. */
static void bytes_that_move_in_a_file_are_not_written_again(void **state)
{
	struct live l = live_of_copies(1, 2);
	const struct payload first[] = { { 1, 8 * MIB }, { 2, 4 * MIB } };
	const struct payload second[] = { { 2, 4 * MIB }, { 1, 8 * MIB } };
	struct content c;
	size_t len;
	uint8_t *file = safetensors(first, 2, 0, &len);
	uint64_t image;

	(void)state;
	live_write(&l, "a", file, len);
	live_sync_all(&l);
	image = image_of(&l, "a");
	free(file);
	file = safetensors(second, 2, 0, &len);
	live_write(&l, "a", file, len);
	live_sync_all(&l);
	c = live_content(&l, "a");
	assert_int_equal(c.extents[c.extent_count - 1].image, image);
	content_release(&c);
	assert_file(&l, "a", file, len);
	live_free(&l);
	free(file);
}

/*
 * X lies in p and q, Y in p and r: who has both maps onto p as a whole, if it
 * begins with X there. Of two works, one does.
 */
static void what_lies_in_several_images_is_taken_from_one(void **state)
{
	static const unsigned parts[][2] = { { 1, 3 }, { 1, 2 }, { 2, 4 } };
	static const char *const names[] = { "q", "p", "r" };
	struct live l = live_of_copies(1, 2);
	size_t half = 4 * MIB;
	uint8_t *data = filled(2 * half, 1);

	(void)state;
	for (unsigned i = 0; i < 5; i++) {
		const unsigned *part = parts[i < 3 ? i : 1];
		char name[8];

		for (unsigned n = 0; n < 2; n++) {
			uint8_t *bytes = filled(half, part[n]);

			memcpy(data + n * half, bytes, half);
			free(bytes);
		}
		(void)snprintf(name, sizeof(name), "%s%u",
			       i < 3 ? names[i] : "s", i);
		live_write(&l, name, data, 2 * half);
		live_sync_all(&l);
	}
	/* s3 has stored what p alone had: the seam. */
	for (unsigned i = 5; i < 7; i++) {
		char name[8];

		(void)snprintf(name, sizeof(name), "s%u", i);
		live_write(&l, name, data, 2 * half);
		live_sync_all(&l);
		assert_file(&l, name, data, 2 * half);
	}
	assert_true(live_native(&l, "s5") || live_native(&l, "s6"));
	live_free(&l);
	free(data);
}

/* What the index says is not understood: it is put right. */
static void a_damaged_place_in_the_index_is_replaced(void **state)
{
	struct live l = live_of_copies(1, 2);
	uint8_t *data = filled(FILE_BYTES, 1);
	struct content c;
	struct chunk_rec k;
	struct kv_batch *b = kv_batch_new();

	(void)state;
	live_write(&l, "a", data, FILE_BYTES);
	live_sync_all(&l);
	c = live_content(&l, "a");
	assert_int_equal(chunk_load(l.st->kv, key_chunk(c.extents[0].image, 0),
				    &k),
			 0);
	content_release(&c);
	record_save(b, key_hash(k.hash, k.domain), "\1\2", 2);
	assert_int_equal(kv_write(l.st->kv, b), 0);
	kv_batch_free(b);
	live_write(&l, "b", data, FILE_BYTES);
	live_sync_all(&l);
	assert_file(&l, "b", data, FILE_BYTES);
	live_free(&l); /* and fsck has nothing to say */
	free(data);
}

static void a_rebuilt_index_knows_all_copies(void **state)
{
	struct live l = live_of_copies(1, 2);
	uint8_t *data = filled(FILE_BYTES, 1);

	(void)state;
	live_write(&l, "a", data, FILE_BYTES);
	live_sync_all(&l);
	live_write(&l, "b", data, FILE_BYTES);
	live_sync_all(&l);
	live_close(&l);
	(void)live_rebuild_of_labels(&l);
	live_check(&l);
	live_open(&l);
	assert_int_equal(copies_of(&l, "a"), 2);
	assert_int_equal(copies_of(&l, "b"), 2);
	live_write(&l, "c", data, FILE_BYTES);
	live_sync_all(&l);
	assert_int_equal(live_counter(&l, META_PHYSICAL), 2 * FILE_BYTES);
	live_free(&l);
	free(data);
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
		cmocka_unit_test(
			so_many_files_store_a_copy_each_and_all_others_share_one),
		cmocka_unit_test(
			of_eight_replicas_that_close_together_three_are_stored),
		cmocka_unit_test(
			a_copy_that_goes_is_made_anew_by_who_comes_next),
		cmocka_unit_test(a_large_file_keeps_what_it_has),
		cmocka_unit_test(
			a_chunk_that_a_file_repeats_is_stored_once_for_it),
		cmocka_unit_test(a_file_with_a_few_repeats_counts_once),
		cmocka_unit_test(
			bytes_that_move_in_a_file_are_not_written_again),
		cmocka_unit_test(what_lies_in_several_images_is_taken_from_one),
		cmocka_unit_test(a_damaged_place_in_the_index_is_replaced),
		cmocka_unit_test(a_rebuilt_index_knows_all_copies),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
