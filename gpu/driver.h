/*
 * driver.h - the CUDA driver, opened when the program runs.
 *
 * The only place that knows CUDA's types and result codes. libcuda.so.1 is
 * opened with dlopen(3), so one build runs with and without it; the
 * environment's CKPT_CUDA_LIBRARY names another library (the tests' own
 * driver, which works on host memory). Everything runs in the devices'
 * primary contexts, which torch and the CUDA runtime use too.
 *
 * Errors:  0 or a negative errno: -ENOMEM, -ENODEV, -EINVAL, else -EIO; the
 *          driver's own words go to ckpt_say() (say.h).
 * Threads: any thread; the current context is put back before a call returns.
 */
#ifndef GPU_DRIVER_H
#define GPU_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gpu;
struct gpu_stream;
struct gpu_event;

/*
 * One driver for the process: the first call opens it, later ones share it.
 * -ENODEV: there is none, or no device; `state` says which. It always gets a
 * sentence: "CUDA driver 13.0, 1 device". Contexts are retained on first use.
 */
int gpu_open(struct gpu **ret_gpu, char *state, size_t state_size);
void gpu_close(struct gpu *g); /* g may be NULL */
/*
 * Whether this process has started the driver, whoever did: it is neither
 * loaded nor started for the answer, and a parent's does not count.
 */
bool gpu_is_started(void);
int gpu_device_count(const struct gpu *g);
/* The NUMA node next to a device; -1: not known (to drivers before 12.2). */
int gpu_device_node(struct gpu *g, int device);

/*
 * Where a pointer leads: an ordinal, or -1 for the host's memory. What both
 * reach is where it is said to be, by an ordinal or -1: managed memory, which
 * is its device's if nothing is said (-2), and pinned memory, which is the
 * host's then.
 */
int gpu_pointer_device(struct gpu *g, const void *p, int said, int *ret_device);

/*
 * Pin memory that is mapped already, for all devices; it must be undone
 * before the memory is unmapped.
 */
int gpu_register(struct gpu *g, void *p, size_t len, bool read_only);
void gpu_unregister(struct gpu *g, void *p);
int gpu_host_alloc(struct gpu *g, size_t len, void **ret_p);
void gpu_host_free(struct gpu *g, void *p);
int gpu_alloc(struct gpu *g, int device, size_t len, void **ret_p);
void gpu_free(struct gpu *g, int device, void *p);

/* A stream of our own on a device, which does not wait for the default one. */
int gpu_stream_new(struct gpu *g, int device, struct gpu_stream **ret_stream);
/* A stream of the caller's (a CUstream, NULL: the default one), wrapped. */
int gpu_stream_wrap(struct gpu *g, int device, void *raw,
		    struct gpu_stream **ret_stream);
void gpu_stream_free(struct gpu_stream *s); /* s may be NULL */
/* -EBUSY: its work is being recorded for a graph; the recording goes on. */
int gpu_stream_check_recording(struct gpu_stream *s);
/* What comes after waits, on the device, for what e was recorded behind. */
int gpu_stream_wait_event(struct gpu_stream *s, const struct gpu_event *e);
/* Enqueue copies; the host side should be pinned or the call may wait. */
int gpu_copy_d2h(struct gpu_stream *s, void *dst, const void *src, size_t len);
int gpu_copy_h2d(struct gpu_stream *s, void *dst, const void *src, size_t len);
int gpu_copy_d2d(struct gpu_stream *s, void *dst, const void *src, size_t len);
int gpu_zero(struct gpu_stream *s, void *dst, size_t len);
/* Wait until all of it is done; the first error of any of it. */
int gpu_stream_sync(struct gpu_stream *s);

int gpu_event_new(struct gpu *g, int device, struct gpu_event **ret_event);
void gpu_event_free(struct gpu_event *e); /* e may be NULL */
int gpu_event_record(struct gpu_event *e, struct gpu_stream *s);
int gpu_event_sync(struct gpu_event *e);

/* The kernels that were built in (kernels.cu), by name. */
bool gpu_has_kernels(const struct gpu *g);
int gpu_launch(struct gpu_stream *s, const char *kernel, unsigned grid,
	       unsigned block, void **args);

#endif
