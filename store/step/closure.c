/*
 * closure.c - see closure.h.
 *
 * Whether chunks overlap is found by cutting: chunks that all lie on one side
 * or the other of a plane cannot meet across it. What trainers write, a grid
 * of any number of dimensions, falls into single chunks that way, in about as
 * many steps as sorting takes. A group that no plane cuts is compared pair by
 * pair, until too much was spent on it.
 */
#include "store/step/closure.h"

#include <stdarg.h>

#include "store/base/scope.h"
#include "store/formats/dcp.h"

/* Of all tensors together: pairs, or elements sorted times SORT_COST. */
#define WORK_MAX (UINT64_C(1) << 27)
#define SORT_COST 8

struct check {
	const struct dcp *d;
	const struct closure_file *files;
	size_t file_count;
	const struct closure_file **by_name; /* owned */
	const struct closure_file **found; /* owned; of d->files, or NULL */
	uint32_t *order; /* owned; room for all entries, and all chunks */
	struct span *spans; /* owned; of order that are still to be cut */
	uint64_t work_left;
	struct closure result;
};

struct span {
	uint32_t lo, hi;
};

static int find(struct check *k, enum closure_kind kind, const char *item,
		const char *file, const char *format, ...)
	__attribute__((format(printf, 5, 6)));
static int find(struct check *k, enum closure_kind kind, const char *item,
		const char *file, const char *format, ...)
{
	struct closure *c = &k->result;
	struct closure_finding *f;
	va_list ap;

	c->totals[kind]++;
	if (c->count == CLOSURE_FINDINGS_MAX)
		return 0;
	if (c->count == c->capacity) {
		size_t want = c->capacity ? 2 * c->capacity : 16;

		f = reallocarray(c->findings, want, sizeof(*f));
		if (!f)
			return -ENOMEM;
		c->findings = f;
		c->capacity = want;
	}
	f = &c->findings[c->count++];
	*f = (struct closure_finding){ .kind = kind,
				       .item = item,
				       .file = file };
	va_start(ap, format);
	(void)vsnprintf(f->what, sizeof(f->what), format, ap);
	va_end(ap);
	return 0;
}

typedef unsigned long long ull;

/* --- Files -----------------------------------------------------------------
 */

static int by_name(const void *a, const void *b)
{
	const struct closure_file *const *x = a, *const *y = b;

	return strcmp((*x)->name, (*y)->name);
}

static int files_match(struct check *k)
{
	const struct closure_file **hit;

	k->by_name = calloc(k->file_count + 1, sizeof(*k->by_name));
	k->found = calloc((size_t)k->d->file_count + 1, sizeof(*k->found));
	if (!k->by_name || !k->found)
		return -ENOMEM;
	for (size_t i = 0; i < k->file_count; i++)
		k->by_name[i] = &k->files[i];
	qsort(k->by_name, k->file_count, sizeof(*k->by_name), by_name);
	for (uint32_t i = 0; i < k->d->file_count; i++) {
		struct closure_file wanted = { k->d->files[i].name, 0 };
		const struct closure_file *key = &wanted;

		hit = bsearch(&key, k->by_name, k->file_count,
			      sizeof(*k->by_name), by_name);
		k->found[i] = hit ? *hit : NULL;
	}
	return 0;
}

static int file_name_compare(const void *a, const void *b, void *d)
{
	const struct dcp_file *files = ((const struct dcp *)d)->files;

	return strcmp(files[*(const uint32_t *)a].name,
		      files[*(const uint32_t *)b].name);
}

static int orphans_find(struct check *k)
{
	SCOPED(scope_free) uint32_t *named = NULL;
	struct dcp d = *k->d;
	size_t at = 0;
	int rc = 0;

	named = calloc((size_t)d.file_count + 1, sizeof(*named));
	if (!named)
		return -ENOMEM;
	for (uint32_t i = 0; i < d.file_count; i++)
		named[i] = i;
	qsort_r(named, d.file_count, sizeof(*named), file_name_compare, &d);
	for (size_t i = 0; i < k->file_count && rc == 0; i++) {
		const struct closure_file *f = k->by_name[i];

		while (at < d.file_count &&
		       strcmp(d.files[named[at]].name, f->name) < 0)
			at++;
		if ((at < d.file_count &&
		     strcmp(d.files[named[at]].name, f->name) == 0) ||
		    f->size_bytes == 0 || dcp_file_rank(f->name) == DCP_NONE)
			continue;
		rc = find(k, CLOSURE_ORPHAN, NULL, f->name,
			  "%llu bytes that nothing in .metadata names",
			  (ull)f->size_bytes);
	}
	return rc;
}

/* --- Entries ---------------------------------------------------------------
 */

static int entry_compare(const void *a, const void *b, void *d)
{
	const struct dcp_entry *entries = ((const struct dcp *)d)->entries;
	uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
	const struct dcp_entry *x = &entries[i], *y = &entries[j];

	if (x->file != y->file)
		return x->file < y->file ? -1 : 1;
	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	if (x->length != y->length)
		return x->length < y->length ? -1 : 1;
	return (i > j) - (i < j);
}

static int length_check(struct check *k, const struct dcp_entry *e)
{
	const struct dcp_chunk *c;
	uint64_t bytes;
	unsigned bits;

	if (e->chunk == DCP_NONE || e->transformed)
		return 0;
	c = &k->d->chunks[e->chunk];
	bits = k->d->items[c->item].dtype->bits;
	if (bits == 0)
		return 0;
	bytes = c->elements * (bits / 8); /* elements < 2^57 */
	if (e->length >= bytes && e->length - bytes <= CLOSURE_AROUND_BYTES_MAX)
		return 0;
	return find(k, CLOSURE_LENGTH, e->name, k->d->files[e->file].name,
		    "%llu bytes at %llu for a chunk whose elements take %llu",
		    (ull)e->length, (ull)e->offset, (ull)bytes);
}

static int entry_check(struct check *k, const struct dcp_entry *e)
{
	const char *file = k->d->files[e->file].name;
	const struct closure_file *f = k->found[e->file];
	int rc = length_check(k, e);

	if (rc < 0)
		return rc;
	if (e->item == DCP_NONE)
		rc = find(k, CLOSURE_UNKNOWN, e->name, file,
			  "stored, but the state dict has nothing of that "
			  "name");
	else if (k->d->items[e->item].dtype && e->chunk == DCP_NONE)
		rc = find(k, CLOSURE_UNKNOWN, e->name, file,
			  "stored at %llu, but the tensor has no chunk at its "
			  "place",
			  (ull)e->offset);
	if (rc < 0)
		return rc;
	if (!f)
		return find(k, CLOSURE_DANGLING, e->name, file,
			    "stored in a file that is not there");
	if (e->offset + e->length > f->size_bytes)
		return find(k, CLOSURE_PAST_END, e->name, file,
			    "%llu bytes at %llu, and the file has %llu",
			    (ull)e->length, (ull)e->offset, (ull)f->size_bytes);
	return 0;
}

static int unnamed(struct check *k, uint32_t file, const char *before,
		   uint64_t from, uint64_t to)
{
	if (from >= to)
		return 0;
	return find(
		k, CLOSURE_UNNAMED, NULL, k->d->files[file].name,
		"%llu bytes at %llu that nothing in .metadata names%s%.100s",
		(ull)(to - from), (ull)from, before ? ", after " : "",
		before ? before : "");
}

/* The entries of one file, sorted. */
static int file_check(struct check *k, const uint32_t *order, size_t count)
{
	const struct dcp_entry *last = NULL, *e = NULL;
	uint32_t file = k->d->entries[order[0]].file;
	uint64_t end = 0;
	int rc = 0;

	for (size_t i = 0; i < count && rc == 0; i++) {
		e = &k->d->entries[order[i]];
		rc = entry_check(k, e);
		if (rc < 0 || e->length == 0)
			continue;
		if (e->offset < end)
			rc = find(k, CLOSURE_OVERLAP, e->name,
				  k->d->files[file].name,
				  "%llu bytes at %llu, where '%.100s' has not "
				  "ended",
				  (ull)e->length, (ull)e->offset, last->name);
		else if (k->found[file])
			rc = unnamed(k, file, last ? last->name : NULL, end,
				     e->offset < k->found[file]->size_bytes
					     ? e->offset
					     : k->found[file]->size_bytes);
		if (e->offset + e->length > end) {
			end = e->offset + e->length;
			last = e;
		}
	}
	if (rc == 0 && k->found[file])
		rc = unnamed(k, file, last ? last->name : NULL, end,
			     k->found[file]->size_bytes);
	return rc;
}

static int entries_check(struct check *k)
{
	struct dcp d = *k->d;
	uint32_t lo = 0, hi;
	int rc = 0;

	for (uint32_t i = 0; i < d.entry_count; i++)
		k->order[i] = i;
	qsort_r(k->order, d.entry_count, sizeof(*k->order), entry_compare, &d);
	for (; lo < d.entry_count && rc == 0; lo = hi) {
		for (hi = lo + 1; hi < d.entry_count &&
				  d.entries[k->order[hi]].file ==
					  d.entries[k->order[lo]].file;)
			hi++;
		rc = file_check(k, k->order + lo, hi - lo);
	}
	return rc;
}

/* --- Chunks ----------------------------------------------------------------
 */

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

static uint64_t shape_elements(const struct dcp_item *item)
{
	uint64_t elements = 1; /* at most 2^56, unless one is 0 */

	for (unsigned i = 0; i < item->dimensions; i++)
		if (item->shape[i] == 0)
			return 0;
	for (unsigned i = 0; i < item->dimensions; i++)
		elements *= item->shape[i];
	return elements;
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
	uint64_t want = shape_elements(item);
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
		rc = find(k, CLOSURE_NOT_CHECKED, item->name, NULL,
			  "%u chunks, too many to compare all of them", count);
	else if (rc == 1)
		rc = find(k, CLOSURE_CHUNKS_OVERLAP, item->name, NULL,
			  "its chunks at %s and %s have elements in common",
			  numbers(k->d->chunks[pair[0]].offsets,
				  item->dimensions, a, sizeof(a)),
			  numbers(k->d->chunks[pair[1]].offsets,
				  item->dimensions, b, sizeof(b)));
	if (rc == 0 && unstored > 0)
		rc = find(k, CLOSURE_UNSTORED, item->name, NULL,
			  "%u of its %u chunks are stored nowhere", unstored,
			  item->chunk_count);
	if (rc == 0 && outside > 0)
		rc = find(k, CLOSURE_OUTSIDE, item->name, NULL,
			  "%u of its %u chunks reach beyond its shape", outside,
			  item->chunk_count);
	if (rc == 0 && have < want)
		rc = find(k, CLOSURE_NOT_COVERED, item->name, NULL,
			  "its chunks have %llu of its %llu elements",
			  (ull)have, (ull)want);
	return rc;
}

static int items_check(struct check *k)
{
	int rc = 0;

	for (uint32_t i = 0; i < k->d->item_count && rc == 0; i++) {
		const struct dcp_item *item = &k->d->items[i];

		if (item->dtype)
			rc = tensor_check(k, item);
		else if (item->entry == DCP_NONE)
			rc = find(k, CLOSURE_UNSTORED, item->name, NULL,
				  "it is stored nowhere");
	}
	return rc;
}

/* --- The call --------------------------------------------------------------
 */

static void check_release(struct check *k)
{
	free(k->by_name);
	free(k->found);
	free(k->order);
	free(k->spans);
	closure_release(&k->result);
}

int closure_check(const struct dcp *d, const struct closure_file *files,
		  size_t file_count, struct closure *ret)
{
	SCOPED(check_release)
	struct check k = { .d = d,
			   .files = files,
			   .file_count = file_count,
			   .work_left = WORK_MAX };
	size_t room = d->entry_count > d->chunk_count ? d->entry_count
						      : d->chunk_count;
	int rc;

	k.order = calloc(room + 1, sizeof(*k.order));
	/* Spans on the stack are disjoint, and none has less than two. */
	k.spans = calloc(room / 2 + 1, sizeof(*k.spans));
	if (!k.order || !k.spans)
		return -ENOMEM;
	rc = files_match(&k);
	if (rc == 0)
		rc = entries_check(&k);
	if (rc == 0)
		rc = orphans_find(&k);
	if (rc == 0)
		rc = items_check(&k);
	if (rc < 0)
		return rc;
	*ret = k.result;
	memset(&k.result, 0, sizeof(k.result));
	return 0;
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
		[CLOSURE_NOT_CHECKED] = "not_checked",
	};

	return names[kind];
}
