/*
 * commit_refs.c - the references of chunks (K records), and what follows from
 * them: the index by hash (H), images (I), ranges to be punched (P) and the
 * counters.
 *
 * Within one batch every chunk's changes are summed up first, so that its
 * record is read and written once.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/base/vec.h"
#include "store/drain/commit_private.h"
#include "store/drain/drain_private.h"

int changes_add(struct ref_changes *c, const struct ref_change *one)
{
	int rc = vec_grow(&c->at, c->count, &c->capacity, sizeof(*c->at));

	if (rc == 0)
		c->at[c->count++] = *one;
	return rc;
}

void changes_release(struct ref_changes *c)
{
	free(c->at);
}

static int change_compare(const void *pa, const void *pb)
{
	const struct ref_change *a = pa, *b = pb;

	if (a->image != b->image)
		return a->image < b->image ? -1 : 1;
	if (a->offset != b->offset)
		return a->offset < b->offset ? -1 : 1;
	/* The one that brings the chunk comes first: its hash counts. */
	return (int)b->fresh - (int)a->fresh;
}

static void changes_merge(struct ref_changes *c)
{
	size_t n = 0;

	if (c->count == 0)
		return;
	qsort(c->at, c->count, sizeof(*c->at), change_compare);
	for (size_t i = 1; i < c->count; i++) {
		if (c->at[i].image == c->at[n].image &&
		    c->at[i].offset == c->at[n].offset) {
			c->at[n].delta += c->at[i].delta;
			continue;
		}
		c->at[++n] = c->at[i];
	}
	c->count = n + 1;
}

struct referring {
	struct ref_change one; /* what all have in common */
	struct ref_changes *out;
};

static int add_change(void *arg, uint64_t offset, const struct chunk_rec *k)
{
	const struct referring *r = arg;
	struct ref_change one = r->one;

	if (!k)
		return -EIO;
	one.offset = offset;
	one.len = k->len;
	one.domain = k->domain;
	memcpy(one.hash, k->hash, HASH_BYTES);
	return changes_add(r->out, &one);
}

int changes_of_content(struct drain *d, const struct content *c, int32_t delta,
		       struct ref_changes *out)
{
	struct referring r = { .one.delta = delta, .out = out };
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < c->extent_count; i++) {
		r.one.image = c->extents[i].image;
		rc = extent_each_chunk(d->kv, &c->extents[i], add_change, &r);
	}
	return rc;
}

/* The chunk's first reference: its record, its hash, and its image's. */
static int chunk_create(struct drain *d, struct kv_batch *b,
			const struct ref_change *c, uint64_t *last_image)
{
	struct chunk_rec rec = { .len = c->len,
				 .refs = (uint32_t)c->delta,
				 .domain = c->domain };
	struct chunk_loc loc = { c->image, c->offset, c->len };
	struct key i = key_ino('I', c->image);
	int rc;

	memcpy(rec.hash, c->hash, HASH_BYTES);
	chunk_save(b, key_chunk(c->image, c->offset), &rec);
	loc_save(b, key_hash(c->hash, c->domain), &loc);
	meta_add(b, META_CHUNKS, 1);
	meta_add(b, META_PHYSICAL, c->len);
	meta_add(b, META_SHARED, (int64_t)(c->delta - 1) * c->len);
	if (*last_image == c->image)
		return 0;
	*last_image = c->image;
	rc = record_find(d->kv, i);
	if (rc == -ENOENT) {
		u64_save(b, i, c->image_size);
		meta_add(b, META_IMAGES, 1);
		rc = 0;
	}
	return rc;
}

/* The last reference is gone: the records go now, the bytes a little later. */
static int chunk_remove(struct drain *d, struct kv_batch *b,
			const struct ref_change *c, const struct chunk_rec *rec)
{
	struct key h = key_hash(rec->hash, rec->domain);
	SCOPED(scope_free) void *value = NULL;
	struct chunk_loc loc;
	size_t len;
	int rc;

	record_delete(b, key_chunk(c->image, c->offset));
	u64_save(b, key_punch(c->image, c->offset), rec->len);
	meta_add(b, META_CHUNKS, -1);
	meta_add(b, META_PHYSICAL, -(int64_t)rec->len);
	meta_add(b, META_SHARED, -(int64_t)(rec->refs - 1) * rec->len);
	rc = record_load(d->kv, h, &value, &len);
	if (rc == -ENOENT)
		return 0;
	if (rc < 0)
		return rc;
	if (loc_decode(value, len, &loc) == 0 && loc.image == c->image &&
	    loc.offset == c->offset)
		record_delete(b, h);
	return 0;
}

int changes_apply(struct drain *d, struct kv_batch *b,
		  struct ref_changes *changes)
{
	uint64_t last_image = 0;

	changes_merge(changes);
	for (size_t i = 0; i < changes->count; i++) {
		struct ref_change *c = &changes->at[i];
		struct key k = key_chunk(c->image, c->offset);
		struct chunk_rec rec;
		int rc;

		if (c->delta == 0 && !c->fresh)
			continue;
		rc = chunk_load(d->kv, k, &rec);
		if (rc == -ENOENT && c->fresh) {
			rc = c->delta > 0 ? chunk_create(d, b, c, &last_image)
					  : 0;
			if (rc < 0)
				return rc;
			continue;
		}
		if (rc == -ENOENT && c->delta > 0)
			return -ESTALE;
		if (rc == -ENOENT) { /* damage must not keep us from going on */
			log_error("image %llu: the chunk at %llu is not in the "
				  "index: run ckptctl fsck",
				  (unsigned long long)c->image,
				  (unsigned long long)c->offset);
			continue;
		}
		if (rc < 0)
			return rc;
		if (c->delta > 0 &&
		    (rec.len != c->len || rec.domain != c->domain ||
		     memcmp(rec.hash, c->hash, HASH_BYTES) != 0))
			return -ESTALE;
		if (c->delta < 0 && rec.refs < (uint32_t)-c->delta)
			return -EIO;
		if ((int64_t)rec.refs + c->delta == 0) {
			rc = chunk_remove(d, b, c, &rec);
			c->gone = true;
			if (rc < 0)
				return rc;
			continue;
		}
		meta_add(b, META_SHARED, (int64_t)c->delta * rec.len);
		rec.refs += (uint32_t)c->delta;
		chunk_save(b, k, &rec);
	}
	return 0;
}

void changes_reclaim(struct drain *d, const struct ref_changes *changes)
{
	for (size_t i = 0; i < changes->count; i++)
		if (changes->at[i].gone)
			reclaim_add(d->reclaim, changes->at[i].image,
				    changes->at[i].offset, changes->at[i].len);
}
