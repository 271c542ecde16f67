/*
 * waiting.c - see waiting.h. libfuse calls on_interrupt() in another thread,
 * with a lock of the request's that waiting_end() takes as well: after that it
 * is not called any more.
 */
#include "fuse/waiting.h"

#include "fuse/caller.h"
#include "fuse/loop.h"
#include "store/drain/drain.h"

static bool ends(const struct interrupt *i)
{
	const struct waiting *w = (const struct waiting *)i;

	/* Without a try before this one, only who was told asks. */
	return caller_is_to_end(w->callers, w->pid,
				!i->put_off || atomic_load(&i->put_off->told));
}

static void on_interrupt(fuse_req_t req, void *arg)
{
	struct waiting *w = arg;

	(void)req;
	if (w->interrupt.put_off)
		atomic_store(&w->interrupt.put_off->told, true);
	atomic_store(&w->interrupt.signalled, true);
	drain_look_again(w->drain);
}

void waiting_begin(struct waiting *w, fuse_req_t req)
{
	struct put_off *off = loop_may_put_off();

	*w = (struct waiting){ .interrupt = { .ends = ends, .put_off = off },
			       .req = req,
			       .drain = store_of(req)->drain,
			       .callers = fs_of(req)->callers,
			       .pid = fuse_req_ctx(req)->pid };
	/* It may have been signalled since its last try, with nobody told. */
	atomic_init(&w->interrupt.signalled, off && off->pause_ns > 0);
	(void)interrupt_set(&w->interrupt);
	fuse_req_interrupt_func(req, on_interrupt, w);
}

void waiting_end(struct waiting *w)
{
	fuse_req_interrupt_func(w->req, NULL, NULL);
	(void)interrupt_set(NULL);
}
