/* guard_step.c - see guard_step.h. */
#include "store/guard/guard_step.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "store/base/scope.h"
#include "store/base/utf8.h"
#include "store/guard/guard_said.h"
#include "store/names/names.h"
#include "store/store.h"
#include "store/guard/structure_store.h"

/* Names that are told of each kind; the rest is counted. */
#define NAMES_TOLD 4
/* Of folders that might be the step before, how many are looked into. */
#define BEFORE_TRIES 8

const struct structure_limits guard_limits = {
	GUARD_METADATA_BYTES_MAX,
	GUARD_MEMORY_BYTES_MAX,
};

/* --- text ------------------------------------------------------------------
 */

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

static void put(struct text *t, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
static void put(struct text *t, const char *format, ...)
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

static void put_name(struct text *t, const char *name)
{
	put(t, "%.200s", name);
}

/* --- the step before -------------------------------------------------------
 */

/* "1", "20", ... of a name: shorter numbers are smaller, zeros do not count. */
static const char *next_number(const char *p, size_t *ret_len)
{
	while (*p && !isdigit((unsigned char)*p))
		p++;
	while (*p == '0' && isdigit((unsigned char)p[1]))
		p++;
	*ret_len = 0;
	while (isdigit((unsigned char)p[*ret_len]))
		(*ret_len)++;
	return p;
}

static int compare_numbers(const char *a, const char *b)
{
	for (;;) {
		size_t n, m;
		int c;

		a = next_number(a, &n);
		b = next_number(b, &m);
		if (n == 0 || m == 0)
			return (n > 0) - (m > 0);
		c = n != m ? (n > m) - (n < m) : memcmp(a, b, n);
		if (c)
			return c;
		a += n;
		b += m;
	}
}

static bool same_series(const char *a, const char *b)
{
	while (*a && *b) {
		bool digit = isdigit((unsigned char)*a);

		if (digit != (isdigit((unsigned char)*b) != 0))
			return false;
		if (!digit && *a++ != *b++)
			return false;
		while (digit && isdigit((unsigned char)*a))
			a++;
		while (digit && isdigit((unsigned char)*b))
			b++;
	}
	return *a == *b;
}

/* Parts of one step are beside each other, too: they are no steps. */
static bool is_part(const char *name)
{
	static const char *const words[] = { "rank", "shard", "part", "worker",
					     "node" };

	for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++)
		if (strstr(name, words[i]))
			return true;
	return false;
}

struct before {
	const struct guard_step *step;
	char below[STORE_NAME_MAX + 1]; /* only what is smaller; or empty */
	char name[STORE_NAME_MAX + 1]; /* the greatest of these */
	uint64_t ino; /* 0: none */
	unsigned tries;
};

static int before_look(void *arg, const char *name,
		       const struct dirent_rec *entry, uint64_t cookie)
{
	struct before *b = arg;
	const char *limit = b->below[0] ? b->below : b->step->name;

	(void)cookie;
	if (!S_ISDIR(entry->type) || entry->ino == b->step->dir ||
	    !same_series(name, b->step->name) ||
	    compare_numbers(name, limit) >= 0 ||
	    (b->ino != 0 && compare_numbers(name, b->name) <= 0))
		return 0;
	b->ino = entry->ino;
	strcpy(b->name, name);
	return 0;
}

static bool has_metadata(struct store *st, uint64_t dir)
{
	struct inode *in;

	if (names_lookup(st->names, dir, DCP_METADATA_NAME, &in) < 0)
		return false;
	inode_put(st->inodes, in, 1);
	return true;
}

/*
 * The next smaller one. A step with .metadata is compared with another such:
 * one without was not finished. -ENODATA: there is none.
 */
static int find_before(struct store *st, bool dcp, struct before *b)
{
	while (b->tries++ < BEFORE_TRIES) {
		int rc;

		b->ino = 0;
		rc = names_list(st->names, b->step->parent, 0, before_look, b);
		if (rc < 0)
			return rc;
		if (b->ino == 0)
			break;
		strcpy(b->below, b->name);
		if (!dcp || has_metadata(st, b->ino))
			return 0;
	}
	return -ENODATA;
}

static int64_t changed_at(struct store *st, uint64_t dir, uid_t *ret_uid)
{
	struct inode *in;
	int64_t when = -1;

	if (inode_get(st->inodes, dir, &in) < 0)
		return -1;
	{
		HOLD(&in->lock);
		if (in->attr.nlink > 0)
			when = in->attr.mtime_ns;
		*ret_uid = in->attr.uid;
	}
	inode_put(st->inodes, in, 1);
	return when;
}

/*
 * The step before, that there is something to compare with: what has no
 * tensors was no step, a damaged one is no measure, and one that is just being
 * deleted is neither. uid: see guard_difference(). Who publishes a step may
 * compare it with what he can read: that the call is refused would tell him of
 * the rest. -ENODATA: there is none.
 */
static int read_before(struct store *st, const struct guard_step *step,
		       const uid_t *uid, struct before *b,
		       struct structure *ret)
{
	bool dcp = step->metadata != 0 || has_metadata(st, step->dir);
	uid_t publisher = 0;
	const uid_t *reader = uid ? uid : &publisher;
	int rc;

	*b = (struct before){ .step = step };
	if (step->parent == 0 || is_part(step->name))
		return -ENODATA;
	(void)changed_at(st, step->dir, &publisher);
	while ((rc = find_before(st, dcp, b)) == 0) {
		uid_t owner = 0;
		int64_t when = changed_at(st, b->ino, &owner);

		if (uid && *uid != 0 && *uid != owner)
			return -EACCES;
		rc = structure_of_dir(st, b->ino, 0, &guard_limits, reader, ret);
		if (rc == 0 && ret->tensors.count > 0 &&
		    ret->error_count == 0 && when >= 0 &&
		    when == changed_at(st, b->ino, &owner))
			return 0;
		structure_release(ret);
		if (rc < 0 && rc != -ENOENT && rc != -E2BIG &&
		    (uid || rc != -EACCES))
			return rc;
	}
	return rc;
}

/* --- differences -----------------------------------------------------------
 */

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
	const char *then, *now; /* the steps' names */
	bool dcp_only;
	size_t total;
	size_t count[CHANGES];
	const struct tensor *told[CHANGES][NAMES_TOLD];
	struct bytes *lines; /* all of them, for who asks; or NULL */
	struct guard_ignored ignored;
};

static bool ends_in(const char *text, const char *suffix)
{
	size_t n = text ? strlen(text) : 0, m = strlen(suffix);

	return n >= m && strcmp(text + n - m, suffix) == 0;
}

static void line_put(struct bytes *out, enum change change,
		     const struct tensor *a, const struct tensor *b)
{
	const struct tensor *t = b ? b : a;
	char line[512];
	struct text text = { line, 0, sizeof(line) };

	if (out->len > LINES_BYTES_MAX)
		return;
	put(&text, "%s: ", change_words[change]);
	put_name(&text, t->name);
	if (change == RETYPED)
		put(&text, " (%s -> %s)", a->dtype ? a->dtype : "bytes",
		    b->dtype ? b->dtype : "bytes");
	if (change == MOVED)
		put(&text, " (%.100s -> %.100s)", a->file ? a->file : "",
		    b->file ? b->file : "");
	bytes_put(out, line, text.len);
	bytes_put(out, "\n", 1);
}

/* Is this number one of the step's name? */
static bool is_number_of(const char *digits, size_t len, const char *step)
{
	size_t n;

	for (const char *at = next_number(step, &n); n > 0;
	     at = next_number(at + n, &n))
		if (n == len && memcmp(at, digits, n) == 0)
			return true;
	return false;
}

/* The same file, where a step's own number in its name does not count. */
static bool same_place(const char *a, const char *step_a, const char *b,
		       const char *step_b)
{
	a = a ? a : "";
	b = b ? b : "";
	while (*a && *b) {
		size_t n, m;

		if (!isdigit((unsigned char)*a) ||
		    !isdigit((unsigned char)*b)) {
			if (*a++ != *b++)
				return false;
			continue;
		}
		a = next_number(a, &n);
		b = next_number(b, &m);
		if ((n != m || memcmp(a, b, n) != 0) &&
		    !(is_number_of(a, n, step_a) && is_number_of(b, m, step_b)))
			return false;
		a += n;
		b += m;
	}
	return *a == *b;
}

static void differ(void *arg, const struct tensor *a, const struct tensor *b)
{
	struct difference *d = arg;
	const struct tensor *t = b ? b : a;
	enum change change;

	if (d->dcp_only && !ends_in(t->file, ".distcp"))
		return;
	if (!a)
		change = ADDED;
	else if (!b)
		change = REMOVED;
	else if (!structure_same_type(a, b))
		change = RETYPED;
	else if (!structure_same_shape(a, b))
		change = RESHAPED;
	else if (!same_place(a->file, d->then, b->file, d->now))
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

static void put_difference(struct text *t, const struct difference *d,
			   const char *before)
{
	const char *comma = "";

	put(t, "its structure is not that of ");
	put_name(t, before);
	for (enum change c = 0; c < CHANGES; c++) {
		if (d->count[c] == 0)
			continue;
		put(t, "%s %zu tensor%s %s (", c == 0 || !*comma ? ":" : comma,
		    d->count[c], d->count[c] == 1 ? " is" : "s are",
		    change_words[c]);
		comma = ",";
		for (size_t i = 0; i < d->count[c] && i < NAMES_TOLD; i++) {
			put(t, "%s", i > 0 ? ", " : "");
			put_name(t, d->told[c][i]->name);
		}
		put(t, "%s)", d->count[c] > NAMES_TOLD ? ", ..." : "");
	}
}

static int compare(struct store *st, const struct guard_step *step,
		   const uid_t *uid, const struct structure *now,
		   struct difference *d, struct before *before)
{
	struct structure then = { .format = NULL };
	int rc = guard_ignored_read(st, step, &d->ignored);

	if (rc == 0)
		rc = read_before(st, step, uid, before, &then);
	if (rc < 0)
		return rc;
	d->then = before->name;
	d->now = step->name;
	rc = structure_pair(&then, now, differ, d);
	/* What was told of is there no longer. */
	for (size_t i = 0; i < NAMES_TOLD && i < d->count[REMOVED]; i++) {
		const char *name = d->told[REMOVED][i]->name;
		struct tensor *kept = calloc(1, sizeof(*kept));

		if (kept)
			kept->name = strdup(name);
		if (!kept || !kept->name) {
			free(kept);
			d->count[REMOVED] = i;
			rc = -ENOMEM;
			break;
		}
		d->told[REMOVED][i] = kept;
	}
	structure_release(&then);
	return rc;
}

static void difference_release(struct difference *d)
{
	guard_ignored_release(&d->ignored);
	for (size_t i = 0; i < NAMES_TOLD && i < d->count[REMOVED]; i++) {
		char *name;
		void *kept;

		memcpy(&name, &d->told[REMOVED][i]->name, sizeof(name));
		memcpy(&kept, &d->told[REMOVED][i], sizeof(kept));
		free(name);
		free(kept);
	}
}

/* --- expectations ----------------------------------------------------------
 */

static bool has_tensor(const struct structure *s, const char *name)
{
	size_t lo = 0, hi = s->tensors.count;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (strcmp(s->tensors.all[mid].name, name) < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < s->tensors.count &&
	       strcmp(s->tensors.all[lo].name, name) == 0;
}

static int put_missing(struct store *st, const struct guard_step *step,
		       const struct structure *s, struct text *t, bool *ret)
{
	SCOPED(scope_free) char *expected = NULL;
	char *save = NULL;
	size_t n = 0;
	int rc = guard_expected(st, step, s->tensors.count == 0, &expected);

	if (rc < 0)
		return rc == -ENODATA ? 0 : rc;
	for (char *name = strtok_r(expected, "\r\n", &save); name;
	     name = strtok_r(NULL, "\r\n", &save)) {
		if (has_tensor(s, name) || n++ >= NAMES_TOLD)
			continue;
		put(t, "%s",
		    n == 1 ? "tensors that " GUARD_EXPECT_XATTR
			     " declares are not there ("
			   : ", ");

		put_name(t, name);
	}
	if (n > NAMES_TOLD)
		put(t, ", ... %zu in all", n);
	if (n > 0)
		put(t, ")");
	*ret = n > 0;
	return 0;
}

/* --- the whole -------------------------------------------------------------
 */

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
		if (error_counts(step, &s->errors[i]) && n++ < NAMES_TOLD) {
			put(t, "%s", n > 1 ? ", " : "it is damaged: ");
			put_name(t, s->errors[i].file);
			put(t, ": %.200s", s->errors[i].what);
		}
	for (size_t i = 0; i < s->closure.count; i++) {
		const struct closure_finding *f = &s->closure.findings[i];

		if (f->kind == CLOSURE_NOT_CHECKED || n++ >= NAMES_TOLD)
			continue;
		put(t, "%s%s: ",
		    n > 1 ? ", " : ".metadata does not fit the files: ",
		    closure_kind_name(f->kind));
		put_name(t, f->file ? f->file : "");
		put(t, "%s", f->file && f->item ? " " : "");
		put_name(t, f->item ? f->item : "");
		put(t, " %.200s", f->what);
	}
	if (n > NAMES_TOLD)
		put(t, ", ... %zu in all", n);
}

int guard_step_check(struct store *st, const struct guard_step *step,
		     struct guard_verdict *ret)
{
	SCOPED(structure_release) struct structure now = { .format = NULL };
	SCOPED(difference_release)
	struct difference d = { .dcp_only = step->dcp_only };
	struct text t = { ret->text, 0, sizeof(ret->text) };
	struct before before;
	size_t start;
	int rc;

	memset(ret, 0, sizeof(*ret));
	rc = structure_of_dir(st, step->dir, step->metadata, &guard_limits,
			      NULL, &now);
	if (rc < 0)
		return rc;
	put(&t, "structure: ");
	put_name(&t, step->name);
	put(&t, ": ");
	start = t.len;
	ret->broken = is_broken(step, &now);
	if (ret->broken)
		put_broken(&t, step, &now);
	if (t.len > start)
		put(&t, "; ");
	rc = put_missing(st, step, &now, &t, &ret->missing);
	if (rc == 0 && now.tensors.count > 0)
		rc = compare(st, step, NULL, &now, &d, &before);
	if (rc < 0 && rc != -ENODATA && rc != -ENOENT)
		return rc;
	ret->different = d.total > 0;
	if (ret->different) {
		if (ret->missing)
			put(&t, "; ");
		put_difference(&t, &d, before.name);
	}
	if (!ret->broken && !ret->missing && !ret->different)
		ret->text[0] = 0;
	else if (t.len > 2 && strcmp(t.at + t.len - 2, "; ") == 0)
		t.at[t.len - 2] = 0;
	return 0;
}

int guard_step_difference(struct store *st, const struct guard_step *step,
			  const uid_t *uid, struct bytes *out)
{
	SCOPED(structure_release) struct structure now = { .format = NULL };
	SCOPED(difference_release) struct difference d = { .lines = out };
	struct before before;
	int rc;

	rc = structure_of_dir(st, step->dir, 0, &guard_limits, uid, &now);
	if (rc == 0)
		rc = compare(st, step, uid, &now, &d, &before);
	if (rc == -ENOENT)
		rc = -ENODATA;
	return rc < 0 ? rc : out->failed ? -ENOMEM : 0;
}

/* The digest of what is durable and not being changed. */
static bool digest_of(struct store *st, uint64_t dir, const char *file,
		      uint64_t *ret_size, uint8_t ret[16])
{
	struct inode *in;
	bool known = false;

	if (structure_lookup(st, dir, file, &in) < 0)
		return false;
	if (inode_load_file(st->inodes, in) == 0) {
		HOLD(&in->lock);
		known = in->file->content && !file_is_dirty(in->file);
		if (known) {
			*ret_size = in->file->content->c.size_bytes;
			memcpy(ret, in->file->content->c.digest, 16);
		}
	}
	inode_put(st->inodes, in, 1);
	return known;
}

static int compare_files(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

int guard_step_identical(struct store *st, const struct guard_step *step,
			 char text[GUARD_TEXT_BYTES])
{
	SCOPED(structure_release) struct structure s = { .format = NULL };
	SCOPED(scope_free) const char **files = NULL;
	struct text t = { text, 0, GUARD_TEXT_BYTES };
	struct before before;
	uint64_t bytes = 0;
	size_t n = 0;
	struct structure then = { .format = NULL };
	int rc = read_before(st, step, NULL, &before, &then);

	structure_release(&then);
	if (rc < 0)
		return rc;
	rc = structure_of_dir(st, step->dir, 0, &guard_limits, NULL, &s);
	if (rc < 0)
		return rc;
	files = calloc(s.tensors.count + 1, sizeof(*files));
	if (!files)
		return -ENOMEM;
	for (size_t i = 0; i < s.tensors.count; i++)
		if (s.tensors.all[i].dtype && s.tensors.all[i].file)
			files[n++] = s.tensors.all[i].file;
	if (n > 1)
		qsort(files, n, sizeof(*files), compare_files);
	for (size_t i = 0; i < n; i++) {
		uint64_t size[2];
		uint8_t digest[2][16];

		if (i > 0 && strcmp(files[i], files[i - 1]) == 0)
			continue;
		if (!digest_of(st, step->dir, files[i], &size[0], digest[0]) ||
		    !digest_of(st, before.ino, files[i], &size[1], digest[1]) ||
		    size[0] != size[1] || memcmp(digest[0], digest[1], 16) != 0)
			return 0;
		bytes += size[0];
	}
	if (bytes == 0)
		return 0;
	put(&t, "structure: ");
	put_name(&t, step->name);
	put(&t, ": all its tensors have the bytes they have in ");
	put_name(&t, before.name);
	put(&t, ": stale weights may have been saved");
	return 1;
}
