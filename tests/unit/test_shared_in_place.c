/*
 * What was to replace a file is written into that when it is locked, or when
 * both are empty: the name means the same file of DIR as before, on which
 * others wait for their locks.
 */
#include <sys/file.h>
#include <sys/stat.h>

#include "store/base/scope.h"
#include "tests/unit/ticket_fixture.h"

static ino_t number_of_f(const struct mounted *m)
{
	struct stat sb;

	assert_int_equal(stat(at(m->dir, "f"), &sb), 0);
	return sb.st_ino;
}

/* DIR's file that a write is looked at of, or fails; 0: none. */
static ino_t watched;
static bool is_full, was_mixed;
static unsigned watched_writes;

ssize_t __real_pwrite64(int fd, const void *buf, size_t len, off_t at);
ssize_t __wrap_pwrite64(int fd, const void *buf, size_t len, off_t at);

ssize_t __wrap_pwrite64(int fd, const void *buf, size_t len, off_t at)
{
	struct stat sb;

	if (!watched || fstat(fd, &sb) < 0 || sb.st_ino != watched)
		return __real_pwrite64(fd, buf, len, at);
	watched_writes++;
	if (is_full) {
		(void)__real_pwrite64(fd, buf, len / 2, at);
		errno = EDQUOT;
		return -1;
	}
	was_mixed = was_mixed || sb.st_size > (off_t)len;
	return __real_pwrite64(fd, buf, len, at);
}

/* f has this text, and somebody has just emptied it, and has it open. */
static uint64_t empty_f(struct mounted *m, const char *text)
{
	struct shared_entry e;
	int fd, backing;

	*m = mounted_open();
	put_file(m->dir, "f", text);
	nextfd = m->s->home.nextfd;
	dirfd_ = m->s->home.dirfd;
	assert_int_equal(shared_lookup(m->s, ROOT_INO, "f", 0, &e), 0);
	assert_int_equal(shared_open_file(m->s, &caller, e.id,
					  O_WRONLY | O_TRUNC, &as_file, &fd,
					  &backing),
			 -ESTALE);
	shared_forget(m->s, e.id, 1);
	e.id = look_up_local(m, "f");
	assert_int_equal(shared_change_begin(m->s, e.id, O_WRONLY, &as_file),
			 0);
	return e.id;
}

/* He has written so much, and closes it. -> Is f the same file in DIR? */
static bool keeps_its_number(struct mounted *m, uint64_t id, const char *text,
			     size_t len)
{
	struct store *st = m->live.st;
	ino_t before = number_of_f(m);
	struct inode *in;
	bool same;

	assert_int_equal(inode_get(st->inodes, id, &in), 0);
	if (len > 0)
		assert_int_equal(file_write(&st->files, in, text, len, 0), 0);
	assert_int_equal(drain_closed(st->drain, in), 0);
	shared_change_end(m->s, id);
	inode_put(st->inodes, in, 1);
	mounted_start(m);
	assert_int_equal(shared_flush(m->s), 0);
	mounted_stop(m);
	same = number_of_f(m) == before;
	assert_no_tickets(m);
	assert_true(dir_is_empty(m->s->home.ownfd, "."));
	return same;
}

static void closed(struct mounted *m, uint64_t id)
{
	struct store *st = m->live.st;
	struct inode *in;

	assert_int_equal(inode_get(st->inodes, id, &in), 0);
	assert_int_equal(drain_closed(st->drain, in), 0);
	inode_put(st->inodes, in, 1);
}

static void lock(struct mounted *m, uint64_t id)
{
	assert_int_equal(shared_flock(m->s, id, 1, LOCK_EX | LOCK_NB), 0);
}

static void a_lock_is_on_what_it_replaces(void **state)
{
	struct mounted m;
	uint64_t id = empty_f(&m, "old");
	int fd = open(at(m.dir, "f"), O_RDWR);

	(void)state;
	lock(&m, id);
	assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), -1);
	shared_unlock(m.s, id, 1, true);
	assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
	assert_int_equal(shared_flock(m.s, id, 1, LOCK_EX | LOCK_NB),
			 -EWOULDBLOCK);
	close(fd);
	assert_true(keeps_its_number(&m, id, "1234", 4));
	assert_text("1234");
	mounted_free(&m);
}

/* Its upload has seen that it was overtaken, and has it in its hands yet. */
static void so_is_one_on_what_was_given_up_just_now(void **state)
{
	struct mounted m;
	uint64_t id = empty_f(&m, "old");
	int fd = open(at(m.dir, "f"), O_RDWR);
	struct node_use u = { 0 };

	(void)state;
	assert_int_equal(node_use(m.s, id, &u), 0);
	local_give_up(m.s, u.n);
	lock(&m, id);
	assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), -1);
	shared_unlock(m.s, id, 1, true);
	assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
	close(fd);
	shared_change_end(m.s, id);
	node_use_end(&u);
	mounted_free(&m);
}

/* Each time that it is locked there is one local file more, and one less. */
static void one_is_kept_here(void **state)
{
	struct mounted m;
	uint64_t id = empty_f(&m, "old"), next;
	struct shared_figures now;

	(void)state;
	mounted_start(&m);
	for (unsigned i = 0; i < 3; i++) {
		lock(&m, id);
		shared_unlock(m.s, id, 1, true);
		shared_change_end(m.s, id);
		closed(&m, id);
		assert_int_equal(shared_flush(m.s), 0);
		shared_figures(m.s, &now);
		assert_int_equal(now.kept, 1);
		assert_int_equal(look_up_local(&m, "f"), id);
		assert_int_equal(shared_change_begin(
					 m.s, id, O_WRONLY | O_TRUNC, &as_file),
				 -ESTALE);
		next = look_up_local(&m, "f");
		assert_int_not_equal(next, id);
		id = next;
		assert_int_equal(
			shared_change_begin(m.s, id, O_WRONLY, &as_file), 0);
	}
	shared_change_end(m.s, id);
	closed(&m, id);
	mounted_free(&m);
}

static void what_is_not_locked_is_replaced(void **state)
{
	struct mounted m;
	uint64_t id = empty_f(&m, "old");

	(void)state;
	assert_false(keeps_its_number(&m, id, "new", 3));
	assert_text("new");
	mounted_free(&m);
}

/* The one that is to replace it is not locked, and the file itself is. */
static void so_is_none_that_others_here_lock(void **state)
{
	struct mounted m;
	struct shared_entry e;
	uint64_t id = empty_f(&m, "old");

	(void)state;
	assert_int_equal(link(at(m.dir, "f"), at(m.dir, "g")), 0);
	assert_int_equal(shared_lookup(m.s, ROOT_INO, "g", 0, &e), 0);
	lock(&m, e.id);
	assert_int_equal(unlink(at(m.dir, "g")), 0);
	assert_true(keeps_its_number(&m, id, "new", 3));
	assert_text("new");
	shared_unlock(m.s, e.id, 1, true);
	shared_forget(m.s, e.id, 1);
	mounted_free(&m);
}

/* Another node, or a hand in DIR: by either kind of lock. */
static void so_is_none_that_others_lock_in_dir(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		struct flock range = { .l_type = F_RDLCK };
		struct mounted m;
		uint64_t id = empty_f(&m, "old");
		int fd = open(at(m.dir, "f"), O_RDWR);

		if (i == 0)
			assert_int_equal(flock(fd, LOCK_EX), 0);
		else
			assert_int_equal(fcntl(fd, F_OFD_SETLK, &range), 0);
		assert_true(keeps_its_number(&m, id, "new", 3));
		assert_text("new");
		close(fd);
		mounted_free(&m);
	}
}

/* Who had locked what is not known after a start; who does is asked. */
static void so_it_is_after_a_start(void **state)
{
	struct mounted m;
	uint64_t id = empty_f(&m, "old");
	ino_t number = number_of_f(&m);
	int fd;

	(void)state;
	shared_change_end(m.s, id);
	closed(&m, id);
	mounted_die(&m);
	mounted_enter(&m);
	nextfd = m.s->home.nextfd;
	fd = open(at(m.dir, "f"), O_RDWR);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	mounted_start(&m);
	assert_int_equal(shared_flush(m.s), 0);
	assert_int_equal(number_of_f(&m), number);
	assert_text("");
	assert_no_tickets(&m);
	close(fd);
	mounted_free(&m);
}

static void nobody_reads_the_end_of_the_old_one(void **state)
{
	struct mounted m;
	uint64_t id = empty_f(&m, "12345");

	(void)state;
	lock(&m, id);
	watched = number_of_f(&m);
	was_mixed = false;
	watched_writes = 0;
	assert_true(keeps_its_number(&m, id, "678", 3));
	watched = 0;
	assert_int_equal(watched_writes, 1);
	assert_false(was_mixed);
	assert_text("678");
	mounted_free(&m);
}

static void what_cannot_be_written_replaces_it(void **state)
{
	struct mounted m;
	uint64_t id = empty_f(&m, "12345");

	(void)state;
	lock(&m, id);
	watched = number_of_f(&m);
	watched_writes = 0;
	is_full = true;
	assert_false(keeps_its_number(&m, id, "678", 3));
	is_full = false;
	watched = 0;
	assert_int_equal(watched_writes, 1);
	assert_text("678");
	mounted_free(&m);
}

/* As a client remembers it that has seen it pending: no node has its link. */
static void what_only_looks_pending_is_written_into(void **state)
{
	struct mounted m;
	uint64_t id = empty_f(&m, "old");

	(void)state;
	lock(&m, id);
	assert_int_equal(chmod(at(m.dir, "f"), pending_mode(m.s)), 0);
	assert_true(keeps_its_number(&m, id, "new", 3));
	assert_text("new");
	mounted_free(&m);
}

static void an_empty_one_is_not_replaced_by_an_empty_one(void **state)
{
	struct mounted m;
	uint64_t id = empty_f(&m, "");

	(void)state;
	assert_true(keeps_its_number(&m, id, "", 0));
	mounted_free(&m);
}

static void but_one_with_bytes_is(void **state)
{
	struct mounted m;
	uint64_t id = empty_f(&m, "old");

	(void)state;
	assert_false(keeps_its_number(&m, id, "", 0));
	assert_text("");
	mounted_free(&m);
}

/* A data file, which who writes it locks, as HDF5 does. */
static void a_large_one_is_replaced(void **state)
{
	struct mounted m;
	uint64_t id = empty_f(&m, "old");
	char *text = calloc(1, 70000);

	(void)state;
	lock(&m, id);
	assert_false(keeps_its_number(&m, id, text, 70000));
	free(text);
	mounted_free(&m);
}

static void a_rename_gives_the_name_to_the_other_file(void **state)
{
	struct mounted m = mounted_open();
	struct store *st = m.live.st;
	struct shared_entry e;
	struct inode *in;

	(void)state;
	put_file(m.dir, "f", "");
	nextfd = m.s->home.nextfd;
	dirfd_ = m.s->home.dirfd;
	assert_int_equal(
		shared_create(m.s, &caller, ROOT_INO, "t", &as_file, &e, &in),
		0);
	assert_int_equal(shared_rename(m.s, &caller, ROOT_INO, "t", ROOT_INO,
				       "f", 0, NULL),
			 0);
	lock(&m, e.id); /* of itself */
	assert_false(keeps_its_number(&m, e.id, "", 0));
	inode_forget(st->inodes, in, 1);
	inode_put(st->inodes, in, 1);
	mounted_free(&m);
}

static void what_has_another_name_replaces_it(void **state)
{
	struct mounted m;
	struct shared_entry e;
	uint64_t id = empty_f(&m, "old");
	struct stat l;

	(void)state;
	assert_int_equal(shared_link(m.s, &caller, id, ROOT_INO, "l", &e), 0);
	lock(&m, id);
	assert_false(keeps_its_number(&m, id, "new", 3));
	assert_int_equal(stat(at(m.dir, "l"), &l), 0);
	assert_int_equal(l.st_ino, number_of_f(&m));
	mounted_free(&m);
}

static void what_was_set_of_it_is_set(void **state)
{
	struct mounted m;
	uint64_t id = empty_f(&m, "old");
	const struct attr to = { .mode = S_IFREG | 0600 };
	struct inode *in;
	struct stat sb;

	(void)state;
	lock(&m, id);
	assert_int_equal(inode_get(m.live.st->inodes, id, &in), 0);
	assert_int_equal(names_setattr(m.live.st->names, in, SET_MODE, &to), 0);
	inode_put(m.live.st->inodes, in, 1);
	assert_int_equal(shared_set_local(m.s, &caller, id, SET_MODE, &to), 0);
	assert_true(keeps_its_number(&m, id, "new", 3));
	assert_int_equal(stat(at(m.dir, "f"), &sb), 0);
	assert_int_equal(sb.st_mode & 07777, 0600);
	mounted_free(&m);
}

/* The first one who locks a new name has it open, and is another node. */
static void it_waits_until_what_it_is_written_into_is_whole(void **state)
{
	struct mounted m;
	uint64_t id = empty_f(&m, "");
	struct node_use u = { 0 };
	char own[64];
	int lockfd;

	(void)state;
	assert_int_equal(chmod(at(m.dir, "f"), pending_mode(m.s)), 0);
	assert_int_equal(mkdirat(m.s->home.homefd, "nodes/b", 0700), 0);
	assert_int_equal(mkdirat(m.s->home.homefd, "nodes/b/own", 0700), 0);
	(void)snprintf(own, sizeof(own), "nodes/b/own/%016llx",
		       (unsigned long long)number_of_f(&m));
	assert_int_equal(linkat(dirfd_, "f", m.s->home.homefd, own, 0), 0);
	lockfd = openat(m.s->home.homefd, "nodes/b/" SHARED_LOCK_FILE,
			O_CREAT | O_RDWR, 0600);
	assert_int_equal(flock(lockfd, LOCK_EX), 0); /* it lives */
	assert_int_equal(node_use(m.s, id, &u), 0);
	assert_int_equal(in_place_waits(m.s, u.n), 0); /* it is not locked */
	lock(&m, id);
	assert_int_equal(in_place_waits(m.s, u.n), 1);
	assert_int_equal(chmod(at(m.dir, "f"), 0644), 0);
	assert_int_equal(unlinkat(m.s->home.homefd, own, 0), 0);
	assert_int_equal(in_place_waits(m.s, u.n), 0);
	node_use_end(&u);
	close(lockfd);
	assert_true(keeps_its_number(&m, id, "new", 3));
	mounted_free(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_lock_is_on_what_it_replaces),
		cmocka_unit_test(so_is_one_on_what_was_given_up_just_now),
		cmocka_unit_test(one_is_kept_here),
		cmocka_unit_test(what_is_not_locked_is_replaced),
		cmocka_unit_test(so_is_none_that_others_here_lock),
		cmocka_unit_test(so_is_none_that_others_lock_in_dir),
		cmocka_unit_test(so_it_is_after_a_start),
		cmocka_unit_test(nobody_reads_the_end_of_the_old_one),
		cmocka_unit_test(what_cannot_be_written_replaces_it),
		cmocka_unit_test(what_only_looks_pending_is_written_into),
		cmocka_unit_test(an_empty_one_is_not_replaced_by_an_empty_one),
		cmocka_unit_test(but_one_with_bytes_is),
		cmocka_unit_test(a_large_one_is_replaced),
		cmocka_unit_test(a_rename_gives_the_name_to_the_other_file),
		cmocka_unit_test(what_has_another_name_replaces_it),
		cmocka_unit_test(what_was_set_of_it_is_set),
		cmocka_unit_test(
			it_waits_until_what_it_is_written_into_is_whole),
	};

	return cmocka_run_group_tests_name("shared_in_place", tests, NULL,
					   NULL);
}
