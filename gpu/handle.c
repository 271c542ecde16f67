/* handle.c - who may use a handle, and what it counts. See handle.h. */
#include "gpu/handle.h"

#include <errno.h>
#include <unistd.h>

int ckpt_check_process(const struct ckpt *c)
{
	if (c->pid == getpid())
		return 0;
	return ckpt_say(-ECHILD,
			"made by process %d before a fork: open a "
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
		.buffered_bytes = atomic_load(&a->buffered_bytes),
	};
}
