/*
 * interrupt.h - a call that waits ends early, when whoever made it wants it to.
 *
 * Who serves calls says of his thread which one it serves; what waits in that
 * thread asks. Nobody has to hand it through all that lies between. A thread
 * that serves nobody, as those of the store's own, is never told to end.
 *
 * A call that may wait for long can be put off instead, where it is served so:
 * it ends with -ERESTART, and is made once more after a pause.
 */
#ifndef STORE_BASE_INTERRUPT_H
#define STORE_BASE_INTERRUPT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* What a call that is put off keeps from one try to the next. */
struct put_off {
	int64_t since_ns; /* mono_ns() of its first try; 0: this is it */
	int64_t pause_ns; /* how long it was put off last; 0: not yet */
	uint64_t asked; /* what it has asked others for, so as to ask once */
	atomic_bool told; /* that its caller has a signal */
};

struct interrupt {
	/* Set by any thread, who then wakes what waits: ends() is to be asked.
	 */
	atomic_bool signalled;
	/* Is the call to end? May read files: no lock is held. */
	bool (*ends)(const struct interrupt *i);
	struct put_off *put_off; /* NULL: the call waits in its thread */
};

/* The call that this thread serves; NULL: none. */
struct interrupt *interrupt_of_thread(void);
/* Is the call that this thread serves to end? As ends(): no lock is held. */
bool interrupt_is_due(void);
/* What it keeps if it is put off; NULL: it cannot be. */
struct put_off *put_off_of_thread(void);
/* Returned is what was set before. The caller owns i, and sets it back. */
struct interrupt *interrupt_set(struct interrupt *i);

#endif
