/*
 * A chunk whose bytes are damaged, or in a sector that cannot be read, gets
 * them back from another copy: by a scrub, by verify=open, and after a read
 * that failed. What shares a block with it is not harmed, and where no copy is
 * whole nothing is written.
 */
#include "tests/unit/mend_fixture.h"

/* --- a scrub --- */

static void a_scrub_mends_a_flipped_byte_from_the_other_copy(void **state)
{
	static const uint64_t places[] = { 0, MIB, FILE_BYTES - 1 };

	(void)state;
	for (unsigned copy = 0; copy < 2; copy++) {
		struct two t = two_new(2);

		for (size_t i = 0; i < 3; i++)
			flip(t.image[copy], places[i]);
		assert_int_equal(scrub(&t, true), 0);
		assert_int_equal(t.mended, 3);
		assert_int_equal(t.damaged, 0);
		assert_true(is_whole(&t, 0) && is_whole(&t, 1));
		assert_int_equal(scrub(&t, true), 0);
		assert_int_equal(t.mended, 0);
		two_free(&t);
	}
}

static void a_scrub_that_is_not_to_mend_changes_nothing(void **state)
{
	struct two t = two_new(2);

	(void)state;
	flip(t.image[0], MIB);
	disk.watched = ino_of_path(t.image[0]);
	assert_int_equal(scrub(&t, false), 1);
	assert_int_equal(t.damaged, 1);
	assert_int_equal(disk.writes, 0);
	assert_false(is_whole(&t, 0));
	two_free(&t);
}

static void without_another_copy_nothing_is_written(void **state)
{
	struct two t = two_new(1);

	(void)state;
	flip(t.image[0], MIB);
	disk.watched = ino_of_path(t.image[0]);
	assert_int_equal(scrub(&t, true), 1);
	assert_int_equal(t.damaged, 1);
	assert_int_equal(disk.writes, 0);
	two_free(&t);
}

/* Neither is taken for the other, but each has what the other one lacks. */
static void copies_that_are_damaged_apart_mend_each_other(void **state)
{
	struct two t = two_new(2);

	(void)state;
	flip(t.image[0], 0);
	flip(t.image[1], 0);
	flip(t.image[0], t.edge + 10);
	flip(t.image[1], FILE_BYTES - 1);
	assert_int_equal(scrub(&t, true), 1);
	assert_int_equal(t.mended, 2);
	assert_int_equal(t.damaged, 2);
	flip(t.image[1], 0); /* it is right again */
	assert_int_equal(scrub(&t, true), 0);
	assert_int_equal(t.mended, 1);
	assert_true(is_whole(&t, 0) && is_whole(&t, 1));
	two_free(&t);
}

static void a_scrub_mends_a_bad_sector(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 8; i++) {
		struct two t = two_new(2);
		const uint64_t at[] = { 0, t.edge - BLOCK, t.edge,
					FILE_BYTES - 1 };

		make_bad(t.image[0], at[i % 4]);
		disk.error = i < 4 ? EIO : ENODATA;
		disk.watched = ino_of_path(t.image[0]);
		assert_int_equal(scrub(&t, true), 0);
		/* That at the edge holds bytes of two chunks. */
		assert_int_equal(t.mended, i % 4 == 2 ? 2 : 1);
		assert_int_equal(disk.ino, 0);
		/* Only that at the end cannot be written as a whole. */
		assert_int_equal(disk.given_up > 0, i % 4 == 3);
		assert_true(is_whole(&t, 0) && is_whole(&t, 1));
		two_free(&t);
	}
}

/* The block that both are in can only be written as a whole. */
static void a_bad_sector_with_bytes_that_nobody_has_is_left(void **state)
{
	struct two t = two_new(2);

	(void)state;
	make_bad(t.image[0], t.edge);
	flip(t.image[1], t.edge + BLOCK);
	assert_int_equal(scrub(&t, true), 1);
	assert_int_equal(t.mended, 0);
	assert_int_equal(t.damaged, 3);
	assert_true(disk.ino != 0);
	flip(t.image[1], t.edge + BLOCK); /* it is right again */
	assert_int_equal(scrub(&t, true), 0);
	assert_int_equal(t.mended, 2);
	assert_true(is_whole(&t, 0));
	two_free(&t);
}

/* It is read back before anybody says that it is mended. */
static void a_disk_that_does_not_take_it_is_told_of(void **state)
{
	struct two t = two_new(2);

	(void)state;
	flip(t.image[0], MIB);
	disk.watched = ino_of_path(t.image[0]);
	disk.lies = true;
	assert_int_equal(scrub(&t, true), 1);
	assert_true(disk.writes > 0);
	assert_int_equal(t.mended, 0);
	assert_int_equal(t.damaged, 1);
	two_free(&t);
}

/* What is not durable yet may lie beside it, and goes on after a mount. */
static void a_scrub_leaves_a_block_that_a_staged_file_may_have(void **state)
{
	struct two t = two_new(2);
	struct stage_slot slot = { .kind = STAGE_DISK };

	(void)state;
	live_open(&t.l);
	slot.number = image_of(&t.l, "a");
	live_close(&t.l);
	t.staged = (struct stage_table){ .slots = &slot, .count = 1 };
	make_bad(t.image[0], t.edge);
	t.only_damage = true;
	assert_int_equal(scrub(&t, true), 1);
	assert_int_equal(t.mended, 0);
	assert_int_equal(t.damaged, 2);
	assert_true(disk.ino != 0);
	t.staged.count = 0;
	assert_int_equal(scrub(&t, true), 0);
	assert_int_equal(t.mended, 2);
	two_free(&t);
}

/* --- one chunk --- */

static bool yes(void *arg, uint64_t image)
{
	(void)arg;
	(void)image;
	return true;
}

/* Somebody may have written there, or may be about to. */
static void beside_a_writer_a_block_is_never_replaced(void **state)
{
	struct two t = two_new(2);
	struct mend m;
	uint64_t image;

	(void)state;
	live_open(&t.l);
	m = mend_of(&t.l);
	m.is_written = yes;
	image = image_of(&t.l, "a");
	make_bad(t.image[0], t.edge);
	assert_int_equal(mend_chunk(&m, image, t.edge), -EBUSY);
	assert_true(disk.ino != 0);
	/* Where all of a block is the chunk's own it does not matter. */
	make_bad(t.image[0], t.edge + BLOCK);
	assert_int_equal(mend_chunk(&m, image, t.edge), 1);
	assert_int_equal(mend_chunk(&m, image, t.edge), 0);
	assert_int_equal(mend_chunk(&m, image, t.edge + 1), -EIO);
	live_close(&t.l);
	two_free(&t);
}

/* A file that is gone, and that somebody may read to its end. */
static void what_waits_to_be_given_back_is_not_replaced(void **state)
{
	struct two t = two_new(2);
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	SCOPED(scope_batch) struct kv_batch *back = kv_batch_new();
	struct key chunk, range;
	struct chunk_rec k;
	struct mend m;
	uint64_t image;

	(void)state;
	live_open(&t.l);
	m = mend_of(&t.l);
	image = image_of(&t.l, "a");
	chunk = key_chunk(image, t.edge);
	range = key_punch(image, t.edge);
	assert_int_equal(chunk_load(m.kv, chunk, &k), 0);
	record_delete(b, chunk);
	u64_save(b, range, k.len);
	assert_int_equal(kv_write(m.kv, b), 0);
	make_bad(t.image[0], t.edge);
	assert_int_equal(mend_chunk(&m, image, t.first), -EBUSY);
	assert_true(disk.ino != 0);
	record_delete(back, range); /* it was given back */
	assert_int_equal(kv_write(m.kv, back), 0);
	assert_int_equal(mend_chunk(&m, image, t.first), 1);
	assert_int_equal(disk.ino, 0);
	live_close(&t.l);
	two_free(&t);
}

/* Where one of the two is wrong nobody knows whose bytes those are. */
static void a_chunk_that_another_one_reaches_into_is_left(void **state)
{
	struct two t = two_new(2);
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	struct chunk_rec k = { .len = 100, .refs = 1, .domain = DOMAIN_ALL };
	struct mend m;
	uint64_t image;

	(void)state;
	live_open(&t.l);
	m = mend_of(&t.l);
	image = image_of(&t.l, "a");
	chunk_save(b, key_chunk(image, t.edge - 50), &k);
	assert_int_equal(kv_write(m.kv, b), 0);
	flip(t.image[0], t.edge + BLOCK);
	disk.watched = ino_of_path(t.image[0]);
	assert_int_equal(mend_chunk(&m, image, t.edge), -EUCLEAN);
	assert_int_equal(disk.writes, 0);
	live_close(&t.l);
	two_free(&t);
}

/* What is in memory may be right where the disk is not, and the other way. */
static void both_the_disk_and_the_memory_must_be_right(void **state)
{
	(void)state;
	for (unsigned direct = 0; direct < 2; direct++) {
		struct two t = two_new(2);
		struct mend m;

		live_open(&t.l);
		m = mend_of(&t.l);
		disk.wrong_ino = ino_of_path(t.image[0]);
		disk.wrong_direct = direct;
		disk.watched = disk.wrong_ino;
		assert_int_equal(mend_chunk(&m, image_of(&t.l, "a"), 0), 1);
		assert_true(disk.writes > 0);
		live_close(&t.l);
		two_free(&t);
	}
}

/* --- while it is in use --- */

static void verify_open_mends_before_the_open_returns(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 3; i++) {
		struct two t = two_new(2);

		if (i < 2)
			make_bad(t.image[0], i == 0 ? t.edge : 2 * MIB);
		else
			flip(t.image[0], FILE_BYTES - 1);
		t.l.options.verify = VERIFY_OPEN;
		live_open(&t.l);
		disk.watched = ino_of_path(t.image[0]);
		disk.deciding = reclaim_deciding(t.l.st->files.reclaim);
		assert_file(&t.l, "a", t.data, FILE_BYTES);
		assert_true(disk.writes > 0);
		assert_int_equal(disk.ino, 0);
		assert_true(is_whole(&t, 0));
		live_close(&t.l);
		assert_int_equal(scrub(&t, false), 0);
		two_free(&t);
	}
}

/* As long as its image is a stage. */
static void verify_open_leaves_a_block_that_may_be_written(void **state)
{
	struct two t = two_new(2);
	struct inode *in = NULL;
	struct file_opened opened;
	struct images *images;
	struct image *i;

	(void)state;
	t.l.options.verify = VERIFY_OPEN;
	live_open(&t.l);
	images = t.l.st->files.images;
	make_bad(t.image[0], t.edge);
	assert_int_equal(image_get(images, image_of(&t.l, "a"), &i), 0);
	{
		HOLD(&images->lock);
		i->building = true;
	}
	assert_int_equal(live_lookup(&t.l, "a", &in), 0);
	assert_int_equal(file_open(&t.l.st->files, in, O_RDONLY, &opened),
			 -EIO);
	inode_put(t.l.st->inodes, in, 1);
	assert_true(disk.ino != 0);
	image_built(images, i);
	image_put(images, i);
	assert_file(&t.l, "a", t.data, FILE_BYTES);
	live_close(&t.l);
	two_free(&t);
}

static void an_open_of_what_has_no_whole_copy_fails(void **state)
{
	struct two t = two_new(2);
	struct inode *in = NULL;
	struct file_opened opened;

	(void)state;
	flip(t.image[0], MIB);
	flip(t.image[1], MIB);
	t.l.options.verify = VERIFY_OPEN;
	live_open(&t.l);
	assert_int_equal(live_lookup(&t.l, "a", &in), 0);
	assert_int_equal(file_open(&t.l.st->files, in, O_RDONLY, &opened),
			 -EIO);
	inode_put(t.l.st->inodes, in, 1);
	live_close(&t.l);
	two_free(&t);
}

/* A cable, not the disk: what was never wrong is not written. */
static void a_read_that_fails_once_changes_nothing(void **state)
{
	struct two t = two_new(2);

	(void)state;
	t.l.options.verify = VERIFY_OPEN;
	live_open(&t.l);
	disk.watched = ino_of_path(t.image[0]);
	disk.reads_fail = 1;
	assert_file(&t.l, "a", t.data, FILE_BYTES);
	assert_int_equal(disk.reads_fail, 0);
	assert_int_equal(disk.writes, 0);
	live_close(&t.l);
	two_free(&t);
}

/* As the kernel says it of a mapping that cannot be read. */
static void a_read_that_failed_mends_for_the_next_one(void **state)
{
	struct two t = two_new(2);
	struct inode *in = NULL;
	struct file_read r;

	(void)state;
	live_open(&t.l);
	make_bad(t.image[0], t.edge);
	assert_int_equal(live_lookup(&t.l, "a", &in), 0);
	assert_int_equal(file_read_begin(&t.l.st->files, in, 10, t.edge, &r),
			 0);
	assert_int_equal(file_read_failed(&t.l.st->files, in, &r, 10, t.edge),
			 -EIO);
	file_read_end(&t.l.st->files, &r);
	inode_put(t.l.st->inodes, in, 1);
	/* One of the two that the block has; it needed the other one's. */
	assert_int_equal(disk.ino, 0);
	assert_true(is_whole(&t, 0));
	live_close(&t.l);
	two_free(&t);
}

/* Of so many pieces that they are read, not mapped: see read.c. */
static void a_read_of_many_pieces_takes_what_was_mended(void **state)
{
	struct payload p[80];
	struct live l = live_closed(NULL);
	size_t len, mixed_len;
	uint8_t *data, *mixed;
	char image[4352];

	(void)state;
	l.options.dedup_copies = 2;
	live_open_kind(&l, 1);
	for (unsigned i = 0; i < 80; i++)
		p[i] = (struct payload){ i + 1, 20000 };
	data = safetensors(p, 80, 0, &len);
	live_write(&l, "a", data, len);
	live_sync_all(&l);
	live_write(&l, "b", data, len);
	live_sync_all(&l);
	for (unsigned i = 0; i < 80; i += 2)
		p[i].seed += 1000;
	mixed = safetensors(p, 80, 0, &mixed_len);
	live_write(&l, "mixed", mixed, mixed_len);
	live_sync_all(&l);
	live_reopen(&l); /* nothing of it is in memory */
	assert_false(live_native(&l, "mixed"));
	for (unsigned i = 0; i < 2; i++) {
		image_path(&l, i ? "b" : "a", image);
		disk.ino = ino_of_path(image);
		disk.block = (len - 27 * 20000 + 8000) / BLOCK;
		assert_file(&l, "mixed", mixed, mixed_len);
		if (disk.ino == 0)
			break;
	}
	assert_int_equal(disk.ino, 0); /* it was the one that "mixed" has */
	live_free(&l);
	free(data);
	free(mixed);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			a_scrub_mends_a_flipped_byte_from_the_other_copy),
		cmocka_unit_test(a_scrub_that_is_not_to_mend_changes_nothing),
		cmocka_unit_test(without_another_copy_nothing_is_written),
		cmocka_unit_test(copies_that_are_damaged_apart_mend_each_other),
		cmocka_unit_test(a_scrub_mends_a_bad_sector),
		cmocka_unit_test(
			a_bad_sector_with_bytes_that_nobody_has_is_left),
		cmocka_unit_test(a_disk_that_does_not_take_it_is_told_of),
		cmocka_unit_test(
			a_scrub_leaves_a_block_that_a_staged_file_may_have),
		cmocka_unit_test(beside_a_writer_a_block_is_never_replaced),
		cmocka_unit_test(what_waits_to_be_given_back_is_not_replaced),
		cmocka_unit_test(both_the_disk_and_the_memory_must_be_right),
		cmocka_unit_test(a_chunk_that_another_one_reaches_into_is_left),
		cmocka_unit_test(verify_open_mends_before_the_open_returns),
		cmocka_unit_test(
			verify_open_leaves_a_block_that_may_be_written),
		cmocka_unit_test(an_open_of_what_has_no_whole_copy_fails),
		cmocka_unit_test(a_read_that_fails_once_changes_nothing),
		cmocka_unit_test(a_read_that_failed_mends_for_the_next_one),
		cmocka_unit_test(a_read_of_many_pieces_takes_what_was_mended),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
