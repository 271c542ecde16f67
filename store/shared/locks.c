/*
 * locks.c - flock(2) and fcntl(2) locks are DIR's, so that they exclude across
 * nodes.
 *
 * Each owner, as the kernel names him, has a descriptor of his own of DIR's
 * file: flock's lock belongs to that, and an fcntl lock is one of an open file
 * description (F_OFD_SETLK). Closing it gives all up. Who waits asks again and
 * again, for a call to DIR that waits could not be ended by a signal.
 */
#include <errno.h>
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

static int open_of(struct shared *s, uint64_t id)
{
	SCOPED(node_use_end) struct node_use u = { 0 };
	SCOPED(scope_close) int path = -1;
	int fd, rc = node_use(s, id, &u);

	if (rc == 0)
		rc = node_fd(s, u.n, &path);
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
	fresh = malloc(sizeof(*fresh));
	if (!fresh) {
		(void)close(fd);
		return -ENOMEM;
	}
	*fresh = (struct lock_owner){ .id = id,
				      .owner = owner,
				      .is_flock = is_flock,
				      .users = 1,
				      .fd = fd };
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

void locks_free(struct shared *s)
{
	struct lock_owner *o;

	while ((o = LIST_FIRST(&s->lock_owners))) {
		LIST_REMOVE(o, entry);
		(void)close(o->fd);
		free(o);
	}
}
