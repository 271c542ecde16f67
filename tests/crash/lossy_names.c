#include "tests/crash/lossy_names.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/scope.h"

static void table_release(struct lossy_table *t)
{
	while (t->first) {
		struct lossy_name *n = t->first;

		t->first = n->next;
		free(n);
	}
}

static struct lossy_name *table_entry(const struct lossy_table *t,
				      const char *name)
{
	for (struct lossy_name *n = t->first; n; n = n->next)
		if (strcmp(n->text, name) == 0)
			return n;
	return NULL;
}

uint64_t lossy_table_find(const struct lossy_table *t, const char *name)
{
	const struct lossy_name *n = table_entry(t, name);

	return n ? n->node : 0;
}

static void table_remove(struct lossy_table *t, const char *name)
{
	for (struct lossy_name **at = &t->first; *at; at = &(*at)->next) {
		struct lossy_name *n = *at;

		if (strcmp(n->text, name) == 0) {
			*at = n->next;
			free(n);
			return;
		}
	}
}

/* node 0 removes the name, any other gives or changes its meaning. */
static int table_set(struct lossy_table *t, const char *name, uint64_t node)
{
	struct lossy_name *n = table_entry(t, name);
	size_t len = strlen(name) + 1;
	struct lossy_name **at;

	if (node == 0) {
		table_remove(t, name);
		return 0;
	}
	if (n) {
		n->node = node;
		return 0;
	}
	n = malloc(sizeof(*n) + len);
	if (!n)
		return -ENOMEM;
	memcpy(n->text, name, len);
	n->node = node;
	n->next = NULL;
	n->cookie = ++t->cookie_last;
	for (at = &t->first; *at; at = &(*at)->next)
		;
	*at = n;
	return 0;
}

void lossy_dir_release(struct lossy_dir *dir)
{
	table_release(&dir->now);
	table_release(&dir->safe);
}

static void change_free(struct lossy_change *c)
{
	if (!c)
		return;
	for (unsigned i = 0; i < c->count; i++) {
		void *name;

		memcpy(&name, &c->set[i].name, sizeof(name));
		free(name);
	}
	free(c);
}

static void change_drop(struct lossy_names *names, struct lossy_change *c)
{
	if (c->prev)
		c->prev->next = c->next;
	else
		names->first = c->next;
	if (c->next)
		c->next->prev = c->prev;
	else
		names->last = c->prev;
	change_free(c);
}

static struct lossy_change *change_new(unsigned count,
				       const struct lossy_set *set)
{
	struct lossy_change *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	for (unsigned i = 0; i < count; i++) {
		c->set[i] = set[i];
		c->set[i].name = strdup(set[i].name);
		c->count++;
		if (!c->set[i].name) {
			change_free(c);
			return NULL;
		}
	}
	return c;
}

int lossy_names_add(struct lossy_names *names, unsigned count,
		    const struct lossy_set *set, bool birth)
{
	struct lossy_change *c;

	CHECK(count >= 1 && count <= 2);
	c = change_new(count, set);
	if (!c)
		return -ENOMEM;
	for (unsigned i = 0; i < count; i++) {
		struct lossy_dir *dir = names->dir(names->self, set[i].dir);
		int rc = table_set(&dir->now, set[i].name, set[i].node);

		CHECK(rc == 0); /* out of memory: the rehearsal is over */
	}
	c->prev = names->last;
	if (c->prev)
		c->prev->next = c;
	else
		names->first = c;
	names->last = c;
	c->birth = birth;
	return 0;
}

static bool change_in_dir(const struct lossy_change *c, uint64_t dir)
{
	for (unsigned i = 0; i < c->count; i++)
		if (c->set[i].dir == dir)
			return true;
	return false;
}

static bool changes_share_name(const struct lossy_change *a,
			       const struct lossy_change *b)
{
	for (unsigned i = 0; i < a->count; i++)
		for (unsigned j = 0; j < b->count; j++)
			if (a->set[i].dir == b->set[j].dir &&
			    strcmp(a->set[i].name, b->set[j].name) == 0)
				return true;
	return false;
}

/* The oldest change before c that c builds on, or NULL. */
static struct lossy_change *change_base(struct lossy_names *names,
					const struct lossy_change *c)
{
	for (struct lossy_change *e = names->first; e != c; e = e->next)
		if (changes_share_name(e, c))
			return e;
	return NULL;
}

static void change_settle(struct lossy_names *names, struct lossy_change *c)
{
	for (unsigned i = 0; i < c->count; i++) {
		struct lossy_dir *dir = names->dir(names->self, c->set[i].dir);
		int rc = table_set(&dir->safe, c->set[i].name, c->set[i].node);

		CHECK(rc == 0); /* as above */
	}
	change_drop(names, c);
}

/*
 * The oldest change in a chain builds on nothing: settle it and look again,
 * until the wanted one is the oldest.
 */
void lossy_names_keep(struct lossy_names *names, struct lossy_change *change)
{
	for (bool done = false; !done;) {
		struct lossy_change *c = change;
		struct lossy_change *base = change_base(names, c);

		while (base) {
			c = base;
			base = change_base(names, c);
		}
		done = c == change;
		change_settle(names, c);
	}
}

void lossy_names_sync(struct lossy_names *names, uint64_t dir)
{
	struct lossy_change *c = names->first;

	while (c) {
		if (change_in_dir(c, dir)) {
			/* What is kept may include others: start again. */
			lossy_names_keep(names, c);
			c = names->first;
		} else {
			c = c->next;
		}
	}
}

struct lossy_change *lossy_names_birth(struct lossy_names *names, uint64_t node)
{
	for (struct lossy_change *c = names->first; c; c = c->next)
		if (c->birth && c->set[0].node == node)
			return c;
	return NULL;
}

void lossy_names_draw(struct lossy_names *names, struct lossy_coin *coin,
		      unsigned quarters)
{
	/* Newest first: each toss is for a change that still is open. */
	while (names->last) {
		struct lossy_change *c = names->last;

		if (lossy_coin_toss(coin, quarters))
			lossy_names_keep(names, c);
		else
			change_drop(names, c);
	}
}

int lossy_dir_settle(struct lossy_dir *dir)
{
	int rc = 0;

	table_release(&dir->now);
	dir->now.first = NULL;
	for (const struct lossy_name *n = dir->safe.first; n && rc == 0;
	     n = n->next)
		rc = table_set(&dir->now, n->text, n->node);
	return rc;
}

void lossy_names_release(struct lossy_names *names)
{
	while (names->first) {
		struct lossy_change *c = names->first;

		names->first = c->next;
		change_free(c);
	}
	names->last = NULL;
}
