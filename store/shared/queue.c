/*
 * queue.c - the local files that are to be uploaded, by their place in the
 * order of closes, and whose turn it is (upload.c says when each is shown).
 *
 * And those that are whole in DIR, by when they became so, or were opened last.
 *
 * A file that is being uploaded stays in the queue; when it is closed anew
 * meanwhile it gets its new place when it is put back.
 */
#include <errno.h>

#include "store/base/check.h"
#include "store/base/sync.h"
#include "store/shared/shared_private.h"

#define SECOND_NS INT64_C(1000000000)

void queue_changed_locked(struct shared *s, struct node *n)
{
	n->number++;
	if (n->is_taken) /* it waits for its turn, or for its next try */
		cond_broadcast(&s->moved);
}

void queue_add_locked(struct shared *s, struct node *n, uint64_t place)
{
	struct node *at;
	bool wanted;

	if (place < n->place)
		place = n->place;
	if (n->is_taken) { /* who has it puts it back with this place */
		queue_changed_locked(s, n);
		n->place = place;
		return;
	}
	wanted = n->wanted;
	queue_remove_locked(s, n);
	s->wanted += wanted;
	n->wanted = wanted;
	n->place = place;
	n->due_ns = 0;
	at = TAILQ_LAST(&s->queue, node_queue);
	while (at && at->place > place)
		at = TAILQ_PREV(at, node_queue, queued);
	if (at)
		TAILQ_INSERT_AFTER(&s->queue, at, n, queued);
	else
		TAILQ_INSERT_HEAD(&s->queue, n, queued);
	n->is_queued = true;
	cond_signal(&s->idle);
}

void queue_remove_locked(struct shared *s, struct node *n)
{
	if (!n->is_queued)
		return;
	TAILQ_REMOVE(&s->queue, n, queued);
	n->is_queued = false;
	s->wanted -= n->wanted;
	n->wanted = false;
	cond_broadcast(&s->moved);
}

void queue_want_locked(struct shared *s, struct node *n)
{
	if (!n->is_queued)
		return;
	s->wanted += !n->wanted;
	n->wanted = true;
	/* At once; those that were closed after it do not wait again. */
	if (!n->is_taken && n->due_ns > mono_ns())
		n->due_ns = mono_ns();
	cond_signal(&s->idle);
	cond_broadcast(&s->moved);
}

void queue_read_locked(struct shared *s, struct node *n)
{
	if (n->state != NODE_KEPT)
		return;
	TAILQ_REMOVE(&s->kept, n, kept);
	TAILQ_INSERT_TAIL(&s->kept, n, kept);
}

void queue_keep_locked(struct shared *s, struct node *n, uint64_t bytes)
{
	n->state = NODE_KEPT;
	n->kept_bytes = bytes;
	s->kept_bytes += bytes;
	TAILQ_INSERT_TAIL(&s->kept, n, kept);
	s->figures.kept++;
}

void queue_unkeep_locked(struct shared *s, struct node *n, enum node_state to)
{
	CHECK(n->state == NODE_KEPT);
	n->is_passed = false;
	n->state = to;
	s->kept_bytes -= n->kept_bytes;
	TAILQ_REMOVE(&s->kept, n, kept);
	s->figures.kept--;
}

/* --- whose turn it is ------------------------------------------------------
 */

static bool may_be_taken_locked(const struct node *n, int64_t now)
{
	return !n->is_taken && !n->is_staged && n->due_ns <= now &&
	       n->state == NODE_PENDING;
}

/* One that another node waits for, and that is no tracker: it goes first. */
static struct node *find_wanted_locked(struct shared *s, int64_t now)
{
	struct node *n;

	if (s->wanted == 0)
		return NULL;
	TAILQ_FOREACH(n, &s->queue, queued)
	if (n->wanted && may_be_taken_locked(n, now) && !tracker_is(n->name))
		return n;
	return NULL;
}

struct node *queue_next_locked(struct shared *s, int64_t *ret_due)
{
	int64_t now = mono_ns();
	bool tracker_before = false;
	struct node *n = find_wanted_locked(s, now);

	if (n)
		return n;
	*ret_due = now + SECOND_NS;
	TAILQ_FOREACH(n, &s->queue, queued)
	{
		bool tracker = tracker_is(n->name);

		if (may_be_taken_locked(n, now) && !(tracker && tracker_before))
			return n;
		if (n->due_ns > now && n->due_ns < *ret_due)
			*ret_due = n->due_ns;
		/* Nobody can see one that is not found, nor one whose step
		 * misses a file: they keep no order. */
		tracker_before =
			tracker_before || (tracker && n->error != -ESTALE &&
					   n->error != -EUCLEAN);
	}
	return NULL;
}

/* Do those that were closed after it wait for it? */
static bool holds_back_locked(const struct node *o)
{
	return !o->is_passed && !tracker_is(o->name);
}

bool queue_may_complete_locked(const struct shared *s, const struct node *n)
{
	bool tracker = tracker_is(n->name);
	const struct node *o;

	if (n->wanted && !tracker)
		return true;
	TAILQ_FOREACH(o, &s->queue, queued)
	{
		if (o == n)
			return true;
		if (!holds_back_locked(o))
			continue;
		if (o->state != NODE_COMPLETING || tracker)
			return false;
	}
	return true;
}

bool queue_left_before_locked(const struct shared *s, const struct node *n)
{
	const struct node *o;

	TAILQ_FOREACH(o, &s->queue, queued)
	{
		if (o == n)
			return false;
		if (holds_back_locked(o) && !o->is_taken && !o->is_staged)
			return true;
	}
	return false;
}

bool queue_may_show_locked(const struct shared *s, const struct node *n)
{
	const struct node *o;

	if (n->wanted && !tracker_is(n->name))
		return true;
	TAILQ_FOREACH(o, &s->queue, queued)
	{
		if (o == n)
			return true;
		if (holds_back_locked(o) && o->state == NODE_COMPLETING &&
		    !o->is_shown)
			return false;
	}
	return true;
}
