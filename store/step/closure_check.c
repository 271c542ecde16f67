/*
 * closure_check.c - what was found, and what each kind of it is called; and
 * whether the chunks of a tensor cover it, and lie apart.
 *
 * Whether chunks overlap is found by cutting: chunks that all lie on one side
 * or the other of a plane cannot meet across it. What trainers write, a grid
 * of any number of dimensions, falls into single chunks that way, in about as
 * many steps as sorting takes. A group that no plane cuts is compared pair by
 * pair, until too much was spent on it.
 */
#include "store/step/closure_check.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/vec.h"

/* Elements that are sorted count for so many pairs that are compared. */
#define SORT_COST 8

/* --- What was found ------------------------------------------------------- */

int closure_find(struct check *k, enum closure_kind kind, const char *item,
		 const char *file, const char *format, ...)
{
	struct closure *c = &k->result;
	struct closure_finding *f;
	va_list ap;
	int rc;

	c->totals[kind]++;
	if (c->count == CLOSURE_FINDINGS_MAX)
		return 0;
	rc = vec_grow(&c->findings, c->count, &c->capacity, sizeof(*f));
	if (rc < 0)
		return rc;
	f = &c->findings[c->count++];
	*f = (struct closure_finding){ .kind = kind,
				       .item = item,
				       .file = file };
	va_start(ap, format);
	(void)vsnprintf(f->what, sizeof(f->what), format, ap);
	va_end(ap);
	return 0;
}

int closure_add_no_archive(struct closure *c, const char *item,
			   const char *file, uint64_t offset, uint64_t length)
{
	struct check k = { .result = *c };
	int rc = closure_find(&k, CLOSURE_NO_ARCHIVE, item, file,
			      "%llu bytes at %llu that are no archive of "
			      "torch.save()",
			      (ull)length, (ull)offset);

	*c = k.result;
	return rc;
}

void closure_release(struct closure *c)
{
	free(c->findings);
	memset(c, 0, sizeof(*c));
}

bool closure_holds(const struct closure *c)
{
	for (int i = 0; i < CLOSURE_KINDS; i++)
		if (i != CLOSURE_NOT_CHECKED && c->totals[i] > 0)
			return false;
	return true;
}

const char *closure_kind_name(enum closure_kind kind)
{
	static const char *const names[] = {
		[CLOSURE_DANGLING] = "dangling",
		[CLOSURE_PAST_END] = "past_end",
		[CLOSURE_LENGTH] = "length",
		[CLOSURE_OVERLAP] = "overlap",
		[CLOSURE_UNNAMED] = "unnamed",
		[CLOSURE_ORPHAN] = "orphan",
		[CLOSURE_UNSTORED] = "unstored",
		[CLOSURE_UNKNOWN] = "unknown",
		[CLOSURE_OUTSIDE] = "outside",
		[CLOSURE_CHUNKS_OVERLAP] = "chunks_overlap",
		[CLOSURE_NOT_COVERED] = "not_covered",
		[CLOSURE_NO_ARCHIVE] = "no_archive",
		[CLOSURE_NOT_CHECKED] = "not_checked",
	};

	return names[kind];
}

/* --- Chunks --------------------------------------------------------------- */

struct along {
	const struct dcp_chunk *chunks;
	unsigned dimension;
};

static int along_compare(const void *a, const void *b, void *self)
{
	const struct along *s = self;
	uint64_t x = s->chunks[*(const uint32_t *)a].offsets[s->dimension];
	uint64_t y = s->chunks[*(const uint32_t *)b].offsets[s->dimension];

	return (x > y) - (x < y);
}

static bool chunks_meet(const struct dcp_chunk *a, const struct dcp_chunk *b,
			unsigned dimensions)
{
	for (unsigned i = 0; i < dimensions; i++)
		if (a->offsets[i] >= b->offsets[i] + b->sizes[i] ||
		    b->offsets[i] >= a->offsets[i] + a->sizes[i])
			return false;
	return true;
}

static bool spend(struct check *k, uint64_t work)
{
	if (work > k->work_left) {
		k->work_left = 0;
		return false;
	}
	k->work_left -= work;
	return true;
}

/* 1: cut into spans that are on the stack now; 0: no plane cuts it; -E2BIG. */
static int span_cut(struct check *k, struct span s, unsigned dimensions,
		    size_t *depth)
{
	struct along along = { k->d->chunks, 0 };
	uint32_t *order = k->order;

	for (; along.dimension < dimensions; along.dimension++) {
		unsigned n = along.dimension;
		uint32_t start = s.lo;
		uint64_t end = 0;

		if (!spend(k, (uint64_t)(s.hi - s.lo) * SORT_COST))
			return -E2BIG;
		qsort_r(order + s.lo, s.hi - s.lo, sizeof(*order),
			along_compare, &along);
		for (uint32_t i = s.lo; i < s.hi; i++) {
			const struct dcp_chunk *c = &k->d->chunks[order[i]];

			if (i > s.lo && c->offsets[n] >= end) {
				if (i - start > 1)
					k->spans[(*depth)++] =
						(struct span){ start, i };
				start = i;
			}
			if (c->offsets[n] + c->sizes[n] > end)
				end = c->offsets[n] + c->sizes[n];
		}
		if (start == s.lo)
			continue;
		if (s.hi - start > 1)
			k->spans[(*depth)++] = (struct span){ start, s.hi };
		return 1;
	}
	return 0;
}

/* 1: ret_pair overlap; 0: none do; -E2BIG: too many to compare. */
static int span_compare(struct check *k, struct span s, unsigned dimensions,
			uint32_t ret_pair[2])
{
	for (uint32_t i = s.lo; i < s.hi; i++) {
		if (!spend(k, s.hi - i))
			return -E2BIG;
		for (uint32_t j = i + 1; j < s.hi; j++) {
			ret_pair[0] = k->order[i];
			ret_pair[1] = k->order[j];
			if (chunks_meet(&k->d->chunks[ret_pair[0]],
					&k->d->chunks[ret_pair[1]], dimensions))
				return 1;
		}
	}
	return 0;
}

/* As span_compare(), of the first `count` chunks in order. */
static int chunks_overlap(struct check *k, uint32_t count, unsigned dimensions,
			  uint32_t ret_pair[2])
{
	size_t depth = 0;
	int rc = 0;

	if (count > 1)
		k->spans[depth++] = (struct span){ 0, count };
	while (depth > 0 && rc == 0) {
		struct span s = k->spans[--depth];

		rc = span_cut(k, s, dimensions, &depth);
		if (rc == 0)
			rc = span_compare(k, s, dimensions, ret_pair);
		else if (rc == 1)
			rc = 0;
	}
	return rc;
}

static bool chunk_inside(const struct dcp_item *item, const struct dcp_chunk *c)
{
	for (unsigned i = 0; i < item->dimensions; i++)
		if (c->offsets[i] + c->sizes[i] > item->shape[i])
			return false;
	return true;
}

/* "[0, 8]", cut short when it does not fit. */
static const char *numbers(const uint64_t *at, unsigned count, char *ret,
			   size_t size)
{
	size_t n = (size_t)snprintf(ret, size, "[");

	for (unsigned i = 0; i < count && n + 28 < size; i++)
		n += (size_t)snprintf(ret + n, size - n, "%s%llu",
				      i > 0 ? ", " : "", (ull)at[i]);
	(void)snprintf(ret + n, size - n, "]");
	return ret;
}

static int tensor_check(struct check *k, const struct dcp_item *item)
{
	__extension__ unsigned __int128 have = 0;
	uint32_t count = 0, unstored = 0, outside = 0, pair[2] = { 0, 0 };
	char a[64], b[64];
	int rc;

	for (uint32_t i = item->chunk_at;
	     i < item->chunk_at + item->chunk_count; i++) {
		const struct dcp_chunk *c = &k->d->chunks[i];

		outside += !chunk_inside(item, c);
		unstored += c->entry == DCP_NONE;
		have += c->elements;
		if (c->elements > 0)
			k->order[count++] = i;
	}
	rc = chunks_overlap(k, count, item->dimensions, pair);
	if (rc == -E2BIG)
		rc = closure_find(k, CLOSURE_NOT_CHECKED, item->name, NULL,
				  "%u chunks, too many to compare all of them",
				  count);
	else if (rc == 1)
		rc = closure_find(
			k, CLOSURE_CHUNKS_OVERLAP, item->name, NULL,
			"its chunks at %s and %s have elements in common",
			numbers(k->d->chunks[pair[0]].offsets, item->dimensions,
				a, sizeof(a)),
			numbers(k->d->chunks[pair[1]].offsets, item->dimensions,
				b, sizeof(b)));
	if (rc == 0 && unstored > 0)
		rc = closure_find(k, CLOSURE_UNSTORED, item->name, NULL,
				  "%u of its %u chunks are stored nowhere",
				  unstored, item->chunk_count);
	if (rc == 0 && outside > 0)
		rc = closure_find(k, CLOSURE_OUTSIDE, item->name, NULL,
				  "%u of its %u chunks reach beyond its shape",
				  outside, item->chunk_count);
	if (rc == 0 && have < item->elements)
		rc = closure_find(k, CLOSURE_NOT_COVERED, item->name, NULL,
				  "its chunks have %llu of its %llu elements",
				  (ull)have, (ull)item->elements);
	return rc;
}

int closure_check_items(struct check *k)
{
	int rc = 0;

	for (uint32_t i = 0; i < k->d->item_count && rc == 0; i++) {
		const struct dcp_item *item = &k->d->items[i];

		if (item->dtype)
			rc = tensor_check(k, item);
		else if (item->entry == DCP_NONE)
			rc = closure_find(k, CLOSURE_UNSTORED, item->name, NULL,
					  "it is stored nowhere");
	}
	return rc;
}
