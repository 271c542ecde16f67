/* reclaim.c - see reclaim.h. */
#include "store/space/reclaim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/stat.h>

#include "store/base/io.h"
#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/store.h"

#define BLOCK UINT64_C(4096)
/* Ranges that are decided on in one turn: the committer waits for that. */
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
	struct thread thread;
	bool started;
	struct lock turn; /* see reclaim_turn() */
	struct lock lock; /* guards everything below */
	struct cond work, idle;
	struct ranges ranges;
	struct ranges refused; /* what found the disk full */
	struct ranges left; /* somebody has the image: see image_is_left() */
	int64_t left_due_ns; /* when they are asked again */
	struct reclaim_ticket *oldest, *newest;
	uint64_t next_ticket;
	uint64_t added, taken; /* how often ranges were */
	uint64_t freed_bytes;
	bool busy, stop;
};

int reclaim_init(struct store *st)
{
	struct reclaim *r = calloc(1, sizeof(*r));

	if (!r)
		return -ENOMEM;
	lock_init(&r->turn, LOCK_RECLAIM_TURN);
	lock_init(&r->lock, LOCK_RECLAIM);
	cond_init(&r->work);
	cond_init(&r->idle);
	TAILQ_INIT(&r->ranges);
	TAILQ_INIT(&r->refused);
	TAILQ_INIT(&r->left);
	r->next_ticket = 1;
	st->reclaim = r;
	return 0;
}

void reclaim_enter(struct store *st, struct reclaim_ticket *t)
{
	struct reclaim *r = st->reclaim;

	HOLD(&r->lock);
	t->number = r->next_ticket++;
	t->next = NULL;
	t->prev = r->newest;
	*(r->newest ? &r->newest->next : &r->oldest) = t;
	r->newest = t;
}

void reclaim_leave(struct store *st, struct reclaim_ticket *t)
{
	struct reclaim *r = st->reclaim;

	HOLD(&r->lock);
	*(t->prev ? &t->prev->next : &r->oldest) = t->next;
	*(t->next ? &t->next->prev : &r->newest) = t->prev;
	if (!TAILQ_EMPTY(&r->ranges))
		cond_signal(&r->work);
}

void reclaim_add(struct store *st, uint64_t image, uint64_t offset,
		 uint64_t len)
{
	struct reclaim *r = st->reclaim;
	struct range *one, *last;

	HOLD(&r->lock);
	r->added++;
	last = TAILQ_LAST(&r->ranges, ranges);
	if (last && last->image == image &&
	    last->offset + last->len == offset) {
		last->len += len; /* neighbours go together */
		last->epoch = r->next_ticket;
		return;
	}
	one = malloc(sizeof(*one));
	if (!one)
		return; /* its P record stays: the next start does it */
	*one = (struct range){ .image = image, .offset = offset, .len = len };
	one->epoch = r->next_ticket;
	TAILQ_INSERT_TAIL(&r->ranges, one, next);
	cond_signal(&r->work);
}

void reclaim_retry(struct store *st)
{
	struct reclaim *r = st->reclaim;

	HOLD(&r->lock);
	TAILQ_CONCAT(&r->ranges, &r->refused, next);
	if (mono_ns() >= r->left_due_ns)
		TAILQ_CONCAT(&r->ranges, &r->left, next);
	if (!TAILQ_EMPTY(&r->ranges))
		cond_signal(&r->work);
}

struct lock *reclaim_turn(struct store *st)
{
	return &st->reclaim->turn;
}

/* --- what may be punched --- */

/*
 * Ranges that still wait: their chunks have no K record any more, but readers
 * who entered before may use them. Sorted by image and offset.
 */
struct span {
	uint64_t image, offset, end;
};

struct waiting {
	struct span *at;
	size_t count;
	uint64_t added, taken; /* the reclaimer's, when this was looked at */
};

static int span_compare(const void *pa, const void *pb)
{
	const struct span *a = pa, *b = pb;

	if (a->image != b->image)
		return a->image < b->image ? -1 : 1;
	if (a->offset != b->offset)
		return a->offset < b->offset ? -1 : 1;
	return 0;
}

static int waiting_update(struct store *st, struct waiting *w)
{
	struct reclaim *r = st->reclaim;
	struct span *at = NULL;
	struct range *one;
	size_t n = 0;

	HOLD(&r->lock);
	if (w->added == r->added && w->taken == r->taken)
		return 0;
	TAILQ_FOREACH(one, &r->ranges, next)
	{
		n++;
	}
	at = n ? realloc(w->at, n * sizeof(*at)) : NULL;
	if (n && !at)
		return -ENOMEM;
	if (n)
		w->at = at;
	w->count = 0;
	TAILQ_FOREACH(one, &r->ranges, next)
	{
		w->at[w->count++] = (struct span){ one->image, one->offset,
						   one->offset + one->len };
	}
	if (n)
		qsort(w->at, n, sizeof(*w->at), span_compare);
	/* Each ends where the furthest before it does: then ends are sorted. */
	for (size_t i = 1; i < n; i++)
		if (w->at[i].image == w->at[i - 1].image &&
		    w->at[i].end < w->at[i - 1].end)
			w->at[i].end = w->at[i - 1].end;
	w->added = r->added;
	w->taken = r->taken;
	return 0;
}

/* The first waiting range of the image that ends after `at`, or NULL. */
static const struct span *waiting_after(const struct waiting *w, uint64_t image,
					uint64_t at)
{
	size_t low = 0, high = w->count;

	while (low < high) {
		size_t mid = (low + high) / 2;
		const struct span *s = &w->at[mid];

		if (s->image < image || (s->image == image && s->end <= at))
			low = mid + 1;
		else
			high = mid;
	}
	return low < w->count && w->at[low].image == image ? &w->at[low] : NULL;
}

static bool waits(const struct waiting *w, uint64_t image, uint64_t from,
		  uint64_t to)
{
	const struct span *s = waiting_after(w, image, from);

	return from < to && s && s->offset < to;
}

struct hole {
	uint64_t from, to;
};

/* What is to be done about one range. */
struct plan {
	struct image *image; /* a reference; NULL: it is gone, or not now */
	struct hole *holes;
	size_t count, capacity;
	bool empty; /* nothing is left of the image */
	bool done; /* its P records can go */
};

static int plan_add(struct plan *p, uint64_t from, uint64_t to)
{
	if (p->count == p->capacity) {
		size_t want = p->capacity ? 2 * p->capacity : 4;
		struct hole *grown = realloc(p->holes, want * sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		p->holes = grown;
		p->capacity = want;
	}
	p->holes[p->count++] = (struct hole){ from, to };
	return 0;
}

/*
 * [from, to) without chunks: what of it does not wait, and as much around it
 * as whole blocks in which nothing lies and nothing waits.
 */
static int plan_gap(struct plan *p, const struct waiting *w, uint64_t from,
		    uint64_t to, uint64_t used_before, uint64_t used_after)
{
	while (from < to) {
		const struct span *s = waiting_after(w, p->image->id, from);
		uint64_t end = s && s->offset < to ? s->offset : to;

		if (end > from) {
			uint64_t low = from & ~(BLOCK - 1);
			uint64_t high = (end + BLOCK - 1) & ~(BLOCK - 1);
			uint64_t id = p->image->id;
			int rc;

			if (low < used_before || waits(w, id, low, from))
				low = from;
			if (high > used_after || waits(w, id, end, high))
				high = end;
			rc = plan_add(p, low, high);
			if (rc < 0)
				return rc;
		}
		from = s && s->end > end ? s->end : end;
	}
	return 0;
}

/* The gaps between the chunks that overlap [offset, offset + len). */
static int plan_range(struct store *st, struct plan *p, const struct waiting *w,
		      uint64_t offset, uint64_t len)
{
	uint64_t end = offset + len, at = offset, used_before = 0;
	struct key prefix = key_ino('K', p->image->id);
	struct key start = key_chunk(p->image->id, offset);
	uint64_t after = UINT64_MAX;
	struct kv_slice key, value;
	struct kv_iter *it;
	bool any = false;
	int rc;

	/* From the chunk before: it may reach into the range, or its block. */
	rc = kv_iter_new_before(st->kv, prefix.data, prefix.len, start.data,
				start.len, &it);
	if (rc < 0)
		return rc;
	while ((rc = kv_iter_next(it, &key, &value)) == 1) {
		struct chunk_rec k;
		uint64_t chunk;

		any = true;
		if (key.len != 17 ||
		    chunk_decode(value.data, value.len, &k) < 0) {
			rc = -EIO;
			break;
		}
		chunk = get_be64((const uint8_t *)key.data + 9);
		if (chunk >= end) {
			after = chunk;
			break;
		}
		if (chunk > at) {
			rc = plan_gap(p, w, at, chunk, used_before, chunk);
			if (rc < 0)
				break;
		}
		if (chunk + k.len > at)
			at = chunk + k.len;
		used_before = chunk + k.len;
	}
	kv_iter_free(it);
	if (rc >= 0 && at < end)
		rc = plan_gap(p, w, at, end, used_before, after);
	if (rc < 0)
		return rc;
	p->empty = !any && !waits(w, p->image->id, 0, UINT64_MAX);
	return 0;
}

static int punch(struct store *st, int fd, const struct hole *h)
{
	struct stat before, after;

	if (fstat(fd, &before) < 0)
		return -errno;
	if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
		      (off_t)h->from, (off_t)(h->to - h->from)) < 0)
		return errno == EOPNOTSUPP ? 0 : -errno;
	if (fstat(fd, &after) == 0 && after.st_blocks < before.st_blocks) {
		HOLD(&st->reclaim->lock);
		st->reclaim->freed_bytes +=
			(uint64_t)(before.st_blocks - after.st_blocks) * 512;
	}
	return 0;
}

static int punch_holes(struct store *st, const struct plan *p)
{
	SCOPED(scope_close)
	int fd = image_open_fd(&st->images, p->image, O_RDWR);
	int rc = fd < 0 ? fd : 0;

	for (size_t i = 0; rc == 0 && i < p->count; i++)
		rc = punch(st, fd, &p->holes[i]);
	return rc;
}

/* The image's last chunk went: its record first, durably, then the file. */
static int remove_image(struct store *st, struct image *image)
{
	struct kv_batch *b = kv_batch_new();
	struct key i = key_ino('I', image->id), images = key_meta(META_IMAGES);
	void *value = NULL;
	size_t len;
	int rc;

	if (!b)
		return -ENOMEM;
	rc = kv_get(st->kv, i.data, i.len, &value, &len);
	free(value);
	if (rc == 0) {
		kv_delete(b, i.data, i.len);
		kv_add(b, images.data, images.len, -1);
		rc = kv_write(st->kv, b);
		if (rc == 0)
			rc = kv_sync(st->kv);
	}
	kv_batch_free(b);
	if (rc == 0 || rc == -ENOENT)
		rc = image_remove(&st->images, image);
	return rc;
}

/*
 * Into b: the P records of the range, but for what waits by now. The turn is
 * held: a record that came since the range was decided on has its own range,
 * which alone knows whether the image went with it.
 */
static int forget_range(struct store *st, struct kv_batch *b,
			const struct range *r, const struct waiting *w)
{
	struct key prefix = key_ino('P', r->image);
	struct key start = key_chunk(r->image, r->offset);
	struct kv_slice key, value;
	struct kv_iter *it;
	int rc;

	start.data[0] = 'P';
	rc = kv_iter_new(st->kv, prefix.data, prefix.len, start.data, start.len,
			 &it);
	if (rc < 0)
		return rc;
	while ((rc = kv_iter_next(it, &key, &value)) == 1) {
		uint64_t at;

		if (key.len != 17)
			break;
		at = get_be64((const uint8_t *)key.data + 9);
		if (at >= r->offset + r->len)
			break;
		if (!waits(w, r->image, at, at + 1))
			kv_delete(b, key.data, key.len);
	}
	kv_iter_free(it);
	return rc < 0 ? rc : 0;
}

static uint64_t image_bytes(struct store *st, const struct image *i)
{
	struct stat sb;

	return image_stat(&st->images, i, &sb) == 0
		       ? (uint64_t)sb.st_blocks * 512
		       : 0;
}

/* What is to be done about the range; the turn is held. */
static int reclaim_plan(struct store *st, const struct range *r,
			const struct waiting *w, struct plan *p)
{
	int rc = image_get(&st->images, r->image, &p->image);

	p->done = rc == -EIO || rc == -ENOENT; /* it is gone already */
	if (rc < 0)
		return p->done ? 0 : rc;
	{
		HOLD(&st->images.lock);
		/* Its job decides; its P records stay until then. */
		if (p->image->building)
			return 0;
	}
	rc = plan_range(st, p, w, r->offset, r->len);
	p->done = rc == 0;
	return rc;
}

static int reclaim_one(struct store *st, const struct plan *p)
{
	bool dead = false;
	int rc = 0;

	if (p->empty) {
		HOLD(&st->images.lock);
		/* Another range of this group was its last one, too. */
		dead = p->image->dead;
	}
	if (p->count > 0 && !p->empty)
		rc = image_is_left(&st->images, p->image) ? -EBUSY
							  : punch_holes(st, p);
	if (rc == 0 && p->empty && !dead) {
		uint64_t bytes = image_bytes(st, p->image);

		rc = remove_image(st, p->image);
		if (rc == 0) {
			HOLD(&st->reclaim->lock);
			st->reclaim->freed_bytes += bytes;
		}
	}
	return rc;
}

/* All ranges that nobody can know of any more, into `out`. */
static void reclaim_take_locked(struct reclaim *r, struct ranges *out)
{
	struct range *one;

	r->taken++;
	while ((one = TAILQ_FIRST(&r->ranges)) != NULL &&
	       !(r->oldest && r->oldest->number < one->epoch)) {
		TAILQ_REMOVE(&r->ranges, one, next);
		TAILQ_INSERT_TAIL(out, one, next);
	}
}

/* A part of what was taken: decided in one turn. */
struct group {
	struct range *range[RECLAIM_GROUP_MAX];
	struct plan plan[RECLAIM_GROUP_MAX];
	int result[RECLAIM_GROUP_MAX];
	unsigned count;
	struct waiting waiting; /* kept from one group to the next */
};

/*
 * Which bytes go is decided in the committer's absence: between the write that
 * drops a K record and the range that then waits for its readers, the record
 * alone would say that nobody needs them.
 */
static int group_plan(struct store *st, struct group *g)
{
	int rc;

	HOLD(&st->reclaim->turn);
	rc = waiting_update(st, &g->waiting);
	for (unsigned i = 0; rc == 0 && i < g->count; i++)
		g->result[i] =
			reclaim_plan(st, g->range[i], &g->waiting, &g->plan[i]);
	return rc;
}

/*
 * What was done need not be done again after the next start. An image that is
 * gone must stay so: without these records nobody would know it.
 */
static void group_forget(struct store *st, struct group *g)
{
	SCOPED(scope_batch) struct kv_batch *done = kv_batch_new();
	int rc;

	if (!done || image_sync_removed(&st->images) < 0)
		return; /* they are done again */
	HOLD(&st->reclaim->turn);
	rc = waiting_update(st, &g->waiting);
	for (unsigned i = 0; rc == 0 && i < g->count; i++)
		if (g->result[i] == 0 && g->plan[i].done)
			rc = forget_range(st, done, g->range[i], &g->waiting);
	if (rc == 0)
		(void)kv_write(st->kv, done);
}

/* Whoever has the image reads it yet: it is asked for again after a while. */
static void keep_left(struct store *st, struct range *one)
{
	struct reclaim *r = st->reclaim;

	HOLD(&r->lock);
	if (TAILQ_EMPTY(&r->left))
		r->left_due_ns = mono_ns() + LEFT_RETRY_NS;
	TAILQ_INSERT_TAIL(&r->left, one, next);
}

static void group_reclaim(struct store *st, struct group *g)
{
	int all = group_plan(st, g);

	for (unsigned i = 0; i < g->count; i++) {
		int rc = all < 0 ? all : g->result[i];

		if (rc == 0)
			rc = reclaim_one(st, &g->plan[i]);
		if (rc < 0 && rc != -EBUSY)
			log_error("image %llu: space is not given back: %s",
				  (unsigned long long)g->range[i]->image,
				  strerror(-rc));
		g->result[i] = rc;
		if (rc == -EBUSY)
			keep_left(st, TAKE(g->range[i]));
		if (rc == -ENOSPC) { /* kept for reclaim_retry() */
			struct range *one = g->range[i];

			g->range[i] = NULL;
			HOLD(&st->reclaim->lock);
			TAILQ_INSERT_TAIL(&st->reclaim->refused, one, next);
		}
	}
	group_forget(st, g);
	for (unsigned i = 0; i < g->count; i++) {
		image_put(&st->images, g->plan[i].image);
		free(g->plan[i].holes);
		free(g->range[i]);
		g->plan[i] = (struct plan){ 0 };
		g->result[i] = 0;
	}
	g->count = 0;
}

static void reclaim_all(struct store *st, struct group *g, struct ranges *taken)
{
	struct range *one;
	/* The deletions, before their bytes go. */
	int rc = kv_sync(st->kv);

	while ((one = TAILQ_FIRST(taken)) != NULL) {
		TAILQ_REMOVE(taken, one, next);
		if (rc < 0) { /* its P record stays: the next start does it */
			free(one);
			continue;
		}
		g->range[g->count++] = one;
		if (g->count == RECLAIM_GROUP_MAX || TAILQ_EMPTY(taken))
			group_reclaim(st, g);
	}
	if (rc < 0)
		log_error("space is not given back: %s", strerror(-rc));
}

static void *reclaim_main(void *arg)
{
	struct store *st = arg;
	struct reclaim *r = st->reclaim;
	struct group g = { 0 };

	lock_take(&r->lock);
	for (;;) {
		struct ranges taken = TAILQ_HEAD_INITIALIZER(taken);

		reclaim_take_locked(r, &taken);
		if (!TAILQ_EMPTY(&taken)) {
			r->busy = true;
			lock_give(&r->lock);
			reclaim_all(st, &g, &taken);
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

int reclaim_start(struct store *st)
{
	struct reclaim *r = st->reclaim;
	int rc = thread_create(&r->thread, reclaim_main, st);

	r->started = rc == 0;
	return -rc;
}

void reclaim_stop(struct store *st)
{
	struct reclaim *r = st->reclaim;

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

void reclaim_release(struct store *st)
{
	struct reclaim *r = st->reclaim;
	struct range *one;

	if (!r)
		return;
	TAILQ_CONCAT(&r->ranges, &r->refused, next);
	TAILQ_CONCAT(&r->ranges, &r->left, next);
	while ((one = TAILQ_FIRST(&r->ranges)) != NULL) {
		TAILQ_REMOVE(&r->ranges, one, next);
		free(one);
	}
	lock_destroy(&r->turn);
	lock_destroy(&r->lock);
	cond_destroy(&r->work);
	cond_destroy(&r->idle);
	free(r);
	st->reclaim = NULL;
}

void reclaim_drain(struct store *st, uint64_t *ret_freed)
{
	struct reclaim *r = st->reclaim;

	lock_take(&r->lock);
	TAILQ_CONCAT(&r->ranges, &r->left, next);
	while (r->busy || !TAILQ_EMPTY(&r->ranges)) {
		cond_signal(&r->work);
		cond_wait(&r->idle, &r->lock);
		if (!r->busy && r->oldest) /* somebody reads: not now */
			break;
	}
	*ret_freed = r->freed_bytes;
	lock_give(&r->lock);
}

void reclaim_freed(struct store *st, uint64_t *ret_freed)
{
	HOLD(&st->reclaim->lock);
	*ret_freed = st->reclaim->freed_bytes;
}
