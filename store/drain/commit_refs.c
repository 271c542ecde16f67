/*
 * commit_refs.c - the references of chunks (K records), and what follows from
 * them: the index by hash (H), images (I), ranges to be punched (P) and the
 * counters.
 *
 * Within one batch every chunk's changes are summed up first, and so are those
 * of every hash, so that each record is read and written once.
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

/* The chunk's first reference: its record, and its image's. */
static int chunk_create(struct drain *d, struct kv_batch *b,
			struct ref_change *c, uint64_t *last_image)
{
	struct chunk_rec rec = { .len = c->len,
				 .refs = (uint32_t)c->delta,
				 .domain = c->domain };
	struct key i = key_ino('I', c->image);
	int rc;

	memcpy(rec.hash, c->hash, HASH_BYTES);
	chunk_save(b, key_chunk(c->image, c->offset), &rec);
	meta_add(b, META_CHUNKS, 1);
	meta_add(b, META_PHYSICAL, c->len);
	meta_add(b, META_SHARED, (int64_t)(c->delta - 1) * c->len);
	c->made = true;
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

/* The last reference is gone: its record goes now, the bytes a little later. */
static void chunk_remove(struct kv_batch *b, struct ref_change *c,
			 const struct chunk_rec *rec)
{
	record_delete(b, key_chunk(c->image, c->offset));
	u64_save(b, key_punch(c->image, c->offset), rec->len);
	meta_add(b, META_CHUNKS, -1);
	meta_add(b, META_PHYSICAL, -(int64_t)rec->len);
	meta_add(b, META_SHARED, -(int64_t)(rec->refs - 1) * rec->len);
	memcpy(c->hash, rec->hash, HASH_BYTES);
	c->domain = rec->domain;
	c->gone = true;
}

/* --- the index by hash --- */

static int hash_compare(const void *pa, const void *pb)
{
	const struct ref_change *a = *(const struct ref_change *const *)pa;
	const struct ref_change *b = *(const struct ref_change *const *)pb;
	int order = memcmp(a->hash, b->hash, HASH_BYTES);

	if (order != 0 || a->domain == b->domain)
		return order;
	return a->domain < b->domain ? -1 : 1;
}

/* The copies of one chunk, of which `count` are made or gone. */
static int index_one(struct drain *d, struct kv_batch *b,
		     struct ref_change *const *at, size_t count)
{
	struct key h = key_hash(at[0]->hash, at[0]->domain);
	SCOPED(scope_free) void *value = NULL;
	struct chunk_locs l = { .count = 0 };
	size_t len;
	int rc = record_load(d->kv, h, &value, &len);

	if (rc < 0 && rc != -ENOENT)
		return rc;
	if (rc == 0 && locs_decode(value, len, &l) < 0)
		l.count = 0; /* damage: what is known now is put there */
	for (size_t i = 0; i < count; i++)
		locs_remove(&l, at[i]->image, at[i]->offset);
	for (size_t i = 0; i < count; i++)
		if (at[i]->made)
			locs_add(&l, &(struct chunk_loc){ at[i]->image,
							  at[i]->offset,
							  at[i]->len });
	if (l.count > 0)
		locs_save(b, h, &l);
	else if (rc == 0)
		record_delete(b, h);
	return 0;
}

/* What was made and what is gone, each hash once. */
static int index_apply(struct drain *d, struct kv_batch *b,
		       struct ref_changes *changes)
{
	SCOPED(scope_free) struct ref_change **at = NULL;
	size_t n = 0, end;
	int rc = 0;

	at = calloc(changes->count + 1, sizeof(struct ref_change *));
	if (!at)
		return -ENOMEM;
	for (size_t i = 0; i < changes->count; i++)
		if (changes->at[i].made || changes->at[i].gone)
			at[n++] = &changes->at[i];
	if (n > 0)
		qsort(at, n, sizeof(*at), hash_compare);
	for (size_t i = 0; rc == 0 && i < n; i = end) {
		end = i + 1;
		while (end < n && hash_compare(&at[i], &at[end]) == 0)
			end++;
		rc = index_one(d, b, &at[i], end - i);
	}
	return rc;
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
			chunk_remove(b, c, &rec);
			continue;
		}
		meta_add(b, META_SHARED, (int64_t)c->delta * rec.len);
		rec.refs += (uint32_t)c->delta;
		chunk_save(b, k, &rec);
	}
	return index_apply(d, b, changes);
}

struct gone {
	const struct ref_changes *of;
	size_t at;
};

static bool next_gone(void *arg, struct reclaim_range *ret)
{
	struct gone *g = arg;

	while (g->at < g->of->count) {
		const struct ref_change *c = &g->of->at[g->at++];

		if (!c->gone)
			continue;
		*ret = (struct reclaim_range){ c->image, c->offset, c->len };
		return true;
	}
	return false;
}

void changes_reclaim(struct drain *d, const struct ref_changes *changes)
{
	struct gone g = { .of = changes };

	reclaim_add_each(d->reclaim, next_gone, &g);
}
