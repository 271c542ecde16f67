/*
 * What closed files become: nothing but what was written. What they share is
 * test_drain_share.c's, errors are test_drain_errors.c's, and the order of the
 * closes is test_order.c's.
 */
#include "store/drain/drain_private.h"
#include "tests/unit/live_store.h"

#define FILE_BYTES (3 * MIB + 12345)

static void the_same_bytes_closed_again_change_no_more_than_the_time(void **state)
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
			first = live_content(&l, "f");
			live_write(&l, "f", data, len);
			live_sync_all(&l);
			again = live_content(&l, "f");
			/* The kernel's clock for files may stand still. */
			assert_true(again.mtime_ns >= first.mtime_ns);
			assert_true(again.generation > first.generation);
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

static int64_t time_of(struct live *l, struct inode *in)
{
	struct stat sb;

	assert_int_equal(inode_stat(l->st->inodes, in, &sb), 0);
	return io_ns(&sb.st_mtim);
}

/*
 * A close that changes nothing is on its way when a time is set: it is that of
 * what is there, and not of what is saved next, in this mount or another.
 */
static void a_time_set_by_hand_is_of_no_later_bytes(void **state)
{
	const struct attr by_hand = { .mtime_ns = 1234567890 };
	uint8_t *data = filled(FILE_BYTES, 1);

	(void)state;
	for (int reopen = 0; reopen < 2; reopen++) {
		struct live l = live_kind_held(1);
		struct handle h;

		live_write(&l, "f", data, FILE_BYTES);
		live_sync_all(&l);
		h = handle_open(&l, "f", O_RDWR);
		handle_close(&h);
		h = handle_open(&l, "f", O_RDONLY);
		assert_true(file_is_dirty(h.in->file));
		assert_int_equal(
			names_setattr(l.st->names, h.in, SET_MTIME, &by_hand),
			0);
		live_sync_all(&l);
		assert_false(file_is_dirty(h.in->file));
		handle_release(&h);
		if (reopen)
			live_reopen(&l);
		live_write(&l, "f", data + 1, FILE_BYTES - 1);
		live_sync_all(&l);
		live_reopen(&l);
		h = handle_open(&l, "f", O_RDONLY);
		assert_int_not_equal(time_of(&l, h.in), by_hand.mtime_ns);
		handle_release(&h);
		live_free(&l);
	}
	free(data);
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
		live_sync_all(&l); /* it shares with what is durable */
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
		struct live l = live_kind_held(kind);
		struct inode *in;

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
			assert_int_equal(drain_closed(l.st->drain, in), 0);
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
	struct live l = live_kind_held(0);
	uint8_t *data = filled(FILE_BYTES, 1);
	struct drain_job *j;
	struct content c;
	struct handle h;
	int rc;

	(void)state;
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			the_same_bytes_closed_again_change_no_more_than_the_time),
		cmocka_unit_test(a_time_set_by_hand_is_of_no_later_bytes),
		cmocka_unit_test(zeros_take_no_room),
		cmocka_unit_test(
			a_file_of_nothing_but_zeros_has_its_size_and_no_image),
		cmocka_unit_test(drained_files_keep_no_descriptor_open),
		cmocka_unit_test(small_files_live_in_the_database),
		cmocka_unit_test(a_file_may_become_small_and_large_again),
		cmocka_unit_test(
			a_close_of_what_is_durable_meanwhile_leaves_no_job),
		cmocka_unit_test(
			who_waits_for_an_overtaken_job_is_told_to_look_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
