/* ahead_queue.c - see ahead_queue.h. */
#include "store/space/ahead_queue.h"

#include <string.h>

/* At most AHEAD_QUEUE_MAX are moved, for 2 MiB that are read. */
static void insert(struct ahead_queue *q, unsigned i,
		   const struct ahead_block *b)
{
	memmove(&q->at[i + 1], &q->at[i], (q->count - i) * sizeof(q->at[0]));
	q->at[i] = *b;
	q->count++;
}

static struct ahead_block cut_out(struct ahead_queue *q, unsigned i)
{
	struct ahead_block b = q->at[i];

	q->count--;
	memmove(&q->at[i], &q->at[i + 1], (q->count - i) * sizeof(q->at[0]));
	if (i < q->own)
		q->own--;
	return b;
}

bool ahead_queue_add(struct ahead_queue *q, const struct ahead_block *b,
		     bool own, struct ahead_block *ret)
{
	struct ahead_block in = *b;
	unsigned i = 0;

	while (i < q->count && !ahead_block_is(&q->at[i], b))
		i++;
	*ret = *b;
	if (i < q->count) {
		if (!own || i < q->own)
			return false;
		in = cut_out(q, i); /* to its better place */
	} else if (q->count == AHEAD_QUEUE_MAX) {
		if (!own || q->own == q->count)
			return false;
		*ret = cut_out(q, q->own); /* the oldest: read by now */
	} else {
		ret->image = NULL;
	}
	insert(q, own ? q->own++ : q->count, &in);
	return true;
}

bool ahead_queue_take(struct ahead_queue *q, struct ahead_block *ret)
{
	unsigned i = 0;

	if (q->count == 0)
		return false;
	if (q->own > 0 && q->own < q->count &&
	    q->own_taken >= AHEAD_OWN_TAKEN_MAX)
		i = q->own;
	q->own_taken = i < q->own ? q->own_taken + 1 : 0;
	*ret = cut_out(q, i);
	return true;
}
