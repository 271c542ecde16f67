/*
 * structure_archives.c - a few entries of each file are chosen, evenly, and
 * looked at file by file, each file opened once.
 */
#include "store/step/structure_archives.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/scope.h"
#include "store/base/text.h"
#include "store/base/vec.h"
#include "store/formats/zip.h"
#include "store/step/structure_tree.h"

struct chosen {
	uint32_t file, entry;
};

static bool is_archive(const struct dcp *d, const struct dcp_entry *e)
{
	return e->chunk != DCP_NONE && !e->transformed &&
	       text_ends_in(d->files[e->file].name, ".distcp");
}

static int by_file(const void *a, const void *b)
{
	const struct chosen *x = a, *y = b;

	if (x->file != y->file)
		return x->file < y->file ? -1 : 1;
	return (x->entry > y->entry) - (x->entry < y->entry);
}

/* Of each file the first one, the last one, and some between; by file. */
static int choose(const struct dcp *d, struct chosen **ret, size_t *ret_count)
{
	SCOPED(scope_free)
	uint64_t *total = calloc((size_t)d->file_count + 1, sizeof(*total));
	SCOPED(scope_free)
	uint64_t *seen = calloc((size_t)d->file_count + 1, sizeof(*seen));
	SCOPED(scope_free) struct chosen *all = NULL;
	size_t n = 0, capacity = 0;

	if (!total || !seen)
		return -ENOMEM;
	for (uint32_t i = 0; i < d->entry_count; i++)
		total[d->entries[i].file] += is_archive(d, &d->entries[i]);
	for (uint32_t i = 0; i < d->entry_count; i++) {
		uint32_t file = d->entries[i].file;
		uint64_t at, of = total[file];

		if (!is_archive(d, &d->entries[i]))
			continue;
		at = seen[file]++;
		if (at > 0 && at * STRUCTURE_ARCHIVES_MAX / of ==
				      (at + 1) * STRUCTURE_ARCHIVES_MAX / of)
			continue;
		if (vec_grow(&all, n, &capacity, sizeof(*all)) < 0)
			return -ENOMEM;
		all[n++] = (struct chosen){ file, i };
	}
	if (n > 1)
		qsort(all, n, sizeof(*all), by_file);
	*ret = TAKE(all);
	*ret_count = n;
	return 0;
}

/*
 * A zip archive may end in a comment. So many bytes are taken for one: by it
 * libckpt_gpu's archives fill the room up to the next one.
 */
#define COMMENT_BYTES_MAX 4096u

/* Is there an end record whose comment ends where these bytes do? */
static bool has_end(const uint8_t *p, size_t len)
{
	for (size_t n = 0; n + ZIP_END_BYTES <= len; n++) {
		const uint8_t *end = p + len - n - ZIP_END_BYTES;
		size_t comment = end[20] | (size_t)end[21] << 8;

		if (comment == n && memcmp(end, "PK\5\6", 4) == 0)
			return true;
	}
	return false;
}

/* 1: it begins and ends as it should, or lies nowhere; 0: it does not. */
static int look(const struct cut_source *file, const struct dcp_entry *e)
{
	uint8_t begin[4], end[ZIP_END_BYTES + COMMENT_BYTES_MAX];
	size_t len = e->length < sizeof(end) ? (size_t)e->length : sizeof(end);
	int rc;

	if (e->length < ZIP_ARCHIVE_BYTES_MIN ||
	    e->offset + e->length > file->size_bytes)
		return 1; /* closure.h says so, or the tensor is not ours */
	rc = file->read(file->self, begin, sizeof(begin), e->offset);
	if (rc == 0)
		rc = file->read(file->self, end, len,
				e->offset + e->length - len);
	if (rc < 0)
		return rc;
	return memcmp(begin, "PK\3\4", 4) == 0 && has_end(end, len);
}

/* All that were chosen of one file: the first one that is none is enough. */
static int look_at_file(const struct structure_source *in, const struct dcp *d,
			const char *below, const struct chosen *c, size_t n,
			struct closure *found)
{
	const char *name = d->files[c->file].name;
	SCOPED(scope_free) char *path = tree_join(below, name);
	struct cut_source file;
	int rc = 1;

	if (!path)
		return -ENOMEM;
	if (in->open(in->self, path, &file) < 0)
		return 0; /* it is not there, and that was said */
	for (size_t i = 0; i < n && rc > 0; i++) {
		const struct dcp_entry *e = &d->entries[c[i].entry];

		rc = look(&file, e);
		if (rc == 0)
			rc = closure_add_no_archive(found, e->name, name,
						    e->offset, e->length) < 0
				     ? -ENOMEM
				     : -EBADMSG;
	}
	in->close(in->self, &file);
	return rc == -ENOMEM ? rc : 0;
}

int structure_check_archives(const struct structure_source *in,
			     const struct dcp *d, const char *below,
			     struct closure *found)
{
	SCOPED(scope_free) struct chosen *all = NULL;
	size_t count = 0, n;
	int rc = choose(d, &all, &count);

	for (size_t i = 0; rc == 0 && i < count; i += n) {
		for (n = 1; i + n < count && all[i + n].file == all[i].file;)
			n++;
		rc = look_at_file(in, d, below, &all[i], n, found);
	}
	return rc;
}
