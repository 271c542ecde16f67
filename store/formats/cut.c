/*
 * cut.c - ask the formats, one after the other, where the pieces of a file
 * start; what none of them knows is one piece. Then hand out the chunks of each
 * piece, of which those that are cut by content are read on the way. See cut.h
 * for the rule.
 */
#include "store/formats/cut.h"

#include "store/base/check.h"
#include "store/base/scope.h"
#include "store/base/vec.h"
#include "store/formats/gear.h"
#include "store/formats/npy.h"
#include "store/formats/safetensors.h"
#include "store/formats/torch_archive.h"
#include "store/formats/torch_zip.h"
#include "store/formats/walk.h"

/* What is read at once of a file that does not lie in memory. */
#define WINDOW_BYTES (4 * (size_t)CHUNK_BYTES_MAX)
/* A list of tensors that takes more memory is not looked at. */
#define TENSORS_BYTES_MAX ((size_t)64 << 20)

struct cutter {
	struct cut_source source;
	struct cut_bytes bytes; /* all NULL: there are none */
	struct cut_piece *pieces; /* owned */
	size_t count;
	const char *format;

	size_t piece; /* the next chunk's */
	uint64_t at; /* where it lies in the file, */
	uint64_t done_bytes; /* and how much of its piece lies before it */
	uint64_t chunk_count; /* so far */

	uint8_t *window; /* owned; NULL: nothing was read yet */
	uint64_t window_at;
	size_t window_bytes;
};

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
	*ret_format = NULL;
	return 0;
}

/* --- which pieces are cut by content --- */

static bool is_flat(const struct tensor *t)
{
	return t->dtype && t->rank == 1 && t->bytes >= CUT_FLAT_BYTES_MIN;
}

/* The piece that holds all of the tensor; NULL: none does. */
static struct cut_piece *piece_of(struct walk *w, const struct tensor *t)
{
	size_t lo = 0, hi = w->piece_count;
	struct cut_piece *p;

	while (hi - lo > 1) { /* all in front of lo begin at or before it */
		size_t mid = lo + (hi - lo) / 2;

		if (w->pieces[mid].at <= t->offset)
			lo = mid;
		else
			hi = mid;
	}
	p = &w->pieces[lo];
	return t->offset - p->at < p->bytes &&
			       t->bytes <= p->bytes - (t->offset - p->at)
		       ? p
		       : NULL;
}

static int mark_flat(struct walk *w)
{
	SCOPED(tensors_release)
	struct tensors l = { .bytes_max = TENSORS_BYTES_MAX };
	bool large = false;
	int rc;

	for (size_t i = 0; i < w->piece_count; i++)
		large = large || w->pieces[i].bytes >= CUT_FLAT_BYTES_MIN;
	if (!large)
		return 0;
	rc = torch_archives_read(&l, w->source, false, NULL);
	/* Whatever was found stands, odd as the rest may be. */
	if (rc == -EBADMSG || rc == -EFBIG || rc == -EOPNOTSUPP)
		rc = 0;
	for (size_t i = 0; rc == 0 && i < l.count; i++) {
		struct cut_piece *p =
			is_flat(&l.all[i]) ? piece_of(w, &l.all[i]) : NULL;

		if (p)
			p->by_content = true;
	}
	return rc;
}

static int cut_walk(struct walk *w, enum cut_rule rule, const char **ret_format)
{
	int rc = cut_recognise(w, ret_format);

	if (rc == 0)
		rc = walk_end(w);
	if (rc < 0 || rule == CUT_FIXED)
		return rc;
	if (!*ret_format && w->piece_count > 0)
		w->pieces[0].by_content = true;
	return w->archive_count == 1 ? mark_flat(w) : 0;
}

/* --- the chunks --- */

int cutter_open(const struct cut_source *source, const struct cut_bytes *bytes,
		enum cut_rule rule, struct cutter **ret)
{
	SCOPED(scope_free) struct walk *w = NULL;
	struct cutter *c;
	int rc;

	if (source->size_bytes > CUT_FILE_BYTES_MAX)
		return -EFBIG;
	w = malloc(sizeof(*w));
	c = calloc(1, sizeof(*c));
	if (!w || !c) {
		free(c);
		return -ENOMEM;
	}
	/* All but the window itself, which costs more to clear than to use. */
	memset(w, 0, offsetof(struct walk, window));
	c->source = *source;
	if (bytes)
		c->bytes = *bytes;
	w->source = &c->source;
	rc = cut_walk(w, rule, &c->format);
	c->pieces = w->pieces;
	c->count = w->piece_count;
	if (rc < 0) {
		cutter_close(c);
		return rc;
	}
	*ret = c;
	return 0;
}

void cutter_close(struct cutter *c)
{
	if (!c)
		return;
	free(c->pieces);
	free(c->window);
	free(c);
}

uint64_t cutter_count_max(const struct cutter *c)
{
	uint64_t n = 0;

	for (size_t i = 0; i < c->count; i++) {
		const struct cut_piece *p = &c->pieces[i];
		/* Of two neighbours one has as many bytes as it must have. */
		uint64_t more = 2 * (p->bytes / CONTENT_BYTES_MIN) + 2;

		n += p->bytes / CHUNK_BYTES_MAX + 1;
		if (p->by_content)
			n += more < CUT_CHUNKS_MAX ? more : CUT_CHUNKS_MAX;
	}
	return n;
}

bool cutter_content(const struct cutter *c, uint64_t *ret_at,
		    uint64_t *ret_bytes)
{
	for (size_t i = 0; i < c->count; i++) {
		if (!c->pieces[i].by_content)
			continue;
		*ret_at = c->pieces[i].at;
		*ret_bytes = c->pieces[i].bytes;
		return true;
	}
	return false;
}

/* As cut_bytes.peek, of who has none: len is a chunk's at most. */
static int window_peek(struct cutter *c, uint64_t off, size_t len,
		       const uint8_t **ret)
{
	uint64_t left = c->source.size_bytes - off;
	int rc = 0;

	if (!c->window)
		c->window = malloc(WINDOW_BYTES);
	if (!c->window)
		return -ENOMEM;
	if (off < c->window_at || off + len > c->window_at + c->window_bytes) {
		c->window_at = off;
		c->window_bytes = 0;
		left = left < WINDOW_BYTES ? left : WINDOW_BYTES;
		rc = c->source.read(c->source.self, c->window, (size_t)left,
				    off);
		c->window_bytes = rc == 0 ? (size_t)left : 0;
	}
	*ret = c->window + (off - c->window_at);
	return rc;
}

/* The next chunk of a piece of which `left` bytes are left. */
static int content_chunk(struct cutter *c, uint64_t left, uint32_t *ret_len)
{
	const struct cut_bytes *b = &c->bytes;
	uint32_t len =
		left < CONTENT_BYTES_MAX ? (uint32_t)left : CONTENT_BYTES_MAX;
	const uint8_t *p;
	int rc;

	*ret_len = len;
	/* Nothing in zeros ends a chunk, so a hole need not be looked at. */
	if (b->data_at && b->data_at(b->self, c->at) >= c->at + len)
		return 0;
	rc = b->peek ? b->peek(b->self, c->at, len, &p)
		     : window_peek(c, c->at, len, &p);
	if (rc == 0)
		*ret_len = gear_cut(p, len);
	return rc;
}

int cutter_next(struct cutter *c, uint32_t *ret_len)
{
	const struct cut_piece *p;
	uint64_t left;
	int rc = 0;

	if (c->piece == c->count)
		return 0;
	p = &c->pieces[c->piece];
	left = p->bytes - c->done_bytes;
	if (p->by_content && c->chunk_count < CUT_CHUNKS_MAX)
		rc = content_chunk(c, left, ret_len);
	else
		*ret_len = left < CHUNK_BYTES_MAX ? (uint32_t)left
						  : CHUNK_BYTES_MAX;
	if (rc < 0)
		return rc;
	CHECK(*ret_len > 0 && *ret_len <= left);
	c->at += *ret_len;
	c->done_bytes += *ret_len;
	c->chunk_count++;
	if (c->done_bytes == p->bytes) {
		c->piece++;
		c->done_bytes = 0;
	}
	CHECK(c->piece < c->count || c->at == c->source.size_bytes);
	return 1;
}

int cut_file(const struct cut_source *source, enum cut_rule rule,
	     struct cut *ret_cut)
{
	struct cut cut = { .len = NULL };
	struct cutter *c;
	uint32_t len;
	int rc = cutter_open(source, NULL, rule, &c);

	if (rc < 0)
		return rc;
	while ((rc = cutter_next(c, &len)) > 0) {
		rc = vec_grow(&cut.len, cut.count, &cut.capacity,
			      sizeof(*cut.len));
		if (rc < 0)
			break;
		cut.len[cut.count++] = len;
	}
	cut.format = c->format ? c->format : "plain";
	cutter_close(c);
	if (rc < 0)
		cut_release(&cut);
	else
		*ret_cut = cut;
	return rc;
}
