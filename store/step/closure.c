/*
 * closure.c - compare .metadata with the files that are there, and its entries
 * with each other; closure_check.c does the chunks. See closure.h.
 */
#include "store/step/closure.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/scope.h"
#include "store/step/closure_check.h"

/* Of all tensors together: pairs, or elements sorted times SORT_COST. */
#define WORK_MAX (UINT64_C(1) << 27)

/* --- Files ---------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
	const struct closure_file *const *x = a, *const *y = b;

	return strcmp((*x)->name, (*y)->name);
}

static int files_match(struct check *k)
{
	const struct closure_file **hit;

	k->by_name = calloc(k->file_count + 1, sizeof(*k->by_name));
	k->named = calloc(k->file_count + 1, sizeof(*k->named));
	k->found = calloc((size_t)k->d->file_count + 1, sizeof(*k->found));
	if (!k->by_name || !k->named || !k->found)
		return -ENOMEM;
	for (size_t i = 0; i < k->file_count; i++)
		k->by_name[i] = &k->files[i];
	qsort(k->by_name, k->file_count, sizeof(*k->by_name), by_name);
	for (uint32_t i = 0; i < k->d->file_count; i++) {
		struct closure_file wanted = { k->d->files[i].name, 0 };
		const struct closure_file *key = &wanted;

		hit = bsearch(&key, k->by_name, k->file_count,
			      sizeof(*k->by_name), by_name);
		if (!hit)
			continue;
		k->found[i] = *hit;
		k->named[hit - k->by_name] = true;
	}
	return 0;
}

static int orphans_find(struct check *k)
{
	int rc = 0;

	for (size_t i = 0; i < k->file_count && rc == 0; i++) {
		const struct closure_file *f = k->by_name[i];

		if (k->named[i] || f->size_bytes == 0 ||
		    f->size_bytes == CLOSURE_SIZE_UNKNOWN ||
		    dcp_file_rank(f->name) == DCP_NONE)
			continue;
		rc = closure_find(k, CLOSURE_ORPHAN, NULL, f->name,
				  "%llu bytes that nothing in .metadata names",
				  (ull)f->size_bytes);
	}
	return rc;
}

/* --- Entries -------------------------------------------------------------- */

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
	return closure_find(
		k, CLOSURE_LENGTH, e->name, k->d->files[e->file].name,
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
		rc = closure_find(
			k, CLOSURE_UNKNOWN, e->name, file,
			"stored, but the state dict has nothing of that "
			"name");
	else if (k->d->items[e->item].dtype && e->chunk == DCP_NONE)
		rc = closure_find(
			k, CLOSURE_UNKNOWN, e->name, file,
			"stored at %llu, but the tensor has no chunk at its "
			"place",
			(ull)e->offset);
	if (rc < 0)
		return rc;
	if (!f)
		return closure_find(k, CLOSURE_DANGLING, e->name, file,
				    "stored in a file that is not there");
	if (e->offset + e->length > f->size_bytes)
		return closure_find(k, CLOSURE_PAST_END, e->name, file,
				    "%llu bytes at %llu, and the file has %llu",
				    (ull)e->length, (ull)e->offset,
				    (ull)f->size_bytes);
	return 0;
}

static int unnamed(struct check *k, uint32_t file, const char *before,
		   uint64_t from, uint64_t to)
{
	if (from >= to || to == CLOSURE_SIZE_UNKNOWN)
		return 0;
	return closure_find(
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
			rc = closure_find(
				k, CLOSURE_OVERLAP, e->name,
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

/* --- The call ------------------------------------------------------------- */

static void check_release(struct check *k)
{
	free(k->by_name);
	free(k->named);
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
		rc = closure_check_items(&k);
	if (rc < 0)
		return rc;
	*ret = k.result;
	memset(&k.result, 0, sizeof(k.result));
	return 0;
}
