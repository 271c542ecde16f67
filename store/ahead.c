/* ahead.c - see ahead.h. */
#include "store/ahead.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "store/base/scope.h"

/* How far a read may be from where it was expected. */
#define SLACK_BYTES AHEAD_BLOCK_BYTES

struct block {
	struct image *image; /* a reference */
	uint64_t number; /* of the block in it */
	const uint8_t *start; /* of whole pages, in its mapping */
	size_t len;
};

struct ahead {
	struct images *images;
	uint64_t page_bytes;
	pthread_t threads[AHEAD_THREADS];
	unsigned thread_count;

	pthread_mutex_t lock; /* guards everything below */
	pthread_cond_t added, settled;
	struct block queue[AHEAD_QUEUE_MAX]; /* a ring */
	unsigned first, count;
	/* What the threads are at; image NULL: idle. */
	struct block current[AHEAD_THREADS];
	unsigned started, working;
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

static unsigned thread_begin(struct ahead *a)
{
	HOLD(&a->lock);
	return a->started++;
}

/* *at is done, and becomes the next; false: there is none any more. */
static bool block_next(struct ahead *a, struct block *at)
{
	HOLD(&a->lock);
	if (at->image && --a->working == 0 && a->count == 0)
		(void)pthread_cond_broadcast(&a->settled);
	at->image = NULL;
	while (a->count == 0 && !a->stopping)
		(void)pthread_cond_wait(&a->added, &a->lock);
	if (a->stopping)
		return false;
	*at = a->queue[a->first];
	a->first = (a->first + 1) % AHEAD_QUEUE_MAX;
	a->count--;
	a->working++;
	return true;
}

static void *run(void *arg)
{
	struct ahead *a = arg;
	struct block *at = &a->current[thread_begin(a)];

	while (block_next(a, at)) {
		struct image *image = at->image;

		/* A page that cannot be read is the reader's to hear of. */
		(void)madvise((void *)(uintptr_t)at->start, at->len,
			      MADV_POPULATE_READ);
		image_put(a->images, image);
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
	CHECK(pthread_mutex_init(&a->lock, NULL) == 0);
	CHECK(pthread_cond_init(&a->added, NULL) == 0);
	CHECK(pthread_cond_init(&a->settled, NULL) == 0);
	while (rc == 0 && a->thread_count < AHEAD_THREADS) {
		rc = -pthread_create(&a->threads[a->thread_count], NULL, run,
				     a);
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
	if (!a)
		return;
	{
		HOLD(&a->lock);
		a->stopping = true;
		(void)pthread_cond_broadcast(&a->added);
	}
	for (unsigned i = 0; i < a->thread_count; i++)
		(void)pthread_join(a->threads[i], NULL);
	for (unsigned i = 0; i < a->count; i++)
		image_put(a->images,
			  a->queue[(a->first + i) % AHEAD_QUEUE_MAX].image);
	(void)pthread_cond_destroy(&a->added);
	(void)pthread_cond_destroy(&a->settled);
	(void)pthread_mutex_destroy(&a->lock);
	free(a);
}

/* --- what they are given ----------------------------------------------- */

static bool is_same(const struct block *a, const struct block *b)
{
	return a->image == b->image && a->number == b->number;
}

/* One fault reads all of a block, so a part of it in the queue is enough. */
static bool is_known_locked(const struct ahead *a, const struct block *b)
{
	for (unsigned i = 0; i < a->count; i++)
		if (is_same(&a->queue[(a->first + i) % AHEAD_QUEUE_MAX], b))
			return true;
	for (unsigned i = 0; i < AHEAD_THREADS; i++)
		if (is_same(&a->current[i], b))
			return true;
	return false;
}

/* Takes over the reference when true. */
static bool block_add(struct ahead *a, const struct block *b)
{
	HOLD(&a->lock);
	if (a->count == AHEAD_QUEUE_MAX || is_known_locked(a, b))
		return false;
	a->queue[(a->first + a->count++) % AHEAD_QUEUE_MAX] = *b;
	(void)pthread_cond_signal(&a->added);
	return true;
}

/* Blocks come and go as one: its last page tells. */
static bool is_cached(const struct ahead *a, const struct block *b)
{
	unsigned char in_memory = 0;

	return mincore((void *)(uintptr_t)(b->start + b->len - a->page_bytes),
		       (size_t)a->page_bytes, &in_memory) == 0 &&
	       (in_memory & 1);
}

void ahead_add(struct ahead *a, struct image *i, uint64_t off, uint64_t len)
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
		struct block b = { .image = i,
				   .number = number,
				   .start = map + from };

		to += (a->page_bytes - to % a->page_bytes) % a->page_bytes;
		b.len = (size_t)(to - from);
		off = next;
		if (is_cached(a, &b))
			continue;
		image_ref(a->images, i);
		if (!block_add(a, &b))
			image_put(a->images, i);
	}
}

void ahead_settle(struct ahead *a)
{
	HOLD(&a->lock);
	while (a->count > 0 || a->working > 0)
		(void)pthread_cond_wait(&a->settled, &a->lock);
}
