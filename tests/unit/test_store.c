/*
 * A store is opened and closed, and new files come back as they were written:
 * test_store_change.c changes files that exist, test_store_damage.c damages
 * them.
 */
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

/* f0 begins with data[0], f1 with data[1], and so on. */
static void assert_files(struct live *l, const uint8_t *data,
			 const size_t *lens, size_t n)
{
	char name[32];

	for (size_t i = 0; i < n; i++) {
		(void)snprintf(name, sizeof(name), "f%zu", i);
		assert_file(l, name, data + i, lens[i]);
	}
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
		assert_files(&l, data, lens, n);
		live_reopen(&l);
		assert_files(&l, data, lens, n);
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
		cmocka_unit_test(a_file_of_many_extents_is_read_whole),
		cmocka_unit_test(
			a_reader_of_a_small_file_sees_one_whole_version_of_it),
		cmocka_unit_test(
			a_store_that_was_closed_leaves_its_stage_empty),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
