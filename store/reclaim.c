/* reclaim.c - see reclaim.h. */
#include "store/reclaim.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/stat.h>

#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/cut.h"
#include "store/store.h"

#define BLOCK UINT64_C(4096)
/* Ranges that share one sync of the log. */
#define RECLAIM_GROUP_MAX 256

struct range {
	TAILQ_ENTRY(range) next;
	uint64_t image, offset, len;
	uint64_t epoch; /* tickets up to this one may know of the bytes */
};
TAILQ_HEAD(ranges, range);

struct reclaim {
	pthread_t thread;
	bool started;
	pthread_mutex_t lock; /* guards everything below */
	pthread_cond_t work, idle;
	struct ranges ranges;
	struct reclaim_ticket *oldest, *newest;
	uint64_t next_ticket;
	uint64_t freed_bytes;
	bool busy, stop;
};

int reclaim_init(struct store *st)
{
	struct reclaim *r = calloc(1, sizeof(*r));

	if (!r)
		return -ENOMEM;
	pthread_mutex_init(&r->lock, NULL);
	pthread_cond_init(&r->work, NULL);
	pthread_cond_init(&r->idle, NULL);
	TAILQ_INIT(&r->ranges);
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
		pthread_cond_signal(&r->work);
}

void reclaim_add(struct store *st, uint64_t image, uint64_t offset,
		 uint64_t len)
{
	struct reclaim *r = st->reclaim;
	struct range *one, *last;

	HOLD(&r->lock);
	last = TAILQ_LAST(&r->ranges, ranges);
	if (last && last->image == image && last->offset + last->len == offset) {
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
	pthread_cond_signal(&r->work);
}

/* Punch [from, to) and as much around it as whole blocks without chunks. */
static int punch(struct store *st, struct image *i, uint64_t from, uint64_t to,
		 uint64_t used_before, uint64_t used_after)
{
	struct stat before, after;
	uint64_t low = from & ~(BLOCK - 1);
	uint64_t high = (to + BLOCK - 1) & ~(BLOCK - 1);

	if (low >= used_before)
		from = low;
	if (high <= used_after)
		to = high;
	if (fstat(i->fd, &before) < 0)
		return -errno;
	if (fallocate(i->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
		      (off_t)from, (off_t)(to - from)) < 0)
		return errno == EOPNOTSUPP ? 0 : -errno;
	if (fstat(i->fd, &after) == 0 && after.st_blocks < before.st_blocks) {
		HOLD(&st->reclaim->lock);
		st->reclaim->freed_bytes +=
			(uint64_t)(before.st_blocks - after.st_blocks) * 512;
	}
	return 0;
}

/* Punch what no chunk covers in [offset, offset + len). 1: the image is empty. */
static int punch_range(struct store *st, struct image *i, uint64_t offset,
		       uint64_t len)
{
	uint64_t end = offset + len, at = offset, used_before = 0;
	struct key prefix = key_ino('K', i->id);
	/* As far back as a chunk can begin whose end shares our first block. */
	uint64_t reach = CHUNK_BYTES_MAX + BLOCK;
	struct key start = key_chunk(i->id,
				     offset > reach ? offset - reach : 0);
	struct kv_slice key, value;
	struct kv_iter *it;
	bool any = false;
	int rc;

	rc = kv_iter_new(st->kv, prefix.data, prefix.len, start.data, start.len,
			 &it);
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
		if (chunk > at && at < end) {
			rc = punch(st, i, at, chunk < end ? chunk : end,
				   used_before, chunk);
			if (rc < 0)
				break;
		}
		if (chunk + k.len > at)
			at = chunk + k.len;
		used_before = at;
		if (at >= end)
			break;
	}
	kv_iter_free(it);
	if (rc >= 0 && at < end)
		rc = punch(st, i, at, end, used_before, UINT64_MAX);
	if (rc < 0 || any)
		return rc < 0 ? rc : 0;
	/* Nothing from there on; is there anything before? */
	rc = kv_iter_new(st->kv, prefix.data, prefix.len, NULL, 0, &it);
	if (rc < 0)
		return rc;
	rc = kv_iter_next(it, &key, &value);
	kv_iter_free(it);
	return rc < 0 ? rc : rc == 0;
}

/* The image's last chunk went: its record first, durably, then the file. */
static int remove_image(struct store *st, uint64_t id)
{
	struct kv_batch *b = kv_batch_new();
	struct key i = key_ino('I', id), images = key_meta(META_IMAGES);
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
		rc = image_remove(&st->images, id);
	return rc;
}

/* The P records of the range are done with. */
static int forget_range(struct store *st, const struct range *r)
{
	struct key prefix = key_ino('P', r->image);
	struct key start = key_chunk(r->image, r->offset);
	struct kv_batch *b = kv_batch_new();
	struct kv_slice key, value;
	struct kv_iter *it;
	int rc;

	if (!b)
		return -ENOMEM;
	start.data[0] = 'P';
	rc = kv_iter_new(st->kv, prefix.data, prefix.len, start.data, start.len,
			 &it);
	if (rc < 0) {
		kv_batch_free(b);
		return rc;
	}
	while ((rc = kv_iter_next(it, &key, &value)) == 1) {
		if (key.len != 17 ||
		    get_be64((const uint8_t *)key.data + 9) >=
			    r->offset + r->len)
			break;
		kv_delete(b, key.data, key.len);
	}
	kv_iter_free(it);
	if (rc >= 0)
		rc = kv_write(st->kv, b);
	kv_batch_free(b);
	return rc;
}

static uint64_t image_bytes(const struct image *i)
{
	struct stat sb;

	return fstat(i->fd, &sb) == 0 ? (uint64_t)sb.st_blocks * 512 : 0;
}

static int reclaim_one(struct store *st, const struct range *r)
{
	uint64_t before;
	bool building;
	struct image *i;
	int rc;

	rc = image_get(&st->images, r->image, &i);
	if (rc == -EIO || rc == -ENOENT) /* it is gone already */
		return forget_range(st, r);
	if (rc < 0)
		return rc;
	{
		HOLD(&st->images.lock);
		building = i->building;
	}
	before = image_bytes(i);
	rc = building ? 0 : punch_range(st, i, r->offset, r->len);
	if (rc == 1) {
		rc = remove_image(st, r->image);
		if (rc == 0) {
			HOLD(&st->reclaim->lock);
			st->reclaim->freed_bytes += before - image_bytes(i);
		}
	}
	image_put(&st->images, i);
	return rc < 0 || building ? rc : forget_range(st, r);
}

/* The oldest ranges that nobody can know of any more, up to max. */
static unsigned reclaim_take_locked(struct reclaim *r, struct range **ranges,
				    unsigned max)
{
	struct range *one;
	unsigned n = 0;

	while (n < max && (one = TAILQ_FIRST(&r->ranges)) != NULL &&
	       !(r->oldest && r->oldest->number < one->epoch)) {
		TAILQ_REMOVE(&r->ranges, one, next);
		ranges[n++] = one;
	}
	return n;
}

static void reclaim_some(struct store *st, struct range **ranges, unsigned n)
{
	/* The deletions, before their bytes go. */
	int synced = kv_sync(st->kv);

	for (unsigned i = 0; i < n; i++) {
		int rc = synced < 0 ? synced : reclaim_one(st, ranges[i]);

		if (rc < 0)
			log_error("image %llu: space is not given back: %s",
				  (unsigned long long)ranges[i]->image,
				  strerror(-rc));
		free(ranges[i]);
	}
}

static void *reclaim_main(void *arg)
{
	struct store *st = arg;
	struct reclaim *r = st->reclaim;
	struct range *ranges[RECLAIM_GROUP_MAX];

	pthread_mutex_lock(&r->lock);
	for (;;) {
		unsigned n = reclaim_take_locked(r, ranges, RECLAIM_GROUP_MAX);

		if (n > 0) {
			r->busy = true;
			pthread_mutex_unlock(&r->lock);
			reclaim_some(st, ranges, n);
			pthread_mutex_lock(&r->lock);
			continue;
		}
		r->busy = false;
		pthread_cond_broadcast(&r->idle);
		if (r->stop)
			break;
		pthread_cond_wait(&r->work, &r->lock);
	}
	pthread_mutex_unlock(&r->lock);
	return NULL;
}

int reclaim_start(struct store *st)
{
	struct reclaim *r = st->reclaim;
	int rc = pthread_create(&r->thread, NULL, reclaim_main, st);

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
		pthread_cond_signal(&r->work);
	}
	pthread_join(r->thread, NULL);
	r->started = false;
}

void reclaim_release(struct store *st)
{
	struct reclaim *r = st->reclaim;
	struct range *one;

	if (!r)
		return;
	while ((one = TAILQ_FIRST(&r->ranges)) != NULL) {
		TAILQ_REMOVE(&r->ranges, one, next);
		free(one);
	}
	pthread_mutex_destroy(&r->lock);
	pthread_cond_destroy(&r->work);
	pthread_cond_destroy(&r->idle);
	free(r);
	st->reclaim = NULL;
}

void reclaim_drain(struct store *st, uint64_t *ret_freed)
{
	struct reclaim *r = st->reclaim;

	pthread_mutex_lock(&r->lock);
	while (r->busy || !TAILQ_EMPTY(&r->ranges)) {
		pthread_cond_signal(&r->work);
		pthread_cond_wait(&r->idle, &r->lock);
		if (!r->busy && r->oldest) /* somebody reads: not now */
			break;
	}
	*ret_freed = r->freed_bytes;
	pthread_mutex_unlock(&r->lock);
}

void reclaim_freed(struct store *st, uint64_t *ret_freed)
{
	HOLD(&st->reclaim->lock);
	*ret_freed = st->reclaim->freed_bytes;
}
