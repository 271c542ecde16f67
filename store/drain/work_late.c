/*
 * work_late.c - what is decided about a work when all its spans are done.
 *
 * Repeated chunks are compared; what is not worth to be shared is stored late.
 * Then the bytes are brought to the disk, and it is known where each of them
 * lies.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "store/base/scope.h"
#include "store/drain/drain_private.h"
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

int work_sync(struct drain *d, struct work *w)
{
	/* An adopted image is the stage. */
	int fd = w->kind == WORK_OF_IMAGE ? w->stage_fd : w->image_fd;

	if (!w->image)
		return 0;
	work_yield(d, w);
	if (w->kind != WORK_OF_IMAGE && ftruncate(fd, (off_t)w->size_bytes) < 0)
		return -errno;
	work_label(d, w, fd);
	/* An fdatasync() need not bring the label. */
	if (fsync(fd) < 0)
		return -errno;
	return image_sync_name(d->images, w->image->id);
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
	c->kind = CHUNK_NEW;
	c->unmoved = false;
	if (w->kind == WORK_OF_IMAGE) /* it is there already */
		return 0;
	return work_write(d, w, i, i + 1, base);
}

/* Is it, byte by byte? What is stored is what was hashed: see work.h. */
static int is_repeated(struct drain *d, struct work *w, uint32_t i,
		       struct compared *last, uint8_t *buffer)
{
	const struct drain_chunk *c = &w->chunks[i];
	const struct drain_chunk *same = &w->chunks[c->same];
	const uint8_t *base;
	struct extent at;
	struct chunk_loc l;
	int rc;

	if (same->len != c->len || !work_place(w, c, &at))
		return 0;
	if (!d->options.verify)
		return 1;
	work_yield(d, w);
	rc = work_bytes(w, i, i + 1, buffer, &base);
	if (rc < 0)
		return rc == -ESTALE ? -EAGAIN : rc;
	if (work_is_stable(w))
		return equal_to_stage(d, w->stage, base + c->offset, c->len,
				      same->offset);
	l = (struct chunk_loc){ at.image, at.image_offset, c->len };
	return equal_to_image(d, last, &l, base + c->offset);
}

int work_repeats(struct drain *d, struct work *w, uint8_t *buffer)
{
	SCOPED(compared_close) struct compared last = { .fd = -1 };

	for (uint32_t i = 0; i < w->chunk_count; i++) {
		int rc;

		if (w->chunks[i].kind != CHUNK_REPEATED)
			continue;
		if (work_is_disturbed(w))
			return -EAGAIN;
		rc = is_repeated(d, w, i, &last, buffer);
		if (rc == 0)
			rc = store_late(d, w, i, buffer);
		if (rc < 0)
			return rc;
	}
	return 0;
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
	c->image = l.image;
	c->image_offset = l.offset;
	return 0;
}

/* Does it lie in an image of others, and not as what the file had there? */
static bool is_borrowed(const struct drain_chunk *c)
{
	return c->kind == CHUNK_SHARED && !c->unmoved;
}

int work_align(struct drain *d, struct work *w, uint8_t *buffer)
{
	const struct drain_chunk *first = NULL;

	for (uint32_t i = 0; d->options.copies > 1 && i < w->chunk_count; i++) {
		struct drain_chunk *c = &w->chunks[i];
		int rc;

		if (!is_borrowed(c))
			continue;
		first = first ? first : c;
		if (c->image == first->image)
			continue;
		if (work_is_disturbed(w))
			return -EAGAIN;
		rc = share_from(d, w, i, first->image, buffer);
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

/*
 * A file keeps its few duplicates, so as to stay native: these, and what others
 * store as well.
 */
static void count_left(struct drain *d, const struct work *w, uint64_t bytes)
{
	HOLD(&d->lock);
	bytes += w->lost_bytes;
	if (bytes == 0)
		return;
	d->left_native++;
	d->left_native_bytes += bytes;
}

static int undo_sharing(struct drain *d, struct work *w, uint8_t *buffer)
{
	uint64_t shared = 0, unmoved = 0;
	int rc;

	for (uint32_t i = 0; i < w->chunk_count; i++)
		if (chunk_is_shared(&w->chunks[i])) {
			shared += w->chunks[i].len;
			if (w->chunks[i].unmoved)
				unmoved += w->chunks[i].len;
		}
	if (shared == 0)
		count_left(d, w, 0);
	if (shared == 0 || is_identity(w))
		return 0;
	if (w->size_bytes < SELF_SHARE_BYTES_MIN)
		shared -= unmoved;
	if (work_pays(d, w, shared))
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
	count_left(d, w, shared);
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
		return undo_sharing(d, w, buffer);
	return 0;
}
