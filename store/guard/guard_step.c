/*
 * guard_step.c - one step against the step before it: what differs, what is
 * missing, what is damaged, and how that is said in one line.
 */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/text.h"
#include "store/guard/guard_private.h"
#include "store/names/names.h"
#include "store/step/compare.h"

/* --- differences --- */

/* Room that an attribute's value has, and for one line more. */
#define LINES_BYTES_MAX (XATTR_VALUE_MAX - 1024)

/* Files without a tensor that are looked for in the step before. */
#define WITHOUT_MAX 64

struct difference {
	struct guard_before before;
	struct structure then, now;
	const struct guard_step *step;
	size_t total;
	size_t count[COMPARE_CHANGES];
	const struct tensor *told[COMPARE_CHANGES][GUARD_NAMES_TOLD];
	bool odd; /* the step before was: nothing is gone, see compare.h */
	struct bytes *lines; /* all of them, for who asks; or NULL */
	struct guard_ignored ignored;
};

static void difference_release(struct difference *d)
{
	free(d->ignored.text);
	structure_release(&d->then);
	structure_release(&d->now);
}

/* With dcp_only other files may still come. */
static bool counts(void *arg, const struct tensor *t)
{
	const struct difference *d = arg;

	return !guard_is_ignored(&d->ignored, t->name) &&
	       (!d->step->dcp_only || text_ends_in(t->file, DCP_METADATA_NAME));
}

static void count(void *arg, enum compare_change change, const struct tensor *a,
		  const struct tensor *b)
{
	struct difference *d = arg;

	if (d->count[change] < GUARD_NAMES_TOLD)
		d->told[change][d->count[change]] = b ? b : a;
	d->count[change]++;
	d->total++;
}

static void put_line(void *arg, enum compare_change change,
		     const struct tensor *a, const struct tensor *b)
{
	struct difference *d = arg;
	char line[512];
	struct guard_text text = { line, 0, sizeof(line) };

	if (d->lines->len > LINES_BYTES_MAX)
		return;
	if (change == COMPARE_GONE && d->odd)
		change = COMPARE_LEFT_OUT;
	guard_put(&text, "%s: %.200s", compare_word(change), (b ? b : a)->name);
	if (change == COMPARE_RETYPED)
		guard_put(&text, " (%s -> %s)", a->dtype ? a->dtype : "bytes",
			  b->dtype ? b->dtype : "bytes");
	if (change == COMPARE_MOVED)
		guard_put(&text, " (%.100s -> %.100s)", a->file ? a->file : "",
			  b->file ? b->file : "");
	bytes_put(d->lines, line, text.len);
	bytes_put(d->lines, "\n", 1);
}

/* What was too large to be looked at, or kept from it. */
static void put_not_read(const struct difference *d)
{
	for (size_t i = 0; i < d->now.error_count; i++) {
		const struct structure_error *e = &d->now.errors[i];
		char line[512];
		struct guard_text text = { line, 0, sizeof(line) };

		if ((e->fault != STRUCTURE_NOT_READ &&
		     e->fault != STRUCTURE_ELSEWHERE) ||
		    d->lines->len > LINES_BYTES_MAX)
			continue;
		guard_put(&text, "not looked at: %.200s: %.250s", e->file,
			  e->what);
		bytes_put(d->lines, line, text.len);
		bytes_put(d->lines, "\n", 1);
	}
}

static void put_difference(struct guard_text *t, const struct difference *d)
{
	const char *comma = ":";

	guard_put(t, "its structure is not that of %.200s", d->before.name);
	for (enum compare_change c = 0; c < COMPARE_CHANGES; c++) {
		if (d->count[c] == 0)
			continue;
		guard_put(t, "%s %zu tensor%s %s (", comma, d->count[c],
			  d->count[c] == 1 ? " is" : "s are", compare_word(c));
		comma = ",";
		for (size_t i = 0; i < d->count[c] && i < GUARD_NAMES_TOLD; i++)
			guard_put(t, "%s%.200s", i > 0 ? ", " : "",
				  d->told[c][i]->name);
		guard_put(t, "%s)",
			  d->count[c] > GUARD_NAMES_TOLD ? ", ..." : "");
	}
}

/* Was it the step before that had more than it should? Looked at when it
 * counts.
 */
static void find_odd(struct guard_visit *v, const uid_t *uid,
		     struct difference *d)
{
	SCOPED(structure_release) struct structure earlier = { .format = NULL };
	struct guard_before before = d->before;
	size_t *gone = &d->count[COMPARE_GONE];
	size_t *left = &d->count[COMPARE_LEFT_OUT];

	if (guard_read_before(v, d->step, uid, &before, &earlier) < 0 ||
	    compare_odd(&earlier, &d->then, &d->now, counts, d) != *gone)
		return;
	d->odd = true;
	for (size_t i = 0; i < *gone && i < GUARD_NAMES_TOLD; i++)
		if (*left + i < GUARD_NAMES_TOLD)
			d->told[COMPARE_LEFT_OUT][*left + i] =
				d->told[COMPARE_GONE][i];
	*left += *gone;
	*gone = 0;
}

/* d->now was read: what is not as in the step before. */
static int compare(struct guard_visit *v, const uid_t *uid,
		   struct difference *d)
{
	struct compare_step a, b;
	int rc = guard_ignored_read(v, d->step, &d->ignored);

	if (rc == 0)
		rc = guard_read_before(v, d->step, uid, &d->before, &d->then);
	if (rc < 0)
		return rc;
	a = (struct compare_step){ &d->then, d->before.name };
	b = (struct compare_step){ &d->now, d->before.now };
	rc = compare_steps(&a, &b, counts, count, d);
	if (rc == 0 && d->count[COMPARE_GONE] > 0)
		find_odd(v, uid, d);
	return rc == 0 && d->lines && d->total > 0
		       ? compare_steps(&a, &b, counts, put_line, d)
		       : rc;
}

/* Two paths that differ in their numbers at the most. */
static bool same_but_numbers(const char *a, const char *b)
{
	for (;; a++, b++) {
		if (isdigit((unsigned char)*a) && isdigit((unsigned char)*b)) {
			a += strspn(a, "0123456789") - 1;
			b += strspn(b, "0123456789") - 1;
		} else if (*a != *b) {
			return false;
		} else if (!*a) {
			return true;
		}
	}
}

/* Had this file tensors in the step before? */
static bool had_tensors(const struct difference *d, const char *name)
{
	const struct tensors *before = &d->then.tensors;

	if (d->step->file)
		return before->count > 0;
	for (size_t i = 0; i < before->count; i++)
		if (before->all[i].file &&
		    same_but_numbers(before->all[i].file, name))
			return true;
	return false;
}

/*
 * It has no tensor: is it to be compared? A folder with texts alone may be that
 * of something else, unless a tracker names it; the files of an empty one that
 * a tracker names may come later, as in a restore.
 */
static bool is_step_without(const struct guard_step *step,
			    const struct structure *now)
{
	return now->bare_count > 0 || now->unexplained_count > 0 ||
	       (step->tracked ? now->only_text : now->empty);
}

/* What was compared has no tensor: may it be in a file that nobody can read? */
static bool may_be_elsewhere(const struct difference *d)
{
	if (d->now.tensors.count > 0 || !d->now.opaque)
		return false;
	for (size_t i = 0; i < d->now.bare_count && i < WITHOUT_MAX; i++)
		if (had_tensors(d, d->now.bare[i]))
			return false;
	return true;
}

/* Files that are not what they were: they had tensors in the step before. */
static bool put_unexplained(struct guard_text *t, const struct difference *d)
{
	size_t n = 0;

	for (size_t i = 0; i < d->now.unexplained_count && i < WITHOUT_MAX;
	     i++) {
		const char *name = d->now.unexplained[i];

		if (!had_tensors(d, name) || n++ >= GUARD_NAMES_TOLD)
			continue;
		if (n == 1)
			guard_put_next(t);
		guard_put(t,
			  "%s%.200s: it had tensors in %.200s, and begins like "
			  "nothing that is known",
			  n == 1 ? "it is damaged: " : ", ", name,
			  d->before.name);
	}
	return n > 0;
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

static int put_missing(struct guard_visit *v, const struct guard_step *step,
		       const struct tensors *tensors, struct guard_text *t,
		       bool *ret)
{
	SCOPED(scope_free) char *expected = NULL;
	char *save = NULL;
	size_t n = 0;
	int rc = guard_said(v, step, GUARD_EXPECT_XATTR, tensors->count == 0,
			    &expected);

	if (rc < 0)
		return rc == -ENODATA ? 0 : rc;
	for (char *name = strtok_r(expected, "\r\n", &save); name;
	     name = strtok_r(NULL, "\r\n", &save)) {
		if (has_tensor(tensors, name) || n++ >= GUARD_NAMES_TOLD)
			continue;
		if (n == 1)
			guard_put_next(t);
		guard_put(t, "%s%.200s",
			  n == 1 ? "tensors that " GUARD_EXPECT_XATTR
				   " declares are not there ("
				 : ", ",
			  name);
	}
	if (n > GUARD_NAMES_TOLD)
		guard_put(t, ", ... %zu in all", n);
	if (n > 0)
		guard_put(t, ")");
	*ret = n > 0;
	return 0;
}

/* --- the whole --- */

/* What a step says of itself, and what was expected of it. */
static int check_alone(struct guard_visit *v, const struct difference *d,
		       struct guard_text *t, struct guard_verdict *ret)
{
	bool declared = false, reported;
	int rc;

	ret->broken = guard_put_faults(t, d->step, &d->now, GUARD_FAULT_BROKEN);
	ret->missing =
		guard_put_faults(t, d->step, &d->now, GUARD_FAULT_MISSING);
	reported = guard_put_faults(t, d->step, &d->now, GUARD_FAULT_REPORTED);
	rc = put_missing(v, d->step, &d->now.tensors, t, &declared);
	ret->missing = ret->missing ||
		       (declared && !structure_is_partly_read(&d->now));
	ret->different = reported;
	return rc;
}

int guard_step_check(struct guard_visit *v, const struct guard_step *step,
		     struct guard_verdict *ret)
{
	SCOPED(difference_release) struct difference d = { .step = step };
	struct guard_text t = { ret->text, 0, sizeof(ret->text) };
	int rc = guard_read_step(v, step, step->dir, NULL, true, &d.now);

	memset(ret, 0, sizeof(*ret));
	if (rc < 0)
		return rc;
	guard_put(&t, "structure: %.200s: ", step->name);
	rc = check_alone(v, &d, &t, ret);
	if (rc == 0 &&
	    (d.now.tensors.count > 0 || is_step_without(step, &d.now)))
		rc = compare(v, NULL, &d);
	if (rc < 0 && rc != -ENODATA && rc != -ENOENT)
		return rc;
	ret->broken |= put_unexplained(&t, &d);
	if (d.total > 0 && !may_be_elsewhere(&d)) {
		ret->different = true;
		ret->gone = d.count[COMPARE_GONE] > 0 &&
			    !structure_is_partly_read(&d.now);
		guard_put_next(&t);
		put_difference(&t, &d);
	}
	if (!ret->broken && !ret->missing && !ret->different)
		ret->text[0] = 0;
	return 0;
}

int guard_step_difference(struct guard_visit *v, const struct guard_step *step,
			  const uid_t *uid, struct bytes *out)
{
	SCOPED(difference_release)
	struct difference d = { .step = step, .lines = out };
	int rc = guard_read_dir(v, step->dir, 0, uid, true, &d.now);

	if (rc == 0) {
		put_not_read(&d);
		rc = compare(v, uid, &d);
	}
	if (rc == -ENOENT)
		rc = -ENODATA;
	if (rc == -ENODATA && out->len > 0)
		rc = 0;
	return rc < 0 ? rc : out->failed ? -ENOMEM : 0;
}

/* --- the same bytes --- */

struct digest_of_file {
	uint64_t bytes;
	uint8_t hash[HASH_BYTES];
};

/* Of what is durable and not being changed. */
static bool digest_of(struct guard_visit *v, uint64_t dir, const char *file,
		      struct digest_of_file *ret)
{
	uint64_t id;

	return guard_find(v, dir, file, &id) == 0 &&
	       visit_digest(v, id, &ret->bytes, ret->hash);
}

static int compare_files(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

int guard_step_identical(struct guard_visit *v, const struct guard_step *step,
			 char text[GUARD_TEXT_BYTES])
{
	SCOPED(structure_release) struct structure s = { .format = NULL };
	SCOPED(scope_free) const char **files = NULL;
	struct guard_text t = { text, 0, GUARD_TEXT_BYTES };
	struct guard_before before = { .dir = 0 };
	uint64_t bytes = 0;
	size_t n = 0;
	int rc = guard_read_before(v, step, NULL, &before, &s);

	structure_release(&s); /* its bytes alone are compared */
	if (rc == 0)
		rc = guard_read_step(v, step, step->dir, NULL, false, &s);
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
		struct digest_of_file a, b;

		if (i > 0 && strcmp(files[i], files[i - 1]) == 0)
			continue;
		if (!digest_of(v, step->dir, files[i], &a) ||
		    !digest_of(v, before.dir, files[i], &b) ||
		    a.bytes != b.bytes ||
		    memcmp(a.hash, b.hash, sizeof(a.hash)) != 0)
			return 0;
		bytes += a.bytes;
	}
	if (bytes == 0)
		return 0;
	guard_put(
		&t,
		"structure: %.200s: all its tensors have the bytes they have in "
		"%.200s: stale weights may have been saved",
		step->name, before.name);
	return 1;
}
