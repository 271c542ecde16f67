/*
 * commit_job.c - what the committer does with what was drained.
 *
 * One batch for each job, in the order in which they are taken; one sync of the
 * log for all of them; and only then does anybody see them. A job that cannot
 * be written is given back at once, before the next one is taken: so the order
 * itself stops those that are younger.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/scope.h"
#include "store/drain/commit_private.h"
#include "store/drain/drain_private.h"
#include "store/drain/inflight.h"
#include "store/file/state.h"
#include "store/names/series.h"

struct pending { /* one job in the group, between write and sync */
	struct drain_job *j;
	struct work *w;
	struct content_ref *content;
	struct ref_changes changes;
	/* Between job_publish() and job_published(): */
	struct content_ref *old;
	struct stage *drop;
	bool cached; /* another one has its reference to the inode */
	struct version_queue ended; /* jobs of the same bytes */
	bool hold_punch;
};

/* Does the work bring the chunk, so that it has no record yet? */
static bool is_fresh(const struct work *w, const struct drain_chunk *k)
{
	return k->kind == CHUNK_NEW || (k->kind == CHUNK_REPEATED &&
					w->chunks[k->same].kind == CHUNK_NEW);
}

/* The work's chunks as extents, and the references that they take. */
static int content_of_work(struct work *w, struct content *c,
			   struct ref_changes *changes)
{
	struct extent *shrunk;
	bool identity = true;

	/* Room for all; most are one range in the end, and readers keep it. */
	c->extents = calloc((size_t)w->chunk_count + 1, sizeof(*c->extents));
	if (!c->extents)
		return -ENOMEM;
	for (uint32_t i = 0; i < w->chunk_count; i++) {
		const struct drain_chunk *k = &w->chunks[i];
		struct ref_change one = { .delta = 1,
					  .len = k->len,
					  .domain = w->domain,
					  .image_size = w->size_bytes };
		struct extent e;
		int rc;

		if (!work_place(w, k, &e)) {
			CHECK(k->kind == CHUNK_ZERO);
			continue;
		}
		one.fresh = is_fresh(w, k);
		one.image = e.image;
		one.offset = e.image_offset;
		memcpy(one.hash, k->hash, HASH_BYTES);
		identity = identity && e.image_offset == e.offset;
		c->data_bytes += k->len;
		extent_append(c->extents, &c->extent_count, &e);
		rc = changes_add(changes, &one);
		if (rc < 0)
			return rc;
	}
	shrunk = realloc(c->extents,
			 (c->extent_count + 1) * sizeof(*c->extents));
	c->extents = shrunk ? shrunk : c->extents;
	/*
	 * Native: all of it at its own offsets in one image of the same size.
	 * With holes only the file's own, fresh image is known to have them.
	 */
	c->native = identity && c->extent_count > 0;
	for (size_t i = 1; i < c->extent_count; i++)
		c->native =
			c->native && c->extents[i].image == c->extents[0].image;
	if (c->native && c->data_bytes != c->size_bytes)
		c->native = w->image && c->extents[0].image == w->image->id;
	return 0;
}

/* An image of another size cannot stand for the file. */
static void check_native_size(struct drain *d, const struct work *w,
			      struct content *c)
{
	uint64_t size;

	if (!c->native || (w->image && c->extents[0].image == w->image->id))
		return;
	c->native = u64_load(d->kv, key_ino('I', c->extents[0].image), &size) ==
			    0 &&
		    size == c->size_bytes;
}

/* The records of the new content, without its chunks'. */
static void put_records(struct drain *d, struct kv_batch *b, struct work *w,
			const struct content *c, const struct content *old)
{
	uint64_t ino = w->in->ino;
	bool old_small = old && old->kind == CONTENT_SMALL;

	content_save(b, key_ino('F', ino), c);
	record_delete(b, key_ino('U', ino));
	if (w->small)
		record_save(b, key_ino('D', ino), w->small,
			    (size_t)c->size_bytes);
	else if (old_small)
		record_delete(b, key_ino('D', ino));
	meta_add(b, META_LOGICAL,
		 (int64_t)c->size_bytes - (old ? (int64_t)old->size_bytes : 0));
	meta_add(b, META_PHYSICAL,
		 (w->small ? (int64_t)c->size_bytes : 0) -
			 (old_small ? (int64_t)old->size_bytes : 0));
	series_put(d->kv, b, w->in,
		   series_expects(c->size_bytes, w->hole_bytes));
}

/* Does the own image have bytes of this chunk that nobody will read? */
static bool is_surplus(const struct work *w, const struct drain_chunk *c)
{
	return chunk_is_shared(c) && w->kind == WORK_OF_IMAGE;
}

/* A stage that holds nothing but zeros or what is shared: no image of it. */
static bool image_is_surplus(const struct work *w)
{
	return w->kind == WORK_OF_IMAGE && !work_stores(w);
}

/* A range of the own image: to b, or, without one, to the reclaimer. */
static void give_range_back(struct drain *d, struct kv_batch *b,
			    const struct work *w, uint64_t off, uint64_t len)
{
	if (b)
		u64_save(b, key_punch(w->image->id, off), len);
	else
		reclaim_add(d->reclaim, w->image->id, off, len);
}

/*
 * Bytes of the own image that are shared after all are given back: to b when
 * the content is written, and without one when it is closed to all readers.
 */
static void give_own_copies_back(struct drain *d, struct kv_batch *b,
				 const struct work *w)
{
	if (image_is_surplus(w)) {
		give_range_back(d, b, w, 0, w->size_bytes);
		return;
	}
	for (uint32_t i = 0; i < w->chunk_count; i++) {
		const struct drain_chunk *k = &w->chunks[i];

		if (is_surplus(w, k))
			give_range_back(d, b, w, k->offset, k->len);
	}
}

/* Who wants to know of it adds what goes with it. */
static void tell_committing(struct drain *d, struct kv_batch *b,
			    const struct pending *p)
{
	if (d->options.committing)
		d->options.committing(d->options.arg, b, p->j->in->ino,
				      version_rank(&p->j->v));
}

/*
 * The same bytes were written again: its number is new, and its time may be.
 * On a full disk it is written all the same, without kv_room(): it takes the
 * place of a record of its size, as a rename does. Refused, it would be an
 * error of a file whose bytes are durable, and hold up all that was closed
 * after it.
 */
static int write_number(struct drain *d, struct kv_batch *b, struct pending *p)
{
	const struct content *old = &p->w->old->c;
	struct content c = *old;
	int rc;

	c.generation = p->w->number;
	c.mtime_ns = p->w->mtime_ns;
	c.extents = calloc(old->extent_count + 1, sizeof(*c.extents));
	if (!c.extents)
		return -ENOMEM;
	if (old->extent_count > 0)
		memcpy(c.extents, old->extents,
		       old->extent_count * sizeof(*c.extents));
	content_save(b, key_ino('F', p->j->in->ino), &c);
	tell_committing(d, b, p);
	p->content = content_ref_new(&c);
	rc = p->content ? kv_write(d->kv, b) : -ENOMEM;
	content_release(&c);
	return rc;
}

/*
 * The file took the place of another one since the work began, and keeps that
 * one's content: see op_keep(). Nothing else changes it, for there is one job
 * at a time. in->lock is held.
 */
static void work_see_kept_locked(struct work *w)
{
	struct content_ref *now = w->in->file->content;

	if (now == w->old)
		return;
	CHECK(!w->old && now->c.generation == 0);
	w->old = content_ref_get(now);
}

/* Build and write one job's batch. */
static int job_write(struct drain *d, struct pending *p)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	struct drain_job *j = p->j;
	struct work *w = p->w;
	struct content c = { 0 };
	struct content *old;
	int rc = 0;

	{
		HOLD(&j->in->lock);
		if (j->in->attr.nlink == 0 ||
		    (j->in->file->stage != j->stage && !j->v.replaced))
			return -ECANCELED;
		work_see_kept_locked(w);
	}
	old = w->old ? &w->old->c : NULL;
	if (w->outcome == WORK_UNCHANGED)
		return write_number(d, b, p);
	c.generation = w->number;
	c.size_bytes = w->size_bytes;
	c.mtime_ns = w->mtime_ns;
	c.kind = w->small ? CONTENT_SMALL : CONTENT_EXTENTS;
	memcpy(c.digest, w->digest, HASH_BYTES);
	if (w->small)
		c.data_bytes = c.size_bytes;
	else
		rc = content_of_work(w, &c, &p->changes);
	if (rc == 0)
		check_native_size(d, w, &c);
	if (rc == 0 && old)
		rc = changes_of_content(d, old, -1, &p->changes);
	if (rc == 0)
		rc = changes_apply(d, b, &p->changes);
	if (rc == 0) {
		put_records(d, b, w, &c, old);
		tell_committing(d, b, p);
		give_own_copies_back(d, b, w);
	}
	if (rc == 0)
		rc = kv_room(d->kv);
	if (rc == 0) { /* before the write: after it nothing may fail */
		p->content = content_ref_new(&c);
		rc = p->content ? 0 : -ENOMEM;
	}
	if (rc == 0)
		rc = kv_write(d->kv, b);
	if (rc == 0) /* from here on the index says who has its chunks */
		inflight_leave(d->inflight, w);
	content_release(&c);
	return rc;
}

/* Its stage is the copy that the work has made. in->lock is held. */
static bool take_copy_locked(struct drain *d, struct pending *p)
{
	struct inode *in = p->j->in;
	struct file *f = in->file;
	const struct content *c = &f->content->c;
	struct stage *s = work_copy_take_locked(p->w);

	if (!s)
		return false;
	stage_own(d->stages, s, in->attr.uid);
	slot_clean(s->slot, c->generation);
	stage_show(s);
	f->stage = s;
	file_move(&f->state, FILE_FOUND);
	stage_list(d->stages, s);
	if (c->native && c->extent_count > 0 && p->w->outcome != WORK_UNCHANGED)
		image_set_clean(d->images, c->extents[0].image, s);
	return true;
}

/*
 * What is committed is what the file's stage holds: the stage is now a cache,
 * or, adopted, it is the image, or it goes. in->lock is held. false: its bytes
 * may be others all the same.
 */
static bool publish_stage_locked(struct drain *d, struct pending *p)
{
	struct file *f = p->j->in->file;
	const struct content *c = &f->content->c;
	bool poor = file_is_poor_cache(d->stages, f);
	bool reached = file_is_reached(&f->state);
	enum file_fate fate = file_end(&f->state, END_DURABLE, poor);
	struct stage *s = p->j->stage;
	struct work *w = p->w;

	if (fate == FATE_STAYS)
		return false;
	slot_clean(s->slot, c->generation);
	if (w->kind == WORK_OF_IMAGE && w->outcome != WORK_UNCHANGED &&
	    reached) { /* punched when its readers go */
		p->hold_punch = true;
		f->punch_image = w->image->id;
		f->punch_size = w->size_bytes;
	}
	if (fate == FATE_GOES) {
		p->drop = TAKE(f->stage);
		p->cached = take_copy_locked(d, p);
		return true;
	}
	stage_list(d->stages, s);
	if (c->native && c->extent_count > 0 && !poor &&
	    w->outcome != WORK_UNCHANGED && !s->sealed)
		image_set_clean(d->images, c->extents[0].image, s);
	return true;
}

/* Is what was committed in w's own image, at least in part? */
static bool job_is_stored(const struct work *w)
{
	return w->image && w->outcome != WORK_UNCHANGED &&
	       (w->kind == WORK_OF_IMAGE || work_stores(w));
}

/* The content is durable: let everybody see it. */
static void job_publish(struct drain *d, struct pending *p)
{
	struct drain_job *j = p->j;
	struct file *f = j->in->file;
	struct work *w = p->w;
	bool clean;

	HOLD(&j->in->lock);
	p->old = f->content;
	f->content = TAKE(p->content);
	f->verified = true;
	f->durable_place = version_rank(&j->v);
	if (job_is_stored(w))
		image_built(d->images, w->image);
	/* Who is to change what was read as it was closed waits for us. */
	clean = w->kind != WORK_OF_OPEN && f->stage == j->stage &&
		publish_stage_locked(d, p);
	TAILQ_INIT(&p->ended);
	drain_seen(d, j, clean, &p->ended);
}

static void job_published(struct drain *d, struct pending *p)
{
	struct drain_job *j = p->j;
	struct work *w = p->w;

	if (p->drop) {
		stage_drop(d->stages, p->drop);
		if (!p->cached) /* the stage's reference */
			inode_put(d->inodes, j->in, 1);
	}
	jobs_ended(d, &p->ended);
	content_ref_put(p->old);
	changes_reclaim(d, &p->changes);
	if (w->image && w->outcome != WORK_UNCHANGED && !p->hold_punch)
		give_own_copies_back(d, NULL, w);
	/* An own image that holds nothing that counts is given up. */
	drain_done(d, j, job_is_stored(w));
}

/* It is not committed, so nothing that is younger is before it is. */
static void job_give_back(struct drain *d, struct pending *p, int rc)
{
	struct drain_job *j = p->j;

	if (rc == -ESTALE || rc == -ECANCELED)
		drain_void(d, j, false);
	else
		drain_fail(d, j, rc);
}

static void pending_release(struct pending *p)
{
	content_ref_put(p->content);
	changes_release(&p->changes);
}

/* Write what was taken, and what can be taken after it; how many are in p. */
static unsigned write_group(struct drain *d, struct drain_taken taken,
			    struct pending *p)
{
	unsigned n = 0, count = 0;
	int rc;

	do {
		if (taken.makes_way) {
			drain_void(d, taken.j, false);
			continue;
		}
		CHECK(!work_is_disturbed(taken.j->work));
		p[n] = (struct pending){ .j = taken.j, .w = taken.j->work };
		rc = job_write(d, &p[n]);
		if (rc < 0) {
			job_give_back(d, &p[n], rc);
			pending_release(&p[n]);
		} else {
			n++;
		}
	} while (++count < COMMIT_GROUP_MAX && drain_take(d, &taken));
	return n;
}

void commit_jobs(struct drain *d, const struct drain_taken *first)
{
	struct pending p[COMMIT_GROUP_MAX];
	unsigned n;
	int rc;

	HOLD(reclaim_deciding(d->reclaim));
	n = write_group(d, *first, p);
	rc = n > 0 ? kv_sync(d->kv) : 0;
	if (rc < 0) /* it is tried again as if it was not written */
		kv_condemn(d->kv);
	for (unsigned i = 0; i < n; i++) {
		if (rc < 0) {
			job_give_back(d, &p[i], rc);
		} else {
			job_publish(d, &p[i]);
			job_published(d, &p[i]);
		}
		pending_release(&p[i]);
	}
}
