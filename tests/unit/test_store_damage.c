/*
 * A store whose records, images or bytes were damaged while it was closed
 * refuses them, and nothing else.
 */
#include "tests/unit/live_store.h"

#define DATA_BYTES (2 * MIB + 777)

/* The store is opened again with a record replaced; NULL: removed. */
static void damage(struct live *l, struct key k, const void *value, size_t len)
{
	struct kv_batch *b = kv_batch_new();
	char db[4096];
	struct kv *kv;

	live_close(l);
	(void)snprintf(db, sizeof(db), "%s/" LAYOUT_DB_DIR, l->path);
	assert_int_equal(kv_open(db, false, &kv), 0);
	if (value)
		kv_put(b, k.data, k.len, value, len);
	else
		kv_delete(b, k.data, k.len);
	assert_int_equal(kv_write(kv, b), 0);
	kv_batch_free(b);
	kv_close(kv);
	live_open(l);
}

/* The image of a native file. */
static void image_path(struct live *l, const char *path, char ret[4096])
{
	char name[LAYOUT_IMAGE_NAME_BYTES];
	struct content c = live_content(l, path);

	layout_image_name(c.extents[0].image, name);
	(void)snprintf(ret, 4096, "%s/" LAYOUT_IMAGE_DIR "/%s", l->path, name);
	content_release(&c);
}

static void assert_refused(struct live *l, const char *path)
{
	struct handle h = { 0 };

	assert_int_equal(handle_try(l, path, O_RDONLY, &h), -EIO);
	assert_int_equal(handle_try(l, path, O_RDWR, &h), -EIO);
}

static void a_damaged_content_record_is_refused_at_the_open(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);
	struct live l = live_durable(0, "f", data, DATA_BYTES);
	struct key k = key_ino('F', live_ino(&l, "f"));

	(void)state;
	live_write(&l, "other", data, 100);
	damage(&l, k, "nonsense", 8);
	assert_refused(&l, "f");
	assert_file(&l, "other", data, 100);
	live_close(&l);
	live_remove(&l);
	free(data);
}

static void damaged_attributes_are_refused_at_the_lookup(void **state)
{
	struct live l = live_durable(0, "f", "x", 1);
	struct key k = key_ino('A', live_ino(&l, "f"));
	struct inode *in = NULL;

	(void)state;
	damage(&l, k, "no", 2);
	assert_int_equal(live_lookup(&l, "f", &in), -EIO);
	damage(&l, k, NULL, 0); /* a name that leads nowhere */
	assert_int_equal(live_lookup(&l, "f", &in), -EIO);
	live_close(&l);
	live_remove(&l);
}

static void a_small_file_without_its_bytes_is_refused(void **state)
{
	struct live l = live_durable(0, "f", "0123456789", 10);
	struct key k = key_ino('D', live_ino(&l, "f"));
	struct handle h;
	char got[16];

	(void)state;
	damage(&l, k, "012345678", 9);
	h = handle_open(&l, "f", O_RDONLY);
	assert_int_equal(handle_read(&h, got, sizeof(got), 0), -EIO);
	handle_close(&h);
	damage(&l, k, NULL, 0);
	h = handle_open(&l, "f", O_RDONLY);
	/* Not "no such file": it is there, and damaged. */
	assert_int_equal(handle_read(&h, got, sizeof(got), 0), -EIO);
	handle_close(&h);
	live_close(&l);
	live_remove(&l);
}

static void a_short_or_missing_image_is_refused_at_the_open(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);
	char path[4096];

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_durable(kind, "f", data, DATA_BYTES);

		image_path(&l, "f", path);
		live_close(&l);
		assert_int_equal(truncate(path, DATA_BYTES - 1), 0);
		live_open(&l);
		assert_refused(&l, "f");
		live_close(&l);
		assert_int_equal(unlink(path), 0);
		live_open(&l);
		assert_refused(&l, "f");
		live_close(&l);
		live_remove(&l);
	}
	free(data);
}

static void changed_bytes_are_refused_when_every_open_verifies(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);
	char path[4096];
	int fd;

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_durable(kind, "f", data, DATA_BYTES);

		image_path(&l, "f", path);
		live_close(&l);
		l.options.verify = VERIFY_OPEN;
		live_open(&l);
		assert_file(&l, "f", data, DATA_BYTES);
		live_close(&l);
		fd = open(path, O_WRONLY);
		assert_int_equal(pwrite(fd, "\0", 1, DATA_BYTES - 1), 1);
		close(fd);
		live_open(&l);
		assert_refused(&l, "f");
		live_close(&l);
		live_remove(&l);
	}
	free(data);
}

static void
a_damaged_small_file_is_refused_when_every_open_verifies(void **state)
{
	struct live l = live_durable(0, "f", "0123456789", 10);
	struct key k = key_ino('D', live_ino(&l, "f"));

	(void)state;
	l.options.verify = VERIFY_OPEN;
	damage(&l, k, "0123456780", 10);
	assert_refused(&l, "f");
	live_close(&l);
	live_remove(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			a_damaged_content_record_is_refused_at_the_open),
		cmocka_unit_test(damaged_attributes_are_refused_at_the_lookup),
		cmocka_unit_test(a_small_file_without_its_bytes_is_refused),
		cmocka_unit_test(
			a_short_or_missing_image_is_refused_at_the_open),
		cmocka_unit_test(
			changed_bytes_are_refused_when_every_open_verifies),
		cmocka_unit_test(
			a_damaged_small_file_is_refused_when_every_open_verifies),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
