/*
 * Files that stay open for long: a log becomes durable as it grows; what takes
 * the place of something does not, before it is whole.
 */
#include "tests/unit/await.h"
#include "tests/unit/live_flight.h"
#include "tests/unit/live_store.h"
#include "tests/unit/test_clock.h"

#define INTERVAL_S 3600 /* no time passes: it does not end by itself */
#define OLD_BYTES (MIB + 5)

static struct live live_interval(unsigned kind)
{
	struct live l = live_kind(kind);

	time_stands();
	live_close(&l);
	l.options.drain_interval_s = INTERVAL_S;
	live_open(&l);
	return l;
}

/* When it was opened, or looked at last; now for what replaces something. */
static int64_t open_since(struct handle *h)
{
	HOLD(&h->in->lock);
	return h->in->file->open_since_ns == OPEN_REPLACES
		       ? mono_ns()
		       : h->in->file->open_since_ns;
}

/* Everything that is being drained has been. */
static void wait_drained(struct live *l)
{
	struct drain *d = l->st->drain;

	HOLD(&d->lock);
	while (d->order.unfinished > 0)
		cond_wait(&d->moved, &d->lock);
}

/* The time has come to look at h, and what that starts is done. */
static void look_at(struct live *l, struct handle *h)
{
	drain_open_files(l->st->drain, open_since(h) + INTERVAL_S * SECOND_NS);
	wait_drained(l);
}

static void assert_committed(struct live *l, const char *path, size_t size)
{
	struct content c = live_content(l, path);

	assert_int_equal(c.size_bytes, size);
	content_release(&c);
}

static void what_replaces_a_file_is_durable_when_it_is_whole(void **state)
{
	static const int flags[] = { O_WRONLY | O_TRUNC, O_WRONLY, O_RDWR,
				     O_WRONLY | O_TRUNC | O_APPEND };
	uint8_t *old = filled(OLD_BYTES, 1), *new = filled(OLD_BYTES, 2);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		for (unsigned i = 0; i < 4; i++) {
			struct live l = live_interval(kind);
			uint64_t first, synced;
			struct handle h;

			live_write(&l, "f", old, OLD_BYTES);
			live_sync_all(&l);
			first = live_generation(&l, "f");
			h = handle_open(&l, "f", flags[i]);
			handle_write(&h, new, 100, 0);
			look_at(&l, &h);
			handle_write(&h, new, OLD_BYTES / 2, 0);
			look_at(&l, &h);
			assert_int_equal(live_generation(&l, "f"), first);
			/* Who asks for it gets it, and changes nothing else. */
			assert_int_equal(file_sync(&l.st->files, h.in), 0);
			synced = live_generation(&l, "f");
			assert_true(synced > first);
			handle_write(&h, new, OLD_BYTES, 0);
			look_at(&l, &h);
			assert_int_equal(live_generation(&l, "f"), synced);
			handle_close(&h);
			wait_drained(&l);
			assert_true(live_generation(&l, "f") > synced);
			assert_file(&l, "f", new, OLD_BYTES);
			live_free(&l);
		}
	}
	free(old);
	free(new);
}

/* It was closed and is not durable yet: that is as good as durable. */
static void
what_replaces_a_closed_file_is_durable_when_it_is_whole(void **state)
{
	uint8_t *old = filled(OLD_BYTES, 1), *new = filled(OLD_BYTES, 2);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_interval(kind);
		struct commits_paused paused;
		struct handle h;

		commits_pause(&paused, &l);
		live_write(&l, "f", old, OLD_BYTES);
		h = handle_open(&l, "f", O_WRONLY | O_TRUNC);
		commits_go_on(&paused);
		handle_write(&h, new, OLD_BYTES / 2, 0);
		look_at(&l, &h);
		assert_committed(&l, "f", OLD_BYTES);
		handle_close(&h);
		wait_drained(&l);
		assert_file(&l, "f", new, OLD_BYTES / 2);
		live_free(&l);
	}
	free(old);
	free(new);
}

static void what_is_cut_short_is_durable_when_it_is_whole(void **state)
{
	uint8_t *data = filled(OLD_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_interval(kind);
		struct handle h = handle_open(&l, "f", O_RDWR | O_CREAT);

		handle_write(&h, data, OLD_BYTES, 0);
		assert_int_equal(file_sync(&l.st->files, h.in), 0);
		assert_int_equal(file_truncate(&l.st->files, h.in, 10), 0);
		look_at(&l, &h);
		assert_committed(&l, "f", OLD_BYTES);
		handle_close(&h);
		wait_drained(&l);
		assert_committed(&l, "f", 10);
		live_free(&l);
	}
	free(data);
}

static void what_grows_is_durable_while_it_is_open(void **state)
{
	uint8_t *data = filled(OLD_BYTES + 200, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_interval(kind);
		struct handle h = handle_open(&l, "f", O_WRONLY | O_CREAT);

		handle_write(&h, data, OLD_BYTES, 0);
		look_at(&l, &h);
		assert_committed(&l, "f", OLD_BYTES);
		handle_write(&h, data + OLD_BYTES, 100, OLD_BYTES);
		look_at(&l, &h);
		assert_committed(&l, "f", OLD_BYTES + 100);
		handle_close(&h);
		wait_drained(&l);
		h = handle_open(&l, "f", O_WRONLY | O_APPEND);
		handle_write(&h, data + OLD_BYTES + 100, 100, OLD_BYTES + 100);
		look_at(&l, &h);
		assert_committed(&l, "f", OLD_BYTES + 200);
		handle_close(&h);
		assert_file(&l, "f", data, OLD_BYTES + 200);
		live_free(&l);
	}
	free(data);
}

/* What is under way has read it before that. */
static void what_grows_while_it_is_drained_is_drained_again(void **state)
{
	uint8_t *data = filled(OLD_BYTES + 100, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_interval(kind);
		struct handle h = handle_open(&l, "f", O_WRONLY | O_CREAT);
		struct commits_paused paused;
		int64_t now = open_since(&h) + INTERVAL_S * SECOND_NS;

		commits_pause(&paused, &l);
		handle_write(&h, data, OLD_BYTES, 0);
		drain_open_files(l.st->drain, now);
		AWAIT(live_flight(&l, h.in) == VERSION_TAKEN);
		handle_write(&h, data + OLD_BYTES, 100, OLD_BYTES);
		drain_open_files(l.st->drain, now + INTERVAL_S * SECOND_NS);
		commits_go_on(&paused);
		wait_drained(&l);
		look_at(&l, &h);
		assert_committed(&l, "f", OLD_BYTES + 100);
		handle_close(&h);
		live_free(&l);
	}
	free(data);
}

static void each_file_is_looked_at_by_its_own_age(void **state)
{
	uint8_t *data = filled(MIB, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_interval(kind);
		struct handle a = handle_open(&l, "a", O_WRONLY | O_CREAT);
		struct handle b;

		time_passes(1);
		b = handle_open(&l, "b", O_WRONLY | O_CREAT);
		handle_write(&a, data, MIB, 0);
		handle_write(&b, data, 100, 0);
		assert_true(open_since(&b) > open_since(&a));
		look_at(&l, &a);
		assert_true(committed(&l, a.in->ino));
		assert_false(committed(&l, b.in->ino));
		look_at(&l, &b);
		assert_true(committed(&l, b.in->ino));
		handle_close(&a);
		handle_close(&b);
		live_free(&l);
	}
	free(data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			what_replaces_a_file_is_durable_when_it_is_whole),
		cmocka_unit_test(
			what_replaces_a_closed_file_is_durable_when_it_is_whole),
		cmocka_unit_test(what_is_cut_short_is_durable_when_it_is_whole),
		cmocka_unit_test(what_grows_is_durable_while_it_is_open),
		cmocka_unit_test(
			what_grows_while_it_is_drained_is_drained_again),
		cmocka_unit_test(each_file_is_looked_at_by_its_own_age),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
