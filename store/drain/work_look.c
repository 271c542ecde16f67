/*
 * work_look.c - which of a work's chunks are there already.
 *
 * What the index finds by its hash is compared byte by byte before it is
 * shared (verify=off trusts the hash), but for what the file itself has at the
 * same place. While there are fewer copies of a chunk than are to be kept, who
 * comes with one more file stores one more; a file that has one stores none.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/drain/drain_private.h"
#include "store/drain/inflight.h"
#include "store/drain/work.h"

#define COMPARE_BYTES (256u << 10)

/* Where the file's committed content has the file's byte `offset`. */
static bool is_unmoved(const struct work *w, const struct drain_chunk *c,
		       const struct chunk_loc *l)
{
	size_t i = w->old ? extent_find(&w->old->c, c->offset) : 0;
	const struct extent *e;

	if (!w->old || i == w->old->c.extent_count)
		return false;
	e = &w->old->c.extents[i];
	return e->offset <= c->offset && e->image == l->image &&
	       e->image_offset + (c->offset - e->offset) == l->offset &&
	       c->offset + c->len <= e->offset + e->len;
}

/* Compare with bytes that only a descriptor gives, piece by piece. */
static bool equal_to_fd(int fd, const uint8_t *bytes, size_t len, uint64_t off)
{
	SCOPED(scope_free) uint8_t *buf = malloc(COMPARE_BYTES);
	size_t done = 0;

	if (!buf)
		return false;
	while (done < len) {
		size_t n =
			len - done < COMPARE_BYTES ? len - done : COMPARE_BYTES;

		if (io_read_full(fd, buf, n, off + done) < 0 ||
		    memcmp(buf, bytes + done, n) != 0)
			return false;
		done += n;
	}
	return true;
}

void compared_close(struct compared *last)
{
	scope_close(&last->fd);
}

/* The bytes of an image, from memory if they are there; or -errno. */
static int open_to_compare(struct drain *d, uint64_t id)
{
	struct stage *clean;
	struct image *i;
	int fd;

	fd = image_get(d->images, id, &i);
	if (fd < 0)
		return fd;
	clean = stage_of_image(d->images, i);
	/* Read, not mapped: a writer may cut it short at any time. */
	fd = clean ? stage_open(d->stages, clean, O_RDONLY)
		   : image_open_fd(d->images, i, O_RDONLY);
	stage_put(d->stages, clean);
	image_put(d->images, i);
	return fd;
}

bool equal_to_image(struct drain *d, struct compared *last,
		    const struct chunk_loc *l, const uint8_t *bytes)
{
	if (last->image != l->image) {
		compared_close(last);
		last->fd = open_to_compare(d, l->image);
		last->image = last->fd < 0 ? 0 : l->image;
	}
	return last->fd >= 0 && equal_to_fd(last->fd, bytes, l->len, l->offset);
}

bool equal_to_stage(struct drain *d, const struct stage *s,
		    const uint8_t *bytes, size_t len, uint64_t off)
{
	SCOPED(scope_close) int fd = stage_open(d->stages, s, O_RDONLY);

	return fd >= 0 && equal_to_fd(fd, bytes, len, off);
}

static const struct chunk_loc *find_unmoved(const struct work *w,
					    const struct drain_chunk *c,
					    const struct chunk_locs *l)
{
	for (size_t i = 0; i < l->count; i++)
		if (is_unmoved(w, c, &l->at[i]))
			return &l->at[i];
	return NULL;
}

/*
 * A copy that has these bytes. A work begins with the same one of each chunk,
 * so that it maps onto one file as a whole; others begin with others.
 */
static const struct chunk_loc *find_equal(struct drain *d, const struct work *w,
					  const struct chunk_locs *l,
					  const uint8_t *bytes,
					  struct compared *last)
{
	size_t first = (size_t)(w->turn % d->options.copies);

	for (size_t i = 0; i < l->count; i++) {
		const struct chunk_loc *at = &l->at[(first + i) % l->count];

		if (!d->options.verify)
			return at;
		work_yield(d, w);
		if (equal_to_image(d, last, at, bytes))
			return at;
	}
	return NULL;
}

/* Is one in the file's own content, if at another offset? */
static bool has_own(const struct work *w, const struct chunk_locs *l)
{
	const struct content *old = w->old ? &w->old->c : NULL;

	for (size_t e = 0; old && e < old->extent_count; e++)
		for (size_t i = 0; i < l->count; i++)
			if (l->at[i].image == old->extents[e].image)
				return true;
	return false;
}

/* What the index says of one new chunk. */
static void look_up_one(struct drain *d, struct work *w, uint32_t index,
			const void *value, size_t len, const uint8_t *bytes,
			struct compared *last)
{
	struct drain_chunk *c = &w->chunks[index];
	const struct chunk_loc *from;
	struct chunk_locs l;

	c->committed = 0;
	if (!value || locs_decode(value, len, &l) < 0 || l.at[0].len != c->len)
		return;
	c->committed = (uint8_t)l.count;
	from = find_unmoved(w, c, &l);
	c->unmoved = from != NULL;
	if (!from && (l.count >= d->options.copies || has_own(w, &l)))
		from = find_equal(d, w, &l, bytes, last);
	if (!from)
		return;
	c->kind = CHUNK_SHARED;
	c->image = from->image;
	c->image_offset = from->offset;
	inflight_drop(d->inflight, c->hash, w, index);
}

int work_look_up(struct drain *d, struct work *w, uint32_t first, uint32_t end,
		 const uint8_t *base)
{
	struct kv_slice keys[KV_MULTI_MAX];
	struct key key[KV_MULTI_MAX];
	void *values[KV_MULTI_MAX];
	size_t lens[KV_MULTI_MAX];
	uint32_t index[KV_MULTI_MAX];
	SCOPED(compared_close) struct compared last = { .fd = -1 };

	while (first < end) {
		size_t n = 0;
		int rc;

		for (; first < end && n < KV_MULTI_MAX; first++) {
			if (w->chunks[first].kind != CHUNK_NEW)
				continue;
			key[n] = key_hash(w->chunks[first].hash, w->domain);
			keys[n] = (struct kv_slice){ key[n].data, key[n].len };
			index[n++] = first;
		}
		if (n == 0)
			return 0;
		rc = kv_multi_get(d->kv, n, keys, values, lens);
		if (rc < 0)
			return rc;
		for (size_t i = 0; i < n; i++) {
			const struct drain_chunk *c = &w->chunks[index[i]];

			look_up_one(d, w, index[i], values[i], lens[i],
				    base + c->offset, &last);
			free(values[i]);
		}
	}
	return 0;
}
