/*
 * Tensors of a safetensors file are read to the devices of the tests' own
 * driver: each byte once, through few buffers, and every failure is told.
 */
#include "tests/gpu/fake_cuda.h"
#include "tests/unit/tensors_fixture.h"

#define OUT_OF_MEMORY 2 /* the driver's */

static struct ckpt *open_with_driver(uint64_t buffer_bytes)
{
	struct ckpt_options o = { .buffer_bytes = buffer_bytes };
	struct ckpt *c;

	fake_cuda_fail("", 0, 0);
	assert_int_equal(ckpt_open(&o, &c), 0);
	assert_non_null(ckpt_driver(c));
	return c;
}

/* Room for every entry: on device 0, on device 1, on the host, in turn. */
static uint64_t want_everywhere(struct reads *r, const struct ckpt_file *f,
				struct gpu *gpu)
{
	uint64_t on_devices = 0;

	want_all(r, f);
	for (size_t i = 0; i < r->count; i++) {
		struct ckpt_target *t = &r->targets[i];

		if (i % 3 == 2 || t->entry->bytes == 0)
			continue;
		free(t->data);
		t->device = (int)(i % 3);
		assert_int_equal(
			gpu_alloc(gpu, t->device, t->entry->bytes, &t->data),
			0);
		on_devices += t->entry->bytes;
	}
	return on_devices;
}

/* What is on a device is compared here, and given back. */
static void assert_have_everywhere(struct reads *r, struct gpu *gpu)
{
	for (size_t i = 0; i < r->count; i++) {
		struct ckpt_target *t = &r->targets[i];
		struct gpu_stream *s;
		void *copy;

		if (t->device == CKPT_DEVICE_HOST)
			continue;
		copy = malloc(t->entry->bytes);
		assert_non_null(copy);
		assert_int_equal(gpu_stream_new(gpu, t->device, &s), 0);
		assert_int_equal(
			gpu_copy_d2h(s, copy, t->data, t->entry->bytes), 0);
		assert_int_equal(gpu_stream_sync(s), 0);
		gpu_stream_free(s);
		gpu_free(gpu, t->device, t->data);
		t->data = copy;
		t->device = CKPT_DEVICE_HOST;
	}
	assert_have_all(r);
	reads_release(r);
}

static void every_byte_goes_to_its_device_once(void **state)
{
	/* Smaller than tensors, odd, and larger than all of them. */
	static const uint64_t buffers[] = { 1 * MIB, 5 * MIB - 3, 64 * MIB };
	static struct reads r;

	(void)state;
	put_tensors(some_sizes, SOME);
	for (size_t i = 0; i < sizeof(buffers) / sizeof(*buffers); i++) {
		struct ckpt *c = open_with_driver(buffers[i]);
		struct ckpt_file *f = open_good(c);
		uint64_t bytes = want_everywhere(&r, f, c->gpu);
		uint64_t before = fake_cuda_h2d_bytes();
		struct ckpt_counters counted;

		assert_int_equal(ckpt_file_read(f, r.targets, r.count), 0);
		assert_int_equal(fake_cuda_h2d_bytes() - before, bytes);
		ckpt_get_counters(c, &counted);
		assert_int_equal(counted.h2d_bytes, bytes);
		assert_int_equal(counted.pin_failures, 0);
		assert_have_everywhere(&r, c->gpu);
		ckpt_file_close(f);
		ckpt_close(c);
		assert_int_equal(fake_cuda_device_bytes(), 0);
	}
}

static void small_tensors_share_a_buffer(void **state)
{
	uint64_t sizes[TENSORS_MAX];
	static struct reads r;
	struct ckpt *c = open_with_driver(1 * MIB);
	struct ckpt_file *f;
	uint64_t syncs;

	(void)state;
	for (size_t i = 0; i < TENSORS_MAX; i++)
		sizes[i] = i % 200; /* 300 KB */
	put_tensors(sizes, TENSORS_MAX);
	f = open_good(c);
	(void)want_everywhere(&r, f, c->gpu);
	syncs = fake_cuda_syncs();
	assert_int_equal(ckpt_file_read(f, r.targets, r.count), 0);
	assert_int_equal(fake_cuda_syncs() - syncs, 2); /* one for a device */
	assert_have_everywhere(&r, c->gpu);
	ckpt_file_close(f);
	ckpt_close(c);
}

static void buffers_stay_with_the_handle(void **state)
{
	const uint64_t before = fake_cuda_pinned_bytes();
	static struct reads r;
	struct ckpt *c = open_with_driver(2 * MIB);

	(void)state;
	put_tensors(some_sizes, SOME);
	for (int again = 0; again < 3; again++) {
		struct ckpt_file *f = open_good(c);
		struct ckpt_counters counted;

		(void)want_everywhere(&r, f, c->gpu);
		assert_int_equal(ckpt_file_read(f, r.targets, r.count), 0);
		assert_have_everywhere(&r, c->gpu);
		ckpt_get_counters(c, &counted);
		assert_int_equal(counted.pinned_bytes, 4 * MIB);
		assert_int_equal(fake_cuda_pinned_bytes() - before, 4 * MIB);
		ckpt_file_close(f);
	}
	ckpt_close(c);
	assert_int_equal(fake_cuda_pinned_bytes(), before);
}

/* One of the two buffers, the other, both. */
static void memory_that_cannot_be_pinned_is_used_as_it_is(void **state)
{
	static struct reads r;

	(void)state;
	put_tensors(some_sizes, SOME);
	for (unsigned n = 1; n <= 2; n++) {
		struct ckpt *c = open_with_driver(2 * MIB);
		struct ckpt_file *f = open_good(c);
		struct ckpt_counters counted;

		(void)want_everywhere(&r, f, c->gpu);
		fake_cuda_fail("cuMemHostAlloc", n, OUT_OF_MEMORY);
		assert_int_equal(ckpt_file_read(f, r.targets, r.count), 0);
		assert_have_everywhere(&r, c->gpu);
		ckpt_get_counters(c, &counted);
		assert_int_equal(counted.pin_failures, 1);
		assert_int_equal(counted.pinned_bytes,
				 fake_cuda_pinned_bytes());
		ckpt_file_close(f);
		ckpt_close(c);
		assert_int_equal(fake_cuda_pinned_bytes(), 0);
	}
}

/* Fail the 1st, 2nd, ... call of each until a read goes through untouched. */
static void every_failure_of_the_driver_is_reported(void **state)
{
	static const char *const symbols[] = {
		"cuPointerGetAttributes", "cuStreamCreate",
		"cuEventCreate",          "cuMemcpyHtoDAsync_v2",
		"cuEventRecord",          "cuEventSynchronize",
		"cuStreamSynchronize",
	};
	static struct reads r;
	struct ckpt *c = open_with_driver(2 * MIB);
	struct ckpt_file *f;

	(void)state;
	put_tensors(some_sizes, SOME);
	f = open_good(c);
	(void)want_everywhere(&r, f, c->gpu);
	for (size_t i = 0; i < sizeof(symbols) / sizeof(*symbols); i++) {
		unsigned n = 0;
		int rc;

		do {
			fake_cuda_fail(symbols[i], ++n, OUT_OF_MEMORY);
			rc = ckpt_file_read(f, r.targets, r.count);
			assert_true(rc == 0 || rc == -ENOMEM);
		} while (rc < 0 && n < 1000);
		assert_true(n > 1);
		assert_int_equal(rc, 0);
	}
	fake_cuda_fail("", 0, 0);
	assert_have_everywhere(&r, c->gpu);
	ckpt_file_close(f);
	ckpt_close(c);
	assert_int_equal(fake_cuda_pinned_bytes(), 0);
}

static void a_file_that_shrinks_is_an_error_for_devices(void **state)
{
	static struct reads r;
	struct ckpt *c = open_with_driver(2 * MIB);
	struct ckpt_file *f;

	(void)state;
	put_tensors(some_sizes, SOME);
	f = open_good(c);
	(void)want_everywhere(&r, f, c->gpu);
	assert_int_equal(truncate(path, 10 * MIB), 0);
	assert_int_equal(ckpt_file_read(f, r.targets, r.count), -ESTALE);
	assert_says("it is shorter now than when it was opened");
	put_tensors(some_sizes, SOME); /* the same inode is whole again */
	assert_int_equal(ckpt_file_read(f, r.targets, r.count), 0);
	assert_have_everywhere(&r, c->gpu);
	ckpt_file_close(f);
	ckpt_close(c);
}

static void a_pointer_is_where_it_is_said_to_be(void **state)
{
	static const struct {
		int there;
		int said;
		const char *words;
	} wrong[] = {
		{ 0, 1, "its pointer is on device 0, and was said to be on 1" },
		{ 1, 0, "its pointer is on device 1, and was said to be on 0" },
		{ 1, CKPT_DEVICE_HOST, "its pointer is on device 1, and was" },
		{ 0, 2, "there is no device 2: CUDA driver" },
	};
	struct ckpt *c = open_with_driver(0);
	struct ckpt_target t = { .entry = NULL };
	struct ckpt_file *f;
	uint8_t byte;

	(void)state;
	put_json("{\"w\":" TENSOR("U8", "[1]", 0, 1) "}", 1);
	f = open_good(c);
	t.entry = ckpt_file_entry(f, 0);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		assert_int_equal(gpu_alloc(c->gpu, wrong[i].there, 1, &t.data),
				 0);
		t.device = wrong[i].said;
		assert_int_equal(ckpt_file_read(f, &t, 1), -EINVAL);
		assert_says("tensor 'w'");
		assert_says(wrong[i].words);
		gpu_free(c->gpu, wrong[i].there, t.data);
	}
	t.data = &byte;
	t.device = 0;
	assert_int_equal(ckpt_file_read(f, &t, 1), -EINVAL);
	assert_says("said to be on device 0, and is in host memory");
	ckpt_file_close(f);
	ckpt_close(c);
}

/* A file that is not safetensors, of which pieces go here and there. */
static void ranges_of_any_file_go_where_they_are_wanted(void **state)
{
	struct ckpt *c = open_with_driver(0);
	uint8_t bytes[4096], there[100];
	struct ckpt_range r[] = {
		{ .offset = 1000, .bytes = 2000, .device = 1 },
		{ .offset = 4000, .bytes = 96, .data = there,
		  .device = CKPT_DEVICE_HOST },
		{ .offset = 4096, .device = 0 }, /* nothing */
	};
	uint64_t before = fake_cuda_h2d_bytes();
	struct bytes b = { 0 };
	struct ckpt_file *f;

	(void)state;
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)(i * 7 + i / 256);
	bytes_put(&b, bytes, sizeof(bytes));
	put_file(&b);
	bytes_release(&b);
	assert_int_equal(ckpt_file_open(c, path, &f), -EBADMSG);
	assert_int_equal(ckpt_file_open_any(c, path, &f), 0);
	assert_int_equal(ckpt_file_count(f), 0);
	assert_int_equal(gpu_alloc(c->gpu, 1, 2000, &r[0].data), 0);
	assert_int_equal(ckpt_file_read_ranges(f, r, 3), 0);
	/* The fake device's memory is the host's. */
	assert_memory_equal(r[0].data, bytes + 1000, 2000);
	assert_memory_equal(there, bytes + 4000, 96);
	assert_int_equal(fake_cuda_h2d_bytes() - before, 2000);
	r[1].bytes = 97;
	assert_int_equal(ckpt_file_read_ranges(f, r, 3), -EINVAL);
	assert_says("the 97 bytes at 4000: the file has 4096");
	r[1].bytes = UINT64_MAX;
	assert_int_equal(ckpt_file_read_ranges(f, r, 3), -EINVAL);
	r[1].bytes = 96;
	r[1].device = 0;
	assert_int_equal(ckpt_file_read_ranges(f, r, 3), -EINVAL);
	assert_says("the 96 bytes at 4000: its pointer was said to be on");
	gpu_free(c->gpu, 1, r[0].data);
	ckpt_file_close(f);
	ckpt_close(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_byte_goes_to_its_device_once),
		cmocka_unit_test(small_tensors_share_a_buffer),
		cmocka_unit_test(buffers_stay_with_the_handle),
		cmocka_unit_test(memory_that_cannot_be_pinned_is_used_as_it_is),
		cmocka_unit_test(every_failure_of_the_driver_is_reported),
		cmocka_unit_test(a_file_that_shrinks_is_an_error_for_devices),
		cmocka_unit_test(a_pointer_is_where_it_is_said_to_be),
		cmocka_unit_test(ranges_of_any_file_go_where_they_are_wanted),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
