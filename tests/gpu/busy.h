/*
 * busy.h - work that takes time and no memory bandwidth: what gpu_bench runs
 * beside a save. On the device it is a kernel (busy.cu), in the fake driver and
 * for the check of its result a function.
 */
#ifndef TESTS_GPU_BUSY_H
#define TESTS_GPU_BUSY_H

#include "gpu/host_device.h"

#define BUSY_THREADS 256u

/* One thread's work, a chain that nothing can shorten. */
HOST_DEVICE uint32_t busy_value(uint32_t index, uint32_t steps)
{
	uint32_t x = index ^ 0x9e3779b9u;

	for (uint32_t i = 0; i < steps; i++) {
		x ^= x << 13;
		x ^= x >> 17;
		x ^= x << 5;
		x += i;
	}
	return x;
}

#endif
