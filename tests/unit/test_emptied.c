/*
 * What O_TRUNC does to a file that somebody reads: a file up to
 * empty_in_place_bytes is emptied under him, and what was durable stays so
 * until the new content is; a larger one gives its name another inode, when it
 * was opened by the name. What fails has changed nothing.
 */
#include <sys/mman.h>

#include "tests/unit/live_store.h"

#define DATA_BYTES (2 * MIB + 777)
#define EMPTY (O_WRONLY | O_TRUNC)

/* The file is as it was, with its committed content. */
static void assert_untouched(struct live *l, uint64_t ino, uint64_t generation,
			     const uint8_t *data)
{
	assert_int_equal(live_ino(l, "f"), ino);
	assert_int_equal(live_generation(l, "f"), generation);
	assert_file(l, "f", data, DATA_BYTES);
}

static int open_with(struct live *l, struct inode *in, int flags,
		     enum file_way way)
{
	struct file_opened opened;
	const struct file_opener by = { .way = way };
	int rc = file_open_for(&l->st->files, in, flags, &by, &opened);

	if (rc == 0)
		file_release(&l->st->files, in, flags & O_ACCMODE);
	return rc;
}

static int open_by(struct live *l, struct inode *in, enum file_way way)
{
	return open_with(l, in, EMPTY, way);
}

static void a_log_is_emptied_under_its_readers(void **state)
{
	uint8_t *old = filled(DATA_BYTES, 1), *new = filled(DATA_BYTES, 2);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		for (int staged = 0; staged < 2; staged++) {
			struct live l =
				live_durable(kind, "f", old, DATA_BYTES);
			uint64_t ino = live_ino(&l, "f"), generation;
			struct handle r, w;
			struct content c;

			if (staged) { /* the same, from a stage */
				live_write(&l, "f", old, DATA_BYTES);
				live_sync_all(&l);
			}
			generation = live_generation(&l, "f");
			r = handle_open(&l, "f", O_RDONLY);
			w = handle_open(&l, "f", EMPTY);
			assert_int_equal(live_ino(&l, "f"), ino);
			assert_handle_bytes(&r, old, 0);
			handle_write(&w, new, 1000, 0);
			assert_handle_bytes(&r, new, 1000);
			/* Until the new one is durable the old one is. */
			c = live_content_ino(&l, ino);
			assert_int_equal(c.size_bytes, DATA_BYTES);
			assert_int_equal(c.generation, generation);
			content_release(&c);
			live_check(&l);
			handle_write(&w, new + 1000, DATA_BYTES - 1000, 1000);
			handle_close(&w);
			live_sync_all(&l);
			assert_handle_bytes(&r, new, DATA_BYTES);
			assert_file(&l, "f", new, DATA_BYTES);
			handle_close(&r);
			live_settle(&l);
			assert_int_equal(live_counter(&l, META_PHYSICAL),
					 DATA_BYTES);
			live_reopen(&l);
			assert_file(&l, "f", new, DATA_BYTES);
			live_free(&l);
		}
	}
	free(old);
	free(new);
}

static void what_came_by_no_name_changes_no_name(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_durable(kind, "f", data, DATA_BYTES);
		uint64_t ino = live_ino(&l, "f");
		uint64_t generation = live_generation(&l, "f");
		struct handle r = handle_open(&l, "f", O_RDONLY);

		l.st->files.empty_in_place_bytes = 0;
		assert_int_equal(open_by(&l, r.in, FILE_BY_ANY), -ESTALE);
		assert_untouched(&l, ino, generation, data);
		/* He came again without a look-up. */
		assert_int_equal(open_by(&l, r.in, FILE_BY_HANDLE), 0);
		assert_int_equal(live_ino(&l, "f"), ino);
		assert_handle_bytes(&r, data, 0);
		handle_close(&r);
		live_reopen(&l);
		assert_int_equal(live_ino(&l, "f"), ino);
		assert_file(&l, "f", data, 0);
		live_free(&l);
	}
	free(data);
}

static void the_name_moves_when_it_is_looked_up(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_durable(kind, "f", data, DATA_BYTES);
		uint64_t ino = live_ino(&l, "f");
		struct handle r = handle_open(&l, "f", O_RDONLY);
		struct inode *fresh;

		l.st->files.empty_in_place_bytes = 0;
		assert_int_equal(open_by(&l, r.in, FILE_BY_ANY), -ESTALE);
		assert_int_equal(file_renumber(&l.st->files, r.in, true), 0);
		assert_int_equal(live_lookup(&l, "f", &fresh), 0);
		assert_int_not_equal(fresh->ino, ino);
		assert_file(&l, "f", data, DATA_BYTES);
		assert_int_equal(open_by(&l, fresh, FILE_BY_ANY), 0);
		assert_handle_bytes(&r, data, DATA_BYTES);
		assert_file(&l, "f", data, 0);
		/* It has no name any more that could be looked up. */
		assert_int_equal(open_by(&l, r.in, FILE_BY_HANDLE), -ESTALE);
		inode_put(l.st->inodes, fresh, 1);
		handle_close(&r);
		live_free(&l);
	}
	free(data);
}

/* Whoever was told so comes again when the readers have gone. */
static void a_look_up_moves_no_name_when_nobody_reads(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_durable(kind, "f", data, DATA_BYTES);
		uint64_t ino = live_ino(&l, "f");
		uint64_t generation = live_generation(&l, "f");
		struct inode *in;

		l.st->files.empty_in_place_bytes = 0;
		assert_int_equal(live_lookup(&l, "f", &in), 0);
		assert_int_equal(file_renumber(&l.st->files, in, true), 0);
		assert_untouched(&l, ino, generation, data);
		assert_int_equal(open_by(&l, in, FILE_BY_ANY), 0);
		assert_int_equal(live_ino(&l, "f"), ino);
		inode_put(l.st->inodes, in, 1);
		live_free(&l);
	}
	free(data);
}

struct told {
	unsigned count;
	uint64_t parent;
	char names[64];
};

static void tell(void *arg, uint64_t parent, const char *name)
{
	struct told *t = arg;

	t->count++;
	t->parent = parent;
	strcat(strcat(t->names, name), " ");
}

/* The kernel is told of them afterwards, when no folder is locked. */
static void all_names_of_a_file_move_together(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_durable(kind, "f", data, DATA_BYTES);
		uint64_t ino = live_ino(&l, "f");
		struct told told = { 0 };
		struct handle r;

		l.st->files.empty_in_place_bytes = 0;
		l.st->files.kernel.arg = &told;
		l.st->files.kernel.on_renamed = tell;
		assert_int_equal(live_link(&l, "f", "other"), 0);
		r = handle_open(&l, "f", O_RDONLY);
		assert_int_equal(open_by(&l, r.in, FILE_BY_ANY), -ESTALE);
		assert_int_equal(live_ino(&l, "f"), ino);
		assert_int_equal(file_renumber(&l.st->files, r.in, true), 0);
		assert_int_not_equal(live_ino(&l, "f"), ino);
		assert_int_equal(live_ino(&l, "f"), live_ino(&l, "other"));
		assert_int_equal(told.count, 0);
		/* By a name that the kernel still has; and by no name. */
		assert_int_equal(open_with(&l, r.in, O_RDONLY, FILE_BY_ANY),
				 -ESTALE);
		assert_int_equal(open_with(&l, r.in, O_RDONLY, FILE_BY_HANDLE),
				 0);
		names_tell_moved(l.st->names);
		names_tell_moved(l.st->names);
		assert_int_equal(told.count, 2);
		assert_non_null(strstr(told.names, "f "));
		assert_non_null(strstr(told.names, "other "));
		assert_int_equal(told.parent, ROOT_INO);
		handle_close(&r);
		l.st->files.kernel.on_renamed = NULL;
		live_free(&l);
	}
	free(data);
}

/* A look-up copies no image: its folder is locked meanwhile. */
static void a_look_up_leaves_what_can_be_changed_in_place(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);
	struct live l = live_durable(2, "f", data, DATA_BYTES);
	uint64_t ino = live_ino(&l, "f"), generation;
	struct handle r;

	(void)state;
	live_reopen(&l);
	generation = live_generation(&l, "f");
	r = handle_open(&l, "f", O_RDONLY);
	assert_int_equal(file_renumber(&l.st->files, r.in, false), 0);
	assert_untouched(&l, ino, generation, data);
	{
		HOLD(&r.in->lock);
		assert_null(r.in->file->stage);
	}
	handle_close(&r);
	live_free(&l);
	free(data);
}

/*
 * Two files have one image, and both are read: neither can be changed under its
 * readers. By name it moves; by a handle it is refused, and stays as it was.
 */
static void
who_shares_its_image_with_another_reader_is_not_changed(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);
	struct live l = live_kind(2);
	uint64_t ino, generation;
	struct handle r, other;

	(void)state;
	live_write(&l, "other", data, DATA_BYTES);
	live_sync_all(&l);
	live_write(&l, "f", data, DATA_BYTES);
	live_sync_all(&l);
	live_reopen(&l);
	assert_true(live_native(&l, "f"));
	assert_int_equal(live_counter(&l, META_PHYSICAL), DATA_BYTES);
	ino = live_ino(&l, "f");
	generation = live_generation(&l, "f");
	r = handle_open(&l, "f", O_RDONLY);
	other = handle_open(&l, "other", O_RDONLY);
	assert_int_equal(open_by(&l, r.in, FILE_BY_ANY), -ESTALE);
	assert_untouched(&l, ino, generation, data);
	assert_int_equal(open_by(&l, r.in, FILE_BY_HANDLE), -EBUSY);
	assert_untouched(&l, ino, generation, data);
	assert_int_equal(file_renumber(&l.st->files, r.in, true), 0);
	assert_int_not_equal(live_ino(&l, "f"), ino);
	assert_handle_bytes(&r, data, DATA_BYTES);
	assert_handle_bytes(&other, data, DATA_BYTES);
	handle_close(&r);
	handle_close(&other);
	live_free(&l);
	free(data);
}

/*
 * A reader has the file mapped, and not open any more, when it is emptied. What
 * was closed becomes durable in its place all the same, in the image that he
 * has; what it shares with others is not taken out of that under him.
 */
static void who_has_it_mapped_keeps_what_was_closed(void **state)
{
	uint8_t *old = filled(DATA_BYTES, 1), *new = filled(DATA_BYTES, 2);

	(void)state;
	for (unsigned kind = 2; kind < LIVE_KINDS; kind++) { /* passthrough */
		struct live l = live_kind_held(kind);
		struct inode *in;
		struct handle r;
		void *map;

		live_write(&l, "shares", old, MIB);
		assert_int_equal(live_sync(&l, "shares"), 0);
		live_write(&l, "f", old, DATA_BYTES);
		assert_int_equal(live_lookup(&l, "f", &in), 0);
		inode_remember(l.st->inodes, in); /* as long as it is mapped */
		r = handle_open(&l, "f", O_RDONLY);
		map = mmap(NULL, DATA_BYTES, PROT_READ, MAP_SHARED, r.fd, 0);
		assert_ptr_not_equal(map, MAP_FAILED);
		handle_close(&r);
		live_write(&l, "f", new, DATA_BYTES);
		live_write(&l, "after", old, 10);
		drain_go_on(l.st->drain);
		live_sync_all(&l);
		live_settle(&l);
		assert_memory_equal(map, old, DATA_BYTES);
		assert_file(&l, "f", new, DATA_BYTES);
		assert_int_equal(munmap(map, DATA_BYTES), 0);
		inode_forget(l.st->inodes, in, 1);
		file_forgotten(&l.st->files, in);
		inode_put(l.st->inodes, in, 1);
		live_free(&l);
	}
	free(old);
	free(new);
}

/* ckptfs(8) says so: the kernel cannot go over to a stage under a handle. */
static void who_changes_a_durable_file_decides_how_it_is_served(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	for (unsigned kind = 2; kind < LIVE_KINDS; kind++) { /* passthrough */
		struct live l = live_durable(kind, "f", data, DATA_BYTES);
		struct handle changes = handle_open(&l, "f", O_RDWR);
		struct handle empties = handle_open(&l, "f", EMPTY);

		assert_true(changes.fd < 0 && empties.fd < 0);
		handle_close(&changes);
		handle_close(&empties);
		empties = handle_open(&l, "f", EMPTY);
		assert_true(empties.fd >= 0);
		handle_close(&empties);
		live_free(&l);
	}
	free(data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_log_is_emptied_under_its_readers),
		cmocka_unit_test(what_came_by_no_name_changes_no_name),
		cmocka_unit_test(the_name_moves_when_it_is_looked_up),
		cmocka_unit_test(a_look_up_moves_no_name_when_nobody_reads),
		cmocka_unit_test(all_names_of_a_file_move_together),
		cmocka_unit_test(a_look_up_leaves_what_can_be_changed_in_place),
		cmocka_unit_test(
			who_shares_its_image_with_another_reader_is_not_changed),
		cmocka_unit_test(who_has_it_mapped_keeps_what_was_closed),
		cmocka_unit_test(
			who_changes_a_durable_file_decides_how_it_is_served),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
