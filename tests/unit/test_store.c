/*
 * A store and its files: what is written is what is read, by every kind of
 * open; what is damaged is refused.
 */
#include <linux/falloc.h>
#include <pthread.h>

#include "tests/unit/live_store.h"

#define DATA_BYTES (2 * MIB + 777)

static void a_store_is_opened_by_one_at_a_time(void **state)
{
	struct live l = live_new(NULL);
	struct store *second = NULL;
	char why[512] = "";

	(void)state;
	assert_int_equal(
		store_open(l.path, &l.options, &second, why, sizeof(why)),
		-EBUSY);
	assert_non_null(strstr(why, l.path));
	live_free(&l);
}

static void a_directory_with_something_else_in_it_is_refused(void **state)
{
	struct live l = live_closed(NULL);
	int fd = open(l.path, O_RDONLY | O_DIRECTORY);
	char why[512] = "";

	(void)state;
	write_file(fd, "thesis.tex", "x", 1);
	close(fd);
	assert_int_equal(live_try_open(&l, why), -EINVAL);
	assert_non_null(strstr(why, l.path));
	live_remove(&l);
}

static void a_stage_that_is_not_there_is_refused_by_its_name(void **state)
{
	struct live l = live_closed(NULL);
	char why[512] = "";

	(void)state;
	remove_tree(l.stage);
	assert_int_equal(live_try_open(&l, why), -ENOENT);
	assert_non_null(strstr(why, l.stage));
	assert_int_equal(mkdir(l.stage, 0700), 0);
	live_open(&l);
	live_free(&l);
}

static void a_store_that_was_refused_leaves_no_descriptor_open(void **state)
{
	struct live l = live_closed(NULL);
	unsigned before;
	char why[512];

	(void)state;
	live_open(&l);
	live_close(&l);
	before = open_descriptors();
	remove_tree(l.stage);
	assert_int_equal(live_try_open(&l, why), -ENOENT);
	assert_int_equal(open_descriptors(), before);
	assert_int_equal(mkdir(l.stage, 0700), 0);
	live_free(&l);
}

static void an_empty_store_counts_nothing(void **state)
{
	static const char *const names[] = { META_FILES,    META_LOGICAL,
					     META_PHYSICAL, META_CHUNKS,
					     META_SHARED,   META_IMAGES };
	struct live l = live_new(NULL);

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		assert_int_equal(live_counter(&l, names[i]), 0);
	live_free(&l);
}

static void files_of_every_size_come_back(void **state)
{
	static const size_t lens[] = {
		0,
		1,
		4095,
		4096,
		4097,
		20000,
		SMALL_BYTES_MAX,
		SMALL_BYTES_MAX + 1,
		MIB - 1,
		MIB,
		MIB + 1,
		3 * MIB + 5,
		9 * MIB + 11,
	};
	size_t n = sizeof(lens) / sizeof(*lens);
	uint8_t *data = filled(lens[n - 1] + n, 1);
	char name[32];

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		uint64_t sum = 0;

		for (size_t i = 0; i < n; i++) {
			(void)snprintf(name, sizeof(name), "f%zu", i);
			live_write(&l, name, data + i, lens[i]);
			assert_file(&l, name, data + i, lens[i]);
			sum += lens[i];
		}
		live_sync_all(&l);
		assert_int_equal(live_counter(&l, META_LOGICAL), sum);
		assert_int_equal(live_counter(&l, META_FILES), n);
		for (size_t i = 0; i < n; i++) {
			(void)snprintf(name, sizeof(name), "f%zu", i);
			assert_file(&l, name, data + i, lens[i]);
		}
		live_reopen(&l);
		for (size_t i = 0; i < n; i++) {
			(void)snprintf(name, sizeof(name), "f%zu", i);
			assert_file(&l, name, data + i, lens[i]);
		}
		live_free(&l);
	}
	free(data);
}

/* What is in the stage's directory, besides its table. */
static unsigned staged_files(struct live *l)
{
	DIR *dir = opendir(l->stage);
	struct dirent *d;
	unsigned n = 0;

	assert_non_null(dir);
	while ((d = readdir(dir)) != NULL)
		n += d->d_name[0] != '.' && strcmp(d->d_name, "table") != 0;
	closedir(dir);
	return n;
}

static void a_store_that_keeps_no_clean_stages_leaves_none_behind(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);

		live_close(&l);
		l.options.no_stage_cache = true;
		live_open(&l);
		live_write(&l, "f", data, DATA_BYTES);
		live_write(&l, "small", data, 10);
		live_close(&l);
		assert_int_equal(staged_files(&l), 0);
		live_free(&l);
	}
	free(data);
}

static void
clean_stages_of_a_closed_store_are_gone_when_it_is_open(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);

		live_write(&l, "f", data, DATA_BYTES);
		live_write(&l, "small", data, 10);
		live_sync_all(&l);
		/* In memory, and of a size that is worth to be kept. */
		assert_int_equal(staged_files(&l), kind & 1);
		live_reopen(&l);
		assert_int_equal(staged_files(&l), 0);
		assert_file(&l, "f", data, DATA_BYTES);
		live_free(&l);
	}
	free(data);
}

static void a_close_can_be_asked_to_wait_until_the_file_is_durable(void **state)
{
	struct store_options o = live_options();
	uint8_t *data = filled(DATA_BYTES, 1);
	struct live l;

	(void)state;
	o.durable_close = true;
	l = live_new(&o);
	live_write(&l, "f", data, DATA_BYTES);
	assert_true(committed(&l, live_ino(&l, "f")));
	live_free(&l);
	free(data);
}

static void what_is_written_is_seen_by_other_handles_at_once(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		struct handle w = handle_open(&l, "f", O_WRONLY | O_CREAT);
		struct handle r = handle_open(&l, "f", O_RDONLY);

		assert_handle_bytes(&r, data, 0);
		handle_write(&w, data, DATA_BYTES, 0);
		assert_handle_bytes(&r, data, DATA_BYTES);
		assert_file(&l, "f", data, DATA_BYTES);
		handle_close(&w);
		live_sync_all(&l);
		assert_handle_bytes(&r, data, DATA_BYTES);
		handle_close(&r);
		live_free(&l);
	}
	free(data);
}

/* --- files that exist
 * ----------------------------------------------------------- */

/* Durable and not staged: the next open finds committed content. */
static struct live with_durable(unsigned kind, const char *path,
				const void *data, size_t len)
{
	struct live l = live_kind(kind);

	live_write(&l, path, data, len);
	live_reopen(&l);
	return l;
}

static void
a_reader_keeps_the_old_content_when_the_file_is_opened_to_be_replaced(
	void **state)
{
	uint8_t *old = filled(DATA_BYTES, 1), *new = filled(DATA_BYTES, 2);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		for (int staged = 0; staged < 2; staged++) {
			struct live l =
				with_durable(kind, "f", old, DATA_BYTES);
			struct handle r, w, no = { 0 };
			struct content c;
			uint64_t ino = live_ino(&l, "f"), fresh, generation;

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
			assert_int_equal(live_generation(&l, "f"),
					 generation + 1);
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
		struct live l = with_durable(kind, "f", old, DATA_BYTES);
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
			struct live l = with_durable(kind, "f", data, lens[i]);
			struct handle h;

			h = handle_open(&l, "f", O_WRONLY | O_APPEND);
			handle_write(&h, data + lens[i], 50000, lens[i]);
			handle_close(&h);
			assert_file(&l, "f", data, lens[i] + 50000);
			live_reopen(&l);
			live_settle(&l);
			assert_file(&l, "f", data, lens[i] + 50000);
			assert_int_equal(live_generation(&l, "f"), 2);
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
			struct live l = with_durable(kind, "f", data, lens[i]);
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
		struct live l = with_durable(kind, "f", data, DATA_BYTES);
		struct handle h = handle_open(&l, "f", O_RDWR);

		handle_close(&h);
		live_sync_all(&l);
		assert_int_equal(live_generation(&l, "f"), 1);
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
		rc = file_truncate(&l->st->files, in, size);
	inode_put(l->st->inodes, in, 1);
	return rc;
}

struct truncation {
	size_t from, to;
};

/* `data` becomes what the file holds after it. */
static void truncated_bytes(const struct truncation *t, uint8_t *data,
			    size_t room)
{
	memset(data, 0, room);
	fill(data, t->from < t->to ? t->from : t->to, 1);
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
	size_t n = sizeof(cases) / sizeof(*cases), room = 3 * MIB;
	uint8_t *full = filled(room, 1), *data = malloc(room);
	char name[32];

	(void)state;
	assert_non_null(data);
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
			truncated_bytes(&cases[i], data, room);
			assert_file(&l, name, data, cases[i].to);
		}
		live_reopen(&l);
		for (size_t i = 0; i < n; i++) {
			(void)snprintf(name, sizeof(name), "f%zu", i);
			truncated_bytes(&cases[i], data, room);
			assert_file(&l, name, data, cases[i].to);
		}
		live_free(&l);
	}
	free(full);
	free(data);
}

static void a_reader_sees_how_the_file_is_truncated(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);
	struct live l = with_durable(2, "f", data, DATA_BYTES);
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
		struct live l = with_durable(kind, "f", data, DATA_BYTES);
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

static void data_and_holes_are_found(void **state)
{
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
		assert_int_equal(file_seek(&l.st->files, in, 0, SEEK_DATA, &at),
				 0);
		assert_int_equal(at, 2 * MIB);
		assert_int_equal(
			file_seek(&l.st->files, in, at, SEEK_HOLE, &at), 0);
		assert_int_equal(at, 3 * MIB);
		assert_int_equal(
			file_seek(&l.st->files, in, at, SEEK_HOLE, &at), 0);
		assert_int_equal(at, 3 * MIB);
		assert_int_equal(
			file_seek(&l.st->files, in, at, SEEK_DATA, &at), 0);
		assert_int_equal(at, 5 * MIB);
		assert_int_equal(
			file_seek(&l.st->files, in, at, SEEK_HOLE, &at), 0);
		assert_int_equal(at, 6 * MIB);
		assert_int_equal(
			file_seek(&l.st->files, in, at, SEEK_DATA, &at),
			-ENXIO);
		assert_int_equal(
			file_seek(&l.st->files, in, at, SEEK_HOLE, &at),
			-ENXIO);
		inode_put(l.st->inodes, in, 1);
		live_free(&l);
	}
	free(data);
}

/* More pieces than one answer has vectors, read in one go and in odd ones. */
static void a_file_of_many_extents_is_read_whole(void **state)
{
	size_t n = 3 * FILE_READ_VECTORS, len, len_b;
	struct payload *t = calloc(n, sizeof(*t));
	uint8_t *a, *b, *got;

	(void)state;
	assert_non_null(t);
	for (size_t i = 0; i < n; i++)
		t[i] = (struct payload){ i + 1, 20000 + i };
	a = safetensors(t, n, 0, &len);
	for (size_t i = 0; i < n; i += 2) /* every second one is new */
		t[i].seed += 10000;
	b = safetensors(t, n, 333, &len_b);
	got = malloc(len_b);
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		struct content c;
		struct handle h;

		live_write(&l, "a", a, len);
		live_sync_all(&l);
		live_write(&l, "b", b, len_b);
		live_reopen(&l);
		c = live_content(&l, "b");
		assert_true(c.extent_count > 2 * FILE_READ_VECTORS);
		content_release(&c);
		assert_file(&l, "b", b, len_b);
		h = handle_open(&l, "b", O_RDONLY);
		assert_int_equal(h.fd, -1); /* not native: through the daemon */
		for (size_t off = 0; off < len_b; off += 1234567) {
			size_t want = len_b - off;

			assert_int_equal(handle_read(&h, got, want, off), want);
			assert_memory_equal(got, b + off, want);
		}
		assert_int_equal(handle_read(&h, got, 10, len_b), 0);
		assert_int_equal(handle_read(&h, got, 10, len_b + 5000), 0);
		handle_close(&h);
		live_free(&l);
	}
	free(a);
	free(b);
	free(t);
	free(got);
}

struct rewriter {
	struct live *l;
	atomic_bool stop;
	pthread_t thread;
};

static void *rewrite_small(void *arg)
{
	struct rewriter *w = arg;
	uint8_t data[3000];

	for (unsigned i = 0; i < 150; i++) {
		memset(data, (int)('a' + i % 26), sizeof(data));
		live_write(w->l, "f", data, 1000 + i * 10);
		CHECK(live_sync(w->l, "f") == 0);
	}
	atomic_store(&w->stop, true);
	return NULL;
}

static void a_reader_of_a_small_file_sees_one_whole_version_of_it(void **state)
{
	struct rewriter w = { 0 };
	struct live l = live_kind(0);
	uint8_t got[4000];

	(void)state;
	w.l = &l;
	live_write(&l, "f", "a", 1);
	live_sync_all(&l);
	CHECK(pthread_create(&w.thread, NULL, rewrite_small, &w) == 0);
	while (!atomic_load(&w.stop)) {
		struct handle h = handle_open(&l, "f", O_RDONLY);
		ssize_t n = handle_read(&h, got, sizeof(got), 0);

		assert_true(n >= 0);
		for (ssize_t i = 1; i < n; i++)
			assert_int_equal(got[i], got[0]);
		handle_close(&h);
	}
	pthread_join(w.thread, NULL);
	live_free(&l);
}

/* --- damage
 * --------------------------------------------------------------------- */

/* Replace a record of the closed store; NULL: remove it. */
static void damage(struct live *l, struct key k, const void *value, size_t len)
{
	struct kv_batch *b = kv_batch_new();
	char db[4096];
	struct kv *kv;

	(void)snprintf(db, sizeof(db), "%s/" LAYOUT_DB_DIR, l->path);
	assert_int_equal(kv_open(db, false, &kv), 0);
	if (value)
		kv_put(b, k.data, k.len, value, len);
	else
		kv_delete(b, k.data, k.len);
	assert_int_equal(kv_write(kv, b), 0);
	kv_batch_free(b);
	kv_close(kv);
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
	struct live l = with_durable(0, "f", data, DATA_BYTES);
	struct key k = key_ino('F', live_ino(&l, "f"));

	(void)state;
	live_write(&l, "other", data, 100);
	live_close(&l);
	damage(&l, k, "nonsense", 8);
	live_open(&l);
	assert_refused(&l, "f");
	assert_file(&l, "other", data, 100);
	live_close(&l);
	live_remove(&l);
	free(data);
}

static void damaged_attributes_are_refused_at_the_lookup(void **state)
{
	struct live l = with_durable(0, "f", "x", 1);
	struct key k = key_ino('A', live_ino(&l, "f"));
	struct inode *in = NULL;

	(void)state;
	live_close(&l);
	damage(&l, k, "no", 2);
	live_open(&l);
	assert_int_equal(live_lookup(&l, "f", &in), -EIO);
	live_close(&l);
	damage(&l, k, NULL, 0); /* a name that leads nowhere */
	live_open(&l);
	assert_int_equal(live_lookup(&l, "f", &in), -EIO);
	live_close(&l);
	live_remove(&l);
}

static void a_small_file_without_its_bytes_is_refused(void **state)
{
	struct live l = with_durable(0, "f", "0123456789", 10);
	struct key k = key_ino('D', live_ino(&l, "f"));
	struct handle h;
	char got[16];

	(void)state;
	live_close(&l);
	damage(&l, k, "012345678", 9);
	live_open(&l);
	h = handle_open(&l, "f", O_RDONLY);
	assert_int_equal(handle_read(&h, got, sizeof(got), 0), -EIO);
	handle_close(&h);
	live_close(&l);
	damage(&l, k, NULL, 0);
	live_open(&l);
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
		struct live l = with_durable(kind, "f", data, DATA_BYTES);

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
		struct live l = with_durable(kind, "f", data, DATA_BYTES);

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
	struct live l = with_durable(0, "f", "0123456789", 10);
	struct key k = key_ino('D', live_ino(&l, "f"));

	(void)state;
	live_close(&l);
	damage(&l, k, "0123456780", 10);
	l.options.verify = VERIFY_OPEN;
	live_open(&l);
	assert_refused(&l, "f");
	live_close(&l);
	live_remove(&l);
}

static void a_store_that_was_closed_leaves_its_stage_empty(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		struct dirent *d;
		DIR *dir;

		live_write(&l, "f", data, DATA_BYTES);
		live_write(&l, "small", data, 10);
		live_close(&l);
		dir = opendir(l.stage);
		assert_non_null(dir);
		while ((d = readdir(dir)) != NULL)
			assert_int_equal(d->d_name[0], '.');
		closedir(dir);
		live_free(&l);
	}
	free(data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_store_is_opened_by_one_at_a_time),
		cmocka_unit_test(
			a_directory_with_something_else_in_it_is_refused),
		cmocka_unit_test(
			a_stage_that_is_not_there_is_refused_by_its_name),
		cmocka_unit_test(
			a_store_that_was_refused_leaves_no_descriptor_open),
		cmocka_unit_test(an_empty_store_counts_nothing),
		cmocka_unit_test(files_of_every_size_come_back),
		cmocka_unit_test(
			a_store_that_keeps_no_clean_stages_leaves_none_behind),
		cmocka_unit_test(
			clean_stages_of_a_closed_store_are_gone_when_it_is_open),
		cmocka_unit_test(
			a_close_can_be_asked_to_wait_until_the_file_is_durable),
		cmocka_unit_test(
			what_is_written_is_seen_by_other_handles_at_once),
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
		cmocka_unit_test(data_and_holes_are_found),
		cmocka_unit_test(a_file_of_many_extents_is_read_whole),
		cmocka_unit_test(
			a_reader_of_a_small_file_sees_one_whole_version_of_it),
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
		cmocka_unit_test(
			a_store_that_was_closed_leaves_its_stage_empty),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
