/*
 * Images whose removal has to be synced, and those whose place a copy takes,
 * when a sync or a file fails them.
 */
#include <sys/syscall.h>

#include "store/space/image_copy.h"
#include "tests/unit/image_fixture.h"

/* How often this directory was synced, and whether that fails. */
static struct stat watched;
static atomic_uint watched_syncs;
static atomic_bool watched_fails;

int fsync(int fd)
{
	struct stat sb;

	if (fstat(fd, &sb) == 0 && sb.st_ino == watched.st_ino &&
	    sb.st_dev == watched.st_dev) {
		atomic_fetch_add(&watched_syncs, 1);
		if (atomic_load(&watched_fails)) {
			errno = EIO;
			return -1;
		}
	}
	return (int)syscall(SYS_fsync, fd);
}

/*
 * Killed between the removal of a name and its sync, the last daemon left a
 * record that this one forgets: not before the name is durably gone.
 */
static void what_the_last_daemon_removed_is_synced(void **state)
{
	struct live l = live_new(NULL);

	(void)state;
	live_reopen(&l);
	assert_int_equal(fstatat(l.st->images.dirfd, "2a", &watched, 0), 0);
	atomic_store(&watched_syncs, 0);
	assert_int_equal(image_sync_removed(&l.st->images), 0);
	assert_int_equal(watched_syncs, 1);
	assert_int_equal(image_sync_removed(&l.st->images), 0);
	assert_int_equal(watched_syncs, 1);
	live_free(&l);
}

/* What is not synced yet stays so until the directory is there again. */
static void a_removal_that_cannot_be_synced_is_synced_later(void **state)
{
	struct live l = live_new(NULL);
	struct images *im;

	(void)state;
	live_reopen(&l);
	im = &l.st->images;
	assert_int_equal(fstatat(im->dirfd, "2a", &watched, 0), 0);
	atomic_store(&watched_syncs, 0);
	assert_int_equal(renameat(im->dirfd, "2a", im->dirfd, "away"), 0);
	assert_int_equal(image_sync_removed(im), -ENOENT);
	assert_int_equal(image_sync_removed(im), -ENOENT);
	assert_int_equal(watched_syncs, 0);
	assert_int_equal(renameat(im->dirfd, "away", im->dirfd, "2a"), 0);
	atomic_store(&watched_fails, true);
	assert_int_equal(image_sync_removed(im), -EIO);
	atomic_store(&watched_fails, false);
	assert_int_equal(image_sync_removed(im), 0);
	assert_int_equal(watched_syncs, 2);
	live_free(&l);
}

/* The one with this suffix, of those that an image's file may have. */
static bool file_exists(struct live *l, uint64_t id, const char *suffix)
{
	char name[LAYOUT_IMAGE_NAME_BYTES];

	layout_image_file(id, suffix, name);
	return faccessat(l->st->images.dirfd, name, F_OK, 0) == 0;
}

static void unlink_image(struct live *l, uint64_t id)
{
	char name[LAYOUT_IMAGE_NAME_BYTES];

	layout_image_name(id, name);
	assert_int_equal(unlinkat(l->st->images.dirfd, name, 0), 0);
}

static int swap(struct live *l, struct image *from, struct image *to)
{
	HOLD(reclaim_deciding(l->st->reclaim));
	return image_copy_swap(&l->st->images, from, to);
}

/*
 * Whatever goes wrong while a copy takes an image's place: the image has its
 * bytes, the new one no file that could be the same inode, and no copy is left.
 */
static void a_swap_that_fails_leaves_the_image_as_it_was(void **state)
{
	enum {
		NEW_HAS_NO_FILE,
		COPY_IS_MISSING,
		NAME_IS_NOT_SYNCED,
		WAYS,
	};
	static const int errors[WAYS] = { -ENOENT, -ENOENT, -EIO };
	struct live l = live_new(NULL);
	struct images *im = &l.st->images;

	(void)state;
	for (unsigned way = 0; way < WAYS; way++) {
		struct image *from = NULL, *to = NULL;
		char got[6] = "", dir[3], copy[LAYOUT_IMAGE_NAME_BYTES];

		assert_int_equal(image_create(im, &from), 0);
		image_write(&l, from, "bytes", 6);
		assert_int_equal(image_create(im, &to), 0);
		assert_int_equal(image_copy_make(im, from), 0);
		layout_image_file(from->id, LAYOUT_IMAGE_COPY, copy);
		(void)snprintf(dir, sizeof(dir), "%.2s", copy);
		if (way == NEW_HAS_NO_FILE)
			unlink_image(&l, to->id);
		if (way == COPY_IS_MISSING)
			assert_int_equal(unlinkat(im->dirfd, copy, 0), 0);
		assert_int_equal(fstatat(im->dirfd, dir, &watched, 0), 0);
		atomic_store(&watched_fails, way == NAME_IS_NOT_SYNCED);
		assert_int_equal(swap(&l, from, to), errors[way]);
		atomic_store(&watched_fails, false);
		image_read(&l, from, got, sizeof(got));
		assert_string_equal(got, "bytes");
		assert_false(file_exists(&l, to->id, ""));
		assert_false(file_exists(&l, from->id, LAYOUT_IMAGE_COPY));
		image_recycle(im, to);
		image_recycle(im, from);
	}
	live_free(&l);
}

/* Its records are gone: it needs no copy, and whoever reads it keeps it. */
static void an_image_that_was_removed_is_swapped_without_its_copy(void **state)
{
	struct live l = live_new(NULL);
	struct images *im = &l.st->images;
	struct image *from = NULL, *to = NULL;
	char got[6] = "";

	(void)state;
	assert_int_equal(image_create(im, &from), 0);
	image_write(&l, from, "bytes", 6);
	assert_int_equal(image_create(im, &to), 0);
	assert_int_equal(image_copy_make(im, from), 0);
	image_ref(im, from);
	assert_int_equal(image_remove(im, from), 0);
	assert_int_equal(swap(&l, from, to), 0);
	image_read(&l, to, got, sizeof(got));
	assert_string_equal(got, "bytes");
	assert_false(file_exists(&l, from->id, LAYOUT_IMAGE_COPY));
	image_put(im, from);
	image_put(im, from);
	image_recycle(im, to);
	live_free(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_the_last_daemon_removed_is_synced),
		cmocka_unit_test(
			a_removal_that_cannot_be_synced_is_synced_later),
		cmocka_unit_test(a_swap_that_fails_leaves_the_image_as_it_was),
		cmocka_unit_test(
			an_image_that_was_removed_is_swapped_without_its_copy),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
