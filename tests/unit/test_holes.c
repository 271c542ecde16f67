/*
 * Files with holes: a hole is not read, and stays one.
 */
#include <sys/stat.h>

#include "store/db/hash.h"
#include "store/formats/chunks.h"
#include "tests/unit/live_store.h"

#define SPARSE_BYTES (UINT64_C(1) << 30)
#define DATA_AT (SPARSE_BYTES / 2 + 5000)
#define DATA_BYTES 100000u
/* What may be read, of whatever kind, beside a hole of 1 GiB. */
#define READ_BYTES_MAX (UINT64_C(64) << 20)

/* What all threads of this process have read so far, holes included. */
static uint64_t bytes_read(void)
{
	FILE *f = fopen("/proc/self/io", "re");
	unsigned long long n = 0;

	assert_non_null(f);
	assert_int_equal(fscanf(f, "rchar: %llu", &n), 1);
	fclose(f);
	return n;
}

/* `size` bytes, of which DATA_BYTES at `at` are not in a hole. */
static void write_sparse(struct live *l, const char *path, uint64_t size,
			 uint64_t at, const uint8_t *data)
{
	struct handle h = handle_open(l, path, O_WRONLY | O_CREAT);

	handle_write(&h, data, DATA_BYTES, at);
	assert_int_equal(file_truncate(&l->st->files, h.in, size), 0);
	handle_close(&h);
}

static void assert_data(struct live *l, const char *path, uint64_t at,
			const uint8_t *data, size_t len)
{
	struct handle h = handle_open(l, path, O_RDONLY);
	uint8_t *got = malloc(len);

	assert_non_null(got);
	assert_int_equal(handle_read(&h, got, len, at), len);
	assert_memory_equal(got, data, len);
	free(got);
	handle_release(&h);
}

static void a_hole_is_not_read(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		uint64_t before = bytes_read();

		write_sparse(&l, "f", SPARSE_BYTES, DATA_AT, data);
		live_sync_all(&l);
		assert_true(live_counter(&l, META_PHYSICAL) < 2 * MIB);
		live_close(&l);
		live_check(&l); /* a scrub */
		l.options.verify = VERIFY_OPEN;
		live_open(&l);
		assert_data(&l, "f", DATA_AT, data, DATA_BYTES);
		write_sparse(&l, "g", SPARSE_BYTES, DATA_AT, data);
		live_sync_all(&l);
		assert_true(live_counter(&l, META_PHYSICAL) < 2 * MIB);
		live_free(&l);
		assert_true(bytes_read() - before < READ_BYTES_MAX);
	}
	free(data);
}

static void what_lies_between_holes_is_stored(void **state)
{
	const uint64_t size = 40 * MIB + 777;
	uint8_t *data = filled(3 * MIB, 2);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		struct handle h = handle_open(&l, "f", O_WRONLY | O_CREAT);
		uint8_t *want = calloc(1, size);
		uint64_t at = 3;

		assert_non_null(want);
		/* Pieces and holes of 1 byte to some spans. */
		for (unsigned n = 0; at < size; n++) {
			size_t len = 1 + (n * 350377u) % (3 * MIB);

			len = len < size - at ? len : (size_t)(size - at);
			memcpy(want + at, data, len);
			handle_write(&h, data, len, at);
			at += len + 1 + (n * UINT64_C(1771561)) % (12 * MIB);
		}
		assert_int_equal(file_truncate(&l.st->files, h.in, size), 0);
		handle_close(&h);
		live_reopen(&l);
		live_settle(&l);
		assert_file(&l, "f", want, size);
		free(want);
		live_free(&l);
	}
	free(data);
}

static void a_hole_has_the_digest_of_zeros(void **state)
{
	const uint64_t size = 30 * MIB + 4097, at = 20 * MIB + 100;
	uint8_t *data = calloc(1, size);

	(void)state;
	assert_non_null(data);
	fill(data + at, DATA_BYTES, 1);
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		struct content dense, sparse;

		live_write(&l, "dense", data, size);
		write_sparse(&l, "sparse", size, at, data + at);
		live_sync_all(&l);
		dense = live_content(&l, "dense");
		sparse = live_content(&l, "sparse");
		assert_memory_equal(dense.digest, sparse.digest, HASH_BYTES);
		assert_int_equal(dense.data_bytes, sparse.data_bytes);
		content_release(&dense);
		content_release(&sparse);
		live_free(&l);
	}
	free(data);
}

static void a_hole_is_not_read_by_a_rebuild(void **state)
{
	const uint64_t size = UINT64_C(10) << 30;
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind += 2) {
		struct live l = live_kind(kind);
		uint64_t before;

		write_sparse(&l, "f", size, DATA_AT, data);
		write_sparse(&l, "g", size, size - DATA_BYTES, data);
		live_sync_all(&l);
		live_close(&l);
		before = bytes_read();
		assert_int_equal(live_rebuild_of_labels(&l).recovered, 2);
		assert_true(bytes_read() - before < READ_BYTES_MAX);
		live_check(&l);
		live_open(&l);
		assert_data(&l, "f", DATA_AT, data, DATA_BYTES);
		assert_data(&l, "g", size - DATA_BYTES, data, DATA_BYTES);
		live_free(&l);
	}
	free(data);
}

static void a_hole_is_not_counted_as_staged(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind += 2) {
		struct live l = live_kind_held(kind);
		struct stages_figures f;

		write_sparse(&l, "f", SPARSE_BYTES, DATA_AT, data);
		stages_figures(&l.st->stages, &f);
		assert_int_equal(f.dirty_files, 1);
		assert_true(f.memory_bytes + f.disk_bytes >= DATA_BYTES);
		assert_true(f.memory_bytes + f.disk_bytes < 4 * MIB);
		live_free(&l);
	}
	free(data);
}

static uint64_t allocated(struct live *l, const char *path)
{
	struct inode *in = NULL;
	struct stat sb;

	assert_int_equal(live_lookup(l, path, &in), 0);
	assert_int_equal(inode_stat(l->st->inodes, in, &sb), 0);
	inode_put(l->st->inodes, in, 1);
	return (uint64_t)sb.st_blocks * 512;
}

static uint64_t data_from(struct live *l, struct inode *in, uint64_t off)
{
	uint64_t at = 0;

	assert_int_equal(file_seek(&l->st->files, in, off, SEEK_DATA, &at), 0);
	return at;
}

static void a_byte_written_between_holes_leaves_them(void **state)
{
	const uint64_t at = 700 * MIB;
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		struct handle h;
		struct stat sb;

		write_sparse(&l, "f", SPARSE_BYTES, DATA_AT, data);
		live_reopen(&l);
		h = handle_open(&l, "f", O_RDWR);
		handle_write(&h, "x", 1, at);
		assert_int_equal(inode_stat(l.st->inodes, h.in, &sb), 0);
		assert_int_equal(sb.st_size, SPARSE_BYTES);
		assert_true(allocated(&l, "f") < 2 * MIB);
		assert_true(data_from(&l, h.in, 0) > DATA_AT - MIB);
		assert_true(data_from(&l, h.in, 600 * MIB) > at - MIB);
		handle_close(&h);
		live_reopen(&l);
		live_settle(&l);
		assert_true(live_counter(&l, META_PHYSICAL) < 4 * MIB);
		assert_data(&l, "f", DATA_AT, data, DATA_BYTES);
		assert_data(&l, "f", at, (const uint8_t *)"x", 2);
		live_free(&l);
	}
	free(data);
}

/* What the stage of an open file has of the memory, or of the disk. */
static uint64_t stage_has(struct handle *h)
{
	struct stat sb;

	assert_int_equal(stage_stat(&h->l->st->stages, h->in->file->stage, &sb),
			 0);
	return (uint64_t)sb.st_blocks * 512;
}

static void a_series_with_holes_expects_no_memory_for_them(void **state)
{
	const uint64_t size = 64 * MIB;
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind += 2) {
		struct live l = live_kind(kind);
		struct handle h;

		live_mkdir(&l, "step_1");
		live_mkdir(&l, "step_2");
		live_mkdir(&l, "step_3");
		write_sparse(&l, "step_1/f", size, 50 * MIB, data);
		live_sync_all(&l);
		h = handle_open(&l, "step_2/f", O_WRONLY | O_CREAT);
		assert_true(stage_has(&h) < 4 * MIB);
		/* What it is cut to is no more than a guess. */
		assert_int_equal(file_truncate(&l.st->files, h.in, size), 0);
		handle_write(&h, data, DATA_BYTES, 50 * MIB);
		handle_close(&h);
		h = handle_open(&l, "step_3/f", O_WRONLY | O_CREAT);
		assert_true(stage_has(&h) < 4 * MIB);
		handle_close(&h);
		live_free(&l);
	}
	free(data);
}

/* It has memory for all of its size, and shows none of what is not written. */
static void memory_that_waits_for_bytes_is_a_hole(void **state)
{
	const size_t size = 16 * MIB;
	uint8_t *data = filled(size, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind += 2) {
		struct live l = live_kind(kind);
		struct handle h;

		live_mkdir(&l, "step_1");
		live_mkdir(&l, "step_2");
		live_write(&l, "step_1/f", data, size);
		live_sync_all(&l);
		h = handle_open(&l, "step_2/f", O_WRONLY | O_CREAT);
		assert_true(stage_has(&h) >= size);
		assert_int_equal(allocated(&l, "step_2/f"), 0);
		handle_write(&h, data, DATA_BYTES, 9 * MIB);
		assert_int_equal(file_truncate(&l.st->files, h.in, size), 0);
		assert_true(allocated(&l, "step_2/f") >= DATA_BYTES);
		assert_true(allocated(&l, "step_2/f") <= 4 * MIB);
		handle_write(&h, data, size, 0);
		assert_int_equal(allocated(&l, "step_2/f"), size);
		handle_close(&h);
		live_free(&l);
	}
	free(data);
}

static void a_file_that_no_disk_can_hold_is_refused(void **state)
{
	const uint64_t most = CUT_FILE_BYTES_MAX;
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		struct handle h = handle_open(&l, "f", O_RDWR | O_CREAT);
		struct files *fs = &l.st->files;
		struct stat sb;

		handle_write(&h, data, DATA_BYTES, 0);
		assert_int_equal(file_truncate(fs, h.in, most + 1), -EFBIG);
		assert_int_equal(file_write(fs, h.in, data, 2, most - 1),
				 -EFBIG);
		assert_int_equal(file_write(fs, h.in, data, 2, UINT64_MAX - 1),
				 -EFBIG);
		assert_int_equal(file_fallocate(fs, h.in, 0, most, 1), -EFBIG);
		assert_int_equal(inode_stat(l.st->inodes, h.in, &sb), 0);
		assert_int_equal(sb.st_size, DATA_BYTES);
		handle_close(&h);
		live_sync_all(&l);
		assert_file(&l, "f", data, DATA_BYTES);
		live_free(&l);
	}
	free(data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_hole_is_not_read),
		cmocka_unit_test(what_lies_between_holes_is_stored),
		cmocka_unit_test(a_hole_has_the_digest_of_zeros),
		cmocka_unit_test(a_hole_is_not_read_by_a_rebuild),
		cmocka_unit_test(a_hole_is_not_counted_as_staged),
		cmocka_unit_test(a_byte_written_between_holes_leaves_them),
		cmocka_unit_test(
			a_series_with_holes_expects_no_memory_for_them),
		cmocka_unit_test(memory_that_waits_for_bytes_is_a_hole),
		cmocka_unit_test(a_file_that_no_disk_can_hold_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
