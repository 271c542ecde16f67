/*
 * walk.h - what the reader of one container format works with.
 *
 * A format reader looks at headers through walk_peek() and walk_read(), and
 * says with walk_mark() where a new piece of the file starts. It never learns
 * what becomes of the pieces, which are gathered into chunks here.
 *
 * The readers hold no trust either way: a mark that lies behind the last one
 * or outside the file is ignored, so no format reader can break the promise
 * that chunks cover the file exactly.
 */
#ifndef STORE_FORMATS_WALK_H
#define STORE_FORMATS_WALK_H

#include <stdbool.h>

#include "store/formats/chunks.h"

#define WALK_WINDOW_BYTES (UINT32_C(64) << 10)

struct walk {
	const struct cut_source *source; /* borrowed */

	/* Finished: a long piece, or a run of short ones, which is a chunk. */
	struct cut_piece *pieces; /* owned by who made the walk */
	size_t piece_count, piece_capacity;
	uint64_t covered_bytes; /* by them */
	uint64_t chunk_count; /* that they would be cut into by their places */
	uint64_t piece_at; /* where the piece that is still open starts */
	uint32_t run_bytes; /* short pieces before it, not yet a chunk */

	size_t archive_count; /* of a torch_zip */

	uint64_t window_at;
	size_t window_bytes;
	uint8_t window[WALK_WINDOW_BYTES];
};

static inline uint64_t walk_size(const struct walk *w)
{
	return w->source->size_bytes;
}

/* A new piece starts at off. Fails with -ENOMEM only. */
int walk_mark(struct walk *w, uint64_t off);

/* No piece comes any more: w->pieces cover the file. -ENOMEM. */
int walk_end(struct walk *w);

/*
 * *ret is the need (<= WALK_WINDOW_BYTES) bytes at off, good until the next
 * walk_peek(). [lo, hi) is the neighbourhood that is worth fetching with
 * them; it contains them and lies inside the file.
 */
int walk_peek(struct walk *w, uint64_t off, size_t need, uint64_t lo,
	      uint64_t hi, const uint8_t **ret);

/* Copy len bytes at off, which lie inside the file; the window stays. */
int walk_read(struct walk *w, void *buf, size_t len, uint64_t off);

#endif
