/*
 * waits.c - what waits for files of others, for ckptctl status: trackers whose
 * step is not whole, and renames that publish a folder.
 *
 * It is a note of the last look of who waits, and asking for it asks DIR
 * nothing, which may not answer just then.
 */
#include <stdlib.h>

#include "store/base/scope.h"
#include "store/shared/shared_private.h"

struct wait_note {
	LIST_ENTRY(wait_note) link;
	int64_t since_ns;
	struct shared_wait is;
};

void waits_end_locked(struct tracker_last *last)
{
	struct wait_note *w = TAKE(last->note);

	if (!w)
		return;
	LIST_REMOVE(w, link);
	free(w);
}

void waits_end(struct shared *s, struct tracker_last *last)
{
	HOLD(&s->lock);
	waits_end_locked(last);
}

int64_t waits_for_ns(struct shared *s, const struct tracker_last *last)
{
	HOLD(&s->lock);
	return last->note ? mono_ns() - last->note->since_ns : 0;
}

void waits_note(struct shared *s, struct tracker_last *last,
		const struct shared_wait *is)
{
	HOLD(&s->lock);
	if (!last->note) {
		last->note = calloc(1, sizeof(*last->note));
		if (!last->note)
			return; /* it is not told */
		last->note->since_ns = mono_ns();
		LIST_INSERT_HEAD(&s->waits, last->note, link);
	}
	last->note->is = *is;
}

size_t shared_waits(struct shared *s, struct shared_wait *ret, size_t max)
{
	const struct wait_note *w;
	size_t count = 0;

	HOLD(&s->lock);
	LIST_FOREACH(w, &s->waits, link) {
		if (count == max)
			break;
		ret[count] = w->is;
		ret[count++].for_ns = mono_ns() - w->since_ns;
	}
	return count;
}
