/*
 * empty.c - who opens a file of DIR with O_TRUNC gets a new file.
 *
 * What DIR has whole is not emptied: others go on reading it, and a new local
 * file takes its place when it is complete, on this node at once. As that has
 * another number, he is sent to look the name up again (sent.h), and his
 * look-up makes it, for whatever is at the name by then. So who comes by a name
 * is sent once, whatever other nodes do at the same time; and there is one
 * place where a file is replaced by an empty one.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/scope.h"
#include "store/shared/pending.h"
#include "store/shared/sent.h"

/* Others may revoke a new file this often before it is there. */
#define MAKE_TRIES 16

/* The file of DIR for a new local one; -errno: and nothing is left of it. */
static int make_file(struct shared *s, struct node *n, const char *ticket,
		     const struct names_new *new)
{
	SCOPED(scope_close)
	int fd = ticket_make(s->home.nextfd, ticket, TICKET_OPEN,
			     pending_mode(s));
	struct stat sb;
	int rc = fd < 0 ? fd : 0;

	if (rc == 0 && s->as_root &&
	    (fchown(fd, new->uid, new->gid) < 0 ||
	     fchmod(fd, pending_mode(s)) < 0))
		rc = -errno;
	if (rc == 0 && fstat(fd, &sb) < 0)
		rc = -errno;
	if (rc == 0) {
		HOLD(&s->lock);
		node_engine_locked(s, n, sb.st_ino);
	}
	if (rc == 0)
		rc = own_link(s, n, fd, sb.st_ino);
	if (rc < 0)
		(void)drops_ticket(s, ticket);
	return rc;
}

/* -ESTALE: others have revoked it already. */
static int make_new(struct shared *s, const struct at *a, struct sent *e,
		    const struct names_new *new)
{
	SCOPED(node_use_end) struct node_use u = { .s = s };
	char ticket[TICKET_PATH_BYTES];
	int rc = replace_next_for(a, ticket);

	if (rc == 0)
		rc = local_make(s, new, a->name, a->dir, ticket, &u.n);
	if (rc < 0)
		return rc;
	{
		HOLD(&s->lock);
		e->node = u.n->id;
	}
	rc = make_file(s, u.n, ticket, new);
	if (rc < 0) {
		local_drop(s, u.n);
		return rc == -ENOENT ? -ESTALE : rc;
	}
	{
		HOLD(&s->lock);
		if (u.n->state != NODE_MAKING)
			return -ESTALE;
		u.n->state = NODE_PENDING;
		u.n->changing--; /* local_make()'s */
		u.n->empties = true;
		if (u.n->is_queued)
			cond_signal(&s->idle);
	}
	return local_save(s, u.n);
}

/* 0: he opens n; 1: it was overtaken, or is complete. */
static int open_it(struct shared *s, struct node *n, struct sent *e)
{
	SCOPED(hold_end) struct hold h = { 0 };
	int rc;

	if (sent_joins(s, e, n))
		return 0;
	hold_begin(s, n, &h);
	rc = replace_is_followed(s, n);
	if (rc > 0)
		replace_give_way(s, n);
	if (rc != 0)
		return rc;
	HOLD(&s->lock);
	if (n->state != NODE_PENDING && n->state != NODE_UPLOADING &&
	    n->state != NODE_MAKING)
		return 1;
	e->node = n->id;
	return 0;
}

/* What this node has pending for the name, or at it; a reference, or NULL. */
static struct node *pending_at(struct shared *s, const struct at *a)
{
	struct node *n = node_replacing(s, a->dir, a->name);
	struct stat sb;

	if (!n && fstatat(a->fd, a->name, &sb, AT_SYMLINK_NOFOLLOW) == 0 &&
	    S_ISREG(sb.st_mode))
		n = node_of_engine(s, sb.st_ino);
	return n;
}

/*
 * 1: it is to be replaced, and *n says by what. Of O_TRUNC a file keeps what it
 * is, but for its bytes; and one with other names keeps those.
 */
static int look_at(struct shared *s, const struct at *a, struct node *pending,
		   struct names_new *n)
{
	SCOPED(scope_close) int fd = -1;
	struct stat sb;

	fd = openat(a->fd, a->name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &sb) < 0)
		return errno == ENOENT || errno == ESTALE ? 0 : -errno;
	if (!S_ISREG(sb.st_mode) || sb.st_dev != s->dev ||
	    !own_is_only_name(s, fd, &sb))
		return 0;
	if (!pending_is(s, &sb))
		n->mode = sb.st_mode;
	else if (!node_is_local(s, sb.st_ino))
		n->mode = S_IFREG | pending_mode_of(&sb);
	else if (pending)
		n->mode = S_IFREG | inode_attr(pending->in).mode;
	n->uid = sb.st_uid;
	n->gid = sb.st_gid;
	return 1;
}

static int choose(struct shared *s, const struct at *a, struct sent *e)
{
	SCOPED(node_use_end) struct node_use u = { .s = s };
	struct names_new n = e->new;
	int rc;

	u.n = pending_at(s, a);
	if (u.n) {
		rc = open_it(s, u.n, e);
		if (rc <= 0)
			return rc;
	}
	rc = look_at(s, a, u.n, &n);
	return rc > 0 ? make_new(s, a, e, &n) : rc;
}

static int answer(struct shared *s, const struct at *a, struct sent *e)
{
	int rc = -ESTALE;

	for (unsigned i = 0; rc == -ESTALE && i < MAKE_TRIES; i++)
		rc = choose(s, a, e);
	return rc;
}

int empty_look(struct shared *s, const struct at *a, pid_t tid)
{
	struct sent *e = sent_begin(s, a, tid);
	int rc;

	if (!e)
		return 0;
	rc = answer(s, a, e);
	sent_end(s, e, rc);
	return rc;
}

static int send_away(struct shared *s, struct node *parent, const char *name,
		     const struct names_new *new)
{
	SCOPED(at_end) struct at a = { .fd = -1 };
	struct sent *e;
	int rc;

	/* He is told so, and no look-up of his is to make anything. */
	if (sent_comes_by_handle(s, new->pid, parent, name))
		return -ESTALE;
	e = sent_note(s, parent, name, new);
	if (!e)
		return -ENOMEM;
	if (new->pid != 0)
		return -ESTALE;
	sent_begin_now(s, e);
	rc = at_begin(s, parent->id, name, &a);
	if (rc == 0)
		rc = answer(s, &a, e);
	sent_end(s, e, rc);
	return rc < 0 ? rc : -ESTALE;
}

int empty_away(struct shared *s, uint64_t parent, const char *name,
	       const struct names_new *new)
{
	SCOPED(node_use_end) struct node_use u = { 0 };

	return node_use(s, parent, &u) < 0 ? -ESTALE
					   : send_away(s, u.n, name, new);
}

int empty_away_from(struct shared *s, struct node *n,
		    const struct names_new *new)
{
	SCOPED(node_use_end) struct node_use parent = { .s = s };
	char name[STORE_NAME_MAX + 1];

	{
		HOLD(&s->lock);
		if (!n->parent)
			return -ESTALE;
		parent.n = node_ref_locked(n->parent);
		(void)snprintf(name, sizeof(name), "%s", n->name);
	}
	return send_away(s, parent.n, name, new);
}

/* What was made for somebody who did not come; a reference, or NULL. */
static struct node *find_left(struct shared *s)
{
	struct node *n;

	HOLD(&s->lock);
	LIST_FOREACH(n, &s->replacing, replacing)
		if (n->undone && n->changing == 0 && n->renaming == 0 &&
		    n->state == NODE_PENDING && !sent_awaits_locked(s, n)) {
			n->renaming++; /* so that nobody completes it */
			local_note_dropped_locked(s, n);
			return node_ref_locked(n);
		}
	return NULL;
}

bool empty_is_left(struct shared *s, const struct node *n)
{
	HOLD(&s->lock);
	return n->state == NODE_PENDING && n->dropped;
}

void empty_give_up_left(struct shared *s)
{
	struct node *n;

	while ((n = find_left(s))) {
		char ticket[TICKET_PATH_BYTES];

		if (node_ticket(s, n, ticket))
			(void)drops_ticket(s, ticket);
		local_drop(s, n);
		node_put(s, n);
	}
}
