/* busy.cu - see busy.h: one value for each thread of the grid. */
#include "tests/gpu/busy.h"

extern "C" __global__ void bench_busy(uint32_t *out, uint32_t steps)
{
	uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;

	out[i] = busy_value(i, steps);
}
