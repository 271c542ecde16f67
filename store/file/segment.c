/*
 * segment.c - the segments that there are, whose they are, and how they go: see
 * segment.h.
 *
 * All are in one list, least recently used first. One that is given up leaves
 * it under the lock, and gives its memory back without: what a file has stays
 * the file's, and what its client still holds is looked after until he lets go
 * (segment_trim.c). How one is acquired is in segment_acquire.c, how it becomes
 * a file in segment_commit.c.
 */
#include <errno.h>
#include <string.h>

#include "store/base/scope.h"
#include "store/file/segment_private.h"
#include "store/store.h"

void segments_release(struct store *st)
{
	struct segments *g = segments_of(st);

	CHECK(TAILQ_EMPTY(&g->all));
	CHECK(TAILQ_EMPTY(&g->held));
	cond_destroy(&g->changed);
	lock_destroy(&g->lock);
}

void segment_client_add(struct store *st, struct segment_client *c)
{
	struct segments *g = segments_of(st);

	(void)c;
	HOLD(&g->lock);
	g->clients++;
}

void segment_unlist_locked(struct segments *g, struct segment *s)
{
	TAILQ_REMOVE(&g->all, s, entry);
	g->count--;
	g->bytes -= s->memory_bytes;
	g->leaving++;
}

void segment_give_up(struct store *st, struct segment *s)
{
	struct segments *g = segments_of(st);

	if (s->stage)
		stage_unkeep(&st->stages, s->stage);
	if (s->stage && segment_is_held(st, s)) {
		HOLD(&g->lock);
		g->leaving--;
		TAILQ_INSERT_TAIL(&g->held, s, entry);
		cond_broadcast(&g->changed);
		return;
	}
	segment_put(st, s);
	HOLD(&g->lock);
	g->leaving--; /* who was woken by the put may have seen it yet */
	cond_broadcast(&g->changed);
}

void segment_client_remove(struct store *st, struct segment_client *c)
{
	struct segments *g = segments_of(st);
	struct segment_list gone = TAILQ_HEAD_INITIALIZER(gone);
	struct segment *s, *next;

	{
		HOLD(&g->lock);
		g->clients--;
		for (s = TAILQ_FIRST(&g->all); s; s = next) {
			next = TAILQ_NEXT(s, entry);
			if (s->client != c)
				continue;
			if (s->committing) { /* an ioctl is at work: soon over
					      */
				cond_wait(&g->changed, &g->lock);
				next = TAILQ_FIRST(&g->all);
				continue;
			}
			segment_unlist_locked(g, s);
			TAILQ_INSERT_TAIL(&gone, s, entry);
		}
	}
	while ((s = TAILQ_FIRST(&gone)) != NULL) {
		TAILQ_REMOVE(&gone, s, entry);
		segment_give_up(st, s);
	}
}

bool segment_take_release(struct store *st, struct segment_client *c,
			  uint64_t *ret_id)
{
	struct segments *g = segments_of(st);
	struct segment *s;

	HOLD(&g->lock);
	TAILQ_FOREACH(s, &g->all, entry)
	{
		if (s->client != c || !s->asked || s->asked_sent)
			continue;
		s->asked_sent = true;
		*ret_id = s->id;
		return true;
	}
	return false;
}

bool segment_is_free_locked(const struct segment *s)
{
	return s->stage && !s->filled && !s->committing && !s->asked &&
	       stage_is_idle(s->stage);
}

void segments_ask_locked(struct segments *g, uint64_t want, int64_t uid)
{
	struct segment *s;
	uint64_t asked = 0;

	TAILQ_FOREACH(s, &g->all, entry)
	if (s->asked && (uid < 0 || s->client->uid == (uid_t)uid))
		asked += s->memory_bytes;
	TAILQ_FOREACH(s, &g->all, entry)
	{
		if (asked >= want)
			return;
		if (!segment_is_free_locked(s) ||
		    (uid >= 0 && s->client->uid != (uid_t)uid))
			continue;
		s->asked = true;
		asked += s->memory_bytes;
		s->client->wake(s->client);
		/* Or its client waits for somebody else's: see below. */
		cond_broadcast(&g->changed);
	}
}

/* For stages_set_pressure(). */
static void on_pressure(void *store, uint64_t want)
{
	struct segments *g = segments_of(store);

	HOLD(&g->lock);
	segments_ask_locked(g, want, -1);
}

void segments_ask_back(struct store *st, uid_t uid)
{
	struct segments *g = segments_of(st);

	HOLD(&g->lock);
	segments_ask_locked(g, UINT64_MAX, uid);
}

int segments_init(struct store *st, uint64_t quota_bytes)
{
	struct segments *g = segments_of(st);

	g->quota_bytes = quota_bytes;
	g->next_id = 1;
	TAILQ_INIT(&g->all);
	TAILQ_INIT(&g->held);
	cond_init(&g->changed);
	stages_set_pressure(&st->stages, on_pressure, st);
	lock_init(&g->lock, LOCK_SEGMENTS);
	return 0;
}

struct segment *segment_find_locked(struct segments *g, uint64_t id,
				    uint64_t generation)
{
	struct segment *s;

	TAILQ_FOREACH(s, &g->all, entry)
	if (s->id == id && s->stage && s->generation == generation &&
	    generation != 0)
		return s;
	return NULL;
}

int segment_mapped(struct store *st, struct segment_client *c, uint64_t id,
		   uint64_t generation)
{
	struct segments *g = segments_of(st);
	struct segment *s;
	int rc;

	{
		HOLD(&g->lock);
		s = segment_find_locked(g, id, generation);
		if (!s || s->client != c || !s->filled)
			return -ESTALE;
		if (s->mapped)
			return 0;
	}
	/*
	 * Without the lock: the client can keep the file busy as long as he
	 * likes. The segment stays, as only this thread removes it, and until
	 * it is mapped nobody commits it.
	 */
	rc = stage_seal(&st->stages, s->stage, s->size_bytes);
	HOLD(&g->lock);
	s->mapped = rc == 0;
	return rc;
}

int segment_return(struct store *st, struct segment_client *c, uint64_t id,
		   uint64_t generation)
{
	struct segments *g = segments_of(st);
	struct segment *s;

	HOLD(&g->lock);
	s = segment_find_locked(g, id, generation);
	if (!s || s->client != c || !s->filled || s->committing)
		return -ESTALE;
	s->filled = false;
	s->generation = 0;
	return 0;
}

int segment_drop(struct store *st, struct segment_client *c, uint64_t id)
{
	struct segments *g = segments_of(st);
	struct segment *s;

	{
		HOLD(&g->lock);
		TAILQ_FOREACH(s, &g->all, entry)
		if (s->id == id && s->client == c)
			break;
		if (!s)
			return -ESTALE;
		if (s->committing)
			return -EBUSY;
		segment_unlist_locked(g, s);
	}
	segment_give_up(st, s);
	return 0;
}

void segment_figures(struct store *st, struct segment_figures *ret)
{
	struct segments *g = segments_of(st);
	struct segment *s;

	HOLD(&g->lock);
	*ret = (struct segment_figures){
		.segments = g->count,
		.bytes = g->bytes,
		.clients = g->clients,
	};
	TAILQ_FOREACH(s, &g->all, entry)
	{
		if (segment_is_free_locked(s))
			ret->idle_bytes += s->memory_bytes;
		if (s->stage)
			ret->bytes += stage_beyond(&st->stages, s->stage,
						   s->size_bytes);
	}
	TAILQ_FOREACH(s, &g->held, entry)
	if (!s->stage->slot)
		ret->bytes +=
			s->memory_bytes +
			stage_beyond(&st->stages, s->stage, s->size_bytes);
}
