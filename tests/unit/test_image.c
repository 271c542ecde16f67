/*
 * Images: files with numbers, found, held, kept open for a while, removed.
 */
#include "tests/unit/image_fixture.h"

static bool image_exists(struct live *l, uint64_t id)
{
	char name[LAYOUT_IMAGE_NAME_BYTES];

	layout_image_name(id, name);
	return faccessat(l->st->images.dirfd, name, F_OK, 0) == 0;
}

static void remove_number(struct live *l, uint64_t id)
{
	struct image *i = NULL;

	assert_int_equal(image_get(&l->st->images, id, &i), 0);
	assert_int_equal(image_remove(&l->st->images, i), 0);
	image_put(&l->st->images, i);
}

/* What a drain leaves: an image that holds something and is known by number. */
static uint64_t make_image(struct live *l, const void *data, size_t len)
{
	struct image *i = NULL;
	uint64_t id;

	assert_int_equal(image_create(&l->st->images, &i), 0);
	image_write(l, i, data, len);
	id = i->id;
	i->building = false;
	image_put(&l->st->images, i);
	return id;
}

/* A stage that nobody has committed when the daemon ends. */
static uint64_t make_unfinished(struct live *l, const void *data, size_t len)
{
	struct image *i = NULL;
	uint64_t id;

	assert_int_equal(image_create(&l->st->images, &i), 0);
	image_write(l, i, data, len);
	id = i->id;
	image_put(&l->st->images, i);
	return id;
}

static int remove_it(void *arg, uint64_t id)
{
	remove_number(arg, id);
	return 0;
}

/* The images are no file's: the check at the end would name them. */
static void end_without_images(struct live *l)
{
	assert_int_equal(image_scan(&l->st->images, false, remove_it, l), 0);
	live_free(l);
}

static void a_number_is_never_used_twice_also_by_the_next_daemon(void **state)
{
	struct live l = live_new(NULL);
	uint64_t last = 0;

	(void)state;
	for (unsigned start = 0; start < 4; start++) {
		for (unsigned n = 0; n < 20; n++) {
			uint64_t id = make_image(&l, "x", 1);

			assert_true(id > last);
			last = id;
			remove_number(&l, id);
		}
		live_reopen(&l);
	}
	live_free(&l);
}

static void an_image_that_the_database_lost_keeps_its_number(void **state)
{
	struct live l = live_new(NULL);
	char path[4096];
	int fd;

	(void)state;
	/* Far beyond what is reserved: as if the log had been cut. */
	(void)snprintf(path, sizeof(path),
		       "%s/" LAYOUT_IMAGE_DIR "/00/0000000000ffff00", l.path);
	live_close(&l);
	fd = open(path, O_CREAT | O_WRONLY, 0600);
	assert_true(fd >= 0);
	close(fd);
	live_open(&l);
	assert_true(make_image(&l, "x", 1) > 0xffff00);
	live_reopen(&l);
	assert_int_equal(access(path, F_OK), -1); /* there is nothing in it */
	end_without_images(&l);
}

static void a_missing_image_is_not_found(void **state)
{
	struct live l = live_new(NULL);
	struct image *i = NULL;

	(void)state;
	assert_int_equal(image_get(&l.st->images, 12345, &i), -ENOENT);
	assert_null(i);
	live_free(&l);
}

static void who_holds_an_image_keeps_it_when_it_is_removed(void **state)
{
	struct live l = live_new(NULL);
	struct image *i = NULL, *again = NULL;
	uint64_t id = make_image(&l, "hello", 5);
	char name[LAYOUT_IMAGE_NAME_BYTES];
	char got[5];

	(void)state;
	assert_int_equal(image_get(&l.st->images, id, &i), 0);
	assert_int_equal(image_get(&l.st->images, id, &again), 0);
	assert_ptr_equal(i, again);
	image_put(&l.st->images, again);
	remove_number(&l, id);
	assert_false(image_exists(&l, id));
	assert_int_equal(image_get(&l.st->images, id, &again), -ENOENT);
	image_read(&l, i, got, 5);
	assert_memory_equal(got, "hello", 5);
	image_put(&l.st->images, i);
	assert_int_equal(image_get(&l.st->images, id, &i), -ENOENT);
	/* What nobody can open any more is gone. */
	layout_image_file(id, LAYOUT_IMAGE_GONE, name);
	assert_int_equal(faccessat(l.st->images.dirfd, name, F_OK, 0), -1);
	live_free(&l);
}

static void images_take_no_descriptor(void **state)
{
	struct live l = live_new(NULL);
	struct image *held[2 * IMAGE_IDLE_MAX];
	uint64_t ids[2 * IMAGE_IDLE_MAX];
	unsigned before = open_descriptors();

	(void)state;
	for (unsigned n = 0; n < 2 * IMAGE_IDLE_MAX; n++)
		ids[n] = make_image(&l, &n, sizeof(n));
	for (unsigned n = 0; n < 2 * IMAGE_IDLE_MAX; n++) {
		unsigned got = 0;

		assert_int_equal(image_get(&l.st->images, ids[n], &held[n]), 0);
		image_read(&l, held[n], &got, sizeof(got));
		assert_int_equal(got, n);
	}
	assert_int_equal(open_descriptors(), before);
	for (unsigned n = 0; n < 2 * IMAGE_IDLE_MAX; n++)
		image_put(&l.st->images, held[n]);
	end_without_images(&l);
}

static void a_mapping_never_reaches_beyond_the_image(void **state)
{
	struct live l = live_new(NULL);
	uint8_t *data = filled(10000, 1);
	uint64_t id = make_image(&l, data, 10000);
	const uint8_t *map;
	struct image *i = NULL;

	(void)state;
	assert_int_equal(image_get(&l.st->images, id, &i), 0);
	assert_null(image_map(&l.st->images, i, 10001));
	assert_null(image_map(&l.st->images, i, 0));
	map = image_map(&l.st->images, i, 10000);
	assert_non_null(map);
	assert_memory_equal(map, data, 10000);
	assert_ptr_equal(image_map(&l.st->images, i, 1), map);
	assert_null(image_map(&l.st->images, i, 10001));
	image_put(&l.st->images, i);
	end_without_images(&l);
	free(data);
}

static void an_empty_image_is_used_again_and_nobody_finds_it(void **state)
{
	struct live l = live_new(NULL);
	struct image *i = NULL, *none = NULL;
	struct stat sb;
	uint64_t id;

	(void)state;
	assert_int_equal(image_create(&l.st->images, &i), 0);
	id = i->id;
	image_write(&l, i, "old", 3);
	image_recycle(&l.st->images, i);
	assert_int_equal(image_get(&l.st->images, id, &none), -ENOENT);
	assert_int_equal(image_create(&l.st->images, &i), 0);
	assert_int_equal(i->id, id);
	assert_int_equal(image_stat(&l.st->images, i, &sb), 0);
	assert_int_equal(sb.st_size, 0);
	assert_int_equal(image_get(&l.st->images, id, &none), 0);
	image_put(&l.st->images, none);
	image_put(&l.st->images, i);
	live_free(&l);
}

static void
an_image_that_somebody_holds_is_removed_and_not_recycled(void **state)
{
	struct live l = live_new(NULL);
	struct image *i = NULL, *next = NULL;
	char got[3];

	(void)state;
	assert_int_equal(image_create(&l.st->images, &i), 0);
	image_write(&l, i, "old", 3);
	image_ref(&l.st->images, i);
	image_recycle(&l.st->images, i);
	assert_false(image_exists(&l, i->id));
	assert_int_equal(image_create(&l.st->images, &next), 0);
	assert_int_not_equal(next->id, i->id);
	image_put(&l.st->images, next);
	/* Whoever holds it, or has it mapped, keeps its bytes. */
	image_read(&l, i, got, 3);
	assert_memory_equal(got, "old", 3);
	image_put(&l.st->images, i);
	live_free(&l);
}

static void a_direct_descriptor_is_of_the_same_file(void **state)
{
	struct live l = live_new(NULL);
	uint8_t *block = NULL, got[4096];
	struct image *i = NULL;
	int fd;

	(void)state;
	assert_int_equal(posix_memalign((void **)&block, 4096, 4096), 0);
	fill(block, 4096, 1);
	assert_int_equal(image_create(&l.st->images, &i), 0);
	fd = image_open_fd(&l.st->images, i, O_RDWR | O_DIRECT);
	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, block, 4096, 0), 4096);
	close(fd);
	image_read(&l, i, got, 4096);
	assert_memory_equal(got, block, 4096);
	image_recycle(&l.st->images, i);
	free(block);
	live_free(&l);
}

struct seen {
	uint64_t ids[8];
	unsigned count;
	int stop_with;
};

static int note_seen(void *arg, uint64_t id)
{
	struct seen *s = arg;

	if (s->count < 8)
		s->ids[s->count] = id;
	s->count++;
	return s->stop_with;
}

static void a_scan_finds_every_image_and_stops_when_told(void **state)
{
	struct live l = live_new(NULL);
	struct seen all = { 0 }, first = { .stop_with = -EINTR };
	uint64_t sum = 0, found = 0;

	(void)state;
	for (unsigned n = 0; n < 5; n++)
		sum += make_image(&l, "x", 1);
	assert_int_equal(image_scan(&l.st->images, false, note_seen, &all), 0);
	assert_int_equal(all.count, 5);
	for (unsigned n = 0; n < 5; n++)
		found += all.ids[n];
	assert_int_equal(found, sum);
	assert_int_equal(image_scan(&l.st->images, false, note_seen, &first),
			 -EINTR);
	assert_int_equal(first.count, 1);
	end_without_images(&l);
}

static void what_was_not_finished_is_removed_at_the_next_start(void **state)
{
	struct live l = live_new(NULL);
	uint8_t *data = filled(MIB, 1);
	struct content c;

	(void)state;
	live_write(&l, "kept", data, MIB);
	live_sync_all(&l);
	for (unsigned n = 0; n < 5; n++)
		(void)make_unfinished(&l, "x", 1);
	live_reopen(&l);
	assert_int_equal(live_images(&l).count, 1);
	assert_int_equal(l.st->unknown_images, 0);
	c = live_content(&l, "kept");
	assert_true(image_exists(&l, c.extents[0].image));
	content_release(&c);
	assert_file(&l, "kept", data, MIB);
	live_free(&l);
	free(data);
}

/* The database may be what is wrong: nothing that it did not record goes. */
static void an_image_that_nobody_recorded_is_kept_and_counted(void **state)
{
	struct live l = live_new(NULL);
	uint64_t known, unknown;
	char path[4096];
	int fd;

	(void)state;
	unknown = make_image(&l, "x", 1);
	(void)snprintf(path, sizeof(path),
		       "%s/" LAYOUT_IMAGE_DIR "/00/0000000000ffff00", l.path);
	fd = open(path, O_CREAT | O_WRONLY, 0600);
	assert_int_equal(write(fd, "y", 1), 1);
	close(fd);
	for (unsigned n = 0; n < 3; n++) {
		live_reopen(&l);
		assert_int_equal(l.st->unknown_images, 2);
		assert_true(image_exists(&l, unknown));
		assert_int_equal(access(path, F_OK), 0);
		known = make_unfinished(&l, "z", 1);
		assert_true(known > 0xffff00);
	}
	live_reopen(&l);
	assert_false(image_exists(&l, known));
	end_without_images(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			a_number_is_never_used_twice_also_by_the_next_daemon),
		cmocka_unit_test(
			an_image_that_the_database_lost_keeps_its_number),
		cmocka_unit_test(a_missing_image_is_not_found),
		cmocka_unit_test(
			who_holds_an_image_keeps_it_when_it_is_removed),
		cmocka_unit_test(images_take_no_descriptor),
		cmocka_unit_test(a_mapping_never_reaches_beyond_the_image),
		cmocka_unit_test(
			an_empty_image_is_used_again_and_nobody_finds_it),
		cmocka_unit_test(
			an_image_that_somebody_holds_is_removed_and_not_recycled),
		cmocka_unit_test(a_direct_descriptor_is_of_the_same_file),
		cmocka_unit_test(a_scan_finds_every_image_and_stops_when_told),
		cmocka_unit_test(
			what_was_not_finished_is_removed_at_the_next_start),
		cmocka_unit_test(
			an_image_that_nobody_recorded_is_kept_and_counted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
