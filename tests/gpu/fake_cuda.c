/*
 * fake_cuda.c - a CUDA driver on host memory, for tests without a device: its
 * start, its devices, their contexts and kernels. Its memory is in
 * fake_memory.c, its streams are in fake_streams.c.
 *
 * Nothing that is enqueued happens before something waits for it. So who
 * forgets to wait reads old bytes. Kernels run the functions that kernels.cu
 * is made of, lane after lane, the blocks in another order each time.
 *
 * What a device would refuse is refused: a call without a context, or waiting
 * while a stream is captured.
 *
 * Environment, read by cuInit(): FAKE_CUDA_DEVICES (2), and
 * FAKE_CUDA_FAIL_REGISTER (1: out of memory, else the result's number).
 */
#include "tests/gpu/fake_driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONTEXTS_MAX 32

API extern const int fake_cuda;
const int fake_cuda = 1; /* how the library knows us */

struct fake fake = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Guarded by its lock. */
static pid_t started; /* 0: not yet */
static char fault_symbol[64];
static unsigned fault_in;
static int fault_result;

static _Thread_local int current[CONTEXTS_MAX]; /* device ordinals */
static _Thread_local unsigned current_count;

int fault_locked(const char *symbol)
{
	if (fault_in == 0 || strcmp(symbol, fault_symbol) != 0)
		return OK;
	return --fault_in == 0 ? fault_result : OK;
}

int current_device(void)
{
	return current_count > 0 ? current[current_count - 1] : -1;
}

/* --- Devices --- */

static unsigned inits;

API unsigned fake_cuda_inits(void)
{
	return inits;
}

CU(cuInit, unsigned flags)
{
	const char *count = getenv("FAKE_CUDA_DEVICES");
	const char *fail = getenv("FAKE_CUDA_FAIL_REGISTER");

	ENTER();
	inits++;
	if (flags != 0)
		return INVALID_VALUE;
	if (started != 0 && started != getpid())
		return NOT_INITIALIZED; /* a driver does not survive a fork */
	started = getpid();
	fake.device_count = count ? atoi(count) : 2;
	CHECK(fake.device_count >= 0 && fake.device_count <= DEVICES_MAX);
	fake.fail_register = fail ? atoi(fail) : 0;
	if (fake.fail_register == 1)
		fake.fail_register = OUT_OF_MEMORY;
	for (int i = 0; i < DEVICES_MAX; i++) {
		fake.devices[i].null_stream.device = i;
		fake.devices[i].null_stream.blocking = true;
	}
	return fake.device_count > 0 ? OK : NO_DEVICE;
}

CU(cuDriverGetVersion, int *version)
{
	ENTER();
	*version = 12040;
	return OK;
}

static const struct {
	int result;
	const char *name, *text;
} results[] = {
	{ OK, "CUDA_SUCCESS", "no error" },
	{ INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument" },
	{ OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory" },
	{ NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED",
	  "initialization error" },
	{ NO_DEVICE, "CUDA_ERROR_NO_DEVICE",
	  "no CUDA-capable device is detected" },
	{ INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE",
	  "invalid device ordinal" },
	{ INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT",
	  "invalid device context" },
	{ INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE",
	  "invalid resource handle" },
	{ NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found" },
	{ ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
	  "part or all of the requested memory range is already mapped" },
	{ NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
	  "pointer does not correspond to a registered memory region" },
	{ NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED",
	  "operation not supported" },
	{ CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
	  "operation not permitted when stream is capturing" },
};

CU(cuGetErrorName, int result, const char **name)
{
	for (size_t i = 0; i < sizeof(results) / sizeof(*results); i++)
		if (results[i].result == result) {
			*name = results[i].name;
			return OK;
		}
	return INVALID_VALUE;
}

CU(cuGetErrorString, int result, const char **text)
{
	for (size_t i = 0; i < sizeof(results) / sizeof(*results); i++)
		if (results[i].result == result) {
			*text = results[i].text;
			return OK;
		}
	return INVALID_VALUE;
}

CU(cuDeviceGetCount, int *count)
{
	ENTER();
	*count = fake.device_count;
	return started == getpid() ? OK : NOT_INITIALIZED;
}

CU(cuDeviceGet, int *device, int ordinal)
{
	ENTER();
	if (ordinal < 0 || ordinal >= fake.device_count)
		return INVALID_DEVICE;
	*device = ordinal;
	return OK;
}

API int cuDeviceGetName(char *name, int len, int device)
{
	(void)snprintf(name, (size_t)len, "Fake %d", device);
	return OK;
}

/* Device 0 is next to NUMA node 0, and so on. */
CU(cuDeviceGetAttribute, int *value, int attribute, int device)
{
	ENTER();
	if (device < 0 || device >= fake.device_count)
		return INVALID_DEVICE;
	if (attribute != 134)
		return INVALID_VALUE;
	*value = device;
	return OK;
}

CU(cuDevicePrimaryCtxGetState, int device, unsigned *flags, int *active)
{
	ENTER();
	if (device < 0 || device >= fake.device_count)
		return INVALID_DEVICE;
	*flags = 0;
	*active = fake.devices[device].contexts > 0;
	return OK;
}

CU(cuDevicePrimaryCtxRetain, void **context, int device)
{
	ENTER();
	if (device < 0 || device >= fake.device_count)
		return INVALID_DEVICE;
	fake.devices[device].contexts++;
	*context = &fake.devices[device];
	return OK;
}

CU(cuDevicePrimaryCtxRelease_v2, int device)
{
	ENTER();
	if (device < 0 || device >= fake.device_count ||
	    fake.devices[device].contexts == 0)
		return INVALID_CONTEXT;
	fake.devices[device].contexts--;
	return OK;
}

CU(cuCtxPushCurrent_v2, void *context)
{
	ENTER();
	for (int i = 0; i < DEVICES_MAX; i++)
		if (context == &fake.devices[i]) {
			CHECK(current_count < CONTEXTS_MAX);
			current[current_count++] = i;
			return OK;
		}
	return INVALID_CONTEXT;
}

CU(cuCtxPopCurrent_v2, void **context)
{
	if (current_count == 0)
		return INVALID_CONTEXT;
	*context = &fake.devices[current[--current_count]];
	return OK;
}

API int cuCtxGetCurrent(void **context)
{
	*context = current_count > 0 ? &fake.devices[current_device()] : NULL;
	return OK;
}

/* --- Kernels --- */

static char the_module;

CU(cuModuleLoadData, void **module, const void *image)
{
	(void)image; /* for a device */
	ENTER();
	REFUSE_UNUSABLE();
	*module = &the_module;
	return OK;
}

CU(cuModuleUnload, void *module)
{
	ENTER();
	return module == &the_module ? OK : INVALID_HANDLE;
}

CU(cuModuleGetFunction, void **function, void *module, const char *name)
{
	ENTER();
	if (module != &the_module)
		return INVALID_HANDLE;
	*function = (void *)(uintptr_t)kernel_find(name);
	return *function ? OK : NOT_FOUND;
}

CU(cuLaunchKernel, void *function, unsigned gx, unsigned gy, unsigned gz,
   unsigned bx, unsigned by, unsigned bz, unsigned shared_bytes, void *stream,
   void **args, void **extra)
{
	struct op o = { .kind = OP_KERNEL, .grid = gx, .block = bx };
	struct stream *s;
	size_t at = 0;

	ENTER();
	s = stream_find_locked(stream);
	if (!s)
		return INVALID_HANDLE;
	if (gx == 0 || bx == 0 || bx > 1024 || gy != 1 || gz != 1 || by != 1 ||
	    bz != 1 || shared_bytes != 0 || extra)
		return INVALID_VALUE;
	o.kernel = function;
	for (unsigned i = 0; i < o.kernel->count; i++) {
		o.args[i] = o.arg_bytes + at;
		memcpy(o.args[i], args[i], o.kernel->sizes[i]);
		at += (o.kernel->sizes[i] + 15) / 16 * 16;
		CHECK(at <= sizeof(o.arg_bytes));
	}
	(void)stream_enqueue_locked(s, &o);
	return OK;
}

/* --- For the tests --- */

API unsigned fake_cuda_contexts(int device)
{
	HOLD(&fake.lock);
	return fake.devices[device].contexts;
}

API void fake_cuda_fail(const char *symbol, unsigned n, int result)
{
	HOLD(&fake.lock);
	(void)snprintf(fault_symbol, sizeof(fault_symbol), "%s", symbol);
	fault_in = n;
	fault_result = result;
}
