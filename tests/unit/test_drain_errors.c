/*
 * What cannot be made durable, for lack of room or of descriptors: it is told,
 * nothing is dropped, and it goes on when the cause is over.
 */
#include <signal.h>
#include <sys/resource.h>

#include "store/drain/work.h"
#include "tests/unit/live_store.h"

#define FILE_BYTES (3 * MIB + 12345)

/*
 * What happens to a file once, in the middle of an attempt that fails: before
 * it does, or when that is being told.
 */
static struct {
	void (*fn)(struct live *l);
	struct live *l;
	bool told;
} late;

static bool late_now(bool told)
{
	void (*fn)(struct live *l) = late.fn;

	if (!fn || late.told != told)
		return false;
	late.fn = NULL;
	fn(late.l);
	return true;
}

int __real_work_sync(struct drain *d, struct work *w);
int __wrap_work_sync(struct drain *d, struct work *w);

int __wrap_work_sync(struct drain *d, struct work *w)
{
	return late_now(false) ? -EIO : __real_work_sync(d, w);
}

void __real_inode_path(struct inode_table *t, struct inode *in, char *buf,
		       size_t size);
void __wrap_inode_path(struct inode_table *t, struct inode *in, char *buf,
		       size_t size);

void __wrap_inode_path(struct inode_table *t, struct inode *in, char *buf,
		       size_t size)
{
	__real_inode_path(t, in, buf, size);
	(void)late_now(true);
}

/* Writes that reach beyond `bytes` of a file fail with EFBIG; 0: none do. */
static void limit_files(uint64_t bytes)
{
	struct rlimit limit;

	assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
	limit.rlim_cur = bytes ? bytes : limit.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static uint64_t failed_files(struct live *l)
{
	struct drain_figures figures;

	drain_figures(l->st->drain, &figures);
	return figures.failed;
}

static void an_error_sticks_is_told_once_and_ends_when_it_is_over(void **state)
{
	struct live l = live_kind_held(1);
	uint8_t *data = filled(FILE_BYTES, 1);
	struct drain_figures figures;
	struct handle h = { 0 };

	(void)state;
	(void)signal(SIGXFSZ, SIG_IGN);
	live_write(&l, "f", data, FILE_BYTES);
	limit_files(MIB);
	assert_int_equal(drain_sync_tree(l.st->drain, ROOT_INO), -EFBIG);
	drain_figures(l.st->drain, &figures);
	assert_int_equal(figures.failed, 1);
	assert_int_equal(handle_try(&l, "f", O_RDONLY, &h), -EFBIG);
	assert_file(&l, "f", data, FILE_BYTES); /* told; nothing is dropped */
	assert_int_equal(live_sync(&l, "f"), -EFBIG);
	assert_file(&l, "f", data, FILE_BYTES); /* fsync told it */
	/* The same bytes fail once more: that is told already. */
	assert_int_equal(drain_sync_tree(l.st->drain, ROOT_INO), -EFBIG);
	assert_file(&l, "f", data, FILE_BYTES);
	assert_false(committed(&l, live_ino(&l, "f")));
	limit_files(0);
	assert_int_equal(live_sync(&l, "f"), 0);
	drain_figures(l.st->drain, &figures);
	assert_int_equal(figures.failed, 0);
	assert_int_equal(figures.draining, 0);
	assert_file(&l, "f", data, FILE_BYTES);
	live_free(&l);
	free(data);
}

static void
a_store_that_closes_with_an_error_says_so_and_drops_nothing(void **state)
{
	struct live l = live_kind_held(1);
	uint8_t *data = filled(FILE_BYTES, 1);
	int rc;

	(void)state;
	(void)signal(SIGXFSZ, SIG_IGN);
	live_write(&l, "before", data, 1000);
	live_write(&l, "f", data, FILE_BYTES);
	live_write(&l, "after", data, 2000);
	limit_files(MIB);
	rc = store_close(l.st);
	l.st = NULL;
	limit_files(0);
	assert_int_equal(rc, -EFBIG);
	live_open(&l);
	assert_file(&l, "before", data, 1000);
	assert_file(&l, "f", data, FILE_BYTES);
	assert_file(&l, "after", data, 2000);
	live_sync_all(&l);
	live_reopen(&l);
	assert_file(&l, "f", data, FILE_BYTES);
	live_free(&l);
	free(data);
}

static void nobody_overtakes_a_file_that_cannot_be_made_durable(void **state)
{
	struct live l = live_kind_held(1);
	uint8_t *data = filled(FILE_BYTES, 1);

	(void)state;
	(void)signal(SIGXFSZ, SIG_IGN);
	live_write(&l, "data", data, FILE_BYTES);
	live_write(&l, "tracker", data, 8);
	limit_files(MIB);
	assert_int_equal(drain_sync_tree(l.st->drain, ROOT_INO), -EFBIG);
	assert_false(committed(&l, live_ino(&l, "tracker")));
	limit_files(0);
	live_sync_all(&l);
	assert_true(committed(&l, live_ino(&l, "tracker")));
	assert_true(committed(&l, live_ino(&l, "data")));
	live_free(&l);
	free(data);
}

/*
 * What failed is written over, after that or before: what was closed later goes
 * on waiting for it, until it is durable, or what took its place is.
 */
static void written_over(bool failed, bool sync)
{
	struct live l = live_kind_held(1);
	uint8_t *data = filled(FILE_BYTES, 1);
	struct handle h;

	live_write(&l, "data", data, FILE_BYTES);
	live_write(&l, "tracker", data, 8);
	limit_files(MIB);
	if (failed) {
		assert_int_equal(drain_sync_closed(l.st->drain), -EFBIG);
		assert_int_equal(handle_try(&l, "data", O_RDONLY, &h), -EFBIG);
	}
	live_write(&l, "data", data + 1, 1000);
	assert_int_equal(drain_sync_closed(l.st->drain), -EFBIG);
	assert_false(committed(&l, live_ino(&l, "data")));
	assert_false(committed(&l, live_ino(&l, "tracker")));
	if (sync) {
		assert_int_equal(live_sync(&l, "data"), 0);
		assert_int_equal(committed_size(&l, "data"), 1000);
	} else {
		limit_files(0);
	}
	live_sync_all(&l);
	assert_true(committed(&l, live_ino(&l, "tracker")));
	assert_int_equal(committed_size(&l, "data"), 1000);
	limit_files(0);
	live_reopen(&l);
	assert_file(&l, "data", data + 1, 1000);
	live_free(&l);
	free(data);
}

static void nobody_overtakes_what_failed_and_is_written_over(void **state)
{
	(void)state;
	(void)signal(SIGXFSZ, SIG_IGN);
	written_over(false, false);
	written_over(false, true);
	written_over(true, false);
	written_over(true, true);
}

/* A file of FILE_BYTES that cannot be made durable. */
static void write_failing(struct live *l, const char *path, const uint8_t *data)
{
	limit_files(0);
	live_write(l, path, data, FILE_BYTES);
	limit_files(MIB);
	assert_int_equal(live_sync(l, path), -EFBIG);
	assert_int_equal(failed_files(l), 1);
}

static void what_failed_is_counted_until_it_is_gone(void **state)
{
	uint8_t *data = filled(FILE_BYTES, 1);
	struct live l = live_kind_held(1);

	(void)state;
	(void)signal(SIGXFSZ, SIG_IGN);
	write_failing(&l, "deleted", data);
	assert_int_equal(live_unlink(&l, "deleted"), 0);
	assert_int_equal(failed_files(&l), 0);

	write_failing(&l, "renamed over", data);
	live_write(&l, "new", data, 1000);
	assert_int_equal(live_rename(&l, "new", "renamed over", 0), 0);
	assert_int_equal(failed_files(&l), 0);
	assert_int_equal(live_sync(&l, "renamed over"), 0);

	write_failing(&l, "emptied", data);
	assert_int_equal(live_sync(&l, "emptied"), -EFBIG);
	live_write(&l, "emptied", data, 1000);
	assert_int_equal(failed_files(&l), 1); /* it keeps its place */
	assert_int_equal(live_sync(&l, "emptied"), 0);
	assert_int_equal(failed_files(&l), 0);

	write_failing(&l, "emptied, deleted", data);
	live_write(&l, "emptied, deleted", data, 1000);
	assert_int_equal(live_unlink(&l, "emptied, deleted"), 0);
	assert_int_equal(failed_files(&l), 0);
	limit_files(0);
	live_sync_all(&l);
	live_free(&l);
	free(data);
}

static void unlink_f(struct live *l)
{
	assert_int_equal(live_unlink(l, "f"), 0);
}

/* Its last name goes in the middle of the attempt that fails. */
static void deleted_late(bool told, bool open)
{
	struct live l = live_kind_held(1);
	uint8_t *data = filled(FILE_BYTES, 1);
	struct handle h = { 0 };

	live_write(&l, "f", data, FILE_BYTES);
	live_write(&l, "after", data, 1000);
	if (open)
		h = handle_open(&l, "f", O_RDONLY);
	late.fn = unlink_f;
	late.l = &l;
	late.told = told;
	if (told)
		limit_files(MIB);
	(void)live_sync(&l, "f");
	limit_files(0);
	assert_null(late.fn);
	assert_int_equal(failed_files(&l), 0);
	/* Nor does it hold up what was closed after it. */
	assert_int_equal(drain_sync_closed(l.st->drain), 0);
	assert_true(committed(&l, live_ino(&l, "after")));
	if (open)
		handle_release(&h);
	assert_int_equal(failed_files(&l), 0);
	live_free(&l);
	free(data);
}

static void a_failure_of_what_was_deleted_meanwhile_does_not_count(void **state)
{
	(void)state;
	(void)signal(SIGXFSZ, SIG_IGN);
	for (unsigned kind = 0; kind < 4; kind++)
		deleted_late((kind & 1) != 0, (kind & 2) != 0);
}

/* Or his fsync would have nothing to say of it any more. */
static void failed_is_not_emptied(bool in_place)
{
	struct live l = live_kind_held(in_place ? 3 : 1);
	uint8_t *data = filled(FILE_BYTES, 1);
	struct handle reader, h;

	if (!in_place)
		l.st->files.empty_in_place_bytes = 0;
	live_write(&l, "f", data, FILE_BYTES);
	reader = handle_open(&l, "f", O_RDONLY);
	limit_files(MIB);
	assert_int_equal(drain_sync_closed(l.st->drain), -EFBIG);
	assert_int_equal(file_sync(&l.st->files, reader.in), -EFBIG);
	for (int i = 0; i < 2; i++)
		assert_int_equal(handle_try(&l, "f", O_WRONLY | O_TRUNC, &h),
				 -EFBIG);
	assert_int_equal(file_sync(&l.st->files, reader.in), -EFBIG);
	limit_files(0);
	live_write(&l, "f", data + 1, FILE_BYTES - 1);
	if (in_place)
		assert_handle_bytes(&reader, data + 1, FILE_BYTES - 1);
	else
		assert_handle_bytes(&reader, data, FILE_BYTES);
	handle_release(&reader);
	live_reopen(&l);
	assert_file(&l, "f", data + 1, FILE_BYTES - 1);
	live_free(&l);
	free(data);
}

static void what_failed_is_not_emptied_under_a_reader(void **state)
{
	(void)state;
	(void)signal(SIGXFSZ, SIG_IGN);
	failed_is_not_emptied(false);
	failed_is_not_emptied(true);
}

/* A job that finds no descriptor is tried again, and nothing of it is lost. */
static void a_job_without_a_descriptor_is_only_late(void **state)
{
	uint8_t *data = filled(3 * MIB, 1), *other = filled(3 * MIB, 2);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_closed(NULL);
		struct rlimit had, none;
		unsigned before;

		l.options.stage_all_in_memory = (kind & 1) != 0;
		l.options.hold_drain = (kind & 2) != 0;
		live_open(&l);
		live_write(&l, "first", data, 3 * MIB);
		live_sync_all(&l);
		before = open_descriptors();
		assert_int_equal(getrlimit(RLIMIT_NOFILE, &had), 0);
		none = had;
		none.rlim_cur = 3;
		{
			struct handle h =
				handle_open(&l, "a", O_WRONLY | O_CREAT);

			handle_write(&h, other, 3 * MIB, 0);
			assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
			handle_close(&h);
		}
		assert_int_equal(live_sync(&l, "a"), -EMFILE);
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &had), 0);
		live_sync_all(&l);
		assert_file(&l, "a", other, 3 * MIB);
		assert_int_equal(open_descriptors(), before);
		live_free(&l);
	}
	free(other);
	free(data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			an_error_sticks_is_told_once_and_ends_when_it_is_over),
		cmocka_unit_test(
			a_store_that_closes_with_an_error_says_so_and_drops_nothing),
		cmocka_unit_test(
			nobody_overtakes_a_file_that_cannot_be_made_durable),
		cmocka_unit_test(
			nobody_overtakes_what_failed_and_is_written_over),
		cmocka_unit_test(what_failed_is_counted_until_it_is_gone),
		cmocka_unit_test(
			a_failure_of_what_was_deleted_meanwhile_does_not_count),
		cmocka_unit_test(what_failed_is_not_emptied_under_a_reader),
		cmocka_unit_test(a_job_without_a_descriptor_is_only_late),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
