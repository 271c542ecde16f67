/* ahead.c - see ahead.h. */
#include "store/space/ahead.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "store/base/scope.h"

/* How far a read may be from where it was expected. */
#define SLACK_BYTES AHEAD_BLOCK_BYTES

struct ahead {
	struct images *images;
	uint64_t page_bytes;
	unsigned thread_count;
	struct ahead_thread {
		struct ahead *ahead;
		struct thread thread;
		struct ahead_block at; /* image NULL: idle; lock */
	} threads[AHEAD_THREADS];

	struct lock lock; /* guards everything below */
	struct cond added, settled;
	struct ahead_queue queue;
	unsigned working;
	bool stopping;
};

/* The stream that is read on becomes the first; NULL: a new one begins. */
static struct ahead_stream *stream_find(struct ahead_streams *s, uint64_t off,
					uint64_t len)
{
	struct ahead_stream found = { .next = off + len };
	bool known = false;
	unsigned i;

	for (i = 0; i < AHEAD_STREAMS_MAX; i++) {
		known = off <= s->at[i].next + SLACK_BYTES &&
			off + SLACK_BYTES >= s->at[i].next;
		if (known)
			break;
	}
	if (known)
		found = s->at[i];
	else
		i = AHEAD_STREAMS_MAX - 1; /* used longest ago: it goes */
	memmove(&s->at[1], &s->at[0], i * sizeof(s->at[0]));
	s->at[0] = found;
	return known ? &s->at[0] : NULL;
}

bool ahead_follow(struct ahead_streams *streams, uint64_t off, uint64_t len,
		  uint64_t size_bytes, uint64_t *ret_from, uint64_t *ret_to)
{
	struct ahead_stream *s = stream_find(streams, off, len);
	uint64_t reach, from, to;

	if (!s)
		return false;
	s->run += len;
	if (off + len > s->next)
		s->next = off + len;
	reach = s->run < AHEAD_BYTES_MAX ? s->run : AHEAD_BYTES_MAX;
	from = s->end > s->next ? s->end : s->next;
	to = s->next + reach;
	if (to >= size_bytes)
		to = size_bytes;
	else
		to -= to % AHEAD_BLOCK_BYTES;
	if (from >= to)
		return false;
	s->end = to;
	*ret_from = from;
	*ret_to = to;
	return true;
}

/* --- the threads ------------------------------------------------------- */

/* *at is done, and becomes the next; false: there is none any more. */
static bool block_next(struct ahead *a, struct ahead_block *at)
{
	HOLD(&a->lock);
	if (at->image && --a->working == 0 && a->queue.count == 0)
		cond_broadcast(&a->settled);
	at->image = NULL;
	while (a->queue.count == 0 && !a->stopping)
		cond_wait(&a->added, &a->lock);
	if (a->stopping)
		return false;
	(void)ahead_queue_take(&a->queue, at);
	a->working++;
	return true;
}

static void block_drop(struct ahead *a, struct image *i)
{
	if (!i)
		return;
	image_map_end(a->images, i);
	image_put(a->images, i);
}

static void *run(void *arg)
{
	struct ahead_thread *t = arg;
	struct ahead_block *at = &t->at;
	struct ahead *a = t->ahead;

	while (block_next(a, at)) {
		struct image *image = at->image;

		/* A page that cannot be read is the reader's to hear of. */
		(void)madvise((void *)(uintptr_t)at->start, at->len,
			      MADV_POPULATE_READ);
		block_drop(a, image);
	}
	return NULL;
}

int ahead_start(struct images *images, struct ahead **ret_ahead)
{
	struct ahead *a;
	int rc = 0;

	*ret_ahead = NULL;
	if (!images->populates)
		return 0;
	a = calloc(1, sizeof(*a));
	if (!a)
		return -ENOMEM;
	a->images = images;
	a->page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
	lock_init(&a->lock, LOCK_AHEAD);
	cond_init(&a->added);
	cond_init(&a->settled);
	while (rc == 0 && a->thread_count < AHEAD_THREADS) {
		struct ahead_thread *t = &a->threads[a->thread_count];

		t->ahead = a;
		rc = thread_create(&t->thread, run, t);
		a->thread_count += rc == 0;
	}
	if (rc < 0) {
		ahead_stop(a);
		return rc;
	}
	*ret_ahead = a;
	return 0;
}

void ahead_stop(struct ahead *a)
{
	struct ahead_block dropped;

	if (!a)
		return;
	{
		HOLD(&a->lock);
		a->stopping = true;
		cond_broadcast(&a->added);
	}
	for (unsigned i = 0; i < a->thread_count; i++)
		thread_join(&a->threads[i].thread);
	while (ahead_queue_take(&a->queue, &dropped))
		block_drop(a, dropped.image);
	cond_destroy(&a->added);
	cond_destroy(&a->settled);
	lock_destroy(&a->lock);
	free(a);
}

/* --- what they are given ----------------------------------------------- */

/* Takes over what b keeps; what is left over is the caller's to drop. */
static struct image *block_add(struct ahead *a, const struct ahead_block *b,
			       bool own)
{
	struct ahead_block left;

	HOLD(&a->lock);
	for (unsigned i = 0; i < AHEAD_THREADS; i++)
		if (ahead_block_is(&a->threads[i].at, b))
			return b->image;
	if (ahead_queue_add(&a->queue, b, own, &left))
		cond_signal(&a->added);
	return left.image;
}

/* Blocks come and go as one: its last page tells. */
static bool is_cached(const struct ahead *a, const struct ahead_block *b)
{
	unsigned char in_memory = 0;

	return mincore((void *)(uintptr_t)(b->start + b->len - a->page_bytes),
		       (size_t)a->page_bytes, &in_memory) == 0 &&
	       (in_memory & 1);
}

void ahead_add(struct ahead *a, struct image *i, uint64_t off, uint64_t len,
	       bool own)
{
	const uint8_t *map = image_map(a->images, i, off + len);
	uint64_t end = off + len;

	if (!map)
		return;
	while (off < end) {
		uint64_t number = off / AHEAD_BLOCK_BYTES;
		uint64_t next = (number + 1) * AHEAD_BLOCK_BYTES;
		uint64_t from = off - off % a->page_bytes;
		uint64_t to = next < end ? next : end;
		struct ahead_block b = { .image = i,
					 .number = number,
					 .start = map + from };

		to += (a->page_bytes - to % a->page_bytes) % a->page_bytes;
		b.len = (size_t)(to - from);
		off = next;
		if (is_cached(a, &b))
			continue;
		/* A block keeps its image, and the mapping of it. */
		image_ref(a->images, i);
		image_map_more(a->images, i);
		block_drop(a, block_add(a, &b, own));
	}
	image_map_end(a->images, i);
}

void ahead_settle(struct ahead *a)
{
	HOLD(&a->lock);
	while (a->queue.count > 0 || a->working > 0)
		cond_wait(&a->settled, &a->lock);
}
