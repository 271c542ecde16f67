/*
 * work_late.c - what is decided about a work when all its spans are done.
 *
 * By then another one may have taken a chunk over, or stored it and gone; and
 * what a chunk was deferred to is settled, or gave up. Whatever cannot be
 * shared after all is stored late. In the end the bytes are on the disk, and it
 * is known where each of them lies.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "store/base/scope.h"
#include "store/drain/drain_private.h"
#include "store/drain/inflight.h"
#include "store/drain/work.h"

/*
 * A file up to this size is not shared with its own former content: written
 * whole it stays native, in one image, however often it is changed.
 */
#define SELF_SHARE_BYTES_MIN (UINT64_C(64) << 20)

static void conclude_digest(struct drain *d, struct work *w)
{
	struct digest *digest;

	if (w->small) {
		chunk_hash(d->options.secret, w->small, (size_t)w->size_bytes,
			   w->digest);
		return;
	}
	digest = digest_new();
	CHECK(digest);
	for (uint32_t i = 0; i < w->chunk_count; i++) {
		const struct drain_chunk *c = &w->chunks[i];

		for (uint32_t n = 0; n < c->times; n++)
			digest_add(digest, c->hash, c->len);
	}
	digest_end(digest, w->digest);
}

static int sync_image(struct drain *d, struct work *w)
{
	/* An adopted image is the stage. */
	int fd = w->kind == WORK_OF_IMAGE ? w->stage_fd : w->image_fd;
	uint64_t label;
	int rc;

	work_yield(d, w);
	if (w->kind != WORK_OF_IMAGE && ftruncate(fd, (off_t)w->size_bytes) < 0)
		return -errno;
	conclude_digest(d, w);
	label = work_label(d, w, fd);
	/* An fdatasync() need not bring the label. */
	if (fsync(fd) < 0)
		return -errno;
	rc = image_sync_name(d->images, w->image->id);
	w->synced = rc == 0 ? label : 0;
	return rc;
}

int work_sync(struct drain *d, struct work *w)
{
	/* Where deferred ones lie is for other jobs to decide. */
	return w->image && !work_has(w, CHUNK_DEFERRED) ? sync_image(d, w) : 0;
}

int work_settle(struct drain *d, struct work *w)
{
	if (!w->image || (w->synced && !work_label_is_old(d, w)))
		return 0;
	return sync_image(d, w);
}

/* Store a chunk after all. Its bytes must be those that were hashed. */
static int store_late(struct drain *d, struct work *w, uint32_t i,
		      uint8_t *buffer)
{
	struct drain_chunk *c = &w->chunks[i];
	uint8_t hash[HASH_BYTES];
	const uint8_t *base;
	int rc;

	work_yield(d, w);
	rc = work_bytes(w, i, i + 1, buffer, &base);
	if (rc < 0)
		return rc == -ESTALE ? -EAGAIN : rc;
	if (!w->map) {
		chunk_hash(d->options.secret, base + c->offset, c->len, hash);
		if (memcmp(hash, c->hash, HASH_BYTES) != 0)
			return -EAGAIN;
	}
	w->synced = 0;
	c->kind = CHUNK_NEW;
	c->unmoved = false;
	drain_origin_put(c->origin);
	c->origin = NULL;
	if (c->stored || w->kind == WORK_OF_IMAGE) { /* it is there already */
		c->stored = false;
		return 0;
	}
	return work_write(d, w, i, i + 1, base);
}

int work_recheck(struct drain *d, struct work *w, uint8_t *buffer)
{
	for (uint32_t i = 0; i < w->chunk_count; i++) {
		struct drain_chunk *c = &w->chunks[i];
		struct work *owner;
		uint32_t owner_chunk;
		const uint8_t *base;
		int rc;

		if (c->kind != CHUNK_NEW || w->no_join)
			continue;
		if (work_is_disturbed(w))
			return -EAGAIN;
		switch (inflight_check(d->inflight, c->hash, w, i, &owner,
				       &owner_chunk)) {
		case INFLIGHT_MINE:
			break;
		case INFLIGHT_OTHER:
			c->kind = CHUNK_DEFERRED;
			c->stored = w->kind != WORK_OF_IMAGE;
			c->owner = owner;
			c->owner_chunk = owner_chunk;
			break;
		case INFLIGHT_NOBODY:
			rc = work_bytes(w, i, i + 1, buffer, &base);
			if (rc == 0)
				rc = work_look_up(d, w, i, i + 1, base);
			if (rc < 0)
				return rc == -ESTALE ? -EAGAIN : rc;
			c->stored = c->kind == CHUNK_SHARED &&
				    w->kind != WORK_OF_IMAGE;
			break;
		}
	}
	return 0;
}

/* The chunk is where its owner, or whom that one shares with, has put it. */
static void join(struct drain_chunk *c, const struct work *w,
		 const struct work *o, const struct drain_chunk *theirs,
		 const struct chunk_loc *l)
{
	struct drain_origin *origin = NULL;

	if (theirs->kind == CHUNK_JOINED)
		origin = theirs->origin; /* NULL: o has it twice */
	if (theirs->kind != CHUNK_SHARED && !origin && o != w)
		origin = o->origin;
	if (origin)
		atomic_fetch_add(&origin->refs, 1);
	c->kind = theirs->kind == CHUNK_SHARED ? CHUNK_SHARED : CHUNK_JOINED;
	c->image = l->image;
	c->image_offset = l->offset;
	c->origin = origin;
}

static int resolve(struct drain *d, struct work *w, uint32_t chunk,
		   bool owner_failed, uint8_t *buffer)
{
	struct drain_chunk *c = &w->chunks[chunk];
	const struct work *o = c->owner;
	const struct drain_chunk *theirs = &o->chunks[c->owner_chunk];
	SCOPED(compared_close) struct compared last = { .fd = -1 };
	struct chunk_loc l;
	struct extent at;
	const uint8_t *base;
	int rc;

	if (owner_failed || theirs->len != c->len ||
	    !work_place(o, theirs, &at))
		return store_late(d, w, chunk, buffer);
	l = (struct chunk_loc){ at.image, at.image_offset, c->len };
	if (d->options.verify) {
		work_yield(d, w);
		rc = work_bytes(w, chunk, chunk + 1, buffer, &base);
		if (rc < 0)
			return rc == -ESTALE ? -EAGAIN : rc;
		if (!(work_is_stable(o)
			      ? equal_to_stage(d, o->stage, base + c->offset,
					       c->len, theirs->offset)
			      : equal_to_image(d, &last, &l, base + c->offset)))
			return store_late(d, w, chunk, buffer);
	}
	join(c, w, o, theirs, &l);
	return 0;
}

int work_resolve(struct drain *d, struct work *w, uint32_t chunk,
		 bool owner_failed, uint8_t *buffer)
{
	struct drain_chunk *c = &w->chunks[chunk];
	int rc = resolve(d, w, chunk, owner_failed, buffer);
	struct work *owner = c->owner;

	/* A circle of the file with itself is broken without an end of it. */
	c->owner = NULL;
	if (owner == w)
		atomic_fetch_sub(&w->refs, 1);
	else
		work_put(d, owner);
	return rc;
}

/* The place of the chunk in this image, if it is committed there too. */
static bool place_in(struct drain *d, const struct work *w,
		     const struct drain_chunk *c, uint64_t image,
		     struct chunk_loc *ret)
{
	struct chunk_locs l;

	if (locs_load(d->kv, key_hash(c->hash, w->domain), &l) < 0)
		return false; /* what it shares is right as it is */
	for (size_t n = 0; n < l.count; n++)
		if (l.at[n].image == image && l.at[n].len == c->len) {
			*ret = l.at[n];
			return true;
		}
	return false;
}

static int share_from(struct drain *d, struct work *w, uint32_t i,
		      uint64_t image, uint8_t *buffer)
{
	SCOPED(compared_close) struct compared last = { .fd = -1 };
	struct drain_chunk *c = &w->chunks[i];
	const uint8_t *base;
	struct chunk_loc l;

	if (!place_in(d, w, c, image, &l))
		return 0;
	if (d->options.verify) {
		int rc;

		work_yield(d, w);
		rc = work_bytes(w, i, i + 1, buffer, &base);
		if (rc < 0)
			return rc == -ESTALE ? -EAGAIN : rc;
		if (!equal_to_image(d, &last, &l, base + c->offset))
			return 0;
	}
	drain_origin_put(TAKE(c->origin));
	c->kind = CHUNK_SHARED;
	c->image = l.image;
	c->image_offset = l.offset;
	return 0;
}

/* Does it lie in an image of others, and not as what the file had there? */
static bool is_borrowed(const struct work *w, const struct drain_chunk *c)
{
	return chunk_is_shared(c) && !c->unmoved &&
	       !(w->image && c->image == w->image->id);
}

int work_align(struct drain *d, struct work *w, uint8_t *buffer)
{
	const struct drain_chunk *first = NULL;

	for (uint32_t i = 0; d->options.copies > 1 && i < w->chunk_count; i++) {
		struct drain_chunk *c = &w->chunks[i];
		int rc;

		if (!is_borrowed(w, c))
			continue;
		first = first ? first : c;
		if (c->image == first->image)
			continue;
		if (work_is_disturbed(w))
			return -EAGAIN;
		/* Whose origin is known is settled: others wait for it. */
		if (first->origin &&
		    inflight_owned_by(d->inflight, c->hash, w, first->origin,
				      &c->owner, &c->owner_chunk)) {
			drain_origin_put(TAKE(c->origin));
			c->kind = CHUNK_DEFERRED;
			rc = work_resolve(d, w, i, false, buffer);
		} else {
			rc = share_from(d, w, i, first->image, buffer);
		}
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* Whole-file duplicates stay native: everything maps 1:1 onto one image. */
static bool is_identity(const struct work *w)
{
	uint64_t image = 0;

	for (uint32_t i = 0; i < w->chunk_count; i++) {
		struct extent e;

		if (!work_place(w, &w->chunks[i], &e))
			return false; /* is it a hole there as well? */
		if (i == 0)
			image = e.image;
		if (e.image != image || e.image_offset != e.offset)
			return false;
	}
	return true;
}

/* A file keeps its few duplicates, so as to stay native. */
static void count_left(struct drain *d, uint64_t bytes)
{
	HOLD(&d->lock);
	d->left_native++;
	d->left_native_bytes += bytes;
}

static int undo_sharing(struct drain *d, struct work *w, uint8_t *buffer,
			enum work_outcome *ret_outcome)
{
	uint64_t shared = 0, unmoved = 0;
	int rc;

	for (uint32_t i = 0; i < w->chunk_count; i++)
		if (chunk_is_shared(&w->chunks[i])) {
			shared += w->chunks[i].len;
			if (w->chunks[i].unmoved)
				unmoved += w->chunks[i].len;
		}
	if (shared == 0 || is_identity(w))
		return 0;
	if (w->size_bytes < SELF_SHARE_BYTES_MIN)
		shared -= unmoved;
	if (shared > 0 &&
	    shared >= w->size_bytes / 100 * d->options.dedup_min_saving_percent)
		return 0;
	for (uint32_t i = 0; i < w->chunk_count; i++) {
		if (!chunk_is_shared(&w->chunks[i]))
			continue;
		if (work_is_disturbed(w))
			return -EAGAIN;
		rc = store_late(d, w, i, buffer);
		if (rc < 0)
			return rc;
	}
	*ret_outcome = WORK_UNSHARED;
	count_left(d, shared);
	return 0;
}

int work_conclude(struct drain *d, struct work *w, uint8_t *buffer,
		  enum work_outcome *ret_outcome)
{
	const struct content *old = w->old ? &w->old->c : NULL;

	conclude_digest(d, w);
	*ret_outcome = WORK_CHANGED;
	if (old && old->size_bytes == w->size_bytes &&
	    memcmp(old->digest, w->digest, HASH_BYTES) == 0)
		*ret_outcome = WORK_UNCHANGED;
	else if (!w->small)
		return undo_sharing(d, w, buffer, ret_outcome);
	return 0;
}
