/*
 * Images whose removal has to be synced, and those whose place a copy takes,
 * when a sync or a file fails them; and how many syncs that takes at all.
 */
#include <sys/syscall.h>

#include "store/space/image_copy.h"
#include "tests/unit/image_fixture.h"
#include "tests/unit/live_child.h"

/* How often this directory was synced, and whether that fails. */
static struct stat watched;
static atomic_uint watched_syncs;
static atomic_bool watched_fails;
/* Of directories of images, and of the database's log. */
static atomic_uint dir_syncs, log_syncs;

static void count_sync(int fd)
{
	char link[32], path[4096] = "";
	struct stat sb;
	size_t len;

	(void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	assert_true(readlink(link, path, sizeof(path) - 1) > 0);
	len = strlen(path);
	assert_int_equal(fstat(fd, &sb), 0);
	if (S_ISDIR(sb.st_mode) && strstr(path, "/" LAYOUT_IMAGE_DIR "/"))
		atomic_fetch_add(&dir_syncs, 1);
	if (len > 4 && strcmp(path + len - 4, ".log") == 0)
		atomic_fetch_add(&log_syncs, 1);
}

int fdatasync(int fd)
{
	count_sync(fd);
	return (int)syscall(SYS_fdatasync, fd);
}

int fsync(int fd)
{
	struct stat sb;

	count_sync(fd);
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
 * The last file of an image is deleted, its record and its name go, and then
 * the daemon is killed: it has not synced the name.
 */
static void child_removes_an_image(struct live *l, const char *argument)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	static struct reclaim_ticket reader; /* until the process is gone */
	uint8_t *data = filled(MIB, 1);
	char name[LAYOUT_IMAGE_NAME_BYTES];
	struct content c;
	uint64_t id;

	(void)argument;
	live_open(l);
	live_write(l, "f", data, MIB);
	live_reopen(l); /* this one begins no image */
	c = live_content(l, "f");
	id = c.extents[0].image;
	content_release(&c);
	reclaim_enter(l->st->reclaim, &reader); /* so we do it in its stead */
	assert_int_equal(live_unlink(l, "f"), 0);
	commit_wait(l->st->drain);
	record_delete(b, key_ino('I', id));
	meta_add(b, META_IMAGES, -1);
	assert_int_equal(kv_write(l->st->kv, b), 0);
	assert_int_equal(kv_sync(l->st->kv), 0);
	layout_image_name(id, name);
	assert_int_equal(unlinkat(l->st->images.dirfd, name, 0), 0);
	free(data);
}

/* The next one forgets its P record: not before the name is durably gone. */
static void what_the_last_daemon_removed_is_synced(void **state)
{
	struct live l = live_closed(NULL);
	uint64_t freed;

	(void)state;
	live_child(&l, "removes", NULL);
	atomic_store(&dir_syncs, 0);
	live_open(&l);
	reclaim_drain(l.st->reclaim, &freed);
	/* Its directory, for each range of it at most. */
	assert_in_range(dir_syncs, 1, 32);
	assert_int_equal(live_records(&l, 'P'), 0);
	live_free(&l);
}

static void child_begins_an_image(struct live *l, const char *argument)
{
	struct image *i;

	(void)argument;
	live_open(l);
	assert_int_equal(image_create(&l->st->images, &i), 0);
	assert_int_equal(image_remove(&l->st->images, i), 0);
}

/* Which images it removed no record says. */
static void who_began_images_and_was_killed_has_all_synced(void **state)
{
	struct live l = live_closed(NULL);

	(void)state;
	live_child(&l, "begins", NULL);
	atomic_store(&dir_syncs, 0);
	live_open(&l);
	live_reopen(&l);
	assert_int_equal(dir_syncs, 256);
	live_free(&l);
}

static void a_clean_start_and_a_clean_end_sync_no_directory(void **state)
{
	struct live l = live_new(NULL);

	(void)state;
	live_write(&l, "f", "small", 5);
	live_reopen(&l);
	atomic_store(&dir_syncs, 0);
	live_reopen(&l);
	assert_int_equal(dir_syncs, 0);
	live_free(&l);
}

#define FILES 40 /* less than a group of the reclaimer */

static void file_name(char name[16], unsigned n)
{
	(void)snprintf(name, 16, "f%u", n);
}

static void many_images_are_removed_after_one_sync_of_the_log(void **state)
{
	struct live l = live_new(NULL);
	struct reclaim_ticket reader;
	uint64_t freed;
	char name[16];

	(void)state;
	for (unsigned n = 0; n < FILES; n++) {
		uint8_t *data = filled(64 * KIB, n + 1);

		file_name(name, n);
		live_write(&l, name, data, 64 * KIB);
		free(data);
	}
	live_sync_all(&l);
	live_settle(&l);
	assert_int_equal(live_counter(&l, META_IMAGES), FILES);
	reclaim_enter(l.st->reclaim, &reader); /* nothing goes before all may */
	for (unsigned n = 0; n < FILES; n++) {
		file_name(name, n);
		assert_int_equal(live_unlink(&l, name), 0);
	}
	commit_wait(l.st->drain);
	atomic_store(&log_syncs, 0);
	reclaim_leave(l.st->reclaim, &reader);
	reclaim_drain(l.st->reclaim, &freed);
	assert_int_equal(live_counter(&l, META_IMAGES), 0);
	/* The deletions, and the records of the images. */
	assert_int_equal(log_syncs, 2);
	live_free(&l);
}

/* At worst each is a group of its own; then the names take one more. */
static void the_names_of_a_tree_take_one_sync_of_the_log(void **state)
{
	struct live l = live_kind_held(0);
	char name[16];

	(void)state;
	for (unsigned n = 0; n < FILES; n++) {
		file_name(name, n);
		live_write(&l, name, &n, sizeof(n));
	}
	atomic_store(&log_syncs, 0);
	assert_int_equal(drain_sync_tree(l.st->drain, ROOT_INO), 0);
	assert_in_range(log_syncs, 1, FILES + 1);
	live_free(&l);
}

/* What is not synced yet stays so until the directory is there again. */
static void a_removal_that_cannot_be_synced_is_synced_later(void **state)
{
	struct live l = live_new(NULL);
	struct images *im;

	(void)state;
	im = &l.st->images;
	atomic_store(&im->unlinked[0x2a], true);
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

static uint64_t inode_of_image(struct live *l, uint64_t id)
{
	char name[LAYOUT_IMAGE_NAME_BYTES];
	struct stat sb;

	layout_image_name(id, name);
	assert_int_equal(fstatat(l->st->images.dirfd, name, &sb, 0), 0);
	return sb.st_ino;
}

static int swap(struct live *l, struct image *from, struct image *to)
{
	HOLD(reclaim_deciding(l->st->reclaim));
	return image_copy_swap(&l->st->images, from, to);
}

/*
 * Whatever goes wrong while a copy takes an image's place: the image is the
 * inode that its readers have, the new one has no file that could be the same
 * inode, and no copy is left.
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
		uint64_t number;

		assert_int_equal(image_create(im, &from), 0);
		image_write(&l, from, "bytes", 6);
		number = inode_of_image(&l, from->id);
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
		assert_int_equal(inode_of_image(&l, from->id), number);
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

static const struct live_child_entry children[] = {
	{ "removes", child_removes_an_image },
	{ "begins", child_begins_an_image },
};

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_the_last_daemon_removed_is_synced),
		cmocka_unit_test(
			who_began_images_and_was_killed_has_all_synced),
		cmocka_unit_test(
			a_clean_start_and_a_clean_end_sync_no_directory),
		cmocka_unit_test(
			many_images_are_removed_after_one_sync_of_the_log),
		cmocka_unit_test(the_names_of_a_tree_take_one_sync_of_the_log),
		cmocka_unit_test(
			a_removal_that_cannot_be_synced_is_synced_later),
		cmocka_unit_test(a_swap_that_fails_leaves_the_image_as_it_was),
		cmocka_unit_test(
			an_image_that_was_removed_is_swapped_without_its_copy),
	};

	if (argc > 1)
		return live_child_main(argc, argv, children,
				       sizeof(children) / sizeof(*children));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
