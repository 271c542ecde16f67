/*
 * What closed files become: stored once, and nothing but what was written. The
 * order of the closes is test_order.c's.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include "store/drain/drain_private.h"
#include "tests/unit/live_store.h"

#define FILE_BYTES (3 * MIB + 12345)

/* --- sharing
 * ------------------------------------------------------------------ */

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

static void the_same_bytes_closed_again_change_the_time_alone(void **state)
{
	static const size_t lens[] = { 0, 100, SMALL_BYTES_MAX,
				       SMALL_BYTES_MAX + 1, FILE_BYTES };
	uint8_t *data = filled(FILE_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);

		for (size_t i = 0; i < sizeof(lens) / sizeof(*lens); i++) {
			struct content first, again;
			size_t len = lens[i];

			live_write(&l, "f", data, len);
			live_sync_all(&l);
			assert_int_equal(live_generation(&l, "f"), 1);
			first = live_content(&l, "f");
			live_write(&l, "f", data, len);
			live_sync_all(&l);
			again = live_content(&l, "f");
			/* The kernel's clock for files may stand still. */
			assert_true(again.mtime_ns >= first.mtime_ns);
			assert_int_equal(again.generation,
					 again.mtime_ns > first.mtime_ns ? 2
									 : 1);
			assert_int_equal(again.extent_count,
					 first.extent_count);
			if (first.extent_count > 0)
				assert_memory_equal(
					again.extents, first.extents,
					first.extent_count *
						sizeof(*first.extents));
			assert_memory_equal(again.digest, first.digest,
					    sizeof(first.digest));
			content_release(&first);
			content_release(&again);
			assert_int_equal(live_counter(&l, META_PHYSICAL), len);
			assert_file(&l, "f", data, len);
			assert_int_equal(live_unlink(&l, "f"), 0);
			live_settle(&l);
			assert_int_equal(live_counter(&l, META_PHYSICAL), 0);
		}
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

static void zeros_take_no_room(void **state)
{
	size_t len = 8 * MIB;
	uint8_t *data = calloc(1, len);

	(void)state;
	assert_non_null(data);
	fill(data + 3 * MIB, MIB, 1);
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		struct handle h;

		live_write(&l, "written", data, len);
		h = handle_open(&l, "sparse", O_WRONLY | O_CREAT);
		handle_write(&h, data + 3 * MIB, MIB, 3 * MIB);
		handle_write(&h, "", 1, len - 1);
		handle_close(&h);
		live_sync_all(&l);
		assert_int_equal(live_counter(&l, META_PHYSICAL), MIB);
		assert_file(&l, "written", data, len);
		assert_file(&l, "sparse", data, len);
		live_reopen(&l);
		live_settle(&l);
		assert_file(&l, "written", data, len);
		assert_file(&l, "sparse", data, len);
		live_free(&l);
	}
	free(data);
}

static void a_file_of_nothing_but_zeros_has_its_size_and_no_image(void **state)
{
	size_t len = 2 * MIB + 5;
	uint8_t *data = calloc(1, len);

	(void)state;
	assert_non_null(data);
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);

		live_write(&l, "f", data, len);
		live_sync_all(&l);
		assert_int_equal(live_counter(&l, META_PHYSICAL), 0);
		assert_int_equal(live_counter(&l, META_LOGICAL), len);
		live_reopen(&l);
		live_settle(&l);
		assert_int_equal(live_images(&l).count, 0);
		assert_file(&l, "f", data, len);
		live_free(&l);
	}
	free(data);
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
		assert_int_equal(live_counter(&l, META_PHYSICAL), 2 * MIB);
		assert_int_equal(live_counter(&l, META_SHARED), 4 * MIB);
		assert_file(&l, "f", data, len);
		assert_int_equal(live_unlink(&l, "f"), 0);
		live_settle(&l);
		assert_int_equal(live_counter(&l, META_PHYSICAL), 0);
		assert_int_equal(live_images(&l).count, 0);
		live_free(&l);
	}
	free(data);
}

static void drained_files_keep_no_descriptor_open(void **state)
{
	size_t len = 4 * MIB;
	uint8_t *data = filled(len, 1);

	(void)state;
	memcpy(data + 2 * MIB, data, 2 * MIB); /* it repeats itself */
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		unsigned before;

		live_reopen(&l); /* what the database opens once is open */
		live_close(&l);
		before = open_descriptors();
		live_open(&l);
		for (unsigned i = 0; i < 8; i++) {
			char name[16];

			(void)snprintf(name, sizeof(name), "f%u", i);
			data[0] = (uint8_t)i;
			live_write(&l, name, data, len);
			if (i % 2)
				live_sync_all(&l);
		}
		live_close(&l);
		assert_int_equal(open_descriptors(), before);
		live_free(&l);
	}
	free(data);
}

static void small_files_live_in_the_database(void **state)
{
	uint8_t *data = filled(SMALL_BYTES_MAX + 1, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);

		live_write(&l, "empty", data, 0);
		live_write(&l, "one", data, 1);
		live_write(&l, "most", data, SMALL_BYTES_MAX);
		live_sync_all(&l);
		live_settle(&l);
		assert_int_equal(live_images(&l).count, 0);
		assert_int_equal(live_counter(&l, META_IMAGES), 0);
		assert_int_equal(live_records(&l, 'D'), 3);
		assert_int_equal(live_counter(&l, META_PHYSICAL),
				 SMALL_BYTES_MAX + 1);
		live_write(&l, "more", data, SMALL_BYTES_MAX + 1);
		live_sync_all(&l);
		assert_int_equal(live_counter(&l, META_IMAGES), 1);
		assert_int_equal(live_records(&l, 'D'), 3);
		live_reopen(&l);
		assert_file(&l, "empty", data, 0);
		assert_file(&l, "one", data, 1);
		assert_file(&l, "most", data, SMALL_BYTES_MAX);
		assert_file(&l, "more", data, SMALL_BYTES_MAX + 1);
		live_free(&l);
	}
	free(data);
}

static void a_file_may_become_small_and_large_again(void **state)
{
	uint8_t *data = filled(FILE_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);

		for (unsigned i = 0; i < 3; i++) {
			live_write(&l, "f", data, FILE_BYTES);
			live_sync_all(&l);
			assert_int_equal(live_records(&l, 'D'), 0);
			live_write(&l, "f", data, 1000);
			live_sync_all(&l);
			live_settle(&l);
			assert_int_equal(live_records(&l, 'D'), 1);
			assert_int_equal(live_counter(&l, META_PHYSICAL), 1000);
			assert_int_equal(live_images(&l).count, 0);
			assert_file(&l, "f", data, 1000);
		}
		live_free(&l);
	}
	free(data);
}

/*
 * A file is closed once more, by a dup(2), while the committer has its bytes.
 * They are durable then, and its stage may be gone: nothing is left to do.
 */
static void a_close_of_what_is_durable_meanwhile_leaves_no_job(void **state)
{
	uint8_t *data = filled(FILE_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		struct inode *in;

		live_close(&l);
		l.options.hold_drain = true;
		live_open(&l);
		{
			PAUSE_COMMITS(&l);
			live_write(&l, "f", data, FILE_BYTES);
			assert_int_equal(live_lookup(&l, "f", &in), 0);
			{
				HOLD(&l.st->drain->lock);
				order_want_soon(
					versions_next(&in->file->versions));
				cond_broadcast(&l.st->drain->work);
				while (versions_next(&in->file->versions) ||
				       in->file->versions.in_flight->state ==
					       VERSION_RUNNING)
					cond_wait(&l.st->drain->moved,
						  &l.st->drain->lock);
			}
			assert_int_equal(drain_closed(l.st->drain, in, true),
					 0);
			assert_non_null(versions_next(&in->file->versions));
		}
		assert_int_equal(drain_wait_drained(l.st->drain), 0);
		assert_null(versions_next(&in->file->versions));
		assert_int_equal(committed_size(&l, "f"), FILE_BYTES);
		inode_put(l.st->inodes, in, 1);
		live_free(&l);
	}
	free(data);
}

/* Its worker sees that the bytes are not those that were closed any more. */
static void who_waits_for_an_overtaken_job_is_told_to_look_again(void **state)
{
	struct store_options o = live_options();
	uint8_t *data = filled(FILE_BYTES, 1);
	struct drain_job *j;
	struct content c;
	struct handle h;
	struct live l;
	int rc;

	(void)state;
	o.hold_drain = true;
	l = live_new(&o);
	h = handle_open(&l, "f", O_WRONLY | O_CREAT);
	handle_write(&h, data, 1000, 0);
	assert_int_equal(file_flush(&l.st->files, h.in, h.flags), 0);
	handle_write(&h, data + 1000, FILE_BYTES - 1000, 1000);
	/* A sync has found the job, and a worker is faster. */
	j = job_for(l.st->drain, h.in, CLOSE_NOT, &rc);
	assert_non_null(j);
	drain_go_on(l.st->drain);
	{
		HOLD(&l.st->drain->lock);
		while (!version_over(&j->v))
			cond_wait(&l.st->drain->moved, &l.st->drain->lock);
	}
	assert_int_equal(j->v.state, VERSION_GONE);
	assert_int_equal(j->result, -EAGAIN);
	drain_job_put(l.st->drain, j);
	assert_int_equal(live_sync(&l, "f"), 0);
	c = live_content(&l, "f");
	assert_int_equal(c.size_bytes, FILE_BYTES);
	content_release(&c);
	handle_close(&h);
	live_free(&l);
	free(data);
}

/* --- errors
 * --------------------------------------------------------------------- */

/* Writes that reach beyond `bytes` of a file fail with EFBIG; 0: none do. */
static void limit_files(uint64_t bytes)
{
	struct rlimit limit;

	assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
	limit.rlim_cur = bytes ? bytes : limit.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void an_error_sticks_is_told_once_and_ends_when_it_is_over(void **state)
{
	struct store_options o = live_options();
	uint8_t *data = filled(FILE_BYTES, 1);
	struct drain_figures figures;
	struct handle h = { 0 };
	struct live l;

	(void)state;
	(void)signal(SIGXFSZ, SIG_IGN);
	o.hold_drain = true;
	o.stage_all_in_memory = true;
	l = live_new(&o);
	live_write(&l, "f", data, FILE_BYTES);
	limit_files(MIB);
	assert_int_equal(drain_sync_tree(l.st->drain, ROOT_INO), -EFBIG);
	drain_figures(l.st->drain, &figures);
	assert_int_equal(figures.failed, 1);
	assert_int_equal(handle_try(&l, "f", O_RDONLY, &h), -EFBIG);
	assert_file(&l, "f", data, FILE_BYTES); /* told; nothing is dropped */
	assert_int_equal(live_sync(&l, "f"), -EFBIG);
	assert_file(&l, "f", data, FILE_BYTES); /* fsync told it */
	/* The same bytes fail once more: that is told already. */
	assert_int_equal(drain_sync_tree(l.st->drain, ROOT_INO), -EFBIG);
	assert_file(&l, "f", data, FILE_BYTES);
	assert_false(committed(&l, live_ino(&l, "f")));
	limit_files(0);
	assert_int_equal(live_sync(&l, "f"), 0);
	drain_figures(l.st->drain, &figures);
	assert_int_equal(figures.failed, 0);
	assert_int_equal(figures.draining, 0);
	assert_file(&l, "f", data, FILE_BYTES);
	live_free(&l);
	free(data);
}

static void
a_store_that_closes_with_an_error_says_so_and_drops_nothing(void **state)
{
	struct store_options o = live_options();
	uint8_t *data = filled(FILE_BYTES, 1);
	struct live l;
	int rc;

	(void)state;
	(void)signal(SIGXFSZ, SIG_IGN);
	o.stage_all_in_memory = true;
	o.hold_drain = true;
	l = live_new(&o);
	live_write(&l, "before", data, 1000);
	live_write(&l, "f", data, FILE_BYTES);
	live_write(&l, "after", data, 2000);
	limit_files(MIB);
	rc = store_close(l.st);
	l.st = NULL;
	limit_files(0);
	assert_int_equal(rc, -EFBIG);
	live_open(&l);
	assert_file(&l, "before", data, 1000);
	assert_file(&l, "f", data, FILE_BYTES);
	assert_file(&l, "after", data, 2000);
	live_sync_all(&l);
	live_reopen(&l);
	assert_file(&l, "f", data, FILE_BYTES);
	live_free(&l);
	free(data);
}

static void nobody_overtakes_a_file_that_cannot_be_made_durable(void **state)
{
	struct store_options o = live_options();
	uint8_t *data = filled(FILE_BYTES, 1);
	struct live l;

	(void)state;
	(void)signal(SIGXFSZ, SIG_IGN);
	o.stage_all_in_memory = true;
	o.hold_drain = true;
	l = live_new(&o);
	live_write(&l, "data", data, FILE_BYTES);
	live_write(&l, "tracker", data, 8);
	limit_files(MIB);
	assert_int_equal(drain_sync_tree(l.st->drain, ROOT_INO), -EFBIG);
	assert_false(committed(&l, live_ino(&l, "tracker")));
	limit_files(0);
	live_sync_all(&l);
	assert_true(committed(&l, live_ino(&l, "tracker")));
	assert_true(committed(&l, live_ino(&l, "data")));
	live_free(&l);
	free(data);
}

/* A job that finds no descriptor is tried again, and nothing of it is lost. */
static void a_job_without_a_descriptor_is_only_late(void **state)
{
	uint8_t *data = filled(3 * MIB, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_closed(NULL);
		struct rlimit had, none;
		unsigned before;

		l.options.stage_all_in_memory = (kind & 1) != 0;
		l.options.hold_drain = (kind & 2) != 0;
		live_open(&l);
		live_write(&l, "first", data, 3 * MIB);
		live_sync_all(&l);
		before = open_descriptors();
		assert_int_equal(getrlimit(RLIMIT_NOFILE, &had), 0);
		none = had;
		none.rlim_cur = 3;
		{
			struct handle h =
				handle_open(&l, "a", O_WRONLY | O_CREAT);

			handle_write(&h, data + 1, 3 * MIB - 1, 0);
			assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
			handle_close(&h);
		}
		assert_int_equal(live_sync(&l, "a"), -EMFILE);
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &had), 0);
		live_sync_all(&l);
		assert_file(&l, "a", data + 1, 3 * MIB - 1);
		assert_int_equal(open_descriptors(), before);
		live_free(&l);
	}
	free(data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			replicas_that_are_closed_together_cost_one_and_are_all_native),
		cmocka_unit_test(eight_replicas_cost_one),
		cmocka_unit_test(
			a_copy_of_a_durable_file_is_native_and_costs_nothing),
		cmocka_unit_test(
			the_same_bytes_closed_again_change_the_time_alone),
		cmocka_unit_test(
			a_file_that_shares_less_than_3_percent_stays_native),
		cmocka_unit_test(a_file_that_shares_10_percent_shares_them),
		cmocka_unit_test(what_is_left_native_is_counted),
		cmocka_unit_test(the_same_tensors_at_other_offsets_are_shared),
		cmocka_unit_test(zeros_take_no_room),
		cmocka_unit_test(
			a_file_of_nothing_but_zeros_has_its_size_and_no_image),
		cmocka_unit_test(a_file_that_repeats_itself_is_stored_once),
		cmocka_unit_test(drained_files_keep_no_descriptor_open),
		cmocka_unit_test(small_files_live_in_the_database),
		cmocka_unit_test(a_file_may_become_small_and_large_again),
		cmocka_unit_test(
			a_close_of_what_is_durable_meanwhile_leaves_no_job),
		cmocka_unit_test(
			who_waits_for_an_overtaken_job_is_told_to_look_again),
		cmocka_unit_test(
			an_error_sticks_is_told_once_and_ends_when_it_is_over),
		cmocka_unit_test(
			a_store_that_closes_with_an_error_says_so_and_drops_nothing),
		cmocka_unit_test(
			nobody_overtakes_a_file_that_cannot_be_made_durable),
		cmocka_unit_test(a_job_without_a_descriptor_is_only_late),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
