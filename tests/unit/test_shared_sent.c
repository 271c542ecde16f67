/*
 * Who opens with O_TRUNC what DIR has, or what others are about to replace: he
 * is sent to a new file, once, whatever happens between his calls. What the
 * kernel asks, and when, is chosen here.
 */
#include <sys/stat.h>

#include "tests/unit/test_clock.h"
#include "tests/unit/ticket_fixture.h"

#define TID 4711
#define OTHER_TID 4712

static const struct names_new by_tid = { .mode = S_IFREG | 0644, .pid = TID };
static const struct shared_caller as_tid = { .tid = TID };

/* --- one who is sent ------------------------------------------------------ */

static int look_up_as(struct mounted *m, pid_t tid, uint64_t *ret_id)
{
	struct shared_entry e;
	struct inode *in;
	int rc = shared_lookup(m->s, ROOT_INO, "f", tid, &e);

	if (rc < 0)
		return rc;
	if (shared_is_node(e.id)) {
		shared_forget(m->s, e.id, 1);
	} else {
		assert_int_equal(inode_get(m->live.st->inodes, e.id, &in), 0);
		inode_forget(m->live.st->inodes, in, 1);
		inode_put(m->live.st->inodes, in, 1);
	}
	*ret_id = e.id;
	return 0;
}

/* f has "old", and TID has just been sent away from it. */
static struct mounted sent_new(void)
{
	struct mounted m = mounted_open();
	struct shared_entry e;
	int fd, backing;

	put_file(m.dir, "f", "old");
	nextfd = m.s->home.nextfd;
	dirfd_ = m.s->home.dirfd;
	assert_int_equal(shared_lookup(m.s, ROOT_INO, "f", TID, &e), 0);
	assert_int_equal(shared_open_file(m.s, &as_tid, e.id,
					  O_WRONLY | O_TRUNC, &by_tid, &fd,
					  &backing),
			 -ESTALE);
	shared_forget(m.s, e.id, 1);
	return m;
}

/* He opens what his look-up found, and that has this text now. */
static void comes(struct mounted *m, uint64_t id, const char *text)
{
	struct store *st = m->live.st;
	struct inode *in;

	assert_false(shared_is_node(id));
	assert_int_equal(
		shared_change_begin(m->s, id, O_WRONLY | O_TRUNC, &by_tid), 0);
	assert_int_equal(inode_get(st->inodes, id, &in), 0);
	assert_int_equal(file_truncate(&st->files, in, 0), 0);
	assert_int_equal(file_write(&st->files, in, text, strlen(text), 0), 0);
	assert_int_equal(drain_closed(st->drain, in), 0);
	shared_change_end(m->s, id);
	assert_int_equal(drain_sync_closed(st->drain), 0);
	inode_put(st->inodes, in, 1);
}

static void expire(struct mounted *m)
{
	sent_expire(m->s);
	empty_give_up_left(m->s);
}

static void put_over(struct mounted *m, const char *text)
{
	put_file(m->dir, "tmp", text);
	assert_int_equal(rename(at(m->dir, "tmp"), at(m->dir, "f")), 0);
}

static void his_look_up_makes_the_file(void **state)
{
	struct mounted m = sent_new();
	uint64_t id, again;

	(void)state;
	assert_no_tickets(&m);
	assert_int_equal(look_up_as(&m, TID, &id), 0);
	assert_int_equal(look_up_as(&m, TID, &again), 0); /* it looks twice */
	assert_int_equal(again, id);
	comes(&m, id, "new");
	assert_text("old");
	ends_as(&m, "new");
}

static void what_others_do_before_he_looks_does_not_matter(void **state)
{
	struct mounted m = sent_new();
	char b[TICKET_PATH_BYTES];
	uint64_t id;

	(void)state;
	put_over(&m, "theirs");
	make_theirs(&m, "f", b);
	complete(b);
	make_theirs(&m, "f", b);
	assert_int_equal(look_up_as(&m, TID, &id), 0);
	comes(&m, id, "new");
	ends_as(&m, "new");
}

/* The one that was made for him stays his until he has opened it. */
static void nor_does_what_they_do_before_he_opens_it(void **state)
{
	struct mounted m = sent_new();
	char b[TICKET_PATH_BYTES];
	uint64_t id, other;

	(void)state;
	assert_int_equal(look_up_as(&m, TID, &id), 0);
	make_theirs(&m, "f", b);
	complete(b);
	assert_int_equal(look_up_as(&m, OTHER_TID, &other), 0);
	assert_int_equal(other, id);
	comes(&m, id, "new");
	assert_text("theirs");
	/* He was overtaken all the same: his call began before theirs ended. */
	ends_as(&m, "theirs");
}

static void what_is_pending_elsewhere_is_not_waited_for(void **state)
{
	struct mounted m = mounted_open();
	struct shared_entry e;
	int fd, backing;
	uint64_t id;

	(void)state;
	put_file(m.dir, "f", "");
	assert_int_equal(chmod(at(m.dir, "f"), pending_mode(m.s)), 0);
	nextfd = m.s->home.nextfd;
	dirfd_ = m.s->home.dirfd;
	assert_int_equal(shared_lookup(m.s, ROOT_INO, "f", TID, &e), 0);
	assert_int_equal(shared_open_file(m.s, &as_tid, e.id,
					  O_WRONLY | O_TRUNC, &by_tid, &fd,
					  &backing),
			 -ESTALE);
	shared_forget(m.s, e.id, 1);
	assert_int_equal(look_up_as(&m, TID, &id), 0);
	comes(&m, id, "new");
	ends_as(&m, "new");
}

/* The kernel looks once more where it knew another file by the name. */
static void a_name_that_is_gone_may_be_there_again(void **state)
{
	struct mounted m = sent_new();
	uint64_t id;

	(void)state;
	assert_int_equal(unlink(at(m.dir, "f")), 0);
	assert_int_equal(look_up_as(&m, TID, &id), -ENOENT);
	put_file(m.dir, "f", "theirs");
	assert_int_equal(look_up_as(&m, TID, &id), 0);
	comes(&m, id, "new");
	ends_as(&m, "new");
}

/* Both of its look-ups have that error: the first one is not what counts. */
static void what_cannot_be_made_is_said(void **state)
{
	struct mounted m = sent_new();
	char folder[32];
	uint64_t id;

	(void)state;
	(void)snprintf(folder, sizeof(folder), "%016llx",
		       (unsigned long long)m.s->root->engine);
	close(openat(nextfd, folder, O_CREAT | O_WRONLY, 0600));
	assert_int_equal(look_up_as(&m, TID, &id), -ENOTDIR);
	assert_int_equal(look_up_as(&m, TID, &id), -ENOTDIR);
	assert_int_equal(look_up_as(&m, TID, &id), 0);
	assert_true(shared_is_node(id));
	assert_int_equal(unlinkat(nextfd, folder, 0), 0);
	ends_as(&m, "old");
}

/* --- others, and later calls ---------------------------------------------- */

static void assert_is_dirs(struct mounted *m, pid_t tid)
{
	uint64_t id;

	assert_int_equal(look_up_as(m, tid, &id), 0);
	assert_true(shared_is_node(id));
	assert_no_tickets(m);
}

static void a_look_up_of_another_thread_makes_nothing(void **state)
{
	struct mounted m = sent_new();
	uint64_t id;

	(void)state;
	assert_is_dirs(&m, OTHER_TID);
	assert_is_dirs(&m, 0);
	assert_is_dirs(&m, SHARED_NOBODY);
	assert_int_equal(look_up_as(&m, TID, &id), 0);
	comes(&m, id, "new");
	assert_int_equal(look_up_as(&m, TID, &id), 0); /* it is over for him */
	ends_as(&m, "new");
}

static void who_found_nothing_was_told_so(void **state)
{
	struct mounted m = sent_new();
	uint64_t id;

	(void)state;
	assert_int_equal(unlink(at(m.dir, "f")), 0);
	assert_int_equal(look_up_as(&m, TID, &id), -ENOENT);
	assert_int_equal(look_up_as(&m, TID, &id), -ENOENT);
	put_file(m.dir, "f", "theirs"); /* which he looks at, and no more */
	assert_is_dirs(&m, TID);
	ends_as(&m, "theirs");
}

static void who_has_made_it_does_not_empty_it_by_a_look(void **state)
{
	struct mounted m = sent_new();
	int fd, backing;
	struct shared_entry e;

	(void)state;
	assert_int_equal(unlink(at(m.dir, "f")), 0);
	assert_int_equal(shared_create_plain(m.s, &as_tid, ROOT_INO, "f", 0644,
					     O_WRONLY | O_APPEND, &e, &fd,
					     &backing),
			 0);
	assert_int_equal(write(fd, "log", 3), 3);
	shared_close(m.s, e.id, fd);
	shared_forget(m.s, e.id, 1);
	assert_is_dirs(&m, TID);
	ends_as(&m, "log");
}

/* He was killed: DIR's file is what the name means again. */
static void what_nobody_comes_for_goes(void **state)
{
	struct mounted m = sent_new();
	uint64_t id;

	(void)state;
	assert_int_equal(look_up_as(&m, TID, &id), 0);
	assert_false(shared_is_node(id));
	expire(&m);
	assert_int_equal(look_up_as(&m, OTHER_TID, &id), 0);
	assert_false(shared_is_node(id));
	time_passes(6 * SECOND_NS);
	expire(&m);
	assert_is_dirs(&m, TID);
	ends_as(&m, "old");
}

/* Somebody has given it another name meanwhile: it is his. */
static void what_has_another_name_stays(void **state)
{
	struct mounted m = sent_new();
	struct shared_entry e;
	struct stat f, l;
	uint64_t id;

	(void)state;
	assert_int_equal(look_up_as(&m, TID, &id), 0);
	assert_int_equal(shared_link(m.s, &caller, id, ROOT_INO, "l", &e), 0);
	time_passes(6 * SECOND_NS);
	expire(&m);
	comes(&m, id, "new");
	mounted_start(&m);
	assert_int_equal(shared_flush(m.s), 0);
	assert_int_equal(stat(at(m.dir, "f"), &f), 0);
	assert_int_equal(stat(at(m.dir, "l"), &l), 0);
	assert_int_equal(f.st_ino, l.st_ino);
	mounted_free(&m);
}

/* By /proc/self/fd, say: the second time there was no look-up. */
static void who_comes_by_no_name_leaves_no_note(void **state)
{
	struct mounted m = sent_new();
	struct shared_entry e;
	int fd, backing;

	(void)state;
	assert_int_equal(shared_lookup(m.s, ROOT_INO, "f", OTHER_TID, &e), 0);
	assert_int_equal(shared_open_file(m.s, &as_tid, e.id,
					  O_WRONLY | O_TRUNC, &by_tid, &fd,
					  &backing),
			 -ESTALE);
	shared_forget(m.s, e.id, 1);
	assert_is_dirs(&m, TID);
	ends_as(&m, "old");
}

/* What was made for him is looked at by others, and the uploader comes by. */
static void what_nobody_came_for_is_not_completed(void **state)
{
	struct mounted m = sent_new();
	struct store *st = m.live.st;
	struct inode *in;
	uint64_t id;

	(void)state;
	assert_int_equal(look_up_as(&m, TID, &id), 0);
	assert_int_equal(inode_get(st->inodes, id, &in), 0);
	assert_int_equal(drain_closed(st->drain, in), 0);
	assert_int_equal(drain_sync_closed(st->drain), 0);
	inode_put(st->inodes, in, 1);
	time_passes(6 * SECOND_NS);
	mounted_start(&m);
	assert_int_equal(shared_flush(m.s), 0);
	mounted_stop(&m);
	assert_text("old");
	assert_no_tickets(&m);
	mounted_free(&m);
}

/* It is put into its place later, and began before. */
static void what_is_changed_here_waits_for_theirs(void **state)
{
	struct mounted m = mounted_open();
	struct store *st = m.live.st;
	char b[TICKET_PATH_BYTES];
	struct shared_entry e;
	struct inode *in;

	(void)state;
	nextfd = m.s->home.nextfd;
	dirfd_ = m.s->home.dirfd;
	assert_int_equal(
		shared_create(m.s, &caller, ROOT_INO, "f", &as_file, &e, &in),
		0);
	assert_int_equal(drain_closed(st->drain, in), 0);
	shared_change_end(m.s, in->ino);
	make_theirs(&m, "f", b);
	m.s->pending_wait_s = 0;
	assert_int_equal(
		shared_change_begin(m.s, e.id, O_WRONLY | O_APPEND, &by_tid),
		-EBUSY);
	complete(b);
	/* By no name any more: who comes by the name finds theirs. */
	assert_is_dirs(&m, TID);
	inode_forget(st->inodes, in, 1);
	inode_put(st->inodes, in, 2);
	ends_as(&m, "theirs");
}

/* --- of a thread that is not known ---------------------------------------- */

static int is_third(void *arg, const struct ticket_left *t)
{
	(void)arg;
	return strstr(t->path, "/0000000000000003.a.") != NULL;
}

/* A call that began when theirs had returned is later than that. */
static void what_is_written_again_is_later_than_theirs(void **state)
{
	struct mounted m = replaced_new();
	char b[TICKET_PATH_BYTES];

	(void)state;
	make_theirs(&m, "f", b);
	assert_int_equal(tickets_each(nextfd, is_third, NULL), 0);
	write_again(&m, look_up_local(&m, "f"), "again");
	assert_int_equal(tickets_each(nextfd, is_third, NULL), 1);
	ends_as(&m, "again");
}

/* It was made here, and somebody else is to replace it; it has two names then.
 */
static void so_is_what_was_not_whole_yet(void **state)
{
	struct mounted m = mounted_open();
	struct store *st = m.live.st;
	char b[TICKET_PATH_BYTES];
	struct shared_entry e;
	struct inode *in;

	(void)state;
	nextfd = m.s->home.nextfd;
	dirfd_ = m.s->home.dirfd;
	assert_int_equal(
		shared_create(m.s, &caller, ROOT_INO, "f", &as_file, &e, &in),
		0);
	assert_int_equal(drain_closed(st->drain, in), 0);
	shared_change_end(m.s, in->ino);
	inode_forget(st->inodes, in, 1);
	inode_put(st->inodes, in, 2);
	make_theirs(&m, "f", b);
	write_again(&m, e.id, "again");
	ends_as(&m, "again");
}

/* Before an upload of it would see that. */
static void who_looks_sees_that_it_was_overtaken(void **state)
{
	struct mounted m = replaced_new();
	char b[TICKET_PATH_BYTES];
	struct shared_entry e;

	(void)state;
	make_theirs(&m, "f", b);
	complete(b);
	assert_int_equal(shared_lookup(m.s, ROOT_INO, "f", 0, &e), 0);
	assert_true(shared_is_node(e.id));
	assert_int_equal(e.stat.st_size, 6);
	shared_forget(m.s, e.id, 1);
	ends_as(&m, "theirs");
}

/* And who has looked before opens the new one, after one more look. */
static void who_empties_it_then_is_later(void **state)
{
	struct mounted m = replaced_new();
	uint64_t id = look_up_local(&m, "f"), fresh;
	char b[TICKET_PATH_BYTES];

	(void)state;
	make_theirs(&m, "f", b);
	complete(b);
	assert_int_equal(
		shared_change_begin(m.s, id, O_WRONLY | O_TRUNC, &as_file),
		-ESTALE);
	fresh = look_up_local(&m, "f");
	assert_int_not_equal(fresh, id);
	write_again(&m, fresh, "again");
	ends_as(&m, "again");
}

/* What is kept here is another node's by now: one more look is enough. */
static void who_empties_what_is_kept_looks_once_more(void **state)
{
	struct mounted m = replaced_new();
	uint64_t id = look_up_local(&m, "f"), fresh;
	char b[TICKET_PATH_BYTES];

	(void)state;
	mounted_start(&m);
	assert_int_equal(shared_flush(m.s), 0);
	make_theirs(&m, "f", b);
	complete(b);
	assert_int_equal(
		shared_change_begin(m.s, id, O_WRONLY | O_TRUNC, &as_file),
		-ESTALE);
	fresh = look_up_local(&m, "f");
	assert_int_not_equal(fresh, id);
	write_again(&m, fresh, "again");
	assert_int_equal(shared_flush(m.s), 0);
	mounted_stop(&m);
	assert_text("again");
	assert_no_tickets(&m);
	mounted_free(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(his_look_up_makes_the_file),
		cmocka_unit_test(
			what_others_do_before_he_looks_does_not_matter),
		cmocka_unit_test(nor_does_what_they_do_before_he_opens_it),
		cmocka_unit_test(what_is_pending_elsewhere_is_not_waited_for),
		cmocka_unit_test(a_name_that_is_gone_may_be_there_again),
		cmocka_unit_test(what_cannot_be_made_is_said),
		cmocka_unit_test(a_look_up_of_another_thread_makes_nothing),
		cmocka_unit_test(who_found_nothing_was_told_so),
		cmocka_unit_test(who_has_made_it_does_not_empty_it_by_a_look),
		cmocka_unit_test(what_nobody_comes_for_goes),
		cmocka_unit_test(what_has_another_name_stays),
		cmocka_unit_test(who_comes_by_no_name_leaves_no_note),
		cmocka_unit_test(what_nobody_came_for_is_not_completed),
		cmocka_unit_test(what_is_changed_here_waits_for_theirs),
		cmocka_unit_test(what_is_written_again_is_later_than_theirs),
		cmocka_unit_test(so_is_what_was_not_whole_yet),
		cmocka_unit_test(who_looks_sees_that_it_was_overtaken),
		cmocka_unit_test(who_empties_it_then_is_later),
		cmocka_unit_test(who_empties_what_is_kept_looks_once_more),
	};

	return cmocka_run_group_tests_name("shared_sent", tests, NULL, NULL);
}
