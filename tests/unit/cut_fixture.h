/*
 * cut_fixture.h - files to cut, made of a few bytes and large holes.
 *
 * A file is a list of runs: bytes that were put there, or a hole that reads
 * as zeros and takes no memory, so that a test may use files of 100 GB. The
 * source checks that only ranges inside the file are asked for, counts the
 * calls, and fails the fail_at-th one.
 */
#ifndef TESTS_UNIT_CUT_FIXTURE_H
#define TESTS_UNIT_CUT_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "store/base/bytes.h"
#include "store/formats/cut.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * 1024)
#define GIB (MIB * 1024)
#define NO_FAILURE UINT64_MAX

struct run {
	uint64_t off;
	uint64_t len;
	size_t data_off; /* into file.data; unused in a hole */
	bool hole;
};

struct file {
	struct bytes data; /* all that is not a hole */
	struct bytes runs; /* of struct run, in file order */
	uint64_t size;
	uint64_t reads;
	uint64_t read_bytes;
	uint64_t fail_at; /* the read that fails with -EIO, from 0 */
	enum cut_rule rule; /* by their places, unless it says otherwise */
};

static inline void file_init(struct file *f)
{
	memset(f, 0, sizeof(*f));
	f->fail_at = NO_FAILURE;
}

static inline void file_release(struct file *f)
{
	bytes_release(&f->data);
	bytes_release(&f->runs);
}

static inline struct run file_run(const struct file *f, size_t i)
{
	struct run r;

	memcpy(&r, f->runs.data + i * sizeof(r), sizeof(r));
	return r;
}

static inline void file_add_run(struct file *f, struct run r)
{
	if (r.len == 0)
		return;
	bytes_put(&f->runs, &r, sizeof(r));
	assert_false(f->runs.failed);
	f->size += r.len;
}

static inline void file_put(struct file *f, const void *p, size_t len)
{
	struct run r = { .off = f->size, .len = len, .data_off = f->data.len };

	bytes_put(&f->data, p, len);
	assert_false(f->data.failed);
	file_add_run(f, r);
}

static inline void file_put_bytes(struct file *f, const struct bytes *b)
{
	assert_false(b->failed);
	file_put(f, b->data, b->len);
}

static inline void file_hole(struct file *f, uint64_t len)
{
	file_add_run(f, (struct run){ f->size, len, 0, true });
}

/* Forget what is at `size` and behind it. */
static inline void file_truncate(struct file *f, uint64_t size)
{
	assert_true(size <= f->size);
	f->size = size;
}

static inline size_t file_run_at(const struct file *f, uint64_t off)
{
	size_t lo = 0;
	size_t hi = f->runs.len / sizeof(struct run);

	while (hi - lo > 1) {
		size_t mid = lo + (hi - lo) / 2;

		if (file_run(f, mid).off <= off)
			lo = mid;
		else
			hi = mid;
	}
	return lo;
}

static inline int file_read(void *self, void *buf, size_t len, uint64_t off)
{
	struct file *f = self;
	uint8_t *out = buf;

	assert_true(len > 0);
	assert_true(len <= f->size && off <= f->size - len);
	if (f->reads++ == f->fail_at)
		return -EIO;
	f->read_bytes += len;
	for (size_t i = file_run_at(f, off); len > 0; i++) {
		struct run r = file_run(f, i);
		uint64_t skip = off - r.off;
		size_t n = len < r.len - skip ? len : (size_t)(r.len - skip);

		if (r.hole)
			memset(out, 0, n);
		else
			memcpy(out, f->data.data + r.data_off + skip, n);
		out += n;
		off += n;
		len -= n;
	}
	return 0;
}

/* What each cut promises, whatever is in the file. */
static inline void assert_exact_cover(const struct cut *c, uint64_t size)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < c->count; i++) {
		assert_in_range(c->len[i], 1, CHUNK_BYTES_MAX);
		sum += c->len[i];
	}
	assert_int_equal(sum, size);
	assert_true(c->count <= CUT_CHUNKS_MAX + size / CHUNK_BYTES_MAX + 2);
}

static inline int file_try_cut(struct file *f, struct cut *ret)
{
	struct cut_source source = { file_read, f, f->size };

	f->reads = 0;
	f->read_bytes = 0;
	return cut_file(&source, f->rule, ret);
}

static inline struct cut file_cut(struct file *f)
{
	struct cut c = { 0 };

	assert_int_equal(file_try_cut(f, &c), 0);
	assert_exact_cover(&c, f->size);
	return c;
}

/* The index of the chunk that starts at off; fails when none does. */
static inline size_t chunk_at(const struct cut *c, uint64_t off)
{
	uint64_t at = 0;
	size_t i;

	for (i = 0; i < c->count && at < off; i++)
		at += c->len[i];
	assert_int_equal(at, off);
	return i;
}

/* The `len` bytes at `off` are whole chunks, counted from their start. */
static inline void assert_own_chunks(const struct cut *c, uint64_t off,
				     uint64_t len)
{
	size_t i = chunk_at(c, off);

	for (; len >= CHUNK_BYTES_MAX; len -= CHUNK_BYTES_MAX, i++) {
		assert_true(i < c->count);
		assert_int_equal(c->len[i], CHUNK_BYTES_MAX);
	}
	if (len > 0) {
		assert_true(i < c->count);
		assert_int_equal(c->len[i], len);
	}
}

/* Cut as if nothing in the file had been understood. */
static inline void assert_one_payload(struct file *f)
{
	struct cut c = file_cut(f);

	assert_own_chunks(&c, 0, f->size);
	assert_string_equal(c.format, "plain");
	cut_release(&c);
}

/* Fail the 1st, 2nd, ... read until a cut goes through untouched. */
static inline void assert_passes_on_read_errors(struct file *f)
{
	for (f->fail_at = 0;; f->fail_at++) {
		struct cut c = { .count = 99 };
		int rc = file_try_cut(f, &c);

		if (f->reads <= f->fail_at) {
			assert_int_equal(rc, 0);
			cut_release(&c);
			break;
		}
		assert_int_equal(rc, -EIO);
		assert_int_equal(c.count, 99); /* untouched on failure */
	}
	f->fail_at = NO_FAILURE;
}

#endif
