#include "store/formats/cut.h"

#include "store/base/scope.h"
#include "store/formats/npy.h"
#include "store/formats/safetensors.h"
#include "store/formats/torch_zip.h"
#include "store/formats/walk.h"

_Static_assert(CHUNK_BYTES_MIN < CHUNK_BYTES_MAX, "a run fits in a chunk");

/* Tried in this order; the first that knows the file wins. */
static const struct {
	const char *name;
	int (*walk)(struct walk *w); /* 1: known, 0: not mine, or -errno */
} cut_formats[] = {
	{ "npy", npy_walk },
	{ "safetensors", safetensors_walk },
	/* Last: it looks at the end of the file too, the others do not. */
	{ "torch_zip", torch_zip_walk },
};

static int cut_reserve(struct cut *c, uint64_t more)
{
	size_t capacity = c->capacity > 0 ? c->capacity : 64;
	uint32_t *len;

	if (more <= c->capacity - c->count)
		return 0;
	while (capacity - c->count < more)
		capacity *= 2;
	len = realloc(c->len, capacity * sizeof(*len));
	if (!len)
		return -ENOMEM;
	c->len = len;
	c->capacity = capacity;
	return 0;
}

/* Close the run of short pieces: it becomes a chunk. */
static int walk_flush_run(struct walk *w)
{
	int rc;

	if (w->run_bytes == 0)
		return 0;
	rc = cut_reserve(&w->cut, 1);
	if (rc < 0)
		return rc;
	w->cut.len[w->cut.count++] = w->run_bytes;
	w->run_bytes = 0;
	return 0;
}

static int walk_short_piece(struct walk *w, uint32_t bytes)
{
	if (w->run_bytes + bytes > CHUNK_BYTES_MAX) {
		int rc = walk_flush_run(w);

		if (rc < 0)
			return rc;
	}
	w->run_bytes += bytes;
	return 0;
}

static int walk_long_piece(struct walk *w, uint64_t bytes)
{
	int rc = walk_flush_run(w);

	if (rc < 0)
		return rc;
	rc = cut_reserve(&w->cut, bytes / CHUNK_BYTES_MAX + 1);
	if (rc < 0)
		return rc;
	for (; bytes >= CHUNK_BYTES_MAX; bytes -= CHUNK_BYTES_MAX)
		w->cut.len[w->cut.count++] = CHUNK_BYTES_MAX;
	if (bytes > 0)
		w->cut.len[w->cut.count++] = (uint32_t)bytes;
	return 0;
}

/* The piece that is open ends at off, and the next one starts there. */
static int walk_end_piece(struct walk *w, uint64_t off)
{
	uint64_t bytes = off - w->piece_at;
	int rc;

	if (bytes < CHUNK_BYTES_MIN)
		rc = walk_short_piece(w, (uint32_t)bytes);
	else
		rc = walk_long_piece(w, bytes);
	if (rc == 0)
		w->piece_at = off;
	return rc;
}

int walk_mark(struct walk *w, uint64_t off)
{
	if (off <= w->piece_at || off >= walk_size(w))
		return 0;
	if (w->cut.count >= CUT_CHUNKS_MAX)
		return 0; /* the open piece goes on to the end of the file */
	return walk_end_piece(w, off);
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

/* Ask one format after the other; the name of the one that knew the file. */
static int cut_recognise(struct walk *w, const char **ret_format)
{
	for (size_t i = 0; i < sizeof(cut_formats) / sizeof(*cut_formats);
	     i++) {
		int rc = cut_formats[i].walk(w);

		if (rc < 0)
			return rc;
		if (rc > 0) {
			*ret_format = cut_formats[i].name;
			return 0;
		}
		CHECK(w->piece_at == 0);
	}
	*ret_format = "plain";
	return 0;
}

static int cut_walk(struct walk *w)
{
	int rc;

	/* What a file with few pieces needs; more pieces make it grow. */
	rc = cut_reserve(&w->cut, walk_size(w) / CHUNK_BYTES_MAX + 1);
	if (rc < 0)
		return rc;
	rc = cut_recognise(w, &w->cut.format);
	if (rc < 0)
		return rc;
	if (w->piece_at < walk_size(w)) {
		rc = walk_end_piece(w, walk_size(w));
		if (rc < 0)
			return rc;
	}
	return walk_flush_run(w);
}

static void cut_check(const struct cut *c, uint64_t size_bytes)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < c->count; i++) {
		CHECK(c->len[i] > 0);
		CHECK(c->len[i] <= CHUNK_BYTES_MAX);
		sum += c->len[i];
	}
	CHECK(sum == size_bytes);
}

int cut_file(const struct cut_source *source, struct cut *ret_cut)
{
	struct walk *w;
	int rc;

	if (source->size_bytes > CUT_FILE_BYTES_MAX)
		return -EFBIG;
	w = malloc(sizeof(*w));
	if (!w)
		return -ENOMEM;
	/* All but the window itself, which costs more to clear than to use. */
	memset(w, 0, offsetof(struct walk, window));
	w->source = source;

	rc = cut_walk(w);
	if (rc == 0) {
		cut_check(&w->cut, source->size_bytes);
		*ret_cut = w->cut;
	} else {
		cut_release(&w->cut);
	}
	free(w);
	return rc;
}

void cut_release(struct cut *c)
{
	if (!c)
		return;
	free(c->len);
	memset(c, 0, sizeof(*c));
}
