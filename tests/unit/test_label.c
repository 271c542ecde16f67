/* What an image says about itself, and that the drain has it say so. */
#include "store/db/label.h"
#include "store/drain/drain_private.h"
#include "tests/unit/live_store.h"

#define EXTENTS 1000

static struct label some_label(struct extent *extents, size_t count)
{
	struct label l = { .uuid = "01234567-89ab-4def-8123-456789abcdef",
			   .image = 0x1234,
			   .ino = 77,
			   .generation = 3,
			   .size_bytes = INT64_MAX,
			   .mtime_ns = -5,
			   .mode = 0100640,
			   .uid = 1000,
			   .gid = 100,
			   .domain = 42,
			   .by_content = true,
			   .digest = "fifteen letters",
			   .extent_count = count,
			   .listed = count,
			   .extents = extents,
			   .path = "/a/b" };

	for (size_t i = 0; i < count; i++)
		extents[i] = (struct extent){ .offset = i * 5000000,
					      .len = 4000000 + i,
					      .image = i % 3 ? 0x1234 : i,
					      .image_offset = i * 777 };
	return l;
}

static void a_label_comes_back_as_it_was(void **state)
{
	struct extent extents[20];
	struct bytes text = { 0 };
	struct label l = some_label(extents, 20), got;

	(void)state;
	label_encode(&l, &text);
	assert_int_equal(label_decode(text.data, text.len, &got), 0);
	assert_int_equal(got.listed, 20);
	assert_memory_equal(got.extents, extents, sizeof(extents));
	label_release(&got);
	got.extents = l.extents;
	assert_memory_equal(&got, &l, offsetof(struct label, path));
	assert_string_equal(got.path, l.path);
	bytes_release(&text);
}

static void a_list_that_is_too_long_ends_early_and_says_so(void **state)
{
	static struct extent extents[EXTENTS];
	struct bytes text = { 0 };
	struct label l = some_label(extents, EXTENTS), got;

	(void)state;
	memset(l.path, 'x', LABEL_PATH_MAX);
	label_encode(&l, &text);
	assert_true(text.len <= LABEL_BYTES_MAX);
	assert_int_equal(label_decode(text.data, text.len, &got), 0);
	assert_int_equal(got.extent_count, EXTENTS);
	assert_in_range(got.listed, 50, EXTENTS - 1);
	assert_memory_equal(got.extents, extents,
			    got.listed * sizeof(*extents));
	label_release(&got);
	bytes_release(&text);
}

static void a_label_of_which_a_bit_differs_is_none(void **state)
{
	struct extent extents[5];
	struct bytes text = { 0 };
	struct label l = some_label(extents, 5), got;

	(void)state;
	label_encode(&l, &text);
	for (size_t i = 0; i < text.len; i++) {
		text.data[i] ^= 4;
		assert_int_equal(label_decode(text.data, text.len, &got), -EIO);
		text.data[i] ^= 4;
		assert_int_equal(label_decode(text.data, i, &got), -EIO);
	}
	bytes_release(&text);
}

static bool get_label(struct live *l, uint64_t image, struct label *ret)
{
	struct image *i = NULL;
	int fd, rc;

	assert_int_equal(image_get(&l->st->images, image, &i), 0);
	fd = image_open_fd(&l->st->images, i, O_RDONLY);
	assert_true(fd >= 0);
	rc = label_get(fd, ret);
	close(fd);
	image_put(&l->st->images, i);
	if (rc == -ENODATA && atomic_load(&l->st->drain->label_failed))
		return false; /* a file system without attributes */
	assert_int_equal(rc, 0);
	return true;
}

/* The image of its last extent is its own, or that of its first. */
static void assert_labelled(struct live *l, const char *name, bool last)
{
	struct content c = live_content(l, name);
	uint64_t image = c.extents[last ? c.extent_count - 1 : 0].image;
	struct label got;

	if (get_label(l, image, &got)) {
		assert_string_equal(got.uuid, l->st->uuid);
		assert_int_equal(got.image, image);
		assert_int_equal(got.ino, live_ino(l, name));
		assert_int_equal(got.generation, c.generation);
		assert_int_equal(got.size_bytes, c.size_bytes);
		assert_true(got.mtime_ns == c.mtime_ns);
		assert_memory_equal(got.digest, c.digest, sizeof(c.digest));
		assert_int_equal(got.identity, c.native);
		assert_string_equal(got.path + 1, name);
		assert_true(S_ISREG(got.mode));
		if (!got.identity) {
			assert_int_equal(got.listed, c.extent_count);
			assert_memory_equal(got.extents, c.extents,
					    c.extent_count *
						    sizeof(*c.extents));
		}
		label_release(&got);
	}
	content_release(&c);
}

static void each_image_says_what_was_committed_with_it(void **state)
{
	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		uint8_t *data = filled(8 * MIB, 1);

		live_write(&l, "whole", data, 6 * MIB);
		live_sync_all(&l);
		assert_labelled(&l, "whole", false);
		/* The first half is shared; it is the second that it has. */
		fill(data + 3 * MIB, 5 * MIB, 2);
		live_write(&l, "half", data, 8 * MIB);
		live_sync_all(&l);
		assert_labelled(&l, "half", true);
		data[0] ^= 1;
		live_write(&l, "whole", data, 7 * MIB);
		live_sync_all(&l);
		assert_labelled(&l, "whole", false);
		live_free(&l);
		free(data);
	}
}

/* Chunks that another file's drain decides about: said when it has. */
static void what_is_shared_with_a_file_on_its_way_is_labelled(void **state)
{
	struct live l = live_new(NULL);
	uint8_t *data = filled(16 * MIB, 5);
	char name[16];

	(void)state;
	for (unsigned i = 0; i < 6; i++) {
		fill(data + 10 * MIB, 6 * MIB, 100 + i);
		(void)snprintf(name, sizeof(name), "rank%u", i);
		live_write(&l, name, data, 16 * MIB);
	}
	live_sync_all(&l);
	for (unsigned i = 0; i < 6; i++) {
		(void)snprintf(name, sizeof(name), "rank%u", i);
		assert_labelled(&l, name, true);
	}
	live_free(&l);
	free(data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_label_comes_back_as_it_was),
		cmocka_unit_test(a_list_that_is_too_long_ends_early_and_says_so),
		cmocka_unit_test(a_label_of_which_a_bit_differs_is_none),
		cmocka_unit_test(each_image_says_what_was_committed_with_it),
		cmocka_unit_test(
			what_is_shared_with_a_file_on_its_way_is_labelled),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
