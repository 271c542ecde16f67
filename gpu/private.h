/*
 * private.h - what the library's files share: the process's handle, and how
 * an error gets its sentence.
 *
 * Locks: mount.turn, then mount.lock (mount.h); ckpt.lock. The locks are
 * leaves: no I/O, copy or driver call is made under them. The turns serialise
 * what they name, and nothing else is taken under streams_turn and
 * hashers_turn.
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

struct ckpt_mount; /* mount.h */
struct hasher; /* hash.h */

/* Transfer buffers that are kept: what one load uses. */
#define CKPT_SPARE_MAX 2

#define CKPT_DEVICES_MAX 64

struct ckpt {
	/* Immutable after ckpt_open(): */
	unsigned flags;
	unsigned copy_threads;
	uint64_t buffer_bytes;
	pid_t pid; /* who may use it */
	struct gpu *gpu; /* NULL: none */
	char gpu_state[160];

	struct ckpt_atomic_counters counters;

	pthread_mutex_t streams_turn; /* a stream is made, or told to wait */
	struct gpu_stream *streams[CKPT_DEVICES_MAX]; /* copy.h; set once */

	uint8_t secret[192]; /* of unchanged.h; immutable */
	pthread_mutex_t hashers_turn; /* held while one is made, and runs */
	struct hasher *hashers[CKPT_DEVICES_MAX + 1]; /* [0]: host memory */

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
/* The same text, static. NULL: there is no such dtype. */
const char *ckpt_dtype_name(const char *dtype);

#endif
