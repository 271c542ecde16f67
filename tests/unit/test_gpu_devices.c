/*
 * What tells several devices apart: bytes that two hold alike cross the bus
 * once, and are copied within the segment by several threads; memory is asked
 * for next to the one that has most. With the fake driver.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gpu/crew.h"
#include "gpu/driver.h"
#include "gpu/handle.h"
#include "gpu/save_segment.h"
#include "gpu/unchanged.h"
#include "store/base/scope.h"
#include "tests/gpu/fake_cuda.h"

#define CHUNKS 4u
#define BYTES (CHUNKS * UNCHANGED_CHUNK_BYTES)

static size_t crew_items_max; /* of one round */

int __real_crew_once(unsigned threads, size_t count, crew_work *work,
		     void *arg);
int __wrap_crew_once(unsigned threads, size_t count, crew_work *work,
		     void *arg);

int __wrap_crew_once(unsigned threads, size_t count, crew_work *work, void *arg)
{
	if (threads > 1 && count > crew_items_max)
		crew_items_max = count;
	return __real_crew_once(threads, count, work, arg);
}

/* Each chunk is another one; the fake device's memory is the host's. */
static void *tensor_on(struct ckpt *c, int device)
{
	void *p;

	assert_int_equal(gpu_alloc(c->gpu, device, BYTES, &p), 0);
	for (size_t i = 0; i < BYTES / 4; i++)
		((uint32_t *)p)[i] = (uint32_t)i;
	return p;
}

static void equal_chunks_are_copied_by_a_crew(void **state)
{
	const struct ckpt_options options = { .copy_threads = 2 };
	const uint64_t shape[] = { BYTES };
	struct layout l = { 0 };
	struct mapping p = { 0 };
	void *data[2];
	struct ckpt *c;
	uint64_t skipped;

	(void)state;
	assert_int_equal(ckpt_open(&options, &c), 0);
	assert_non_null(ckpt_driver(c));
	for (int i = 0; i < 2; i++) {
		const struct ckpt_tensor t = { .name = i ? "b" : "a",
					       .dtype = "U8",
					       .shape = shape,
					       .rank = 1,
					       .data = data[i] =
						       tensor_on(c, i) };

		assert_int_equal(layout_add(&l, &t, i), 0);
	}
	assert_int_equal(layout_finish(&l), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(gpu_event_new(c->gpu, i, &l.tensors[i].ready),
				 0);
	p.memory = calloc(1, l.file_bytes);
	assert_non_null(p.memory);
	assert_int_equal(unchanged_copy_rest(c, &p, &l, &skipped), 0);
	assert_int_equal(skipped, BYTES);
	assert_int_equal(crew_items_max, CHUNKS);
	for (int i = 0; i < 2; i++) {
		assert_memory_equal(p.memory + l.tensors[i].offset, data[i],
				    BYTES);
		gpu_event_free(l.tensors[i].ready);
		gpu_free(c->gpu, i, data[i]);
	}
	free(p.digests);
	free(p.memory);
	layout_release(&l);
	ckpt_close(c);
}

static struct ckpt_mount a_mount = { .lock = PTHREAD_MUTEX_INITIALIZER,
				     .changed = PTHREAD_COND_INITIALIZER };
static struct segment_request asked;

int __wrap_mapping_find_mount(struct ckpt *c, int dirfd,
			      struct ckpt_mount **ret_mount);
int __wrap_mount_request(struct ckpt_mount *m, struct segment_request *q,
			 struct segment_reply *ret, int *ret_fd,
			 unsigned *ret_connection);

int __wrap_mapping_find_mount(struct ckpt *c, int dirfd,
			      struct ckpt_mount **ret_mount)
{
	(void)c;
	(void)dirfd;
	*ret_mount = &a_mount;
	return 0;
}

/* One that gives no segments. */
int __wrap_mount_request(struct ckpt_mount *m, struct segment_request *q,
			 struct segment_reply *ret, int *ret_fd,
			 unsigned *ret_connection)
{
	(void)m;
	(void)ret;
	(void)ret_fd;
	(void)ret_connection;
	asked = *q;
	return -EOPNOTSUPP;
}

/* Each of `bytes` is a tensor of so many; the i-th lies on device i, or not. */
static uint64_t asked_for(struct ckpt *c, const uint64_t *bytes, size_t count,
			  bool on_device)
{
	char path[] = "f", name[] = "a";
	struct destination d = { .path = path };
	struct layout l = { 0 };
	uint64_t ino;

	for (size_t i = 0; i < count; i++, name[0]++) {
		const struct ckpt_tensor t = { .name = name,
					       .dtype = "U8",
					       .shape = &bytes[i],
					       .rank = 1,
					       .data = &l };

		assert_int_equal(layout_add(&l, &t, on_device ? (int)i : -1),
				 0);
	}
	assert_int_equal(layout_finish(&l), 0);
	assert_int_equal(save_through_segment(c, 0, &d, &l, &ino), -EOPNOTSUPP);
	layout_release(&l);
	return asked.generation;
}

static void memory_is_asked_for_next_to_the_device(void **state)
{
	static const uint64_t second[] = { 4096, 8192 }, first[] = { 9, 8 };
	struct ckpt *c;

	(void)state;
	assert_int_equal(ckpt_open(NULL, &c), 0);
	assert_non_null(ckpt_driver(c));
	assert_int_equal(asked_for(c, second, 2, true), 1 + 1);
	assert_int_equal(asked_for(c, first, 2, true), 1 + 0);
	assert_int_equal(asked_for(c, first, 2, false), 0);
	fake_cuda_fail("cuDeviceGetAttribute", 1, 1); /* an old driver */
	assert_int_equal(asked_for(c, first, 2, true), 0);
	ckpt_close(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(equal_chunks_are_copied_by_a_crew),
		cmocka_unit_test(memory_is_asked_for_next_to_the_device),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
