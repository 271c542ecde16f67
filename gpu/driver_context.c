/*
 * driver_context.c - loading the driver, its results in words, and the devices'
 * contexts: one is retained when its device is used first, and is the current
 * one from gpu_enter() to gpu_leave().
 */
#include "gpu/driver_context.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
		name = result == CU_STUB_LIBRARY ? "CUDA_ERROR_STUB_LIBRARY"
						 : NULL;
	if (cu->cuGetErrorString(result, &text) != 0 || !text)
		text = result == CU_STUB_LIBRARY
			       ? "a library to link with, not the driver"
			       : "the driver has no words for it";
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

/* --- Loading ------------------------------------------------------------- */

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
			       result == CU_NOT_INITIALIZED
				       ? "%s does not start after a fork: %s"
				       : "%s does not start: %s",
			       name, words);
		return -ENODEV;
	}
	(void)snprintf(g->state, sizeof(g->state),
		       "CUDA driver %d.%d, %d device%s", version / 1000,
		       version % 1000 / 10, count, count == 1 ? "" : "s");
	g->device_count = count < DEVICES_MAX ? count : DEVICES_MAX;
	return count > 0 ? 0 : -ENODEV;
}

static const char *driver_name(void)
{
	const char *name = getenv("CKPT_CUDA_LIBRARY");

	return name && *name ? name : LIBRARY_DEFAULT;
}

bool driver_is_started(void)
{
	void *library = dlopen(driver_name(), RTLD_LAZY | RTLD_NOLOAD);
	int (*count_devices)(int *) = NULL;
	bool started = false;
	void *symbol;
	int count = 0;

	if (!library)
		return false;
	symbol = dlsym(library, "cuDeviceGetCount");
	if (symbol) {
		memcpy(&count_devices, &symbol, sizeof(symbol));
		started = count_devices(&count) == 0;
	}
	(void)dlclose(library);
	return started;
}

int gpu_new(struct gpu **ret_gpu, char *state, size_t state_size)
{
	SCOPED(scope_free) struct gpu *g = calloc(1, sizeof(*g));
	const char *name = driver_name();
	int rc;

	(void)snprintf(state, state_size, "no memory");
	if (!g)
		return -ENOMEM;
	g->pid = getpid();
	g->host_device = -1;
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

/* A device whose context is there already, ours or somebody else's; or -1. */
static int active_device(struct gpu *g)
{
	for (int i = 0; i < g->device_count; i++) {
		unsigned flags;
		int handle, active = 0;

		if (g->cu.cuDeviceGet(&handle, i) == 0 &&
		    g->cu.cuDevicePrimaryCtxGetState(handle, &flags, &active) ==
			    0 &&
		    active)
			return i;
	}
	return -1;
}

bool gpu_has_context(struct gpu *g)
{
	return active_device(g) >= 0;
}

/*
 * A context costs hundreds of megabytes on its device: host memory is pinned
 * through one that is there already, if there is one.
 */
static int host_device_locked(struct gpu *g)
{
	if (g->host_device < 0)
		g->host_device = active_device(g);
	if (g->host_device < 0)
		g->host_device = 0;
	return g->host_device;
}

void gpu_leave(struct entered *in)
{
	void *ours;

	if (!in->g)
		return;
	(void)in->g->cu.cuThreadExchangeStreamCaptureMode(&in->capture_mode);
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
	in->capture_mode = CU_CAPTURE_MODE_RELAXED;
	(void)g->cu.cuThreadExchangeStreamCaptureMode(&in->capture_mode);
	in->g = g;
	return 0;
}
