/*
 * commit.c - see commit.h.
 *
 * The committer's queue has two parts: drain jobs (taken from the drain in
 * order) and operations of its own (deletions, clones, abandoned images).
 */
#include "store/drain/commit_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/file/file.h"
#include "store/file/state.h"
#include "store/names/series.h"
#include "store/store.h"

#define COMMIT_GROUP_MAX 64

/* --- a drain job --- */

struct pending { /* one job in the group, between write and sync */
	struct drain_job *j;
	unsigned older; /* versions of its file that it supersedes */
	struct content_ref *content;
	struct ref_changes changes;
	int rc;
};

static int extent_add(struct content *c, const struct extent *e)
{
	struct extent *last =
		c->extent_count ? &c->extents[c->extent_count - 1] : NULL;

	if (last && last->offset + last->len == e->offset &&
	    last->image == e->image &&
	    last->image_offset + last->len == e->image_offset) {
		last->len += e->len;
		return 0;
	}
	/* Grown in powers of two: the count itself says when. */
	if ((c->extent_count & (c->extent_count - 1)) == 0) {
		size_t want = c->extent_count ? 2 * c->extent_count : 1;
		struct extent *grown =
			realloc(c->extents, want * sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		c->extents = grown;
	}
	c->extents[c->extent_count++] = *e;
	return 0;
}

/* The job's chunks as extents, and the references that they take. */
static int content_of_job(struct drain_job *j, struct content *c,
			  struct ref_changes *changes)
{
	bool identity = true;

	for (uint32_t i = 0; i < j->chunk_count; i++) {
		const struct drain_chunk *k = &j->chunks[i];
		struct ref_change one = { .delta = 1,
					  .len = k->len,
					  .domain = j->domain };
		struct extent e = { .offset = k->offset, .len = k->len };
		int rc;

		if (k->kind == CHUNK_ZERO)
			continue;
		if (k->kind == CHUNK_NEW) {
			e.image = j->image->id;
			e.image_offset = k->offset;
			one.fresh = true;
			one.image_size = j->size_bytes;
		} else {
			e.image = k->image;
			e.image_offset = k->image_offset;
			if (k->kind == CHUNK_JOINED) {
				const struct drain_origin *o = k->origin;

				/*
				 * Committed, it may be gone again, and its
				 * bytes with it, as those of any other.
				 */
				one.fresh = !o || !atomic_load(&o->written);
				one.image_size =
					o ? o->size_bytes : j->size_bytes;
			}
		}
		one.image = e.image;
		one.offset = e.image_offset;
		memcpy(one.hash, k->hash, HASH_BYTES);
		identity = identity && e.image_offset == e.offset;
		c->data_bytes += k->len;
		rc = extent_add(c, &e);
		if (rc == 0)
			rc = changes_add(changes, &one);
		if (rc < 0)
			return rc;
	}
	/*
	 * Native: all of it at its own offsets in one image of the same size.
	 * With holes only the file's own, fresh image is known to have them.
	 */
	c->native = identity && c->extent_count > 0;
	for (size_t i = 1; i < c->extent_count; i++)
		c->native =
			c->native && c->extents[i].image == c->extents[0].image;
	if (c->native && c->data_bytes != c->size_bytes)
		c->native = j->image && c->extents[0].image == j->image->id;
	return 0;
}

/* An image of another size cannot stand for the file. */
static void check_native_size(struct store *st, const struct drain_job *j,
			      struct content *c)
{
	uint64_t size;

	if (!c->native || (j->image && c->extents[0].image == j->image->id))
		return;
	if (commit_image_size(st, c->extents[0].image, &size) < 0) {
		/* A running job's: it says itself how large it will be. */
		size = 0;
		for (uint32_t i = 0; i < j->chunk_count; i++)
			if (j->chunks[i].origin)
				size = j->chunks[i].origin->size_bytes;
	}
	c->native = size == c->size_bytes;
}

/*
 * Does it share with a job that was given up, and its image with it? Or with a
 * stage that may be written again if its job fails?
 */
static bool joined_is_dead(const struct drain_job *j)
{
	for (uint32_t i = 0; i < j->chunk_count; i++) {
		const struct drain_origin *o = j->chunks[i].origin;

		if (o && !atomic_load(&o->written) &&
		    (o->adopt || atomic_load(&o->ended)))
			return true;
	}
	return false;
}

/*
 * Has a chunk that the job stored been committed by another one since? Then the
 * job is done again and finds it: replicas that are closed at the same moment
 * are stored once, however their drains were interleaved.
 */
static bool came_too_late(struct store *st, const struct drain_job *j)
{
	if (j->no_join || j->undid)
		return false;
	for (uint32_t i = 0; i < j->chunk_count; i++) {
		SCOPED(scope_free) void *value = NULL;
		const struct drain_chunk *c = &j->chunks[i];
		struct key k = key_hash(c->hash, j->domain);
		struct chunk_loc loc;
		size_t len;

		if (c->kind == CHUNK_NEW &&
		    kv_get(st->kv, k.data, k.len, &value, &len) == 0 &&
		    loc_decode(value, len, &loc) == 0 && loc.len == c->len &&
		    loc.image != j->image->id)
			return true;
	}
	return false;
}

/* The records of the new content, without its chunks'. */
static void put_job_records(struct store *st, struct kv_batch *b,
			    struct drain_job *j, const struct content *c,
			    const struct content *old)
{
	uint64_t ino = j->in->ino;
	struct key u = key_ino('U', ino), d = key_ino('D', ino);
	bool old_small = old && old->kind == CONTENT_SMALL;

	commit_put_content(b, ino, c);
	kv_delete(b, u.data, u.len);
	if (j->small)
		kv_put(b, d.data, d.len, j->small, (size_t)c->size_bytes);
	else if (old_small)
		kv_delete(b, d.data, d.len);
	commit_count(b, META_LOGICAL,
		     (int64_t)c->size_bytes -
			     (old ? (int64_t)old->size_bytes : 0));
	commit_count(b, META_PHYSICAL,
		     (j->small ? (int64_t)c->size_bytes : 0) -
			     (old_small ? (int64_t)old->size_bytes : 0));
	series_put(st, b, j->in, c->size_bytes);
}

/* Does the own image have bytes of this chunk that nobody will read? */
static bool is_spare(const struct drain_job *j, const struct drain_chunk *c)
{
	return (c->kind == CHUNK_SHARED || c->kind == CHUNK_JOINED) &&
	       (j->adopt || c->spare);
}

/* Does the job's image hold anything of it? */
static bool job_stored(const struct drain_job *j)
{
	for (uint32_t i = 0; i < j->chunk_count; i++)
		if (j->chunks[i].kind == CHUNK_NEW)
			return true;
	return false;
}

/* A stage that holds nothing but zeros or what is shared: no image of it. */
static bool stage_is_spare(const struct drain_job *j)
{
	return j->adopt && !job_stored(j);
}

static void put_punch(struct kv_batch *b, uint64_t image, uint64_t offset,
		      uint64_t len)
{
	struct key p = key_chunk(image, offset);
	uint64_t le = htole64(len);

	p.data[0] = 'P';
	kv_put(b, p.data, p.len, &le, sizeof(le));
}

/* Bytes of the own image that are shared after all: they are given back. */
static int put_own_copies(struct kv_batch *b, struct drain_job *j)
{
	if (stage_is_spare(j))
		put_punch(b, j->image->id, 0, j->size_bytes);
	for (uint32_t i = 0; i < j->chunk_count; i++) {
		const struct drain_chunk *k = &j->chunks[i];

		if (is_spare(j, k) && !stage_is_spare(j))
			put_punch(b, j->image->id, k->offset, k->len);
	}
	return 0;
}

static void job_written(struct drain_job *j, int rc)
{
	if (j->origin)
		atomic_store(&j->origin->written, rc == 0);
}

/* The same bytes were written again: only the time of it is new. */
static int write_time(struct store *st, struct kv_batch *b, struct pending *p)
{
	const struct content *old = &p->j->old->c;
	struct content c = *old;
	int rc;

	c.generation += 1 + p->older;
	c.mtime_ns = p->j->mtime_ns;
	c.extents = calloc(old->extent_count + 1, sizeof(*c.extents));
	if (!c.extents)
		return -ENOMEM;
	if (old->extent_count > 0)
		memcpy(c.extents, old->extents,
		       old->extent_count * sizeof(*c.extents));
	commit_put_content(b, p->j->in->ino, &c);
	p->content = content_ref_new(&c);
	rc = p->content ? kv_write(st->kv, b) : -ENOMEM;
	job_written(p->j, rc);
	content_release(&c);
	return rc;
}

/* Build and write one job's batch. 1: nothing had to be written. */
static int job_write(struct store *st, struct pending *p)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	struct drain_job *j = p->j;
	struct content c = { 0 };
	struct content *old = j->old ? &j->old->c : NULL;
	int rc = 0;

	if (!b)
		return -ENOMEM;
	{
		HOLD(&j->in->lock);
		if (j->in->attr.nlink == 0 ||
		    (j->in->file->stage != j->stage && !j->earlier))
			return -ECANCELED;
		if (j->earlier && atomic_load(&j->raced)) /* it makes way */
			return -ESTALE;
		/* Its content cannot have changed: one job at a time. */
		CHECK(j->in->file->content == j->old);
	}
	if (j->unchanged)
		return j->mtime_ns == old->mtime_ns ? 1 : write_time(st, b, p);
	/* Those that it supersedes have theirs: see names_setattr(). */
	c.generation = (old ? old->generation : 0) + 1 + p->older;
	c.size_bytes = j->size_bytes;
	c.mtime_ns = j->mtime_ns;
	c.kind = j->small ? CONTENT_SMALL : CONTENT_EXTENTS;
	memcpy(c.digest, j->digest, HASH_BYTES);
	if (j->small)
		c.data_bytes = c.size_bytes;
	else if (joined_is_dead(j) || came_too_late(st, j))
		rc = -ESTALE;
	else
		rc = content_of_job(j, &c, &p->changes);
	if (rc == 0)
		check_native_size(st, j, &c);
	if (rc == 0 && old)
		rc = changes_of_content(st, old, -1, &p->changes);
	if (rc == 0)
		rc = changes_apply(st, b, &p->changes);
	if (rc == 0) {
		put_job_records(st, b, j, &c, old);
		rc = put_own_copies(b, j);
	}
	if (rc == 0)
		rc = kv_room(st->kv);
	if (rc == 0) { /* before the write: after it nothing may fail */
		p->content = content_ref_new(&c);
		rc = p->content ? 0 : -ENOMEM;
	}
	if (rc == 0)
		rc = kv_write(st->kv, b);
	job_written(j, rc);
	content_release(&c);
	return rc;
}

/* The ranges of the adopted image that nobody will read once it is closed. */
static void reclaim_own_copies(struct store *st, struct drain_job *j)
{
	if (stage_is_spare(j)) {
		reclaim_add(st->reclaim, j->image->id, 0, j->size_bytes);
		return;
	}
	for (uint32_t i = 0; i < j->chunk_count; i++)
		if (is_spare(j, &j->chunks[i]))
			reclaim_add(st->reclaim, j->image->id,
				    j->chunks[i].offset, j->chunks[i].len);
}

/*
 * What is committed is what the file's stage holds: the stage is now a cache,
 * or, adopted, it is the image, or it goes. in->lock is held. Returns the one
 * that goes.
 */
static struct stage *publish_stage_locked(struct store *st, struct drain_job *j)
{
	struct file *f = j->in->file;
	const struct content *c = &f->content->c;
	bool poor = file_is_poor_cache(st, f);
	bool reached = file_is_reached(&f->state);
	enum file_fate fate = file_end(&f->state, END_DURABLE, poor);
	struct stage *s = j->stage;

	if (fate == FATE_STAYS)
		return NULL;
	SLOT_SET(s->slot, clean_generation, c->generation);
	SLOT_SET(s->slot, dirty, 0);
	s->keep_image = j->adopt && !j->unchanged;
	if (s->keep_image && reached) { /* punched when its readers go */
		j->hold_punch = true;
		f->punch_image = j->image->id;
		f->punch_size = j->size_bytes;
	}
	if (fate == FATE_GOES)
		return TAKE(f->stage);
	stage_list(&st->stages, s);
	if (c->native && c->extent_count > 0 && !poor && !j->unchanged &&
	    !s->sealed) {
		s->clean_image = c->extents[0].image;
		image_set_clean(&st->images, s->clean_image, s);
	}
	return NULL;
}

/* The content is durable: let everybody see it. */
static void job_publish(struct store *st, struct pending *p)
{
	struct drain_job *j = p->j;
	struct file *f = j->in->file;

	HOLD(&j->in->lock);
	j->published = true;
	if (p->content) {
		j->publish_old = f->content;
		f->content = TAKE(p->content);
		f->verified = true;
	}
	if (j->earlier && j->adopt)
		j->stage->keep_image = !j->unchanged;
	if (j->exclusive && f->stage == j->stage &&
	    (j->adopt || !atomic_load(&j->raced)))
		j->publish_drop = publish_stage_locked(st, j);
}

static void job_published(struct store *st, struct pending *p)
{
	struct drain_job *j = p->j;

	if (j->publish_drop) {
		stage_drop(&st->stages, j->publish_drop);
		stage_put(&st->stages, j->publish_drop);
		inode_put(st, j->in, 1); /* the stage's reference */
	}
	content_ref_put(j->publish_old);
	drain_unstick(st, j->in);
	changes_reclaim(st, &p->changes);
	if (j->image && (j->unchanged || (!j->adopt && !job_stored(j)))) {
		if (!j->adopt) { /* it holds nothing that counts */
			image_ref(&st->images, j->image);
			commit_abandon(st, j->image, j->size_bytes);
		}
	} else if (j->image) {
		HOLD(&st->images.lock);
		j->image->building = false;
	}
	if (j->image && !j->unchanged && !j->hold_punch)
		reclaim_own_copies(st, j);
	if (p->older > 0)
		drain_supersede(st, j);
	drain_finish(st, j, JOB_DONE, 0);
}

static void commit_jobs(struct store *st, struct drain_job **jobs, unsigned n)
{
	struct pending p[COMMIT_GROUP_MAX] = { 0 };
	/* The place of the oldest that failed, in its turn or out of it. */
	uint64_t failed = UINT64_MAX;
	bool sync = false, wrote = false;
	int rc = 0;

	for (unsigned i = 0; i < n; i++) {
		struct drain_job *j = jobs[i];

		if (j->in_turn && j->order > failed) { /* nobody overtakes it */
			drain_untake(st, j);
			continue;
		}
		p[i].j = j;
		p[i].older = drain_older(st, j, true);
		p[i].rc = job_write(st, &p[i]);
		sync = sync || p[i].rc >= 0;
		wrote = wrote || p[i].rc == 0;
		if (p[i].rc < 0 && p[i].rc != -ECANCELED && j->order > 0 &&
		    j->order < failed)
			failed = j->order;
	}
	if (sync)
		rc = kv_sync(st->kv);
	if (rc < 0 &&
	    wrote) /* what was written is tried again as if it was not */
		kv_condemn(st->kv);
	for (unsigned i = 0; i < n; i++) {
		struct drain_job *j = p[i].j;

		if (!j)
			continue;
		if (p[i].rc >= 0 && rc < 0)
			p[i].rc = rc;
		if (p[i].rc < 0 && p[i].older > 0)
			(void)drain_older(st, j, false);
		if (p[i].rc >= 0) {
			job_publish(st, &p[i]);
			job_published(st, &p[i]);
		} else if (p[i].rc == -ESTALE || p[i].rc == -ECANCELED) {
			j->no_join = true; /* or it could go round for ever */
			drain_void(st, j);
		} else {
			drain_fail(st, j, p[i].rc);
		}
		content_ref_put(p[i].content);
		free(p[i].changes.at);
	}
}

/* The next operation, with the deletions right behind it if it is one. */
static unsigned take_ops_locked(struct committer *c, struct commit_op **ops)
{
	struct commit_op *op;
	unsigned n = 0;

	while (n < COMMIT_GROUP_MAX && (op = TAILQ_FIRST(&c->ops)) != NULL &&
	       (n == 0 ||
		(op->kind == COMMIT_DELETE && ops[0]->kind == COMMIT_DELETE))) {
		TAILQ_REMOVE(&c->ops, op, next);
		ops[n++] = op;
	}
	return n;
}

static void run_ops(struct store *st, struct commit_op **ops, unsigned n)
{
	HOLD(reclaim_turn(st->reclaim));
	if (n > 1)
		commit_ops_delete(st, ops, n);
	else
		commit_op_run(st, ops[0]);
}

static void *committer_main(void *arg)
{
	struct store *st = arg;
	struct committer *c = st->committer;
	struct commit_op *ops[COMMIT_GROUP_MAX];
	struct drain_job *jobs[COMMIT_GROUP_MAX];

	for (;;) {
		unsigned n, op_count;
		bool woken;

		lock_take(&c->lock);
		while (!c->woken && TAILQ_EMPTY(&c->ops) && !c->stop)
			cond_wait(&c->work, &c->lock);
		woken = c->woken;
		c->woken = false;
		/* What is ready already is committed, or given up, before. */
		if (c->stop && !woken && TAILQ_EMPTY(&c->ops)) {
			lock_give(&c->lock);
			return NULL;
		}
		op_count = take_ops_locked(c, ops);
		lock_give(&c->lock);
		if (op_count > 0) {
			run_ops(st, ops, op_count);
			commit_wake(st);
		}
		n = drain_take_ready(st, jobs, COMMIT_GROUP_MAX);
		if (n > 0) {
			HOLD(reclaim_turn(st->reclaim));
			commit_jobs(st, jobs, n);
		}
		if (n > 0)
			commit_wake(st);
	}
}

int commit_init(struct store *st)
{
	struct committer *c = calloc(1, sizeof(*c));

	if (!c)
		return -ENOMEM;
	lock_init(&c->lock, LOCK_COMMITTER);
	cond_init(&c->work);
	cond_init(&c->done);
	TAILQ_INIT(&c->ops);
	TAILQ_INIT(&c->refused);
	st->committer = c;
	return 0;
}

int commit_start(struct store *st)
{
	struct committer *c = st->committer;
	int rc = thread_create(&c->thread, committer_main, st);

	c->started = rc == 0;
	return -rc;
}

void commit_stop(struct store *st)
{
	struct committer *c = st->committer;

	if (!c)
		return;
	{
		HOLD(&c->lock);
		c->stop = true;
		cond_signal(&c->work);
	}
	if (c->started)
		thread_join(&c->thread);
	TAILQ_CONCAT(&c->ops, &c->refused, next);
	for (struct commit_op *op; (op = TAILQ_FIRST(&c->ops)) != NULL;) {
		TAILQ_REMOVE(&c->ops, op, next); /* the next start does it */
		free(op);
	}
	lock_destroy(&c->lock);
	cond_destroy(&c->work);
	cond_destroy(&c->done);
	free(c);
	st->committer = NULL;
}

void commit_wake(struct store *st)
{
	struct committer *c = st->committer;

	HOLD(&c->lock);
	c->woken = true;
	cond_signal(&c->work);
}

static void op_add(struct store *st, struct commit_op *op)
{
	struct committer *c = st->committer;

	HOLD(&c->lock);
	TAILQ_INSERT_TAIL(&c->ops, op, next);
	cond_signal(&c->work);
}

void commit_retry(struct store *st)
{
	struct committer *c = st->committer;

	HOLD(&c->lock);
	if (TAILQ_EMPTY(&c->refused))
		return;
	TAILQ_CONCAT(&c->ops, &c->refused, next);
	cond_signal(&c->work);
}

int commit_delete(struct store *st, uint64_t ino)
{
	struct commit_op *op = calloc(1, sizeof(*op));

	if (!op)
		return -ENOMEM;
	op->kind = COMMIT_DELETE;
	op->ino = ino;
	op_add(st, op);
	return 0;
}

int commit_clone(struct store *st, struct kv_batch *b, uint64_t from,
		 uint64_t to)
{
	struct commit_op op = { .kind = COMMIT_CLONE,
				.ino = to,
				.from = from,
				.batch = b,
				.waited = true };
	struct committer *c = st->committer;

	op_add(st, &op);
	lock_take(&c->lock);
	while (!op.done)
		cond_wait(&c->done, &c->lock);
	lock_give(&c->lock);
	return op.result;
}

void commit_abandon(struct store *st, struct image *i, uint64_t size_bytes)
{
	struct commit_op *op = calloc(1, sizeof(*op));

	if (!op) { /* the next start removes it */
		image_put(&st->images, i);
		return;
	}
	op->kind = COMMIT_ABANDON;
	op->image = i;
	op->size_bytes = size_bytes;
	op_add(st, op);
}
