/* structure.c - see structure.h. */
#include "store/step/structure.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "store/base/scope.h"

#define PIPELINE_FOLDERS "mp_rank_" /* DeepSpeed's and Megatron's */
/* Errors that are kept: one of each file, of many files that are damaged. */
#define ERRORS_MAX 1000
/* What reading .metadata takes, in bytes for each of its own: see dcp.h. */
#define METADATA_MEMORY 5

static char *keep_name(struct structure *s, const char *name)
{
	char **grown =
		reallocarray(s->names, s->name_count + 1, sizeof(*s->names));
	char *kept;

	if (!grown)
		return NULL;
	s->names = grown;
	kept = strdup(name);
	if (kept)
		s->names[s->name_count++] = kept;
	return kept;
}

int structure_add_error(struct structure *s, const char *file, const char *what)
{
	struct structure_error *grown;
	char *kept;

	if (s->error_count == ERRORS_MAX)
		return 0;
	grown = reallocarray(s->errors, s->error_count + 1, sizeof(*s->errors));
	if (!grown)
		return -ENOMEM;
	s->errors = grown;
	kept = strdup(file);
	if (!kept)
		return -ENOMEM;
	grown[s->error_count].file = kept;
	(void)snprintf(grown[s->error_count].what, sizeof(grown->what), "%s",
		       what);
	s->error_count++;
	return 0;
}

bool structure_is_sound(const struct structure *s)
{
	return s->error_count == 0 && closure_holds(&s->closure);
}

void structure_release(struct structure *s)
{
	for (size_t i = 0; i < s->name_count; i++)
		free(s->names[i]);
	for (size_t i = 0; i < s->error_count; i++)
		free(s->errors[i].file);
	free(s->names);
	free(s->errors);
	closure_release(&s->closure);
	dcp_release(&s->dcp);
	tensors_release(&s->tensors);
	memset(s, 0, sizeof(*s));
}

/* --- comparing -------------------------------------------------------------
 */

static const char *file_of(const struct tensor *t)
{
	return t->file ? t->file : "";
}

static int compare_numbers(const uint64_t *a, const uint64_t *b, unsigned n)
{
	if (!a || !b)
		return (a != NULL) - (b != NULL);
	for (unsigned i = 0; i < n; i++)
		if (a[i] != b[i])
			return a[i] < b[i] ? -1 : 1;
	return 0;
}

int structure_compare_place(const struct tensor *a, const struct tensor *b)
{
	int c = strcmp(a->name, b->name);

	if (c == 0 && a->place && b->place && a->rank != b->rank)
		return a->rank < b->rank ? -1 : 1;
	return c ? c : compare_numbers(a->place, b->place, a->rank);
}

static int compare(const void *pa, const void *pb)
{
	const struct tensor *a = pa, *b = pb;
	int c = structure_compare_place(a, b);

	if (c == 0)
		c = strcmp(file_of(a), file_of(b));
	return c ? c : (a->offset > b->offset) - (a->offset < b->offset);
}

static bool same_numbers(const uint64_t *a, const uint64_t *b, unsigned n)
{
	return compare_numbers(a, b, n) == 0;
}

bool structure_same_type(const struct tensor *a, const struct tensor *b)
{
	if (!a->dtype || !b->dtype)
		return !a->dtype && !b->dtype;
	return strcmp(a->dtype, b->dtype) == 0;
}

bool structure_same_shape(const struct tensor *a, const struct tensor *b)
{
	return a->rank == b->rank &&
	       same_numbers(a->shape, b->shape, a->rank) &&
	       same_numbers(a->strides, b->strides, a->rank) &&
	       same_numbers(a->whole, b->whole, a->rank);
}

bool structure_same_file(const struct tensor *a, const struct tensor *b)
{
	return strcmp(file_of(a), file_of(b)) == 0;
}

struct pairing {
	void (*fn)(void *arg, const struct tensor *a, const struct tensor *b);
	void *arg;
	const struct tensor **left; /* those of one place without a partner */
};

/* All of one name and place: [0, n) of a and [0, m) of b, by file. */
static void pair_place(struct pairing *p, const struct tensor *a, size_t n,
		       const struct tensor *b, size_t m)
{
	size_t i = 0, k = 0, a_left = 0, b_left = n;

	while (i < n || k < m) {
		int c = i == n   ? 1
			: k == m ? -1
				 : strcmp(file_of(&a[i]), file_of(&b[k]));

		if (c == 0)
			p->fn(p->arg, &a[i++], &b[k++]);
		else if (c < 0)
			p->left[a_left++] = &a[i++];
		else
			p->left[b_left++] = &b[k++];
	}
	for (i = 0, k = n; i < a_left || k < b_left; i++, k++)
		p->fn(p->arg, i < a_left ? p->left[i] : NULL,
		      k < b_left ? p->left[k] : NULL);
}

static size_t run_of(const struct tensor *t, size_t left)
{
	size_t n = left > 0;

	while (n < left && structure_compare_place(&t[0], &t[n]) == 0)
		n++;
	return n;
}

int structure_pair(const struct structure *sa, const struct structure *sb,
		   void (*fn)(void *arg, const struct tensor *a,
			      const struct tensor *b),
		   void *arg)
{
	const struct tensor *a = sa->tensors.all, *b = sb->tensors.all;
	size_t a_left = sa->tensors.count, b_left = sb->tensors.count;
	SCOPED(scope_free)
	const struct tensor **left = calloc(a_left + b_left + 1, sizeof(*left));
	struct pairing p = { fn, arg, left };

	if (!left)
		return -ENOMEM;
	while (a_left > 0 || b_left > 0) {
		int c = a_left == 0   ? 1
			: b_left == 0 ? -1
				      : structure_compare_place(a, b);
		size_t n = c <= 0 ? run_of(a, a_left) : 0;
		size_t m = c >= 0 ? run_of(b, b_left) : 0;

		pair_place(&p, a, n, b, m);
		a += n;
		a_left -= n;
		b += m;
		b_left -= m;
	}
	return 0;
}

/* --- the signature ---------------------------------------------------------
 */

static void sign_tensor(XXH3_state_t *x, const struct tensor *t)
{
	const char *texts[] = { file_of(t), t->name, t->dtype ? t->dtype : "" };
	const uint64_t *lists[] = { t->shape, t->strides, t->place, t->whole };
	uint64_t bytes = t->dtype ? t->bytes : 0;

	for (size_t k = 0; k < 3; k++)
		(void)XXH3_128bits_update(x, texts[k], strlen(texts[k]) + 1);
	(void)XXH3_128bits_update(x, &t->rank, sizeof(t->rank));
	for (size_t k = 0; k < 4; k++) {
		uint8_t is = lists[k] != NULL;

		(void)XXH3_128bits_update(x, &is, 1);
		if (is)
			(void)XXH3_128bits_update(x, lists[k],
						  t->rank * sizeof(*lists[k]));
	}
	(void)XXH3_128bits_update(x, &bytes, sizeof(bytes));
}

static int sign(struct structure *s)
{
	XXH3_state_t *x = XXH3_createState();
	XXH128_canonical_t digest;

	if (!x)
		return -ENOMEM;
	(void)XXH3_128bits_reset(x);
	for (size_t i = 0; i < s->tensors.count; i++)
		sign_tensor(x, &s->tensors.all[i]);
	XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(x));
	(void)XXH3_freeState(x);
	for (size_t i = 0; i < sizeof(digest.digest); i++)
		(void)sprintf(s->signature + 2 * i, "%02x", digest.digest[i]);
	return 0;
}

/* Everything was added: put it in order. */
static int finish(struct structure *s)
{
	if (!s->format)
		s->format = "plain";
	if (s->tensors.count > 1)
		qsort(s->tensors.all, s->tensors.count, sizeof(*s->tensors.all),
		      compare);
	return sign(s);
}

/* --- reading ---------------------------------------------------------------
 */

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
	kept = keep_name(s, name);
	if (!kept)
		return -ENOMEM;
	rc = in->open(in->self, name, &file);
	if (rc < 0)
		return note_failure(s, name, rc, NULL);
	s->tensors.error[0] = 0;
	rc = tensors_read_source(&s->tensors, &file, name, kept);
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

	if (l->count == l->capacity) {
		size_t want = l->capacity ? 2 * l->capacity : 64;
		struct listed *grown =
			reallocarray(l->at, want, sizeof(*grown));

		if (!grown)
			return l->rc = -ENOMEM;
		l->at = grown;
		l->capacity = want;
	}
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

static bool ends_in(const char *text, const char *suffix)
{
	size_t n = strlen(text), m = strlen(suffix);

	return n >= m && strcmp(text + n - m, suffix) == 0;
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
			if (!s->has_dcp || !ends_in(name, ".distcp"))
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

static int dcp_read_source(const struct structure_source *in, struct dcp *dcp,
			   struct dcp_error *error)
{
	SCOPED(scope_free) uint8_t *data = NULL;
	struct cut_source file;
	int rc = in->open(in->self, DCP_METADATA_NAME, &file);

	error->what[0] = 0;
	if (rc < 0)
		return rc;
	if (file.size_bytes > in->metadata_bytes_max) {
		(void)snprintf(error->what, sizeof(error->what),
			       "it has %llu bytes; at most %llu are read",
			       (unsigned long long)file.size_bytes,
			       (unsigned long long)in->metadata_bytes_max);
		rc = -EFBIG;
	}
	if (rc == 0) {
		data = malloc((size_t)file.size_bytes + 1);
		rc = data ? file.read(file.self, data, (size_t)file.size_bytes,
				      0)
			  : -ENOMEM;
	}
	if (rc == 0)
		rc = dcp_read(data, (size_t)file.size_bytes,
			      METADATA_MEMORY * (size_t)in->metadata_bytes_max,
			      dcp, error);
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
			char *kept = keep_name(s, s->closure.findings[i].file);

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
	int rc = dcp_read_source(in, &s->dcp, &error);

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
	return rc == 0 ? finish(s) : rc;
}

/* Names for the pieces of a .distcp file, from the .metadata beside it. */
static int name_pieces(struct structure *s, const char *name,
		       const struct structure_source *beside)
{
	struct dcp_error error;
	int rc = dcp_read_source(beside, &s->dcp, &error);

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
	rc = tensors_read_source(&s->tensors, file, name, NULL);
	s->format = s->tensors.format;
	rc = note_failure(s, name, rc, s->tensors.error);
	if (rc == 0 && beside && s->format && strcmp(s->format, "distcp") == 0)
		rc = name_pieces(s, slash ? slash + 1 : name, beside);
	return rc == 0 ? finish(s) : rc;
}
