/*
 * fake_kernels.h - the kernels by name, run on the host: lane after lane, the
 * blocks in another order each time.
 */
#ifndef TESTS_GPU_FAKE_KERNELS_H
#define TESTS_GPU_FAKE_KERNELS_H

#include <stddef.h>

#define ARGS_MAX 4

struct kernel {
	const char *name;
	unsigned count; /* of arguments */
	size_t sizes[ARGS_MAX];
	/* Not by two threads at a time. */
	void (*run)(void *const *args, unsigned grid, unsigned block);
};

/* NULL: there is no such kernel. */
const struct kernel *kernel_find(const char *name);

#endif
