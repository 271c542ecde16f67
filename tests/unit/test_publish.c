/* Renames that keep what they replace: publish.h, and commit_keep(). */
#include "store/publish.h"

#include "tests/unit/live_store.h"

static void write_filled(struct live *l, const char *name, unsigned fill)
{
	uint8_t *data = filled(MIB, fill);

	live_write(l, name, data, MIB);
	free(data);
}

/* What a power cut would leave of it begins with this file's bytes. */
static uint64_t committed_image(struct live *l, const char *name)
{
	struct content c = live_content(l, name);
	uint64_t image = c.extents[0].image;

	content_release(&c);
	return image;
}

static int rename_by(struct live *l, struct publish_rename *r, const char *from,
		     const char *to)
{
	struct inode *replaced = NULL;
	int rc;

	r->parent = r->new_parent = ROOT_INO;
	r->name = from;
	r->new_name = to;
	rc = publish_name(l->st, r, &replaced);
	if (replaced) {
		file_unlinked(&l->st->files, replaced);
		inode_put(l->st->inodes, replaced, 1);
	}
	return rc;
}

/*
 * Two renames of one file in one moment both mean to keep what they replace:
 * the second one's has no place left, and waits for the bytes.
 */
static void a_file_keeps_what_one_rename_replaces(void **state)
{
	struct live l = live_new(NULL);
	struct publish_rename first = { .keeps = true }, second = first;
	struct inode *none;
	uint64_t one, two;

	(void)state;
	write_filled(&l, "one", 1);
	write_filled(&l, "two", 2);
	live_sync_all(&l);
	one = committed_image(&l, "one");
	two = committed_image(&l, "two");
	live_close(&l);
	l.options.hold_drain = true;
	live_open(&l);
	write_filled(&l, "new", 3);
	assert_int_equal(rename_by(&l, &first, "new", "one"), 0);
	assert_int_equal(committed_image(&l, "one"), one);
	assert_int_equal(names_rename(l.st->names, ROOT_INO, "one", ROOT_INO,
				      "two", 0, true, &none),
			 -EAGAIN);
	assert_int_equal(committed_image(&l, "two"), two);
	assert_int_equal(rename_by(&l, &second, "one", "two"), 0);
	assert_int_not_equal(committed_image(&l, "two"), one);
	assert_int_not_equal(committed_image(&l, "two"), two);
	live_free(&l);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_file_keeps_what_one_rename_replaces),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
