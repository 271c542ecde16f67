/*
 * Pending files of this node that are not where they were, for another node has
 * renamed them: a search finds them, and one that could not look at all of them
 * is no search.
 */
#include <fcntl.h>
#include <stdatomic.h>

#include "store/base/dir.h"
#include "store/base/scope.h"
#include "store/drain/drain.h"
#include "store/file/file.h"
#include "tests/unit/shared_fixture.h"
#include "tests/unit/test_clock.h"

/* The n-th call from now (1: the next) about this name fails. */
static struct {
	const char *_Atomic name; /* NULL: none */
	atomic_uint n;
} opens, stats; /* threads of the store read them, too */

int __real_openat64(int dirfd, const char *path, int flags, ...);
int __wrap_openat64(int dirfd, const char *path, int flags, ...);
int __real_fstatat64(int dirfd, const char *path, struct stat64 *st, int flags);
int __wrap_fstatat64(int dirfd, const char *path, struct stat64 *st, int flags);

int __wrap_openat64(int dirfd, const char *path, int flags, ...)
{
	mode_t mode = 0;
	va_list ap;

	va_start(ap, flags);
	if (flags & O_CREAT)
		mode = va_arg(ap, mode_t);
	va_end(ap);
	if (opens.name && strcmp(path, opens.name) == 0 && --opens.n == 0) {
		opens.name = NULL;
		errno = EIO;
		return -1;
	}
	return __real_openat64(dirfd, path, flags, mode);
}

int __wrap_fstatat64(int dirfd, const char *path, struct stat64 *st, int flags)
{
	if (stats.name && strcmp(path, stats.name) == 0 && --stats.n == 0) {
		stats.name = NULL;
		errno = EIO;
		return -1;
	}
	return __real_fstatat64(dirfd, path, st, flags);
}

struct searched {
	struct mounted m;
	struct inode *in;
	struct node *n; /* of it, a reference */
};

/* The file f is pending, durable here, and nobody uploads it yet. */
static struct searched searched_new(void)
{
	struct searched t = { .m = mounted_open() };
	struct shared_entry e;

	assert_int_equal(mkdir(at(t.m.dir, "sub"), 0755), 0);
	assert_int_equal(shared_create(t.m.s, &caller, ROOT_INO, "f", &as_file,
				       &e, &t.in),
			 0);
	t.n = node_get(t.m.s, t.in->ino);
	assert_non_null(t.n);
	assert_int_equal(drain_closed(t.m.live.st->drain, t.in), 0);
	shared_change_end(t.m.s, t.in->ino);
	assert_int_equal(drain_sync_closed(t.m.live.st->drain), 0);
	HOLD(&t.m.s->lock);
	while (TAILQ_EMPTY(&t.m.s->queue))
		cond_wait(&t.m.s->moved, &t.m.s->lock);
	return t;
}

static void renamed_by_others(struct searched *t, const char *name)
{
	char *from = strdup(at(t->m.dir, "f"));

	assert_int_equal(rename(from, at(t->m.dir, name)), 0);
	free(from);
}

/* It is completed where it is now, and all ends. */
static void searched_free(struct searched *t, const char *name)
{
	struct store *st = t->m.live.st;
	struct stat sb;

	node_put(t->m.s, t->n);
	time_goes_on();
	mounted_start(&t->m);
	assert_int_equal(shared_flush(t->m.s), 0);
	assert_int_equal(stat(at(t->m.dir, name), &sb), 0);
	assert_false(pending_is(t->m.s, &sb));
	inode_forget(st->inodes, t->in, 1);
	inode_put(st->inodes, t->in, 2);
	mounted_free(&t->m);
}

static void a_search_finds_what_others_renamed(void **state)
{
	struct searched t = searched_new();

	(void)state;
	time_stands();
	renamed_by_others(&t, "sub/g");
	local_search(t.m.s);
	assert_string_equal(t.n->name, "g");
	assert_false(t.m.s->search);
	searched_free(&t, "sub/g");
}

static void what_could_not_be_looked_at_is_searched_again(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		struct searched t = searched_new();

		time_stands();
		renamed_by_others(&t, "sub/g");
		if (i == 0) {
			opens.name = "g";
			opens.n = 1;
		} else { /* the walk has looked at it: whose folder is it? */
			stats.name = "sub";
			stats.n = 2;
		}
		local_search(t.m.s);
		assert_null(opens.name);
		assert_null(stats.name);
		assert_string_equal(t.n->name, "f");
		assert_true(t.m.s->search);
		local_search(t.m.s);
		assert_string_equal(t.n->name, "g");
		searched_free(&t, "sub/g");
	}
}

/*
 * A file that is to replace another one is a ticket. A start that cannot look
 * for it does not take it for one that never came there, nor give it up.
 */
static void a_start_that_cannot_look_changes_nothing(void **state)
{
	struct mounted m = mounted_open();
	struct store *st = m.live.st;
	char ticket[TICKET_PATH_BYTES], why[WHY_BYTES] = "";
	struct shared_entry e;
	struct inode *in;
	struct node *n;
	int fd, backing;

	(void)state;
	put_file(m.dir, "f", "old");
	assert_int_equal(shared_lookup(m.s, ROOT_INO, "f", 0, &e), 0);
	assert_int_equal(shared_open_file(m.s, &caller, e.id,
					  O_WRONLY | O_TRUNC, &as_file, &fd,
					  &backing),
			 -ESTALE);
	shared_forget(m.s, e.id, 1);
	assert_int_equal(shared_lookup(m.s, ROOT_INO, "f", 0, &e), 0);
	n = node_get(m.s, e.id);
	assert_true(node_ticket(m.s, n, ticket));
	node_put(m.s, n);
	assert_int_equal(inode_get(st->inodes, e.id, &in), 0);
	assert_int_equal(shared_change_begin(m.s, e.id, O_WRONLY, &as_file), 0);
	assert_int_equal(file_write(&st->files, in, "new", 3, 0), 0);
	assert_int_equal(drain_closed(st->drain, in), 0);
	shared_change_end(m.s, e.id);
	assert_int_equal(drain_sync_closed(st->drain), 0);
	inode_forget(st->inodes, in, 1);
	inode_put(st->inodes, in, 2);
	mounted_die(&m);
	stats.n = 1;
	stats.name = strrchr(ticket, '/') + 1;
	assert_int_equal(mounted_try_enter(&m, why), -EIO);
	assert_null(stats.name);
	mounted_enter(&m);
	mounted_start(&m);
	assert_int_equal(shared_flush(m.s), 0);
	mounted_stop(&m);
	assert_int_equal(dir_read_text(AT_FDCWD, at(m.dir, "f"), why, 16), 3);
	assert_string_equal(why, "new");
	mounted_free(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_search_finds_what_others_renamed),
		cmocka_unit_test(a_start_that_cannot_look_changes_nothing),
		cmocka_unit_test(what_could_not_be_looked_at_is_searched_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
