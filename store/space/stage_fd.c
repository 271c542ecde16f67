/*
 * stage_fd.c - see stage_fd.h. A stage has one entry for reading and one for
 * writing, found by its number; a call that finds its entry in use by another
 * stage goes without. An entry that is forgotten while a call uses it is
 * closed by that call.
 */
#include "store/space/stage_fd.h"

#include <fcntl.h>

#include "store/base/scope.h"
#include "store/space/stage.h"

void stage_fds_init(struct stage_fds *f)
{
	lock_init(&f->lock, LOCK_STAGE_FDS);
	for (unsigned i = 0; i < STAGE_FDS; i++)
		f->at[i] = (struct stage_fd){ .fd = -1 };
}

void stage_fds_release(struct stage_fds *f)
{
	for (unsigned i = 0; i < STAGE_FDS; i++) {
		CHECK(f->at[i].users == 0);
		scope_close(&f->at[i].fd);
	}
	lock_destroy(&f->lock);
}

static struct stage_fd *entry_of(struct stages *st, const struct stage *s,
				 bool writes)
{
	return &st->fds.at[(2 * s->number + (writes ? 1 : 0)) % STAGE_FDS];
}

/* The one that is cached, or -1. */
static int take_cached(struct stages *st, const struct stage *s, bool writes)
{
	struct stage_fd *e = entry_of(st, s, writes);

	HOLD(&st->fds.lock);
	if (e->stage != s || e->writes != writes)
		return -1;
	e->users++;
	return e->fd;
}

int stage_fd_get(struct stages *st, const struct stage *s, bool writes,
		 struct stage_use *ret)
{
	struct stage_fd *e = entry_of(st, s, writes);
	SCOPED(scope_close) int old = -1;
	int fd = take_cached(st, s, writes);

	*ret = (struct stage_use){ .fd = fd, .entry = e };
	if (fd >= 0)
		return 0;
	fd = stage_open(st, s, writes ? O_RDWR : O_RDONLY);
	if (fd < 0)
		return fd;
	ret->fd = fd;
	HOLD(&st->fds.lock);
	if (e->users > 0) { /* another one's, at this moment */
		ret->entry = NULL;
		return 0;
	}
	old = e->fd;
	*e = (struct stage_fd){
		.stage = s, .writes = writes, .users = 1, .fd = fd
	};
	return 0;
}

void stage_fd_put(struct stages *st, struct stage_use *u)
{
	SCOPED(scope_close) int done = -1;

	if (!u->entry) {
		done = u->fd;
		return;
	}
	HOLD(&st->fds.lock);
	if (--u->entry->users == 0 && !u->entry->stage) {
		done = u->entry->fd;
		u->entry->fd = -1;
	}
}

/* The descriptor that is to be closed, or -1. */
static int forget_locked(struct stage_fd *e, const struct stage *s)
{
	int fd = -1;

	if (e->stage != s)
		return -1;
	e->stage = NULL;
	if (e->users == 0) {
		fd = e->fd;
		e->fd = -1;
	}
	return fd;
}

void stage_fd_forget(struct stages *st, const struct stage *s, bool reads_too)
{
	SCOPED(scope_close) int reader = -1;
	SCOPED(scope_close) int writer = -1;

	HOLD(&st->fds.lock);
	writer = forget_locked(entry_of(st, s, true), s);
	if (reads_too)
		reader = forget_locked(entry_of(st, s, false), s);
}
