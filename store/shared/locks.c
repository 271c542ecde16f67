/*
 * locks.c - flock(2) and fcntl(2) locks are DIR's, so that they exclude across
 * nodes.
 *
 * Each owner, as the kernel names him, has a descriptor of his own of DIR's
 * file: flock's lock belongs to that, and an fcntl lock is one of an open file
 * description (F_OFD_SETLK). Closing it gives all up. Who waits asks again and
 * again, for a call to DIR that waits could not be ended by a signal.
 *
 * A lock on what is to replace a file is one on that file: all that come by the
 * name, on whatever node, lock the same one. So that it stays the same, what
 * was locked while it was to replace a file is written into that (in_place.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "store/base/interrupt.h"
#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/shared/shared_private.h"

#define ASK_FIRST_NS (INT64_C(1) * 1000000)
#define ASK_MOST_NS (INT64_C(100) * 1000000)

struct lock_owner {
	LIST_ENTRY(lock_owner) entry;
	uint64_t id, owner;
	bool is_flock;
	unsigned users; /* who is in a call with it; it is freed by the last */
	bool gone; /* out of the list */
	int fd;
	ino_t number; /* of DIR's file */
};

static struct lock_owner *find_locked(struct shared *s, uint64_t id,
				      uint64_t owner, bool is_flock)
{
	struct lock_owner *o;

	LIST_FOREACH(o, &s->lock_owners, entry)
		if (o->id == id && o->owner == owner && o->is_flock == is_flock)
			return o;
	return NULL;
}

static void put_owner(struct shared *s, struct lock_owner *o)
{
	bool last;

	{
		HOLD(&s->lock);
		last = --o->users == 0 && o->gone;
	}
	if (!last)
		return;
	(void)close(o->fd);
	free(o);
}

/* For SCOPED(). */
struct owner_use {
	struct shared *s;
	struct lock_owner *o;
};

static void owner_use_end(struct owner_use *u)
{
	if (u->o)
		put_owner(u->s, u->o);
}

/* 1: it is to replace nothing; else what it is to replace is what he locks. */
static int find_replaced(struct shared *s, struct node *n, int *ret_fd)
{
	SCOPED(at_end) struct at a = { .s = s, .fd = -1 };
	char name[STORE_NAME_MAX + 1];
	struct stat sb;
	int rc;

	{
		HOLD(&s->lock);
		if (!n->ticket || !n->empties)
			return 1;
		n->is_locked = true;
	}
	if (!at_node(s, n, &a, name))
		return 1;
	rc = at_open(&a, O_PATH, &sb);
	if (rc < 0)
		return rc == -ENOENT ? 1 : rc;
	*ret_fd = rc;
	return 0;
}

/* O_PATH: DIR's file that a lock on the node of that number is on. */
static int find_file(struct shared *s, uint64_t id, int *ret_fd)
{
	SCOPED(node_use_end) struct node_use u = { 0 };
	SCOPED(at_end) struct at a = { .fd = -1 };
	struct dropped d;
	int rc = node_use(s, id, &u);

	/* One that is gone may be known yet, to who had it in his hands. */
	if (rc == 0 && node_state(s, u.n) != NODE_GONE) {
		rc = find_replaced(s, u.n, ret_fd);
		return rc > 0 ? node_fd(s, u.n, ret_fd) : rc;
	}
	/* He has it open, and another one has replaced what it was to. */
	if (!local_was_dropped(s, id, &d))
		return -ENOENT;
	rc = at_begin(s, d.parent, d.name, &a);
	if (rc < 0)
		return rc;
	*ret_fd = openat(a.fd, d.name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	return *ret_fd < 0 ? -errno : 0;
}

static int open_of(struct shared *s, uint64_t id)
{
	SCOPED(scope_close) int path = -1;
	int fd, rc = find_file(s, id, &path);

	if (rc < 0)
		return rc;
	fd = node_reopen(path, O_RDWR);
	return fd == -EACCES || fd == -EROFS || fd == -EISDIR
		       ? node_reopen(path, O_RDONLY)
		       : fd;
}

static int owner_begin(struct shared *s, uint64_t id, uint64_t owner,
		       bool is_flock, bool make, struct owner_use *ret)
{
	struct lock_owner *fresh;
	struct stat sb;
	int fd;

	ret->s = s;
	{
		HOLD(&s->lock);
		ret->o = find_locked(s, id, owner, is_flock);
		if (ret->o)
			ret->o->users++;
	}
	if (ret->o || !make)
		return 0;
	fd = open_of(s, id);
	if (fd < 0)
		return fd;
	fresh = fstat(fd, &sb) == 0 ? malloc(sizeof(*fresh)) : NULL;
	if (!fresh) {
		(void)close(fd);
		return -ENOMEM;
	}
	*fresh = (struct lock_owner){ .id = id,
				      .owner = owner,
				      .is_flock = is_flock,
				      .users = 1,
				      .fd = fd,
				      .number = sb.st_ino };
	{
		HOLD(&s->lock);
		ret->o = find_locked(s, id, owner, is_flock);
		if (ret->o)
			ret->o->users++;
		else
			LIST_INSERT_HEAD(&s->lock_owners, fresh, entry);
	}
	if (!ret->o) {
		ret->o = fresh;
		return 0;
	}
	(void)close(fd); /* another thread of his was faster */
	free(fresh);
	return 0;
}

/* Any signal ends such a wait: alarm(2) is how programs bound it. */
static bool is_signalled(void)
{
	const struct interrupt *i = interrupt_of_thread();

	return i && atomic_load(&i->signalled);
}

static void pause_for(int64_t *ns)
{
	struct timespec t = io_timespec(*ns);

	(void)nanosleep(&t, NULL);
	if (*ns < ASK_MOST_NS)
		*ns *= 2;
}

int shared_flock(struct shared *s, uint64_t id, uint64_t owner, int op)
{
	SCOPED(owner_use_end) struct owner_use u = { 0 };
	int64_t pause_ns = ASK_FIRST_NS;
	bool frees = (op & LOCK_UN) != 0;
	int rc = owner_begin(s, id, owner, true, !frees, &u);

	if (rc < 0 || !u.o)
		return rc;
	while (flock(u.o->fd, op | (frees ? 0 : LOCK_NB)) < 0) {
		if (errno != EWOULDBLOCK || (op & LOCK_NB))
			return -errno;
		if (is_signalled())
			return -EINTR;
		pause_for(&pause_ns);
	}
	return 0;
}

int shared_lock(struct shared *s, uint64_t id, uint64_t owner,
		const struct flock *l, bool waits)
{
	SCOPED(owner_use_end) struct owner_use u = { 0 };
	int64_t pause_ns = ASK_FIRST_NS;
	struct flock own = *l;
	int rc = owner_begin(s, id, owner, false, l->l_type != F_UNLCK, &u);

	if (rc < 0 || !u.o)
		return rc;
	own.l_pid = 0;
	own.l_whence = SEEK_SET;
	while (fcntl(u.o->fd, F_OFD_SETLK, &own) < 0) {
		if ((errno != EAGAIN && errno != EACCES) || !waits)
			return -errno;
		if (is_signalled())
			return -EINTR;
		pause_for(&pause_ns);
	}
	return 0;
}

int shared_lock_test(struct shared *s, uint64_t id, uint64_t owner,
		     struct flock *l)
{
	SCOPED(owner_use_end) struct owner_use u = { 0 };
	int rc = owner_begin(s, id, owner, false, true, &u);

	if (rc < 0)
		return rc;
	l->l_pid = 0;
	l->l_whence = SEEK_SET;
	if (fcntl(u.o->fd, F_OFD_GETLK, l) < 0)
		return -errno;
	if (l->l_pid < 0) /* of a description: nobody's number */
		l->l_pid = 0;
	return 0;
}

void shared_unlock(struct shared *s, uint64_t id, uint64_t owner, bool is_flock)
{
	struct lock_owner *o;

	{
		HOLD(&s->lock);
		o = find_locked(s, id, owner, is_flock);
		if (!o)
			return;
		LIST_REMOVE(o, entry);
		o->gone = true;
		o->users++;
	}
	put_owner(s, o);
}

bool shared_is_locked(struct shared *s, uint64_t id)
{
	const struct lock_owner *o;

	HOLD(&s->lock);
	LIST_FOREACH(o, &s->lock_owners, entry)
		if (o->id == id)
			return true;
	return false;
}

bool locks_has(struct shared *s, ino_t number)
{
	const struct lock_owner *o;

	HOLD(&s->lock);
	LIST_FOREACH(o, &s->lock_owners, entry)
		if (o->number == number)
			return true;
	return false;
}

void locks_free(struct shared *s)
{
	struct lock_owner *o;

	while ((o = LIST_FIRST(&s->lock_owners))) {
		LIST_REMOVE(o, entry);
		(void)close(o->fd);
		free(o);
	}
}
