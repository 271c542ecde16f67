/*
 * interrupt.h - a call that waits ends early, when whoever made it wants it to.
 *
 * Who serves calls says of his thread which one it serves; what waits in that
 * thread asks. Nobody has to hand it through all that lies between. A thread
 * that serves nobody, as those of the store's own, is never told to end.
 */
#ifndef STORE_BASE_INTERRUPT_H
#define STORE_BASE_INTERRUPT_H

#include <stdatomic.h>
#include <stdbool.h>

struct interrupt {
	/* Set by any thread, who then wakes what waits: ends() is to be asked.
	 */
	atomic_bool signalled;
	/* Is the call to end? May read files: no lock is held. */
	bool (*ends)(const struct interrupt *i);
};

/* The call that this thread serves; NULL: none. */
struct interrupt *interrupt_of_thread(void);
/* Is the call that this thread serves to end? As ends(): no lock is held. */
bool interrupt_is_due(void);
/* Returned is what was set before. The caller owns i, and sets it back. */
struct interrupt *interrupt_set(struct interrupt *i);

#endif
