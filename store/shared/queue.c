/*
 * queue.c - the local files that are to be uploaded, by their place in the
 * order of closes.
 *
 * And those that are whole in DIR, in the order in which they became so.
 *
 * A file that is being uploaded stays in the queue; when it is closed anew meanwhile
 * it gets its new place when it is put back.
 */
#include "store/base/check.h"
#include "store/base/sync.h"
#include "store/shared/shared_private.h"

void queue_add_locked(struct shared *s, struct node *n, uint64_t place)
{
	struct node *at;

	if (n->is_taken) { /* who has it puts it back with this place */
		n->changed = true;
		n->place = place;
		return;
	}
	queue_remove_locked(s, n);
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
	cond_broadcast(&s->moved);
}

void queue_keep_locked(struct shared *s, struct node *n)
{
	n->state = NODE_KEPT;
	TAILQ_INSERT_TAIL(&s->kept, n, kept);
	s->figures.kept++;
}

void queue_unkeep_locked(struct shared *s, struct node *n, enum node_state to)
{
	CHECK(n->state == NODE_KEPT);
	n->state = to;
	TAILQ_REMOVE(&s->kept, n, kept);
	s->figures.kept--;
}
