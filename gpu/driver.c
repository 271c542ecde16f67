/*
 * driver.c - the process's one driver, and its devices' memory and kernels.
 * Every call into the driver is the same: enter the device's primary context,
 * call, leave, translate the result.
 */
#include "gpu/driver.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/driver_context.h"
#include "gpu/kernel_image.h"
#include "gpu/say.h"
#include "store/base/scope.h"

/*
 * Every kernel is looked up when its device is used first: a look-up may load
 * code, which must not happen while a stream is being captured.
 */
static const char *const kernel_names[KERNELS] = {
	"hash_chunks",   "hash_chunks_rest",  "stash_plan_pack",
	"stash_copy_in", "stash_plan_unpack", "stash_copy_out",
	"stash_reset",
};

static pthread_mutex_t the_gpu_lock = PTHREAD_MUTEX_INITIALIZER;
static struct gpu *the_gpu; /* guarded by the_gpu_lock */

/* --- Opening ------------------------------------------------------------- */

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

bool gpu_is_started(void)
{
	return driver_is_started();
}

int gpu_device_count(const struct gpu *g)
{
	return g->device_count;
}

int gpu_device_node(struct gpu *g, int device)
{
	int handle, node = -1;

	if (g->cu.cuDeviceGet(&handle, device) != 0 ||
	    g->cu.cuDeviceGetAttribute(&node, CU_DEVICE_HOST_NUMA_ID, handle) !=
		    0)
		return -1;
	return node;
}

/* --- Memory -------------------------------------------------------------- */

int gpu_pointer_device(struct gpu *g, const void *p, int said, int *ret_device)
{
	int attributes[] = { CU_POINTER_MEMORY_TYPE, CU_POINTER_IS_MANAGED,
			     CU_POINTER_DEVICE_ORDINAL };
	unsigned type = 0, managed = 0;
	int ordinal = -1, result;
	void *values[] = { &type, &managed, &ordinal };

	result = g->cu.cuPointerGetAttributes(3, attributes, values,
					      (uint64_t)(uintptr_t)p);
	/* It wants a context, but where there is none no device has memory. */
	if (result == CU_INVALID_CONTEXT && gpu_has_context(g)) {
		SCOPED(gpu_leave) struct entered in = { 0 };
		int rc = gpu_enter(g, DEVICE_OF_HOST_MEMORY, &in);

		if (rc < 0)
			return rc;
		result = g->cu.cuPointerGetAttributes(3, attributes, values,
						      (uint64_t)(uintptr_t)p);
	}
	if (result == CU_INVALID_VALUE || result == CU_INVALID_CONTEXT) {
		*ret_device = -1;
		return 0;
	}
	if (result != 0)
		return gpu_said(g, result, "cannot ask where %p leads", p);
	*ret_device = ordinal < 0 ? -1 : ordinal;
	if (managed)
		*ret_device = said >= -1 ? said : *ret_device;
	else if (type == CU_MEMORY_TYPE_HOST)
		*ret_device = said >= 0 ? said : -1;
	else if (type != CU_MEMORY_TYPE_DEVICE)
		*ret_device = -1;
	return 0;
}

int gpu_register(struct gpu *g, void *p, size_t len, bool read_only)
{
	unsigned flags = CU_HOST_REGISTER_PORTABLE |
			 (read_only ? CU_HOST_REGISTER_READ_ONLY : 0u);
	SCOPED(gpu_leave) struct entered in = { 0 };
	int rc = gpu_enter(g, DEVICE_OF_HOST_MEMORY, &in);

	if (rc < 0)
		return rc;
	return gpu_said(g, g->cu.cuMemHostRegister(p, len, flags),
			"cannot pin %zu bytes", len);
}

void gpu_unregister(struct gpu *g, void *p)
{
	SCOPED(gpu_leave) struct entered in = { 0 };

	if (gpu_enter(g, DEVICE_OF_HOST_MEMORY, &in) == 0)
		(void)g->cu.cuMemHostUnregister(p);
}

int gpu_host_alloc(struct gpu *g, size_t len, void **ret_p)
{
	SCOPED(gpu_leave) struct entered in = { 0 };
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
	SCOPED(gpu_leave) struct entered in = { 0 };

	if (p && gpu_enter(g, DEVICE_OF_HOST_MEMORY, &in) == 0)
		(void)g->cu.cuMemFreeHost(p);
}

int gpu_alloc(struct gpu *g, int device, size_t len, void **ret_p)
{
	SCOPED(gpu_leave) struct entered in = { 0 };
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
	SCOPED(gpu_leave) struct entered in = { 0 };

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
		int rc = gpu_said(g, result,
				  "device %d takes no kernels made with CUDA "
				  "%s (DRIVER in ckpt_gpu(3))",
				  device, kernel_image_cuda());

		if (module)
			(void)g->cu.cuModuleUnload(module);
		return rc == -ENOMEM ? rc : -ENODEV;
	}
	d->module = module;
	return 0;
}

int gpu_launch(struct gpu_stream *s, const char *kernel, unsigned grid,
	       unsigned block, void **args)
{
	struct gpu *g = s->g;
	SCOPED(gpu_leave) struct entered in = { 0 };
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
