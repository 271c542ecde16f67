/*
 * When closed files become durable: in the order of their closes, whatever is
 * opened, replaced, synced or released meanwhile.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>

#include "store/base/io.h"
#include "store/base/sync.h"
#include "store/drain/drain_private.h"
#include "store/file/state.h"
#include "tests/unit/live_store.h"

#define FILE_BYTES (3 * MIB + 12345)

#define ORDER_FILES 12

static void
of_closed_files_none_is_committed_before_an_earlier_one(void **state)
{
	/* The first ones take long, so that the last would like to overtake. */
	static const size_t lens[ORDER_FILES] = {
		5 * MIB, 100,     3 * MIB, 40000, 10, 2 * MIB,
		5000,    1 * MIB, 0,       70000, 3,  2,
	};
	uint8_t *data = filled(5 * MIB, 1);
	struct live l = live_kind(1);

	(void)state;
	for (unsigned round = 0; round < 60; round++) {
		uint64_t ino[ORDER_FILES];
		bool all = false;

		fill(data, 5 * MIB, round + 2);
		for (unsigned i = 0; i < ORDER_FILES; i++) {
			char name[32];

			(void)snprintf(name, sizeof(name), "r%u_%u", round, i);
			live_write(&l, name, data, lens[i]);
			ino[i] = live_ino(&l, name);
		}
		while (!all) {
			bool later = false;

			all = true;
			/*
			 * The last one is looked at first: what it finds
			 * durable has nothing missing before it.
			 */
			for (unsigned i = ORDER_FILES; i-- > 0;) {
				bool now = committed(&l, ino[i]);

				assert_true(now || !later);
				later = later || now;
				all = all && now;
			}
		}
		for (unsigned i = 0; i < ORDER_FILES; i++) {
			char name[32];

			(void)snprintf(name, sizeof(name), "r%u_%u", round, i);
			assert_int_equal(live_unlink(&l, name), 0);
		}
	}
	live_settle(&l);
	assert_int_equal(live_counter(&l, META_PHYSICAL), 0);
	live_free(&l);
	free(data);
}

static void fsync_jumps_the_order(void **state)
{
	struct store_options o = live_options();
	uint8_t *data = filled(2 * MIB, 1);

	(void)state;
	for (unsigned kind = 0; kind < 2; kind++) {
		struct live l;

		o.hold_drain = true;
		o.stage_all_in_memory = kind == 1;
		l = live_new(&o);
		live_write(&l, "first", data, 2 * MIB);
		data[0]++;
		live_write(&l, "second", data, 2 * MIB);
		assert_int_equal(live_sync(&l, "second"), 0);
		assert_true(committed(&l, live_ino(&l, "second")));
		assert_false(committed(&l, live_ino(&l, "first")));
		live_sync_all(&l);
		assert_true(committed(&l, live_ino(&l, "first")));
		live_free(&l);
	}
	free(data);
}

static void a_publish_waits_for_all_that_was_closed_before(void **state)
{
	struct store_options o = live_options();
	uint8_t *data = filled(2 * MIB, 1);
	struct inode *in;
	struct live l;

	(void)state;
	o.hold_drain = true;
	l = live_new(&o);
	live_write(&l, "first", data, 2 * MIB);
	live_write(&l, "second", data, 100);
	live_write(&l, "third", data, 200);
	assert_int_equal(live_lookup(&l, "second", &in), 0);
	assert_int_equal(drain_publish(l.st->drain, in), 0);
	assert_true(committed(&l, live_ino(&l, "first")));
	assert_true(committed(&l, in->ino));
	inode_put(l.st->inodes, in, 1);
	live_free(&l);
	free(data);
}

static struct live live_kind_held(unsigned kind)
{
	struct live l = live_kind(kind);

	live_close(&l);
	l.options.hold_drain = true;
	live_open(&l);
	return l;
}

/*
 * The tracker names what was closed before it. What it names is opened again
 * and replaced, more than once: a durable tracker must still find it.
 */
static void a_file_that_is_replaced_keeps_its_place_in_the_order(void **state)
{
	static const size_t len[] = { 3 * MIB, 100, 2 * MIB + 1, MIB, 5 };
	uint8_t *data = filled(3 * MIB + 8, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		for (unsigned first = 0; first < 4; first++) {
			struct live l = live_kind_held(kind);
			bool named = false, second = false;
			struct handle h;

			live_write(&l, "a", data, len[first]);
			live_write(&l, "t", data, 3);
			live_write(&l, "a", data + 1, len[first + 1]);
			live_write(&l, "u", data, 4);
			h = handle_open(&l, "a", O_WRONLY | O_TRUNC);
			handle_write(&h, data + 2, 1000, 0);

			drain_go_on(l.st->drain);
			while (!second) {
				/* What is found durable first has the rest. */
				second = committed(&l, live_ino(&l, "u"));
				named = committed(&l, live_ino(&l, "t"));
				if (named && !second) {
					size_t now = committed_size(&l, "a");

					assert_true(now == len[first] ||
						    now == len[first + 1]);
				}
			}
			assert_int_equal(committed_size(&l, "a"),
					 len[first + 1]);
			assert_file(&l, "a", data + 2, 1000);
			handle_close(&h);
			live_sync_all(&l);
			assert_int_equal(committed_size(&l, "a"), 1000);
			live_reopen(&l);
			assert_file(&l, "a", data + 2, 1000);
			live_free(&l);
		}
	}
	free(data);
}

struct opener {
	struct live *l;
	struct handle h;
	atomic_bool opened;
};

static void *open_anew(void *arg)
{
	struct opener *o = arg;

	o->h = handle_open(o->l, "a", O_WRONLY | O_TRUNC);
	atomic_store(&o->opened, true);
	return NULL;
}

static unsigned awaiting_release(struct live *l)
{
	HOLD(&l->st->drain->lock);
	return l->st->drain->awaiting_release;
}

/* The kernel sends the release of a handle after its close has returned. */
static void
a_release_that_comes_after_the_next_open_changes_no_order(void **state)
{
	uint8_t *data = filled(2 * MIB + 8, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind_held(kind);
		struct opener o = { .l = &l };
		struct handle h;
		pthread_t thread;

		h = handle_open(&l, "a", O_WRONLY | O_CREAT);
		handle_write(&h, data, 2 * MIB, 0);
		assert_int_equal(file_flush(&l.st->files, h.in, h.flags), 0);
		live_write(&l, "t", data, 3);
		assert_int_equal(pthread_create(&thread, NULL, open_anew, &o),
				 0);
		while (awaiting_release(&l) == 0)
			assert_false(atomic_load(&o.opened));
		handle_release(&h);
		pthread_join(thread, NULL);
		handle_write(&o.h, data + 2, 1000, 0);

		drain_go_on(l.st->drain);
		while (!committed(&l, live_ino(&l, "t")))
			sched_yield();
		assert_int_equal(committed_size(&l, "a"), 2 * MIB);
		assert_file(&l, "a", data + 2, 1000);
		handle_close(&o.h);
		live_sync_all(&l);
		assert_int_equal(committed_size(&l, "a"), 1000);
		live_free(&l);
	}
	free(data);
}

/*
 * The thread of a late release, or of a close that saw no writer left, goes on
 * when the next writer has truncated the file and is in the middle of it.
 */
static void a_late_release_queues_no_half_of_the_next_writer(void **state)
{
	static const enum close_kind late[] = { CLOSE_LEFT, CLOSE_LAST };
	uint8_t *data = filled(2 * MIB, 1);

	(void)state;
	for (unsigned n = 0; n < 2 * LIVE_KINDS; n++) {
		struct live l = live_kind_held(n / 2);
		struct drain_job *j;
		struct handle h;
		int rc;

		live_write(&l, "a", data, 2 * MIB);
		live_sync_all(&l);
		h = handle_open(&l, "a", O_WRONLY | O_CREAT);
		assert_int_equal(file_flush(&l.st->files, h.in, h.flags), 0);
		handle_release(&h);
		h = handle_open(&l, "a", O_WRONLY | O_TRUNC);
		handle_write(&h, data + MIB, MIB / 2, 0);

		drain_released(l.st->drain, h.in);
		j = job_for(l.st->drain, h.in, late[n % 2], &rc);
		{
			HOLD(&h.in->lock);
			HOLD(&l.st->drain->lock);
			struct version *v =
				versions_next(&h.in->file->versions);

			/* Nobody has to drain it, or it waits for him. */
			assert_true(late[n % 2] == CLOSE_LAST ? j && v : !v);
			assert_true(!v || v->state == VERSION_CLOSED);
		}
		drain_job_put(l.st->drain, j);
		assert_int_equal(committed_size(&l, "a"), 2 * MIB);
		handle_write(&h, data + MIB + MIB / 2, MIB / 2, MIB / 2);
		handle_close(&h);
		live_sync_all(&l);
		assert_int_equal(committed_size(&l, "a"), MIB);
		assert_file(&l, "a", data + MIB, MIB);
		live_free(&l);
	}
	free(data);
}

/* Somebody has a dup(2) of it: that is no reason to wait for ever. */
static void a_handle_that_stays_open_is_truncated_with_the_file(void **state)
{
	uint8_t *data = filled(MIB, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind_held(kind);
		struct handle kept, h;

		kept = handle_open(&l, "a", O_WRONLY | O_CREAT);
		handle_write(&kept, data, MIB, 0);
		assert_int_equal(file_flush(&l.st->files, kept.in, kept.flags),
				 0);
		h = handle_open(&l, "a", O_WRONLY | O_TRUNC);
		handle_write(&h, data, 10, 0);
		handle_write(&kept, data + 10, 10, 10);
		handle_close(&h);
		handle_close(&kept);
		assert_file(&l, "a", data, 20);
		live_sync_all(&l);
		assert_int_equal(committed_size(&l, "a"), 20);
		live_free(&l);
	}
	free(data);
}

/*
 * Somebody opens a closed file to read just when its drain begins, so it has to
 * be drained once more. Its bytes have their place, for the next daemon as
 * well.
 */
static void who_only_reads_costs_a_closed_file_no_place(void **state)
{
	uint8_t *data = filled(2 * MIB, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind_held(kind);
		struct drain *d = l.st->drain;
		struct inode *in;

		live_write(&l, "a", data, 2 * MIB);
		assert_int_equal(live_lookup(&l, "a", &in), 0);
		{
			PAUSE_COMMITS(&l);
			uint64_t place;

			{
				HOLD(&in->lock);
				file_move(&in->file->state, FILE_BEGUN);
				HOLD(&d->lock);
				place = versions_next(&in->file->versions)
						->place;
				order_want_soon(
					versions_next(&in->file->versions));
				cond_broadcast(&d->work);
			}
			{
				HOLD(&d->lock);
				while (!in->file->versions.in_flight ||
				       in->file->versions.in_flight->state ==
					       VERSION_RUNNING)
					cond_wait(&d->moved, &d->lock);
			}
			{
				HOLD(&in->lock);
				file_move(&in->file->state, FILE_ENDED);
			}
			drain_released(l.st->drain, in);
			HOLD(&in->lock);
			assert_non_null(versions_next(&in->file->versions));
			assert_int_equal(
				SLOT_GET(in->file->stage->slot, close_order),
				place);
		}
		inode_put(l.st->inodes, in, 1);
		drain_go_on(l.st->drain);
		live_sync_all(&l);
		assert_file(&l, "a", data, 2 * MIB);
		live_free(&l);
	}
	free(data);
}

static void *sync_everything(void *arg)
{
	struct live *l = arg;

	assert_int_equal(drain_sync_tree(l->st->drain, ROOT_INO), 0);
	return NULL;
}

/* Until when what was closed waits for its release; 0: it does no longer. */
static int64_t waits_until(struct live *l, struct inode *in, bool *ret_asked)
{
	HOLD(&in->lock);
	HOLD(&l->st->drain->lock);
	struct version *v = versions_next(&in->file->versions);

	*ret_asked = v && v->want != WANT_NOT;
	return v && v->state == VERSION_CLOSED ? job_of(v)->due_ns : 0;
}

/* What is drained while it may change is drained once more. */
static void a_publish_lets_a_file_be_released_first(void **state)
{
	uint8_t *data = filled(2 * MIB, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind_held(kind);
		bool asked = false;
		pthread_t thread;
		struct handle h;
		int64_t due;

		h = handle_open(&l, "a", O_WRONLY | O_CREAT);
		handle_write(&h, data, 2 * MIB, 0);
		assert_int_equal(file_flush(&l.st->files, h.in, h.flags), 0);
		due = waits_until(&l, h.in, &asked);
		assert_int_equal(
			pthread_create(&thread, NULL, sync_everything, &l), 0);
		/* Its time may be over on a slow machine, but no sooner. */
		while (!asked && mono_ns() < due) {
			sched_yield();
			if (waits_until(&l, h.in, &asked) == 0)
				assert_true(mono_ns() >= due);
		}
		if (waits_until(&l, h.in, &asked) == 0)
			assert_true(mono_ns() >= due);
		handle_release(&h);
		pthread_join(thread, NULL);
		assert_int_equal(committed_size(&l, "a"), 2 * MIB);
		assert_file(&l, "a", data, 2 * MIB);
		live_free(&l);
	}
	free(data);
}

/* The mount goes while the kernel still has releases to send. */
static void a_release_that_never_comes_leaves_nothing_staged(void **state)
{
	uint8_t *data = filled(2 * MIB, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		struct handle h;
		char table[4096];

		h = handle_open(&l, "a", O_WRONLY | O_CREAT);
		handle_write(&h, data, 2 * MIB, 0);
		assert_int_equal(file_flush(&l.st->files, h.in, h.flags), 0);
		inode_put(l.st->inodes, h.in, 1);
		/* This one has no name, and lives as long as its handle. */
		h = handle_open(&l, "b", O_WRONLY | O_CREAT);
		handle_write(&h, data, MIB, 0);
		assert_int_equal(file_flush(&l.st->files, h.in, h.flags), 0);
		assert_int_equal(live_unlink(&l, "b"), 0);
		(void)snprintf(table, sizeof(table), "%s/table", l.stage);
		assert_int_equal(access(table, F_OK), 0);
		live_close(&l);
		assert_int_equal(access(table, F_OK), -1); /* it was clean */
		live_open(&l);
		assert_file(&l, "a", data, 2 * MIB);
		assert_int_equal(live_counter(&l, META_LOGICAL), 2 * MIB);
		live_free(&l);
	}
	free(data);
}

/* Whoever asks for the newest bytes gets them, and the older ones end. */
static void a_sync_of_a_file_that_was_replaced_is_of_the_newest(void **state)
{
	uint8_t *data = filled(2 * MIB + 8, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind_held(kind);

		live_write(&l, "before", data, 10);
		for (unsigned i = 0; i < 4; i++)
			live_write(&l, "a", data + i, 2 * MIB - i);
		assert_int_equal(live_sync(&l, "a"), 0);
		assert_int_equal(committed_size(&l, "a"), 2 * MIB - 3);
		live_reopen(&l);
		assert_file(&l, "a", data + 3, 2 * MIB - 3);
		assert_file(&l, "before", data, 10);
		live_free(&l);
	}
	free(data);
}

static void a_file_that_was_replaced_and_removed_leaves_nothing(void **state)
{
	uint8_t *data = filled(2 * MIB + 8, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind_held(kind);

		for (unsigned i = 0; i < 4; i++)
			live_write(&l, "a", data + i, 2 * MIB);
		assert_int_equal(live_unlink(&l, "a"), 0);
		live_sync_all(&l);
		live_settle(&l);
		assert_int_equal(live_counter(&l, META_PHYSICAL), 0);
		assert_int_equal(live_counter(&l, META_LOGICAL), 0);
		assert_int_equal(atomic_load(&l.st->stages.memory_count), 0);
		live_free(&l);
	}
	free(data);
}

/* Replaced again and again while the drain is at it. */
static void a_file_that_is_replaced_all_the_time_ends_as_its_last(void **state)
{
	uint8_t *data = filled(2 * MIB + 64, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);

		for (unsigned i = 0; i < 60; i++) {
			live_write(&l, "a", data + i,
				   i % 3 == 0 ? 100 : 2 * MIB - i);
			if (i % 7 == 6)
				assert_int_equal(live_sync(&l, "a"), 0);
		}
		assert_file(&l, "a", data + 59, 2 * MIB - 59);
		live_sync_all(&l);
		live_reopen(&l);
		assert_file(&l, "a", data + 59, 2 * MIB - 59);
		live_free(&l);
	}
	free(data);
}

static void a_file_without_a_close_is_synced_as_it_stands(void **state)
{
	uint8_t *data = filled(FILE_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		struct handle h = handle_open(&l, "f", O_RDWR | O_CREAT);
		struct content c;

		/* Synced empty, then written: Python's buffer does that. */
		assert_int_equal(file_sync(&l.st->files, h.in), 0);
		c = live_content(&l, "f");
		assert_int_equal(c.size_bytes, 0);
		content_release(&c);
		handle_write(&h, data, FILE_BYTES, 0);
		assert_int_equal(file_sync(&l.st->files, h.in), 0);
		c = live_content(&l, "f");
		assert_int_equal(c.size_bytes, FILE_BYTES);
		content_release(&c);
		data[5]++;
		handle_write(&h, data, 10, 0);
		handle_close(&h);
		live_sync_all(&l);
		assert_file(&l, "f", data, FILE_BYTES);
		live_reopen(&l);
		assert_file(&l, "f", data, FILE_BYTES);
		live_free(&l);
	}
	free(data);
}

struct appender {
	struct handle h;
	atomic_uint_fast64_t limit; /* it waits for more when it is there */
	atomic_bool stop;
	uint64_t count;
};

static void *append_records(void *arg)
{
	struct appender *a = arg;

	while (!atomic_load(&a->stop)) {
		uint64_t record[512];

		if (a->count == atomic_load(&a->limit)) {
			sched_yield();
			continue;
		}
		for (unsigned i = 0; i < 512; i++)
			record[i] = a->count;
		handle_write(&a->h, record, sizeof(record),
			     a->count * sizeof(record));
		a->count++;
	}
	return NULL;
}

/* What is drained while it is written is what it was at some moment. */
static void a_file_is_drained_whole_while_it_is_appended_to(void **state)
{
	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		struct appender a = { 0 };
		pthread_t thread;
		uint64_t last = 0, generation = 0;

		a.h = handle_open(&l, "log", O_WRONLY | O_CREAT);
		CHECK(pthread_create(&thread, NULL, append_records, &a) == 0);
		for (unsigned i = 0; i < 20; i++) {
			struct content c;

			atomic_fetch_add(&a.limit, 64);
			assert_int_equal(file_sync(&l.st->files, a.h.in), 0);
			c = live_content(&l, "log");
			assert_true(c.size_bytes >= last);
			assert_true(c.generation >= generation);
			last = c.size_bytes;
			generation = c.generation;
			content_release(&c);
		}
		atomic_store(&a.stop, true);
		pthread_join(thread, NULL);
		handle_close(&a.h);
		live_sync_all(&l);
		live_reopen(&l);
		a.h = handle_open(&l, "log", O_RDONLY);
		for (uint64_t i = 0; i < a.count; i++) {
			uint64_t record[512];

			assert_int_equal(handle_read(&a.h, record,
						     sizeof(record), i * 4096),
					 4096);
			for (unsigned n = 0; n < 512; n++)
				assert_int_equal(record[n], i);
		}
		handle_release(&a.h);
		live_free(&l);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			of_closed_files_none_is_committed_before_an_earlier_one),
		cmocka_unit_test(fsync_jumps_the_order),
		cmocka_unit_test(
			a_publish_waits_for_all_that_was_closed_before),
		cmocka_unit_test(
			a_file_that_is_replaced_keeps_its_place_in_the_order),
		cmocka_unit_test(
			a_release_that_comes_after_the_next_open_changes_no_order),
		cmocka_unit_test(
			a_late_release_queues_no_half_of_the_next_writer),
		cmocka_unit_test(
			a_handle_that_stays_open_is_truncated_with_the_file),
		cmocka_unit_test(who_only_reads_costs_a_closed_file_no_place),
		cmocka_unit_test(a_publish_lets_a_file_be_released_first),
		cmocka_unit_test(
			a_release_that_never_comes_leaves_nothing_staged),
		cmocka_unit_test(
			a_sync_of_a_file_that_was_replaced_is_of_the_newest),
		cmocka_unit_test(
			a_file_that_was_replaced_and_removed_leaves_nothing),
		cmocka_unit_test(
			a_file_that_is_replaced_all_the_time_ends_as_its_last),
		cmocka_unit_test(a_file_without_a_close_is_synced_as_it_stands),
		cmocka_unit_test(
			a_file_is_drained_whole_while_it_is_appended_to),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
