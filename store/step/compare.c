/*
 * compare.c - the tensors of two steps, name by name. Each file has a number,
 * the same in both steps for what is the same file there, so that a name that
 * is in the files of a thousand ranks is paired by sorting numbers. It is gone
 * through twice: what a loss means depends on what is left, so all that is gone
 * is counted first.
 */
#include "store/step/compare.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/scope.h"
#include "store/base/text.h"
#include "store/step/step_name.h"
#include "store/step/wrapped.h"

static const char *const change_words[] = {
	[COMPARE_ADDED] = "new",
	[COMPARE_GONE] = "gone",
	[COMPARE_LEFT_OUT] = "left out",
	[COMPARE_RETYPED] = "of another type",
	[COMPARE_RESHAPED] = "of another shape",
	[COMPARE_MOVED] = "in another file",
	[COMPARE_RESIZED] = "of another length",
};

const char *compare_word(enum compare_change change)
{
	return change_words[change];
}

/* --- files ---------------------------------------------------------------- */

/* Is the number at file[at] that of a rank, or how many there are? */
static bool is_rank(const char *file, size_t at)
{
	static const char *const words[] = { "rank", "world_size",
					     "rng_state" };

	if (at >= 2 && memcmp(file + at - 2, "__", 2) == 0 &&
	    text_ends_in(file, ".distcp"))
		return true;
	for (;;) {
		size_t end = at > 0 && strchr("_-", file[at - 1]) ? at - 1 : at;

		for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++)
			if (step_name_word_ends(file, end, words[i]))
				return true;
		/* mp_rank_00_001: the second one is a rank as well. */
		if (end == at || end == 0 ||
		    !isdigit((unsigned char)file[end - 1]))
			return false;
		for (at = end; at > 0 && isdigit((unsigned char)file[at - 1]);)
			at--;
	}
}

/* A file's name without the step's own number and, if told so, ranks. */
static char *plain_name(const char *file, const char *step, bool ranks_differ)
{
	char *plain = malloc(strlen(file) + 1), *out = plain;

	for (size_t at = 0; plain && file[at];) {
		const char *digits;
		bool rank;
		size_t n;

		if (!isdigit((unsigned char)file[at])) {
			*out++ = file[at++];
			continue;
		}
		rank = is_rank(file, at);
		digits = step_name_number(file + at, &n);
		if (rank ? ranks_differ : step_name_has(step, digits, n)) {
			*out++ = '#';
		} else {
			memcpy(out, digits, n);
			out += n;
		}
		at = (size_t)(digits - file) + n;
	}
	if (plain)
		*out = 0;
	return plain;
}

struct file {
	const char *name; /* as tensors point to it */
	const char *key; /* files of the same key are the same */
	char *plain; /* owned; or NULL */
	uint32_t number;
};

struct side {
	const struct compare_step *step;
	struct file *files; /* owned; by the pointer */
	size_t file_count;
	/* Of the name that is looked at: by the file's number, each once. */
	struct instance *at; /* owned */
	size_t count;
};

struct instance {
	const struct tensor *t;
	uint32_t number;
};

static void side_release(struct side *s)
{
	for (size_t i = 0; i < s->file_count; i++)
		free(s->files[i].plain);
	free(s->files);
	free(s->at);
}

static int by_pointer(const void *a, const void *b)
{
	const char *x = ((const struct file *)a)->name;
	const char *y = ((const struct file *)b)->name;

	return (x > y) - (x < y);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int by_key(const void *a, const void *b)
{
	return strcmp((*(struct file *const *)a)->key,
		      (*(struct file *const *)b)->key);
}

static size_t longest_run(const struct tensors *l)
{
	size_t longest = 1;

	for (size_t i = 1, run = 1; i < l->count; i++) {
		run = strcmp(l->all[i].name, l->all[i - 1].name) ? 1 : run + 1;
		longest = run > longest ? run : longest;
	}
	return longest;
}

/* Files whose names `other` has too keep them, unless ranks differ. */
static int side_init(struct side *s, const struct compare_step *step,
		     const struct structure *other, bool ranks_differ)
{
	const struct structure *of = step->of;
	SCOPED(scope_free)
	char **names = calloc(other->name_count + 1, sizeof(*names));

	s->step = step;
	s->files = calloc(of->name_count + 1, sizeof(*s->files));
	s->at = calloc(longest_run(&of->tensors), sizeof(*s->at));
	if (!names || !s->files || !s->at)
		return -ENOMEM;
	if (other->name_count > 0) {
		memcpy(names, other->names, other->name_count * sizeof(*names));
		qsort(names, other->name_count, sizeof(*names), by_name);
	}
	for (size_t i = 0; i < of->name_count; i++) {
		struct file *f = &s->files[s->file_count++];

		f->name = f->key = of->names[i];
		if (!ranks_differ && bsearch(&f->name, names, other->name_count,
					     sizeof(*names), by_name))
			continue;
		f->key = f->plain =
			plain_name(f->name, step->name, ranks_differ);
		if (!f->plain)
			return -ENOMEM;
	}
	qsort(s->files, s->file_count, sizeof(*s->files), by_pointer);
	return 0;
}

/* The same numbers for the same keys. */
static int number_files(struct side *a, struct side *b)
{
	size_t n = a->file_count + b->file_count;
	SCOPED(scope_free) struct file **all = calloc(n + 1, sizeof(*all));
	uint32_t number = 0;

	if (!all)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		all[i] = i < a->file_count ? &a->files[i]
					   : &b->files[i - a->file_count];
	qsort(all, n, sizeof(struct file *), by_key);
	for (size_t i = 0; i < n; i++) {
		number += i > 0 && strcmp(all[i]->key, all[i - 1]->key) != 0;
		all[i]->number = number;
	}
	return 0;
}

/* --- names ---------------------------------------------------------------- */

static int by_number(const void *a, const void *b)
{
	const struct instance *x = a, *y = b;

	if (x->number != y->number)
		return x->number < y->number ? -1 : 1;
	return (x->t > y->t) - (x->t < y->t);
}

struct walk {
	struct side a, b;
	compare_filter *counts;
	compare_found *found;
	void *arg;
	size_t gone[COMPARE_KINDS]; /* tensors of each kind */
	size_t left[COMPARE_KINDS]; /* in b; known when some are gone */
	struct wrapped wrapped; /* likewise */
	bool telling; /* the second time */
};

/* All that begin at t[0] with its name, by file; returns how many these are. */
static size_t take_run(const struct walk *w, struct side *s,
		       const struct tensor *t, size_t left)
{
	size_t n = 0, found = 0;

	for (; n < left && strcmp(t[n].name, t[0].name) == 0; n++) {
		struct file wanted = { .name = t[n].file };
		const struct file *f = bsearch(&wanted, s->files, s->file_count,
					       sizeof(*s->files), by_pointer);

		if (w->counts(w->arg, &t[n]))
			s->at[found++] =
				(struct instance){ &t[n], f ? f->number : 0 };
	}
	qsort(s->at, found, sizeof(*s->at), by_number);
	for (size_t i = 0; i < found; i++)
		if (i == 0 || s->at[i].number != s->at[s->count - 1].number)
			s->at[s->count++] = s->at[i];
	return n;
}

/* From the whole model to an adapter, whose optimizer is another one. */
static bool became_adapter(const struct walk *w)
{
	return w->gone[COMPARE_MODEL] > 0 && w->left[COMPARE_MODEL] == 0 &&
	       w->left[COMPARE_ADAPTER] > 0;
}

static bool is_damage(const struct walk *w, const struct tensor *t)
{
	const size_t *left = w->left;

	if (!t->dtype || wrapped_has(&w->wrapped, t))
		return false;
	switch (compare_kind(t)) {
	case COMPARE_OPTIMIZER:
		return left[COMPARE_OPTIMIZER] > 0 && !became_adapter(w);
	case COMPARE_MODEL:
		return left[COMPARE_MODEL] > 0 || left[COMPARE_ADAPTER] == 0;
	case COMPARE_BESIDE:
		return false;
	case COMPARE_ADAPTER:
	case COMPARE_KINDS:
	default:
		return true;
	}
}

static void tell(struct walk *w, enum compare_change change,
		 const struct tensor *a, const struct tensor *b)
{
	if (w->telling)
		w->found(w->arg, change, a, b);
}

static void one_gone(struct walk *w, const struct tensor *t)
{
	if (!w->telling)
		w->gone[compare_kind(t)] += t->dtype != NULL;
	else
		tell(w, is_damage(w, t) ? COMPARE_GONE : COMPARE_LEFT_OUT, t,
		     NULL);
}

static void one_pair(struct walk *w, const struct instance *x,
		     const struct instance *y)
{
	const struct tensor *a = x->t, *b = y->t;

	if (!structure_same_type(a, b))
		tell(w, COMPARE_RETYPED, a, b);
	else if (!structure_same_shape(a, b))
		tell(w, COMPARE_RESHAPED, a, b);
	else if (x->number != y->number)
		tell(w, COMPARE_MOVED, a, b);
	else if (a->dtype && a->bytes != b->bytes)
		tell(w, COMPARE_RESIZED, a, b);
}

/* Those in the same file first; what is left over was moved, or is alone. */
static void pair_runs(struct walk *w)
{
	struct instance *x = w->a.at, *y = w->b.at;
	size_t i = 0, k = 0, n = w->a.count, m = w->b.count;
	size_t x_left = 0, y_left = 0;

	while (i < n || k < m) {
		if (k == m || (i < n && x[i].number < y[k].number))
			x[x_left++] = x[i++];
		else if (i == n || x[i].number > y[k].number)
			y[y_left++] = y[k++];
		else
			one_pair(w, &x[i++], &y[k++]);
	}
	for (i = 0; i < x_left || i < y_left; i++)
		if (i >= y_left)
			one_gone(w, x[i].t);
		else if (i >= x_left)
			tell(w, COMPARE_ADDED, NULL, y[i].t);
		else
			one_pair(w, &x[i], &y[i]);
}

static void walk_names(struct walk *w)
{
	const struct tensors *la = &w->a.step->of->tensors;
	const struct tensors *lb = &w->b.step->of->tensors;
	const struct tensor *a = la->all, *b = lb->all;
	size_t a_left = la->count, b_left = lb->count;

	while (a_left > 0 || b_left > 0) {
		int c = a_left == 0   ? 1
			: b_left == 0 ? -1
				      : strcmp(a->name, b->name);
		size_t n, m;

		w->a.count = w->b.count = 0;
		n = c <= 0 ? take_run(w, &w->a, a, a_left) : 0;
		m = c >= 0 ? take_run(w, &w->b, b, b_left) : 0;
		pair_runs(w);
		a += n;
		a_left -= n;
		b += m;
		b_left -= m;
	}
}

static void count_left(struct walk *w)
{
	const struct tensors *l = &w->b.step->of->tensors;

	for (size_t i = 0; i < l->count; i++)
		if (l->all[i].dtype && w->counts(w->arg, &l->all[i]))
			w->left[compare_kind(&l->all[i])]++;
}

static void walk_release(struct walk *w)
{
	side_release(&w->a);
	side_release(&w->b);
	wrapped_release(&w->wrapped);
}

int compare_steps(const struct compare_step *a, const struct compare_step *b,
		  compare_filter *counts, compare_found *found, void *arg)
{
	bool ranks_differ = a->of->world != 0 && b->of->world != 0 &&
			    a->of->world != b->of->world;
	SCOPED(walk_release)
	struct walk w = { .counts = counts, .found = found, .arg = arg };
	size_t gone = 0;
	int rc = side_init(&w.a, a, b->of, ranks_differ);

	if (rc == 0)
		rc = side_init(&w.b, b, a->of, ranks_differ);
	if (rc == 0)
		rc = number_files(&w.a, &w.b);
	if (rc < 0)
		return rc;
	walk_names(&w);
	for (enum compare_kind k = 0; k < COMPARE_KINDS; k++)
		gone += w.gone[k];
	if (gone > 0) {
		count_left(&w);
		rc = wrapped_init(&w.wrapped, a->of, b->of);
	}
	w.telling = true;
	if (rc == 0)
		walk_names(&w);
	return rc;
}

/* --- three steps ---------------------------------------------------------- */

/* Is there a tensor of this name? *at only goes on, as names do. */
static bool has(const struct structure *s, const char *name, size_t *at)
{
	const struct tensor *t = s->tensors.all;

	while (*at < s->tensors.count && strcmp(t[*at].name, name) < 0)
		(*at)++;
	return *at < s->tensors.count && strcmp(t[*at].name, name) == 0;
}

size_t compare_odd(const struct structure *earlier,
		   const struct structure *before, const struct structure *now,
		   compare_filter *counts, void *arg)
{
	size_t at_earlier = 0, at_now = 0, alone = 0;

	for (size_t i = 0; i < before->tensors.count; i++) {
		const struct tensor *t = &before->tensors.all[i];
		bool was, is;

		if (!t->dtype || !counts(arg, t))
			continue;
		was = has(earlier, t->name, &at_earlier);
		is = has(now, t->name, &at_now);
		if (was != is)
			return 0;
		alone += !is;
	}
	at_now = 0;
	for (size_t i = 0; i < earlier->tensors.count; i++) {
		const struct tensor *t = &earlier->tensors.all[i];

		if (t->dtype && counts(arg, t) && !has(now, t->name, &at_now))
			return 0;
	}
	return alone;
}
