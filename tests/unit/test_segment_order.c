/*
 * A commit of a client's memory, and its place in the order, whatever comes
 * between.
 */
#include "tests/unit/between.h"
#include "tests/unit/segment_fixture.h"

/* The file is replaced, and everything is durable. */
static void somebody_else_saves(void *arg)
{
	struct client *other = arg;

	live_sync_all(other->l);
	save(other, "f", 3);
	live_sync_all(other->l);
}

static void a_job_is_of_the_stage_that_the_file_has(void **state)
{
	struct live l = live_kind_held(0);
	struct client c, other;
	struct inode *in;

	(void)state;
	client_init(&c, &l);
	client_init(&other, &l);
	save(&c, "f", 1);
	assert_int_equal(live_lookup(&l, "f", &in), 0);
	between = (struct between){ in, somebody_else_saves, &other };
	save(&c, "f", 2);
	assert_null(between.fn);
	assert_seed(&l, "f", 3);
	/* Whose bytes are gone gets no job for them. */
	assert_null(versions_next(&in->file->versions));
	save(&c, "f", 4);
	live_sync_all(&l);
	assert_seed(&l, "f", 4);
	assert_int_equal(in->file->versions.replaced, 0);
	assert_int_equal(stage_count(&l), 1);
	inode_put(l.st->inodes, in, 1);
	client_end(&c);
	client_end(&other);
	live_reopen(&l);
	assert_seed(&l, "f", 4);
	live_free(&l);
}

static uint64_t place_of(struct live *l, const char *name)
{
	uint64_t order;
	struct inode *in;

	assert_int_equal(live_lookup(l, name, &in), 0);
	assert_non_null(versions_next(&in->file->versions));
	order = versions_next(&in->file->versions)->place;
	inode_put(l->st->inodes, in, 1);
	return order;
}

/* Who saved it says so once more, late: it keeps its place. */
static void sealed_bytes_keep_their_place_in_the_order(void **state)
{
	struct live l = live_kind_held(0);
	struct client c;
	struct inode *in;
	uint64_t place;

	(void)state;
	client_init(&c, &l);
	save(&c, "f", 1);
	save(&c, "g", 2);
	place = place_of(&l, "f");
	assert_true(place < place_of(&l, "g"));
	assert_int_equal(live_lookup(&l, "f", &in), 0);
	assert_int_equal(drain_closed(l.st->drain, in), 0);
	assert_int_equal(place_of(&l, "f"), place);
	inode_put(l.st->inodes, in, 1);
	client_end(&c);
	live_free(&l);
}

/* The drain is held, and nobody asks for it: it begins with no close alone. */
static void what_replaces_a_file_waits_until_the_drain_goes_on(void **state)
{
	static const uint8_t bytes[100];
	struct live l = live_kind_held(2);
	struct client c;

	(void)state;
	client_init(&c, &l);
	live_write(&l, "f", bytes, sizeof(bytes));
	assert_int_equal(live_sync(&l, "f"), 0);
	save(&c, "f", 1);
	live_quiet(&l);
	assert_int_equal(committed_size(&l, "f"), sizeof(bytes));
	drain_go_on(l.st->drain);
	live_sync_all(&l);
	assert_int_equal(committed_size(&l, "f"), SIZE);
	client_end(&c);
	live_free(&l);
}

/* Who changes it makes it durable first, in its place. */
static void who_opens_a_save_to_write_takes_it_past_nobody(void **state)
{
	static const uint8_t bytes[100];
	struct live l = live_kind_held(2);
	struct client c;
	struct handle h;

	(void)state;
	client_init(&c, &l);
	live_write(&l, "before", bytes, sizeof(bytes));
	save(&c, "f", 1);
	live_write(&l, "after", bytes, sizeof(bytes));
	h = handle_open(&l, "f", O_RDWR);
	assert_int_equal(committed_size(&l, "f"), SIZE);
	assert_int_equal(committed_size(&l, "before"), sizeof(bytes));
	assert_int_equal(committed_size(&l, "after"), 0);
	handle_close(&h);
	client_end(&c);
	live_free(&l);
}

static void *save_main(void *arg)
{
	save(arg, "f", 2);
	return NULL;
}

/* The kernel forgets a file while who replaces it waits for it to be durable.
 */
static void who_is_forgotten_when_he_loses_his_name_leaves_nothing(void **state)
{
	struct live l = live_kind(2);
	struct drain *d = l.st->drain;
	struct client c, other;
	pthread_t thread;
	struct handle h;

	(void)state;
	client_init(&c, &l);
	client_init(&other, &l);
	{
		PAUSE_COMMITS(&l);

		save(&c, "f", 1);
		h = handle_open(&l, "f", O_RDONLY);
		file_release(&l.st->files, h.in,
			     O_RDONLY); /* perhaps mapped yet */
		assert_int_equal(
			pthread_create(&thread, NULL, save_main, &other), 0);
		{
			HOLD(&d->lock);
			while (order_first(&d->order)->want == WANT_NOT)
				cond_wait(&d->work, &d->lock);
		}
		inode_forget(l.st->inodes, h.in, 1);
		file_forgotten(&l.st->files, h.in);
	}
	assert_int_equal(pthread_join(thread, NULL), 0);
	inode_put(l.st->inodes, h.in, 1);
	live_sync_all(&l);
	assert_seed(&l, "f", 2);
	assert_int_equal(stage_count(&l), 1);
	client_end(&c);
	client_end(&other);
	live_free(&l);
}

/*
 * The committer has published the first save, and is about to end its job: the
 * second one has a place of its own, behind it.
 */
static void a_save_right_after_one_that_was_published_has_a_place(void **state)
{
	struct live l = live_kind(2);
	struct segment_reply r;
	struct work seen = { .kind = WORK_OF_CLOSED };
	struct drain_job first = { .work = &seen };
	struct order *o = &l.st->drain->order;
	struct client c;
	struct inode *in;
	uint8_t *memory;

	(void)state;
	client_init(&c, &l);
	acquire_waiting(&c, 1, SIZE, &r, &memory);
	fill(memory, SIZE, 1);
	assert_int_equal(commit(&c, &r, "f"), 0);
	live_sync_all(&l);
	assert_int_equal(inode_get(l.st->inodes, live_ino(&l, "f"), &in), 0);
	first.in = in;
	first.stage = in->file->stage;
	{
		HOLD(&in->lock);
		HOLD(&l.st->drain->lock);
		order_add(o, &first.v, &in->file->versions, VERSION_QUEUED);
		order_place(o, &first.v);
		assert_ptr_equal(order_start(o), &first.v);
		order_ready(o, &first.v);
		assert_ptr_equal(order_take(o), &first.v);
		order_seen(o, &first.v);
	}
	acquire_waiting(&c, 1, SIZE, &r, &memory);
	fill(memory, SIZE, 2);
	assert_int_equal(commit(&c, &r, "f"), 0);
	{
		HOLD(&in->lock);
		HOLD(&l.st->drain->lock);
		assert_non_null(versions_next(&in->file->versions));
		assert_int_not_equal(versions_next(&in->file->versions)->place,
				     0);
		order_end(o, &first.v, VERSION_DONE);
		cond_broadcast(&l.st->drain->work);
	}
	inode_put(l.st->inodes, in, 1);
	live_sync_all(&l);
	client_end(&c);
	live_free(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_job_is_of_the_stage_that_the_file_has),
		cmocka_unit_test(
			what_replaces_a_file_waits_until_the_drain_goes_on),
		cmocka_unit_test(sealed_bytes_keep_their_place_in_the_order),
		cmocka_unit_test(
			who_opens_a_save_to_write_takes_it_past_nobody),
		cmocka_unit_test(
			who_is_forgotten_when_he_loses_his_name_leaves_nothing),
		cmocka_unit_test(
			a_save_right_after_one_that_was_published_has_a_place),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
