/*
 * logical.c - two steps in different containers, made comparable: a model in
 * one .safetensors file, in a torch archive, and cut up by torch's distributed
 * checkpoints is one model.
 *
 * A tensor is put together in slabs of whole rows (of its first dimension), so
 * that a large one needs little memory; each slab is gathered from the pieces
 * that have something of it. What comes of it is hashed, in C's order, and so
 * has one digest whatever its pieces are.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <xxhash.h>

#include "fuse/ctl/ctl.h"
#include "fuse/ctl/step.h"
#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/formats/chunks.h"
#include "store/formats/dtype.h"

#define SLAB_BYTES (UINT64_C(32) << 20)

/* Numbers of elements in all dimensions, those of one row without the first. */
static uint64_t product(const uint64_t *shape, unsigned from, unsigned rank)
{
	uint64_t n = 1;

	for (unsigned i = from; i < rank; i++)
		if (__builtin_mul_overflow(n, shape[i], &n))
			return UINT64_MAX;
	return n;
}

bool logical_wanted(const struct step *a, const struct step *b)
{
	if (a->is_folder != b->is_folder ||
	    strcmp(a->in.format, b->in.format) != 0)
		return true;
	/* As many files as ranks: they were cut up for another world. */
	return a->in.has_dcp && b->in.has_dcp &&
	       a->in.dcp.file_count != b->in.dcp.file_count;
}

/* --- One list of tensors from another ----------------------------------- */

static int add_whole(struct step *s, size_t first)
{
	const struct tensor *p = &s->pieces.all[first];
	const uint64_t *shape = p->whole ? p->whole : p->shape;
	uint64_t count = product(shape, 0, p->rank);
	unsigned bits = dtype_bits(p->dtype);
	struct tensor t = { .name = p->name,
			    .dtype = p->dtype,
			    .rank = p->rank,
			    .shape = shape,
			    .offset = first };

	if (bits > 0 && __builtin_mul_overflow(count, bits / 8, &t.bytes))
		t.bytes = UINT64_MAX;
	else if (bits == 0)
		t.bytes = p->bytes;
	return tensors_add(&s->in.tensors, &t);
}

int logical_make(struct step *s)
{
	int rc = 0;

	s->pieces = s->in.tensors;
	s->is_logical = true;
	memset(&s->in.tensors, 0, sizeof(s->in.tensors));
	for (size_t i = 0; rc == 0 && i < s->pieces.count; i++) {
		const struct tensor *p = &s->pieces.all[i];

		if (!p->dtype)
			s->objects++;
		/* They are in order: pieces of one tensor follow each other. */
		else if (i == 0 || !p->whole || !p[-1].whole ||
			 strcmp(p->name, p[-1].name) != 0)
			rc = add_whole(s, i);
	}
	return rc == 0 ? structure_finish(&s->in) : rc;
}

/* --- The bytes of a piece ----------------------------------------------- */

/* A part of a file, as a file of its own: an archive of many. */
struct part {
	int fd;
	uint64_t at;
};

static int read_part(void *self, void *buf, size_t len, uint64_t off)
{
	const struct part *p = self;

	return io_read_full(p->fd, buf, len, p->at + off);
}

struct piece {
	int fd; /* owned; -1: none */
	uint64_t offset; /* of its bytes in the file */
	const uint64_t *place; /* NULL: it is the whole tensor */
	const uint64_t *strides; /* NULL: as in C */
	uint8_t *view; /* owned; with strides: all that it spans */
	uint64_t view_bytes;
	unsigned rank;
	uint64_t shape[TENSOR_RANK_MAX], stored[TENSOR_RANK_MAX];
};

static void piece_close(struct piece *p)
{
	if (p->fd >= 0)
		(void)close(p->fd);
	free(p->view);
}

/* What .metadata names is an archive, and the bytes are in it. */
static int look_into_archive(struct piece *p, const struct tensor *t)
{
	struct part part = { p->fd, t->offset };
	struct cut_source source = { read_part, &part, t->bytes };
	SCOPED(tensors_release) struct tensors inside = { .all = NULL };
	const struct tensor *one;
	int rc = tensors_read(&inside, &source, "", NULL);

	if (rc < 0)
		return rc;
	one = inside.all;
	if (inside.count != 1 || !one->dtype || one->rank != t->rank ||
	    strcmp(one->dtype, t->dtype) != 0 ||
	    (t->rank > 0 &&
	     memcmp(one->shape, t->shape, t->rank * sizeof(*t->shape)) != 0))
		return -EBADMSG;
	p->offset = t->offset + one->offset;
	p->view_bytes = one->bytes;
	if (one->strides) {
		memcpy(p->stored, one->strides, t->rank * sizeof(*p->stored));
		p->strides = p->stored;
	}
	return 0;
}

static int piece_open(const struct step *s, const struct tensor *t,
		      struct piece *ret)
{
	int rc;

	*ret = (struct piece){ .fd = step_open(s, t),
			       .offset = t->offset,
			       .place = t->whole ? t->place : NULL,
			       .strides = t->strides,
			       .view_bytes = t->bytes,
			       .rank = t->rank };
	if (ret->fd < 0)
		return ret->fd;
	if (t->rank > 0)
		memcpy(ret->shape, t->shape, t->rank * sizeof(*t->shape));
	rc = t->whole ? look_into_archive(ret, t) : 0;
	if (rc < 0 || !ret->strides)
		return rc;
	/* Its lines lie between each other: they are read together. */
	ret->view = malloc(ret->view_bytes);
	if (!ret->view)
		return -ENOMEM;
	return io_read_full(ret->fd, ret->view, ret->view_bytes, ret->offset);
}

/* --- A slab ------------------------------------------------------------- */

struct slab {
	const struct tensor *whole;
	uint64_t item; /* bytes of one element */
	uint64_t from, rows; /* of the first dimension */
	uint8_t *bytes;
	uint64_t filled; /* elements */
};

/* Copy n elements from element `from` of what is stored on. */
static int copy_run(struct slab *b, const struct piece *p, uint64_t from,
		    uint64_t n, uint8_t *to)
{
	uint64_t step = p->rank > 0 && p->strides ? p->strides[p->rank - 1] : 1;

	b->filled += n;
	if (!p->view)
		return io_read_full(p->fd, to, n * b->item,
				    p->offset + from * b->item);
	for (uint64_t i = 0; i < n; i++) {
		uint64_t at = (from + i * step) * b->item;

		if (at > p->view_bytes || b->item > p->view_bytes - at)
			return -EBADMSG;
		memcpy(to + i * b->item, p->view + at, b->item);
	}
	return 0;
}

/* How far elements of the piece are from each other, as it is stored. */
static uint64_t piece_stride(const struct piece *p, unsigned dimension)
{
	return p->strides ? p->strides[dimension]
			  : product(p->shape, dimension + 1, p->rank);
}

/*
 * How many dimensions from the end on are one run: stored without a gap, and
 * whole, so that they have none in the tensor either.
 */
static unsigned run_dimension(const struct piece *p, const struct tensor *whole)
{
	unsigned d = p->rank - 1;

	if (p->strides)
		return d;
	while (d > 0 && p->shape[d] == whole->shape[d])
		d--;
	return d;
}

/* Copy what rows [first, first + count) of the piece have, line by line. */
static int copy_rows(struct slab *b, const struct piece *p, uint64_t first,
		     uint64_t count)
{
	const struct tensor *w = b->whole;
	uint64_t at[TENSOR_RANK_MAX] = { first };
	unsigned last = run_dimension(p, w);
	uint64_t n = product(p->shape, last, p->rank);

	if (last == 0)
		n = n / p->shape[0] * count;
	for (;;) {
		uint64_t from = 0, to = 0;
		unsigned d;
		int rc;

		for (d = 0; d < p->rank; d++) {
			uint64_t place = p->place ? p->place[d] : 0;

			from += at[d] * piece_stride(p, d);
			to += (at[d] + place - (d == 0 ? b->from : 0)) *
			      product(w->shape, d + 1, w->rank);
		}
		rc = copy_run(b, p, from, n, b->bytes + to * b->item);
		if (rc < 0)
			return rc;
		for (d = last; d-- > 0;) {
			uint64_t end = d == 0 ? first + count : p->shape[d];

			if (++at[d] < end)
				break;
			at[d] = d == 0 ? first : 0;
		}
		if (d == UINT_MAX)
			return 0;
	}
}

/*
 * Which rows of the piece are the slab's. -EBADMSG: it does not lie in the
 * tensor.
 */
static int rows_of(const struct slab *b, const struct tensor *t,
		   uint64_t *ret_first, uint64_t *ret_count)
{
	const struct tensor *w = b->whole;
	uint64_t place, from, to;

	*ret_first = 0;
	*ret_count = 0;
	if (t->rank != w->rank)
		return -EBADMSG;
	for (unsigned d = 0; d < w->rank; d++) {
		place = t->whole ? t->place[d] : 0;
		if (place > w->shape[d] || t->shape[d] > w->shape[d] - place)
			return -EBADMSG;
	}
	if (w->rank == 0)
		*ret_count = 1;
	if (w->rank == 0 || product(t->shape, 0, t->rank) == 0)
		return 0;
	place = t->whole ? t->place[0] : 0;
	from = place > b->from ? place : b->from;
	to = place + t->shape[0];
	if (to > b->from + b->rows)
		to = b->from + b->rows;
	*ret_first = from - place;
	*ret_count = to > from ? to - from : 0;
	return 0;
}

static size_t pieces_of(const struct step *s, const struct tensor *t)
{
	const struct tensor *p = &s->pieces.all[t->offset];
	size_t n = 1;

	while (p->whole && t->offset + n < s->pieces.count && p[n].whole &&
	       strcmp(p[n].name, p->name) == 0)
		n++;
	return n;
}

static int gather(const struct step *s, struct slab *b)
{
	size_t count = pieces_of(s, b->whole);
	uint64_t row = b->whole->rank > 0
			       ? product(b->whole->shape, 1, b->whole->rank)
			       : 1;
	int rc = 0;

	b->filled = 0;
	for (size_t i = 0; rc == 0 && i < count; i++) {
		const struct tensor *t = &s->pieces.all[b->whole->offset + i];
		SCOPED(piece_close) struct piece p = { .fd = -1 };
		uint64_t first, rows;

		rc = rows_of(b, t, &first, &rows);
		if (rc < 0 || rows == 0)
			continue;
		rc = piece_open(s, t, &p);
		if (rc == 0 && t->rank == 0)
			rc = copy_run(b, &p, 0, 1, b->bytes);
		else if (rc == 0)
			rc = copy_rows(b, &p, first, rows);
	}
	return rc == 0 && b->filled != b->rows * row ? -EBADMSG : rc;
}

/* --- The digest --------------------------------------------------------- */

static int hash_slabs(const struct step *s, const struct tensor *t,
		      XXH3_state_t *x)
{
	uint64_t rows = t->rank > 0 ? t->shape[0] : 1;
	uint64_t row_bytes = t->bytes / rows;
	uint64_t at_once = SLAB_BYTES / row_bytes;
	struct slab b = { .whole = t, .item = dtype_bits(t->dtype) / 8 };
	SCOPED(scope_free) uint8_t *bytes = NULL;
	int rc = 0;

	at_once = at_once == 0 ? 1 : at_once < rows ? at_once : rows;
	bytes = malloc(at_once * row_bytes);
	if (!bytes)
		return -ENOMEM;
	b.bytes = bytes;
	for (; rc == 0 && b.from < rows; b.from += b.rows) {
		b.rows = rows - b.from < at_once ? rows - b.from : at_once;
		rc = gather(s, &b);
		if (rc == 0)
			(void)XXH3_128bits_update(x, bytes, b.rows * row_bytes);
	}
	return rc;
}

int logical_digest_one(const struct step *s, size_t index)
{
	const struct tensor *t = &s->in.tensors.all[index];
	XXH128_canonical_t digest;
	XXH3_state_t *x;
	int rc;

	if (s->extra[index].digested)
		return 0;
	if (dtype_bits(t->dtype) == 0)
		return -EOPNOTSUPP;
	x = XXH3_createState();
	CHECK(x && XXH3_128bits_reset(x) == XXH_OK);
	rc = t->bytes > 0 ? hash_slabs(s, t, x) : 0;
	XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(x));
	(void)XXH3_freeState(x);
	if (rc < 0)
		return rc;
	memcpy(s->extra[index].digest, digest.digest, STEP_DIGEST_BYTES);
	s->extra[index].digested = true;
	return 0;
}
