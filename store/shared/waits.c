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
	const void *key; /* who waits: its node, or its rename */
	int64_t since_ns;
	struct shared_wait is;
};

static struct wait_note *find_locked(struct shared *s, const void *key)
{
	struct wait_note *w;

	LIST_FOREACH(w, &s->waits, link)
		if (w->key == key)
			return w;
	return NULL;
}

void waits_end_locked(struct shared *s, const void *key)
{
	struct wait_note *w = find_locked(s, key);

	if (!w)
		return;
	LIST_REMOVE(w, link);
	free(w);
}

void waits_end(struct shared *s, const void *key)
{
	HOLD(&s->lock);
	waits_end_locked(s, key);
}

int64_t waits_for_ns(struct shared *s, const void *key)
{
	const struct wait_note *w;

	HOLD(&s->lock);
	w = find_locked(s, key);
	return w ? mono_ns() - w->since_ns : 0;
}

void waits_note(struct shared *s, const void *key, const struct shared_wait *is)
{
	struct wait_note *w;

	HOLD(&s->lock);
	w = find_locked(s, key);
	if (!w) {
		w = calloc(1, sizeof(*w));
		if (!w)
			return; /* it is not told */
		w->key = key;
		w->since_ns = mono_ns();
		LIST_INSERT_HEAD(&s->waits, w, link);
	}
	w->is = *is;
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

void waits_free(struct shared *s)
{
	struct wait_note *w;

	while ((w = LIST_FIRST(&s->waits))) {
		LIST_REMOVE(w, link);
		free(w);
	}
}
