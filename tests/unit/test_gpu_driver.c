/*
 * The CUDA driver is opened when the program runs: whatever is or is not there
 * gets a sentence, and what it can do is passed on. With the fake driver.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "gpu/handle.h"
#include "gpu/kernel_image.h"
#include "tests/gpu/fake_cuda.h"

#define BYTES 4096

static char *fake; /* its path */
static char text[160];

static int remember_fake(void **state)
{
	(void)state;
	fake = strdup(getenv("CKPT_CUDA_LIBRARY"));
	return fake ? 0 : -1;
}

static int forget_fake(void **state)
{
	(void)state;
	free(fake);
	return 0;
}

static int use_fake(void **state)
{
	(void)state;
	(void)setenv("CKPT_CUDA_LIBRARY", fake, 1);
	(void)unsetenv("FAKE_CUDA_DEVICES");
	(void)unsetenv("FAKE_CUDA_FAIL_REGISTER");
	fake_cuda_fail("", 0, 0);
	return 0;
}

static void assert_no_driver(const char *says)
{
	struct ckpt *c;
	struct gpu *g;

	assert_int_equal(gpu_open(&g, text, sizeof(text)), -ENODEV);
	assert_non_null(strstr(text, says));
	assert_non_null(strstr(ckpt_last_error(), says));
	/* And the library goes on without. */
	assert_int_equal(ckpt_open(NULL, &c), 0);
	assert_string_equal(ckpt_gpu_state(c), text);
	assert_null(c->gpu);
	ckpt_close(c);
}

static void no_library_is_no_driver(void **state)
{
	(void)state;
	(void)setenv("CKPT_CUDA_LIBRARY", "/no/such/libcuda.so", 1);
	assert_no_driver("no CUDA driver: /no/such/libcuda.so: cannot open");
}

static void another_library_is_no_driver(void **state)
{
	(void)state;
	(void)setenv("CKPT_CUDA_LIBRARY", "libc.so.6", 1);
	assert_no_driver("libc.so.6 has no cuInit");
}

static void a_stub_and_a_broken_driver_are_named(void **state)
{
	(void)state;
	fake_cuda_fail("cuInit", 1, 34);
	assert_int_equal(gpu_open(&(struct gpu *){ NULL }, text, sizeof(text)),
			 -ENODEV);
	assert_non_null(strstr(text, "does not start: CUDA_ERROR_STUB_LIBRARY: "
				     "a library to link with"));
	fake_cuda_fail("cuInit", 1, 12345);
	assert_int_equal(gpu_open(&(struct gpu *){ NULL }, text, sizeof(text)),
			 -ENODEV);
	assert_non_null(strstr(text, "error 12345"));
}

static void a_driver_without_devices_is_named(void **state)
{
	(void)state;
	(void)setenv("FAKE_CUDA_DEVICES", "0", 1);
	assert_no_driver("CUDA_ERROR_NO_DEVICE");
}

static void all_share_one_driver_and_contexts_come_late(void **state)
{
	struct gpu *a, *b;
	void *p;

	(void)state;
	assert_int_equal(gpu_open(&a, text, sizeof(text)), 0);
	assert_string_equal(text, "CUDA driver 12.4, 2 devices");
	assert_int_equal(gpu_open(&b, text, sizeof(text)), 0);
	assert_string_equal(text, "CUDA driver 12.4, 2 devices");
	assert_ptr_equal(a, b);
	assert_int_equal(gpu_device_count(a), 2);
	assert_true(gpu_has_kernels(a));
	assert_int_equal(fake_cuda_contexts(0), 0);
	assert_int_equal(gpu_alloc(a, 1, BYTES, &p), 0);
	gpu_free(a, 1, p);
	gpu_close(a);
	assert_int_equal(fake_cuda_contexts(1), 1);
	gpu_close(b);
	assert_int_equal(fake_cuda_contexts(1), 0);
	gpu_close(NULL);
	(void)setenv("FAKE_CUDA_DEVICES", "1", 1);
	assert_int_equal(gpu_open(&a, text, sizeof(text)), 0);
	assert_string_equal(text, "CUDA driver 12.4, 1 device");
	gpu_close(a);
}

static void the_current_context_is_left_as_it_was(void **state)
{
	void *before, *after, *p;
	struct gpu *g;

	(void)state;
	assert_int_equal(gpu_open(&g, text, sizeof(text)), 0);
	assert_int_equal(cuCtxGetCurrent(&before), 0);
	assert_int_equal(gpu_alloc(g, 0, BYTES, &p), 0);
	gpu_free(g, 0, p);
	fake_cuda_fail("cuMemAlloc_v2", 1, 2);
	assert_int_equal(gpu_alloc(g, 0, BYTES, &p), -ENOMEM);
	assert_int_equal(gpu_alloc(g, 2, BYTES, &p), -EINVAL);
	assert_int_equal(gpu_alloc(g, -2, BYTES, &p), -EINVAL);
	assert_int_equal(cuCtxGetCurrent(&after), 0);
	assert_ptr_equal(before, after);
	gpu_close(g);
}

static void pointers_lead_where_they_lead(void **state)
{
	void *on_1, *pinned;
	char stack[8];
	struct gpu *g;
	int device;

	(void)state;
	assert_int_equal(gpu_open(&g, text, sizeof(text)), 0);
	assert_int_equal(gpu_alloc(g, 1, BYTES, &on_1), 0);
	assert_int_equal(gpu_host_alloc(g, BYTES, &pinned), 0);
	assert_int_equal(
		gpu_pointer_device(g, (char *)on_1 + BYTES - 1, -2, &device),
		0);
	assert_int_equal(device, 1);
	assert_int_equal(gpu_pointer_device(g, pinned, -2, &device), 0);
	assert_int_equal(device, -1);
	assert_int_equal(gpu_pointer_device(g, stack, -2, &device), 0);
	assert_int_equal(device, -1);
	assert_int_equal(gpu_pointer_device(g, stack, 0, &device), 0);
	assert_int_equal(device, -1);
	assert_int_equal(gpu_pointer_device(g, on_1, 0, &device), 0);
	assert_int_equal(device, 1);
	assert_int_equal(gpu_pointer_device(g, on_1, -1, &device), 0);
	assert_int_equal(device, 1);
	assert_int_equal(gpu_pointer_device(g, pinned, 1, &device), 0);
	assert_int_equal(device, 1);
	/* Before 11.x the driver called that an error. */
	fake_cuda_fail("cuPointerGetAttributes", 1, 1);
	assert_int_equal(gpu_pointer_device(g, stack, -2, &device), 0);
	assert_int_equal(device, -1);
	/* Without a context in this thread: it is asked in one of another. */
	fake_cuda_fail("cuPointerGetAttributes", 1, 201);
	assert_int_equal(gpu_pointer_device(g, on_1, -2, &device), 0);
	assert_int_equal(device, 1);
	fake_cuda_fail("cuPointerGetAttributes", 1, 700);
	assert_int_equal(gpu_pointer_device(g, stack, -2, &device), -EIO);
	gpu_host_free(g, pinned);
	gpu_free(g, 1, on_1);
	gpu_close(g);
}

static void a_pointer_is_asked_for_without_a_context_of_ours(void **state)
{
	char stack[16];
	struct gpu *g;
	int device = 5;

	(void)state;
	assert_int_equal(gpu_open(&g, text, sizeof(text)), 0);
	fake_cuda_fail("cuPointerGetAttributes", 1, 201);
	assert_int_equal(gpu_pointer_device(g, stack, -2, &device), 0);
	assert_int_equal(device, -1);
	assert_int_equal(fake_cuda_contexts(0) + fake_cuda_contexts(1), 0);
	gpu_close(g);
}

static void memory_is_pinned_once_by_a_context_that_is_there(void **state)
{
	static char memory[BYTES];
	struct gpu *g;
	void *p;

	(void)state;
	assert_int_equal(gpu_open(&g, text, sizeof(text)), 0);
	assert_int_equal(gpu_alloc(g, 1, BYTES, &p), 0);
	assert_int_equal(gpu_register(g, memory, BYTES, false), 0);
	assert_int_equal(fake_cuda_contexts(0), 0); /* 1 served */
	assert_int_equal(fake_cuda_pinned_bytes(), BYTES);
	assert_int_equal(gpu_register(g, memory, 10, true), -EINVAL);
	assert_non_null(strstr(ckpt_last_error(), "ALREADY_REGISTERED"));
	gpu_unregister(g, memory);
	assert_int_equal(fake_cuda_pinned_bytes(), 0);
	gpu_unregister(g, memory); /* harmless */
	gpu_free(g, 1, p);
	gpu_close(g);
}

static void pinning_that_fails_says_why(void **state)
{
	static char memory[BYTES];
	struct gpu *g;

	(void)state;
	(void)setenv("FAKE_CUDA_FAIL_REGISTER", "1", 1);
	assert_int_equal(gpu_open(&g, text, sizeof(text)), 0);
	assert_int_equal(gpu_register(g, memory, BYTES, false), -ENOMEM);
	assert_string_equal(ckpt_last_error(),
			    "CUDA: cannot pin 4096 bytes: "
			    "CUDA_ERROR_OUT_OF_MEMORY: out of memory");
	gpu_close(g);
	(void)setenv("FAKE_CUDA_FAIL_REGISTER", "801", 1);
	assert_int_equal(gpu_open(&g, text, sizeof(text)), 0);
	assert_int_equal(gpu_register(g, memory, BYTES, true), -EIO);
	assert_non_null(strstr(ckpt_last_error(), "NOT_SUPPORTED"));
	gpu_close(g);
}

struct rig {
	struct gpu *g;
	struct gpu_stream *a, *b;
	uint8_t *device, *host;
};

static void rig_init(struct rig *r)
{
	void *p;

	assert_int_equal(gpu_open(&r->g, text, sizeof(text)), 0);
	assert_int_equal(gpu_stream_new(r->g, 0, &r->a), 0);
	assert_int_equal(gpu_stream_new(r->g, 0, &r->b), 0);
	assert_int_equal(gpu_alloc(r->g, 0, BYTES, &p), 0);
	r->device = p;
	assert_int_equal(gpu_host_alloc(r->g, BYTES, &p), 0);
	r->host = p;
}

static void rig_release(struct rig *r)
{
	gpu_stream_free(r->a);
	gpu_stream_free(r->b);
	gpu_free(r->g, 0, r->device);
	gpu_host_free(r->g, r->host);
	gpu_close(r->g);
}

static void copies_are_done_when_they_are_waited_for(void **state)
{
	uint64_t d2h = fake_cuda_d2h_bytes(), h2d = fake_cuda_h2d_bytes();
	struct gpu_event *e;
	struct rig r;

	(void)state;
	rig_init(&r);
	memset(r.host, 7, BYTES);
	assert_int_equal(gpu_copy_h2d(r.a, r.device, r.host, BYTES / 2), 0);
	assert_int_equal(
		gpu_copy_d2d(r.a, r.device + BYTES / 2, r.device, BYTES / 2),
		0);
	assert_int_equal(gpu_zero(r.a, r.device, 16), 0);
	assert_int_equal(gpu_stream_sync(r.a), 0);
	memset(r.host, 1, BYTES);
	assert_int_equal(gpu_event_new(r.g, 0, &e), 0);
	assert_int_equal(gpu_copy_d2h(r.a, r.host, r.device, BYTES), 0);
	assert_int_equal(gpu_event_record(e, r.a), 0);
	assert_int_equal(r.host[16], 1); /* the fake is as late as can be */
	assert_int_equal(gpu_event_sync(e), 0);
	assert_int_equal(r.host[15], 0);
	assert_int_equal(r.host[16], 7);
	assert_int_equal(r.host[BYTES - 1], 7);
	assert_int_equal(fake_cuda_h2d_bytes(), h2d + BYTES / 2);
	assert_int_equal(fake_cuda_d2h_bytes(), d2h + BYTES);
	gpu_event_free(e);
	rig_release(&r);
}

static void a_stream_waits_for_another(void **state)
{
	struct rig r;

	(void)state;
	rig_init(&r);
	memset(r.host, 0, BYTES);
	assert_int_equal(gpu_zero(r.a, r.device, BYTES), 0);
	assert_int_equal(gpu_stream_sync(r.a), 0);
	memset(r.host, 9, BYTES);
	/* The default stream is the caller's; ours does not wait unasked. */
	for (int asked = 0; asked < 2; asked++) {
		struct gpu_stream *callers;
		struct gpu_event *event;

		assert_int_equal(gpu_stream_wrap(r.g, 0, NULL, &callers), 0);
		assert_int_equal(
			gpu_copy_h2d(callers, r.device, r.host, BYTES / 2), 0);
		assert_int_equal(gpu_event_new(r.g, 0, &event), 0);
		assert_int_equal(gpu_event_record(event, callers), 0);
		if (asked)
			assert_int_equal(gpu_stream_wait_event(r.a, event), 0);
		assert_int_equal(gpu_copy_d2h(r.a, r.host + BYTES / 2, r.device,
					      BYTES / 2),
				 0);
		assert_int_equal(gpu_stream_sync(r.a), 0);
		assert_int_equal(r.host[BYTES - 1], asked ? 9 : 0);
		gpu_event_free(event);
		gpu_stream_free(callers);
	}
	rig_release(&r);
}

static void an_error_of_the_work_is_told_by_who_waits(void **state)
{
	struct rig r;

	(void)state;
	rig_init(&r);
	fake_cuda_fail("cuStreamSynchronize", 1, 700);
	assert_int_equal(gpu_stream_sync(r.a), -EIO);
	assert_non_null(strstr(ckpt_last_error(),
			       "CUDA: work on device 0 failed: error 700"));
	assert_int_equal(gpu_copy_d2h(r.a, r.host, text, 10), -EINVAL);
	assert_int_equal(gpu_copy_d2h(r.a, r.host, r.device, BYTES + 1),
			 -EINVAL);
	rig_release(&r);
}

static void a_driver_that_refuses_the_kernels_hears_of_their_cuda(void **state)
{
	char want[64];
	struct rig r;

	(void)state;
	(void)snprintf(want, sizeof(want), "no kernels made with CUDA %s",
		       kernel_image_cuda());
	rig_init(&r);
	fake_cuda_fail("cuModuleLoadData", 1, 222); /* PTX that is too new */
	assert_int_equal(gpu_launch(r.a, "stash_reset", 1, 1, NULL), -ENODEV);
	assert_non_null(strstr(ckpt_last_error(), want));
	rig_release(&r);
}

static void a_child_does_not_use_its_parents_driver(void **state)
{
	struct gpu *g;
	pid_t child;
	int status;
	void *p;

	(void)state;
	assert_int_equal(gpu_open(&g, text, sizeof(text)), 0);
	assert_int_equal(gpu_alloc(g, 0, BYTES, &p), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		struct gpu *again = NULL;
		int rc;

		gpu_close(g); /* gives nothing back */
		if (fake_cuda_contexts(0) != 1)
			_exit(1);
		rc = gpu_open(&again, text, sizeof(text));
		_exit(rc == -ENODEV && strstr(text, "after a fork") ? 0 : 2);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	gpu_free(g, 0, p);
	gpu_close(g);
}

#define THREADS 4
#define ROUNDS 50

/* One user of the driver among several; returns NULL if all went well. */
static void *use_it(void *arg)
{
	int device = *(const int *)arg;
	char says[160];

	for (unsigned n = 0; n < ROUNDS; n++) {
		struct gpu_stream *s = NULL;
		uint8_t *host = NULL;
		void *p = NULL, *q = NULL;
		struct gpu *g;
		bool ok;

		if (gpu_open(&g, says, sizeof(says)) < 0)
			return arg;
		ok = gpu_alloc(g, device, BYTES, &p) == 0 &&
		     gpu_host_alloc(g, BYTES, &q) == 0 &&
		     gpu_stream_new(g, device, &s) == 0;
		host = q;
		if (ok) {
			memset(host, (int)n, BYTES);
			ok = gpu_copy_h2d(s, p, host, BYTES) == 0 &&
			     gpu_zero(s, p, 1) == 0 &&
			     gpu_copy_d2h(s, host, p, BYTES) == 0 &&
			     gpu_stream_sync(s) == 0 && host[0] == 0 &&
			     host[1] == n;
		}
		gpu_stream_free(s);
		gpu_host_free(g, host);
		gpu_free(g, device, p);
		gpu_close(g);
		if (!ok)
			return arg;
	}
	return NULL;
}

static void threads_come_and_go(void **state)
{
	static int devices[THREADS] = { 0, 1, 0, 1 };
	pthread_t threads[THREADS];

	(void)state;
	for (size_t i = 0; i < THREADS; i++)
		assert_int_equal(
			pthread_create(&threads[i], NULL, use_it, &devices[i]),
			0);
	for (size_t i = 0; i < THREADS; i++) {
		void *failed;

		assert_int_equal(pthread_join(threads[i], &failed), 0);
		assert_null(failed);
	}
	assert_int_equal(fake_cuda_contexts(0), 0);
	assert_int_equal(fake_cuda_contexts(1), 0);
	assert_int_equal(fake_cuda_device_bytes(), 0);
	assert_int_equal(fake_cuda_pinned_bytes(), 0);
}

#define WITH_FAKE(test) cmocka_unit_test_setup(test, use_fake)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_FAKE(no_library_is_no_driver),
		WITH_FAKE(another_library_is_no_driver),
		WITH_FAKE(a_stub_and_a_broken_driver_are_named),
		WITH_FAKE(a_driver_without_devices_is_named),
		WITH_FAKE(all_share_one_driver_and_contexts_come_late),
		WITH_FAKE(the_current_context_is_left_as_it_was),
		WITH_FAKE(pointers_lead_where_they_lead),
		WITH_FAKE(a_pointer_is_asked_for_without_a_context_of_ours),
		WITH_FAKE(memory_is_pinned_once_by_a_context_that_is_there),
		WITH_FAKE(pinning_that_fails_says_why),
		WITH_FAKE(copies_are_done_when_they_are_waited_for),
		WITH_FAKE(a_stream_waits_for_another),
		WITH_FAKE(an_error_of_the_work_is_told_by_who_waits),
		WITH_FAKE(
			a_driver_that_refuses_the_kernels_hears_of_their_cuda),
		WITH_FAKE(threads_come_and_go),
		WITH_FAKE(a_child_does_not_use_its_parents_driver),
	};

	return cmocka_run_group_tests(tests, remember_fake, forget_fake);
}
