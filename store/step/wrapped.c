/*
 * wrapped.c - each new name without the parts that wrappers add, sorted. It is
 * made when something is gone, so a step that is in order costs nothing.
 */
#include "store/step/wrapped.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/scope.h"
#include "store/base/vec.h"

#define COUNT(a) (sizeof(a) / sizeof(*(a)))

static const char *const parts[] = { "module", "_orig_mod",
				     "_fsdp_wrapped_module",
				     "_checkpoint_wrapped_module" };

struct wrapped_name {
	char *plain; /* owned */
	const struct tensor *t;
};

static bool is_part(const char *at, size_t len)
{
	for (size_t i = 0; i < COUNT(parts); i++)
		if (strlen(parts[i]) == len && memcmp(at, parts[i], len) == 0)
			return true;
	return false;
}

/* The name without them; the caller's to free. */
static char *plain_of(const char *name)
{
	char *plain = malloc(strlen(name) + 1), *to = plain;

	while (plain && *name) {
		size_t len = strcspn(name, ".");
		size_t all = len + (name[len] == '.');

		if (!is_part(name, len)) {
			memcpy(to, name, all);
			to += all;
		}
		name += all;
	}
	if (plain)
		*to = 0;
	return plain;
}

static int by_plain(const void *a, const void *b)
{
	return strcmp(((const struct wrapped_name *)a)->plain,
		      ((const struct wrapped_name *)b)->plain);
}

static int add(struct wrapped *w, const struct tensor *t)
{
	struct wrapped_name one = { .t = t };
	int rc = vec_grow(&w->all, w->count, &w->capacity, sizeof(one));

	if (rc < 0)
		return rc;
	one.plain = plain_of(t->name);
	if (!one.plain)
		return -ENOMEM;
	w->all[w->count++] = one;
	return 0;
}

int wrapped_init(struct wrapped *w, const struct structure *a,
		 const struct structure *b)
{
	const struct tensor *then = a->tensors.all, *now = b->tensors.all;
	size_t at = 0;
	int rc = 0;

	memset(w, 0, sizeof(*w));
	for (size_t i = 0; rc == 0 && i < b->tensors.count; i++) {
		while (at < a->tensors.count &&
		       strcmp(then[at].name, now[i].name) < 0)
			at++;
		if (at == a->tensors.count ||
		    strcmp(then[at].name, now[i].name) != 0)
			rc = add(w, &now[i]);
	}
	if (rc == 0 && w->count > 1)
		qsort(w->all, w->count, sizeof(*w->all), by_plain);
	return rc;
}

void wrapped_release(struct wrapped *w)
{
	for (size_t i = 0; i < w->count; i++)
		free(w->all[i].plain);
	free(w->all);
}

bool wrapped_has(const struct wrapped *w, const struct tensor *t)
{
	SCOPED(scope_free) char *plain = plain_of(t->name);
	size_t lo = 0, hi = w->count;

	while (plain && lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (strcmp(w->all[mid].plain, plain) < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	for (; plain && lo < w->count && strcmp(w->all[lo].plain, plain) == 0;
	     lo++)
		if (structure_same_shape(w->all[lo].t, t))
			return true;
	return false;
}
