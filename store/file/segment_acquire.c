/*
 * segment_acquire.c - a segment for who is about to save.
 *
 * The client's own of the same structure, if one is idle; else, when he has
 * two, the one that a file has for longest, which the file is asked to give
 * back; else a new one, within his quota. Memory that he cannot have yet is
 * asked back from idle segments, his own first: two clients who waited for each
 * other would do so to the end.
 *
 * Where there is no room for a second one he has the one again. For a second
 * one only those are asked back that nobody wanted during the last saves of the
 * first: clients who all save would take turns in unmapping and pinning anew
 * what they need.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "store/base/node.h"
#include "store/base/scope.h"
#include "store/file/file.h"
#include "store/file/segment_private.h"

/* Until the kernel has forgotten a file that nobody has open or mapped. */
#define FORGET_WAIT_NS (INT64_C(200) * 1000000)
/* What the stage gives memory in. */
#define HUGE_PAGE_BYTES (UINT64_C(2) << 20)

static void take_locked(struct segments *g, struct segment *s,
			struct segment_reply *ret)
{
	s->filled = true;
	do {
		CHECK(getrandom(&s->generation, sizeof(s->generation), 0) ==
		      sizeof(s->generation));
	} while (s->generation == 0);
	memmove(s->takes + 1, s->takes, sizeof(s->takes) - sizeof(*s->takes));
	s->takes[0] = ++g->takes;
	TAILQ_REMOVE(&g->all, s, entry);
	TAILQ_INSERT_TAIL(&g->all, s, entry);
	ret->id = s->id;
	ret->generation = s->generation;
	ret->size_bytes = s->size_bytes;
}

/* What a client has of one structure. */
struct set {
	unsigned count; /* that are not asked back */
	/* Who was not taken since may go for another one: a number of takes. */
	uint64_t unused_since;
	struct segment *idle;
	struct segment *lent; /* the one that a file has for longest */
};

static void find_set_locked(struct segments *g, struct segment_client *c,
			    const uint8_t *signature, uint64_t size_bytes,
			    struct set *ret)
{
	struct segment *s;

	*ret = (struct set){ .unused_since = UINT64_MAX };
	TAILQ_FOREACH(s, &g->all, entry)
	{
		if (s->client != c || s->asked || s->size_bytes != size_bytes ||
		    memcmp(s->signature, signature, sizeof(s->signature)) != 0)
			continue;
		ret->count++;
		ret->unused_since = s->takes[SEGMENT_TAKES - 1];
		if (segment_is_free_locked(s) && !ret->idle)
			ret->idle = s;
		else if (s->stage && !s->filled && !s->committing && !ret->lent)
			ret->lent = s;
	}
}

/*
 * Both are in use: get the older one back from its file. 0: it is idle now;
 * -EAGAIN: its file *ret_ino is not durable; -EBUSY: others keep it.
 * The segment stays while this runs: only its client's thread removes it.
 */
static int get_back(struct segments *g, struct segment *s, uint64_t *ret_ino)
{
	struct stage *stage = s->stage;
	uint64_t ino = SLOT_GET(stage->slot, ino);

	if (file_give_back(g->files, stage) == GIVEN_LATER && ino != 0) {
		*ret_ino = ino;
		return -EAGAIN;
	}
	return stage_wait_idle(g->stages, stage, mono_ns() + FORGET_WAIT_NS)
		       ? 0
		       : -EBUSY;
}

/* What the segments of a user take; *ret_count: how many they are. */
static uint64_t uid_bytes_locked(struct segments *g, uid_t uid,
				 unsigned *ret_count)
{
	struct segment *s;
	uint64_t bytes = 0;

	*ret_count = 0;
	TAILQ_FOREACH(s, &g->all, entry)
	{
		if (s->uid != uid)
			continue;
		bytes += s->memory_bytes;
		(*ret_count)++;
	}
	/* What he kept to himself; what a file has is the file's. */
	TAILQ_FOREACH(s, &g->dropped, entry)
	if (s->uid == uid && !s->stage->slot)
		bytes += s->memory_bytes;
	return bytes;
}

/*
 * Is one of this client's own asked back? Then he must drop it first.
 * *ret_others: memory is on its way, from whomever.
 */
static bool is_asked_locked(struct segments *g, struct segment_client *c,
			    bool *ret_others)
{
	struct segment *s;
	bool own = false;

	*ret_others = g->leaving > 0;
	TAILQ_FOREACH(s, &g->all, entry)
	{
		own = own || (s->asked && s->client == c);
		*ret_others = *ret_others || s->asked;
	}
	TAILQ_FOREACH(s, &g->dropped, entry)
	*ret_others = *ret_others || (s->client != c && !s->stage->slot);
	return own;
}

/*
 * Wait until what others were asked for is there, or this client is asked
 * himself: two who wait for each other would do so to the end. false: not in
 * time.
 */
static bool wait_for_releases(struct segments *g, struct segment_client *c,
			      int64_t deadline_ns)
{
	bool others;

	HOLD(&g->lock);
	while (!is_asked_locked(g, c, &others) && others)
		if (!cond_wait_until(&g->changed, &g->lock, deadline_ns))
			return false;
	return true;
}

/* A new entry, counted against the quota, without a stage yet. */
static int reserve(struct segments *g, struct segment_client *c,
		   const uint8_t *signature, uint64_t size_bytes,
		   struct segment **ret_segment)
{
	struct segment *s = calloc(1, sizeof(*s));
	uint64_t used, want, over;
	struct set set;
	unsigned count;

	if (!s)
		return -ENOMEM;
	want = (size_bytes + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES *
	       HUGE_PAGE_BYTES;
	s->client = c;
	s->uid = c->uid;
	s->size_bytes = size_bytes;
	s->memory_bytes = want;
	memcpy(s->signature, signature, sizeof(s->signature));
	s->filled = true;
	HOLD(&g->lock);
	used = uid_bytes_locked(g, c->uid, &count);
	over = used + want > g->quota_bytes ? used + want - g->quota_bytes : 0;
	if (over > 0 || g->count >= SEGMENTS_MAX ||
	    count >= SEGMENTS_OF_UID_MAX) {
		find_set_locked(g, c, signature, size_bytes, &set);
		if (want <= g->quota_bytes) /* or it will never fit */
			segments_ask_locked(g, over > 0 ? over : 1, c->uid,
					    set.unused_since);
		free(s);
		return -EDQUOT;
	}
	s->id = g->next_id++;
	TAILQ_INSERT_TAIL(&g->all, s, entry);
	g->count++;
	g->bytes += want;
	*ret_segment = s;
	return 0;
}

static int create_stage(struct segments *g, uint64_t size_bytes, int node,
			struct stage **ret_stage)
{
	SCOPED(node_put_back) struct node_policy before = node_prefer(node);

	return stage_create_kept(g->stages, size_bytes, ret_stage);
}

static int create(struct segments *g, struct segment_client *c,
		  const uint8_t *signature, uint64_t size_bytes, int node,
		  struct segment_reply *ret, int *ret_fd)
{
	uint64_t used, total;
	struct segment *s;
	struct stage *stage;
	struct set set;
	int rc = reserve(g, c, signature, size_bytes, &s);

	if (rc < 0)
		return rc;
	rc = create_stage(g, size_bytes, node, &stage);
	if (rc == 0) {
		int fd = stage_open(g->stages, stage, O_RDWR);

		HOLD(&g->lock);
		s->stage = stage; /* given back with it, if we fail */
		if (fd >= 0) {
			take_locked(g, s, ret);
			ret->fresh = 1;
			*ret_fd = fd;
			return 0;
		}
		rc = fd;
	}
	segment_remove(g, s);
	stages_usage(g->stages, &used, &total);
	if (rc == -ENOSPC && size_bytes <= total) { /* or it will never fit */
		HOLD(&g->lock);
		find_set_locked(g, c, signature, size_bytes, &set);
		segments_ask_locked(g, size_bytes, -1, set.unused_since);
	}
	return rc;
}

/*
 * One that is there already. -ENOENT: there are fewer than `enough`, and none
 * of them idle. -EBUSY: the client fills all of them.
 */
static int take_existing(struct segments *g, struct segment_client *c,
			 const uint8_t *signature, uint64_t size_bytes,
			 unsigned enough, struct segment_reply *ret)
{
	struct set set;
	int rc;

	{
		HOLD(&g->lock);
		find_set_locked(g, c, signature, size_bytes, &set);
		if (set.idle) {
			take_locked(g, set.idle, ret);
			return 0;
		}
	}
	if (set.count < enough)
		return -ENOENT;
	if (!set.lent)
		return -EBUSY;
	rc = get_back(g, set.lent, &ret->busy_ino);
	if (rc == -EBUSY) {
		/* Its readers keep the bytes; the client gets others. */
		HOLD(&g->lock);
		segment_ask_locked(g, set.lent);
		return -EAGAIN;
	}
	if (rc < 0)
		return rc;
	HOLD(&g->lock);
	if (!segment_is_free_locked(set.lent)) /* asked back meanwhile */
		return -ENOENT;
	take_locked(g, set.lent, ret);
	return 0;
}

int segment_acquire(struct segments *g, struct segment_client *c,
		    const uint8_t signature[SEGMENT_SIGNATURE_BYTES],
		    uint64_t size_bytes, int node, struct segment_reply *ret,
		    int *ret_fd)
{
	int64_t deadline = mono_ns() + g->release_wait_s * INT64_C(1000000000);
	bool others, left;
	uint64_t seen;
	int rc, one;

	*ret_fd = -1;
	if (g->quota_bytes == 0)
		return -EOPNOTSUPP;
	if (size_bytes == 0 || size_bytes > INT64_MAX)
		return -EINVAL;
	rc = take_existing(g, c, signature, size_bytes, SEGMENTS_PER_SET, ret);
	if (rc != -ENOENT)
		return rc;
	for (;;) {
		{
			HOLD(&g->lock);
			seen = g->given_back;
		}
		rc = create(g, c, signature, size_bytes, node, ret, ret_fd);
		if (rc != -ENOSPC && rc != -EDQUOT)
			return rc;
		one = take_existing(g, c, signature, size_bytes, 1, ret);
		if (one != -ENOENT)
			return one;
		{
			HOLD(&g->lock);
			if (is_asked_locked(g, c, &others))
				return -EAGAIN; /* the releases come first */
			/* Who was asked may have been faster than we. */
			left = g->given_back != seen;
		}
		if (left && mono_ns() < deadline)
			continue;
		if (!others || !wait_for_releases(g, c, deadline))
			return rc;
	}
}
