/*
 * When closed files become durable: in the order of their closes, whatever is
 * replaced, synced or appended to meanwhile. test_order_release.c is about
 * files that are opened again, or released late.
 */
#include "tests/unit/appender.h"
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
	uint8_t *data = filled(2 * MIB, 1);

	(void)state;
	for (unsigned kind = 0; kind < 2; kind++) {
		struct live l = live_kind_held(kind);

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
	uint8_t *data = filled(2 * MIB, 1);
	struct inode *in;
	struct live l = live_kind_held(0);

	(void)state;
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

/* What was synced is durable before its turn: those before it are not, yet. */
static void a_publish_of_what_was_synced_waits_for_those_before(void **state)
{
	uint8_t *data = filled(2 * MIB, 1);

	(void)state;
	for (unsigned i = 0; i < 2 * LIVE_KINDS; i++) {
		struct live l = live_kind_held(i % LIVE_KINDS);
		bool known = i < LIVE_KINDS; /* or it is not in memory */
		struct inode *in;

		live_write(&l, "first", data, 2 * MIB);
		live_write(&l, "second", data, 100);
		/* Closed after it, but before its drain begins. */
		live_write(&l, "between", data, 100);
		assert_int_equal(live_lookup(&l, "second", &in), 0);
		assert_int_equal(live_sync(&l, "second"), 0);
		if (!known) {
			inode_put(l.st->inodes, in, 1);
			assert_int_equal(live_lookup(&l, "second", &in), 0);
		}
		live_write(&l, "third", data, 200);
		assert_false(committed(&l, live_ino(&l, "first")));
		assert_int_equal(drain_publish(l.st->drain, in), 0);
		assert_true(committed(&l, live_ino(&l, "first")));
		if (known)
			assert_false(committed(&l, live_ino(&l, "between")));
		assert_false(committed(&l, live_ino(&l, "third")));
		inode_put(l.st->inodes, in, 1);
		live_free(&l);
	}
	free(data);
}

/*
 * All that is in the folder is durable, for one of it was synced before its
 * turn: the folder waits for what was closed before that, and for nothing else.
 */
static void waits_for_those_before(int (*sync)(struct drain *, uint64_t))
{
	uint8_t *data = filled(2 * MIB, 1);

	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind_held(kind);
		uint64_t dir;

		live_mkdir(&l, "step");
		dir = live_ino(&l, "step");
		live_write(&l, "first", data, 2 * MIB);
		live_write(&l, "step/meta", data, 100);
		assert_int_equal(live_sync(&l, "step/meta"), 0);
		live_write(&l, "third", data, 200);
		assert_true(committed(&l, live_ino(&l, "step/meta")));
		assert_false(committed(&l, live_ino(&l, "first")));
		assert_int_equal(sync(l.st->drain, dir), 0);
		assert_true(committed(&l, live_ino(&l, "first")));
		assert_false(committed(&l, live_ino(&l, "third")));
		live_free(&l);
	}
	free(data);
}

static void
a_publish_of_a_folder_waits_for_what_was_overtaken_in_it(void **state)
{
	(void)state;
	waits_for_those_before(drain_sync_tree);
}

static void a_sync_of_a_folder_waits_for_what_was_overtaken_in_it(void **state)
{
	(void)state;
	waits_for_those_before(drain_sync_folder);
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

/* What is drained while it is written is what it was at some moment. */
static void a_file_is_drained_whole_while_it_is_appended_to(void **state)
{
	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		struct appender a;
		struct handle h;
		uint64_t last = 0, generation = 0, count;

		appender_start(&a, handle_open(&l, "log", O_WRONLY | O_CREAT));
		for (unsigned i = 0; i < 20; i++) {
			struct content c;

			(void)appender_let(&a, 64);
			assert_int_equal(file_sync(&l.st->files, a.h.in), 0);
			c = live_content(&l, "log");
			assert_true(c.size_bytes >= last);
			assert_true(c.generation >= generation);
			last = c.size_bytes;
			generation = c.generation;
			content_release(&c);
		}
		count = appender_stop(&a);
		handle_close(&a.h);
		live_sync_all(&l);
		live_reopen(&l);
		h = handle_open(&l, "log", O_RDONLY);
		for (uint64_t i = 0; i < count; i++) {
			uint64_t record[RECORD_BYTES / 8];

			assert_int_equal(handle_read(&h, record, RECORD_BYTES,
						     i * RECORD_BYTES),
					 RECORD_BYTES);
			for (unsigned n = 0; n < RECORD_BYTES / 8; n++)
				assert_int_equal(record[n], i);
		}
		handle_release(&h);
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
			a_publish_of_what_was_synced_waits_for_those_before),
		cmocka_unit_test(
			a_publish_of_a_folder_waits_for_what_was_overtaken_in_it),
		cmocka_unit_test(
			a_sync_of_a_folder_waits_for_what_was_overtaken_in_it),
		cmocka_unit_test(
			a_file_that_is_replaced_keeps_its_place_in_the_order),
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
