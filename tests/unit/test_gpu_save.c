/*
 * What a save waits for on its devices: the work that the caller had enqueued
 * when it was started, and no other. With the fake driver, into plain files.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "gpu/driver_context.h"
#include "gpu/handle.h"
#include "store/base/io.h"
#include "store/base/scope.h"
#include "tests/gpu/fake_cuda.h"

#define BYTES 65536

static char dir[] = "/tmp/test_gpu_save.XXXXXX";

/* A caller with a stream, a tensor, and memory of which the save knows nothing.
 */
struct caller {
	struct ckpt *c;
	struct ckpt_save *save;
	void *raw;
	struct gpu_stream *stream;
	void *tensor, *other;
	uint8_t bytes[BYTES];
	char path[64];
};

static void caller_init(struct caller *u)
{
	const struct ckpt_options options = { .flags = CKPT_PLAIN };

	memset(u, 0, sizeof(*u));
	memset(u->bytes, 7, BYTES);
	(void)snprintf(u->path, sizeof(u->path), "%s/f", dir);
	assert_int_equal(ckpt_open(&options, &u->c), 0);
	assert_non_null(ckpt_driver(u->c));
	assert_non_null(u->c->gpu);
	assert_int_equal(gpu_alloc(u->c->gpu, 0, BYTES, &u->tensor), 0);
	assert_int_equal(gpu_alloc(u->c->gpu, 0, BYTES, &u->other), 0);
	assert_int_equal(gpu_stream_new(u->c->gpu, 0, &u->stream), 0);
	u->raw = u->stream->raw;
}

static void caller_release(struct caller *u)
{
	ckpt_save_free(u->save);
	gpu_stream_free(u->stream);
	gpu_free(u->c->gpu, 0, u->tensor);
	gpu_free(u->c->gpu, 0, u->other);
	ckpt_close(u->c);
	(void)unlink(u->path);
}

static void begin(struct caller *u, unsigned tensors)
{
	const uint64_t shape[] = { BYTES };
	char name[16];

	assert_int_equal(ckpt_begin(u->c, u->path, &u->save), 0);
	for (unsigned i = 0; i < tensors; i++) {
		const struct ckpt_tensor t = { .name = name,
					       .dtype = "U8",
					       .shape = shape,
					       .rank = 1,
					       .data = u->tensor,
					       .device = 0,
					       .stream = u->raw };

		(void)snprintf(name, sizeof(name), "t%u", i);
		assert_int_equal(ckpt_add(u->save, &t), 0);
	}
}

/* The last tensor's bytes, at the end of the file. */
static void assert_saved(const struct caller *u)
{
	uint8_t got[BYTES];
	size_t len;
	int fd = open(u->path, O_RDONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(io_read(fd, got, BYTES,
				 (uint64_t)lseek(fd, -BYTES, SEEK_END), &len),
			 0);
	assert_memory_equal(got, u->bytes, BYTES);
	(void)close(fd);
}

static bool is_zero(const struct caller *u)
{
	const uint8_t *p =
		u->other; /* the fake device's memory is the host's */

	return p[0] == 0 && memcmp(p, p + 1, BYTES - 1) == 0;
}

/*
 * The thread of the save gets to its streams only when the caller has enqueued
 * more: that is the next step of his training, which may take seconds.
 */
static void a_save_does_not_wait_for_what_is_enqueued_later(void **state)
{
	struct caller u;

	(void)state;
	caller_init(&u);
	begin(&u, 3);
	memset(u.other, 1, BYTES);
	assert_int_equal(gpu_copy_h2d(u.stream, u.tensor, u.bytes, BYTES), 0);
	{
		HOLD(&u.c->streams_lock);
		assert_int_equal(ckpt_start(u.save), 0);
		assert_int_equal(gpu_zero(u.stream, u.other, BYTES), 0);
	}
	assert_int_equal(ckpt_commit(u.save), 0);
	assert_saved(&u);
	assert_false(is_zero(&u));
	assert_int_equal(gpu_stream_sync(u.stream), 0);
	assert_true(is_zero(&u));
	caller_release(&u);
}

static void capture(struct gpu_stream *s, void **graph, bool begin_it)
{
	SCOPED(gpu_leave) struct entered in = { 0 };

	assert_int_equal(gpu_enter(s->g, s->device, &in), 0);
	if (begin_it)
		assert_int_equal(cuStreamBeginCapture_v2(s->raw, 0), 0);
	else
		assert_int_equal(cuStreamEndCapture(s->raw, graph), 0);
}

/* The trainer captures a graph of another stream: everything else goes on. */
static void a_save_goes_on_while_a_graph_is_captured(void **state)
{
	struct gpu_stream *captured;
	struct caller u;
	void *graph;

	(void)state;
	caller_init(&u);
	begin(&u, 3);
	assert_int_equal(gpu_copy_h2d(u.stream, u.tensor, u.bytes, BYTES), 0);
	assert_int_equal(gpu_stream_new(u.c->gpu, 0, &captured), 0);
	capture(captured, &graph, true);
	assert_int_equal(ckpt_start(u.save), 0);
	assert_int_equal(ckpt_commit(u.save), 0);
	capture(captured, &graph, false);
	assert_int_equal(cuGraphDestroy(graph), 0);
	assert_saved(&u);
	gpu_stream_free(captured);
	caller_release(&u);
}

/* Of the stream that is captured itself nothing can be saved: what it would
 * save has not run. The capture goes on. */
static void a_save_on_a_stream_that_is_captured_is_refused(void **state)
{
	struct caller u;
	void *graph;

	(void)state;
	caller_init(&u);
	begin(&u, 3);
	capture(u.stream, &graph, true);
	assert_int_equal(ckpt_start(u.save), -EBUSY);
	assert_non_null(strstr(ckpt_last_error(), "captured"));
	assert_int_equal(gpu_zero(u.stream, u.tensor, BYTES), 0);
	capture(u.stream, &graph, false);
	assert_int_equal(cuGraphDestroy(graph), 0);
	assert_int_equal(ckpt_commit(u.save), -EBUSY);
	assert_int_equal(access(u.path, F_OK), -1);
	caller_release(&u);
}

/* The driver refuses the mark: an error, and nothing was made. */
static void a_save_that_cannot_be_started_fails(void **state)
{
	struct caller u;

	(void)state;
	caller_init(&u);
	begin(&u, 1);
	fake_cuda_fail("cuEventRecord", 1, 700);
	assert_int_equal(ckpt_start(u.save), -EIO);
	assert_int_equal(ckpt_is_committed(u.save), 1);
	assert_int_equal(ckpt_commit(u.save), -EIO);
	assert_int_equal(access(u.path, F_OK), -1);
	caller_release(&u);
}

/* Saved as device `said`'s, or the host's, and read back there. */
static void assert_goes_both_ways(struct caller *u, void *p, int said)
{
	const uint64_t shape[] = { BYTES };
	const struct ckpt_tensor t = { .name = "t",
				       .dtype = "U8",
				       .shape = shape,
				       .rank = 1,
				       .data = p,
				       .device = said,
				       .stream = said == 0 ? u->raw : NULL };
	struct ckpt_target into = { .data = p, .device = said };
	struct ckpt_file *f;

	memcpy(p, u->bytes, BYTES);
	assert_int_equal(ckpt_begin(u->c, u->path, &u->save), 0);
	assert_int_equal(ckpt_add(u->save, &t), 0);
	assert_int_equal(ckpt_commit(u->save), 0);
	assert_saved(u);
	ckpt_save_free(TAKE(u->save));
	memset(p, 0, BYTES);
	assert_int_equal(ckpt_file_open(u->c, u->path, &f), 0);
	into.entry = ckpt_file_find(f, "t");
	assert_int_equal(ckpt_file_read(f, &into, 1), 0);
	assert_memory_equal(p, u->bytes, BYTES);
	ckpt_file_close(f);
}

/*
 * The pages of a paged optimizer are managed memory, in tensors of the host;
 * what a device works on may be the host's memory, mapped.
 */
static void memory_of_both_is_where_it_is_said_to_be(void **state)
{
	static const int said[] = { CKPT_DEVICE_HOST, 0, 1 };
	struct caller u;
	uint64_t managed;
	void *mapped;

	(void)state;
	caller_init(&u);
	{
		SCOPED(gpu_leave) struct entered in = { 0 };

		assert_int_equal(gpu_enter(u.c->gpu, 1, &in), 0);
		assert_int_equal(cuMemAllocManaged(&managed, BYTES, 1), 0);
	}
	assert_int_equal(gpu_host_alloc(u.c->gpu, BYTES, &mapped), 0);
	for (size_t i = 0; i < sizeof(said) / sizeof(*said); i++) {
		uint64_t before = fake_cuda_d2h_bytes();

		assert_goes_both_ways(&u, (void *)(uintptr_t)managed, said[i]);
		assert_goes_both_ways(&u, mapped, said[i]);
		/* A device's: by its stream, after what is there. */
		assert_int_equal(fake_cuda_d2h_bytes() - before,
				 said[i] < 0 ? 0 : 2 * BYTES);
	}
	gpu_host_free(u.c->gpu, mapped);
	gpu_free(u.c->gpu, 1, (void *)(uintptr_t)managed);
	caller_release(&u);
}

static int make_dir(void **state)
{
	(void)state;
	return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
	(void)state;
	return rmdir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			a_save_does_not_wait_for_what_is_enqueued_later),
		cmocka_unit_test(a_save_goes_on_while_a_graph_is_captured),
		cmocka_unit_test(
			a_save_on_a_stream_that_is_captured_is_refused),
		cmocka_unit_test(a_save_that_cannot_be_started_fails),
		cmocka_unit_test(memory_of_both_is_where_it_is_said_to_be),
	};

	return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
