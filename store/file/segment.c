/* segment.c - see segment.h. */
#include "store/file/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/drain/drain.h"
#include "store/file/file.h"
#include "store/file/segment_private.h"
#include "store/names/names.h"
#include "store/store.h"

/* A name may be given to another inode under us, but not for ever. */
#define COMMIT_TRIES_MAX 16
/* Until the kernel has forgotten a file that nobody has open or mapped. */
#define FORGET_WAIT_NS (INT64_C(200) * 1000000)
/* What the stage gives memory in. */
#define HUGE_PAGE_BYTES (UINT64_C(2) << 20)

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

/* Out of the list; the caller calls segment_free() without the lock. */
static void unlist_locked(struct segments *g, struct segment *s)
{
	TAILQ_REMOVE(&g->all, s, entry);
	g->count--;
	g->bytes -= s->memory_bytes;
	g->leaving++;
}

static void segment_free(struct store *st, struct segment *s)
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
			unlist_locked(g, s);
			TAILQ_INSERT_TAIL(&gone, s, entry);
		}
	}
	while ((s = TAILQ_FIRST(&gone)) != NULL) {
		TAILQ_REMOVE(&gone, s, entry);
		segment_free(st, s);
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

static bool is_free_locked(const struct segment *s)
{
	return s->stage && !s->filled && !s->committing && !s->asked &&
	       stage_is_idle(s->stage);
}

/*
 * Ask for idle segments back, least recently used ones first, until `want`
 * bytes are asked for (with what was asked for before). uid: whose, or -1.
 */
static void ask_locked(struct segments *g, uint64_t want, int64_t uid)
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
		if (!is_free_locked(s) ||
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
	ask_locked(g, want, -1);
}

void segments_ask_back(struct store *st, uid_t uid)
{
	struct segments *g = segments_of(st);

	HOLD(&g->lock);
	ask_locked(g, UINT64_MAX, uid);
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

static void take_locked(struct segments *g, struct segment *s,
			struct segment_reply *ret)
{
	s->filled = true;
	do {
		CHECK(getrandom(&s->generation, sizeof(s->generation), 0) ==
		      sizeof(s->generation));
	} while (s->generation == 0);
	TAILQ_REMOVE(&g->all, s, entry);
	TAILQ_INSERT_TAIL(&g->all, s, entry);
	ret->id = s->id;
	ret->generation = s->generation;
	ret->size_bytes = s->size_bytes;
}

/* What a client has of one structure. */
struct set {
	unsigned count; /* that are not asked back */
	struct segment *idle;
	struct segment *lent; /* the one that a file has for longest */
};

static void find_set_locked(struct segments *g, struct segment_client *c,
			    const uint8_t *signature, uint64_t size_bytes,
			    struct set *ret)
{
	struct segment *s;

	memset(ret, 0, sizeof(*ret));
	TAILQ_FOREACH(s, &g->all, entry)
	{
		if (s->client != c || s->asked || s->size_bytes != size_bytes ||
		    memcmp(s->signature, signature, sizeof(s->signature)) != 0)
			continue;
		ret->count++;
		if (is_free_locked(s) && !ret->idle)
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
static int get_back(struct store *st, struct segment *s, uint64_t *ret_ino)
{
	struct stage *stage = s->stage;
	uint64_t ino = SLOT_GET(stage->slot, ino);

	if (file_give_back(st, stage) == GIVEN_LATER && ino != 0) {
		*ret_ino = ino;
		return -EAGAIN;
	}
	if (stage_wait_idle(&st->stages, stage, mono_ns() + FORGET_WAIT_NS))
		return 0;
	return -EBUSY;
}

/* Its readers keep the bytes; the client gets others. */
static void leave_to_file(struct store *st, struct segment *s)
{
	struct segments *g = segments_of(st);

	{
		HOLD(&g->lock);
		unlist_locked(g, s);
	}
	segment_free(st, s);
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
	TAILQ_FOREACH(s, &g->held, entry)
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
	TAILQ_FOREACH(s, &g->held, entry)
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
static int reserve(struct store *st, struct segment_client *c,
		   const uint8_t *signature, uint64_t size_bytes,
		   struct segment **ret_segment)
{
	struct segments *g = segments_of(st);
	struct segment *s = calloc(1, sizeof(*s));
	uint64_t used, want;
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
	if (want > g->quota_bytes || g->count >= SEGMENTS_MAX ||
	    count >= SEGMENTS_OF_UID_MAX || used > g->quota_bytes - want) {
		if (used > g->quota_bytes - want && want <= g->quota_bytes)
			ask_locked(g, used - (g->quota_bytes - want), c->uid);
		else if (want <= g->quota_bytes) /* too many: any one */
			ask_locked(g, 1, c->uid);
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

static int create(struct store *st, struct segment_client *c,
		  const uint8_t *signature, uint64_t size_bytes,
		  struct segment_reply *ret, int *ret_fd)
{
	struct segments *g = segments_of(st);
	struct segment *s;
	struct stage *stage;
	int rc = reserve(st, c, signature, size_bytes, &s);

	if (rc < 0)
		return rc;
	rc = stage_create_kept(&st->stages, size_bytes, &stage);
	if (rc == 0) {
		int fd = stage_open(&st->stages, stage, O_RDWR);

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
	{
		HOLD(&g->lock);
		unlist_locked(g, s);
	}
	segment_free(st, s);
	return rc;
}

/* One that is there already. -ENOENT: there is room in the set for another. */
static int take_existing(struct store *st, struct segment_client *c,
			 const uint8_t *signature, uint64_t size_bytes,
			 struct segment_reply *ret)
{
	struct segments *g = segments_of(st);
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
	if (set.count < SEGMENTS_PER_SET)
		return -ENOENT;
	if (!set.lent) /* the client fills both: he must know */
		return -EBUSY;
	rc = get_back(st, set.lent, &ret->busy_ino);
	if (rc == -EBUSY) {
		leave_to_file(st, set.lent);
		return -ENOENT;
	}
	if (rc < 0)
		return rc;
	HOLD(&g->lock);
	if (!is_free_locked(set.lent)) /* asked back meanwhile */
		return -ENOENT;
	take_locked(g, set.lent, ret);
	return 0;
}

int segment_acquire(struct store *st, struct segment_client *c,
		    const uint8_t signature[SEGMENT_SIGNATURE_BYTES],
		    uint64_t size_bytes, struct segment_reply *ret, int *ret_fd)
{
	struct segments *g = segments_of(st);
	int64_t deadline = mono_ns() + SEGMENT_RELEASE_WAIT_NS;
	bool others, left;
	uint64_t seen;
	int rc;

	*ret_fd = -1;
	if (g->quota_bytes == 0)
		return -EOPNOTSUPP;
	if (size_bytes == 0 || size_bytes > INT64_MAX)
		return -EINVAL;
	rc = take_existing(st, c, signature, size_bytes, ret);
	if (rc != -ENOENT)
		return rc;
	for (;;) {
		{
			HOLD(&g->lock);
			seen = g->left;
		}
		rc = create(st, c, signature, size_bytes, ret, ret_fd);
		if (rc != -ENOSPC && rc != -EDQUOT)
			return rc;
		{
			HOLD(&g->lock);
			if (is_asked_locked(g, c, &others))
				return -EAGAIN; /* the releases come first */
			/* Who was asked may have been faster than we. */
			left = g->left != seen;
		}
		if (left && mono_ns() < deadline)
			continue;
		if (!others || !wait_for_releases(g, c, deadline))
			return rc;
	}
}

static struct segment *find_locked(struct segments *g, uint64_t id,
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
		s = find_locked(g, id, generation);
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
	s = find_locked(g, id, generation);
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
		unlist_locked(g, s);
	}
	segment_free(st, s);
	return 0;
}

static bool is_name(const char *name)
{
	return name[0] != 0 && strchr(name, '/') == NULL &&
	       strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

/* As any write does of who is not root. */
static int drop_suid(struct store *st, struct inode *in, const struct attr *a)
{
	struct attr to = { .mode = a->mode & ~(uint32_t)S_ISUID };

	if (to.mode & S_IXGRP)
		to.mode &= ~(uint32_t)S_ISGID;
	return to.mode == a->mode ? 0 : names_setattr(st, in, SET_MODE, &to);
}

/* Replace what has the name. -ESTALE: it means another inode now. */
static int replace(struct store *st, const struct segment_commit *c,
		   struct inode *in, struct stage *stage)
{
	struct attr a;
	bool gone;
	int rc;

	{
		HOLD(&in->lock);
		a = in->attr;
	}
	if (S_ISDIR(a.mode))
		return -EISDIR;
	if (!S_ISREG(a.mode))
		return S_ISLNK(a.mode) ? -ELOOP : -EINVAL;
	if (!c->may(c->arg, &a, 02))
		return -EACCES;
	rc = c->uid == 0 ? 0 : drop_suid(st, in, &a);
	if (rc == 0)
		rc = file_replace(st, in, stage);
	if (rc < 0)
		return rc;
	/* The file is there: an error would say that it is not. */
	if (c->writer)
		(void)names_set_writer(st, in, c->writer);
	{
		HOLD(&in->lock);
		gone = in->attr.nlink == 0;
	}
	if (gone) /* by somebody who came right after us */
		file_unlinked(st, in);
	return 0;
}

static int commit_once(struct store *st, const struct segment_commit *c,
		       struct stage *stage, struct segment_committed *ret)
{
	const struct names_new n = {
		.mode = S_IFREG | (c->mode & 0777),
		.uid = c->uid,
		.gid = c->gid,
		.stage = stage,
		.writer = c->writer,
	};
	struct stat sb;
	struct inode *in;
	int rc;

	rc = names_lookup(st, c->parent, c->name, &in);
	ret->replaced = rc == 0;
	if (rc == 0) {
		rc = replace(st, c, in, stage);
		if (rc < 0)
			inode_put(st, in, 1);
	} else if (rc == -ENOENT) {
		struct attr dir = { 0 };
		struct inode *parent;

		rc = inode_get(st, c->parent, &parent);
		if (rc < 0)
			return rc;
		{
			HOLD(&parent->lock);
			dir = parent->attr;
		}
		inode_put(st, parent, 1);
		if (!S_ISDIR(dir.mode))
			return -ENOTDIR;
		if (!c->may(c->arg, &dir, 03))
			return -EACCES;
		rc = names_create(st, c->parent, c->name, &n, &in);
	}
	if (rc < 0)
		return rc;
	/* Without memory for its job it is drained with the next one. */
	(void)drain_closed(st, in, true);
	ret->ino = in->ino;
	if (stage_stat(&st->stages, stage, &sb) == 0)
		ret->mtime_ns = io_ns(&sb.st_mtim);
	inode_put(st, in, 1);
	return 0;
}

int segment_commit(struct store *st, const struct segment_commit *c,
		   struct segment_committed *ret)
{
	struct segments *g = segments_of(st);
	struct segment *s;
	int rc;

	if (!is_name(c->name))
		return -EINVAL;
	{
		HOLD(&g->lock);
		s = find_locked(g, c->id, c->generation);
		if (!s || !s->filled || !s->mapped || s->committing ||
		    s->size_bytes != c->size_bytes)
			return -ESTALE;
		if (s->uid != c->uid && c->uid != 0)
			return -EPERM;
		s->committing = true;
	}
	/* Then it is not what its client says that it is. */
	rc = segment_trim(st, s) ? -ESTALE : 0;
	if (rc < 0) {
		HOLD(&g->lock);
		s->committing = false;
		s->generation = 0;
		cond_broadcast(&g->changed);
		return rc;
	}
	rc = -ESTALE;
	for (int i = 0; rc == -ESTALE && i < COMMIT_TRIES_MAX; i++) {
		rc = commit_once(st, c, s->stage, ret);
		if (rc == -EEXIST) /* another process had the same idea */
			rc = -ESTALE;
		if (rc == -ESTALE) { /* whoever changes the name is done then */
			HOLD(names_changing(st->names));
		}
	}
	HOLD(&g->lock);
	s->committing = false;
	cond_broadcast(&g->changed);
	if (rc < 0)
		return rc == -ESTALE ? -EBUSY : rc;
	s->filled = false;
	s->generation = 0;
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
		if (is_free_locked(s))
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
