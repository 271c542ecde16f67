/* What somebody still has open through a connection that is gone. */
#include "tests/unit/live_store.h"

#include "store/space/held.h"

#define SIZE (3u * MIB)
#define HOLE_AT (1u * MIB)
#define INO 4711u

/* A stage with bytes, a hole and an odd end; what a file's would be. */
static struct stage *make_stage(struct live *l, bool memory, const void *data)
{
	struct stage *s = NULL;
	int fd;

	assert_int_equal(
		stage_create(&l->st->stages, INO, 0, memory ? SIZE : 0, &s), 0);
	stage_show(s);
	assert_int_equal(s->kind, memory ? STAGE_MEMORY : STAGE_DISK);
	fd = stage_open(&l->st->stages, s, O_RDWR);
	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, data, HOLE_AT, 0), HOLE_AT);
	assert_int_equal(pwrite(fd, data, 5000, 2 * MIB), 5000);
	assert_int_equal(ftruncate(fd, SIZE - 7), 0);
	close(fd);
	s->slot->close_order = 42;
	s->slot->earlier = 1;
	return s;
}

static void assert_stage_bytes(struct live *l, const struct stage *s,
			       const uint8_t *data)
{
	uint8_t *got = malloc(SIZE), *want = calloc(1, SIZE);
	int fd = stage_open(&l->st->stages, s, O_RDONLY);

	assert_non_null(got);
	assert_non_null(want);
	assert_true(fd >= 0);
	memcpy(want, data, HOLE_AT);
	memcpy(want + 2 * MIB, data, 5000);
	assert_int_equal(pread(fd, got, SIZE, 0), SIZE - 7);
	assert_memory_equal(got, want, SIZE - 7);
	close(fd);
	free(got);
	free(want);
}

static void who_writes_keeps_the_stage_and_the_file_gets_a_copy(void **state)
{
	uint8_t *data = filled(SIZE, 1);

	(void)state;
	for (unsigned memory = 0; memory < 2; memory++) {
		struct live l = live_new(NULL);
		struct stage *s = make_stage(&l, memory == 1, data);
		struct stat before, after;
		uint64_t number = s->number;
		char byte = 0;
		int theirs;

		assert_false(held_for_writing(&l.st->stages, s));
		theirs = stage_open(&l.st->stages, s, O_RDWR);
		assert_true(theirs >= 0);
		assert_true(held_for_writing(&l.st->stages, s));
		assert_int_equal(stage_stat(&l.st->stages, s, &before), 0);
		assert_int_equal(held_replace(&l.st->stages, &s), 0);
		assert_int_not_equal(s->number, number);
		assert_int_equal(s->kind, memory ? STAGE_MEMORY : STAGE_DISK);
		assert_false(held_for_writing(&l.st->stages, s));
		assert_int_equal(pwrite(theirs, "!", 1, 0), 1);
		assert_stage_bytes(&l, s, data);
		assert_int_equal(pread(theirs, &byte, 1, 0), 1);
		assert_int_equal(byte, '!');
		assert_int_equal(stage_stat(&l.st->stages, s, &after), 0);
		assert_int_equal(after.st_mtim.tv_sec, before.st_mtim.tv_sec);
		assert_int_equal(after.st_mtim.tv_nsec, before.st_mtim.tv_nsec);
		assert_int_equal(SLOT_GET(s->slot, ino), INO);
		assert_int_equal(SLOT_GET(s->slot, close_order), 42);
		assert_int_equal(SLOT_GET(s->slot, earlier), 1);
		commit_wait(l.st->drain);
		assert_int_equal(fstat(theirs, &after), 0);
		assert_int_equal(after.st_nlink, 0);
		close(theirs);
		stage_drop(&l.st->stages, s);
		live_free(&l);
	}
	free(data);
}

/* The image of a file of an earlier start; one reference. */
static struct image *old_image(struct live *l)
{
	struct content c = live_content(l, "old");
	struct image *i = NULL;

	assert_int_equal(image_get(&l->st->images, c.extents[0].image, &i), 0);
	content_release(&c);
	return i;
}

static void an_image_from_before_is_asked_for_until_nobody_has_it(void **state)
{
	uint8_t *data = filled(MIB, 2);
	struct live l = live_new(NULL);
	struct image *i, *again;
	int theirs;

	(void)state;
	live_write(&l, "old", data, MIB);
	live_reopen(&l);
	i = old_image(&l);
	assert_non_null(image_map(&l.st->images, i, MIB));
	image_map_end(&l.st->images, i); /* it stays mapped */
	theirs = image_open_fd(&l.st->images, i, O_RDONLY);
	assert_true(theirs >= 0);
	assert_true(image_is_left(&l.st->images, i));
	close(theirs);
	again = old_image(&l); /* it may be at work with the mapping */
	assert_non_null(image_map(&l.st->images, again, MIB));
	assert_true(image_is_left(&l.st->images, i));
	image_map_end(&l.st->images, again);
	image_put(&l.st->images, again);
	assert_false(image_is_left(&l.st->images, i));
	/* From here on only this daemon gives it out. */
	theirs = image_open_fd(&l.st->images, i, O_RDONLY);
	assert_false(image_is_left(&l.st->images, i));
	images_end(&l.st->images);
	assert_true(image_is_left(&l.st->images, i));
	close(theirs);
	image_put(&l.st->images, i);
	live_free(&l);
	free(data);
}

static void what_is_new_is_not_asked_for(void **state)
{
	struct live l = live_new(NULL);
	struct image *i = NULL;
	int theirs;

	(void)state;
	assert_int_equal(image_create(&l.st->images, &i), 0);
	theirs = image_open_fd(&l.st->images, i, O_RDONLY);
	assert_false(image_is_left(&l.st->images, i));
	close(theirs);
	image_recycle(&l.st->images, i);
	live_free(&l);
}

/* What could not be copied is stored as it stands, and never taken for it. */
static void
what_is_held_and_not_copied_is_durable_but_stays_staged(void **state)
{
	uint8_t *data = filled(2 * MIB, 3), *later = filled(2 * MIB, 4);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		struct handle h = handle_open(&l, "a", O_WRONLY | O_CREAT);
		struct inode *in;
		struct content c;
		uint64_t number;
		int theirs;

		h.in->file->stage->unseen_writer = true;
		number = h.in->file->stage->number;
		theirs = stage_open(&l.st->stages, h.in->file->stage, O_RDWR);
		handle_write(&h, data, 2 * MIB, 0);
		handle_close(&h);
		assert_int_equal(live_sync(&l, "a"), 0);
		assert_int_equal(live_lookup(&l, "a", &in), 0);
		assert_true(file_is_dirty(in->file));
		assert_int_equal(in->file->stage->number, number);
		c = live_content(&l, "a");
		assert_true(in->file->stage->kind == STAGE_MEMORY ||
			    c.extents[0].image != number);
		content_release(&c);
		inode_put(l.st->inodes, in, 1);
		/* What is committed has nothing to do with what he writes. */
		assert_int_equal(pwrite(theirs, later, MIB, 0), MIB);
		close(theirs);
		assert_int_equal(live_sync(&l, "a"), 0);
		memcpy(later + MIB, data + MIB, MIB);
		assert_file(&l, "a", later, 2 * MIB);
		fill(later, 2 * MIB, 4);
		live_free(&l);
	}
	free(data);
	free(later);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			who_writes_keeps_the_stage_and_the_file_gets_a_copy),
		cmocka_unit_test(
			an_image_from_before_is_asked_for_until_nobody_has_it),
		cmocka_unit_test(what_is_new_is_not_asked_for),
		cmocka_unit_test(
			what_is_held_and_not_copied_is_durable_but_stays_staged),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
