/*
 * driver_context.h - the table of driver functions, and the device's context
 * that each call into it is made in; for driver*.c alone.
 *
 * Nothing here includes cuda.h: the prototypes below are the driver's stable
 * ABI, so that the library builds where there is no toolkit.
 */
#ifndef GPU_DRIVER_CONTEXT_H
#define GPU_DRIVER_CONTEXT_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define DEVICES_MAX 64
#define KERNELS 7

/* A handle is a void *, a device pointer 64 bits, a result an int. */
#define DRIVER_CALLS(CALL)                                                   \
	CALL(cuInit, "cuInit", (unsigned flags))                             \
	CALL(cuDriverGetVersion, "cuDriverGetVersion", (int *version))       \
	CALL(cuGetErrorName, "cuGetErrorName", (int result, const char **s)) \
	CALL(cuGetErrorString, "cuGetErrorString",                           \
	     (int result, const char **s))                                   \
	CALL(cuDeviceGetCount, "cuDeviceGetCount", (int *count))             \
	CALL(cuDeviceGet, "cuDeviceGet", (int *device, int ordinal))         \
	CALL(cuDeviceGetAttribute, "cuDeviceGetAttribute",                   \
	     (int *value, int attribute, int device))                        \
	CALL(cuDevicePrimaryCtxGetState, "cuDevicePrimaryCtxGetState",       \
	     (int device, unsigned *flags, int *active))                     \
	CALL(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain",           \
	     (void **context, int device))                                   \
	CALL(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2",      \
	     (int device))                                                   \
	CALL(cuCtxPushCurrent, "cuCtxPushCurrent_v2", (void *context))       \
	CALL(cuCtxPopCurrent, "cuCtxPopCurrent_v2", (void **context))        \
	CALL(cuPointerGetAttributes, "cuPointerGetAttributes",               \
	     (unsigned count, int *attributes, void **values, uint64_t p))   \
	CALL(cuMemHostRegister, "cuMemHostRegister_v2",                      \
	     (void *p, size_t len, unsigned flags))                          \
	CALL(cuMemHostUnregister, "cuMemHostUnregister", (void *p))          \
	CALL(cuMemHostAlloc, "cuMemHostAlloc",                               \
	     (void **p, size_t len, unsigned flags))                         \
	CALL(cuMemFreeHost, "cuMemFreeHost", (void *p))                      \
	CALL(cuMemAlloc, "cuMemAlloc_v2", (uint64_t * p, size_t len))        \
	CALL(cuMemFree, "cuMemFree_v2", (uint64_t p))                        \
	CALL(cuThreadExchangeStreamCaptureMode,                              \
	     "cuThreadExchangeStreamCaptureMode", (int *mode))               \
	CALL(cuStreamCreate, "cuStreamCreate", (void **stream, unsigned f))  \
	CALL(cuStreamDestroy, "cuStreamDestroy_v2", (void *stream))          \
	CALL(cuStreamSynchronize, "cuStreamSynchronize", (void *stream))     \
	CALL(cuStreamIsCapturing, "cuStreamIsCapturing",                     \
	     (void *stream, int *status))                                    \
	CALL(cuStreamWaitEvent, "cuStreamWaitEvent",                         \
	     (void *stream, void *event, unsigned flags))                    \
	CALL(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2",                      \
	     (void *dst, uint64_t src, size_t len, void *stream))            \
	CALL(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2",                      \
	     (uint64_t dst, const void *src, size_t len, void *stream))      \
	CALL(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2",                      \
	     (uint64_t dst, uint64_t src, size_t len, void *stream))         \
	CALL(cuMemsetD8Async, "cuMemsetD8Async",                             \
	     (uint64_t dst, unsigned char value, size_t len, void *stream))  \
	CALL(cuEventCreate, "cuEventCreate", (void **event, unsigned flags)) \
	CALL(cuEventDestroy, "cuEventDestroy_v2", (void *event))             \
	CALL(cuEventRecord, "cuEventRecord", (void *event, void *stream))    \
	CALL(cuEventSynchronize, "cuEventSynchronize", (void *event))        \
	CALL(cuModuleLoadData, "cuModuleLoadData",                           \
	     (void **module, const void *image))                             \
	CALL(cuModuleUnload, "cuModuleUnload", (void *module))               \
	CALL(cuModuleGetFunction, "cuModuleGetFunction",                     \
	     (void **function, void *module, const char *name))              \
	CALL(cuLaunchKernel, "cuLaunchKernel",                               \
	     (void *function, unsigned gx, unsigned gy, unsigned gz,         \
	      unsigned bx, unsigned by, unsigned bz, unsigned shared_bytes,  \
	      void *stream, void **args, void **extra))

struct driver_calls {
#define CALL(name, symbol, args) int(*name) args;
	DRIVER_CALLS(CALL)
#undef CALL
};

/* The driver's numbers that are used here (enum cudaError_enum in cuda.h). */
enum {
	CU_INVALID_VALUE = 1,
	CU_OUT_OF_MEMORY = 2,
	CU_NOT_INITIALIZED = 3,
	CU_DEINITIALIZED = 4,
	CU_STUB_LIBRARY = 34,
	CU_DEVICE_UNAVAILABLE = 46,
	CU_NO_DEVICE = 100,
	CU_INVALID_DEVICE = 101,
	CU_INVALID_CONTEXT = 201,
	CU_INVALID_HANDLE = 400,
	CU_ALREADY_REGISTERED = 712,
	CU_NOT_REGISTERED = 713,

	CU_STREAM_NON_BLOCKING = 1,
	CU_EVENT_DISABLE_TIMING = 2,
	CU_HOST_ALLOC_PORTABLE = 1,
	CU_HOST_ALLOC_DEVICEMAP = 2,
	CU_HOST_REGISTER_PORTABLE = 1,
	CU_HOST_REGISTER_READ_ONLY = 8,
	CU_POINTER_MEMORY_TYPE = 2,
	CU_POINTER_IS_MANAGED = 8,
	CU_POINTER_DEVICE_ORDINAL = 9,
	CU_MEMORY_TYPE_HOST = 1,
	CU_MEMORY_TYPE_DEVICE = 2,
	CU_CAPTURE_NONE = 0,
	CU_CAPTURE_MODE_RELAXED = 2,
	CU_DEVICE_HOST_NUMA_ID = 134,
};

struct gpu_device {
	int handle;
	void *context; /* retained; NULL: not yet */
	void *module; /* NULL: not yet */
	void *kernels[KERNELS];
};

struct gpu {
	/* Immutable after gpu_open(): */
	struct driver_calls cu;
	pid_t pid;
	int device_count;
	bool fake; /* the tests' driver: has the kernels by name */
	char state[160];

	unsigned users; /* guarded by the_gpu_lock (driver.c) */

	pthread_mutex_t lock; /* guards everything below; driver calls are
			       * made under it, so that each is made once */
	struct gpu_device devices[DEVICES_MAX];
	int host_device; /* whose context serves host memory; -1: not yet */
};

struct gpu_stream {
	struct gpu *g;
	int device;
	void *raw;
	bool owned;
};

/*
 * Load the driver and start it. `state` gets a sentence in any case, see
 * gpu_open(). Whoever frees it releases the contexts before.
 */
int gpu_new(struct gpu **ret_gpu, char *state, size_t state_size);

/* See gpu_is_started(). */
bool driver_is_started(void);

/* 0, or an error with a sentence: "CUDA: <what>: <the driver's words>". */
int gpu_said(const struct gpu *g, int result, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Has any device a context in this process? None is made. */
bool gpu_has_context(struct gpu *g);

struct entered {
	struct gpu *g; /* NULL: nothing to leave */
	int capture_mode; /* the thread's own */
};

#define DEVICE_OF_HOST_MEMORY (-1)

/*
 * Make the device's context the current one, and let this thread make calls
 * that are refused while anybody captures a graph, as a training step may do
 * meanwhile: none of ours can become a part of it but on the caller's stream.
 *     SCOPED(gpu_leave) struct entered in = { 0 };
 * puts back what was there when `in` goes out of scope.
 */
int gpu_enter(struct gpu *g, int device, struct entered *in);
void gpu_leave(struct entered *in);

#endif
