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
#include "store/step/structure_archives.h"
#include "store/step/structure_index.h"
#include "store/step/structure_megatron.h"
#include "store/step/structure_named.h"
#include "store/step/structure_tree.h"

/* What is being read, and what may still be. */
struct reading {
	struct structure *s;
	const struct structure_source *in;
	struct tree tree;
	uint64_t metadata_bytes_left;
};

static void reading_release(struct reading *r)
{
	tree_release(&r->tree);
}

/* Out of memory ends it; anything else is the file's. */
static int note_failure(struct structure *s, const char *file, int rc,
			const char *what)
{
	if (rc == -ENOMEM || rc == 0)
		return rc;
	if (rc == -EINPROGRESS)
		return structure_add_fault(s, STRUCTURE_ELSEWHERE, file,
					   STRUCTURE_ELSEWHERE_TEXT);
	return structure_add_fault(
		s, rc == -EBADMSG ? STRUCTURE_TORN : STRUCTURE_NOT_READ, file,
		what && *what ? what : strerror(-rc));
}

static bool is_text(const char *name, uint64_t size_bytes)
{
	static const char *const ends[] = { ".json", ".txt", ".yaml", ".yml",
					    ".md",   ".py",  ".log" };

	for (size_t i = 0; i < sizeof(ends) / sizeof(*ends); i++)
		if (text_ends_in(name, ends[i]))
			return true;
	return size_bytes == 0;
}

/* file: a kept name, or NULL when there was no memory for it. */
static int add_bare(struct structure *s, const char *file)
{
	int rc = file ? vec_grow(&s->bare, s->bare_count, &s->bare_capacity,
				 sizeof(*s->bare))
		      : -ENOMEM;

	if (rc == 0)
		s->bare[s->bare_count++] = file;
	return rc;
}

/* The file was read, and no tensor found in it. */
static int note_without(struct structure *s, const char *file,
			uint64_t size_bytes)
{
	if (strcmp(s->tensors.format, "plain") != 0)
		return add_bare(s, file);
	s->opaque = s->opaque || !is_text(file, size_bytes);
	return 0;
}

static int read_file(struct structure *s, const struct structure_source *in,
		     const char *name)
{
	size_t before = s->tensors.count, errors = s->error_count;
	struct cut_source file;
	uint32_t world;
	char *kept;
	int rc;

	s->tensors.reruns = false;
	kept = structure_keep_name(s, name);
	if (!kept)
		return -ENOMEM;
	rc = in->open(in->self, name, &file);
	if (rc < 0)
		return note_failure(s, name, rc, NULL);
	s->tensors.error[0] = 0;
	rc = tensors_read(&s->tensors, &file, name, kept);
	if (rc == 0)
		rc = structure_check_named(s, &file, s->tensors.format, kept);
	in->close(in->self, &file);
	rc = note_failure(s, name, rc, s->tensors.error);
	if (s->tensors.count == before)
		return rc == 0 && s->error_count == errors
			       ? note_without(s, kept, file.size_bytes)
			       : rc;
	if (!s->format)
		s->format = s->tensors.format;
	else if (!s->has_dcp && strcmp(s->format, s->tensors.format) != 0)
		s->format = "mixed";
	world = in->world ? in->world(in->self, name) : 0;
	s->world = world > s->world ? world : s->world;
	return rc;
}

/* What a common.pt, just read, says of the .metadata beside it. */
static int check_common_file(struct reading *r, const struct tree_entry *e)
{
	const struct tree_entry *folder = &r->tree.all[e->in];
	struct structure *s = r->s;
	const struct dcp *d = folder->nested ? &s->nested[folder->nested - 1]
					     : &s->dcp;

	if (!s->tensors.reruns || strcmp(e->name, MEGATRON_COMMON_NAME) != 0 ||
	    (!folder->nested && (e->in != 0 || !s->has_dcp)))
		return 0;
	return structure_check_reruns(s, d, folder->path, e->name);
}

/* Of each folder, and each only when it is not hidden. */
static int read_files(struct reading *r)
{
	bool texts = false, others = false;
	int rc = 0;

	for (size_t i = 0; i < r->tree.count; i++) {
		const struct tree_entry *e = &r->tree.all[i];

		if (e->folder)
			continue;
		if (is_text(e->name, e->size_bytes))
			texts = true;
		else
			others = true;
	}
	r->s->only_text = texts && !others;
	r->s->empty = !texts && !others;
	for (size_t i = 0; rc == 0 && i < r->tree.count; i++) {
		const struct tree_entry *e = &r->tree.all[i];

		if (e->folder || e->name[0] == '.' ||
		    (r->tree.all[e->in].dcp &&
		     text_ends_in(e->name, ".distcp")))
			continue;
		rc = read_file(r->s, r->in, e->path);
		if (rc == 0)
			rc = check_common_file(r, e);
	}
	return rc;
}

/* --- .metadata --- */

static int read_metadata(const struct structure_source *in, const char *path,
			 uint64_t bytes_max, uint64_t *ret_bytes,
			 struct dcp *dcp, struct dcp_error *error)
{
	struct cut_source file;
	int rc = in->open(in->self, path, &file);

	error->what[0] = 0;
	if (rc < 0)
		return rc;
	*ret_bytes = file.size_bytes;
	rc = dcp_read_source(&file, bytes_max, memory_left(in->budget), dcp,
			     error);
	in->close(in->self, &file);
	/* The pickle takes about what is made of it. */
	if (rc == 0)
		memory_note(in->budget, (int64_t)dcp->memory_bytes,
			    dcp->memory_bytes + (size_t)*ret_bytes);
	return rc;
}

static int add_entry(struct structure *s, const struct dcp *d, const char *file,
		     const struct dcp_entry *e)
{
	const struct dcp_item *item =
		e->item == DCP_NONE ? NULL : &d->items[e->item];
	const struct dcp_chunk *c =
		e->chunk == DCP_NONE ? NULL : &d->chunks[e->chunk];
	struct tensor t = { .name = item ? item->name : e->name,
			    .file = file,
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

/* All pieces; `below` is the folder that their files are in. */
static int add_entries(struct structure *s, const struct dcp *d,
		       const char *below)
{
	SCOPED(scope_free)
	const char **files = calloc((size_t)d->file_count + 1, sizeof(*files));
	int rc = files ? 0 : -ENOMEM;

	for (uint32_t i = 0; rc == 0 && i < d->file_count; i++) {
		SCOPED(scope_free)
		char *path = tree_join(below, d->files[i].name);

		files[i] = *below ? path ? structure_keep_name(s, path) : NULL
				  : d->files[i].name;
		rc = files[i] ? 0 : -ENOMEM;
	}
	for (uint32_t i = 0; rc == 0 && i < d->entry_count; i++)
		rc = add_entry(s, d, files[d->entries[i].file], &d->entries[i]);
	return rc;
}

/*
 * An item's name without what says which piece of what it was, for a world of
 * this size: /shard_0.0_1.8 and .__tp_replica_1 at its end, the number behind
 * _idx_ (of an optimizer's buckets).
 */
static void plain_name(const char *name, char ret[DCP_NAME_BYTES_MAX + 1])
{
	static const char *const ends[] = { "/shard_", ".__tp_replica_" };
	size_t len = strlen(name), n = 0;

	for (size_t i = 0; i < sizeof(ends) / sizeof(*ends); i++) {
		size_t at = len;

		while (at > 0 && strchr("0123456789._", name[at - 1]))
			at--;
		/* The last _ is the word's own. */
		at += at < len;
		if (at < len && at > strlen(ends[i]) &&
		    memcmp(name + at - strlen(ends[i]), ends[i],
			   strlen(ends[i])) == 0)
			len = at - strlen(ends[i]);
	}
	for (size_t at = 0; at < len && n < DCP_NAME_BYTES_MAX; at++) {
		ret[n++] = name[at];
		if (at >= 4 && memcmp(name + at - 4, "_idx_", 5) == 0)
			at += strspn(name + at + 1, "0123456789");
	}
	ret[n] = 0;
}

/* Each tensor once, as it was before it was cut up. */
static int add_items(struct structure *s, const struct dcp *d,
		     const char *metadata)
{
	char name[DCP_NAME_BYTES_MAX + 1];
	const char *file = structure_keep_name(s, metadata);
	int rc = file ? 0 : -ENOMEM;

	for (uint32_t i = 0; rc == 0 && i < d->item_count; i++) {
		const struct dcp_item *item = &d->items[i];
		struct tensor t = { .name = name, .file = file };

		plain_name(item->name, name);
		if (item->dtype) {
			t.dtype = item->dtype->name;
			t.rank = item->dimensions;
			t.shape = item->shape;
		}
		rc = tensors_add(&s->tensors, &t);
	}
	return rc;
}

/* Findings of one folder to all others; its names may be the listing's. */
static int keep_findings(struct structure *s, const struct closure *found,
			 const char *below)
{
	struct closure *all = &s->closure;
	int rc = vec_reserve(&all->findings, all->count, found->count,
			     &all->capacity, sizeof(*all->findings));

	for (int i = 0; i < CLOSURE_KINDS; i++)
		all->totals[i] += found->totals[i];
	for (size_t i = 0; rc == 0 && i < found->count; i++) {
		struct closure_finding f = found->findings[i];
		SCOPED(scope_free) char *path = NULL;

		if (all->count == CLOSURE_FINDINGS_MAX)
			break;
		if (f.file) {
			path = tree_join(below, f.file);
			f.file = path ? structure_keep_name(s, path) : NULL;
			rc = f.file ? 0 : -ENOMEM;
		}
		if (rc == 0)
			all->findings[all->count++] = f;
	}
	return rc;
}

static int check_closure(struct reading *r, const struct dcp *d, uint32_t in)
{
	const struct tree *t = &r->tree;
	const char *below = t->all[in].path;
	SCOPED(scope_free)
	struct closure_file *files =
		calloc(t->count + d->file_count + 1, sizeof(*files));
	SCOPED(closure_release) struct closure found = { .count = 0 };
	size_t n = 0;
	int rc;

	if (!files)
		return -ENOMEM;
	for (size_t i = 1; i < t->count; i++)
		if (!t->all[i].folder && t->all[i].in == in)
			files[n++] =
				(struct closure_file){ t->all[i].name,
						       t->all[i].size_bytes };
	for (uint32_t i = 0; i < d->file_count; i++) {
		const char *name = d->files[i].name;
		SCOPED(scope_free) char *path = tree_join(below, name);
		struct cut_source file;

		if (!path)
			return -ENOMEM;
		if (!strchr(name, '/') ||
		    r->in->open(r->in->self, path, &file) < 0)
			continue;
		files[n++] = (struct closure_file){ name, file.size_bytes };
		r->in->close(r->in->self, &file);
	}
	rc = closure_check(d, files, n, &found);
	if (rc == 0)
		rc = structure_check_archives(r->in, d, below, &found);
	return rc == 0 ? keep_findings(r->s, &found, below) : rc;
}

/* What the .metadata of a folder says; where it is kept until the end. */
static int read_dcp(struct reading *r, uint32_t in)
{
	struct structure *s = r->s;
	const char *below = r->tree.all[in].path;
	SCOPED(scope_free) char *path = tree_join(below, DCP_METADATA_NAME);
	struct dcp read = { .items = NULL }, *d = &s->dcp;
	size_t before = s->tensors.count;
	struct dcp_error error;
	uint64_t bytes = 0;
	int rc = path ? read_metadata(r->in, path, r->metadata_bytes_left,
				      &bytes, &read, &error)
		      : -ENOMEM;

	if (rc == -ENOENT)
		return 0;
	if (rc < 0)
		return note_failure(s, path, rc, error.what);
	if (in != 0) {
		rc = vec_grow(&s->nested, s->nested_count, &s->nested_capacity,
			      sizeof(*s->nested));
		if (rc < 0) {
			structure_release_dcp(s, &read);
			return rc;
		}
		d = &s->nested[s->nested_count++];
		r->tree.all[in].nested = s->nested_count;
	}
	*d = read;
	r->metadata_bytes_left -= bytes;
	r->tree.all[in].dcp = true;
	s->has_dcp = s->has_dcp || in == 0;
	s->format = "dcp";
	rc = r->in->whole ? add_items(s, d, path) : add_entries(s, d, below);
	if (rc == 0 && s->tensors.count == before)
		rc = add_bare(s, structure_keep_name(s, path));
	if (rc == -EFBIG)
		rc = note_failure(s, path, rc, s->tensors.error);
	if (rc == 0)
		rc = check_closure(r, d, in);
	return rc == 0 ? structure_check_common(s, r->in, d, below) : rc;
}

/* The folder itself, and those in which one was listed. */
static int read_dcps(struct reading *r)
{
	struct tree *t = &r->tree;
	int rc = read_dcp(r, 0);

	for (size_t i = 1; rc == 0 && i < t->count; i++) {
		struct tree_entry *e = &t->all[i];

		if (e->folder)
			e->dcp = t->all[e->in].dcp;
		else if (e->in != 0 && strcmp(e->name, DCP_METADATA_NAME) == 0)
			rc = read_dcp(r, e->in);
	}
	return rc;
}

int structure_of_folder(struct structure *s, const struct structure_source *in)
{
	SCOPED(reading_release)
	struct reading r = { .s = s,
			     .in = in,
			     .metadata_bytes_left = in->metadata_bytes_max };
	int rc;

	memset(s, 0, sizeof(*s));
	s->tensors.bytes_max = in->memory_bytes_max;
	s->tensors.budget = in->budget;
	rc = tree_read(&r.tree, in);
	if (rc == 0)
		rc = read_dcps(&r);
	if (rc == 0)
		rc = read_files(&r);
	if (rc == 0)
		rc = structure_finish(s);
	if (rc == 0)
		rc = structure_check_indexes(s, in, &r.tree);
	return rc == 0 ? structure_check_sets(s, &r.tree) : rc;
}

/* Names for the pieces of a .distcp file, from the .metadata beside it. */
static int name_pieces(struct structure *s, const char *name,
		       const struct structure_source *beside)
{
	struct dcp_error error;
	uint64_t bytes;
	int rc = read_metadata(beside, DCP_METADATA_NAME,
			       beside->metadata_bytes_max, &bytes, &s->dcp,
			       &error);

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
	const char *slash = strrchr(name, '/'), *kept;
	int rc;

	memset(s, 0, sizeof(*s));
	s->tensors.bytes_max = beside ? beside->memory_bytes_max : 0;
	s->tensors.budget = beside ? beside->budget : NULL;
	kept = structure_keep_name(s, name);
	if (!kept)
		return -ENOMEM;
	rc = tensors_read(&s->tensors, file, name, NULL);
	s->format = s->tensors.format;
	if (rc == 0)
		rc = structure_check_named(s, file, s->format, kept);
	rc = note_failure(s, name, rc, s->tensors.error);
	if (rc == 0 && s->tensors.count == 0 && s->error_count == 0)
		rc = note_without(s, kept, file->size_bytes);
	if (rc == 0 && beside && s->format && strcmp(s->format, "distcp") == 0)
		rc = name_pieces(s, slash ? slash + 1 : name, beside);
	return rc == 0 ? structure_finish(s) : rc;
}
