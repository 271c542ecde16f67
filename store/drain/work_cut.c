/*
 * work_cut.c - a work's chunks, cut while it runs.
 *
 * Spans are handed to the workers one after the other, and each is cut when it
 * is asked for: what is cut by content has then just been read, and is hashed
 * while it is near. One worker cuts at a time (work.cutting); the others hash
 * and write meanwhile. A chunk is not changed by the cutter any more when it
 * has been handed out, and later ones go behind it into room that was there
 * from the beginning.
 *
 * A hole is neither read nor hashed, and its chunks stand in one place, so a
 * file costs what its data costs. Chunks of a hole and chunks of zeros are the
 * same in the digest: it is one of bytes, not of what is allocated.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/db/records.h"
#include "store/drain/drain_private.h"
#include "store/drain/work.h"

#define BLOCK 4096u
/* Of a file that is cut by content so many chunks at most are asked for. */
#define PROBES_MAX 16
/* How much of a hole is cut at once: 1 TiB takes milliseconds. */
#define SPAN_HOLE_BYTES_MAX (UINT64_C(1) << 40)

/* --- what the cutter reads --- */

/* The first offset >= off that is not in a hole; off only grows. */
static uint64_t data_at(void *self, uint64_t off)
{
	struct work *w = self;

	if (w->hole_at <= off) {
		off_t at = lseek(w->stage_fd, (off_t)off, SEEK_DATA);

		if (at < 0) { /* no more data, or no such call */
			w->data_at = errno == ENXIO ? UINT64_MAX : 0;
			w->hole_at = UINT64_MAX;
		} else {
			w->data_at = (uint64_t)at;
			at = lseek(w->stage_fd, at, SEEK_HOLE);
			w->hole_at = at < 0 ? UINT64_MAX : (uint64_t)at;
		}
	}
	return off > w->data_at ? off : w->data_at;
}

static int read_stage(void *self, void *buf, size_t len, uint64_t off)
{
	const struct work *w = self;

	return io_read_full(w->stage_fd, buf, len, off);
}

/*
 * All that a span can have is read at once into the worker's buffer, but for
 * what lies behind the next hole.
 */
static int fill_span(struct work *w, struct span *s, uint64_t off, size_t len)
{
	uint64_t from = s->data_from < off ? s->data_from : off, origin, to;
	int rc;

	to = from + DRAIN_SPAN_BYTES + CHUNK_BYTES_MAX;
	to = to < w->hole_at ? to : w->hole_at;
	to = to > off + len ? to : off + len;
	to = to < w->size_bytes ? to : w->size_bytes;
	origin = from & ~(uint64_t)(BLOCK - 1);
	CHECK(to - origin <= DRAIN_BUFFER_BYTES);
	rc = read_stage(w, s->buffer + (from - origin), (size_t)(to - from),
			from);
	if (rc < 0)
		return rc;
	s->data_from = from;
	s->seen_to = to;
	s->base = (const uint8_t *)((uintptr_t)s->buffer - origin);
	return 0;
}

static int peek(void *self, uint64_t off, size_t len, const uint8_t **ret)
{
	struct work *w = self;
	struct span *s = w->asking;

	if (w->map) {
		*ret = w->map + off;
		return 0;
	}
	if (!s->base) {
		int rc = fill_span(w, s, off, len);

		if (rc < 0)
			return rc;
	}
	CHECK(off + len <= s->seen_to);
	*ret = s->base + off;
	return 0;
}

/* --- by which rule --- */

/* Some of the chunks of CHUNK_BYTES_MAX that `bytes` at `at` consist of. */
static int hash_probes(struct drain *d, struct work *w, uint64_t at,
		       uint64_t bytes, uint8_t *buffer,
		       struct key key[PROBES_MAX], size_t *ret_count)
{
	uint64_t whole = bytes / CHUNK_BYTES_MAX;
	uint64_t probes = whole / 4 + 1;

	*ret_count = 0;
	if (probes > PROBES_MAX)
		probes = PROBES_MAX;
	for (uint64_t i = 0; i < probes && i < whole; i++) {
		uint64_t off = at + whole * i / probes * CHUNK_BYTES_MAX;
		uint8_t hash[HASH_BYTES];
		off_t data = lseek(w->stage_fd, (off_t)off, SEEK_DATA);
		int rc;

		if (data < 0 ? errno == ENXIO
			     : (uint64_t)data >= off + CHUNK_BYTES_MAX)
			continue; /* a hole */
		rc = read_stage(w, buffer, CHUNK_BYTES_MAX, off);
		if (rc < 0)
			return rc;
		if (bytes_are_zero(buffer, CHUNK_BYTES_MAX))
			continue;
		chunk_hash(d->options.secret, buffer, CHUNK_BYTES_MAX, hash);
		key[(*ret_count)++] = key_hash(hash, w->domain);
	}
	return 0;
}

/*
 * Does the store have chunks of it that were cut by their places? Then it was
 * written before there was another rule, or as a tensor of a format that has
 * that rule, and shares more if it is cut so as well. 1, 0, or an error.
 */
static int is_known_fixed(struct drain *d, struct work *w, uint64_t at,
			  uint64_t bytes, uint8_t *buffer)
{
	struct key key[PROBES_MAX];
	struct kv_slice keys[PROBES_MAX];
	void *values[PROBES_MAX];
	size_t lens[PROBES_MAX], n;
	int rc = hash_probes(d, w, at, bytes, buffer, key, &n);
	bool known = false;

	if (rc < 0 || n == 0)
		return rc;
	for (size_t i = 0; i < n; i++)
		keys[i] = (struct kv_slice){ key[i].data, key[i].len };
	rc = kv_multi_get(d->kv, n, keys, values, lens);
	if (rc < 0)
		return rc;
	for (size_t i = 0; i < n; i++) {
		struct chunk_locs l;

		known = known ||
			(values[i] &&
			 locs_decode(values[i], lens[i], &l) == 0 &&
			 l.at[0].len == CHUNK_BYTES_MAX);
		free(values[i]);
	}
	return known;
}

static int open_cutter(struct drain *d, struct work *w, uint8_t *buffer)
{
	const struct cut_source source = { .read = read_stage,
					   .self = w,
					   .size_bytes = w->size_bytes };
	const struct cut_bytes seen = { peek, data_at, w };
	uint64_t at, bytes;
	int rc = cutter_open(&source, &seen, CUT_BY_CONTENT, &w->cutter);

	if (rc < 0 || !cutter_content(w->cutter, &at, &bytes))
		return rc;
	rc = is_known_fixed(d, w, at, bytes, buffer);
	w->by_content = rc == 0;
	if (rc <= 0)
		return rc;
	cutter_close(w->cutter);
	w->cutter = NULL;
	return cutter_open(&source, NULL, CUT_FIXED, &w->cutter);
}

int work_begin_cut(struct drain *d, struct work *w, uint8_t *buffer)
{
	int rc = open_cutter(d, w, buffer);
	uint64_t count;

	if (rc < 0)
		return rc;
	count = cutter_count_max(w->cutter);
	if (count > UINT32_MAX - 1)
		return -EFBIG;
	/* What is not used of it is never touched. */
	w->chunks = calloc((size_t)count, sizeof(*w->chunks));
	if (!w->chunks)
		return -ENOMEM;
	w->chunk_room = (uint32_t)count;
	atomic_store(&w->spans_left, 1);
	return 0;
}

/* --- spans --- */

/* Chunks of a hole that are equally long stand in one place. */
static void add_hole(struct work *w, const struct span *s)
{
	struct drain_chunk *c = &w->chunks[w->chunk_count];
	struct drain_chunk *last = c - 1;

	w->hole_bytes += c->len;
	if (w->chunk_count > s->first && last->kind == CHUNK_ZERO &&
	    last->len == c->len)
		last->times++;
	else
		w->chunk_count++;
}

/* One more chunk. 1; 0: it was the last one; or an error. */
static int cut_chunk(struct work *w)
{
	struct drain_chunk *c = &w->chunks[w->chunk_count];
	struct span *s = w->asking;
	int rc;

	CHECK(w->chunk_count < w->chunk_room);
	c->offset = w->cut_bytes;
	c->times = 1;
	rc = cutter_next(w->cutter, &c->len);
	CHECK(rc != 0);
	if (rc < 0)
		return rc;
	w->cut_bytes += c->len;
	/* What lies wholly in a hole need not be read at all. */
	if (w->cut_bytes <= data_at(w, c->offset)) {
		c->kind = CHUNK_ZERO;
		add_hole(w, s);
	} else {
		c->kind = CHUNK_NEW;
		w->chunk_count++;
		if (c->offset < s->data_from)
			s->data_from = c->offset;
	}
	return w->cut_bytes < w->size_bytes;
}

/* Has the span room for another chunk? */
static bool span_goes_on(const struct work *w, const struct span *s)
{
	if (s->first == w->chunk_count)
		return true;
	if (s->data_from == UINT64_MAX) /* a hole, so far */
		return w->cut_bytes - w->chunks[s->first].offset <
		       SPAN_HOLE_BYTES_MAX;
	if (s->base && s->seen_to < w->size_bytes &&
	    w->cut_bytes + CHUNK_BYTES_MAX > s->seen_to)
		return false;
	return w->cut_bytes - s->data_from < DRAIN_SPAN_BYTES;
}

bool work_next_span(struct work *w, uint8_t *buffer, struct span *ret)
{
	int rc = 1;

	HOLD(&w->cutting);
	if (atomic_load(&w->all_cut))
		return false;
	*ret = (struct span){ .first = w->chunk_count,
			      .data_from = UINT64_MAX,
			      .buffer = buffer };
	w->asking = ret;
	if (atomic_load(&w->stop) < 0)
		rc = 0; /* nobody needs the rest */
	while (rc > 0 && span_goes_on(w, ret))
		rc = cut_chunk(w);
	ret->end = w->chunk_count;
	if (rc < 0)
		work_fail(w, rc == -ESTALE ? -EAGAIN : rc);
	/* The last one has the count that the work began with. */
	if (rc > 0)
		atomic_fetch_add(&w->spans_left, 1);
	else
		atomic_store(&w->all_cut, true);
	return true;
}
