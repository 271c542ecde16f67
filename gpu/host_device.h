/*
 * host_device.h - for arithmetic that the device and the host share: the same
 * function is a kernel's body, host code, and what the tests look at.
 */
#ifndef GPU_HOST_DEVICE_H
#define GPU_HOST_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__ __forceinline__ static
#else
#define HOST_DEVICE __attribute__((unused)) static inline
#endif

#define WARP_LANES 32u

#endif
