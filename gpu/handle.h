/*
 * handle.h - the process's handle, struct ckpt: what saves, loads and stashes
 * share. Who makes a member is said beside it; ckpt.c, which lies above all of
 * them, makes the handle and has each give back what it made.
 *
 * The locks of gpu/ and their order are listed in README.md.
 */
#ifndef GPU_HANDLE_H
#define GPU_HANDLE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "gpu/ckpt_gpu.h"
#include "gpu/driver.h"
#include "gpu/say.h"

struct ckpt_atomic_counters { /* as struct ckpt_counters */
	atomic_uint_fast64_t saves, d2h_bytes, h2d_bytes, host_bytes,
		skipped_bytes, segments_new, segments_reused, pinned_bytes,
		pin_failures, plain_saves, primed_again, released,
		buffered_bytes;
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

	pthread_mutex_t driver_lock; /* held while it is opened */
	atomic_bool driver_opened; /* then these two are immutable */
	struct gpu *gpu; /* NULL: there is none */
	char gpu_state[160];

	struct ckpt_atomic_counters counters;

	pthread_mutex_t streams_lock; /* a stream is made, or told to wait */
	struct gpu_stream *streams[CKPT_DEVICES_MAX]; /* copy.c's; set once */

	uint8_t secret[192]; /* of unchanged.h; immutable */
	pthread_mutex_t hashers_lock; /* held while one is made, and runs */
	/* unchanged.c's; [0]: host memory */
	struct hasher *hashers[CKPT_DEVICES_MAX + 1];

	pthread_mutex_t lock; /* guards everything below */
	struct ckpt_mount *mounts; /* mount.c's list; only grows */
	void *spare[CKPT_SPARE_MAX]; /* load's: pinned, of buffer_bytes */
};

#define CKPT_COUNT(c, counter, n) \
	(void)atomic_fetch_add(&(c)->counters.counter, (uint_fast64_t)(n))

/*
 * The driver, for who has something on a device: the first call opens it,
 * which starts it for the whole process, and CUDA in its forked children is
 * over then. NULL: there is none; gpu_state says why.
 */
struct gpu *ckpt_driver(struct ckpt *c);
/* For who could use one: NULL as well as long as nobody has started it. */
struct gpu *ckpt_driver_if_started(struct ckpt *c);
/* For what was to be done with one that is open: the first that asks. */
struct gpu *ckpt_driver_opened(struct ckpt *c);

/* -ECHILD with a sentence: another process made c, before a fork. */
int ckpt_check_process(const struct ckpt *c);

#endif
