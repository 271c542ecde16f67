/*
 * private.h - what the library's files share: the process's handle, and how
 * an error gets its sentence.
 *
 * Locks, in order: mount.lock (segment.h), ckpt.lock; both are leaves to
 * everything else, and no I/O, copy or driver call is made under ckpt.lock.
 */
#ifndef GPU_PRIVATE_H
#define GPU_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "gpu/ckpt_gpu.h"
#include "gpu/driver.h"

/*
 * Set this thread's ckpt_last_error(); returns rc. A printf format, without a
 * newline: "PATH: what is wrong: what to do".
 */
int ckpt_say(int rc, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

struct ckpt_atomic_counters { /* as struct ckpt_counters */
	atomic_uint_fast64_t saves, d2h_bytes, h2d_bytes, host_bytes,
		skipped_bytes, segments_new, segments_reused, pinned_bytes,
		pin_failures, plain_saves, primed_again, released;
};

struct ckpt_mount; /* segment.h */

/* Transfer buffers that are kept: what one load uses. */
#define CKPT_SPARE_MAX 2

struct ckpt {
	/* Immutable after ckpt_open(): */
	unsigned flags;
	unsigned copy_threads;
	uint64_t buffer_bytes;
	pid_t pid; /* who may use it */
	struct gpu *gpu; /* NULL: none */
	char gpu_state[160];

	struct ckpt_atomic_counters counters;

	pthread_mutex_t lock; /* guards everything below */
	struct ckpt_mount *mounts; /* a list; each stays until ckpt_close() */
	void *spare[CKPT_SPARE_MAX]; /* pinned, of buffer_bytes; load.c's */
};

#define CKPT_COUNT(c, counter, n) \
	(void)atomic_fetch_add(&(c)->counters.counter, (uint_fast64_t)(n))

/* -ECHILD with a sentence: c was made by another process (see fork above). */
int ckpt_check_process(const struct ckpt *c);

/*
 * Bits of one element of a safetensors dtype ("BF16": 16), 0: there is no
 * such dtype. Those of less than 8 bits are packed. From the enum Dtype of
 * safetensors/src/tensor.rs.
 */
unsigned ckpt_dtype_bits(const char *dtype);

#endif
