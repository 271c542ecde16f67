/*
 * ckpt.c - the process's handle: options, counters, and the sentence that
 * goes with an error.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "gpu/load.h"
#include "gpu/copy.h"
#include "gpu/mount.h"
#include "gpu/unchanged.h"
#include "gpu/private.h"
#include "store/base/scope.h"
#include "store/formats/safetensors_header.h"

#define COPY_THREADS_DEFAULT 4
#define COPY_THREADS_MAX 64
#define BUFFER_BYTES_DEFAULT (UINT64_C(32) << 20)

static _Thread_local char last_error[4608] = "no error";

int ckpt_say(int rc, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	(void)vsnprintf(last_error, sizeof(last_error), format, ap);
	va_end(ap);
	return rc;
}

const char *ckpt_last_error(void)
{
	return last_error;
}

unsigned ckpt_dtype_bits(const char *dtype)
{
	return safetensors_dtype_bits(dtype);
}

const char *ckpt_dtype_name(const char *dtype)
{
	return safetensors_dtype_name(dtype);
}

int ckpt_open(const struct ckpt_options *options, struct ckpt **ret_ckpt)
{
	static const struct ckpt_options none;
	const struct ckpt_options *o = options ? options : &none;
	SCOPED(scope_free) struct ckpt *c = calloc(1, sizeof(*c));
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	int rc;

	if (!c)
		return ckpt_say(-ENOMEM, "no memory");
	if (o->copy_threads > COPY_THREADS_MAX)
		return ckpt_say(-EINVAL, "copy_threads=%u: give at most %u",
				o->copy_threads, COPY_THREADS_MAX);
	c->flags = o->flags;
	c->pid = getpid();
	c->copy_threads = o->copy_threads;
	if (c->copy_threads == 0)
		c->copy_threads = cpus < COPY_THREADS_DEFAULT ?
					  (unsigned)cpus :
					  COPY_THREADS_DEFAULT;
	c->buffer_bytes = o->buffer_bytes ? o->buffer_bytes :
					    BUFFER_BYTES_DEFAULT;
	(void)snprintf(c->gpu_state, sizeof(c->gpu_state),
		       "not looked for (CKPT_NO_GPU)");
	if (!(c->flags & CKPT_NO_GPU)) {
		rc = gpu_open(&c->gpu, c->gpu_state, sizeof(c->gpu_state));
		if (rc < 0 && rc != -ENODEV)
			return rc;
	}
	if (getrandom(c->secret, sizeof(c->secret), 0) != sizeof(c->secret)) {
		gpu_close(c->gpu);
		return ckpt_say(-EIO, "no random numbers");
	}
	/* With default attributes none of them can fail. */
	CHECK(pthread_mutex_init(&c->lock, NULL) == 0);
	CHECK(pthread_mutex_init(&c->streams_turn, NULL) == 0);
	CHECK(pthread_mutex_init(&c->hashers_turn, NULL) == 0);
	*ret_ckpt = TAKE(c);
	return 0;
}

void ckpt_close(struct ckpt *c)
{
	if (!c)
		return;
	if (c->pid != getpid()) { /* all of it is the parent's */
		free(c);
		return;
	}
	mounts_close(c);
	load_buffers_close(c);
	unchanged_close(c);
	copy_streams_close(c);
	gpu_close(c->gpu);
	pthread_mutex_destroy(&c->lock);
	pthread_mutex_destroy(&c->streams_turn);
	pthread_mutex_destroy(&c->hashers_turn);
	free(c);
}

int ckpt_check_process(const struct ckpt *c)
{
	if (c->pid == getpid())
		return 0;
	return ckpt_say(-ECHILD, "made by process %d before a fork: open a "
				 "ckpt of its own in this process",
			(int)c->pid);
}

const char *ckpt_gpu_state(struct ckpt *c)
{
	return c->gpu_state;
}

void ckpt_get_counters(struct ckpt *c, struct ckpt_counters *ret)
{
	struct ckpt_atomic_counters *a = &c->counters;

	*ret = (struct ckpt_counters){
		.saves = atomic_load(&a->saves),
		.d2h_bytes = atomic_load(&a->d2h_bytes),
		.h2d_bytes = atomic_load(&a->h2d_bytes),
		.host_bytes = atomic_load(&a->host_bytes),
		.skipped_bytes = atomic_load(&a->skipped_bytes),
		.segments_new = atomic_load(&a->segments_new),
		.segments_reused = atomic_load(&a->segments_reused),
		.pinned_bytes = atomic_load(&a->pinned_bytes),
		.pin_failures = atomic_load(&a->pin_failures),
		.plain_saves = atomic_load(&a->plain_saves),
		.primed_again = atomic_load(&a->primed_again),
		.released = atomic_load(&a->released),
	};
}
