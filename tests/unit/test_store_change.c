/*
 * What becomes of a durable file, and of its readers, when it is opened to be
 * replaced, appended to, changed in its place, truncated or punched.
 */
#include <linux/falloc.h>

#include "tests/unit/live_store.h"

#define DATA_BYTES (2 * MIB + 777)

static void
a_reader_keeps_the_old_content_when_the_file_is_opened_to_be_replaced(
	void **state)
{
	uint8_t *old = filled(DATA_BYTES, 1), *new = filled(DATA_BYTES, 2);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		for (int staged = 0; staged < 2; staged++) {
			struct live l =
				live_durable(kind, "f", old, DATA_BYTES);
			struct handle r, w, no = { 0 };
			struct content c;
			uint64_t ino = live_ino(&l, "f"), fresh, generation;

			l.st->files.empty_in_place_bytes = 0;
			if (staged) { /* the same, from a stage */
				live_write(&l, "f", old, DATA_BYTES);
				live_sync_all(&l);
			}
			generation = live_generation(&l, "f");
			r = handle_open(&l, "f", O_RDONLY);
			assert_int_equal(
				handle_try(&l, "f", O_WRONLY | O_TRUNC, &no),
				-ESTALE);
			fresh = live_ino(&l, "f");
			assert_int_not_equal(fresh, ino);
			c = live_content_ino(&l, fresh);
			assert_int_equal(c.size_bytes, DATA_BYTES);
			content_release(&c);
			w = handle_open(&l, "f", O_WRONLY | O_TRUNC);
			assert_int_equal(live_ino(&l, "f"), fresh);
			handle_write(&w, new, 1000, 0);
			/* Until the new one is durable the old one is. */
			c = live_content_ino(&l, fresh);
			assert_int_equal(c.size_bytes, DATA_BYTES);
			assert_int_equal(c.generation, generation);
			content_release(&c);
			handle_write(&w, new, DATA_BYTES, 0);
			handle_close(&w);
			live_sync_all(&l);
			assert_true(live_generation(&l, "f") > generation);
			assert_handle_bytes(&r, old, DATA_BYTES);
			assert_file(&l, "f", new, DATA_BYTES);
			handle_close(&r);
			live_settle(&l);
			assert_int_equal(live_counter(&l, META_PHYSICAL),
					 DATA_BYTES);
			assert_int_equal(live_counter(&l, META_FILES), 1);
			live_reopen(&l);
			assert_file(&l, "f", new, DATA_BYTES);
			live_free(&l);
		}
	}
	free(old);
	free(new);
}

static void a_file_without_readers_is_replaced_in_its_place(void **state)
{
	uint8_t *old = filled(DATA_BYTES, 1), *new = filled(DATA_BYTES, 2);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_durable(kind, "f", old, DATA_BYTES);
		uint64_t ino = live_ino(&l, "f");
		struct handle w = { 0 };
		struct content c;

		assert_int_equal(handle_try(&l, "f", O_WRONLY | O_TRUNC, &w),
				 0);
		assert_file(&l, "f", new, 0);
		handle_write(&w, new, DATA_BYTES - 1, 0);
		c = live_content(&l, "f");
		assert_int_equal(c.size_bytes, DATA_BYTES);
		content_release(&c);
		handle_close(&w);
		live_sync_all(&l);
		assert_int_equal(live_ino(&l, "f"), ino);
		assert_file(&l, "f", new, DATA_BYTES - 1);
		live_settle(&l);
		assert_int_equal(live_counter(&l, META_PHYSICAL),
				 DATA_BYTES - 1);
		live_free(&l);
	}
	free(old);
	free(new);
}

static void a_second_writer_truncates_what_the_first_one_writes(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		struct handle first = handle_open(&l, "f", O_RDWR | O_CREAT);
		struct handle second = { 0 };

		handle_write(&first, data, DATA_BYTES, 0);
		assert_int_equal(handle_try(&l, "f", O_RDWR | O_TRUNC, &second),
				 0);
		assert_handle_bytes(&first, data, 0);
		handle_write(&second, data, 100, 0);
		handle_close(&first);
		handle_close(&second);
		live_sync_all(&l);
		assert_file(&l, "f", data, 100);
		live_reopen(&l);
		assert_file(&l, "f", data, 100);
		live_free(&l);
	}
	free(data);
}

static void appending_keeps_what_is_there(void **state)
{
	static const size_t lens[] = { 0, 100, SMALL_BYTES_MAX, DATA_BYTES };
	uint8_t *data = filled(DATA_BYTES + 50000, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		for (size_t i = 0; i < sizeof(lens) / sizeof(*lens); i++) {
			struct live l = live_durable(kind, "f", data, lens[i]);
			uint64_t first = live_generation(&l, "f");
			struct handle h;

			h = handle_open(&l, "f", O_WRONLY | O_APPEND);
			handle_write(&h, data + lens[i], 50000, lens[i]);
			handle_close(&h);
			assert_file(&l, "f", data, lens[i] + 50000);
			live_reopen(&l);
			live_settle(&l);
			assert_file(&l, "f", data, lens[i] + 50000);
			assert_true(live_generation(&l, "f") > first);
			assert_true(live_native(&l, "f"));
			assert_int_equal(live_counter(&l, META_PHYSICAL),
					 lens[i] + 50000);
			live_free(&l);
		}
	}
	free(data);
}

static void changing_in_place_changes_nothing_else(void **state)
{
	static const size_t lens[] = { 100, SMALL_BYTES_MAX, DATA_BYTES };
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		for (size_t i = 0; i < sizeof(lens) / sizeof(*lens); i++) {
			struct live l = live_durable(kind, "f", data, lens[i]);
			struct handle h = handle_open(&l, "f", O_RDWR);

			assert_handle_bytes(&h, data, lens[i]);
			data[lens[i] / 2]++;
			handle_write(&h, data + lens[i] / 2, 1, lens[i] / 2);
			assert_handle_bytes(&h, data, lens[i]);
			handle_close(&h);
			live_reopen(&l);
			assert_file(&l, "f", data, lens[i]);
			live_free(&l);
		}
	}
	free(data);
}

static void a_writer_that_changes_nothing_changes_nothing(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_durable(kind, "f", data, DATA_BYTES);
		struct content first = live_content(&l, "f"), again;
		struct handle h = handle_open(&l, "f", O_RDWR);

		handle_close(&h);
		live_sync_all(&l);
		again = live_content(&l, "f");
		assert_int_equal(again.mtime_ns, first.mtime_ns);
		assert_int_equal(again.extent_count, first.extent_count);
		if (first.extent_count > 0)
			assert_memory_equal(again.extents, first.extents,
					    first.extent_count *
						    sizeof(*first.extents));
		content_release(&first);
		content_release(&again);
		assert_file(&l, "f", data, DATA_BYTES);
		live_free(&l);
	}
	free(data);
}

static int truncate_path(struct live *l, const char *path, uint64_t size)
{
	struct inode *in = NULL;
	int rc = live_lookup(l, path, &in);

	if (rc == 0)
		rc = file_truncate_path(&l->st->files, in, size, FILE_BY_NAME);
	inode_put(l->st->inodes, in, 1);
	return rc;
}

struct truncation {
	size_t from, to;
};

static void assert_truncated(struct live *l, const char *name,
			     const struct truncation *t)
{
	uint8_t *data = calloc(1, t->to + 1);

	assert_non_null(data);
	fill(data, t->from < t->to ? t->from : t->to, 1);
	assert_file(l, name, data, t->to);
	free(data);
}

static void a_durable_file_is_truncated_to_any_size(void **state)
{
	static const struct truncation cases[] = {
		{ 100, 0 },
		{ 100, 50 },
		{ 100, 100 },
		{ 100, MIB },
		{ 100, 3 * MIB },
		{ DATA_BYTES, 0 },
		{ DATA_BYTES, 1 },
		{ DATA_BYTES, MIB },
		{ DATA_BYTES, 70000 },
		{ DATA_BYTES, DATA_BYTES },
		{ DATA_BYTES, 3 * MIB },
	};
	size_t n = sizeof(cases) / sizeof(*cases);
	uint8_t *full = filled(DATA_BYTES, 1);
	char name[32];

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);

		for (size_t i = 0; i < n; i++) {
			(void)snprintf(name, sizeof(name), "f%zu", i);
			live_write(&l, name, full, cases[i].from);
		}
		live_reopen(&l);
		for (size_t i = 0; i < n; i++) {
			(void)snprintf(name, sizeof(name), "f%zu", i);
			assert_int_equal(truncate_path(&l, name, cases[i].to),
					 0);
			assert_truncated(&l, name, &cases[i]);
		}
		live_reopen(&l);
		for (size_t i = 0; i < n; i++) {
			(void)snprintf(name, sizeof(name), "f%zu", i);
			assert_truncated(&l, name, &cases[i]);
		}
		live_free(&l);
	}
	free(full);
}

static void a_reader_sees_how_the_file_is_truncated(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);
	struct live l = live_durable(2, "f", data, DATA_BYTES);
	struct handle r = handle_open(&l, "f", O_RDONLY);

	(void)state;
	/* Its image backs the reader in the kernel: a copy is committed now. */
	assert_int_equal(truncate_path(&l, "f", 10), 0);
	assert_handle_bytes(&r, data, 10);
	assert_file(&l, "f", data, 10);
	handle_close(&r);
	live_reopen(&l);
	assert_file(&l, "f", data, 10);
	live_free(&l);
	free(data);
}

static void room_can_be_allocated_and_holes_punched(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_durable(kind, "f", data, DATA_BYTES);
		struct inode *in = NULL;
		struct stat sb;

		assert_int_equal(live_lookup(&l, "f", &in), 0);
		assert_int_equal(file_fallocate(&l.st->files, in,
						FALLOC_FL_PUNCH_HOLE |
							FALLOC_FL_KEEP_SIZE,
						4096, MIB),
				 0);
		assert_int_equal(file_fallocate(&l.st->files, in, 0, 0,
						DATA_BYTES + 5000),
				 0);
		memset(data + 4096, 0, MIB);
		assert_int_equal(inode_stat(l.st->inodes, in, &sb), 0);
		assert_int_equal(sb.st_size, DATA_BYTES + 5000);
		assert_int_equal(file_truncate(&l.st->files, in, DATA_BYTES),
				 0);
		inode_put(l.st->inodes, in, 1);
		live_reopen(&l);
		assert_file(&l, "f", data, DATA_BYTES);
		fill(data, DATA_BYTES, 1);
		live_free(&l);
	}
	free(data);
}

/* It was closed, and so was what truncate(2) made of it: only RELEASE is late.
 */
static void what_was_truncated_before_a_late_release_is_published(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		struct handle h = handle_open(&l, "f", O_CREAT | O_WRONLY);
		uint64_t size;

		handle_write(&h, data, DATA_BYTES, 0);
		assert_int_equal(file_flush(&l.st->files, h.in, O_WRONLY), 0);
		assert_int_equal(drain_sync(l.st->drain, h.in), 0);
		assert_int_equal(truncate_path(&l, "f", MIB), 0);
		assert_int_equal(drain_publish_closed(l.st->drain, h.in), 0);
		{
			HOLD(&h.in->lock);
			assert_non_null(h.in->file->content);
			size = h.in->file->content->c.size_bytes;
		}
		assert_int_equal(size, MIB);
		handle_close(&h);
		live_free(&l);
	}
	free(data);
}

static void data_and_holes_are_found(void **state)
{
	/* Each from where the one before it was. */
	static const struct {
		int whence, rc;
		uint64_t at;
	} finds[] = {
		{ SEEK_DATA, 0, 2 * MIB }, { SEEK_HOLE, 0, 3 * MIB },
		{ SEEK_HOLE, 0, 3 * MIB }, { SEEK_DATA, 0, 5 * MIB },
		{ SEEK_HOLE, 0, 6 * MIB }, { SEEK_DATA, -ENXIO, 0 },
		{ SEEK_HOLE, -ENXIO, 0 },
	};
	uint8_t *data = filled(MIB, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		struct handle h = handle_open(&l, "f", O_WRONLY | O_CREAT);
		struct inode *in = NULL;
		uint64_t at = 0;

		handle_write(&h, data, MIB, 2 * MIB);
		handle_write(&h, data, MIB, 5 * MIB);
		handle_close(&h);
		live_reopen(&l);
		assert_int_equal(live_lookup(&l, "f", &in), 0);
		for (size_t i = 0; i < sizeof(finds) / sizeof(*finds); i++) {
			assert_int_equal(file_seek(&l.st->files, in, at,
						   finds[i].whence, &at),
					 finds[i].rc);
			if (finds[i].rc == 0)
				assert_int_equal(at, finds[i].at);
		}
		inode_put(l.st->inodes, in, 1);
		live_free(&l);
	}
	free(data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			a_reader_keeps_the_old_content_when_the_file_is_opened_to_be_replaced),
		cmocka_unit_test(
			a_file_without_readers_is_replaced_in_its_place),
		cmocka_unit_test(
			a_second_writer_truncates_what_the_first_one_writes),
		cmocka_unit_test(appending_keeps_what_is_there),
		cmocka_unit_test(changing_in_place_changes_nothing_else),
		cmocka_unit_test(a_writer_that_changes_nothing_changes_nothing),
		cmocka_unit_test(a_durable_file_is_truncated_to_any_size),
		cmocka_unit_test(a_reader_sees_how_the_file_is_truncated),
		cmocka_unit_test(room_can_be_allocated_and_holes_punched),
		cmocka_unit_test(
			what_was_truncated_before_a_late_release_is_published),
		cmocka_unit_test(data_and_holes_are_found),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
