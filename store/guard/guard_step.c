/*
 * guard_step.c - one step against the step before it: what differs, what is
 * missing, what is damaged, and how that is said in one line.
 */
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/text.h"
#include "store/base/utf8.h"
#include "store/guard/guard_private.h"
#include "store/names/names.h"

/* Names that are told of each kind; the rest is counted. */
#define NAMES_TOLD 4

/* --- text --- */

struct text {
	char *at;
	size_t len, size;
};

/*
 * Names come out of files: no control character gets into a log, and nothing
 * that is not UTF-8, a character that was cut in two included.
 */
void guard_clean(char *text, size_t len)
{
	for (size_t at = 0; at < len;) {
		size_t n = utf8_length(text + at, len - at);

		if (n == 0 || iscntrl((unsigned char)text[at])) {
			text[at] = '?';
			n = 1;
		}
		at += n;
	}
}

__attribute__((format(printf, 2, 3))) static void put(struct text *t,
						      const char *format, ...)
{
	size_t from = t->len;
	va_list ap;
	int n;

	va_start(ap, format);
	n = vsnprintf(t->at + t->len, t->size - t->len, format, ap);
	va_end(ap);
	if (n > 0)
		t->len += (size_t)n < t->size - t->len ? (size_t)n
						       : t->size - t->len - 1;
	guard_clean(t->at + from, t->len - from);
}

/* --- differences --- */

enum change { ADDED, REMOVED, RETYPED, RESHAPED, MOVED, RESIZED, CHANGES };

static const char *const change_words[] = {
	[ADDED] = "new",
	[REMOVED] = "gone",
	[RETYPED] = "of another type",
	[RESHAPED] = "of another shape",
	[MOVED] = "in another file",
	[RESIZED] = "of another length",
};

/* Room that an attribute's value has, and for one line more. */
#define LINES_BYTES_MAX (XATTR_VALUE_MAX - 1024)

struct difference {
	struct guard_before before;
	struct structure then, now;
	const struct guard_step *step;
	size_t total;
	size_t count[CHANGES];
	const struct tensor *told[CHANGES][NAMES_TOLD];
	struct bytes *lines; /* all of them, for who asks; or NULL */
	struct guard_ignored ignored;
};

static void difference_release(struct difference *d)
{
	free(d->ignored.text);
	structure_release(&d->then);
	structure_release(&d->now);
}

static void line_put(struct bytes *out, enum change change,
		     const struct tensor *a, const struct tensor *b)
{
	const struct tensor *t = b ? b : a;
	char line[512];
	struct text text = { line, 0, sizeof(line) };

	if (out->len > LINES_BYTES_MAX)
		return;
	put(&text, "%s: %.200s", change_words[change], t->name);
	if (change == RETYPED)
		put(&text, " (%s -> %s)", a->dtype ? a->dtype : "bytes",
		    b->dtype ? b->dtype : "bytes");
	if (change == MOVED)
		put(&text, " (%.100s -> %.100s)", a->file ? a->file : "",
		    b->file ? b->file : "");
	bytes_put(out, line, text.len);
	bytes_put(out, "\n", 1);
}

static void differ(void *arg, const struct tensor *a, const struct tensor *b)
{
	struct difference *d = arg;
	const struct tensor *t = b ? b : a;
	enum change change;

	if (d->step->dcp_only && !text_ends_in(t->file, ".distcp"))
		return;
	if (!a)
		change = ADDED;
	else if (!b)
		change = REMOVED;
	else if (!structure_same_type(a, b))
		change = RETYPED;
	else if (!structure_same_shape(a, b))
		change = RESHAPED;
	else if (!guard_same_place(a->file, d->before.name, b->file,
				   d->step->name))
		change = MOVED;
	else if (a->dtype && a->bytes != b->bytes)
		change = RESIZED;
	else
		return;
	if (guard_is_ignored(&d->ignored, t->name))
		return;
	if (d->count[change] < NAMES_TOLD)
		d->told[change][d->count[change]] = t;
	d->count[change]++;
	d->total++;
	if (d->lines)
		line_put(d->lines, change, a, b);
}

static void put_difference(struct text *t, const struct difference *d)
{
	const char *comma = ":";

	put(t, "its structure is not that of %.200s", d->before.name);
	for (enum change c = 0; c < CHANGES; c++) {
		if (d->count[c] == 0)
			continue;
		put(t, "%s %zu tensor%s %s (", comma, d->count[c],
		    d->count[c] == 1 ? " is" : "s are", change_words[c]);
		comma = ",";
		for (size_t i = 0; i < d->count[c] && i < NAMES_TOLD; i++)
			put(t, "%s%.200s", i > 0 ? ", " : "",
			    d->told[c][i]->name);
		put(t, "%s)", d->count[c] > NAMES_TOLD ? ", ..." : "");
	}
}

/* d->now was read: what is not as in the step before. */
static int compare(struct guard *g, const uid_t *uid, struct difference *d)
{
	int rc = guard_ignored_read(g, d->step, &d->ignored);

	if (rc == 0)
		rc = guard_read_before(g, d->step, uid, &d->before, &d->then);
	return rc < 0 ? rc : structure_pair(&d->then, &d->now, differ, d);
}

/* --- expectations --- */

static int compare_name(const void *name, const void *tensor)
{
	return strcmp(name, ((const struct tensor *)tensor)->name);
}

static bool has_tensor(const struct tensors *l, const char *name)
{
	return l->count > 0 &&
	       bsearch(name, l->all, l->count, sizeof(*l->all), compare_name);
}

static int put_missing(struct guard *g, const struct guard_step *step,
		       const struct tensors *tensors, struct text *t, bool *ret)
{
	SCOPED(scope_free) char *expected = NULL;
	char *save = NULL;
	size_t n = 0;
	int rc = guard_said(g, step, GUARD_EXPECT_XATTR, tensors->count == 0,
			    &expected);

	if (rc < 0)
		return rc == -ENODATA ? 0 : rc;
	for (char *name = strtok_r(expected, "\r\n", &save); name;
	     name = strtok_r(NULL, "\r\n", &save)) {
		if (has_tensor(tensors, name) || n++ >= NAMES_TOLD)
			continue;
		put(t, "%s%.200s",
		    n == 1 ? "tensors that " GUARD_EXPECT_XATTR
			     " declares are not there ("
			   : ", ",
		    name);
	}
	if (n > NAMES_TOLD)
		put(t, ", ... %zu in all", n);
	if (n > 0)
		put(t, ")");
	*ret = n > 0;
	return 0;
}

/* --- the whole --- */

/* With dcp_only what .metadata does not name may still be written. */
static bool error_counts(const struct guard_step *step,
			 const struct structure_error *e)
{
	return !step->dcp_only || strcmp(e->file, DCP_METADATA_NAME) == 0;
}

static bool is_broken(const struct guard_step *step, const struct structure *s)
{
	for (size_t i = 0; i < s->error_count; i++)
		if (error_counts(step, &s->errors[i]))
			return true;
	return !closure_holds(&s->closure);
}

static void put_broken(struct text *t, const struct guard_step *step,
		       const struct structure *s)
{
	size_t n = 0;

	for (size_t i = 0; i < s->error_count; i++)
		if (error_counts(step, &s->errors[i]) && n++ < NAMES_TOLD)
			put(t, "%s%.200s: %.200s",
			    n > 1 ? ", " : "it is damaged: ", s->errors[i].file,
			    s->errors[i].what);
	for (size_t i = 0; i < s->closure.count; i++) {
		const struct closure_finding *f = &s->closure.findings[i];

		if (f->kind == CLOSURE_NOT_CHECKED || n++ >= NAMES_TOLD)
			continue;
		put(t, "%s%s: %.200s%s%.200s %.200s",
		    n > 1 ? ", " : ".metadata does not fit the files: ",
		    closure_kind_name(f->kind), f->file ? f->file : "",
		    f->file && f->item ? " " : "", f->item ? f->item : "",
		    f->what);
	}
	if (n > NAMES_TOLD)
		put(t, ", ... %zu in all", n);
}

int guard_step_check(struct guard *g, const struct guard_step *step,
		     struct guard_verdict *ret)
{
	SCOPED(difference_release) struct difference d = { .step = step };
	struct text t = { ret->text, 0, sizeof(ret->text) };
	size_t start;
	int rc = guard_read_dir(g, step->dir, step->metadata, NULL, &d.now);

	memset(ret, 0, sizeof(*ret));
	if (rc < 0)
		return rc;
	put(&t, "structure: %.200s: ", step->name);
	start = t.len;
	ret->broken = is_broken(step, &d.now);
	if (ret->broken)
		put_broken(&t, step, &d.now);
	if (t.len > start)
		put(&t, "; ");
	rc = put_missing(g, step, &d.now.tensors, &t, &ret->missing);
	if (rc == 0 && d.now.tensors.count > 0)
		rc = compare(g, NULL, &d);
	if (rc < 0 && rc != -ENODATA && rc != -ENOENT)
		return rc;
	ret->different = d.total > 0;
	if (ret->different) {
		put(&t, "%s", ret->missing ? "; " : "");
		put_difference(&t, &d);
	}
	if (!ret->broken && !ret->missing && !ret->different)
		ret->text[0] = 0;
	else if (strcmp(t.at + t.len - 2, "; ") == 0)
		t.at[t.len - 2] = 0;
	return 0;
}

int guard_step_difference(struct guard *g, const struct guard_step *step,
			  const uid_t *uid, struct bytes *out)
{
	SCOPED(difference_release)
	struct difference d = { .step = step, .lines = out };
	int rc = guard_read_dir(g, step->dir, 0, uid, &d.now);

	if (rc == 0)
		rc = compare(g, uid, &d);
	if (rc == -ENOENT)
		rc = -ENODATA;
	return rc < 0 ? rc : out->failed ? -ENOMEM : 0;
}

/* --- the same bytes --- */

/* Size and digest of what is durable and not being changed. */
static bool digest_of(struct guard *g, uint64_t dir, const char *file,
		      struct content *ret)
{
	struct inode *in;
	bool known = false;

	if (guard_find(g, dir, file, &in) < 0)
		return false;
	if (inode_load_file(g->use.inodes, in) == 0) {
		HOLD(&in->lock);
		known = in->file->content && !file_is_dirty(in->file);
		if (known)
			*ret = in->file->content->c;
	}
	inode_put(g->use.inodes, in, 1);
	return known;
}

static int compare_files(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

int guard_step_identical(struct guard *g, const struct guard_step *step,
			 char text[GUARD_TEXT_BYTES])
{
	SCOPED(structure_release) struct structure s = { .format = NULL };
	SCOPED(scope_free) const char **files = NULL;
	struct text t = { text, 0, GUARD_TEXT_BYTES };
	struct guard_before before;
	uint64_t bytes = 0;
	size_t n = 0;
	int rc = guard_read_before(g, step, NULL, &before, &s);

	structure_release(&s); /* its bytes alone are compared */
	if (rc == 0)
		rc = guard_read_dir(g, step->dir, 0, NULL, &s);
	if (rc < 0)
		return rc;
	files = calloc(s.tensors.count + 1, sizeof(*files));
	if (!files)
		return -ENOMEM;
	for (size_t i = 0; i < s.tensors.count; i++)
		if (s.tensors.all[i].dtype && s.tensors.all[i].file)
			files[n++] = s.tensors.all[i].file;
	qsort(files, n, sizeof(*files), compare_files);
	for (size_t i = 0; i < n; i++) {
		struct content a, b; /* their extents may be gone */

		if (i > 0 && strcmp(files[i], files[i - 1]) == 0)
			continue;
		if (!digest_of(g, step->dir, files[i], &a) ||
		    !digest_of(g, before.dir, files[i], &b) ||
		    a.size_bytes != b.size_bytes ||
		    memcmp(a.digest, b.digest, sizeof(a.digest)) != 0)
			return 0;
		bytes += a.size_bytes;
	}
	if (bytes == 0)
		return 0;
	put(&t,
	    "structure: %.200s: all its tensors have the bytes they have in "
	    "%.200s: stale weights may have been saved",
	    step->name, before.name);
	return 1;
}
