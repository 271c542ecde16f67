/*
 * structure_tree.c - folders are listed in the order in which they were found,
 * each list sorted, so that what is found depends on the files alone.
 */
#include "store/step/structure_tree.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/vec.h"
#include "store/step/step_name.h"

void tree_release(struct tree *t)
{
	for (size_t i = 0; i < t->count; i++)
		free(t->all[i].path);
	free(t->all);
	memset(t, 0, sizeof(*t));
}

char *tree_join(const char *folder, const char *name)
{
	char *path = NULL;

	if (asprintf(&path, "%s%s%s", folder, *folder ? "/" : "", name) < 0)
		return NULL;
	return path;
}

static int add(void *arg, const char *name, bool folder, uint64_t size_bytes)
{
	struct tree *t = arg;
	struct tree_entry *e;

	if (t->count > STRUCTURE_FILES_MAX)
		return t->rc = -E2BIG;
	t->rc = vec_grow(&t->all, t->count, &t->capacity, sizeof(*t->all));
	if (t->rc < 0)
		return t->rc;
	e = &t->all[t->count];
	*e = (struct tree_entry){ .size_bytes = size_bytes,
				  .in = t->listing,
				  .folder = folder };
	if (t->count > 0)
		e->depth = t->all[t->listing].depth + 1;
	e->path = t->count > 0 ? tree_join(t->all[t->listing].path, name)
			       : strdup("");
	if (!e->path)
		return t->rc = -ENOMEM;
	e->name = e->path + strlen(e->path) - strlen(name);
	t->count++;
	return 0;
}

static int compare(const void *a, const void *b)
{
	return strcmp(((const struct tree_entry *)a)->path,
		      ((const struct tree_entry *)b)->path);
}

static bool is_like_step(const struct tree_entry *e)
{
	size_t digits = strspn(e->name, "0123456789");

	return e->folder && (step_name_of(e->name) == STEP_NAME_SURE ||
			     (digits > 0 && !e->name[digits]));
}

/* What is in the folder with this number. */
static int list(struct tree *t, const struct structure_source *in, uint32_t at)
{
	size_t from = t->count, steps = 0, kept;
	int rc;

	t->listing = at;
	rc = in->list(in->self, t->all[at].path, add, t);
	if (t->rc < 0)
		return t->rc;
	if (rc < 0 && (at == 0 || (rc != -ENOENT && rc != -EACCES)))
		return rc; /* below it, it may be gone, or somebody else's */
	if (t->count - from > 1)
		qsort(t->all + from, t->count - from, sizeof(*t->all), compare);
	for (size_t i = kept = from; i < t->count; i++)
		steps += is_like_step(&t->all[i]);
	for (size_t i = from; i < t->count; i++) {
		struct tree_entry *e = &t->all[i];

		if (e->folder &&
		    (e->name[0] == '.' || step_name_is_staging(e->name) ||
		     e->depth > STRUCTURE_DEPTH_MAX ||
		     (steps > 1 && is_like_step(e)))) {
			free(e->path);
			continue;
		}
		t->all[kept++] = *e;
	}
	t->count = kept;
	return 0;
}

int tree_read(struct tree *t, const struct structure_source *in)
{
	int rc = add(t, "", true, 0);

	for (uint32_t i = 0; rc == 0 && i < t->count; i++)
		if (t->all[i].folder)
			rc = list(t, in, i);
	return rc;
}
