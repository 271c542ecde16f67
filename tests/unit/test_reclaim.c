/*
 * What nobody refers to any more is given back, and nothing else. Bytes within
 * an image are test_reclaim_holes.c's.
 */
#include <pthread.h>

#include "tests/unit/live_store.h"

#define DATA_BYTES (4 * MIB)

static void a_deleted_file_gives_its_bytes_back(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);

		live_write(&l, "f", data, DATA_BYTES);
		live_sync_all(&l);
		live_settle(&l);
		assert_int_equal(live_images(&l).count, 1);
		assert_true(live_images(&l).bytes >= DATA_BYTES);
		assert_int_equal(live_unlink(&l, "f"), 0);
		live_settle(&l);
		assert_int_equal(live_images(&l).count, 0);
		assert_int_equal(live_counter(&l, META_PHYSICAL), 0);
		assert_int_equal(live_counter(&l, META_LOGICAL), 0);
		assert_int_equal(live_counter(&l, META_CHUNKS), 0);
		assert_int_equal(live_counter(&l, META_IMAGES), 0);
		assert_int_equal(live_counter(&l, META_FILES), 0);
		assert_int_equal(live_records(&l, 'H'), 0);
		assert_int_equal(live_records(&l, 'P'), 0);
		live_free(&l);
	}
	free(data);
}

static void a_file_deleted_before_it_is_drained_leaves_nothing(void **state)
{
	struct store_options o = live_options();
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	for (unsigned memory = 0; memory < 2; memory++) {
		struct live l;

		o.hold_drain = true;
		o.stage_all_in_memory = memory == 1;
		l = live_new(&o);
		live_write(&l, "f", data, DATA_BYTES);
		assert_int_equal(live_unlink(&l, "f"), 0);
		live_settle(&l);
		assert_int_equal(live_images(&l).count, 0);
		assert_int_equal(live_records(&l, 'A'), 1);
		assert_int_equal(live_counter(&l, META_FILES), 0);
		live_free(&l);
	}
	free(data);
}

static void a_replaced_file_gives_its_old_bytes_back(void **state)
{
	uint8_t *data = malloc(DATA_BYTES);

	(void)state;
	assert_non_null(data);
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);

		for (unsigned i = 0; i < 5; i++) {
			fill(data, DATA_BYTES, i + 1);
			live_write(&l, "f", data, DATA_BYTES);
			live_sync_all(&l);
			live_settle(&l);
			assert_int_equal(live_images(&l).count, 1);
			assert_int_equal(live_counter(&l, META_PHYSICAL),
					 DATA_BYTES);
		}
		live_free(&l);
	}
	free(data);
}

static void who_reads_keeps_the_bytes_until_he_is_done(void **state)
{
	uint8_t *old = filled(DATA_BYTES, 1), *new = filled(DATA_BYTES, 2);
	struct live l = live_kind(1);
	struct file_read r;
	struct inode *in = NULL;
	uint64_t freed = 0;
	size_t at = 0;

	(void)state;
	live_write(&l, "f", old, DATA_BYTES);
	live_reopen(&l); /* no stage: the bytes come from the image */
	assert_int_equal(live_lookup(&l, "f", &in), 0);
	assert_int_equal(file_read_begin(&l.st->files, in, DATA_BYTES, 0, &r),
			 0);
	live_write(&l, "f", new, DATA_BYTES);
	live_sync_all(&l);
	commit_wait(l.st->drain);
	reclaim_drain(l.st->reclaim, &freed); /* somebody reads: not now */
	assert_int_equal(freed, 0);
	assert_true(live_records(&l, 'P') > 0);
	for (int i = 0; i < r.count; i++) {
		assert_memory_equal(r.iov[i].iov_base, old + at,
				    r.iov[i].iov_len);
		at += r.iov[i].iov_len;
	}
	assert_int_equal(at, DATA_BYTES);
	file_read_end(&l.st->files, &r);
	reclaim_drain(l.st->reclaim, &freed);
	assert_true(freed >= DATA_BYTES);
	assert_int_equal(live_records(&l, 'P'), 0);
	assert_int_equal(live_images(&l).count, 1);
	inode_put(l.st->inodes, in, 1);
	live_free(&l);
	free(old);
	free(new);
}

static void
a_reader_in_the_kernel_keeps_the_bytes_of_a_deleted_file(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);
	struct live l = live_kind(2);
	struct handle r;

	(void)state;
	live_write(&l, "f", data, DATA_BYTES);
	live_reopen(&l);
	r = handle_open(&l, "f", O_RDONLY);
	assert_true(r.fd >= 0); /* backed by the image itself */
	assert_int_equal(live_unlink(&l, "f"), 0);
	live_settle(&l);
	assert_handle_bytes(&r, data, DATA_BYTES);
	handle_close(&r);
	live_settle(&l);
	assert_int_equal(live_images(&l).count, 0);
	live_free(&l);
	free(data);
}

/*
 * A job gave up after another file had shared its image, and that file is gone
 * by then: the image is the reclaimer's, who waits for readers.
 */
static void
an_abandoned_image_that_was_shared_once_leaves_no_record(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);
	struct live l = live_new(NULL);
	struct reclaim_ticket reader;
	struct content c;
	struct image *i = NULL;

	(void)state;
	live_write(&l, "f", data, DATA_BYTES);
	live_sync_all(&l);
	live_settle(&l);
	c = live_content(&l, "f");
	assert_int_equal(image_get(&l.st->images, c.extents[0].image, &i), 0);
	content_release(&c);
	reclaim_enter(l.st->reclaim, &reader); /* nothing is punched */
	assert_int_equal(live_unlink(&l, "f"), 0);
	commit_wait(l.st->drain);
	commit_abandon(l.st->drain, i, DATA_BYTES);
	commit_wait(l.st->drain);
	assert_int_equal(live_images(&l).count, 1); /* he may read it */
	reclaim_leave(l.st->reclaim, &reader);
	live_settle(&l);
	assert_int_equal(live_images(&l).count, 0);
	assert_int_equal(live_counter(&l, META_IMAGES), 0);
	live_free(&l);
	free(data);
}

static void what_is_given_back_is_counted_once(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		uint64_t held, image, freed = 0;
		struct reclaim_ticket reader;
		struct content c;

		live_write(&l, "f", data, DATA_BYTES);
		live_sync_all(&l);
		live_settle(&l);
		held = live_images(&l).bytes;
		c = live_content(&l, "f");
		image = c.extents[0].image;
		content_release(&c);
		/* Also when two ranges of the image are decided on together. */
		reclaim_enter(l.st->reclaim, &reader);
		assert_int_equal(live_unlink(&l, "f"), 0);
		commit_wait(l.st->drain);
		reclaim_add(l.st->reclaim, image, 0, DATA_BYTES);
		reclaim_leave(l.st->reclaim, &reader);
		live_settle(&l);
		reclaim_freed(l.st->reclaim, &freed);
		assert_int_equal(freed, held);
		live_free(&l);
	}
	free(data);
}

struct churn {
	struct live *l;
	unsigned number;
	pthread_t thread;
	const uint8_t *data;
};

#define CHURN_THREADS 4
#define CHURN_ROUNDS 40
#define CHURN_BYTES (300000u)

/* The same bytes come and go in all threads; each keeps its last file. */
static void *store_and_delete(void *arg)
{
	struct churn *c = arg;
	char name[32];

	for (unsigned i = 0; i < CHURN_ROUNDS; i++) {
		(void)snprintf(name, sizeof(name), "t%u_%u", c->number, i % 3);
		live_write(c->l, name, c->data, CHURN_BYTES);
		if ((i + c->number) % 2)
			CHECK(live_sync(c->l, name) == 0);
		if (i + 1 < CHURN_ROUNDS)
			CHECK(live_unlink(c->l, name) == 0);
	}
	return NULL;
}

static void
storing_what_is_deleted_at_the_same_moment_never_loses_a_chunk(void **state)
{
	uint8_t *data = filled(CHURN_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		struct churn c[CHURN_THREADS];
		char name[32];

		for (unsigned i = 0; i < CHURN_THREADS; i++) {
			c[i] = (struct churn){ .l = &l,
					       .number = i,
					       .data = data };
			CHECK(pthread_create(&c[i].thread, NULL,
					     store_and_delete, &c[i]) == 0);
		}
		for (unsigned i = 0; i < CHURN_THREADS; i++)
			pthread_join(c[i].thread, NULL);
		live_sync_all(&l);
		live_settle(&l);
		assert_int_equal(live_counter(&l, META_FILES), CHURN_THREADS);
		live_reopen(&l);
		live_settle(&l);
		for (unsigned i = 0; i < CHURN_THREADS; i++) {
			(void)snprintf(name, sizeof(name), "t%u_%u", i,
				       (CHURN_ROUNDS - 1) % 3);
			assert_file(&l, name, data, CHURN_BYTES);
		}
		live_free(&l);
	}
	free(data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_deleted_file_gives_its_bytes_back),
		cmocka_unit_test(
			a_file_deleted_before_it_is_drained_leaves_nothing),
		cmocka_unit_test(a_replaced_file_gives_its_old_bytes_back),
		cmocka_unit_test(who_reads_keeps_the_bytes_until_he_is_done),
		cmocka_unit_test(
			a_reader_in_the_kernel_keeps_the_bytes_of_a_deleted_file),
		cmocka_unit_test(
			an_abandoned_image_that_was_shared_once_leaves_no_record),
		cmocka_unit_test(what_is_given_back_is_counted_once),
		cmocka_unit_test(
			storing_what_is_deleted_at_the_same_moment_never_loses_a_chunk),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
