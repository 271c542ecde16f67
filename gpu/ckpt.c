/*
 * ckpt.c - make the process's handle, and take it down: the one file that knows
 * all who leave something in it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

#include "gpu/copy.h"
#include "gpu/handle.h"
#include "gpu/load_device.h"
#include "gpu/mount.h"
#include "gpu/twin.h"
#include "gpu/unchanged.h"
#include "store/base/scope.h"

#define COPY_THREADS_DEFAULT 4
#define COPY_THREADS_MAX 64
#define BUFFER_BYTES_DEFAULT (UINT64_C(32) << 20)

int ckpt_open(const struct ckpt_options *options, struct ckpt **ret_ckpt)
{
	static const struct ckpt_options none;
	const struct ckpt_options *o = options ? options : &none;
	SCOPED(scope_free) struct ckpt *c = calloc(1, sizeof(*c));
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);

	if (!c)
		return ckpt_say(-ENOMEM, "no memory");
	if (o->copy_threads > COPY_THREADS_MAX)
		return ckpt_say(-EINVAL, "copy_threads=%u: give at most %u",
				o->copy_threads, COPY_THREADS_MAX);
	c->flags = o->flags;
	c->pid = getpid();
	c->copy_threads = o->copy_threads;
	if (c->copy_threads == 0)
		c->copy_threads = cpus < COPY_THREADS_DEFAULT
					  ? (unsigned)cpus
					  : COPY_THREADS_DEFAULT;
	c->buffer_bytes =
		o->buffer_bytes ? o->buffer_bytes : BUFFER_BYTES_DEFAULT;
	(void)snprintf(c->gpu_state, sizeof(c->gpu_state),
		       "not looked for (CKPT_NO_GPU)");
	atomic_init(&c->driver_opened, (c->flags & CKPT_NO_GPU) != 0);
	if (getrandom(c->secret, sizeof(c->secret), 0) != sizeof(c->secret))
		return ckpt_say(-EIO, "no random numbers");
	/* With default attributes none of them can fail. */
	CHECK(pthread_mutex_init(&c->lock, NULL) == 0);
	CHECK(pthread_mutex_init(&c->driver_lock, NULL) == 0);
	CHECK(pthread_mutex_init(&c->streams_lock, NULL) == 0);
	CHECK(pthread_mutex_init(&c->hashers_lock, NULL) == 0);
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
	twins_wait(c);
	mounts_close(c);
	load_buffers_close(c);
	unchanged_close(c);
	copy_streams_close(c);
	gpu_close(c->gpu);
	pthread_mutex_destroy(&c->lock);
	pthread_mutex_destroy(&c->driver_lock);
	pthread_mutex_destroy(&c->streams_lock);
	pthread_mutex_destroy(&c->hashers_lock);
	free(c);
}
