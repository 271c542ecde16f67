/*
 * copy.h - the bytes of tensors, from devices and from host memory, to where
 * the file's bytes are put together.
 *
 * Copies from devices are enqueued first, each device's on a stream of our own
 * that waits for the caller's; what is in host memory is copied by some threads
 * meanwhile; then the streams are waited for.
 *
 * Errors: 0 or a negative errno, with a sentence that names the tensor.
 */
#ifndef GPU_COPY_H
#define GPU_COPY_H

#include "gpu/handle.h"
#include "gpu/layout.h"

/* Bytes [from, from + bytes) of the tensor as they lie in the file. */
struct copy_job {
	const struct layout_tensor *tensor;
	uint64_t from, bytes;
	uint8_t *to;
};

/*
 * Do all of it; returns when it is done. A tensor that is not contiguous is
 * gathered; from and bytes must be multiples of its elements' size.
 */
int copy_run(struct ckpt *c, const struct copy_job *jobs, size_t count);

/*
 * Our stream on a device, made when it is needed first; it waits for what the
 * caller's stream had when `ready` was recorded there. Belongs to c.
 */
int copy_stream(struct ckpt *c, int device, const struct gpu_event *ready,
		struct gpu_stream **ret_stream);
/* For ckpt_close(). */
void copy_streams_close(struct ckpt *c);

#endif
