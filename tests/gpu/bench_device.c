/*
 * bench_device.c - the device as gpu_bench uses it: through the library's
 * table of driver functions, and a few more of them for time and graphs.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/scope.h"
#include "tests/gpu/busy.h"
#include "tests/gpu/gpu_bench.h"

struct gpu *gpu;
struct driver_more more;

static struct busy_module {
	void *module, *function;
	int device;
} busy;

void said(int result, const char *what)
{
	must(gpu_said(gpu, result, "%s", what), what);
}

static void enter(int device, struct entered *in)
{
	must(gpu_enter(gpu, device, in), "device");
}

void device_open(void)
{
	static const struct {
		const char *symbol;
		size_t at;
	} wanted[] = {
#define MORE(name, symbol) { symbol, offsetof(struct driver_more, name) }
		MORE(cuEventElapsedTime, "cuEventElapsedTime"),
		MORE(cuDeviceGetName, "cuDeviceGetName"),
		MORE(cuMemGetInfo, "cuMemGetInfo_v2"),
		MORE(cuStreamBeginCapture, "cuStreamBeginCapture_v2"),
		MORE(cuStreamEndCapture, "cuStreamEndCapture"),
		MORE(cuGraphInstantiate, "cuGraphInstantiateWithFlags"),
		MORE(cuGraphLaunch, "cuGraphLaunch"),
		MORE(cuGraphExecDestroy, "cuGraphExecDestroy"),
		MORE(cuGraphDestroy, "cuGraphDestroy"),
#undef MORE
	};
	const char *name = getenv("CKPT_CUDA_LIBRARY");
	char state[160];
	void *library;

	if (gpu_open(&gpu, state, sizeof(state)) < 0) {
		printf("SKIP: no GPU: %s\n", state);
		exit(77);
	}
	/* It is loaded already, and stays so. */
	library = dlopen(name && *name ? name : "libcuda.so.1",
			 RTLD_NOW | RTLD_LOCAL);
	if (!library)
		die("%s", dlerror());
	for (size_t i = 0; i < sizeof(wanted) / sizeof(*wanted); i++) {
		void *symbol = dlsym(library, wanted[i].symbol);

		if (!symbol)
			die("the driver has no %s", wanted[i].symbol);
		memcpy((char *)&more + wanted[i].at, &symbol, sizeof(symbol));
	}
}

void device_close(void)
{
	gpu_close(TAKE(gpu));
}

uint64_t device_free_bytes(int device)
{
	SCOPED(gpu_leave) struct entered in = { 0 };
	size_t free_bytes = 0, total = 0;

	enter(device, &in);
	said(more.cuMemGetInfo(&free_bytes, &total), "free memory");
	return free_bytes;
}

void device_name(int device, char *name, size_t size)
{
	int handle = 0;

	said(gpu->cu.cuDeviceGet(&handle, device), "device");
	said(more.cuDeviceGetName(name, (int)size, handle), "device's name");
}

void *device_new(int device, uint64_t len)
{
	void *p = NULL;

	must(gpu_alloc(gpu, device, len, &p), "memory on the device");
	return p;
}

struct gpu_stream *stream_new(int device)
{
	struct gpu_stream *s = NULL;

	must(gpu_stream_new(gpu, device, &s), "stream");
	return s;
}

void finish(struct gpu_stream *s)
{
	must(gpu_stream_sync(s), "work on the device");
}

void put(struct gpu_stream *s, void *device, const void *host, uint64_t len)
{
	must(gpu_copy_h2d(s, device, host, len), "copy to the device");
	finish(s);
}

void get(struct gpu_stream *s, void *host, const void *device, uint64_t len)
{
	must(gpu_copy_d2h(s, host, device, len), "copy from the device");
	finish(s);
}

void *pinned_new(uint64_t len)
{
	void *p = NULL;

	must(gpu_host_alloc(gpu, len, &p), "pinned memory");
	return p;
}

/* --- time ----------------------------------------------------------------- */

void timer_open(struct timer *t, struct gpu_stream *s)
{
	SCOPED(gpu_leave) struct entered in = { 0 };

	*t = (struct timer){ .stream = s };
	enter(s->device, &in);
	said(gpu->cu.cuEventCreate(&t->from, 0), "event");
	said(gpu->cu.cuEventCreate(&t->to, 0), "event");
}

void timer_close(struct timer *t)
{
	SCOPED(gpu_leave) struct entered in = { 0 };

	enter(t->stream->device, &in);
	said(gpu->cu.cuEventDestroy(t->from), "event");
	said(gpu->cu.cuEventDestroy(t->to), "event");
}

static void record(struct timer *t, void *event)
{
	SCOPED(gpu_leave) struct entered in = { 0 };

	enter(t->stream->device, &in);
	said(gpu->cu.cuEventRecord(event, t->stream->raw), "event");
}

void timer_start(struct timer *t)
{
	record(t, t->from);
}

void timer_stop(struct timer *t)
{
	record(t, t->to);
}

uint64_t timer_ns(struct timer *t)
{
	SCOPED(gpu_leave) struct entered in = { 0 };
	float ms = 0;

	finish(t->stream);
	enter(t->stream->device, &in);
	said(more.cuEventElapsedTime(&ms, t->from, t->to), "time");
	return ms > 0 ? (uint64_t)((double)ms * 1e6) : 1;
}

/* --- the kernel ------------------------------------------------------------
 */

#ifdef BENCH_FATBIN

extern const unsigned char bench_fatbin[];

__asm__(".pushsection .rodata.bench_fatbin, \"a\"\n"
	".balign 64\n"
	".globl bench_fatbin\n"
	".type bench_fatbin, @object\n"
	"bench_fatbin:\n"
	".incbin \"" BENCH_FATBIN "\"\n"
	".size bench_fatbin, . - bench_fatbin\n"
	".popsection\n");

static const void *busy_image(void)
{
	return bench_fatbin;
}

#else

static const void *busy_image(void)
{
	return NULL;
}

#endif

bool busy_open(int device)
{
	SCOPED(gpu_leave) struct entered in = { 0 };

	if (!busy_image() && !gpu->fake)
		return false;
	enter(device, &in);
	busy.device = device;
	said(gpu->cu.cuModuleLoadData(&busy.module, busy_image()),
	     "the busy kernel");
	said(gpu->cu.cuModuleGetFunction(&busy.function, busy.module,
					 "bench_busy"),
	     "the busy kernel");
	return true;
}

void busy_close(void)
{
	SCOPED(gpu_leave) struct entered in = { 0 };

	enter(busy.device, &in);
	said(gpu->cu.cuModuleUnload(busy.module), "the busy kernel");
}

void busy_run(struct gpu_stream *s, uint32_t *out, unsigned grid,
	      uint32_t steps)
{
	SCOPED(gpu_leave) struct entered in = { 0 };
	void *args[] = { &out, &steps };

	enter(s->device, &in);
	said(gpu->cu.cuLaunchKernel(busy.function, grid, 1, 1, BUSY_THREADS, 1,
				    1, 0, s->raw, args, NULL),
	     "the busy kernel");
}
