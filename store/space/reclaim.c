/* reclaim.c - see reclaim.h. */
#include "store/space/reclaim.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/stat.h>

#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/db/records.h"
#include "store/space/image.h"
#include "store/space/punch.h"

/* Ranges that are decided on at once: the committer waits for that. */
#define RECLAIM_GROUP_MAX 256
/* How often it is asked whether an image is still open from before. */
#define LEFT_RETRY_NS (INT64_C(10) * 1000000000)

struct range {
	TAILQ_ENTRY(range) next;
	uint64_t image, offset, len;
	uint64_t epoch; /* tickets up to this one may know of the bytes */
};
TAILQ_HEAD(ranges, range);

struct reclaim {
	struct kv *kv; /* the borrowed two are immutable */
	struct images *images;
	struct thread thread;
	bool started;
	struct lock deciding; /* see reclaim_deciding() */
	struct lock lock; /* guards everything below */
	struct cond work, idle;
	struct ranges ranges;
	struct ranges refused; /* what found the disk full */
	struct ranges left; /* somebody has the image: see image_opened.c */
	int64_t left_due_ns; /* when they are asked again */
	TAILQ_HEAD(, reclaim_ticket) tickets; /* oldest first */
	uint64_t next_ticket;
	uint64_t added, taken; /* how often ranges were */
	uint64_t freed_bytes;
	bool busy, stop;
};

int reclaim_new(struct kv *kv, struct images *images,
		struct reclaim **ret_reclaim)
{
	struct reclaim *r = calloc(1, sizeof(*r));

	if (!r)
		return -ENOMEM;
	lock_init(&r->deciding, LOCK_RECLAIM_DECIDING);
	lock_init(&r->lock, LOCK_RECLAIM);
	cond_init(&r->work);
	cond_init(&r->idle);
	TAILQ_INIT(&r->ranges);
	TAILQ_INIT(&r->refused);
	TAILQ_INIT(&r->left);
	TAILQ_INIT(&r->tickets);
	r->next_ticket = 1;
	r->kv = kv;
	r->images = images;
	*ret_reclaim = r;
	return 0;
}

void reclaim_enter(struct reclaim *r, struct reclaim_ticket *t)
{
	HOLD(&r->lock);
	t->number = r->next_ticket++;
	TAILQ_INSERT_TAIL(&r->tickets, t, next);
}

void reclaim_leave(struct reclaim *r, struct reclaim_ticket *t)
{
	HOLD(&r->lock);
	TAILQ_REMOVE(&r->tickets, t, next);
	if (!TAILQ_EMPTY(&r->ranges))
		cond_signal(&r->work);
}

static void add_locked(struct reclaim *r, const struct reclaim_range *add)
{
	struct range *one, *last;

	r->added++;
	last = TAILQ_LAST(&r->ranges, ranges);
	if (last && last->image == add->image &&
	    last->offset + last->len == add->offset) {
		last->len += add->len; /* neighbours go together */
		last->epoch = r->next_ticket;
		return;
	}
	one = malloc(sizeof(*one));
	if (!one)
		return; /* its P record stays: the next start does it */
	*one = (struct range){ .image = add->image,
			       .offset = add->offset,
			       .len = add->len };
	one->epoch = r->next_ticket;
	TAILQ_INSERT_TAIL(&r->ranges, one, next);
	cond_signal(&r->work);
}

void reclaim_add_each(struct reclaim *r,
		      bool (*next)(void *arg, struct reclaim_range *ret),
		      void *arg)
{
	struct reclaim_range one;

	HOLD(&r->lock);
	while (next(arg, &one))
		add_locked(r, &one);
}

void reclaim_add(struct reclaim *r, uint64_t image, uint64_t offset,
		 uint64_t len)
{
	const struct reclaim_range one = { image, offset, len };

	HOLD(&r->lock);
	add_locked(r, &one);
}

void reclaim_retry(struct reclaim *r)
{
	HOLD(&r->lock);
	TAILQ_CONCAT(&r->ranges, &r->refused, next);
	if (mono_ns() >= r->left_due_ns)
		TAILQ_CONCAT(&r->ranges, &r->left, next);
	if (!TAILQ_EMPTY(&r->ranges))
		cond_signal(&r->work);
}

struct lock *reclaim_deciding(struct reclaim *r)
{
	return &r->deciding;
}

/* A part of what was taken: decided at once. */
struct group {
	struct decision {
		struct range *range;
		struct punch_plan plan;
		int rc;
	} at[RECLAIM_GROUP_MAX];
	unsigned count;
	/* What waits, from group to group, and when that was looked at. */
	struct punch_waiting waiting;
	uint64_t added, taken;
};

/* What waits now; r->lock is taken only for as long as that is copied. */
static int waiting_update(struct reclaim *r, struct group *g)
{
	struct punch_waiting *w = &g->waiting;
	struct range *one;
	int rc = 0;

	HOLD(&r->lock);
	if (g->added == r->added && g->taken == r->taken)
		return 0;
	w->count = 0;
	TAILQ_FOREACH(one, &r->ranges, next)
	{
		rc = punch_waiting_add(w, one->image, one->offset, one->len);
		if (rc < 0)
			return rc;
	}
	punch_waiting_sort(w);
	g->added = r->added;
	g->taken = r->taken;
	return 0;
}

struct forgetting {
	struct kv_batch *b;
	const struct range *range;
	const struct punch_waiting *waiting;
};

static int forget_one(void *arg, struct kv_slice key, struct kv_slice value)
{
	const struct forgetting *f = arg;
	const struct range *one = f->range;
	uint64_t at;

	(void)value;
	if (key.len != 17)
		return 1;
	at = get_be64((const uint8_t *)key.data + 9);
	if (at >= one->offset + one->len)
		return 1;
	if (!punch_waits(f->waiting, one->image, at, at + 1))
		kv_delete(f->b, key.data, key.len);
	return 0;
}

/*
 * Into b: the P records of the range, but for what waits by now. deciding is
 * held: a record that came since the range was decided on has its own range,
 * which alone knows whether the image went with it.
 */
static int forget_range(struct reclaim *r, struct kv_batch *b,
			const struct range *one, const struct punch_waiting *w)
{
	struct forgetting f = { b, one, w };
	int rc = records_each_from(r->kv, key_ino('P', one->image),
				   key_punch(one->image, one->offset),
				   forget_one, &f);

	return rc < 0 ? rc : 0;
}

/* What is to be done about the range; deciding is held. */
static int reclaim_plan(struct reclaim *r, const struct range *one,
			const struct punch_waiting *w, struct punch_plan *p)
{
	int rc = image_get(r->images, one->image, &p->image);

	p->done = rc == -EIO || rc == -ENOENT; /* it is gone already */
	if (p->done)
		image_was_removed(r->images, one->image);
	if (rc < 0)
		return p->done ? 0 : rc;
	/* Its job decides; its P records stay until then. */
	if (image_is_building(r->images, p->image))
		return 0;
	rc = punch_plan_range(r->kv, w, p, one->offset, one->len);
	p->done = rc == 0;
	return rc;
}

/* A range before this one was the last of the same image, too. */
static bool is_removed_before(const struct group *g, unsigned at)
{
	for (unsigned i = 0; i < at; i++)
		if (g->at[i].rc == 0 && g->at[i].plan.empty &&
		    g->at[i].plan.image == g->at[at].plan.image)
			return true;
	return false;
}

/*
 * Images whose last chunk went: their records first, durably and with one sync
 * for all of them, then, one by one, their files.
 */
static void group_unrecord(struct reclaim *r, struct group *g)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	int64_t gone = 0;
	int rc = 0;

	for (unsigned i = 0; i < g->count; i++) {
		struct decision *d = &g->at[i];

		if (d->rc < 0 || !d->plan.empty || is_removed_before(g, i))
			continue;
		d->rc = record_find(r->kv, key_ino('I', d->plan.image->id));
		if (d->rc == 0) {
			record_delete(b, key_ino('I', d->plan.image->id));
			gone++;
		}
		if (d->rc == -ENOENT) /* from an attempt before this one */
			d->rc = 0;
	}
	if (gone == 0)
		return;
	meta_add(b, META_IMAGES, -gone);
	rc = kv_write(r->kv, b);
	if (rc == 0)
		rc = kv_sync(r->kv);
	for (unsigned i = 0; rc < 0 && i < g->count; i++)
		if (g->at[i].rc == 0 && g->at[i].plan.empty)
			g->at[i].rc = rc;
}

static int reclaim_one(struct reclaim *r, const struct punch_plan *p)
{
	bool dead = false, known;
	uint64_t freed = 0;
	struct stat sb;
	int rc = 0;

	if (p->empty) {
		HOLD(&r->images->lock);
		/* Another range of this group was its last one, too. */
		dead = p->image->dead;
	}
	if (p->count > 0 && !p->empty)
		rc = image_is_left(r->images, p->image) ||
				     image_is_had(r->images, p->image)
			     ? -EBUSY
			     : punch_holes(r->images, p, &freed);
	if (rc == 0 && p->empty && !dead) {
		known = image_stat(r->images, p->image, &sb) == 0;
		rc = image_remove(r->images, p->image);
		if (rc == 0 && known)
			freed = (uint64_t)sb.st_blocks * 512;
	}
	if (freed > 0) {
		HOLD(&r->lock);
		r->freed_bytes += freed;
	}
	return rc;
}

/* All ranges that nobody can know of any more, into `out`. */
static void reclaim_take_locked(struct reclaim *r, struct ranges *out)
{
	const struct reclaim_ticket *oldest = TAILQ_FIRST(&r->tickets);
	struct range *one;

	r->taken++;
	while ((one = TAILQ_FIRST(&r->ranges)) != NULL &&
	       (!oldest || oldest->number >= one->epoch)) {
		TAILQ_REMOVE(&r->ranges, one, next);
		TAILQ_INSERT_TAIL(out, one, next);
	}
}

/*
 * Which bytes go is decided in the committer's absence: between the write that
 * drops a K record and the range that then waits for its readers, the record
 * alone would say that nobody needs them.
 */
static void group_plan(struct reclaim *r, struct group *g)
{
	int rc;

	HOLD(&r->deciding);
	rc = waiting_update(r, g);
	for (unsigned i = 0; i < g->count; i++) {
		struct decision *d = &g->at[i];

		d->rc = rc < 0 ? rc
			       : reclaim_plan(r, d->range, &g->waiting,
					      &d->plan);
	}
}

/*
 * What was done need not be done again after the next start. An image that is
 * gone must stay so: without these records nobody would know it.
 */
static void group_forget(struct reclaim *r, struct group *g)
{
	SCOPED(scope_batch) struct kv_batch *done = kv_batch_new();
	int rc;

	if (image_sync_removed(r->images) < 0)
		return; /* they are done again */
	HOLD(&r->deciding);
	rc = waiting_update(r, g);
	for (unsigned i = 0; rc == 0 && i < g->count; i++)
		if (g->at[i].rc == 0 && g->at[i].plan.done)
			rc = forget_range(r, done, g->at[i].range, &g->waiting);
	if (rc == 0)
		(void)kv_write(r->kv, done);
}

/*
 * What could not be done is kept: while somebody has the image, who reads it
 * yet, for a while; when the disk is full for reclaim_retry().
 */
static void keep_range(struct reclaim *r, struct decision *d)
{
	struct ranges *to = d->rc == -EBUSY ? &r->left : &r->refused;

	if (d->rc != -EBUSY && d->rc != -ENOSPC)
		return;
	HOLD(&r->lock);
	if (d->rc == -EBUSY && TAILQ_EMPTY(&r->left))
		r->left_due_ns = mono_ns() + LEFT_RETRY_NS;
	TAILQ_INSERT_TAIL(to, d->range, next);
	d->range = NULL;
}

static void group_reclaim(struct reclaim *r, struct group *g)
{
	group_plan(r, g);
	group_unrecord(r, g);
	for (unsigned i = 0; i < g->count; i++) {
		struct decision *d = &g->at[i];

		if (d->rc == 0)
			d->rc = reclaim_one(r, &d->plan);
		if (d->rc < 0 && d->rc != -EBUSY)
			log_error("image %llu: space is not given back: %s",
				  (unsigned long long)d->range->image,
				  strerror(-d->rc));
		keep_range(r, d);
	}
	group_forget(r, g);
	for (unsigned i = 0; i < g->count; i++) {
		struct decision *d = &g->at[i];

		image_put(r->images, d->plan.image);
		free(d->plan.holes);
		free(d->range);
		*d = (struct decision){ 0 };
	}
	g->count = 0;
}

static void reclaim_all(struct reclaim *r, struct group *g,
			struct ranges *taken)
{
	struct range *one;
	/* The deletions, before their bytes go. */
	int rc = kv_sync(r->kv);

	while ((one = TAILQ_FIRST(taken)) != NULL) {
		TAILQ_REMOVE(taken, one, next);
		if (rc < 0) { /* its P record stays: the next start does it */
			free(one);
			continue;
		}
		g->at[g->count++].range = one;
		if (g->count == RECLAIM_GROUP_MAX || TAILQ_EMPTY(taken))
			group_reclaim(r, g);
	}
	if (rc < 0)
		log_error("space is not given back: %s", strerror(-rc));
}

static void *reclaim_main(void *arg)
{
	struct reclaim *r = arg;
	struct group g = { 0 };

	lock_take(&r->lock);
	for (;;) {
		struct ranges taken = TAILQ_HEAD_INITIALIZER(taken);

		reclaim_take_locked(r, &taken);
		if (!TAILQ_EMPTY(&taken)) {
			r->busy = true;
			lock_give(&r->lock);
			reclaim_all(r, &g, &taken);
			lock_take(&r->lock);
			continue;
		}
		r->busy = false;
		cond_broadcast(&r->idle);
		if (r->stop)
			break;
		cond_wait(&r->work, &r->lock);
	}
	lock_give(&r->lock);
	free(g.waiting.at);
	return NULL;
}

int reclaim_start(struct reclaim *r)
{
	int rc = thread_create(&r->thread, reclaim_main, r);

	r->started = rc == 0;
	return rc;
}

void reclaim_stop(struct reclaim *r)
{
	if (!r || !r->started)
		return;
	{
		HOLD(&r->lock);
		r->stop = true;
		cond_signal(&r->work);
	}
	thread_join(&r->thread);
	r->started = false;
}

void reclaim_free(struct reclaim *r)
{
	struct range *one;

	if (!r)
		return;
	TAILQ_CONCAT(&r->ranges, &r->refused, next);
	TAILQ_CONCAT(&r->ranges, &r->left, next);
	while ((one = TAILQ_FIRST(&r->ranges)) != NULL) {
		TAILQ_REMOVE(&r->ranges, one, next);
		free(one);
	}
	lock_destroy(&r->deciding);
	lock_destroy(&r->lock);
	cond_destroy(&r->work);
	cond_destroy(&r->idle);
	free(r);
}

void reclaim_drain(struct reclaim *r, uint64_t *ret_freed)
{
	lock_take(&r->lock);
	TAILQ_CONCAT(&r->ranges, &r->left, next);
	while (r->busy || !TAILQ_EMPTY(&r->ranges)) {
		cond_signal(&r->work);
		cond_wait(&r->idle, &r->lock);
		/* Somebody reads: not now. */
		if (!r->busy && !TAILQ_EMPTY(&r->tickets))
			break;
	}
	*ret_freed = r->freed_bytes;
	lock_give(&r->lock);
}

void reclaim_freed(struct reclaim *r, uint64_t *ret_freed)
{
	HOLD(&r->lock);
	*ret_freed = r->freed_bytes;
}
