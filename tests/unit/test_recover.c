/*
 * What is there after the daemon ended at once: everything when the stage
 * is still there, what was durable when it is not, and never a part. Files that
 * existed before are test_recover_changed.c's.
 *
 * A child opens the store, does its part and ends with _exit(). What it has to
 * tell is in a file beside the store.
 */
#include "store/drain/drain_private.h"
#include "store/guard/guard.h"
#include "tests/unit/appender.h"
#include "tests/unit/live_child.h"
#include "tests/unit/live_store.h"

#define DATA_BYTES (2 * MIB + 777)

/* --- kill -9 --- */

#define CLOSED 8

static size_t len_of(unsigned i)
{
	static const size_t lens[CLOSED] = {
		DATA_BYTES, 100, 40000, 0, MIB, 70000, 5, 3 * MIB
	};

	return lens[i];
}

static void child_writes_and_is_killed(struct live *l, const char *kind)
{
	uint8_t *data = filled(3 * MIB + CLOSED, 1);
	struct handle h;
	char name[16];

	l->options.hold_drain = true; /* nothing is durable */
	child_open(l, kind);
	for (unsigned i = 0; i < CLOSED; i++) {
		(void)snprintf(name, sizeof(name), "c%u", i);
		live_write(l, name, data + i, len_of(i));
	}
	h = handle_open(l, "open", O_RDWR | O_CREAT);
	handle_write(&h, data, DATA_BYTES, 0);
	h = handle_open(l, "open_empty", O_RDWR | O_CREAT);
}

static void assert_all_there(struct live *l)
{
	uint8_t *data = filled(3 * MIB + CLOSED, 1);
	char name[16];

	for (unsigned i = 0; i < CLOSED; i++) {
		(void)snprintf(name, sizeof(name), "c%u", i);
		assert_file(l, name, data + i, len_of(i));
	}
	assert_file(l, "open", data, DATA_BYTES);
	assert_file(l, "open_empty", data, 0);
	free(data);
}

static void after_kill_every_byte_is_there(void **state)
{
	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);

		live_close(&l);
		live_child_kind(&l, "write", kind);
		live_open(&l);
		assert_all_there(&l);
		live_sync_all(&l);
		assert_all_there(&l);
		assert_int_equal(live_records(&l, 'U'), 0);
		live_reopen(&l);
		assert_all_there(&l);
		live_free(&l);
	}
}

static struct {
	struct live *l; /* NULL: nobody asks */
	unsigned seen;
} left;

void __real_guard_was_open(struct guard *g, struct inode *in);
void __wrap_guard_was_open(struct guard *g, struct inode *in);

void __wrap_guard_was_open(struct guard *g, struct inode *in)
{
	if (left.l) {
		HOLD(&in->lock);
		HOLD(&left.l->st->drain->lock);
		assert_true(file_is_dirty(in->file));
		assert_true(TAILQ_EMPTY(&in->file->versions.list));
		left.seen++;
	}
	__real_guard_was_open(g, in);
}

/* It may be a tracker that is not to become durable as it was left. */
static void what_was_open_is_looked_at_before_it_is_drained(void **state)
{
	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);

		live_close(&l);
		live_child_kind(&l, "write", kind);
		left.l = &l;
		left.seen = 0;
		live_open(&l);
		left.l = NULL;
		assert_int_equal(left.seen, 2); /* and not what was closed */
		live_sync_all(&l);
		assert_all_there(&l);
		live_free(&l);
	}
}

static void after_kill_and_kill_again_every_byte_is_there(void **state)
{
	char why[512];

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);

		live_close(&l);
		live_child_kind(&l, "write", kind);
		live_child_kind(&l, "open", kind); /* killed at its start */
		live_child_kind(&l, "open", kind);
		assert_int_equal(live_try_open(&l, why), 0);
		assert_int_equal(store_start(l.st), 0);
		assert_all_there(&l);
		live_free(&l);
	}
}

static void after_kill_the_order_of_closes_is_kept(void **state)
{
	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		uint64_t ino[CLOSED + 1];
		bool all = false;
		char name[16];

		live_close(&l);
		live_child_kind(&l, "write", kind);
		live_open(&l);
		for (unsigned i = 0; i < CLOSED; i++) {
			(void)snprintf(name, sizeof(name), "c%u", i);
			ino[i] = live_ino(&l, name);
		}
		ino[CLOSED] = live_ino(&l, "open"); /* after all of them */
		while (!all) {
			bool later = false;

			all = true;
			for (unsigned i = CLOSED + 1; i-- > 0;) {
				bool now = committed(&l, ino[i]);

				assert_true(now || !later);
				later = later || now;
				all = all && now;
			}
		}
		live_free(&l);
	}
}

static void
after_kill_and_power_cut_what_was_not_durable_is_absent(void **state)
{
	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		uint8_t *data = filled(DATA_BYTES, 7);
		char name[16];

		live_write(&l, "before", data, DATA_BYTES);
		live_close(&l);
		live_child_kind(&l, "write", kind);
		live_empty_stage(&l);
		live_open(&l);
		for (unsigned i = 0; i < CLOSED; i++) {
			(void)snprintf(name, sizeof(name), "c%u", i);
			assert_absent(&l, name);
		}
		assert_absent(&l, "open");
		assert_absent(&l, "open_empty");
		assert_file(&l, "before", data, DATA_BYTES);
		live_settle(&l);
		/* Nothing of them is left, neither records nor images. */
		assert_int_equal(live_records(&l, 'A'), 2);
		assert_int_equal(live_images(&l).count, 1);
		assert_int_equal(live_counter(&l, META_FILES), 1);
		live_free(&l);
		free(data);
	}
}

static void child_drains_some(struct live *l, const char *kind)
{
	uint8_t *data = filled(DATA_BYTES, 1);
	char name[16];

	child_open(l, kind);
	for (unsigned i = 0; i < 20; i++) {
		(void)snprintf(name, sizeof(name), "f%u", i);
		data[0] = (uint8_t)i;
		live_write(l, name, data, DATA_BYTES);
	}
	assert_int_equal(live_sync(l, "f9"), 0);
	/* It ends in the middle of the others. */
}

static void
a_cut_in_the_middle_of_a_drain_leaves_whole_files_in_order(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		for (int cut = 0; cut < 2; cut++) {
			struct live l = live_kind(kind);
			bool missing = false;
			char name[16];

			live_close(&l);
			live_child_kind(&l, "drain", kind);
			if (cut)
				live_empty_stage(&l);
			live_open(&l);
			for (unsigned i = 0; i < 20; i++) {
				struct inode *in;

				(void)snprintf(name, sizeof(name), "f%u", i);
				data[0] = (uint8_t)i;
				if (live_lookup(&l, name, &in) < 0) {
					assert_true(cut && i != 9);
					missing = true;
					continue;
				}
				inode_put(l.st->inodes, in, 1);
				/* Synced out of turn, or all before are here.
				 */
				assert_true(i == 9 || !missing);
				assert_file(&l, name, data, DATA_BYTES);
			}
			live_free(&l);
		}
	}
	free(data);
}

/* --- sync --- */

/* Beside the store: what was promised when the power went. */
static void promise_path(struct live *l, char path[4096])
{
	(void)snprintf(path, 4096, "%s.promise", l->path);
}

static void child_syncs_while_it_appends(struct live *l, const char *kind)
{
	struct appender a;
	char path[4096];
	uint64_t promised;
	int fd;

	child_open(l, kind);
	appender_start(&a, handle_open(l, "log", O_WRONLY | O_CREAT));
	for (unsigned i = 0; i < 5; i++) {
		promised = appender_wait(&a, appender_let(&a, 100) - 70);
		CHECK(file_sync(&l->st->files, a.h.in) ==
		      0); /* it goes on writing */
	}
	promise_path(l, path);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	CHECK(write(fd, &promised, sizeof(promised)) == sizeof(promised));
}

static void a_sync_covers_all_that_was_written_before_it(void **state)
{
	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		uint64_t promised = 0, record[RECORD_BYTES / 8];
		char path[4096];
		struct handle h;
		struct stat sb;
		int fd;

		live_close(&l);
		live_child_kind(&l, "sync", kind);
		live_empty_stage(&l);
		promise_path(&l, path);
		fd = open(path, O_RDONLY);
		assert_int_equal(read(fd, &promised, sizeof(promised)),
				 sizeof(promised));
		close(fd);
		unlink(path);
		assert_true(promised >= 430);
		live_open(&l);
		h = handle_open(&l, "log", O_RDONLY);
		assert_int_equal(inode_stat(l.st->inodes, h.in, &sb), 0);
		assert_true((uint64_t)sb.st_size >= promised * RECORD_BYTES);
		/* Each record is whole, and what follows is no part of one. */
		assert_int_equal(sb.st_size % RECORD_BYTES, 0);
		for (uint64_t n = 0; n < (uint64_t)sb.st_size / RECORD_BYTES;
		     n++) {
			assert_int_equal(handle_read(&h, record, RECORD_BYTES,
						     n * RECORD_BYTES),
					 RECORD_BYTES);
			for (unsigned i = 0; i < RECORD_BYTES / 8; i++)
				assert_int_equal(record[i], n);
		}
		handle_close(&h);
		live_free(&l);
	}
}

static void child_publishes(struct live *l, const char *kind)
{
	uint8_t *data = filled(DATA_BYTES, 1);
	struct inode *in;

	l->options.hold_drain = true;
	child_open(l, kind);
	live_mkdir(l, "step.tmp");
	live_write(l, "step.tmp/a", data, DATA_BYTES);
	live_write(l, "step.tmp/b", data, 500);
	live_write(l, "later", data, 500);
	assert_int_equal(live_lookup(l, "step.tmp", &in), 0);
	assert_int_equal(drain_sync_tree(l->st->drain, in->ino), 0);
	assert_int_equal(live_rename(l, "step.tmp", "step", 0), 0);
	assert_int_equal(kv_sync(l->st->kv), 0);
}

static void what_was_published_survives_a_power_cut(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);

		live_close(&l);
		live_child_kind(&l, "publish", kind);
		live_empty_stage(&l);
		live_open(&l);
		assert_absent(&l, "step.tmp");
		assert_file(&l, "step/a", data, DATA_BYTES);
		assert_file(&l, "step/b", data, 500);
		live_free(&l);
	}
	free(data);
}

static void child_overtakes(struct live *l, const char *kind)
{
	uint8_t *data = filled(DATA_BYTES, 1);

	l->options.hold_drain = true;
	child_open(l, kind);
	live_mkdir(l, "step");
	live_write(l, "first", data, DATA_BYTES);
	live_write(l, "step/meta", data, 500);
	CHECK(live_sync(l, "step/meta") == 0);
}

/* What it has overtaken is waited for by the next daemon, too. */
static void after_kill_a_folder_waits_for_what_was_overtaken(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 2 * LIVE_KINDS; i++) {
		struct live l = live_kind(i % LIVE_KINDS);
		uint64_t dir;

		live_close(&l);
		live_child_kind(&l, "overtake", i % LIVE_KINDS);
		l.options.hold_drain = true;
		live_open(&l);
		dir = live_ino(&l, "step");
		assert_true(committed(&l, live_ino(&l, "step/meta")));
		assert_false(committed(&l, live_ino(&l, "first")));
		if (i < LIVE_KINDS)
			assert_int_equal(drain_sync_tree(l.st->drain, dir), 0);
		else
			assert_int_equal(drain_sync_folder(l.st->drain, dir),
					 0);
		assert_true(committed(&l, live_ino(&l, "first")));
		live_free(&l);
	}
}

/* --- what does not belong to the store --- */

static void a_stage_of_another_boot_is_not_believed(void **state)
{
	struct live l = live_kind(1);
	char path[4096];
	int fd;

	(void)state;
	live_close(&l);
	live_child_kind(&l, "write", 1);
	/* The boot's id lies behind the magic of 16 bytes. */
	(void)snprintf(path, sizeof(path), "%s/table", l.stage);
	fd = open(path, O_WRONLY);
	assert_int_equal(pwrite(fd, "0", 1, 17), 1);
	close(fd);
	live_open(&l);
	assert_absent(&l, "c0");
	assert_absent(&l, "open");
	live_free(&l);
}

static void a_stage_of_another_store_is_not_believed(void **state)
{
	struct live l = live_kind(1), other = live_kind(1);

	(void)state;
	live_close(&l);
	live_close(&other);
	live_child_kind(&other, "write", 1);
	remove_tree(l.stage);
	free(l.stage);
	l.stage = strdup(other.stage);
	live_open(&l);
	assert_absent(&l, "c0");
	live_close(&l);
	live_free(&l);
	assert_int_equal(mkdir(other.stage, 0700), 0);
	live_free(&other); /* its files are absent now, and it is sound */
}

/* Its database does not know which places were given: it is an older copy. */
static void child_forgets_the_places(struct live *l, const char *kind)
{
	struct kv_batch *b = kv_batch_new();

	l->options.hold_drain = true;
	child_open(l, kind);
	record_delete(b, key_meta(META_NEXT_PLACE));
	if (kv_write(l->st->kv, b) < 0)
		_exit(1);
	kv_batch_free(b);
}

static void child_writes_one_more(struct live *l, const char *kind)
{
	l->options.hold_drain = true;
	child_open(l, kind);
	live_write(l, "more", "more", 4);
}

static uint64_t place_of(struct live *l, const char *name)
{
	struct inode *in;
	uint64_t place;

	assert_int_equal(inode_get(l->st->inodes, live_ino(l, name), &in), 0);
	place = drain_place_of(l->st->drain, in);
	inode_put(l->st->inodes, in, 1);
	return place;
}

static void a_place_is_kept_and_not_given_twice(void **state)
{
	(void)state;
	for (int forget = 0; forget < 2; forget++) {
		struct live l = live_new(NULL);
		uint64_t before, c0, c7;

		before = drain_draw_place(l.st->drain);
		live_close(&l);
		live_child_kind(&l, "write", 0);
		l.options.hold_drain = true;
		live_open(&l);
		c0 = place_of(&l, "c0");
		c7 = place_of(&l, "c7");
		assert_true(before < c0 && c0 < c7);
		assert_true(c7 < drain_draw_place(l.st->drain));
		live_close(&l);
		live_child_kind(&l, "write_more", 0);
		if (forget)
			live_child_kind(&l, "forget", 0);
		live_open(&l);
		assert_true(c7 < place_of(&l, "more"));
		assert_true(place_of(&l, "more") <
			    drain_draw_place(l.st->drain));
		live_free(&l);
	}
}

static void child_writes_a_cache_again(struct live *l, const char *kind)
{
	uint8_t *data = filled(DATA_BYTES, 1);
	struct drain *d;
	struct handle h;

	child_open(l, kind);
	live_write(l, "again", data, DATA_BYTES);
	live_sync_all(l);
	d = l->st->drain;
	lock_take(&d->lock);
	d->order.on_demand = true;
	lock_give(&d->lock);
	live_write(l, "between", "between", 7);
	h = handle_open(l, "again", O_WRONLY);
	handle_write(&h, data, 1, 1);
}

/* It was closed once, and is open again: the last close does not count. */
static void what_is_open_again_is_closed_last(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	data[1] = data[0];
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);

		live_close(&l);
		live_child_kind(&l, "again", kind);
		l.options.hold_drain = true;
		live_open(&l);
		assert_true(place_of(&l, "between") > 0);
		assert_true(place_of(&l, "between") < place_of(&l, "again"));
		live_close(&l);
		l.options.hold_drain = false;
		live_open(&l);
		assert_file(&l, "again", data, DATA_BYTES);
		live_free(&l);
	}
	free(data);
}

int main(int argc, char **argv)
{
	static const struct live_child_entry children[] = {
		{ "write", child_writes_and_is_killed },
		{ "open", child_opens_and_is_killed },
		{ "drain", child_drains_some },
		{ "sync", child_syncs_while_it_appends },
		{ "publish", child_publishes },
		{ "overtake", child_overtakes },
		{ "write_more", child_writes_one_more },
		{ "forget", child_forgets_the_places },
		{ "again", child_writes_a_cache_again },
	};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(after_kill_every_byte_is_there),
		cmocka_unit_test(
			what_was_open_is_looked_at_before_it_is_drained),
		cmocka_unit_test(after_kill_and_kill_again_every_byte_is_there),
		cmocka_unit_test(after_kill_the_order_of_closes_is_kept),
		cmocka_unit_test(a_place_is_kept_and_not_given_twice),
		cmocka_unit_test(what_is_open_again_is_closed_last),
		cmocka_unit_test(
			after_kill_and_power_cut_what_was_not_durable_is_absent),
		cmocka_unit_test(
			a_cut_in_the_middle_of_a_drain_leaves_whole_files_in_order),
		cmocka_unit_test(a_sync_covers_all_that_was_written_before_it),
		cmocka_unit_test(what_was_published_survives_a_power_cut),
		cmocka_unit_test(
			after_kill_a_folder_waits_for_what_was_overtaken),
		cmocka_unit_test(a_stage_of_another_boot_is_not_believed),
		cmocka_unit_test(a_stage_of_another_store_is_not_believed),
	};

	if (argc > 1)
		return live_child_main(argc, argv, children,
				       sizeof(children) / sizeof(*children));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
