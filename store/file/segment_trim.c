/*
 * segment_trim.c - memory that a client takes without having asked for it.
 *
 * He gets a descriptor to map his segment with, and nothing keeps him from
 * writing past its end with it, or from keeping it when the segment is gone:
 * tmpfs has no seals for that, and the append-only flag allows just that. So
 * each client's own thread looks once a second (and each commit does), cuts off
 * what is too much, and says so in the log; nobody else waits for a client who
 * keeps his file busy. What he has dropped and holds all the same goes on
 * counting as his, is looked after in the same way, and goes when he lets go.
 */
#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/file/segment_private.h"

bool segment_is_held(struct store *st, const struct segment *s)
{
	/* Not to be asked here (< 0): then nobody is known to. */
	return stage_ask(&st->stages, s->stage, LEASE_NO_WRITER) == 0;
}

bool segment_trim(struct store *st, struct segment *s)
{
	uint64_t beyond = stage_beyond(&st->stages, s->stage, s->size_bytes);
	int rc;

	if (beyond == 0)
		return false;
	rc = stage_cut(&st->stages, s->stage, s->size_bytes);
	if (rc < 0 || !s->told)
		log_warning("segment %llu of user %u: %llu MiB were written "
			    "past its end: %s",
			    (unsigned long long)s->id, s->uid,
			    (unsigned long long)(beyond >> 20),
			    rc < 0 ? strerror(-rc) : "they are cut off");
	s->told = true;
	return true;
}

void segment_put(struct store *st, struct segment *s)
{
	struct segments *g = segments_of(st);
	bool had_memory = s->stage != NULL;

	stage_put(&st->stages, s->stage);
	free(s);
	HOLD(&g->lock);
	g->left += had_memory;
	cond_broadcast(&g->changed);
}

static struct segment *next_in(struct store *st, struct segment_list *list,
			       const struct segment_client *c, uint64_t id,
			       struct segment *found)
{
	struct segment *s;

	TAILQ_FOREACH(s, list, entry)
	if (s->client == c && s->stage && !s->committing && s->id > id &&
	    (!found || s->id < found->id) &&
	    stage_beyond(&st->stages, s->stage, s->size_bytes) > 0)
		found = s;
	return found;
}

/* The first after `id` of this client that has too much. */
static struct segment *next_beyond(struct store *st,
				   const struct segment_client *c, uint64_t id)
{
	struct segments *g = segments_of(st);
	struct segment *found;

	HOLD(&g->lock);
	found = next_in(st, &g->all, c, id, NULL);
	found = next_in(st, &g->held, c, id, found);
	if (found)
		found->committing = true;
	return found;
}

/* Put those that were dropped and are held no more, or `all` of a client. */
static void let_go(struct store *st, const struct segment_client *c, bool all)
{
	struct segments *g = segments_of(st);
	struct segment_list gone = TAILQ_HEAD_INITIALIZER(gone);
	struct segment *s, *next;

	{
		HOLD(&g->lock);
		for (s = TAILQ_FIRST(&g->held); s; s = next) {
			next = TAILQ_NEXT(s, entry);
			if ((c && s->client != c) || s->committing ||
			    (!all && segment_is_held(st, s)))
				continue;
			TAILQ_REMOVE(&g->held, s, entry);
			TAILQ_INSERT_TAIL(&gone, s, entry);
		}
	}
	while ((s = TAILQ_FIRST(&gone)) != NULL) {
		TAILQ_REMOVE(&gone, s, entry);
		segment_put(st, s);
	}
}

void segments_let_go(struct store *st)
{
	let_go(st, NULL, false);
}

bool segment_client_trim(struct store *st, struct segment_client *c)
{
	struct segments *g = segments_of(st);
	struct segment *s;
	uint64_t id = 0;

	let_go(st, c, false);
	while ((s = next_beyond(st, c, id)) != NULL) {
		(void)segment_trim(st, s);
		id = s->id;
		HOLD(&g->lock);
		s->committing = false;
		s->generation = 0; /* it is not whole: he cannot commit it */
		cond_broadcast(&g->changed);
	}
	HOLD(&g->lock);
	TAILQ_FOREACH(s, &g->all, entry)
	if (s->client == c)
		return true;
	TAILQ_FOREACH(s, &g->held, entry)
	if (s->client == c)
		return true;
	return false;
}

void segment_client_forget(struct store *st, struct segment_client *c)
{
	let_go(st, c, true);
}
