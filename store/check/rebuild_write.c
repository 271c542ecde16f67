/*
 * rebuild_write.c - what is written anew from the files' contents, so that it
 * agrees with them: the records that say where chunks lie, and the settings,
 * whose counters are those of a check of the result.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "store/base/scope.h"
#include "store/check/check.h"
#include "store/check/rebuild_work.h"

#define BATCH_RECORDS 2000
/* A larger one is no number of ours. */
#define NUMBER_MAX (UINT64_C(1) << 62)

struct writing {
	struct rebuild *r;
	struct kv_batch *b;
	unsigned count;
};

static int write_some(struct writing *w, bool all)
{
	int rc;

	if (w->count == 0 || (!all && ++w->count < BATCH_RECORDS))
		return 0;
	rc = kv_write(w->r->kv, w->b);
	kv_batch_clear(w->b);
	w->count = 1;
	return rc;
}

static int delete_one(void *arg, struct kv_slice key, struct kv_slice value)
{
	struct writing *w = arg;

	(void)value;
	kv_delete(w->b, key.data, key.len);
	return write_some(w, false);
}

static int put_chunk(struct writing *w, const struct rebuild_chunk *c)
{
	struct chunk_rec rec = { .len = c->len,
				 .refs = c->refs,
				 .domain = c->domain };
	int fd = rebuild_image(w->r, c->image);
	struct stat sb = { 0 };

	if (fd >= 0)
		(void)fstat(fd, &sb);
	memcpy(rec.hash, c->hash, sizeof(rec.hash));
	chunk_save(w->b, key_chunk(c->image, c->offset), &rec);
	u64_save(w->b, key_ino('I', c->image), (uint64_t)sb.st_size);
	return write_some(w, false);
}

/* Neighbours follow each other, so that each image is opened once. */
static int chunk_order(const void *pa, const void *pb)
{
	const struct rebuild_chunk *a = pa, *b = pb;

	if (a->image != b->image)
		return a->image < b->image ? -1 : 1;
	return a->offset < b->offset ? -1 : a->offset > b->offset;
}

/* Copies of one chunk follow each other, the newest last. */
static int hash_order(const void *pa, const void *pb)
{
	const struct rebuild_chunk *a = pa, *b = pb;
	int order = memcmp(a->hash, b->hash, sizeof(a->hash));

	if (order != 0)
		return order;
	if (a->domain != b->domain)
		return a->domain < b->domain ? -1 : 1;
	return chunk_order(pa, pb);
}

static bool is_same_chunk(const struct rebuild_chunk *a,
			  const struct rebuild_chunk *b)
{
	return a->domain == b->domain &&
	       memcmp(a->hash, b->hash, sizeof(a->hash)) == 0;
}

/* The index: it leads to all copies of each chunk. */
static int put_hashes(struct writing *w, struct rebuild_chunk *at, size_t count)
{
	struct chunk_locs l = { .count = 0 };
	int rc = 0;

	if (count > 0)
		qsort(at, count, sizeof(*at), hash_order);
	for (size_t i = 0; rc == 0 && i < count; i++) {
		const struct chunk_loc one = { at[i].image, at[i].offset,
					       at[i].len };

		if (at[i].refs > 0)
			locs_add(&l, &one);
		if (i + 1 < count && is_same_chunk(&at[i], &at[i + 1]))
			continue;
		if (l.count > 0) {
			locs_save(w->b, key_hash(at[i].hash, at[i].domain), &l);
			rc = write_some(w, false);
		}
		l.count = 0;
	}
	return rc;
}

int rebuild_write_chunks(struct rebuild *r)
{
	static const char kinds[] = "KHIP";
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	struct writing w = { .r = r, .b = b, .count = 1 };
	int rc = 0;

	for (const char *k = kinds; rc == 0 && *k; k++)
		rc = records_each(r->kv, key_kind(*k), delete_one, &w);
	if (r->chunks.capacity > 0) /* it is not searched any more */
		qsort(r->chunks.at, r->chunks.capacity, sizeof(*r->chunks.at),
		      chunk_order);
	for (size_t i = 0; rc == 0 && i < r->chunks.capacity; i++)
		if (r->chunks.at[i].refs > 0)
			rc = put_chunk(&w, &r->chunks.at[i]);
	if (rc == 0)
		rc = put_hashes(&w, r->chunks.at, r->chunks.capacity);
	return rc == 0 ? write_some(&w, true) : rc;
}

static int note_image(struct rebuild *r, uint64_t id)
{
	if (id >= r->next_image && id < NUMBER_MAX)
		r->next_image = id + 1;
	return 0;
}

static void note_number(struct rebuild *r, uint64_t ino)
{
	if (ino >= r->next_ino)
		r->next_ino = ino + 1;
}

static int note_inode(void *arg, struct kv_slice key, struct kv_slice value)
{
	(void)value;
	if (key.len == 9)
		note_number(arg, get_be64((const uint8_t *)key.data + 1));
	return 0;
}

static int read_setting(struct rebuild *r, const char *name, uint64_t *ret)
{
	int rc = u64_load(r->kv, key_meta(name), ret);

	return rc == -ENOENT ? 0 : rc;
}

int rebuild_next_inode(struct rebuild *r)
{
	uint64_t recorded = 0;
	int rc = read_setting(r, META_NEXT_INO, &recorded);

	if (recorded > r->next_ino)
		r->next_ino = recorded;
	for (size_t i = 0; i < r->label_count; i++)
		if (r->labels[i].ino < NUMBER_MAX)
			note_number(r, r->labels[i].ino);
	for (size_t i = 0; i < r->staged.count; i++)
		note_number(r, r->staged.slots[i].ino);
	return rc == 0 ? records_each(r->kv, key_kind('A'), note_inode, r) : rc;
}

/*
 * All versions that there will be have greater numbers than those that there
 * are, also in labels that are of no use; and so have their places, of which
 * the last mount had no more than one mount has.
 */
static int put_next_place(struct rebuild *r, struct kv_batch *b,
			  uint64_t greatest)
{
	uint64_t next = PLACES_OF_A_MOUNT;
	int rc = read_setting(r, META_NEXT_PLACE, &next);

	for (size_t i = 0; i < r->label_count; i++)
		if (r->labels[i].generation > greatest &&
		    r->labels[i].generation <= GENERATION_MAX)
			greatest = r->labels[i].generation;
	if (rc != 0 && rc != -EIO)
		return rc;
	if (rc == 0 && next <= PLACE_MAX && next > greatest)
		return 0;
	/* The last daemon's own, so that what it left staged is believed. */
	next = r->staged.next_place;
	if (next <= greatest || next > PLACE_MAX)
		next = greatest + PLACES_OF_A_MOUNT;
	u64_save(b, key_meta(META_NEXT_PLACE), next);
	return 0;
}

/* Counters as the check counts them. */
int rebuild_write_settings(struct rebuild *r)
{
	const struct check_options options = { .scrub = false };
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	struct check_result c;
	int rc = rebuild_next_inode(r);

	if (rc == 0)
		rc = read_setting(r, META_NEXT_IMAGE, &r->next_image);
	if (rc == 0)
		rc = rebuild_each_image(r, note_image);
	if (rc == 0)
		rc = check_store(r->kv, r->images_dirfd, &options, &c);
	if (rc < 0)
		return rc;
	u64_save(b, key_meta(META_NEXT_INO), r->next_ino);
	u64_save(b, key_meta(META_NEXT_IMAGE), r->next_image);
	u64_save(b, key_meta(META_UNFINISHED), r->next_image);
	u64_save(b, key_meta(META_FILES), c.files);
	u64_save(b, key_meta(META_LOGICAL), c.logical_bytes);
	u64_save(b, key_meta(META_PHYSICAL), c.physical_bytes);
	u64_save(b, key_meta(META_CHUNKS), c.chunks);
	u64_save(b, key_meta(META_SHARED), c.shared_bytes);
	u64_save(b, key_meta(META_IMAGES), c.images);
	record_mark(b, key_meta(META_SHARED_REBUILT));
	r->result->files = c.files;
	rc = put_next_place(r, b, c.greatest_number);
	return rc == 0 ? kv_write(r->kv, b) : rc;
}
