/*
 * segment.c - the segments that there are, whose they are, and how they go: see
 * segment.h.
 *
 * All are in one list, least recently used first. One that is given up leaves
 * it under the lock, and gives its memory back without: what a file has stays
 * the file's. How one is acquired is in segment_acquire.c, how it becomes a
 * file in segment_commit.c.
 *
 * A client gets a descriptor to map his segment with, and nothing keeps him
 * from writing past its end with it, or from keeping it when the segment is
 * gone: tmpfs has no seals for that, and the append-only flag allows just that.
 * So each client's own thread looks once a second (and each commit does), cuts
 * off what is too much, and says so in the log; nobody else waits for a client
 * who keeps his file busy. What he has dropped and holds all the same goes on
 * counting as his, is looked after in the same way, and goes when he lets go.
 */
#include <errno.h>
#include <string.h>

#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/file/file.h"
#include "store/file/segment_private.h"

void segments_release(struct segments *g)
{
	CHECK(TAILQ_EMPTY(&g->all));
	CHECK(TAILQ_EMPTY(&g->dropped));
	cond_destroy(&g->changed);
	lock_destroy(&g->lock);
}

void segment_client_add(struct segments *g, struct segment_client *c)
{
	(void)c;
	HOLD(&g->lock);
	g->clients++;
}

/* Does anybody have a descriptor for writing, or a mapping, of it? */
static bool is_held(struct segments *g, const struct segment *s)
{
	/* Not to be asked here (< 0): then nobody is known to. */
	return stage_ask(g->stages, s->stage, LEASE_NO_WRITER) == 0;
}

/* Its memory goes, and it is freed; who waits for memory looks again. */
static void put(struct segments *g, struct segment *s)
{
	bool had_memory = s->stage != NULL;

	stage_put(g->stages, s->stage);
	free(s);
	HOLD(&g->lock);
	g->given_back += had_memory;
	cond_broadcast(&g->changed);
}

static void unlist_locked(struct segments *g, struct segment *s)
{
	TAILQ_REMOVE(&g->all, s, entry);
	g->count--;
	g->bytes -= s->memory_bytes;
	g->leaving++;
}

/* One that is in no list. */
static void give_up(struct segments *g, struct segment *s)
{
	if (s->stage)
		stage_unkeep(g->stages, s->stage);
	if (s->stage && is_held(g, s)) {
		HOLD(&g->lock);
		g->leaving--;
		TAILQ_INSERT_TAIL(&g->dropped, s, entry);
		cond_broadcast(&g->changed);
		return;
	}
	put(g, s);
	HOLD(&g->lock);
	g->leaving--; /* who was woken by the put may have seen it yet */
	cond_broadcast(&g->changed);
}

void segment_remove(struct segments *g, struct segment *s)
{
	{
		HOLD(&g->lock);
		unlist_locked(g, s);
	}
	give_up(g, s);
}

void segment_client_remove(struct segments *g, struct segment_client *c)
{
	struct segment_list gone = TAILQ_HEAD_INITIALIZER(gone);
	struct segment *s, *next;

	{
		HOLD(&g->lock);
		g->clients--;
		for (s = TAILQ_FIRST(&g->all); s; s = next) {
			next = TAILQ_NEXT(s, entry);
			if (s->client != c)
				continue;
			if (s->committing) { /* by an ioctl: soon over */
				cond_wait(&g->changed, &g->lock);
				next = TAILQ_FIRST(&g->all);
				continue;
			}
			unlist_locked(g, s);
			TAILQ_INSERT_TAIL(&gone, s, entry);
		}
	}
	while ((s = TAILQ_FIRST(&gone)) != NULL) {
		TAILQ_REMOVE(&gone, s, entry);
		give_up(g, s);
	}
}

bool segment_take_release(struct segments *g, struct segment_client *c,
			  uint64_t *ret_id)
{
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

void segment_ask_locked(struct segments *g, struct segment *s)
{
	s->asked = true;
	s->client->wake(s->client);
	/* Or its client waits for somebody else's: see segment_acquire.c. */
	cond_broadcast(&g->changed);
}

void segments_ask_locked(struct segments *g, uint64_t want, int64_t uid,
			 uint64_t before)
{
	struct segment *s;
	uint64_t asked = 0;

	TAILQ_FOREACH(s, &g->all, entry)
	if (s->asked && (uid < 0 || s->client->uid == (uid_t)uid))
		asked += s->memory_bytes;
	TAILQ_FOREACH(s, &g->all, entry)
	{
		if (asked >= want || s->takes[0] >= before)
			return;
		if (!segment_is_free_locked(s) ||
		    (uid >= 0 && s->client->uid != (uid_t)uid))
			continue;
		asked += s->memory_bytes;
		segment_ask_locked(g, s);
	}
}

/* For stages_set_pressure(). */
static void on_pressure(void *segments, uint64_t want)
{
	struct segments *g = segments;

	HOLD(&g->lock);
	segments_ask_locked(g, want, -1, UINT64_MAX);
}

void segments_ask_back(struct segments *g, uid_t uid)
{
	HOLD(&g->lock);
	segments_ask_locked(g, UINT64_MAX, uid, UINT64_MAX);
}

void segments_init(struct segments *g, struct files *files,
		   uint64_t quota_bytes)
{
	g->files = files;
	g->stages = files->stages;
	g->quota_bytes = quota_bytes;
	g->release_wait_s = SEGMENT_RELEASE_WAIT_S;
	g->next_id = 1;
	TAILQ_INIT(&g->all);
	TAILQ_INIT(&g->dropped);
	cond_init(&g->changed);
	lock_init(&g->lock, LOCK_SEGMENTS);
	stages_set_pressure(g->stages, on_pressure, g);
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

int segment_mapped(struct segments *g, struct segment_client *c, uint64_t id,
		   uint64_t generation)
{
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
	rc = stage_seal(g->stages, s->stage, s->size_bytes);
	HOLD(&g->lock);
	s->mapped = rc == 0;
	return rc;
}

int segment_return(struct segments *g, struct segment_client *c, uint64_t id,
		   uint64_t generation)
{
	struct segment *s;

	HOLD(&g->lock);
	s = segment_find_locked(g, id, generation);
	if (!s || s->client != c || !s->filled || s->committing)
		return -ESTALE;
	s->filled = false;
	s->generation = 0;
	return 0;
}

int segment_drop(struct segments *g, struct segment_client *c, uint64_t id)
{
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
		unlist_locked(g, s);
	}
	give_up(g, s);
	return 0;
}

void segment_figures(struct segments *g, struct segment_figures *ret)
{
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
			ret->bytes += stage_beyond(g->stages, s->stage,
						   s->size_bytes);
	}
	TAILQ_FOREACH(s, &g->dropped, entry)
	if (!s->stage->slot)
		ret->bytes += s->memory_bytes +
			      stage_beyond(g->stages, s->stage, s->size_bytes);
}

/* --- what clients take without having asked for it */

bool segment_trim(struct segments *g, struct segment *s)
{
	uint64_t beyond = stage_beyond(g->stages, s->stage, s->size_bytes);
	int rc;

	if (beyond == 0)
		return false;
	rc = stage_cut(g->stages, s->stage, s->size_bytes);
	if (rc < 0 || !s->told)
		log_warning("segment %llu of user %u: %llu MiB were written "
			    "past its end: %s",
			    (unsigned long long)s->id, s->uid,
			    (unsigned long long)(beyond >> 20),
			    rc < 0 ? strerror(-rc) : "they are cut off");
	s->told = true;
	return true;
}

static struct segment *next_in(struct segments *g, struct segment_list *list,
			       const struct segment_client *c, uint64_t id,
			       struct segment *found)
{
	struct segment *s;

	TAILQ_FOREACH(s, list, entry)
	if (s->client == c && s->stage && !s->committing && s->id > id &&
	    (!found || s->id < found->id) &&
	    stage_beyond(g->stages, s->stage, s->size_bytes) > 0)
		found = s;
	return found;
}

/* The first after `id` of this client that has too much. */
static struct segment *next_beyond(struct segments *g,
				   const struct segment_client *c, uint64_t id)
{
	struct segment *found;

	HOLD(&g->lock);
	found = next_in(g, &g->all, c, id, NULL);
	found = next_in(g, &g->dropped, c, id, found);
	if (found)
		found->committing = true;
	return found;
}

/* Put those that were dropped and are held no more, or `all` of a client. */
static void let_go(struct segments *g, const struct segment_client *c, bool all)
{
	struct segment_list gone = TAILQ_HEAD_INITIALIZER(gone);
	struct segment *s, *next;

	{
		HOLD(&g->lock);
		for (s = TAILQ_FIRST(&g->dropped); s; s = next) {
			next = TAILQ_NEXT(s, entry);
			if ((c && s->client != c) || s->committing ||
			    (!all && is_held(g, s)))
				continue;
			TAILQ_REMOVE(&g->dropped, s, entry);
			TAILQ_INSERT_TAIL(&gone, s, entry);
		}
	}
	while ((s = TAILQ_FIRST(&gone)) != NULL) {
		TAILQ_REMOVE(&gone, s, entry);
		put(g, s);
	}
}

void segments_let_go(struct segments *g)
{
	let_go(g, NULL, false);
}

/* The first after `id` of this client that has become a durable file. */
static struct segment *next_durable(struct segments *g,
				    const struct segment_client *c, uint64_t id)
{
	struct segment *s, *found = NULL;

	HOLD(&g->lock);
	TAILQ_FOREACH(s, &g->all, entry)
	if (s->client == c && s->stage && !s->committing && s->id > id &&
	    (!found || s->id < found->id) && SLOT_GET(s->stage->slot, ino) &&
	    !SLOT_GET(s->stage->slot, dirty))
		found = s;
	return found;
}

/*
 * A durable file does not keep memory that its client can write to. It has let
 * go of it by itself, but for who had the file open before, or has it mapped.
 */
static void give_durable_back(struct segments *g, struct segment_client *c)
{
	struct segment *s;
	uint64_t id = 0;

	while ((s = next_durable(g, c, id)) != NULL) {
		id = s->id;
		(void)file_give_back(g->files, s->stage);
	}
}

static bool has_any(const struct segment_list *list,
		    const struct segment_client *c)
{
	const struct segment *s;

	TAILQ_FOREACH(s, list, entry)
	if (s->client == c)
		return true;
	return false;
}

bool segment_client_trim(struct segments *g, struct segment_client *c)
{
	struct segment *s;
	uint64_t id = 0;

	give_durable_back(g, c);
	let_go(g, c, false);
	while ((s = next_beyond(g, c, id)) != NULL) {
		(void)segment_trim(g, s);
		id = s->id;
		HOLD(&g->lock);
		s->committing = false;
		s->generation = 0; /* it is not whole: he cannot commit it */
		cond_broadcast(&g->changed);
	}
	HOLD(&g->lock);
	return has_any(&g->all, c) || has_any(&g->dropped, c);
}

void segment_client_forget(struct segments *g, struct segment_client *c)
{
	let_go(g, c, true);
}
