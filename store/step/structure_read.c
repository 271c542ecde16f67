/*
 * structure_read.c - look into a folder, or into one file. A damaged file is
 * noted and passed over; .metadata comes last, as it says what others have.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/scope.h"
#include "store/base/text.h"
#include "store/base/vec.h"
#include "store/step/structure.h"

#define PIPELINE_FOLDERS "mp_rank_" /* DeepSpeed's and Megatron's */

/* Out of memory ends it; anything else is the file's. */
static int note_failure(struct structure *s, const char *file, int rc,
			const char *what)
{
	if (rc == -ENOMEM || rc == 0)
		return rc;
	return structure_add_error(s, file,
				   what && *what ? what : strerror(-rc));
}

static int read_file(struct structure *s, const struct structure_source *in,
		     const char *name)
{
	size_t before = s->tensors.count;
	struct cut_source file;
	char *kept;
	int rc;

	if (s->name_count >= STRUCTURE_FILES_MAX)
		return -E2BIG;
	kept = structure_keep_name(s, name);
	if (!kept)
		return -ENOMEM;
	rc = in->open(in->self, name, &file);
	if (rc < 0)
		return note_failure(s, name, rc, NULL);
	s->tensors.error[0] = 0;
	rc = tensors_read(&s->tensors, &file, name, kept);
	in->close(in->self, &file);
	rc = note_failure(s, name, rc, s->tensors.error);
	if (s->tensors.count > before && !s->format)
		s->format = s->tensors.format;
	else if (s->tensors.count > before && !s->has_dcp &&
		 strcmp(s->format, s->tensors.format) != 0)
		s->format = "mixed";
	return rc;
}

/* --- what a folder has --- */

struct listed {
	char *name; /* owned */
	bool folder;
	uint64_t size_bytes;
};

struct listing {
	struct listed *at;
	size_t count, capacity;
	int rc;
};

static void listing_release(struct listing *l)
{
	for (size_t i = 0; i < l->count; i++)
		free(l->at[i].name);
	free(l->at);
}

static int listing_add(void *arg, const char *name, bool folder,
		       uint64_t size_bytes)
{
	struct listing *l = arg;

	l->rc = vec_grow(&l->at, l->count, &l->capacity, sizeof(*l->at));
	if (l->rc < 0)
		return l->rc;
	l->at[l->count].name = strdup(name);
	l->at[l->count].folder = folder;
	l->at[l->count].size_bytes = size_bytes;
	if (!l->at[l->count].name)
		return l->rc = -ENOMEM;
	l->count++;
	return 0;
}

static int listed_compare(const void *a, const void *b)
{
	return strcmp(((const struct listed *)a)->name,
		      ((const struct listed *)b)->name);
}

static int listing_read(struct listing *l, const struct structure_source *in,
			const char *below)
{
	int rc = in->list(in->self, below, listing_add, l);

	if (l->rc < 0)
		return l->rc;
	if (rc == 0 && l->count > 1)
		qsort(l->at, l->count, sizeof(*l->at), listed_compare);
	return rc;
}

static int read_files(struct structure *s, const struct structure_source *in,
		      const char *below, const struct listing *l)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < l->count; i++) {
		const char *name = l->at[i].name;
		SCOPED(scope_free) char *full = NULL;

		if (name[0] == '.')
			continue;
		if (asprintf(&full, "%s%s%s", below, *below ? "/" : "", name) <
		    0) {
			full = NULL;
			return -ENOMEM;
		}
		if (!l->at[i].folder) {
			if (!s->has_dcp || !text_ends_in(name, ".distcp"))
				rc = read_file(s, in, full);
		} else if (!*below && strncmp(name, PIPELINE_FOLDERS,
					      strlen(PIPELINE_FOLDERS)) == 0) {
			SCOPED(listing_release)
			struct listing more = { .at = NULL };

			rc = listing_read(&more, in, full);
			if (rc == 0)
				rc = read_files(s, in, full, &more);
		}
	}
	return rc;
}

/* --- .metadata --- */

static int read_metadata(const struct structure_source *in, struct dcp *dcp,
			 struct dcp_error *error)
{
	struct cut_source file;
	int rc = in->open(in->self, DCP_METADATA_NAME, &file);

	error->what[0] = 0;
	if (rc < 0)
		return rc;
	rc = dcp_read_source(&file, in->metadata_bytes_max, dcp, error);
	in->close(in->self, &file);
	return rc;
}

static int add_entry(struct structure *s, const struct dcp_item *item,
		     const struct dcp_chunk *c, const struct dcp_entry *e)
{
	struct tensor t = { .name = item ? item->name : e->name,
			    .file = s->dcp.files[e->file].name,
			    .offset = e->offset,
			    .bytes = e->length };

	if (item && c) {
		t.dtype = item->dtype->name;
		t.rank = item->dimensions;
		t.shape = c->sizes;
		t.place = c->offsets;
		t.whole = item->shape;
	}
	return tensors_add(&s->tensors, &t);
}

/* Findings may point to names that are the listing's. */
static int keep_findings(struct structure *s)
{
	for (size_t i = 0; i < s->closure.count; i++)
		if (s->closure.findings[i].file) {
			char *kept = structure_keep_name(
				s, s->closure.findings[i].file);

			s->closure.findings[i].file = kept ? kept : "?";
			if (!kept)
				return -ENOMEM;
		}
	return 0;
}

static int check_closure(struct structure *s, const struct structure_source *in,
			 const struct listing *l)
{
	SCOPED(scope_free)
	struct closure_file *files =
		calloc(l->count + s->dcp.file_count + 1, sizeof(*files));
	size_t n = 0;
	int rc;

	if (!files)
		return -ENOMEM;
	for (size_t i = 0; i < l->count; i++)
		if (!l->at[i].folder)
			files[n++] =
				(struct closure_file){ l->at[i].name,
						       l->at[i].size_bytes };
	for (uint32_t i = 0; i < s->dcp.file_count; i++) {
		const char *name = s->dcp.files[i].name;
		struct cut_source file;

		if (!strchr(name, '/') || in->open(in->self, name, &file) < 0)
			continue;
		files[n++] = (struct closure_file){ name, file.size_bytes };
		in->close(in->self, &file);
	}
	rc = closure_check(&s->dcp, files, n, &s->closure);
	return rc == 0 ? keep_findings(s) : rc;
}

static int read_dcp(struct structure *s, const struct structure_source *in,
		    const struct listing *l)
{
	struct dcp_error error;
	int rc = read_metadata(in, &s->dcp, &error);

	if (rc == -ENOENT)
		return 0;
	if (rc < 0)
		return note_failure(s, DCP_METADATA_NAME, rc, error.what);
	s->has_dcp = true;
	s->format = "dcp";
	for (uint32_t i = 0; rc == 0 && i < s->dcp.entry_count; i++) {
		const struct dcp_entry *e = &s->dcp.entries[i];

		rc = add_entry(
			s, e->item == DCP_NONE ? NULL : &s->dcp.items[e->item],
			e->chunk == DCP_NONE ? NULL : &s->dcp.chunks[e->chunk],
			e);
	}
	if (rc == -EFBIG)
		rc = note_failure(s, DCP_METADATA_NAME, rc, s->tensors.error);
	return rc == 0 ? check_closure(s, in, l) : rc;
}

int structure_of_folder(struct structure *s, const struct structure_source *in)
{
	SCOPED(listing_release) struct listing l = { .at = NULL };
	int rc;

	memset(s, 0, sizeof(*s));
	s->tensors.bytes_max = in->memory_bytes_max;
	rc = listing_read(&l, in, "");
	if (rc == 0)
		rc = read_dcp(s, in, &l);
	if (rc == 0)
		rc = read_files(s, in, "", &l);
	return rc == 0 ? structure_finish(s) : rc;
}

/* Names for the pieces of a .distcp file, from the .metadata beside it. */
static int name_pieces(struct structure *s, const char *name,
		       const struct structure_source *beside)
{
	struct dcp_error error;
	int rc = read_metadata(beside, &s->dcp, &error);

	if (rc < 0)
		return rc == -ENOMEM ? rc : 0; /* then they have no names */
	s->has_dcp = true;
	for (uint32_t i = 0; i < s->dcp.entry_count; i++) {
		const struct dcp_entry *e = &s->dcp.entries[i];
		size_t lo = 0, hi = s->tensors.count;

		if (strcmp(s->dcp.files[e->file].name, name) != 0)
			continue;
		while (lo < hi) {
			size_t mid = lo + (hi - lo) / 2;

			if (s->tensors.all[mid].offset < e->offset)
				lo = mid + 1;
			else
				hi = mid;
		}
		if (lo == s->tensors.count ||
		    s->tensors.all[lo].offset != e->offset)
			continue;
		s->tensors.all[lo].name = e->name;
		if (s->tensors.all[lo].rank == e->dimensions && e->offsets)
			s->tensors.all[lo].place = e->offsets;
	}
	return 0;
}

int structure_of_file(struct structure *s, const struct cut_source *file,
		      const char *name, const struct structure_source *beside)
{
	const char *slash = strrchr(name, '/');
	int rc;

	memset(s, 0, sizeof(*s));
	s->tensors.bytes_max = beside ? beside->memory_bytes_max : 0;
	rc = tensors_read(&s->tensors, file, name, NULL);
	s->format = s->tensors.format;
	rc = note_failure(s, name, rc, s->tensors.error);
	if (rc == 0 && beside && s->format && strcmp(s->format, "distcp") == 0)
		rc = name_pieces(s, slash ? slash + 1 : name, beside);
	return rc == 0 ? structure_finish(s) : rc;
}
