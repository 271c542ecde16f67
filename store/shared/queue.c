/*
 * queue.c - the local files that are to be uploaded, by their place in the
 * order of closes.
 *
 * And those that are whole in DIR, by when they became so, or were opened last.
 *
 * A file that is being uploaded stays in the queue; when it is closed anew
 * meanwhile it gets its new place when it is put back.
 */
#include "store/base/check.h"
#include "store/base/sync.h"
#include "store/shared/shared_private.h"

void queue_add_locked(struct shared *s, struct node *n, uint64_t place)
{
	struct node *at;
	bool wanted;

	if (place < n->place)
		place = n->place;
	if (n->is_taken) { /* who has it puts it back with this place */
		n->changed = true;
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
