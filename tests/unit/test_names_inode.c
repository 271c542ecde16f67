/*
 * What goes with an inode under all its names: attributes, its writer, and all
 * of it when it gets a new number.
 */
#include <sys/xattr.h>

#include "tests/unit/live_store.h"

#define DATA_BYTES 100000u

static void assert_xattr(struct live *l, uint64_t ino, const char *name,
			 const char *expected)
{
	void *value = NULL;
	size_t len = 0;

	assert_int_equal(names_getxattr(l->st->names, ino, name, &value, &len),
			 0);
	assert_int_equal(len, strlen(expected));
	assert_memory_equal(value, expected, len);
	free(value);
}

static void xattrs_fail_as_posix_says(void **state)
{
	struct live l = live_new(NULL);
	char longest[STORE_NAME_MAX + 2];
	struct inode *in = NULL;
	struct bytes list = { 0 };
	uint8_t *big;
	void *value = NULL;
	size_t len;

	(void)state;
	big = filled(XATTR_VALUE_MAX + 1, 1);
	live_write(&l, "f", "x", 1);
	assert_int_equal(live_lookup(&l, "f", &in), 0);
	memset(longest, 'n', sizeof(longest));
	longest[STORE_NAME_MAX + 1] = 0;
	assert_int_equal(
		names_getxattr(l.st->names, in->ino, "user.a", &value, &len),
		-ENODATA);
	assert_int_equal(names_removexattr(l.st->names, in, "user.a"),
			 -ENODATA);
	assert_int_equal(names_setxattr(l.st->names, in, "user.a", "1", 1,
					XATTR_REPLACE),
			 -ENODATA);
	assert_int_equal(
		names_setxattr(l.st->names, in, "user.a", "1", 1, XATTR_CREATE),
		0);
	assert_int_equal(
		names_setxattr(l.st->names, in, "user.a", "2", 1, XATTR_CREATE),
		-EEXIST);
	assert_xattr(&l, in->ino, "user.a", "1");
	assert_int_equal(names_setxattr(l.st->names, in, longest, "1", 1, 0),
			 -ERANGE);
	assert_int_equal(names_setxattr(l.st->names, in, "user.big", big,
					XATTR_VALUE_MAX + 1, 0),
			 -E2BIG);
	assert_int_equal(names_setxattr(l.st->names, in, "user.big", big,
					XATTR_VALUE_MAX, 0),
			 0);
	assert_int_equal(
		names_setxattr(l.st->names, in, "user.empty", "", 0, 0), 0);
	assert_xattr(&l, in->ino, "user.empty", "");
	assert_int_equal(names_removexattr(l.st->names, in, "user.big"), 0);
	assert_int_equal(names_listxattr(l.st->names, in->ino, &list), 0);
	assert_int_equal(list.len, sizeof("user.a") + sizeof("user.empty"));
	assert_memory_equal(list.data, "user.a\0user.empty", list.len);
	bytes_release(&list);
	inode_put(l.st->inodes, in, 1);
	assert_int_equal(live_unlink(&l, "f"), 0);
	live_settle(&l);
	assert_int_equal(live_records(&l, 'X'), 0);
	live_free(&l);
	free(big);
}

static void a_time_set_by_hand_is_kept_until_the_content_changes(void **state)
{
	struct attr to = { .mtime_ns = INT64_C(1000000000) * 12345 };
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	/* Closed, and durable already. */
	for (unsigned kind = 0; kind < 2 * LIVE_KINDS; kind++) {
		struct live l = live_kind_held(kind % LIVE_KINDS);
		struct inode *in = NULL;
		struct stat sb;

		live_write(&l, "f", data, DATA_BYTES);
		if (kind >= LIVE_KINDS)
			live_sync_all(&l);
		assert_int_equal(live_lookup(&l, "f", &in), 0);
		assert_int_equal(inode_load_file(l.st->inodes, in), 0);
		assert_int_equal(names_setattr(l.st->names, in, SET_MTIME, &to),
				 0);
		file_set_times(&l.st->files, in, SET_MTIME, &to);
		live_sync_all(&l);
		inode_put(l.st->inodes, in, 1);
		live_reopen(&l);
		assert_int_equal(live_lookup(&l, "f", &in), 0);
		assert_int_equal(inode_stat(l.st->inodes, in, &sb), 0);
		assert_int_equal(sb.st_mtim.tv_sec, 12345);
		inode_put(l.st->inodes, in, 1);
		live_write(&l, "f", data + 1, DATA_BYTES - 1);
		live_reopen(&l);
		assert_int_equal(live_lookup(&l, "f", &in), 0);
		assert_int_equal(inode_stat(l.st->inodes, in, &sb), 0);
		assert_true(sb.st_mtim.tv_sec > 12345);
		inode_put(l.st->inodes, in, 1);
		live_free(&l);
	}
	free(data);
}

static void assert_writer(struct live *l, uint64_t ino, const struct writer *w)
{
	struct writer got;

	assert_int_equal(names_get_writer(l->st->names, ino, &got), 0);
	assert_true(writer_equal(&got, w));
}

static void assert_renumbered(struct live *l, const uint8_t *data, size_t len)
{
	const struct writer w = { .source = WRITER_NAME, .rank = 3 };
	const struct writer nobody = { .source = WRITER_NOWHERE };
	struct inode *in = NULL, *fresh = NULL;
	uint64_t ino;

	live_mkdir(l, "d");
	live_write(l, "f", data, len);
	assert_int_equal(live_link(l, "f", "d/second"), 0);
	assert_int_equal(live_link(l, "f", "third"), 0);
	assert_int_equal(live_lookup(l, "f", &in), 0);
	assert_int_equal(
		names_setxattr(l->st->names, in, "user.who", "me", 2, 0), 0);
	assert_int_equal(names_set_writer(l->st->names, in, &w), 0);
	live_sync_all(l);
	ino = in->ino;
	assert_int_equal(names_renumber(l->st->names, in), 0);
	assert_int_equal(live_lookup(l, "f", &fresh), 0);
	assert_int_not_equal(fresh->ino, ino);
	assert_int_equal(live_ino(l, "d/second"), fresh->ino);
	assert_int_equal(live_ino(l, "third"), fresh->ino);
	assert_int_equal(links_of(l, "f"), 3);
	assert_xattr(l, fresh->ino, "user.who", "me");
	assert_writer(l, fresh->ino, &w);
	assert_writer(l, in->ino, &w); /* for those who have it open */
	/* It has no name: nothing is written that nobody would delete. */
	assert_int_equal(names_set_writer(l->st->names, in, &nobody), 0);
	assert_writer(l, in->ino, &w);
	assert_file(l, "third", data, len);
	assert_int_equal(live_counter(l, META_FILES), 1);
	/* It has no name any more: once is enough. */
	assert_int_equal(names_renumber(l->st->names, in), -ENOENT);
	inode_put(l->st->inodes, fresh, 1);
	file_unlinked(&l->st->files, in);
	inode_put(l->st->inodes, in, 1);
	live_settle(l);
	assert_false(live_has(l, key_ino('A', ino)));
	assert_false(live_has(l, key_ino('W', ino)));
	assert_int_equal(live_counter(l, META_PHYSICAL), len);
	assert_int_equal(live_counter(l, META_LOGICAL), len);
	live_reopen(l);
	assert_file(l, "d/second", data, len);
	assert_int_equal(links_of(l, "f"), 3);
	assert_int_equal(live_unlink(l, "f"), 0);
	assert_file(l, "third", data, len);
}

static void a_new_number_keeps_names_xattrs_links_and_content(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);

		assert_renumbered(&l, data, DATA_BYTES);
		live_free(&l);
		l = live_kind(kind);
		assert_renumbered(&l, data, 1000); /* in the database */
		live_free(&l);
	}
	free(data);
}

/* Or a power cut would leave the content of a file that never was. */
static void who_syncs_everything_waits_for_no_name(void **state)
{
	const struct names_new n = { .mode = S_IFREG | 0644 };

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		struct inode *in = NULL;

		/* As if its batch were not written yet. */
		assert_int_equal(
			names_create(l.st->names, ROOT_INO, "f", &n, &in), 0);
		assert_int_equal(drain_sync_tree(l.st->drain, ROOT_INO), 0);
		assert_false(live_has(&l, key_ino('F', in->ino)));
		file_created(in);
		assert_int_equal(drain_sync_tree(l.st->drain, ROOT_INO), 0);
		assert_true(live_has(&l, key_ino('F', in->ino)));
		inode_put(l.st->inodes, in, 1);
		live_free(&l);
	}
}

static void a_writer_is_made_with_the_file_changed_and_deleted(void **state)
{
	const struct writer a = { .source = WRITER_ENVIRONMENT,
				  .rank = 1,
				  .world_size = 2,
				  .host = "node",
				  .job = "job" };
	const struct writer b = { .source = WRITER_NOWHERE, .host = "node" };
	const struct writer nobody = { .source = WRITER_NOWHERE };
	struct names_new n = { .mode = S_IFREG | 0644, .writer = &a };
	struct live l = live_new(NULL);
	struct inode *in = NULL;
	struct writer got;
	uint64_t ino;

	(void)state;
	assert_int_equal(names_create(l.st->names, ROOT_INO, "f", &n, &in), 0);
	ino = in->ino;
	assert_writer(&l, ino, &a);
	assert_int_equal(names_set_writer(l.st->names, in, &b), 0);
	assert_writer(&l, ino, &b);
	assert_int_equal(names_set_writer(l.st->names, in, &nobody), 0);
	assert_int_equal(names_get_writer(l.st->names, ino, &got), -ENODATA);
	assert_int_equal(live_records(&l, 'W'), 0);
	assert_int_equal(names_set_writer(l.st->names, in, &a), 0);
	inode_put(l.st->inodes, in, 1);
	live_reopen(&l); /* never committed: it goes, and that with it */
	assert_int_equal(live_records(&l, 'W'), live_records(&l, 'A') - 1);
	n.writer = NULL;
	assert_int_equal(names_create(l.st->names, ROOT_INO, "g", &n, &in), 0);
	assert_int_equal(names_get_writer(l.st->names, in->ino, &got),
			 -ENODATA);
	inode_put(l.st->inodes, in, 1);
	live_free(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(xattrs_fail_as_posix_says),
		cmocka_unit_test(
			a_time_set_by_hand_is_kept_until_the_content_changes),
		cmocka_unit_test(
			a_new_number_keeps_names_xattrs_links_and_content),
		cmocka_unit_test(who_syncs_everything_waits_for_no_name),
		cmocka_unit_test(
			a_writer_is_made_with_the_file_changed_and_deleted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
