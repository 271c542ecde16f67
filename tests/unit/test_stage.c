/*
 * Where files are staged: in memory when their size is known and there is
 * room, else on the disk; what is clean makes room, oldest first.
 *
 * How full the stage is, is how full its file system is. So these tests mount
 * one of their own, in a mount namespace of their own; where that is not
 * allowed they are skipped.
 */
#include "tests/unit/live_store.h"
#include "tests/unit/own_mounts.h"

#define TMPFS_BYTES (96 * MIB)
#define STAGE_BYTES (48 * MIB)
#define BIG (8 * MIB)

/* A store whose stage has STAGE_BYTES; skips when that cannot be had. */
static struct live live_small_with(const struct store_options *options,
				   bool passthrough)
{
	struct live l = live_closed(options);

	if (!may_mount ||
	    mount("stage", l.stage, "tmpfs", 0, "size=96m,mode=700") < 0) {
		live_remove(&l);
		skip();
	}
	l.options.stage_bytes = STAGE_BYTES;
	l.passthrough = passthrough;
	live_open(&l);
	return l;
}

static struct live live_small(bool passthrough)
{
	return live_small_with(NULL, passthrough);
}

/* And nothing is drained but what somebody waits for. */
static struct live live_small_held(bool passthrough)
{
	struct store_options o = live_options();

	o.hold_drain = true;
	return live_small_with(&o, passthrough);
}

static void live_small_free(struct live *l)
{
	if (l->st)
		live_close(l);
	live_check(l);
	assert_int_equal(umount2(l->stage, MNT_DETACH), 0);
	live_remove(l);
}

/* The kind of the file's stage; 0: it has none. */
static int kind_of(struct live *l, const char *path)
{
	struct inode *in = NULL;
	int kind = 0;

	assert_int_equal(live_lookup(l, path, &in), 0);
	{
		HOLD(&in->lock);
		if (in->file && in->file->stage)
			kind = (int)in->file->stage->kind;
	}
	inode_put(l->st->inodes, in, 1);
	return kind;
}

/* So that the next file of this series is expected to have `len` bytes. */
static void teach(struct live *l, const char *path, const void *data,
		  size_t len)
{
	live_write(l, path, data, len);
	live_sync_all(l);
	assert_int_equal(live_unlink(l, path), 0);
	live_settle(l);
}

static uint64_t used(struct live *l)
{
	uint64_t bytes, total;

	stages_usage(&l->st->stages, &bytes, &total);
	assert_int_equal(total, STAGE_BYTES);
	return bytes;
}

static void the_first_file_of_a_series_is_staged_on_the_disk(void **state)
{
	struct live l = live_small(true);
	uint8_t *data = filled(BIG, 1);
	struct handle h = handle_open(&l, "ckpt_1", O_WRONLY | O_CREAT);

	(void)state;
	assert_int_equal(kind_of(&l, "ckpt_1"), STAGE_DISK);
	handle_write(&h, data, BIG, 0);
	handle_close(&h);
	live_sync_all(&l);
	/* The stage is the image now. */
	assert_int_equal(kind_of(&l, "ckpt_1"), 0);
	assert_file(&l, "ckpt_1", data, BIG);
	live_small_free(&l);
	free(data);
}

static void
the_next_file_of_a_series_has_its_memory_before_it_is_written(void **state)
{
	struct live l = live_small(true);
	uint8_t *data = filled(BIG, 1);
	struct handle h;
	uint64_t before;

	(void)state;
	teach(&l, "ckpt_1", data, BIG);
	before = used(&l);
	h = handle_open(&l, "ckpt_2", O_WRONLY | O_CREAT);
	assert_int_equal(kind_of(&l, "ckpt_2"), STAGE_MEMORY);
	assert_true(used(&l) >= before + BIG);
	handle_write(&h, data, BIG, 0);
	assert_true(used(&l) <= before + BIG + BIG / 16);
	handle_close(&h);
	live_sync_all(&l);
	/* Durable, and still in memory for who reads it next. */
	assert_int_equal(kind_of(&l, "ckpt_2"), STAGE_MEMORY);
	assert_file(&l, "ckpt_2", data, BIG);
	live_reopen(&l);
	assert_file(&l, "ckpt_2", data, BIG);
	live_small_free(&l);
	free(data);
}

static void a_small_file_is_staged_on_the_disk(void **state)
{
	struct live l = live_small_held(true);
	uint8_t *data = filled(500000, 1);

	(void)state;
	teach(&l, "ckpt_1", data, 500000);
	live_write(&l, "ckpt_2", data, 500000);
	assert_int_equal(kind_of(&l, "ckpt_2"), STAGE_DISK);
	live_small_free(&l);
	free(data);
}

static void a_file_that_does_not_fit_is_staged_on_the_disk(void **state)
{
	struct live l = live_small(true);
	struct handle h[8];
	uint8_t *data = filled(BIG, 1);
	unsigned in_memory = 0;
	char name[16];

	(void)state;
	teach(&l, "ckpt_100", data, BIG);
	/* Open for writing, all of them: nothing can be given up. */
	for (unsigned i = 0; i < 8; i++) {
		(void)snprintf(name, sizeof(name), "ckpt_%u", i);
		h[i] = handle_open(&l, name, O_WRONLY | O_CREAT);
		if (kind_of(&l, name) == STAGE_MEMORY)
			in_memory++;
		assert_true(used(&l) <= STAGE_BYTES);
	}
	assert_int_equal(in_memory, 5); /* and the table, of 48 MiB */
	for (unsigned i = 0; i < 8; i++) {
		fill(data, BIG, i + 2);
		handle_write(&h[i], data, BIG, 0);
		handle_close(&h[i]);
	}
	live_reopen(&l);
	for (unsigned i = 0; i < 8; i++) {
		(void)snprintf(name, sizeof(name), "ckpt_%u", i);
		fill(data, BIG, i + 2);
		assert_file(&l, name, data, BIG);
	}
	live_small_free(&l);
	free(data);
}

/* Five clean stages fill the memory. */
static void fill_with_clean(struct live *l, uint8_t *data)
{
	char name[16];

	teach(l, "ckpt_100", data, BIG);
	for (unsigned i = 0; i < 5; i++) {
		(void)snprintf(name, sizeof(name), "ckpt_%u", i);
		fill(data, BIG, i + 2);
		live_write(l, name, data, BIG);
		live_sync_all(l);
		assert_int_equal(kind_of(l, name), STAGE_MEMORY);
	}
}

static void clean_stages_make_room_oldest_first(void **state)
{
	struct live l = live_small(true);
	uint8_t *data = filled(BIG, 1);
	struct handle h;
	char name[16];

	(void)state;
	fill_with_clean(&l, data);
	for (unsigned i = 5; i < 9; i++) {
		(void)snprintf(name, sizeof(name), "ckpt_%u", i);
		fill(data, BIG, i + 2);
		h = handle_open(&l, name, O_WRONLY | O_CREAT);
		assert_int_equal(kind_of(&l, name), STAGE_MEMORY);
		handle_write(&h, data, BIG, 0);
		handle_close(&h);
		live_sync_all(&l);
		for (unsigned k = 0; k <= i; k++) {
			(void)snprintf(name, sizeof(name), "ckpt_%u", k);
			assert_int_equal(kind_of(&l, name),
					 k + 5 > i ? STAGE_MEMORY : 0);
		}
	}
	for (unsigned i = 0; i < 9; i++) {
		(void)snprintf(name, sizeof(name), "ckpt_%u", i);
		fill(data, BIG, i + 2);
		assert_file(&l, name, data, BIG);
	}
	live_small_free(&l);
	free(data);
}

static void a_clean_stage_that_somebody_has_open_stays(void **state)
{
	struct live l = live_small(true);
	uint8_t *data = filled(BIG, 1);
	struct handle reader, h;

	(void)state;
	fill_with_clean(&l, data);
	reader = handle_open(&l, "ckpt_0", O_RDONLY);
	h = handle_open(&l, "ckpt_5", O_WRONLY | O_CREAT);
	assert_int_equal(kind_of(&l, "ckpt_5"), STAGE_MEMORY);
	assert_int_equal(kind_of(&l, "ckpt_0"), STAGE_MEMORY);
	assert_int_equal(kind_of(&l, "ckpt_1"), 0);
	handle_close(&h);
	fill(data, BIG, 2);
	assert_handle_bytes(&reader, data, BIG);
	handle_close(&reader);
	live_small_free(&l);
	free(data);
}

static void a_dirty_stage_is_never_given_up(void **state)
{
	struct live l = live_small_held(true);
	uint8_t *data = filled(BIG, 1);
	struct handle h;
	char name[16];

	(void)state;
	teach(&l, "ckpt_100", data, BIG);
	for (unsigned i = 0; i < 5; i++) {
		(void)snprintf(name, sizeof(name), "ckpt_%u", i);
		fill(data, BIG, i + 2);
		live_write(&l, name, data, BIG); /* closed, not drained */
	}
	h = handle_open(&l, "ckpt_5", O_WRONLY | O_CREAT);
	assert_int_equal(kind_of(&l, "ckpt_5"), STAGE_DISK);
	handle_close(&h);
	for (unsigned i = 0; i < 5; i++) {
		(void)snprintf(name, sizeof(name), "ckpt_%u", i);
		assert_int_equal(kind_of(&l, name), STAGE_MEMORY);
		fill(data, BIG, i + 2);
		assert_file(&l, name, data, BIG);
	}
	live_small_free(&l);
	free(data);
}

/* It grew far beyond what its series let expect, and so did others. */
static void a_writer_whose_stage_is_full_goes_on_on_the_disk(void **state)
{
	struct live l = live_small(false);
	size_t len = 100 * MIB;
	uint8_t *data = filled(len, 1);
	struct handle h;

	(void)state;
	teach(&l, "ckpt_1", data, BIG);
	h = handle_open(&l, "ckpt_2", O_WRONLY | O_CREAT);
	assert_int_equal(kind_of(&l, "ckpt_2"), STAGE_MEMORY);
	for (size_t off = 0; off < len; off += 4 * MIB)
		handle_write(&h, data + off, 4 * MIB, off);
	assert_int_equal(kind_of(&l, "ckpt_2"), STAGE_DISK);
	assert_file(&l, "ckpt_2", data, len);
	handle_close(&h);
	live_reopen(&l);
	assert_file(&l, "ckpt_2", data, len);
	live_small_free(&l);
	free(data);
}

static void a_full_stage_gives_clean_ones_up_before_it_moves(void **state)
{
	struct live l = live_small(false);
	size_t len = 60 * MIB;
	uint8_t *data = filled(len, 1);
	struct handle h;

	(void)state;
	fill_with_clean(&l, data); /* 40 MiB of the 96 */
	fill(data, len, 1);
	h = handle_open(&l, "ckpt_5", O_WRONLY | O_CREAT);
	assert_int_equal(kind_of(&l, "ckpt_5"), STAGE_MEMORY);
	for (size_t off = 0; off < len; off += 4 * MIB)
		handle_write(&h, data + off, 4 * MIB, off);
	assert_file(&l, "ckpt_5", data, len);
	handle_close(&h);
	live_reopen(&l);
	assert_file(&l, "ckpt_5", data, len);
	live_small_free(&l);
	free(data);
}

static void a_stage_that_is_clean_can_be_written_again(void **state)
{
	struct live l = live_small(true);
	uint8_t *data = filled(BIG, 1);
	uint64_t first;
	struct handle h;

	(void)state;
	teach(&l, "ckpt_1", data, BIG);
	live_write(&l, "ckpt_2", data, BIG);
	live_sync_all(&l);
	assert_int_equal(kind_of(&l, "ckpt_2"), STAGE_MEMORY);
	first = live_generation(&l, "ckpt_2");
	h = handle_open(&l, "ckpt_2", O_WRONLY);
	data[100]++;
	handle_write(&h, data, 200, 0);
	/* It is not clean now: no room can be made of it. */
	assert_false(stages_make_room(&l.st->stages, STAGE_BYTES));
	assert_file(&l, "ckpt_2", data, BIG);
	handle_close(&h);
	live_reopen(&l);
	assert_file(&l, "ckpt_2", data, BIG);
	assert_true(live_generation(&l, "ckpt_2") > first);
	live_small_free(&l);
	free(data);
}

static void clean_stages_are_not_kept_when_that_is_turned_off(void **state)
{
	struct live l = live_small(true);
	uint8_t *data = filled(BIG, 1);
	uint64_t before;

	(void)state;
	live_close(&l);
	l.options.no_stage_cache = true;
	live_open(&l);
	teach(&l, "ckpt_1", data, BIG);
	before = used(&l);
	live_write(&l, "ckpt_2", data, BIG);
	live_sync_all(&l);
	assert_int_equal(kind_of(&l, "ckpt_2"), 0);
	assert_int_equal(used(&l), before);
	assert_file(&l, "ckpt_2", data, BIG);
	live_small_free(&l);
	free(data);
}

static void what_is_staged_is_counted_by_where_it_is(void **state)
{
	struct live l = live_small(true);
	uint8_t *data = filled(BIG, 1);
	struct stages_figures f;
	struct timespec now;
	struct handle a, b;

	(void)state;
	teach(&l, "ckpt_1", data, BIG);
	stages_figures(&l.st->stages, &f);
	assert_int_equal(f.memory_bytes + f.disk_bytes + f.ahead_bytes, 0);
	assert_int_equal(f.dirty_files, 0);
	assert_int_equal(f.oldest_ns, 0);
	a = handle_open(&l, "ckpt_2", O_WRONLY | O_CREAT);
	stages_figures(&l.st->stages, &f);
	assert_true(f.ahead_bytes >= BIG); /* allocated, as ckpt_1 was so long */
	handle_write(&a, data, BIG - 5, 0);
	b = handle_open(&l, "other", O_WRONLY | O_CREAT);
	handle_write(&b, data, 12345, 0);
	stages_figures(&l.st->stages, &f);
	assert_int_equal(f.memory_bytes, BIG - 5);
	assert_int_equal(f.disk_bytes, 12345);
	assert_int_equal(f.dirty_files, 2);
	(void)clock_gettime(CLOCK_REALTIME, &now);
	assert_in_range(f.oldest_ns, 1,
			now.tv_sec * INT64_C(1000000000) + now.tv_nsec);
	handle_close(&a);
	handle_close(&b);
	live_sync_all(&l);
	stages_figures(&l.st->stages, &f);
	assert_int_equal(f.memory_bytes + f.disk_bytes + f.ahead_bytes, 0);
	assert_int_equal(f.dirty_files, 0);
	assert_int_equal(f.oldest_ns, 0);
	assert_int_equal(f.clean_files, 1); /* ckpt_2, for who reads it */
	assert_int_equal(f.clean_bytes, BIG - 5);
	live_small_free(&l);
	free(data);
}

struct abandoned {
	struct live *l;
	stage_abandon_fn abandon; /* the store's */
	void *arg;
	unsigned count;
};

static void assert_no_slot(void *arg, struct image *i)
{
	struct abandoned *a = arg;
	struct stages *st = &a->l->st->stages;

	for (uint32_t n = 0; n < st->slot_count; n++)
		if (SLOT_GET(&st->slots[n], ino) != 0)
			assert_int_not_equal(SLOT_GET(&st->slots[n], number),
					     i->id);
	a->count++;
	a->abandon(a->arg, i);
}

/*
 * The image is given to the next writer at once. Were its slot still there, a
 * kill at this moment would leave two of them for one image, and the next start
 * would give back the first, and with it the bytes of the second.
 */
static void what_is_dropped_has_no_slot_any_more(void **state)
{
	struct live l = live_small_held(true);
	struct abandoned a = { .l = &l,
			       .abandon = l.st->stages.abandon,
			       .arg = l.st->stages.hook_arg };

	(void)state;
	live_write(&l, "f", "on the disk", 11);
	assert_int_equal(kind_of(&l, "f"), STAGE_DISK);
	l.st->stages.abandon = assert_no_slot;
	l.st->stages.hook_arg = &a;
	assert_int_equal(live_unlink(&l, "f"), 0);
	assert_int_equal(a.count, 1);
	l.st->stages.abandon = a.abandon;
	l.st->stages.hook_arg = a.arg;
	live_small_free(&l);
}

static void a_clean_stage_that_was_read_last_is_given_up_last(void **state)
{
	struct live l = live_small(true);
	uint8_t *data = filled(BIG, 1);
	struct handle h;

	(void)state;
	fill_with_clean(&l, data);
	fill(data, BIG, 2);
	assert_file(&l, "ckpt_0", data, BIG);
	h = handle_open(&l, "ckpt_5", O_WRONLY | O_CREAT);
	assert_int_equal(kind_of(&l, "ckpt_0"), STAGE_MEMORY);
	assert_int_equal(kind_of(&l, "ckpt_1"), 0);
	handle_close(&h);
	live_small_free(&l);
	free(data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			the_first_file_of_a_series_is_staged_on_the_disk),
		cmocka_unit_test(
			the_next_file_of_a_series_has_its_memory_before_it_is_written),
		cmocka_unit_test(a_small_file_is_staged_on_the_disk),
		cmocka_unit_test(
			a_file_that_does_not_fit_is_staged_on_the_disk),
		cmocka_unit_test(clean_stages_make_room_oldest_first),
		cmocka_unit_test(a_clean_stage_that_somebody_has_open_stays),
		cmocka_unit_test(a_dirty_stage_is_never_given_up),
		cmocka_unit_test(
			a_writer_whose_stage_is_full_goes_on_on_the_disk),
		cmocka_unit_test(
			a_full_stage_gives_clean_ones_up_before_it_moves),
		cmocka_unit_test(a_stage_that_is_clean_can_be_written_again),
		cmocka_unit_test(
			clean_stages_are_not_kept_when_that_is_turned_off),
		cmocka_unit_test(what_is_staged_is_counted_by_where_it_is),
		cmocka_unit_test(
			a_clean_stage_that_was_read_last_is_given_up_last),
		cmocka_unit_test(what_is_dropped_has_no_slot_any_more),
	};

	enter_namespace();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
