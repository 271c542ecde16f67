/*
 * fake_cuda.h - what a test can ask of, and tell, the CUDA driver in
 * fake_cuda.c. It has to be both linked and named in CKPT_CUDA_LIBRARY.
 */
#ifndef TESTS_GPU_FAKE_CUDA_H
#define TESTS_GPU_FAKE_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Since the start of the process: bytes that copies have moved. */
uint64_t fake_cuda_d2h_copies(void); /* how many calls */
uint64_t fake_cuda_d2h_bytes(void);
uint64_t fake_cuda_h2d_bytes(void);
uint64_t fake_cuda_d2d_bytes(void);
/* Calls that made the host wait for a device, by name or by the way. */
uint64_t fake_cuda_syncs(void);
uint64_t fake_cuda_launches(void);
unsigned fake_cuda_inits(void); /* calls of cuInit() */

/* Now: allocated or registered and not given back. */
uint64_t fake_cuda_device_bytes(void);
uint64_t fake_cuda_pinned_bytes(void);
/* How often the primary context is retained. */
unsigned fake_cuda_contexts(int device);

/* From now on nobody's wait for a stream ends, until it is let go. */
void fake_cuda_hold(bool on);

/* The n-th call from now of that symbol (1: the next) gives this result. */
void fake_cuda_fail(const char *symbol, unsigned n, int result);

/* The driver's own calls, as far as tests make them. */
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuCtxPushCurrent_v2(void *context);
int cuCtxPopCurrent_v2(void **context);
int cuStreamCreate(void **stream, unsigned flags);
int cuStreamDestroy_v2(void *stream);
int cuStreamSynchronize(void *stream);
int cuCtxSynchronize(void);
int cuCtxGetCurrent(void **context);
int cuDeviceGetName(char *name, int len, int device);
int cuMemAllocManaged(uint64_t *p, size_t len, unsigned flags);
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total);
int cuEventElapsedTime(float *ms, void *from, void *to);
int cuStreamIsCapturing(void *stream, int *status);
int cuStreamBeginCapture_v2(void *stream, int mode);
int cuStreamEndCapture(void *stream, void **graph);
int cuGraphInstantiateWithFlags(void **exec, void *graph,
				unsigned long long flags);
int cuGraphLaunch(void *exec, void *stream);
int cuGraphExecDestroy(void *exec);
int cuGraphDestroy(void *graph);

#endif
