/*
 * stash_fixture.h - a paged stash and room for its rows, on host memory or,
 * through the fake driver, on a device: rows go in with a content of their own
 * and are recognized when they come back.
 */
#ifndef TESTS_UNIT_STASH_FIXTURE_H
#define TESTS_UNIT_STASH_FIXTURE_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gpu/stash.h"
#include "tests/gpu/fake_cuda.h"

#define GUARD 0x5c
/* In front of the data, so that it begins at any alignment. */
#define SHIFT_MAX 16u

static const int both[] = { CKPT_DEVICE_HOST, 1 };

#define FOR_BOTH(device)                      \
	for (int both_ = 0, device = both[0]; \
	     both_ < 2 && (device = both[both_], true); both_++)

/* A stash of one type, and room for rows where the stash is. */
struct rig {
	int device;
	struct ckpt *c;
	struct ckpt_stash *s;
	void *stream; /* raw; NULL: host memory */
	struct ckpt_stash_type type;
	uint64_t row_bytes, max_rows;
	uint8_t *in, *out; /* where the stash is */
	int64_t *rows;
	void *memory[3];
};

static inline void *rig_alloc(struct rig *r, size_t len)
{
	void *p = NULL;

	if (r->device == CKPT_DEVICE_HOST)
		assert_int_equal(posix_memalign(&p, 64, len), 0);
	else
		assert_int_equal(gpu_alloc(r->c->gpu, r->device, len, &p), 0);
	return p;
}

static inline void rig_init(struct rig *r, int device,
			    struct ckpt_stash_type type, uint32_t page_rows,
			    uint64_t max_rows)
{
	struct ckpt_stash_options options = { .device = device,
					      .page_rows = page_rows,
					      .types = &r->type,
					      .type_count = 1 };
	void *context;

	memset(r, 0, sizeof(*r));
	r->device = device;
	r->type = type;
	r->row_bytes = (uint64_t)type.element_bytes * type.row_elements;
	r->max_rows = max_rows;
	assert_int_equal(ckpt_open(NULL, &r->c), 0);
	if (device != CKPT_DEVICE_HOST) {
		assert_int_equal(cuInit(0), 0); /* the caller's own use */
		assert_int_equal(cuDevicePrimaryCtxRetain(&context, device), 0);
		assert_int_equal(cuCtxPushCurrent_v2(context), 0);
		assert_int_equal(cuStreamCreate(&r->stream, 1), 0);
	}
	assert_int_equal(ckpt_stash_new(r->c, &options, &r->s), 0);
	for (size_t i = 0; i < 2; i++)
		r->memory[i] =
			rig_alloc(r, max_rows * r->row_bytes + 2 * SHIFT_MAX);
	r->memory[2] = rig_alloc(r, sizeof(*r->rows));
	r->in = r->memory[0];
	r->out = r->memory[1];
	r->rows = r->memory[2];
}

static inline void rig_release(struct rig *r)
{
	void *context;

	ckpt_stash_free(r->s);
	for (size_t i = 0; i < 3; i++) {
		if (r->device == CKPT_DEVICE_HOST)
			free(r->memory[i]);
		else
			gpu_free(r->c->gpu, r->device, r->memory[i]);
	}
	if (r->device != CKPT_DEVICE_HOST) {
		assert_int_equal(cuStreamDestroy_v2(r->stream), 0);
		assert_int_equal(cuCtxPopCurrent_v2(&context), 0);
		assert_int_equal(cuDevicePrimaryCtxRelease_v2(r->device), 0);
	}
	ckpt_close(r->c);
	assert_int_equal(fake_cuda_device_bytes(), 0);
	assert_int_equal(fake_cuda_pinned_bytes(), 0);
}

static inline void rig_wait(struct rig *r)
{
	if (r->stream)
		assert_int_equal(cuStreamSynchronize(r->stream), 0);
}

static inline uint8_t pattern(unsigned key, uint64_t at)
{
	uint64_t x = (at + 1) * 0x9e3779b97f4a7c15u + key * 0x85ebca77u;

	return (uint8_t)(x >> 37);
}

static inline struct ckpt_stash_item *item_new(struct rig *r)
{
	struct ckpt_stash_item *i;

	assert_int_equal(ckpt_stash_item_new(r->s, r->type.element_bytes,
					     r->type.row_elements, r->max_rows,
					     &i),
			 0);
	return i;
}

static inline void fill(struct rig *r, unsigned key, int64_t n)
{
	uint64_t rows = n < 0                       ? 0
			: (uint64_t)n > r->max_rows ? r->max_rows
						    : (uint64_t)n;

	for (uint64_t i = 0; i < rows * r->row_bytes; i++)
		r->in[i] = pattern(key, i);
	*r->rows = n;
}

/* Pack n rows of a content of their own; the device is idle before. */
static inline void pack(struct rig *r, struct ckpt_stash_item *i, unsigned key,
			int64_t n)
{
	fill(r, key, n);
	assert_int_equal(ckpt_stash_pack(i, r->in, r->rows, r->stream), 0);
	rig_wait(r);
}

static inline bool has_rows(struct rig *r, unsigned key, int64_t n)
{
	uint64_t len = (uint64_t)n * r->row_bytes;

	for (uint64_t i = 0; i < len; i++)
		if (r->out[i] != pattern(key, i))
			return false;
	for (uint64_t i = len; i < r->max_rows * r->row_bytes; i++)
		if (r->out[i] != GUARD)
			return false; /* it wrote past the last row */
	return true;
}

static inline void unpack(struct rig *r, struct ckpt_stash_item *i)
{
	memset(r->out, GUARD, r->max_rows * r->row_bytes);
	assert_int_equal(ckpt_stash_unpack(i, r->out, r->stream), 0);
	rig_wait(r);
}

/* n rows come back; or, with n 0, nothing. */
static inline void assert_unpacks(struct rig *r, struct ckpt_stash_item *i,
				  unsigned key, int64_t n)
{
	unpack(r, i);
	assert_true(has_rows(r, key, n));
}

static inline struct ckpt_stash_state state_of(struct rig *r)
{
	struct ckpt_stash_state s;

	assert_int_equal(ckpt_stash_get_state(r->s, r->type.element_bytes,
					      r->type.row_elements, r->stream,
					      &s),
			 0);
	return s;
}

static inline bool overflowed(struct rig *r)
{
	uint32_t plain = 7, *flag = &plain;
	void *pinned = NULL;
	bool is;

	if (r->stream) {
		assert_int_equal(gpu_host_alloc(r->c->gpu, 4, &pinned), 0);
		flag = pinned;
		*flag = 7;
	}
	assert_int_equal(ckpt_stash_overflowed(r->s, flag, r->stream), 0);
	if (r->stream)
		assert_int_equal(*flag, 7); /* it did not wait */
	rig_wait(r);
	is = *flag == 1;
	assert_true(*flag <= 1);
	if (r->stream)
		gpu_host_free(r->c->gpu, pinned);
	return is;
}

static inline void reset(struct rig *r)
{
	assert_int_equal(ckpt_stash_reset(r->s, r->stream), 0);
	rig_wait(r);
}

/* A type of few rows, most of them on the device. */
#define SMALL ((struct ckpt_stash_type){ 4, 33, 40, 8 })

#endif
