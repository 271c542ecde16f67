/*
 * Names of a directory that is shared, without a kernel in between: what the
 * kernel would have looked up first, and what others did since, is chosen here.
 */
#include <sys/stat.h>

#include "store/base/dir.h"
#include "store/base/interrupt.h"
#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/drain/drain.h"
#include "store/file/file.h"
#include "store/shared/shared_private.h"
#include "tests/unit/shared_fixture.h"
#include "tests/unit/test_clock.h"

static uint64_t look_up(struct mounted *m, const char *name)
{
	struct shared_entry e;

	assert_int_equal(shared_lookup(m->s, ROOT_INO, name, 0, &e), 0);
	return e.id;
}

static int is_any(void *arg, int fd, const char *name)
{
	(void)arg;
	(void)fd;
	(void)name;
	return 1;
}

static int open_node(struct mounted *m, uint64_t id, int flags, int *ret_fd)
{
	int backing;

	return shared_open_file(m->s, &caller, id, flags, &as_file, ret_fd,
				&backing);
}

/* A file is on its way to the name f; DIR has none there any more. */
static uint64_t begin_replacing(struct mounted *m)
{
	uint64_t id;
	int fd;

	put_file(m->dir, "f", "old");
	id = look_up(m, "f");
	assert_int_equal(open_node(m, id, O_WRONLY | O_TRUNC, &fd), -ESTALE);
	shared_forget(m->s, id, 1);
	id = look_up(m, "f");
	assert_false(shared_is_node(id));
	assert_int_equal(unlink(at(m->dir, "f")), 0);
	assert_int_equal(shared_change_begin(m->s, id, O_WRONLY, &as_file), 0);
	return id;
}

static void end_replacing(struct mounted *m, uint64_t id)
{
	struct inode_table *inodes = m->live.st->inodes;
	struct inode *in;

	shared_change_end(m->s, id);
	assert_int_equal(shared_unlink(m->s, &caller, ROOT_INO, "f", false), 0);
	assert_int_equal(inode_get(inodes, id, &in), 0);
	inode_forget(inodes, in, 1);
	inode_put(inodes, in, 2);
}

static void nothing_is_made_at_a_name_that_a_file_is_on_its_way_to(void **state)
{
	const struct names_new folder = { .mode = S_IFDIR | 0755 };
	const struct names_new link = { .mode = S_IFLNK | 0777,
					.target = "nowhere" };
	const struct names_new fifo = { .mode = S_IFIFO | 0644 };
	struct mounted m = mounted_new();
	struct shared_entry e;
	struct inode *in;
	uint64_t id, other;
	int fd, backing;

	(void)state;
	time_stands();
	id = begin_replacing(&m);
	put_file(m.dir, "other", "other");
	other = look_up(&m, "other");
	assert_int_equal(shared_make(m.s, &caller, ROOT_INO, "f", &folder, &e),
			 -EEXIST);
	assert_int_equal(shared_make(m.s, &caller, ROOT_INO, "f", &link, &e),
			 -EEXIST);
	assert_int_equal(shared_make(m.s, &caller, ROOT_INO, "f", &fifo, &e),
			 -EEXIST);
	assert_int_equal(shared_link(m.s, &caller, other, ROOT_INO, "f", &e),
			 -EEXIST);
	assert_int_equal(
		shared_create(m.s, &caller, ROOT_INO, "f", &as_file, &e, &in),
		-EEXIST);
	assert_int_equal(shared_create_plain(m.s, &caller, ROOT_INO, "f", 0644,
					     O_WRONLY | O_APPEND, &e, &fd,
					     &backing),
			 -EEXIST);
	assert_false(is_there(m.dir, "f"));
	shared_forget(m.s, other, 1);
	end_replacing(&m, id);
	time_goes_on();
	mounted_free(&m);
}

/* Others put it there: another file with these bytes. */
static void put_over(struct mounted *m, const char *name, const char *bytes)
{
	put_file(m->dir, "tmp", bytes);
	assert_int_equal(rename(at(m->dir, "tmp"), at(m->dir, name)), 0);
}

static void assert_has(int fd, const char *bytes)
{
	char buf[16] = "";

	assert_int_equal(read(fd, buf, sizeof(buf) - 1), strlen(bytes));
	assert_string_equal(buf, bytes);
}

/* What was looked up, whoever has put another file there since. */
static void an_open_is_of_the_file_that_was_looked_up(void **state)
{
	struct mounted m = mounted_new();
	struct stat sb;
	uint64_t id;
	int fd;

	(void)state;
	time_stands();
	put_file(m.dir, "f", "old");
	id = look_up(&m, "f");
	put_over(&m, "f", "newer");
	assert_int_equal(shared_stat(m.s, id, &sb), 0);
	assert_int_equal(sb.st_size, 3);
	assert_int_equal(open_node(&m, id, O_RDONLY, &fd), 0);
	assert_has(fd, "old");
	node_forget_seen(m.s);
	assert_int_equal(shared_stat(m.s, id, &sb), 0);
	assert_int_equal(sb.st_size, 3);
	shared_close(m.s, id, fd);
	shared_forget(m.s, id, 1);
	time_goes_on();
	mounted_free(&m);
}

/* Where there is no descriptor of it, it is of what is at the name. */
static void
a_file_that_cannot_be_opened_any_more_is_what_replaced_it(void **state)
{
	struct mounted m = mounted_new();
	struct stat sb;
	uint64_t id, other;
	int fd, second;

	(void)state;
	m.s->fds_max = 0;
	put_file(m.dir, "f", "old");
	id = look_up(&m, "f");
	put_over(&m, "f", "newer");
	assert_int_equal(shared_stat(m.s, id, &sb), 0);
	assert_int_equal(sb.st_size, 5);
	put_over(&m, "f", "newest");
	assert_int_equal(open_node(&m, id, O_RDONLY, &fd), 0);
	assert_has(fd, "newest");
	/* By its name it is the node that it became. */
	other = look_up(&m, "f");
	assert_int_equal(other, id);
	/* Not while it is open, as what it was. */
	put_over(&m, "f", "last");
	assert_int_equal(open_node(&m, id, O_RDONLY, &second), -ESTALE);
	shared_close(m.s, id, fd);
	/* What is there is known by another number already. */
	other = look_up(&m, "f");
	assert_int_not_equal(other, id);
	assert_int_equal(open_node(&m, id, O_RDONLY, &fd), 0);
	assert_has(fd, "last");
	shared_close(m.s, id, fd);
	assert_int_equal(look_up(&m, "f"), other);
	shared_forget(m.s, other, 2);
	/* There is none, or a folder. */
	assert_int_equal(unlink(at(m.dir, "f")), 0);
	assert_int_equal(open_node(&m, id, O_RDONLY, &fd), -ENOENT);
	assert_int_equal(open_node(&m, id, O_WRONLY, &fd), -ESTALE);
	assert_int_equal(mkdir(at(m.dir, "f"), 0700), 0);
	assert_int_equal(open_node(&m, id, O_RDONLY, &fd), -ESTALE);
	shared_forget(m.s, id, 2);
	mounted_free(&m);
}

static bool has_descriptor(struct mounted *m, uint64_t id)
{
	struct node *n = node_get(m->s, id);
	bool has;

	{
		HOLD(&m->s->lock);
		has = n->fd >= 0;
	}
	node_put(m->s, n);
	return has;
}

/*
 * Each file has one that is not needed for long. The mount's threads, which
 * have some now and then, do not run. The old files are held open, or a new one
 * might get the number of one that is gone, and be taken for its node.
 */
static void descriptors_since_a_look_up_make_room_for_others(void **state)
{
	struct mounted m = mounted_open();
	uint64_t id[4];
	int held[4];
	char name[2] = "";

	(void)state;
	time_stands();
	{
		HOLD(&m.s->lock);
		m.s->fds_max = m.s->fds + 2;
	}
	for (unsigned i = 0; i < 4; i++) {
		name[0] = (char)('a' + i);
		put_file(m.dir, name, "old");
		held[i] = open(at(m.dir, name), O_RDONLY | O_CLOEXEC);
		assert_true(held[i] >= 0);
		id[i] = look_up(&m, name);
		put_over(&m, name, "newer");
	}
	for (unsigned i = 4; i-- > 0;) { /* who has none gets one */
		bool has = has_descriptor(&m, id[i]);
		struct stat sb;

		assert_int_equal(has, i >= 2); /* the younger ones */
		assert_int_equal(shared_stat(m.s, id[i], &sb), 0);
		assert_int_equal(sb.st_size, has ? 3 : 5);
	}
	{
		HOLD(&m.s->lock);
		assert_true(m.s->fds <= m.s->fds_max);
	}
	for (unsigned i = 0; i < 4; i++) {
		shared_forget(m.s, id[i], 1);
		close(held[i]);
	}
	time_goes_on();
	mounted_free(&m);
}

/* What another node does in the last moment before a rename of ours. */
static struct mounted *meanwhile;
static bool refuses; /* DIR: what is taken does not get its name */

int __real_renameat(int from, const char *name, int to, const char *new_name);
int __wrap_renameat(int from, const char *name, int to, const char *new_name);

int __wrap_renameat(int from, const char *name, int to, const char *new_name)
{
	if (meanwhile && strcmp(name, "mine") == 0)
		put_over(meanwhile, name, "theirs");
	if (refuses && strcmp(new_name, "f") == 0) {
		errno = EIO;
		return -1;
	}
	return __real_renameat(from, name, to, new_name);
}

/* Rather is it as if the other node had been there before the rename. */
static void
a_file_that_another_node_put_there_is_not_taken_for_ours(void **state)
{
	struct mounted m = mounted_new();
	struct shared_entry e;
	struct inode *in;
	char text[16] = "";
	int fd;

	(void)state;
	put_file(m.dir, "f", "old");
	assert_int_equal(shared_create(m.s, &caller, ROOT_INO, "mine", &as_file,
				       &e, &in),
			 0);
	meanwhile = &m;
	assert_int_equal(shared_rename(m.s, &caller, ROOT_INO, "mine", ROOT_INO,
				       "f", 0, NULL),
			 0);
	meanwhile = NULL;
	fd = open(at(m.dir, "f"), O_RDONLY);
	assert_true(fd >= 0);
	assert_int_equal(read(fd, text, sizeof(text)), 6);
	assert_string_equal(text, "theirs");
	close(fd);
	assert_false(is_there(m.dir, "mine"));
	assert_int_equal(dir_each(m.s->home.nextfd, ".", is_any, NULL), 0);
	shared_change_end(m.s, in->ino);
	inode_forget(m.live.st->inodes, in, 1);
	inode_put(m.live.st->inodes, in, 2);
	mounted_free(&m);
}

/* Somebody writes to the file in DIR in the moment in which it is whole. */
static struct mounted *changes_when_whole;
static bool was_node; /* what the name meant then */

int __real_fchmod(int fd, mode_t mode);
int __wrap_fchmod(int fd, mode_t mode);

int __wrap_fchmod(int fd, mode_t mode)
{
	struct mounted *m = changes_when_whole;
	int rc = __real_fchmod(fd, mode), own;
	struct stat before, after;
	struct shared_entry e;

	if (!m)
		return rc;
	own = openat(m->s->home.dirfd, "f", O_WRONLY);
	if (fstat(own, &before) < 0)
		abort();
	do { /* until the clock of files has gone on */
		if (pwrite(own, "theirs", 6, 0) != 6 || fstat(own, &after) < 0)
			abort();
	} while (io_ns(&after.st_mtim) == io_ns(&before.st_mtim));
	if (shared_lookup(m->s, ROOT_INO, "f", 0, &e) == 0)
		was_node = shared_is_node(e.id);
	if (was_node)
		shared_forget(m->s, e.id, 1);
	close(own);
	return rc;
}

/* As large as it was, and most likely in the second of its own time. */
static void a_file_changed_in_the_moment_it_is_whole_is_not_kept(void **state)
{
	struct mounted m = mounted_new();
	struct files *files = &m.live.st->files;
	struct file_opened opened;
	struct shared_entry e;
	struct inode *in;
	struct node *n;
	uint64_t id;

	(void)state;
	assert_int_equal(
		shared_create(m.s, &caller, ROOT_INO, "f", &as_file, &e, &in),
		0);
	assert_int_equal(file_open(files, in, O_WRONLY, &opened), 0);
	assert_int_equal(file_write(files, in, "mine..", 6, 0), 0);
	changes_when_whole = &m;
	assert_int_equal(file_flush(files, in, O_WRONLY), 0);
	file_release(files, in, O_WRONLY);
	shared_change_end(m.s, in->ino);
	assert_int_equal(shared_flush(m.s), 0);
	n = node_get(m.s, in->ino); /* NULL: it is given up already */
	if (n) {
		HOLD(&m.s->lock);
		while (n->is_taken)
			cond_wait(&m.s->moved, &m.s->lock);
	}
	node_put(m.s, n);
	changes_when_whole = NULL;
	assert_true(was_node);
	id = look_up(&m, "f");
	assert_true(shared_is_node(id));
	shared_forget(m.s, id, 1);
	inode_forget(m.live.st->inodes, in, 1);
	inode_put(m.live.st->inodes, in, 2);
	mounted_free(&m);
}

/* It has got its mode, and not its name: a link would show it. */
static void a_ticket_that_did_not_get_its_name_is_pending(void **state)
{
	struct mounted m = mounted_new();
	struct files *files = &m.live.st->files;
	struct inode_table *inodes = m.live.st->inodes;
	char taken[TICKET_PATH_BYTES];
	struct file_opened opened;
	struct inode *in;
	struct node *n;
	struct stat sb;
	uint64_t id;
	int fd;

	(void)state;
	put_file(m.dir, "f", "old");
	id = look_up(&m, "f");
	assert_int_equal(open_node(&m, id, O_WRONLY | O_TRUNC, &fd), -ESTALE);
	shared_forget(m.s, id, 1);
	id = look_up(&m, "f");
	assert_false(shared_is_node(id));
	assert_int_equal(shared_change_begin(m.s, id, O_WRONLY, &as_file), 0);
	assert_int_equal(inode_get(inodes, id, &in), 0);
	assert_int_equal(file_open(files, in, O_WRONLY, &opened), 0);
	assert_int_equal(file_write(files, in, "new", 3, 0), 0);
	assert_int_equal(file_flush(files, in, O_WRONLY), 0);
	file_release(files, in, O_WRONLY);
	time_stands(); /* it is not tried again */
	refuses = true;
	shared_change_end(m.s, id);
	assert_int_equal(drain_sync_closed(m.live.st->drain), 0);
	n = node_get(m.s, id);
	while (true) {
		HOLD(&m.s->lock);
		if (n->failures > 0)
			break;
		n->due_ns = 0;
		cond_signal(&m.s->idle);
		cond_wait(&m.s->moved, &m.s->lock);
	}
	assert_true(node_ticket(m.s, n, taken));
	strcat(taken, "!");
	assert_int_equal(fstatat(m.s->home.nextfd, taken, &sb, 0), 0);
	assert_true(pending_is(m.s, &sb));
	refuses = false;
	time_goes_on();
	assert_int_equal(shared_flush(m.s), 0);
	assert_int_equal(stat(at(m.dir, "f"), &sb), 0);
	assert_int_equal(sb.st_size, 3);
	node_put(m.s, n);
	inode_forget(inodes, in, 1);
	inode_put(inodes, in, 2);
	mounted_free(&m);
}

static bool never(const struct interrupt *i)
{
	(void)i;
	return false;
}

/* What another node has, and its number. */
static ino_t put_anothers(struct mounted *m, const char *name)
{
	int fd = open(at(m->dir, name), O_WRONLY | O_CREAT, 0600);
	struct stat sb;
	char own[80];

	assert_int_equal(fchmod(fd, pending_mode(m->s)), 0);
	assert_int_equal(fstat(fd, &sb), 0);
	(void)mkdir(at(m->dir, ".ckptfs/nodes/b"), 0700);
	(void)mkdir(at(m->dir, ".ckptfs/nodes/b/wanted"), 0700);
	(void)mkdir(at(m->dir, ".ckptfs/nodes/b/own"), 0700);
	(void)snprintf(own, sizeof(own), ".ckptfs/nodes/b/own/%016llx",
		       (unsigned long long)sb.st_ino);
	assert_int_equal(dir_link(fd, AT_FDCWD, at(m->dir, own)), 0);
	close(fd);
	return sb.st_ino;
}

/* It asks once; and its time is that since the first try. */
static void an_open_of_what_another_node_has_is_put_off(void **state)
{
	char asked[80];
	struct put_off off = { 0 };
	struct interrupt i = { .ends = never, .put_off = &off };
	struct mounted m = mounted_new();
	int64_t pause_ns = 0;
	uint64_t id;
	int fd = -1;

	(void)state;
	time_stands();
	(void)snprintf(asked, sizeof(asked), ".ckptfs/nodes/b/wanted/%016llx",
		       (unsigned long long)put_anothers(&m, "f"));
	id = look_up(&m, "f");
	(void)interrupt_set(&i);
	assert_int_equal(open_node(&m, id, O_RDONLY, &fd), -ERESTART);
	assert_int_equal(unlink(at(m.dir, asked)), 0);
	for (unsigned n = 0; n < 10; n++) {
		assert_true(off.pause_ns >= pause_ns && off.pause_ns > 0);
		assert_true(off.pause_ns <= SECOND_NS);
		pause_ns = off.pause_ns;
		assert_int_equal(open_node(&m, id, O_RDONLY, &fd), -ERESTART);
	}
	assert_false(is_there(m.dir, asked));
	time_passes(SECOND_NS); /* pending_wait */
	assert_int_equal(open_node(&m, id, O_RDONLY, &fd), -EIO);
	off = (struct put_off){ 0 };
	assert_int_equal(open_node(&m, id, O_WRONLY, &fd), -ERESTART);
	assert_int_equal(chmod(at(m.dir, "f"), 0644), 0);
	assert_int_equal(open_node(&m, id, O_WRONLY, &fd), 0);
	(void)interrupt_set(NULL);
	shared_close(m.s, id, fd);
	shared_forget(m.s, id, 1);
	time_goes_on();
	mounted_free(&m);
}

/* Its bytes are nowhere else: who makes room has looked a moment too early. */
static void what_is_pending_is_not_given_up_for_room(void **state)
{
	struct mounted m = mounted_open();
	struct node_use u = { 0 };
	struct shared_entry e;
	struct inode *in;

	(void)state;
	assert_int_equal(
		shared_create(m.s, &caller, ROOT_INO, "f", &as_file, &e, &in),
		0);
	assert_int_equal(drain_closed(m.live.st->drain, in), 0);
	shared_change_end(m.s, e.id);
	inode_forget(m.live.st->inodes, in, 1);
	inode_put(m.live.st->inodes, in, 2);
	assert_int_equal(node_use(m.s, e.id, &u), 0);
	assert_false(local_give_up_kept(m.s, u.n));
	assert_int_equal(node_state(m.s, u.n), NODE_PENDING);
	mounted_start(&m);
	assert_int_equal(shared_flush(m.s), 0);
	assert_true(local_give_up_kept(m.s, u.n));
	assert_int_equal(node_state(m.s, u.n), NODE_GONE);
	node_use_end(&u);
	mounted_free(&m);
}

/* Or the tests after one that failed would wait for ever. */
static int let_time_go_on(void **state)
{
	(void)state;
	time_goes_on();
	return 0;
}

#define TEST(f) cmocka_unit_test_teardown(f, let_time_go_on)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(nothing_is_made_at_a_name_that_a_file_is_on_its_way_to),
		TEST(an_open_is_of_the_file_that_was_looked_up),
		TEST(a_file_that_cannot_be_opened_any_more_is_what_replaced_it),
		TEST(descriptors_since_a_look_up_make_room_for_others),
		TEST(a_file_that_another_node_put_there_is_not_taken_for_ours),
		TEST(a_file_changed_in_the_moment_it_is_whole_is_not_kept),
		TEST(a_ticket_that_did_not_get_its_name_is_pending),
		TEST(an_open_of_what_another_node_has_is_put_off),
		TEST(what_is_pending_is_not_given_up_for_room),
	};

	return cmocka_run_group_tests_name("shared_names", tests, NULL, NULL);
}
