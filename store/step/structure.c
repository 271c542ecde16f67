/*
 * structure.c - what was found in a step: kept, put in order, signed, and
 * compared with another. structure_read.c finds it.
 */
#include "store/step/structure.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "store/base/scope.h"
#include "store/base/vec.h"

/* Errors that are kept: one of each file, of many files that are damaged. */
#define ERRORS_MAX 1000

char *structure_keep_name(struct structure *s, const char *name)
{
	char *kept;

	if (vec_grow(&s->names, s->name_count, &s->name_capacity,
		     sizeof(*s->names)) < 0)
		return NULL;
	kept = strdup(name);
	if (kept)
		s->names[s->name_count++] = kept;
	return kept;
}

int structure_add_fault(struct structure *s, enum structure_fault fault,
			const char *file, const char *what)
{
	struct structure_error *e;
	int rc;

	if (s->error_count == ERRORS_MAX)
		return 0;
	rc = vec_grow(&s->errors, s->error_count, &s->error_capacity,
		      sizeof(*s->errors));
	if (rc < 0)
		return rc;
	e = &s->errors[s->error_count];
	e->fault = fault;
	e->file = strdup(file);
	if (!e->file)
		return -ENOMEM;
	(void)snprintf(e->what, sizeof(e->what), "%s", what);
	s->error_count++;
	return 0;
}

int structure_add_error(struct structure *s, const char *file, const char *what)
{
	return structure_add_fault(s, STRUCTURE_TORN, file, what);
}

bool structure_is_sound(const struct structure *s)
{
	return s->error_count == 0 && closure_holds(&s->closure);
}

bool structure_is_partly_read(const struct structure *s)
{
	for (size_t i = 0; i < s->error_count; i++)
		if (s->errors[i].fault == STRUCTURE_NOT_READ ||
		    s->errors[i].fault == STRUCTURE_ELSEWHERE)
			return true;
	return false;
}

void structure_release_dcp(struct structure *s, struct dcp *d)
{
	memory_note(s->tensors.budget, -(int64_t)d->memory_bytes, 0);
	dcp_release(d);
}

void structure_release(struct structure *s)
{
	for (size_t i = 0; i < s->name_count; i++)
		free(s->names[i]);
	for (size_t i = 0; i < s->error_count; i++)
		free(s->errors[i].file);
	free(s->names);
	free(s->errors);
	free(s->unexplained);
	free(s->bare);
	closure_release(&s->closure);
	structure_release_dcp(s, &s->dcp);
	for (size_t i = 0; i < s->nested_count; i++)
		structure_release_dcp(s, &s->nested[i]);
	free(s->nested);
	tensors_release(&s->tensors);
	memset(s, 0, sizeof(*s));
}

/* --- comparing ------------------------------------------------------------ */

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

/* By name, and place in a larger tensor. */
static int compare_place(const struct tensor *a, const struct tensor *b)
{
	int c = strcmp(a->name, b->name);

	if (c == 0 && a->place && b->place && a->rank != b->rank)
		return a->rank < b->rank ? -1 : 1;
	return c ? c : compare_numbers(a->place, b->place, a->rank);
}

static int compare(const void *pa, const void *pb)
{
	const struct tensor *a = pa, *b = pb;
	int c = compare_place(a, b);

	if (c == 0)
		c = strcmp(file_of(a), file_of(b));
	return c ? c : (a->offset > b->offset) - (a->offset < b->offset);
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
	       compare_numbers(a->shape, b->shape, a->rank) == 0 &&
	       compare_numbers(a->strides, b->strides, a->rank) == 0 &&
	       compare_numbers(a->whole, b->whole, a->rank) == 0;
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

	while (n < left && compare_place(&t[0], &t[n]) == 0)
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
				      : compare_place(a, b);
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

/* --- the signature -------------------------------------------------------- */

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

int structure_finish(struct structure *s)
{
	if (!s->format)
		s->format = "plain";
	if (s->tensors.count > 1)
		qsort(s->tensors.all, s->tensors.count, sizeof(*s->tensors.all),
		      compare);
	return sign(s);
}
