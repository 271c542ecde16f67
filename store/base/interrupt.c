/* interrupt.c - which call a thread serves: see interrupt.h. */
#include "store/base/interrupt.h"

#include <stddef.h>

static _Thread_local struct interrupt *served;

struct interrupt *interrupt_of_thread(void)
{
	return served;
}

bool interrupt_is_due(void)
{
	return served && atomic_load(&served->signalled) &&
	       served->ends(served);
}

struct put_off *put_off_of_thread(void)
{
	return served ? served->put_off : NULL;
}

struct interrupt *interrupt_set(struct interrupt *i)
{
	struct interrupt *before = served;

	served = i;
	return before;
}
