/*
 * ticket_left.c - tickets of all nodes, and what a node that died had taken:
 * its folder is known by its number, so it is looked for in a walk.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/dir.h"
#include "store/base/scope.h"
#include "store/base/vec.h"
#include "store/shared/ticket.h"
#include "store/shared/walk.h"

#define DIR_FLAGS (O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)

struct each {
	int (*fn)(void *arg, const struct ticket_left *t);
	void *arg;
	struct ticket_left *t;
	const char *of_folder;
};

static int each_ticket(void *arg, int fd, const char *name)
{
	const struct each *e = arg;
	struct ticket_left *t = e->t;
	size_t len = ticket_base(name, &t->kind);

	if (len == 0)
		return 0;
	if (fstatat(fd, name, &t->st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT || errno == ESTALE ? 0 : -errno;
	ticket_node(name, t->node);
	(void)snprintf(t->path, sizeof(t->path), "%s/%s/%.*s", e->of_folder,
		       t->name, (int)len, name);
	return e->fn(e->arg, t);
}

/* Somebody may have removed it, or it never was of us. */
static int each_in(struct each *e, int fd, const char *name,
		   int (*fn)(void *arg, int fd, const char *name))
{
	int rc = dir_ask_anew(fd);

	if (rc == 0)
		rc = dir_each(fd, name, fn, e);
	return rc == -ENOENT || rc == -ESTALE || rc == -ENOTDIR || rc == -ELOOP
		       ? 0
		       : rc;
}

static int each_name(void *arg, int fd, const char *name)
{
	struct each *e = arg;

	e->t->name = name;
	return each_in(e, fd, name, each_ticket);
}

static int each_folder(void *arg, int fd, const char *name)
{
	struct each *e = arg;

	if (strlen(name) != TICKET_DIGITS || !ticket_is_number(name))
		return 0;
	e->of_folder = name;
	e->t->folder = (ino_t)strtoull(name, NULL, 16);
	return each_in(e, fd, name, each_name);
}

int tickets_each(int nextfd, int (*fn)(void *arg, const struct ticket_left *t),
		 void *arg)
{
	struct ticket_left t;
	struct each e = { .fn = fn, .arg = arg, .t = &t };

	return dir_each(nextfd, ".", each_folder, &e);
}

/* Its node had not brought its bytes when it was taken, or has begun anew. */
static bool is_pending(const struct stat *st)
{
	mode_t mode = st->st_mode & 07777;

	return S_ISREG(st->st_mode) &&
	       (mode == S_ISVTX || mode == (S_ISVTX | S_IRUSR | S_IWUSR));
}

bool ticket_is_to_finish(const struct ticket_left *t)
{
	return t->kind == TICKET_REMOVES || t->kind == TICKET_REMOVED ||
	       !is_pending(&t->st);
}

/* --- what is finished, wherever its folder is ----------------------------- */

struct finish {
	int nextfd;
	const struct ticket_pick *pick;
	const struct ticket_wait *wait;
	ino_t *folders; /* owned */
	size_t count, room;
	ino_t folder; /* this one, */
	int dirfd; /* and it */
	int failed; /* the first error */
};

static void finish_release(struct finish *f)
{
	free(f->folders);
}

static bool is_picked(const struct finish *f, const struct ticket_left *t)
{
	return ticket_is_to_finish(t) && f->pick->fn(f->pick->arg, t);
}

static bool has_folder(const struct finish *f, ino_t folder)
{
	for (size_t i = 0; i < f->count; i++)
		if (f->folders[i] == folder)
			return true;
	return false;
}

static int add_folder(void *arg, const struct ticket_left *t)
{
	struct finish *f = arg;
	int rc;

	if (!is_picked(f, t) || has_folder(f, t->folder))
		return 0;
	rc = vec_grow(&f->folders, f->count, &f->room, sizeof(*f->folders));
	if (rc == 0)
		f->folders[f->count++] = t->folder;
	return rc;
}

static void fail(struct finish *f, int rc)
{
	if (f->failed == 0)
		f->failed = rc;
}

static int finish_one(void *arg, const struct ticket_left *t)
{
	struct finish *f = arg;
	int rc;

	if (t->folder != f->folder || !is_picked(f, t))
		return 0;
	rc = ticket_finish(f->nextfd, t, f->dirfd, f->wait);
	if (rc < 0)
		fail(f, rc);
	return 0;
}

static void finish_folder(struct finish *f, ino_t folder, int dirfd)
{
	int rc;

	f->folder = folder;
	f->dirfd = dirfd;
	rc = tickets_each(f->nextfd, finish_one, f);
	if (rc < 0)
		fail(f, rc);
}

static int finish_in(void *arg, int dirfd, const char *path, const char *name,
		     const struct stat *st)
{
	SCOPED(scope_close) int fd = -1;
	struct finish *f = arg;
	struct stat sb;

	(void)path;
	if (!S_ISDIR(st->st_mode) || !has_folder(f, st->st_ino))
		return 0;
	fd = openat(dirfd, name, DIR_FLAGS);
	if (fd < 0 || fstat(fd, &sb) < 0)
		fail(f, -errno);
	else if (has_folder(f, sb.st_ino))
		finish_folder(f, sb.st_ino, fd);
	return 0;
}

static void on_unread(void *arg, const char *path, int rc)
{
	(void)path;
	fail(arg, rc);
}

/* Its folder was removed, or renamed to where the walk had been. */
static int drop_removal(void *arg, const struct ticket_left *t)
{
	const struct finish *f = arg;

	return t->kind == TICKET_REMOVES && is_picked(f, t)
		       ? ticket_drop(f->nextfd, t->path)
		       : 0;
}

int tickets_finish(int dirfd, int nextfd, const struct ticket_pick *pick,
		   const struct ticket_wait *wait)
{
	SCOPED(finish_release)
	struct finish f = { .nextfd = nextfd, .pick = pick, .wait = wait };
	const struct shared_walk walk = { .found = finish_in,
					  .unread = on_unread,
					  .arg = &f };
	struct stat sb;
	int rc = tickets_each(nextfd, add_folder, &f);

	if (rc < 0 || f.count == 0)
		return rc;
	if (fstat(dirfd, &sb) < 0)
		return -errno;
	if (has_folder(&f, sb.st_ino))
		finish_folder(&f, sb.st_ino, dirfd);
	rc = shared_walk(dirfd, &walk);
	if (rc == 0)
		rc = f.failed;
	return rc < 0 ? rc : tickets_each(nextfd, drop_removal, &f);
}
