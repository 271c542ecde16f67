/*
 * Names: every change is whole or not at all, errors are those of POSIX, and a
 * listing has each once. test_names_inode.c is about what goes with an inode.
 */
#include <linux/fs.h>

#include "tests/unit/live_store.h"

#define DATA_BYTES 100000u

static int live_rmdir(struct live *l, const char *path)
{
	struct inode *in;
	const char *name;
	uint64_t dir;
	int rc = live_walk(l, path, &dir, &name);

	if (rc == 0)
		rc = names_rmdir(l->st->names, dir, name, &in);
	if (rc < 0)
		return rc;
	file_unlinked(&l->st->files, in);
	inode_put(l->st->inodes, in, 1);
	return 0;
}

/* Not for success: nobody would hold what was made. */
static void assert_not_made(struct live *l, const char *path, uint32_t mode,
			    int error)
{
	struct inode *in = NULL;

	assert_int_equal(live_make(l, path, mode, &in), error);
	assert_null(in);
}

static void creating_fails_as_posix_says(void **state)
{
	struct live l = live_new(NULL);
	char longest[STORE_NAME_MAX + 2];

	(void)state;
	live_mkdir(&l, "d");
	live_write(&l, "f", "x", 1);
	assert_not_made(&l, "f", S_IFREG | 0644, -EEXIST);
	assert_not_made(&l, "d", S_IFREG | 0644, -EEXIST);
	assert_not_made(&l, "f", S_IFDIR | 0755, -EEXIST);
	memset(longest, 'n', sizeof(longest));
	longest[STORE_NAME_MAX + 1] = 0;
	assert_not_made(&l, longest, S_IFREG | 0644, -ENAMETOOLONG);
	longest[STORE_NAME_MAX] = 0;
	live_write(&l, longest, "y", 1);
	assert_file(&l, longest, "y", 1);
	live_reopen(&l);
	assert_file(&l, longest, "y", 1);
	live_free(&l);
}

static int refuse_to_prepare(void *arg, struct inode *in,
			     const struct names_new *n)
{
	(void)arg;
	(void)in;
	(void)n;
	return -EDQUOT;
}

static void a_file_that_cannot_be_prepared_is_not_there(void **state)
{
	const struct names_hooks hooks = { .prepare = refuse_to_prepare };
	struct names_new n = { .mode = S_IFREG | 0644 };
	struct live l = live_new(NULL);
	struct names *nm;
	struct inode *in = NULL;

	(void)state;
	assert_int_equal(names_new(l.st->kv, l.st->inodes, &hooks, &nm), 0);
	assert_int_equal(names_create(nm, ROOT_INO, "f", &n, &in), -EDQUOT);
	names_free(nm);
	assert_null(in);
	assert_absent(&l, "f");
	assert_int_equal(live_counter(&l, META_FILES), 0);
	live_free(&l);
}

static void removing_fails_as_posix_says(void **state)
{
	struct live l = live_new(NULL);

	(void)state;
	live_mkdir(&l, "d");
	live_write(&l, "d/f", "x", 1);
	assert_int_equal(live_unlink(&l, "no"), -ENOENT);
	assert_int_equal(live_unlink(&l, "d"), -EISDIR);
	assert_int_equal(live_rmdir(&l, "no"), -ENOENT);
	assert_int_equal(live_rmdir(&l, "d/f"), -ENOTDIR);
	assert_int_equal(live_rmdir(&l, "d"), -ENOTEMPTY);
	assert_int_equal(live_unlink(&l, "d/f"), 0);
	assert_int_equal(live_rmdir(&l, "d"), 0);
	assert_absent(&l, "d");
	live_free(&l);
}

static void a_removed_directory_takes_no_new_names(void **state)
{
	struct names_new n = { .mode = S_IFREG | 0644 };
	struct live l = live_new(NULL);
	struct inode *dir = NULL, *in = NULL;

	(void)state;
	live_mkdir(&l, "d");
	live_write(&l, "f", "x", 1);
	assert_int_equal(live_lookup(&l, "d", &dir), 0);
	assert_int_equal(live_rmdir(&l, "d"), 0);
	assert_int_equal(names_create(l.st->names, dir->ino, "g", &n, &in),
			 -ENOENT);
	assert_int_equal(live_lookup(&l, "f", &in), 0);
	assert_int_equal(names_link(l.st->names, in, dir->ino, "g"), -ENOENT);
	inode_put(l.st->inodes, in, 1);
	inode_put(l.st->inodes, dir, 1);
	live_free(&l);
}

static void renaming_fails_as_posix_says(void **state)
{
	struct live l = live_new(NULL);

	(void)state;
	live_mkdir(&l, "d");
	live_mkdir(&l, "e");
	live_mkdir(&l, "full");
	live_write(&l, "full/f", "x", 1);
	live_write(&l, "f", "f", 1);
	live_write(&l, "g", "g", 1);
	assert_int_equal(live_rename(&l, "no", "f", 0), -ENOENT);
	assert_int_equal(live_rename(&l, "f", "g", RENAME_NOREPLACE), -EEXIST);
	assert_int_equal(live_rename(&l, "f", "no", RENAME_EXCHANGE), -ENOENT);
	assert_int_equal(live_rename(&l, "d", "f", 0), -ENOTDIR);
	assert_int_equal(live_rename(&l, "f", "d", 0), -EISDIR);
	assert_int_equal(live_rename(&l, "d", "full", 0), -ENOTEMPTY);
	assert_file(&l, "f", "f", 1);
	assert_file(&l, "g", "g", 1);
	assert_int_equal(live_rename(&l, "d", "e", 0), 0);
	assert_absent(&l, "d");
	assert_int_equal(live_rename(&l, "f", "new", RENAME_NOREPLACE), 0);
	assert_absent(&l, "f");
	assert_file(&l, "new", "f", 1);
	live_free(&l);
}

static void a_rename_replaces_and_what_was_there_is_gone(void **state)
{
	uint8_t *old = filled(DATA_BYTES, 1), *new = filled(DATA_BYTES, 2);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		struct handle reader;

		live_write(&l, "f", old, DATA_BYTES);
		live_sync_all(&l);
		live_write(&l, "f.tmp", new, DATA_BYTES);
		live_sync_all(&l);
		assert_int_equal(live_counter(&l, META_FILES), 2);
		reader = handle_open(&l, "f", O_RDONLY);
		assert_int_equal(live_rename(&l, "f.tmp", "f", 0), 0);
		assert_absent(&l, "f.tmp");
		assert_file(&l, "f", new, DATA_BYTES);
		assert_int_equal(live_counter(&l, META_FILES), 1);
		/* Who has the old one open keeps it. */
		assert_handle_bytes(&reader, old, DATA_BYTES);
		assert_int_equal(live_counter(&l, META_PHYSICAL),
				 2 * DATA_BYTES);
		handle_close(&reader);
		live_settle(&l);
		assert_int_equal(live_counter(&l, META_PHYSICAL), DATA_BYTES);
		live_reopen(&l);
		assert_file(&l, "f", new, DATA_BYTES);
		live_free(&l);
	}
	free(old);
	free(new);
}

static void two_names_are_exchanged_at_once(void **state)
{
	struct live l = live_new(NULL);

	(void)state;
	live_mkdir(&l, "a");
	live_mkdir(&l, "a/sub");
	live_mkdir(&l, "b");
	live_write(&l, "b/f", "f", 1);
	assert_int_equal(live_rename(&l, "a/sub", "b/f", RENAME_EXCHANGE), 0);
	assert_file(&l, "a/sub", "f", 1);
	assert_int_equal(links_of(&l, "a"), 2);
	assert_int_equal(links_of(&l, "b"), 3);
	live_reopen(&l);
	assert_file(&l, "a/sub", "f", 1);
	assert_int_equal(links_of(&l, "b/f"), 2);
	live_free(&l);
}

static void
a_rename_onto_another_name_of_the_same_file_does_nothing(void **state)
{
	struct live l = live_new(NULL);

	(void)state;
	live_write(&l, "a", "x", 1);
	assert_int_equal(live_link(&l, "a", "b"), 0);
	assert_int_equal(live_rename(&l, "a", "b", 0), 0);
	assert_file(&l, "a", "x", 1);
	assert_file(&l, "b", "x", 1);
	assert_int_equal(links_of(&l, "a"), 2);
	live_free(&l);
}

static void a_directory_counts_its_subdirectories(void **state)
{
	struct live l = live_new(NULL);
	char why[512];

	(void)state;
	live_mkdir(&l, "d");
	assert_int_equal(links_of(&l, "d"), 2);
	live_mkdir(&l, "d/a");
	live_mkdir(&l, "d/b");
	live_mkdir(&l, "e");
	assert_int_equal(links_of(&l, "d"), 4);
	assert_int_equal(live_rename(&l, "d/a", "d/c", 0), 0);
	assert_int_equal(links_of(&l, "d"), 4);
	assert_int_equal(live_rename(&l, "d/b", "e/b", 0), 0);
	assert_int_equal(links_of(&l, "d"), 3);
	assert_int_equal(links_of(&l, "e"), 3);
	assert_int_equal(live_rename(&l, "d/c", "e/b", 0), 0); /* replaces */
	assert_int_equal(links_of(&l, "d"), 2);
	assert_int_equal(links_of(&l, "e"), 3);
	assert_int_equal(live_rmdir(&l, "e/b"), 0);
	assert_int_equal(links_of(&l, "e"), 2);
	live_close(&l);
	assert_int_equal(live_try_open(&l, why), 0);
	assert_int_equal(store_start(l.st), 0);
	assert_int_equal(links_of(&l, "d"), 2);
	live_free(&l);
}

static void a_file_lives_as_long_as_one_of_its_names(void **state)
{
	struct live l = live_new(NULL);
	uint8_t *data = filled(DATA_BYTES, 1);
	struct inode *in = NULL;
	char path[64];

	(void)state;
	live_mkdir(&l, "d");
	live_write(&l, "f", data, DATA_BYTES);
	assert_int_equal(live_link(&l, "f", "d/second"), 0);
	assert_int_equal(live_link(&l, "f", "third"), 0);
	assert_int_equal(live_link(&l, "f", "third"), -EEXIST);
	assert_int_equal(links_of(&l, "f"), 3);
	assert_int_equal(live_counter(&l, META_FILES), 1);
	live_sync_all(&l);
	assert_int_equal(live_unlink(&l, "f"), 0); /* the first name */
	live_reopen(&l);
	assert_int_equal(links_of(&l, "third"), 2);
	assert_int_equal(live_lookup(&l, "third", &in), 0);
	inode_path(l.st->inodes, in, path, sizeof(path));
	assert_true(strcmp(path, "/third") == 0 ||
		    strcmp(path, "/d/second") == 0);
	inode_put(l.st->inodes, in, 1);
	assert_int_equal(live_rename(&l, "third", "d/fourth", 0), 0);
	assert_file(&l, "d/second", data, DATA_BYTES);
	assert_file(&l, "d/fourth", data, DATA_BYTES);
	assert_int_equal(live_unlink(&l, "d/fourth"), 0);
	live_settle(&l);
	assert_int_equal(live_counter(&l, META_PHYSICAL), DATA_BYTES);
	assert_file(&l, "d/second", data, DATA_BYTES);
	assert_int_equal(live_unlink(&l, "d/second"), 0);
	live_settle(&l);
	assert_int_equal(live_counter(&l, META_PHYSICAL), 0);
	assert_int_equal(live_counter(&l, META_FILES), 0);
	live_free(&l);
	free(data);
}

static void a_file_without_a_name_takes_no_new_one(void **state)
{
	struct live l = live_new(NULL);
	struct handle h = handle_open(&l, "f", O_RDWR | O_CREAT);

	(void)state;
	assert_int_equal(live_unlink(&l, "f"), 0);
	assert_int_equal(names_link(l.st->names, h.in, ROOT_INO, "g"), -ENOENT);
	handle_close(&h);
	live_free(&l);
}

static void an_unlinked_file_lives_while_it_is_open(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		for (int durable = 0; durable < 2; durable++) {
			struct live l = live_kind(kind);
			struct handle h;

			h = handle_open(&l, "f", O_RDWR | O_CREAT);
			handle_write(&h, data, DATA_BYTES, 0);
			if (durable)
				assert_int_equal(file_sync(&l.st->files, h.in),
						 0);
			assert_int_equal(live_unlink(&l, "f"), 0);
			assert_absent(&l, "f");
			assert_handle_bytes(&h, data, DATA_BYTES);
			handle_write(&h, "more", 4, DATA_BYTES);
			assert_int_equal(file_sync(&l.st->files, h.in), 0);
			handle_close(&h);
			live_settle(&l);
			assert_int_equal(live_records(&l, 'A'), 1); /* / */
			assert_int_equal(live_counter(&l, META_PHYSICAL), 0);
			assert_int_equal(live_images(&l).count, 0);
			live_free(&l);
		}
	}
	free(data);
}

static void an_unlinked_file_lives_while_the_kernel_knows_it(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		struct file_opened opened;
		struct inode *in = NULL;
		struct handle h;

		live_write(&l, "f", data, DATA_BYTES);
		live_sync_all(&l);
		assert_int_equal(live_lookup(&l, "f", &in), 0);
		inode_ref(in, 1);
		inode_remember(l.st->inodes, in); /* has one of the two */
		assert_int_equal(live_unlink(&l, "f"), 0);
		live_settle(&l);
		/* It can still be opened, by /proc/self/fd for instance. */
		assert_int_equal(file_open(&l.st->files, in, O_RDONLY, &opened),
				 0);
		h = (struct handle){ .l = &l, .in = in, .fd = -1 };
		if (opened.backing_id > 0)
			h.fd = opened.backing_id;
		assert_handle_bytes(&h, data, DATA_BYTES);
		file_release(&l.st->files, in, O_RDONLY);
		assert_int_equal(live_counter(&l, META_PHYSICAL), DATA_BYTES);
		inode_forget(l.st->inodes, in, 1);
		file_forgotten(&l.st->files, in);
		inode_put(l.st->inodes, in, 2);
		live_settle(&l);
		assert_int_equal(live_counter(&l, META_PHYSICAL), 0);
		live_free(&l);
	}
	free(data);
}

static void a_symbolic_link_keeps_its_target(void **state)
{
	struct names_new n = { .mode = S_IFLNK | 0777, .target = "a/b c" };
	struct live l = live_new(NULL);
	struct inode *in = NULL;
	struct stat sb;

	(void)state;
	assert_int_equal(names_create(l.st->names, ROOT_INO, "s", &n, &in), 0);
	inode_put(l.st->inodes, in, 1);
	live_mkdir(&l, "d");
	assert_int_equal(live_rename(&l, "s", "d/t", 0), 0);
	live_reopen(&l);
	assert_int_equal(live_lookup(&l, "d/t", &in), 0);
	assert_string_equal(in->attr.target, "a/b c");
	assert_int_equal(inode_stat(l.st->inodes, in, &sb), 0);
	assert_int_equal(sb.st_size, 5);
	assert_int_equal(inode_load_file(l.st->inodes, in), -EINVAL);
	inode_put(l.st->inodes, in, 1);
	assert_int_equal(live_unlink(&l, "d/t"), 0);
	live_free(&l);
}

/* --- listing --- */

struct listed {
	char names[64][32];
	unsigned count, max;
	uint64_t cookie; /* of the last one */
};

static int note_name(void *arg, const char *name,
		     const struct dirent_rec *entry, uint64_t cookie)
{
	struct listed *s = arg;

	(void)entry;
	if (s->count == s->max)
		return 7;
	(void)snprintf(s->names[s->count++], 32, "%s", name);
	s->cookie = cookie;
	return 0;
}

static bool was_listed(const struct listed *s, const char *name)
{
	for (unsigned i = 0; i < s->count; i++)
		if (strcmp(s->names[i], name) == 0)
			return true;
	return false;
}

static void
a_listing_goes_on_where_it_stopped_whatever_came_and_went(void **state)
{
	struct listed first = { .max = 10 }, rest = { .max = 64 };
	struct live l = live_new(NULL);
	char name[32];

	(void)state;
	for (unsigned i = 0; i < 30; i++) {
		(void)snprintf(name, sizeof(name), "f%u", i);
		live_write(&l, name, "x", 1);
	}
	assert_int_equal(
		names_list(l.st->names, ROOT_INO, 0, note_name, &first), 7);
	assert_int_equal(first.count, 10);
	/* The one where it stopped goes, and so do others; some come. */
	assert_int_equal(live_unlink(&l, first.names[9]), 0);
	assert_int_equal(live_unlink(&l, first.names[0]), 0);
	for (unsigned i = 0; i < 10; i++) {
		(void)snprintf(name, sizeof(name), "new%u", i);
		live_write(&l, name, "x", 1);
	}
	assert_int_equal(names_list(l.st->names, ROOT_INO, first.cookie,
				    note_name, &rest),
			 0);
	for (unsigned i = 0; i < 30; i++) {
		(void)snprintf(name, sizeof(name), "f%u", i);
		/* Each that stayed is listed, and none twice. */
		assert_true(was_listed(&first, name) !=
			    was_listed(&rest, name));
	}
	live_free(&l);
}

static void an_empty_directory_lists_nothing(void **state)
{
	struct listed s = { .max = 64 };
	struct live l = live_new(NULL);

	(void)state;
	live_mkdir(&l, "d");
	assert_int_equal(
		names_list(l.st->names, live_ino(&l, "d"), 0, note_name, &s),
		0);
	assert_int_equal(s.count, 0);
	live_free(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(creating_fails_as_posix_says),
		cmocka_unit_test(a_file_that_cannot_be_prepared_is_not_there),
		cmocka_unit_test(removing_fails_as_posix_says),
		cmocka_unit_test(a_removed_directory_takes_no_new_names),
		cmocka_unit_test(renaming_fails_as_posix_says),
		cmocka_unit_test(a_rename_replaces_and_what_was_there_is_gone),
		cmocka_unit_test(two_names_are_exchanged_at_once),
		cmocka_unit_test(
			a_rename_onto_another_name_of_the_same_file_does_nothing),
		cmocka_unit_test(a_directory_counts_its_subdirectories),
		cmocka_unit_test(a_file_lives_as_long_as_one_of_its_names),
		cmocka_unit_test(a_file_without_a_name_takes_no_new_one),
		cmocka_unit_test(an_unlinked_file_lives_while_it_is_open),
		cmocka_unit_test(
			an_unlinked_file_lives_while_the_kernel_knows_it),
		cmocka_unit_test(a_symbolic_link_keeps_its_target),
		cmocka_unit_test(
			a_listing_goes_on_where_it_stopped_whatever_came_and_went),
		cmocka_unit_test(an_empty_directory_lists_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
