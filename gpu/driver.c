/*
 * driver.c - opening the driver, the devices' contexts, memory and kernels.
 * Every call into the driver is the same: enter the device's primary context,
 * call, leave, translate the result.
 */
#include "gpu/driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/driver_private.h"
#include "gpu/kernel_image.h"
#include "gpu/say.h"
#include "store/base/scope.h"

#define LIBRARY_DEFAULT "libcuda.so.1"

static const struct {
	const char *symbol;
	size_t at; /* in struct driver_calls */
} driver_symbols[] = {
#define CALL(name, symbol, args) \
	{ symbol, offsetof(struct driver_calls, name) },
	DRIVER_CALLS(CALL)
#undef CALL
};

/*
 * Every kernel is looked up when its device is used first: a look-up may load
 * code, which must not happen while a stream is being captured.
 */
static const char *const kernel_names[KERNELS] = {
	"hash_chunks",       "stash_plan_pack", "stash_copy_in",
	"stash_plan_unpack", "stash_copy_out",  "stash_reset",
};

static pthread_mutex_t the_gpu_lock = PTHREAD_MUTEX_INITIALIZER;
static struct gpu *the_gpu; /* guarded by the_gpu_lock */

/* --- Results ------------------------------------------------------------- */

static int result_errno(int result)
{
	switch (result) {
	case 0:
		return 0;
	case CU_OUT_OF_MEMORY:
		return -ENOMEM;
	case CU_NOT_INITIALIZED:
	case CU_DEINITIALIZED:
	case CU_STUB_LIBRARY:
	case CU_DEVICE_UNAVAILABLE:
	case CU_NO_DEVICE:
		return -ENODEV;
	case CU_INVALID_VALUE:
	case CU_INVALID_DEVICE:
	case CU_INVALID_CONTEXT:
	case CU_INVALID_HANDLE:
	case CU_ALREADY_REGISTERED:
	case CU_NOT_REGISTERED:
		return -EINVAL;
	default:
		return -EIO;
	}
}

/* "CUDA_ERROR_OUT_OF_MEMORY: out of memory"; a stub has no words of its own. */
static void result_words(const struct driver_calls *cu, int result, char *words,
			 size_t size)
{
	const char *name = NULL, *text = NULL;

	if (cu->cuGetErrorName(result, &name) != 0 || !name)
		name = result == CU_STUB_LIBRARY ? "CUDA_ERROR_STUB_LIBRARY" :
						   NULL;
	if (cu->cuGetErrorString(result, &text) != 0 || !text)
		text = result == CU_STUB_LIBRARY ?
			       "a library to link with, not the driver" :
			       "the driver has no words for it";
	if (name)
		(void)snprintf(words, size, "%s: %s", name, text);
	else
		(void)snprintf(words, size, "error %d: %s", result, text);
}

int gpu_said(const struct gpu *g, int result, const char *format, ...)
{
	char what[160], words[256];
	va_list ap;

	if (result == 0)
		return 0;
	va_start(ap, format);
	(void)vsnprintf(what, sizeof(what), format, ap);
	va_end(ap);
	result_words(&g->cu, result, words, sizeof(words));
	return ckpt_say(result_errno(result), "CUDA: %s: %s", what, words);
}

/* --- Opening ------------------------------------------------------------- */

/* -ENODEV: cannot be loaded, or is no CUDA driver; g->state says so. */
static int driver_load(struct gpu *g, const char *name)
{
	/*
	 * A driver that was started has threads of its own: it stays loaded,
	 * whatever becomes of our use of it.
	 */
	void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

	if (!library) {
		const char *why = dlerror();

		(void)snprintf(g->state, sizeof(g->state), "no CUDA driver: %s",
			       why ? why : name);
		return -ENODEV;
	}
	for (size_t i = 0; i < sizeof(driver_symbols) / sizeof(*driver_symbols);
	     i++) {
		void *symbol = dlsym(library, driver_symbols[i].symbol);

		if (!symbol) {
			(void)snprintf(g->state, sizeof(g->state),
				       "no CUDA driver: %s has no %s (older "
				       "than 11.0, or something else)",
				       name, driver_symbols[i].symbol);
			(void)dlclose(library);
			return -ENODEV;
		}
		memcpy((char *)&g->cu + driver_symbols[i].at, &symbol,
		       sizeof(symbol));
	}
	g->fake = dlsym(library, "fake_cuda") != NULL;
	(void)dlclose(library); /* the count of it; see above */
	return 0;
}

static int driver_start(struct gpu *g, const char *name)
{
	int version = 0, count = 0, result;
	char words[128];

	result = g->cu.cuInit(0);
	if (result == 0)
		result = g->cu.cuDriverGetVersion(&version);
	if (result == 0)
		result = g->cu.cuDeviceGetCount(&count);
	if (result != 0) {
		result_words(&g->cu, result, words, sizeof(words));
		(void)snprintf(g->state, sizeof(g->state),
			       result == CU_NOT_INITIALIZED ?
				       "%s does not start after a fork: %s" :
				       "%s does not start: %s",
			       name, words);
		return -ENODEV;
	}
	(void)snprintf(g->state, sizeof(g->state),
		       "CUDA driver %d.%d, %d device%s", version / 1000,
		       version % 1000 / 10, count, count == 1 ? "" : "s");
	g->device_count = count < DEVICES_MAX ? count : DEVICES_MAX;
	return count > 0 ? 0 : -ENODEV;
}

/* What it came to is in state, also when there is none. */
static int gpu_new(struct gpu **ret_gpu, char *state, size_t state_size)
{
	SCOPED(scope_free) struct gpu *g = calloc(1, sizeof(*g));
	const char *name = getenv("CKPT_CUDA_LIBRARY");
	int rc;

	(void)snprintf(state, state_size, "no memory");
	if (!g)
		return -ENOMEM;
	g->pid = getpid();
	g->host_device = -1;
	if (!name || !*name)
		name = LIBRARY_DEFAULT;
	rc = driver_load(g, name);
	if (rc == 0)
		rc = driver_start(g, name);
	(void)snprintf(state, state_size, "%s", g->state);
	if (rc < 0)
		return rc;
	rc = pthread_mutex_init(&g->lock, NULL);
	if (rc != 0)
		return -rc;
	*ret_gpu = TAKE(g);
	return 0;
}

int gpu_open(struct gpu **ret_gpu, char *state, size_t state_size)
{
	int rc;

	HOLD(&the_gpu_lock);
	/* A parent's is of no use here: the driver does not survive a fork. */
	if (the_gpu && the_gpu->pid != getpid())
		the_gpu = NULL;
	if (!the_gpu) {
		rc = gpu_new(&the_gpu, state, state_size);
		if (rc < 0)
			return ckpt_say(rc, "%s", state);
	}
	(void)snprintf(state, state_size, "%s", the_gpu->state);
	the_gpu->users++;
	*ret_gpu = the_gpu;
	return 0;
}

void gpu_close(struct gpu *g)
{
	/* In a forked child its contexts are not there to be released. */
	if (!g || g->pid != getpid())
		return;
	HOLD(&the_gpu_lock);
	if (--g->users > 0)
		return;
	CHECK(the_gpu == g);
	the_gpu = NULL;
	for (int i = 0; i < g->device_count; i++) {
		struct gpu_device *d = &g->devices[i];

		if (d->module && g->cu.cuCtxPushCurrent(d->context) == 0) {
			(void)g->cu.cuModuleUnload(d->module);
			(void)g->cu.cuCtxPopCurrent(&(void *){ NULL });
		}
		if (d->context)
			(void)g->cu.cuDevicePrimaryCtxRelease(d->handle);
	}
	pthread_mutex_destroy(&g->lock);
	free(g);
}

int gpu_device_count(const struct gpu *g)
{
	return g->device_count;
}

/* --- Contexts ------------------------------------------------------------ */

static int device_retain_locked(struct gpu *g, int device)
{
	struct gpu_device *d = &g->devices[device];
	int result;

	if (d->context)
		return 0;
	result = g->cu.cuDeviceGet(&d->handle, device);
	if (result == 0)
		result = g->cu.cuDevicePrimaryCtxRetain(&d->context, d->handle);
	return gpu_said(g, result, "cannot use device %d", device);
}

/*
 * A context costs hundreds of megabytes on its device: host memory is pinned
 * through one that is there already, if there is one.
 */
static int host_device_locked(struct gpu *g)
{
	for (int i = 0; g->host_device < 0 && i < g->device_count; i++) {
		unsigned flags;
		int handle, active = 0;

		if (g->cu.cuDeviceGet(&handle, i) == 0 &&
		    g->cu.cuDevicePrimaryCtxGetState(handle, &flags, &active) ==
			    0 &&
		    active)
			g->host_device = i;
	}
	if (g->host_device < 0)
		g->host_device = 0;
	return g->host_device;
}

void gpu_leave(struct entered *in)
{
	void *ours;

	if (in->g)
		(void)in->g->cu.cuCtxPopCurrent(&ours);
}

int gpu_enter(struct gpu *g, int device, struct entered *in)
{
	void *context = NULL;
	int rc;

	{
		HOLD(&g->lock);
		if (device == DEVICE_OF_HOST_MEMORY)
			device = host_device_locked(g);
		if (device < 0 || device >= g->device_count)
			return ckpt_say(-EINVAL,
					"device %d: there are %d devices",
					device, g->device_count);
		rc = device_retain_locked(g, device);
		if (rc < 0)
			return rc;
		context = g->devices[device].context;
	}
	rc = gpu_said(g, g->cu.cuCtxPushCurrent(context),
		      "cannot use device %d", device);
	if (rc < 0)
		return rc;
	in->g = g;
	return 0;
}

/* --- Memory -------------------------------------------------------------- */

int gpu_pointer_device(struct gpu *g, const void *p, int *ret_device)
{
	int attributes[] = { CU_POINTER_MEMORY_TYPE, CU_POINTER_IS_MANAGED,
			     CU_POINTER_DEVICE_ORDINAL };
	unsigned type = 0, managed = 0;
	int ordinal = -1, result;
	void *values[] = { &type, &managed, &ordinal };

	result = g->cu.cuPointerGetAttributes(3, attributes, values,
					      (uint64_t)(uintptr_t)p);
	if (result == CU_INVALID_VALUE) {
		*ret_device = -1;
		return 0;
	}
	if (result != 0)
		return gpu_said(g, result, "cannot ask where %p leads", p);
	if (type != CU_MEMORY_TYPE_DEVICE && !managed)
		ordinal = -1;
	*ret_device = ordinal < 0 ? -1 : ordinal;
	return 0;
}

int gpu_register(struct gpu *g, void *p, size_t len, bool read_only)
{
	unsigned flags = CU_HOST_REGISTER_PORTABLE |
			 (read_only ? CU_HOST_REGISTER_READ_ONLY : 0u);
	SCOPED(gpu_leave) struct entered in = { NULL };
	int rc = gpu_enter(g, DEVICE_OF_HOST_MEMORY, &in);

	if (rc < 0)
		return rc;
	return gpu_said(g, g->cu.cuMemHostRegister(p, len, flags),
			"cannot pin %zu bytes", len);
}

void gpu_unregister(struct gpu *g, void *p)
{
	SCOPED(gpu_leave) struct entered in = { NULL };

	if (gpu_enter(g, DEVICE_OF_HOST_MEMORY, &in) == 0)
		(void)g->cu.cuMemHostUnregister(p);
}

int gpu_host_alloc(struct gpu *g, size_t len, void **ret_p)
{
	SCOPED(gpu_leave) struct entered in = { NULL };
	int rc = gpu_enter(g, DEVICE_OF_HOST_MEMORY, &in);
	void *p;

	if (rc < 0)
		return rc;
	rc = gpu_said(g,
		      g->cu.cuMemHostAlloc(&p, len,
					   CU_HOST_ALLOC_PORTABLE |
						   CU_HOST_ALLOC_DEVICEMAP),
		      "cannot allocate %zu bytes of pinned memory", len);
	if (rc < 0)
		return rc;
	*ret_p = p;
	return 0;
}

void gpu_host_free(struct gpu *g, void *p)
{
	SCOPED(gpu_leave) struct entered in = { NULL };

	if (p && gpu_enter(g, DEVICE_OF_HOST_MEMORY, &in) == 0)
		(void)g->cu.cuMemFreeHost(p);
}

int gpu_alloc(struct gpu *g, int device, size_t len, void **ret_p)
{
	SCOPED(gpu_leave) struct entered in = { NULL };
	int rc = gpu_enter(g, device, &in);
	uint64_t p;

	if (rc < 0)
		return rc;
	rc = gpu_said(g, g->cu.cuMemAlloc(&p, len),
		      "cannot allocate %zu bytes on device %d", len, device);
	if (rc < 0)
		return rc;
	*ret_p = (void *)(uintptr_t)p;
	return 0;
}

void gpu_free(struct gpu *g, int device, void *p)
{
	SCOPED(gpu_leave) struct entered in = { NULL };

	if (p && gpu_enter(g, device, &in) == 0)
		(void)g->cu.cuMemFree((uint64_t)(uintptr_t)p);
}

/* --- Kernels ------------------------------------------------------------- */

bool gpu_has_kernels(const struct gpu *g)
{
	return g->fake || kernel_image() != NULL;
}

/* The device's context is current. */
static int device_load_locked(struct gpu *g, int device)
{
	struct gpu_device *d = &g->devices[device];
	void *module = NULL;
	int result;

	if (d->module)
		return 0;
	result = g->cu.cuModuleLoadData(&module, kernel_image());
	for (size_t i = 0; result == 0 && i < KERNELS; i++)
		result = g->cu.cuModuleGetFunction(&d->kernels[i], module,
						   kernel_names[i]);
	if (result != 0) {
		if (module)
			(void)g->cu.cuModuleUnload(module);
		return gpu_said(g, result,
				"cannot load the kernels on device %d", device);
	}
	d->module = module;
	return 0;
}

int gpu_launch(struct gpu_stream *s, const char *kernel, unsigned grid,
	       unsigned block, void **args)
{
	struct gpu *g = s->g;
	SCOPED(gpu_leave) struct entered in = { NULL };
	void *function = NULL;
	int rc;

	if (!gpu_has_kernels(g))
		return ckpt_say(-ENODEV, "no kernels for devices: this library "
					 "was built without nvcc");
	rc = gpu_enter(g, s->device, &in);
	if (rc < 0)
		return rc;
	{
		HOLD(&g->lock);
		rc = device_load_locked(g, s->device);
		if (rc < 0)
			return rc;
		for (size_t i = 0; i < KERNELS; i++)
			if (strcmp(kernel_names[i], kernel) == 0)
				function = g->devices[s->device].kernels[i];
	}
	CHECK(function != NULL);
	return gpu_said(g,
			g->cu.cuLaunchKernel(function, grid, 1, 1, block, 1, 1,
					     0, s->raw, args, NULL),
			"cannot run %s on device %d", kernel, s->device);
}
