/*
 * walk.c - pieces become chunks as they end: a long piece by itself, a run of
 * short ones together. Headers are read through one window. See walk.h.
 */
#include "store/formats/walk.h"

#include "store/base/check.h"
#include "store/base/vec.h"

_Static_assert(CHUNK_BYTES_MIN < CHUNK_BYTES_MAX, "a run fits in a chunk");

static int walk_add(struct walk *w, uint64_t bytes)
{
	int rc = vec_grow(&w->pieces, w->piece_count, &w->piece_capacity,
			  sizeof(*w->pieces));

	if (rc < 0)
		return rc;
	w->pieces[w->piece_count++] =
		(struct cut_piece){ .at = w->covered_bytes, .bytes = bytes };
	w->covered_bytes += bytes;
	w->chunk_count += (bytes - 1) / CHUNK_BYTES_MAX + 1;
	return 0;
}

/* Close the run of short pieces: it becomes a chunk. */
static int walk_flush_run(struct walk *w)
{
	int rc = w->run_bytes > 0 ? walk_add(w, w->run_bytes) : 0;

	if (rc == 0)
		w->run_bytes = 0;
	return rc;
}

static int walk_long_piece(struct walk *w, uint64_t bytes)
{
	int rc = walk_flush_run(w);

	return rc < 0 ? rc : walk_add(w, bytes);
}

/* The piece that is open ends at off, and the next one starts there. */
static int walk_end_piece(struct walk *w, uint64_t off)
{
	uint64_t bytes = off - w->piece_at;
	int rc = 0;

	if (bytes >= CHUNK_BYTES_MIN)
		rc = walk_long_piece(w, bytes);
	else if (w->run_bytes + bytes > CHUNK_BYTES_MAX)
		rc = walk_flush_run(w);
	if (rc < 0)
		return rc;
	if (bytes < CHUNK_BYTES_MIN)
		w->run_bytes += (uint32_t)bytes;
	w->piece_at = off;
	return 0;
}

int walk_mark(struct walk *w, uint64_t off)
{
	if (off <= w->piece_at || off >= walk_size(w))
		return 0;
	if (w->chunk_count >= CUT_CHUNKS_MAX)
		return 0; /* the open piece goes on to the end of the file */
	return walk_end_piece(w, off);
}

int walk_end(struct walk *w)
{
	int rc = 0;

	if (w->piece_at < walk_size(w))
		rc = walk_end_piece(w, walk_size(w));
	return rc < 0 ? rc : walk_flush_run(w);
}

static bool walk_has(const struct walk *w, uint64_t off, size_t len)
{
	return off >= w->window_at && len <= w->window_bytes &&
	       off - w->window_at <= w->window_bytes - len;
}

int walk_peek(struct walk *w, uint64_t off, size_t need, uint64_t lo,
	      uint64_t hi, const uint8_t **ret)
{
	int rc;

	CHECK(need <= WALK_WINDOW_BYTES);
	CHECK(lo <= off);
	CHECK(need <= hi && off <= hi - need);
	CHECK(hi <= walk_size(w));

	if (!walk_has(w, off, need)) {
		if (off + need - lo > WALK_WINDOW_BYTES)
			lo = off + need - WALK_WINDOW_BYTES;
		if (hi - lo > WALK_WINDOW_BYTES)
			hi = lo + WALK_WINDOW_BYTES;
		w->window_bytes = 0; /* what a failed read left is no window */
		rc = w->source->read(w->source->self, w->window,
				     (size_t)(hi - lo), lo);
		if (rc < 0)
			return rc;
		w->window_at = lo;
		w->window_bytes = (size_t)(hi - lo);
	}
	*ret = w->window + (off - w->window_at);
	return 0;
}

int walk_read(struct walk *w, void *buf, size_t len, uint64_t off)
{
	CHECK(len <= walk_size(w) && off <= walk_size(w) - len);
	if (walk_has(w, off, len)) {
		memcpy(buf, w->window + (off - w->window_at), len);
		return 0;
	}
	return w->source->read(w->source->self, buf, len, off);
}
