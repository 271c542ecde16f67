/* handle.c - who may use a handle, and what it counts. See handle.h. */
#include "gpu/handle.h"

#include <errno.h>
#include <unistd.h>

#include "store/base/scope.h"

int ckpt_check_process(const struct ckpt *c)
{
	if (c->pid == getpid())
		return 0;
	return ckpt_say(-ECHILD,
			"made by process %d before a fork: open a "
			"ckpt of its own in this process",
			(int)c->pid);
}

struct gpu *ckpt_driver_opened(struct ckpt *c)
{
	return atomic_load(&c->driver_opened) ? c->gpu : NULL;
}

struct gpu *ckpt_driver(struct ckpt *c)
{
	if (!atomic_load(&c->driver_opened)) {
		HOLD(&c->driver_lock);
		if (!atomic_load(&c->driver_opened)) {
			/* Without one, or memory for it, all is host memory. */
			(void)gpu_open(&c->gpu, c->gpu_state,
				       sizeof(c->gpu_state));
			atomic_store(&c->driver_opened, true);
		}
	}
	return c->gpu;
}

struct gpu *ckpt_driver_if_started(struct ckpt *c)
{
	if (!atomic_load(&c->driver_opened) && !gpu_is_started())
		return NULL;
	return ckpt_driver(c);
}

const char *ckpt_gpu_state(struct ckpt *c)
{
	if (c->pid == getpid()) /* a child of fork only reads */
		(void)ckpt_driver(c);
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
		.buffered_bytes = atomic_load(&a->buffered_bytes),
	};
}
