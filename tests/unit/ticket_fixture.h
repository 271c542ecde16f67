/*
 * ticket_fixture.h - the name f of a shared directory, which this node and
 * others are about to replace.
 */
#ifndef TESTS_UNIT_TICKET_FIXTURE_H
#define TESTS_UNIT_TICKET_FIXTURE_H

#include <fcntl.h>

#include "store/base/dir.h"
#include "store/drain/drain.h"
#include "store/file/file.h"
#include "tests/unit/shared_fixture.h"

/* Of the directory, and of its next/. */
static int nextfd = -1, dirfd_ = -1;

/* What a pause does: another node's has its place, or goes. */
static struct {
	const char *places; /* or NULL */
	unsigned asked;
	char last[TICKET_PATH_BYTES];
	int rc;
} pauses;

static inline int pause_once(void *arg, const char *taken)
{
	(void)arg;
	pauses.asked++;
	(void)snprintf(pauses.last, sizeof(pauses.last), "%s", taken);
	if (pauses.places)
		assert_int_equal(
			ticket_place(nextfd, pauses.places, dirfd_, "f"), 0);
	pauses.places = NULL;
	return pauses.rc;
}

static const struct ticket_wait waits = { pause_once, NULL };

static inline void assert_text(const char *want)
{
	char text[32] = "";

	(void)dir_read_text(dirfd_, "f", text, sizeof(text));
	assert_string_equal(text, want);
}

static inline void complete(const char *ticket)
{
	assert_int_equal(ticket_take(nextfd, ticket), 0);
	assert_int_equal(ticket_settle(nextfd, ticket, NULL, &waits), 0);
	assert_int_equal(ticket_place(nextfd, ticket, dirfd_, "f"), 0);
}

/* Its number, while it is local. */
static inline uint64_t look_up_local(struct mounted *m, const char *name)
{
	struct shared_entry e;
	struct inode *in;

	assert_int_equal(shared_lookup(m->s, ROOT_INO, name, 0, &e), 0);
	assert_false(shared_is_node(e.id));
	assert_int_equal(inode_get(m->live.st->inodes, e.id, &in), 0);
	inode_forget(m->live.st->inodes, in, 1);
	inode_put(m->live.st->inodes, in, 1);
	return e.id;
}

/* It is opened with O_TRUNC here, has this text, and is durable. */
static inline void write_again(struct mounted *m, uint64_t id, const char *text)
{
	struct store *st = m->live.st;
	struct inode *in;

	if (shared_change_begin(m->s, id, O_WRONLY | O_TRUNC, &as_file) ==
	    -ESTALE) { /* and the kernel looks it up again, once */
		id = look_up_local(m, "f");
		assert_int_equal(shared_change_begin(m->s, id,
						     O_WRONLY | O_TRUNC,
						     &as_file),
				 0);
	}
	assert_int_equal(inode_get(st->inodes, id, &in), 0);
	assert_int_equal(file_truncate(&st->files, in, 0), 0);
	assert_int_equal(file_write(&st->files, in, text, strlen(text), 0), 0);
	assert_int_equal(drain_closed(st->drain, in), 0);
	shared_change_end(m->s, id);
	assert_int_equal(drain_sync_closed(st->drain), 0);
	inode_put(st->inodes, in, 1);
}

/* `name` has "old", and on node a it is "new": pending, durable here. */
static inline void replace(struct mounted *m, uint64_t parent, const char *name)
{
	struct store *st = m->live.st;
	struct shared_entry e;
	struct inode *in;
	int fd, backing;

	assert_int_equal(shared_lookup(m->s, parent, name, 0, &e), 0);
	assert_int_equal(shared_open_file(m->s, &caller, e.id,
					  O_WRONLY | O_TRUNC, &as_file, &fd,
					  &backing),
			 -ESTALE);
	shared_forget(m->s, e.id, 1);
	assert_int_equal(shared_lookup(m->s, parent, name, 0, &e), 0);
	assert_false(shared_is_node(e.id));
	assert_int_equal(inode_get(st->inodes, e.id, &in), 0);
	assert_int_equal(shared_change_begin(m->s, e.id, O_WRONLY, &as_file),
			 0);
	assert_int_equal(file_write(&st->files, in, "new", 3, 0), 0);
	assert_int_equal(drain_closed(st->drain, in), 0);
	shared_change_end(m->s, e.id);
	assert_int_equal(drain_sync_closed(st->drain), 0);
	inode_forget(st->inodes, in, 1);
	inode_put(st->inodes, in, 2);
}

static inline struct mounted replaced_new(void)
{
	struct mounted m = mounted_open();

	put_file(m.dir, "f", "old");
	replace(&m, ROOT_INO, "f");
	nextfd = m.s->home.nextfd;
	dirfd_ = m.s->home.dirfd;
	return m;
}

/* Another node's ticket for f, whole. */
static inline void make_theirs(const struct mounted *m, const char *name,
			       char ret[TICKET_PATH_BYTES])
{
	int fd;

	assert_int_equal(ticket_next(m->s->home.nextfd, m->s->root->engine,
				     name, "b", 1, ret),
			 0);
	fd = ticket_make(m->s->home.nextfd, ret, TICKET_OPEN, 0644);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, "theirs", 6), 6);
	close(fd);
}

static inline void assert_no_tickets(const struct mounted *m)
{
	assert_true(dir_is_empty(m->s->home.homefd, SHARED_NEXT_DIR));
}

static inline void ends_as(struct mounted *m, const char *text)
{
	mounted_start(m);
	assert_int_equal(shared_flush(m->s), 0);
	mounted_stop(m);
	assert_text(text);
	assert_no_tickets(m);
	assert_true(dir_is_empty(m->s->home.ownfd, "."));
	mounted_free(m);
}

#endif
