/* sent.c - see sent.h. */
#include "store/shared/sent.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "store/base/scope.h"

static bool is_of_name(const struct sent *e, const struct node *parent,
		       const char *name)
{
	return e->parent == parent && strcmp(e->name, name) == 0;
}

/* Nobody is meant any more; sent_expire() takes it away. */
static void end_locked(struct sent *e)
{
	e->tid = SHARED_NOBODY;
	e->until_ns = 0;
	e->node = 0;
}

/* Takes fresh, in place of what its thread has. */
static void put_locked(struct shared *s, struct sent *fresh)
{
	struct sent *e;

	LIST_FOREACH(e, &s->sent, link)
		if (e->tid == fresh->tid && e->tid > 0 && !e->is_busy)
			end_locked(e);
	fresh->until_ns = mono_ns() + SENT_NS;
	LIST_INSERT_HEAD(&s->sent, fresh, link);
}

void sent_expect(struct shared *s, struct node *n)
{
	struct sent *e = calloc(1, sizeof(*e));

	if (!e) /* it may be complete before it is opened, then */
		return;
	HOLD(&s->lock);
	e->node = n->id;
	e->until_ns = mono_ns() + SENT_NS;
	LIST_INSERT_HEAD(&s->sent, e, link);
}

bool sent_awaits_locked(const struct shared *s, const struct node *n)
{
	int64_t now = LIST_EMPTY(&s->sent) ? 0 : mono_ns();
	const struct sent *e;

	LIST_FOREACH(e, &s->sent, link)
		if (e->node == n->id && (e->until_ns > now || e->is_busy))
			return true;
	return false;
}

static struct sent *find_locked(struct shared *s, pid_t tid)
{
	struct sent *e;

	if (tid > 0)
		LIST_FOREACH(e, &s->sent, link)
			if (e->tid == tid && !e->is_busy)
				return e;
	return NULL;
}

void sent_came_locked(struct shared *s, struct node *n, pid_t tid)
{
	struct sent *e = find_locked(s, tid);

	n->undone = false;
	if (!e) /* of those that are not known any is as good */
		LIST_FOREACH(e, &s->sent, link)
			if (e->tid == 0 && !e->is_busy && e->node == n->id)
				break;
	if (e)
		end_locked(e);
}

void sent_forget(struct shared *s, pid_t tid)
{
	struct sent *e;

	HOLD(&s->lock);
	e = find_locked(s, tid);
	if (e)
		end_locked(e);
}

/*
 * The kernel looks once more where it knew another file by the name: the second
 * answer is what it goes by (fs/fuse/dir.c, fuse_dentry_revalidate()).
 */
void sent_missed(struct shared *s, pid_t tid)
{
	struct sent *e;

	HOLD(&s->lock);
	e = find_locked(s, tid);
	if (e && e->missed)
		end_locked(e);
	else if (e)
		e->missed = true;
}

/* Is another one of the name being led there? He waits, for the same file. */
static bool is_other_busy_locked(const struct shared *s, const struct sent *his)
{
	const struct sent *e;

	LIST_FOREACH(e, &s->sent, link)
		if (e != his && e->is_busy &&
		    is_of_name(e, his->parent, his->name))
			return true;
	return false;
}

struct sent *sent_note(struct shared *s, struct node *parent, const char *name,
		       const struct names_new *n)
{
	struct sent *e = calloc(1, sizeof(*e));

	if (!e)
		return NULL;
	e->tid = n->pid;
	(void)snprintf(e->name, sizeof(e->name), "%s", name);
	e->new = (struct names_new){ .mode = S_IFREG | (n->mode & 07777),
				     .uid = n->uid,
				     .gid = n->gid,
				     .pid = n->pid };
	HOLD(&s->lock);
	e->parent = node_ref_locked(parent);
	put_locked(s, e);
	if (e->tid == 0) /* it stays until sent_end() */
		e->until_ns = INT64_MAX;
	return e;
}

bool sent_comes_by_handle(struct shared *s, pid_t tid,
			  const struct node *parent, const char *name)
{
	struct sent *e;

	HOLD(&s->lock);
	e = find_locked(s, tid);
	if (!e || e->looked || !is_of_name(e, parent, name))
		return false;
	end_locked(e);
	return true;
}

struct sent *sent_begin(struct shared *s, const struct at *a, pid_t tid)
{
	struct sent *e;

	HOLD(&s->lock);
	for (;;) {
		e = find_locked(s, tid);
		if (!e || !is_of_name(e, a->dir, a->name))
			return NULL;
		if (!is_other_busy_locked(s, e))
			break;
		cond_wait(&s->moved, &s->lock);
	}
	e->is_busy = true;
	return e;
}

void sent_begin_now(struct shared *s, struct sent *e)
{
	HOLD(&s->lock);
	while (is_other_busy_locked(s, e))
		cond_wait(&s->moved, &s->lock);
	e->is_busy = true;
}

void sent_end(struct shared *s, struct sent *e, int rc)
{
	HOLD(&s->lock);
	e->is_busy = false;
	if (!e->looked) /* a thread that only looks does not keep it so */
		e->until_ns = mono_ns() + SENT_NS;
	e->looked = true;
	if (rc < 0 && e->tid == 0)
		end_locked(e);
	cond_broadcast(&s->moved);
}

bool sent_joins(struct shared *s, struct sent *e, const struct node *n)
{
	HOLD(&s->lock);
	if (!sent_awaits_locked(s, n))
		return false;
	e->node = n->id;
	return true;
}

static struct sent *take_ended(struct shared *s)
{
	int64_t now = mono_ns();
	struct sent *e;

	HOLD(&s->lock);
	LIST_FOREACH(e, &s->sent, link)
		if (e->until_ns <= now && !e->is_busy) {
			LIST_REMOVE(e, link);
			return e;
		}
	return NULL;
}

void sent_expire(struct shared *s)
{
	struct sent *e;

	while ((e = take_ended(s))) {
		node_put(s, e->parent);
		free(e);
	}
}

void sent_free(struct shared *s)
{
	struct sent *e;

	while ((e = LIST_FIRST(&s->sent))) {
		LIST_REMOVE(e, link);
		free(e);
	}
}
