/*
 * nodes.c - what is known of files of DIR: found by number and by DIR's inode
 * number, with the name by which each was seen last.
 *
 * A name is a hint: others rename, too. So whoever goes by it looks at the
 * inode number that he gets; see node_fd.c.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/scope.h"
#include "store/shared/shared_private.h"

static struct node_list *bucket_of(struct node_list *table, uint64_t key)
{
	return &table[(key * UINT64_C(0x9e3779b97f4a7c15) >> 32) %
		      NODE_BUCKETS];
}

struct node *node_find_locked(struct shared *s, uint64_t id)
{
	struct node *n;

	LIST_FOREACH(n, bucket_of(s->by_id, id), by_id)
		if (n->id == id)
			return n;
	return NULL;
}

static struct node *find_engine_locked(struct shared *s, ino_t engine)
{
	struct node *n;

	LIST_FOREACH(n, bucket_of(s->by_engine, engine), by_engine)
		if (n->engine == engine)
			return n;
	return NULL;
}

struct node *node_ref_locked(struct node *n)
{
	n->refs++;
	return n;
}

static bool is_pending_locked(const struct node *n)
{
	return n->in && n->state != NODE_GONE && n->state != NODE_KEPT;
}

struct node *node_of_engine(struct shared *s, ino_t engine)
{
	struct node *n;

	HOLD(&s->lock);
	LIST_FOREACH(n, bucket_of(s->by_engine, engine), by_engine)
		if (n->engine == engine && is_pending_locked(n))
			return node_ref_locked(n);
	return NULL;
}

bool node_is_local(struct shared *s, ino_t engine)
{
	struct node *n = node_of_engine(s, engine);

	node_put(s, n);
	return n;
}

struct node *node_get(struct shared *s, uint64_t id)
{
	struct node *n;

	HOLD(&s->lock);
	n = node_find_locked(s, id);
	return n ? node_ref_locked(n) : NULL;
}

int node_use(struct shared *s, uint64_t id, struct node_use *ret)
{
	ret->s = s;
	ret->n = node_get(s, id);
	return ret->n ? 0 : -ENOENT;
}

static bool is_local_locked(const struct node *n)
{
	return n->state != NODE_OF_DIR && n->state != NODE_GONE;
}

/* Nobody knows it any more; the lock is held. */
static bool is_idle_locked(const struct shared *s, const struct node *n)
{
	return n->refs == 0 && n->lookups == 0 && n->opens == 0 &&
	       !is_local_locked(n) && n != s->root;
}

/* Free n, which is in no table; *ret_parent: the reference that it had. */
static void free_node(struct node *n, struct node **ret_parent,
		      struct inode **ret_in)
{
	if (n->fd >= 0)
		(void)close(n->fd);
	tracker_last_release(&n->last);
	*ret_parent = n->parent;
	*ret_in = n->in;
	free(n->ticket);
	free(n->name);
	free(n);
}

void node_insert_locked(struct shared *s, struct node *n, ino_t engine)
{
	LIST_INSERT_HEAD(bucket_of(s->by_id, n->id), n, by_id);
	node_engine_locked(s, n, engine);
}

void nodes_free(struct shared *s)
{
	struct node *parent, *n;
	struct inode *in;

	for (unsigned i = 0; i < NODE_BUCKETS; i++)
		while ((n = LIST_FIRST(&s->by_id[i]))) {
			LIST_REMOVE(n, by_id);
			waits_end_locked(&n->last);
			free_node(n, &parent, &in);
			if (in)
				inode_put(s->st->inodes, in, 1);
		}
	s->root = NULL;
}

void node_unsee_locked(struct shared *s, struct node *n)
{
	if (n->is_seen)
		TAILQ_REMOVE(&s->seen, n, seen);
	n->is_seen = false;
}

int node_take_fd_locked(struct shared *s, struct node *n)
{
	int fd = n->fd;

	node_unsee_locked(s, n);
	n->fd = -1;
	s->fds -= fd >= 0;
	return fd;
}

void node_put(struct shared *s, struct node *n)
{
	struct node *parent;
	struct inode *in;

	while (n) {
		int fd;

		{
			HOLD(&s->lock);
			CHECK(n->refs > 0);
			n->refs--;
			if (!is_idle_locked(s, n))
				return;
			LIST_REMOVE(n, by_id);
			if (n->in_engine)
				LIST_REMOVE(n, by_engine);
			fd = node_take_fd_locked(s, n);
			waits_end_locked(&n->last);
		}
		if (fd >= 0)
			(void)close(fd);
		free_node(n, &parent, &in);
		if (in)
			inode_put(s->st->inodes, in, 1);
		n = parent;
	}
}

void node_engine_locked(struct shared *s, struct node *n, ino_t engine)
{
	if (n->in_engine && n->engine == engine)
		return;
	if (n->in_engine)
		LIST_REMOVE(n, by_engine);
	n->engine = engine;
	n->in_engine = engine != 0;
	if (n->in_engine)
		LIST_INSERT_HEAD(bucket_of(s->by_engine, engine), n, by_engine);
}

void node_becomes_locked(struct shared *s, struct node *n, ino_t engine)
{
	node_engine_locked(s, n, 0);
	if (find_engine_locked(s, engine))
		n->engine = engine; /* that node is the one that is found */
	else
		node_engine_locked(s, n, engine);
}

void node_place_locked(struct shared *s, struct node *n, struct node *parent,
		       const char *name)
{
	struct node *old = n->parent;
	char *copy;

	if (n == parent || n->id == ROOT_INO)
		return;
	if (old == parent && n->name && strcmp(n->name, name) == 0)
		return;
	copy = strdup(name);
	if (!copy) /* the hint stays what it was */
		return;
	free(n->name);
	n->name = copy;
	n->parent = node_ref_locked(parent);
	/* Its upload has asked under another name whether a tracker may come.
	 */
	if (tracker_is(name))
		queue_changed_locked(s, n);
	/* Nobody else can hold the last reference: the kernel, or s->root. */
	if (old)
		old->refs--;
}

static struct node *new_node(uint64_t id, uint32_t type)
{
	struct node *n = calloc(1, sizeof(*n));

	if (!n)
		return NULL;
	n->id = id;
	n->type = type;
	n->fd = -1;
	n->last = TRACKER_LAST_NONE;
	n->refs = 1;
	return n;
}

struct node *node_alloc_local(struct inode *in)
{
	struct node *n = new_node(in->ino, S_IFREG);

	if (!n)
		return NULL;
	n->in = in;
	n->state = NODE_MAKING;
	return n;
}

struct node *node_new_local(struct shared *s, struct inode *in)
{
	struct node *n = node_alloc_local(in);

	if (!n)
		return NULL;
	HOLD(&s->lock);
	node_insert_locked(s, n, 0);
	return n;
}

/* Is it still the file that it was? A number is used again by some engines. */
static bool is_same_locked(const struct shared *s, const struct node *n,
			   const struct stat *sb)
{
	if (n->type != (sb->st_mode & S_IFMT))
		return false;
	switch (n->state) {
	case NODE_PENDING:
	case NODE_UPLOADING: /* it may be just getting pending once more */
		return n->renaming > 0 || pending_is(s, sb);
	case NODE_KEPT:
		return node_is_current(n, sb);
	case NODE_GONE:
		return false;
	case NODE_COMPLETING: /* others may see it whole, and change it */
		return pending_is(s, sb) ||
		       ((uint64_t)sb->st_size == n->kept_size &&
			node_is_time(&sb->st_mtim, n->kept_mtime_ns));
	case NODE_OF_DIR:
	case NODE_MAKING:
		return true;
	}
	return true;
}

/* Its number finds another node from now on; it has its link in own/ by it. */
static void unfind_engine_locked(struct node *n)
{
	LIST_REMOVE(n, by_engine);
	n->in_engine = false;
}

void node_found_locked(struct shared *s, struct node *n, ino_t engine)
{
	struct node *other = find_engine_locked(s, engine);

	if (other && other != n)
		unfind_engine_locked(other);
	node_engine_locked(s, n, engine);
}

struct node *node_at(struct shared *s, struct node *parent, const char *name,
		     const struct stat *sb, struct node **ret_stale)
{
	struct node *n, *fresh = NULL;

	*ret_stale = NULL;
	{
		HOLD(&s->lock);
		n = find_engine_locked(s, sb->st_ino);
		if (n && !is_same_locked(s, n, sb)) {
			if (n->state == NODE_KEPT ||
			    n->state == NODE_COMPLETING)
				*ret_stale = node_ref_locked(n);
			unfind_engine_locked(n);
			n = NULL;
		}
		if (n) {
			node_ref_locked(n);
			if (!n->ticket)
				node_place_locked(s, n, parent, name);
		} else {
			fresh = new_node(SHARED_NODE | ++s->next_node,
					 sb->st_mode & S_IFMT);
			if (fresh) {
				LIST_INSERT_HEAD(bucket_of(s->by_id, fresh->id),
						 fresh, by_id);
				node_engine_locked(s, fresh, sb->st_ino);
				node_place_locked(s, fresh, parent, name);
			}
		}
	}
	return n ? n : fresh;
}

struct node *node_replacing(struct shared *s, const struct node *parent,
			    const char *name)
{
	struct node *n;

	HOLD(&s->lock);
	LIST_FOREACH(n, &s->replacing, replacing)
		if (n->parent == parent && !n->dropped &&
		    strcmp(n->name, name) == 0)
			return node_ref_locked(n);
	return NULL;
}

void node_set_ticket_locked(struct shared *s, struct node *n, char *ticket)
{
	if (n->ticket)
		LIST_REMOVE(n, replacing);
	free(n->ticket);
	n->ticket = ticket;
	if (ticket)
		LIST_INSERT_HEAD(&s->replacing, n, replacing);
}

bool node_ticket(struct shared *s, const struct node *n,
		 char ret[TICKET_PATH_BYTES])
{
	HOLD(&s->lock);
	(void)snprintf(ret, TICKET_PATH_BYTES, "%s",
		       n->ticket ? n->ticket : "");
	return n->ticket;
}

void node_take_over_locked(struct shared *s, struct node *fresh,
			   struct node *old)
{
	ino_t engine = old->engine;
	int fd = old->fd;
	char *ticket;

	node_insert_locked(s, fresh, 0);
	if (old->parent)
		node_place_locked(s, fresh, old->parent, old->name);
	fresh->state = NODE_PENDING;
	ticket = TAKE(old->ticket);
	if (ticket)
		LIST_REMOVE(old, replacing);
	fresh->has_link = old->has_link;
	old->has_link = false;
	fresh->completing = old->completing;
	fresh->empties = old->empties;
	fresh->is_locked = old->is_locked;
	old->fd = -1;
	node_forget_local_locked(s, old);
	fresh->fd = fd;
	node_engine_locked(s, fresh, engine);
	node_set_ticket_locked(s, fresh, ticket);
}

void node_forget_local_locked(struct shared *s, struct node *n)
{
	queue_remove_locked(s, n);
	node_set_ticket_locked(s, n, NULL);
	node_engine_locked(s, n, 0);
	n->state = NODE_GONE;
	cond_broadcast(&s->moved);
}

enum node_state node_state(struct shared *s, const struct node *n)
{
	HOLD(&s->lock);
	return n->state;
}

bool node_replaces(struct shared *s, const struct node *n)
{
	HOLD(&s->lock);
	return n->ticket;
}

bool node_is_under_locked(const struct node *n, const struct node *dir)
{
	for (unsigned i = 0; n && i < NODE_DEPTH_MAX; i++, n = n->parent)
		if (n == dir)
			return true;
	return false;
}
