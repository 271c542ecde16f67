/*
 * A directory is shared once it was made so, by nodes that are each one store
 * and one daemon; what is not so is refused, with what to do about it, and left
 * as it is.
 */
#include <sys/file.h>
#include <sys/wait.h>

#include "store/base/dir.h"
#include "store/db/identity.h"
#include "tests/unit/home_fixture.h"

#define OTHER 1234 /* a user without a name */

static unsigned mode_of(const char *dir, const char *name)
{
	struct stat st;

	assert_int_equal(lstat(at(dir, name), &st), 0);
	return st.st_mode & 07777;
}

static void a_directory_is_made_shared_once_whatever_is_in_it(void **state)
{
	char *dir = make_tmp();
	char first[512] = "", again[512] = "";

	(void)state;
	put_file(dir, "weights", "are here already");
	assert_int_equal(make_home(dir, ""), 0);
	assert_true(dir_read_text(AT_FDCWD, at(dir, ".ckptfs/format"), first,
				  sizeof(first)) > 0);
	assert_int_equal(make_home(dir, "share already"), -EEXIST);
	assert_int_equal(make_home(dir, "left as it is"), -EEXIST);
	assert_true(dir_read_text(AT_FDCWD, at(dir, ".ckptfs/format"), again,
				  sizeof(again)) > 0);
	assert_string_equal(first, again);
	assert_true(is_there(dir, "weights"));
	remove_tree(dir);
	free(dir);
}

/* Whatever umask there is, and bits that a new directory takes over. */
static void nobody_else_can_make_a_name_in_it(void **state)
{
	static const struct {
		const char *name;
		unsigned mode;
	} parts[] = {
		{ ".ckptfs", 0755 },
		{ ".ckptfs/format", 0644 },
		{ ".ckptfs/nodes", 0755 },
		{ ".ckptfs/new", 0755 },
		{ ".ckptfs/nodes/a", 0755 },
		{ ".ckptfs/nodes/a/lock", 0600 },
		{ ".ckptfs/nodes/a/store", 0644 },
		{ ".ckptfs/nodes/a/alive", 0644 },
		{ ".ckptfs/nodes/a/wanted", 0700 },
		{ ".ckptfs/nodes/a/own", 0700 },
		{ ".ckptfs/new/a", 0700 },
	};
	static const mode_t masks[] = { 0, 077 };

	(void)state;
	for (size_t m = 0; m < 2; m++) {
		char *dir = make_tmp();
		mode_t before = umask(masks[m]);
		struct opened_home o;

		assert_int_equal(chmod(dir, 02777), 0);
		assert_int_equal(make_home(dir, ""), 0);
		o = open_home(dir, "a", STORE_A);
		assert_int_equal(shared_home_alive(&o.home), 0);
		for (size_t n = 0; n < sizeof(parts) / sizeof(*parts); n++)
			assert_int_equal(mode_of(dir, parts[n].name),
					 parts[n].mode);
		close_home(&o);
		(void)umask(before);
		remove_tree(dir);
		free(dir);
	}
}

static void what_is_no_directory_to_share_is_refused(void **state)
{
	char *dir = make_tmp();

	(void)state;
	assert_int_equal(make_home(at(dir, "nowhere"), "does not exist"),
			 -ENOENT);
	put_file(dir, "file", "x");
	assert_int_equal(make_home(at(dir, "file"), "is not a directory"),
			 -ENOTDIR);
	assert_int_equal(mkdir(at(dir, ".ckptfs"), 0755), 0);
	put_file(dir, ".ckptfs/mine", "x");
	assert_int_equal(make_home(dir, "not from ckptfs"), -EINVAL);
	assert_true(is_there(dir, ".ckptfs/mine"));
	assert_false(is_there(dir, ".ckptfs/nodes"));
	assert_int_equal(unlink(at(dir, ".ckptfs/mine")), 0);
	assert_int_equal(make_home(dir, ""), 0);
	remove_tree(dir);
	free(dir);
}

static void a_store_is_not_shared(void **state)
{
	char *dir = make_tmp();
	int dirfd = open(dir, O_RDONLY | O_DIRECTORY);

	(void)state;
	assert_int_equal(layout_finish(dirfd, STORE_A), 0);
	assert_int_equal(make_home(dir, "is a store"), -EINVAL);
	assert_false(is_there(dir, ".ckptfs"));
	close(dirfd);
	remove_tree(dir);
	free(dir);
}

/* Stopped after each thing that it makes. */
static void what_an_interrupted_making_left_is_made_whole(void **state)
{
	(void)state;
	for (int stop = 0; stop < 4; stop++) {
		char *dir = make_tmp();
		struct opened_home o;

		assert_int_equal(mkdir(at(dir, ".ckptfs"), 0700), 0);
		if (stop >= 1)
			assert_int_equal(mkdir(at(dir, ".ckptfs/nodes"), 0700),
					 0);
		if (stop >= 2)
			assert_int_equal(mkdir(at(dir, ".ckptfs/new"), 0700),
					 0);
		if (stop >= 3) {
			put_file(dir, ".ckptfs/format." STORE_A ".tmp", "ck");
			put_file(dir, ".ckptfs/format." STORE_A, "ckptfs");
		}
		o = open_home(dir, "a", STORE_A);
		assert_int_equal(o.rc, -EINVAL);
		assert_non_null(strstr(o.why, "ckptctl init --shared"));
		assert_int_equal(make_home(dir, ""), 0);
		assert_false(is_there(dir, ".ckptfs/format." STORE_A));
		assert_false(is_there(dir, ".ckptfs/format." STORE_A ".tmp"));
		o = open_home(dir, "a", STORE_A);
		close_home(&o);
		remove_tree(dir);
		free(dir);
	}
}

static void one_that_lost_its_format_does_not_get_a_new_one(void **state)
{
	char *dir = make_tmp();
	struct opened_home o;

	(void)state;
	assert_int_equal(make_home(dir, ""), 0);
	o = open_home(dir, "a", STORE_A);
	close_home(&o);
	assert_int_equal(unlink(at(dir, ".ckptfs/format")), 0);
	assert_int_equal(make_home(dir, "has nodes and no file 'format'"),
			 -EUCLEAN);
	assert_false(is_there(dir, ".ckptfs/format"));
	o = open_home(dir, "a", STORE_A);
	assert_int_equal(o.rc, -EINVAL);
	remove_tree(dir);
	free(dir);
}

/* As where DIR's file system is not mounted. */
static void without_a_format_nothing_is_mounted_and_nothing_made(void **state)
{
	char *dir = make_tmp();
	struct opened_home o = open_home(dir, "a", STORE_A);

	(void)state;
	assert_int_equal(o.rc, -EINVAL);
	assert_non_null(strstr(o.why, "nothing is mounted there"));
	assert_true(dir_is_empty(AT_FDCWD, dir));
	o = open_home(at(dir, "nowhere"), "a", STORE_A);
	assert_int_equal(o.rc, -ENOENT);
	remove_tree(dir);
	free(dir);
}

static void each_changed_byte_of_the_format_is_found(void **state)
{
	char *dir = make_tmp();
	char good[512] = "", bad[512];
	ssize_t len;

	(void)state;
	assert_int_equal(make_home(dir, ""), 0);
	len = dir_read_text(AT_FDCWD, at(dir, ".ckptfs/format"), good,
			    sizeof(good));
	assert_true(len > 64);
	for (ssize_t n = -1; n < 2 * len; n++) {
		struct opened_home o;

		strcpy(bad, good);
		if (n < 0)
			strcat(bad, "x");
		else if (n < len)
			bad[n] = (char)(bad[n] ^ 1);
		else
			bad[n - len] = 0;
		put_file(dir, ".ckptfs/format", bad);
		o = open_home(dir, "a", STORE_A);
		assert_true(o.rc == -EINVAL || o.rc == -EPROTO);
		assert_non_null(strstr(o.why, o.rc == -EPROTO ? "upgrade ckptfs"
							      : "is damaged"));
		assert_int_equal(make_home(dir, ""), o.rc);
	}
	assert_false(is_there(dir, ".ckptfs/nodes/a"));
	remove_tree(dir);
	free(dir);
}

static void a_newer_format_is_said_with_its_number(void **state)
{
	char *dir = make_tmp();
	struct opened_home o;

	(void)state;
	assert_int_equal(make_home(dir, ""), 0);
	put_file(dir, ".ckptfs/format",
		 "ckptfs shared directory, format 7\nand more\n");
	o = open_home(dir, "a", STORE_A);
	assert_int_equal(o.rc, -EPROTO);
	assert_non_null(strstr(o.why, "format 7"));
	remove_tree(dir);
	free(dir);
}

/* Its format is the first one. */
static void make_first(const char *dir)
{
	char text[512] = "", uuid[64] = "";
	size_t len;

	assert_true(dir_read_text(AT_FDCWD, at(dir, ".ckptfs/format"), text,
				  sizeof(text)) > 0);
	assert_int_equal(sscanf(text,
				"ckptfs shared directory, format 2 uuid %36s",
				uuid),
			 1);
	len = (size_t)snprintf(text, sizeof(text),
			       "ckptfs shared directory, format 1\nuuid %s\n",
			       uuid);
	text[identity_add_check(text, len, sizeof(text))] = 0;
	put_file(dir, ".ckptfs/format", text);
}

static bool is_first(const char *dir)
{
	char text[512] = "";

	(void)dir_read_text(AT_FDCWD, at(dir, ".ckptfs/format"), text,
			    sizeof(text));
	return strstr(text, "format 1\n");
}

/* When no daemon of that form is there, which would not know links. */
static void one_of_the_first_form_becomes_this_one(void **state)
{
	char *dir = make_tmp();
	struct opened_home a, b;

	(void)state;
	assert_int_equal(make_home(dir, ""), 0);
	b = open_home(dir, "b", STORE_B);
	make_first(dir);
	assert_int_equal(rmdir(at(dir, ".ckptfs/nodes/b/own")), 0);
	a = open_home(dir, "a", STORE_A);
	assert_int_equal(a.rc, -EBUSY);
	assert_non_null(strstr(a.why, "node b has it mounted with an older"));
	assert_true(is_first(dir));
	/* One of this form may be there. */
	assert_int_equal(mkdir(at(dir, ".ckptfs/nodes/b/own"), 0700), 0);
	a = open_home(dir, "a", STORE_A);
	assert_int_equal(a.rc, 0);
	assert_false(is_first(dir));
	close_home(&a);
	close_home(&b);
	make_first(dir);
	a = open_home(dir, "a", STORE_A);
	assert_int_equal(a.rc, 0);
	assert_false(is_first(dir));
	close_home(&a);
	remove_tree(dir);
	free(dir);
}

static void a_node_stays_the_store_that_it_is(void **state)
{
	char *dir = make_tmp();
	struct opened_home o;

	(void)state;
	assert_int_equal(make_home(dir, ""), 0);
	for (int n = 0; n < 2; n++) {
		o = open_home(dir, "a", STORE_A);
		assert_string_equal(o.home.node, "a");
		close_home(&o);
	}
	o = open_home(dir, "a", STORE_B);
	assert_int_equal(o.rc, -EEXIST);
	assert_non_null(strstr(o.why, "node a is another store (" STORE_A ")"));
	assert_non_null(strstr(o.why, "forget-node"));
	/* And the store stays that node: what is pending names it. */
	o = open_home(dir, "b", STORE_A);
	assert_int_equal(o.rc, -EEXIST);
	assert_non_null(strstr(o.why, "this store is node a there"));
	o = open_home(dir, "b", STORE_B);
	close_home(&o);
	put_file(dir, ".ckptfs/nodes/a/store", "ckptfs node\n");
	o = open_home(dir, "a", STORE_A);
	assert_int_equal(o.rc, -EUCLEAN);
	remove_tree(dir);
	free(dir);
}

static void a_name_that_is_none_is_refused(void **state)
{
	char *dir = make_tmp();
	char why[WHY_BYTES];
	struct shared_home h;

	(void)state;
	assert_int_equal(make_home(dir, ""), 0);
	assert_int_equal(shared_home_open(dir, "../a", STORE_A, false, &h, why,
					  sizeof(why)),
			 -EINVAL);
	assert_non_null(strstr(why, "'../a' is no name for a node"));
	remove_tree(dir);
	free(dir);
}

static void a_node_has_one_daemon_at_a_time(void **state)
{
	char *dir = make_tmp();
	struct opened_home first, second;
	struct shared_node n;

	(void)state;
	assert_int_equal(make_home(dir, ""), 0);
	first = open_home(dir, "a", STORE_A);
	assert_int_equal(first.rc, 0);
	second = open_home(dir, "a", STORE_A);
	assert_int_equal(second.rc, -EBUSY);
	assert_non_null(strstr(second.why, "another ckptfs has"));
	assert_non_null(strstr(second.why, "mounted as node a"));
	assert_int_equal(shared_look_node(first.home.homefd, "a", &n), 0);
	assert_int_equal(n.locked, SHARED_LOCKED);
	second = open_home(dir, "b", STORE_B);
	close_home(&second);
	close_home(&first);
	second = open_home(dir, "a", STORE_A);
	close_home(&second);
	remove_tree(dir);
	free(dir);
}

static void the_lock_goes_with_a_killed_daemon(void **state)
{
	char *dir = make_tmp();
	struct opened_home o;
	int pipes[2], status;
	char byte;
	pid_t child;

	(void)state;
	assert_int_equal(make_home(dir, ""), 0);
	assert_int_equal(pipe(pipes), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		o = open_home(dir, "a", STORE_A);
		(void)!write(pipes[1], "x", 1);
		for (;;)
			(void)pause();
	}
	assert_int_equal(read(pipes[0], &byte, 1), 1);
	o = open_home(dir, "a", STORE_A);
	assert_int_equal(o.rc, -EBUSY);
	assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	o = open_home(dir, "a", STORE_A);
	close_home(&o);
	close(pipes[0]);
	close(pipes[1]);
	remove_tree(dir);
	free(dir);
}

/* Who looks has the lock until it was asked for in vain. */
static int looker = -1;
int __real_flock(int fd, int operation);
int __wrap_flock(int fd, int operation);

static void put_store(const char *dir, const char *path, const char *uuid)
{
	int fd = open(at(dir, path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(home_store_write(fd, uuid), 0);
	close(fd);
}

/* Here it is forgotten just when it has looked for that. */
static const char *forgets;

static void forget_now(void)
{
	char path[] = ".ckptfs/lost/a." STORE_B;

	assert_int_equal(mkdir(at(forgets, ".ckptfs/lost"), 0755), 0);
	assert_int_equal(mkdir(at(forgets, path), 0755), 0);
	put_store(forgets, path, STORE_A);
	forgets = NULL;
}

int __wrap_flock(int fd, int operation)
{
	int rc = __real_flock(fd, operation);

	if (forgets)
		forget_now();
	if (rc < 0 && looker >= 0) {
		int saved = errno;

		close(looker);
		looker = -1;
		errno = saved;
	}
	return rc;
}

static void a_node_that_is_forgotten_as_it_comes_is_refused(void **state)
{
	char *dir = make_tmp();
	struct opened_home o;

	(void)state;
	assert_int_equal(make_home(dir, ""), 0);
	forgets = dir;
	o = open_home(dir, "a", STORE_A);
	assert_int_equal(o.rc, -ESHUTDOWN);
	assert_non_null(strstr(o.why, "was forgotten"));
	/* It has left nothing that looks like a node. */
	assert_false(is_there(dir, ".ckptfs/nodes/a"));
	o = open_home_as(dir, "a", STORE_A, true);
	assert_true(o.home.joins);
	assert_int_equal(shared_home_joined(&o.home, STORE_A), 0);
	assert_false(is_there(dir, ".ckptfs/lost"));
	close_home(&o);
	remove_tree(dir);
	free(dir);
}

/* It may be this store's: what it has is not to be taken for another one's. */
static void what_is_lost_and_cannot_be_read_keeps_nodes_out(void **state)
{
	char *dir = make_tmp();
	struct opened_home o;

	(void)state;
	assert_int_equal(make_home(dir, ""), 0);
	assert_int_equal(mkdir(at(dir, ".ckptfs/lost"), 0755), 0);
	assert_int_equal(mkdir(at(dir, ".ckptfs/lost/a." STORE_B), 0755), 0);
	assert_int_equal(
		mkdir(at(dir, ".ckptfs/lost/a." STORE_B "/store"), 0755), 0);
	o = open_home(dir, "a", STORE_A);
	assert_int_equal(o.rc, -EISDIR);
	assert_non_null(strstr(o.why, "what is lost there cannot be looked"));
	assert_false(is_there(dir, ".ckptfs/nodes/a"));
	remove_tree(dir);
	free(dir);
}

static void who_looks_keeps_no_daemon_out(void **state)
{
	char *dir = make_tmp();
	struct opened_home o;

	(void)state;
	assert_int_equal(make_home(dir, ""), 0);
	o = open_home(dir, "a", STORE_A);
	close_home(&o);
	looker = open(at(dir, ".ckptfs/nodes/a/lock"), O_RDONLY);
	assert_int_equal(__real_flock(looker, LOCK_SH | LOCK_NB), 0);
	o = open_home(dir, "a", STORE_A);
	close_home(&o);
	assert_int_equal(looker, -1);
	remove_tree(dir);
	free(dir);
}

/* .ckptfs, and each directory in it, as a user would like it to be. */
static void a_link_is_followed_nowhere(void **state)
{
	static const char *const parts[] = {
		".ckptfs",         ".ckptfs/nodes", ".ckptfs/new",
		".ckptfs/nodes/a", ".ckptfs/new/a", ".ckptfs/nodes/a/wanted"
	};

	(void)state;
	for (size_t n = 0; n < sizeof(parts) / sizeof(*parts); n++) {
		char *dir = make_tmp(), *away = make_tmp();
		struct opened_home o;

		assert_int_equal(make_home(dir, ""), 0);
		o = open_home(dir, "a", STORE_A);
		close_home(&o);
		assert_int_equal(rename(at(dir, parts[n]), at(away, "it")), 0);
		assert_int_equal(symlink(at(away, "it"), at(dir, parts[n])), 0);
		o = open_home(dir, "a", STORE_A);
		assert_int_equal(o.rc, -ENOTDIR);
		assert_non_null(strstr(o.why, parts[n]));
		if (n < 1)
			assert_int_equal(make_home(dir, "is not a directory"),
					 -ENOTDIR);
		remove_tree(dir);
		remove_tree(away);
		free(dir);
		free(away);
	}
}

static void what_others_own_or_write_to_is_refused(void **state)
{
	static const char *const parts[] = { ".ckptfs", ".ckptfs/nodes",
					     ".ckptfs/nodes/a",
					     ".ckptfs/new/a" };
	char *dir = make_tmp();
	struct opened_home o;

	(void)state;
	assert_int_equal(make_home(dir, ""), 0);
	o = open_home(dir, "a", STORE_A);
	close_home(&o);
	for (size_t n = 0; n < sizeof(parts) / sizeof(*parts); n++) {
		unsigned mode = mode_of(dir, parts[n]);

		assert_int_equal(chmod(at(dir, parts[n]), 01777), 0);
		o = open_home(dir, "a", STORE_A);
		assert_int_equal(o.rc, -EPERM);
		assert_non_null(strstr(o.why, "can be written by other users"));
		assert_non_null(strstr(o.why, parts[n]));
		assert_int_equal(chmod(at(dir, parts[n]), mode), 0);
		if (geteuid() != 0)
			continue;
		assert_int_equal(chown(at(dir, parts[n]), OTHER, OTHER), 0);
		o = open_home(dir, "a", STORE_A);
		assert_int_equal(o.rc, -EPERM);
		assert_non_null(strstr(o.why, "belongs to another user"));
		assert_int_equal(chown(at(dir, parts[n]), 0, 0), 0);
	}
	o = open_home(dir, "a", STORE_A);
	close_home(&o);
	remove_tree(dir);
	free(dir);
}

/* The next probe is not kept from its work, and nothing of one stays. */
static void what_is_left_of_a_probe_goes_with_the_next(void **state)
{
	char *dir = make_tmp();
	struct opened_home o;

	(void)state;
	assert_int_equal(make_home(dir, ""), 0);
	o = open_home(dir, "a", STORE_A);
	assert_true(dir_is_empty(o.home.newfd, "."));
	close_home(&o);
	put_file(dir, ".ckptfs/new/a/.probe", "x");
	put_file(dir, ".ckptfs/new/a/.probe-other", "x");
	put_file(dir, ".ckptfs/new/a/17", "is on its way");
	o = open_home(dir, "a", STORE_A);
	close_home(&o);
	assert_false(is_there(dir, ".ckptfs/new/a/.probe"));
	assert_false(is_there(dir, ".ckptfs/new/a/.probe-other"));
	assert_true(is_there(dir, ".ckptfs/new/a/17"));
	remove_tree(dir);
	free(dir);
}

struct seen {
	unsigned count;
	struct shared_node nodes[4];
};

static int see(void *arg, const struct shared_node *n)
{
	struct seen *s = arg;

	assert_true(s->count < 4);
	s->nodes[s->count++] = *n;
	return 0;
}

static void a_node_is_seen_as_it_says_it_is(void **state)
{
	char *dir = make_tmp();
	struct opened_home o;
	struct seen s = { 0 };
	struct shared_node *n = &s.nodes[0];
	char boot[HOME_BOOT_BYTES];
	int64_t now_ns;

	(void)state;
	assert_int_equal(shared_home_nodes(dir, see, &s), -EINVAL);
	assert_int_equal(make_home(dir, ""), 0);
	assert_int_equal(shared_home_nodes(dir, see, &s), 0);
	assert_int_equal(s.count, 0);
	o = open_home(dir, "a", STORE_A);
	put_file(dir, ".ckptfs/nodes/stray", "x"); /* no node */
	assert_int_equal(mkdir(at(dir, ".ckptfs/nodes/.old"), 0700), 0);
	assert_int_equal(shared_home_nodes(dir, see, &s), 0);
	assert_int_equal(s.count, 1);
	assert_false(n->has_alive); /* before the first time */
	for (int times = 0; times < 2; times++) {
		s.count = 0;
		assert_int_equal(shared_home_alive(&o.home), 0);
		assert_int_equal(shared_home_nodes(dir, see, &s), 0);
		assert_int_equal(s.count, 1);
		assert_string_equal(n->name, "a");
		assert_string_equal(n->store, STORE_A);
		assert_true(n->has_alive);
		home_boot_id(boot);
		assert_string_equal(n->alive.boot, boot);
		assert_int_equal(n->alive.pid, getpid());
		assert_true(n->alive.since_ns == o.home.since_ns);
		assert_true(n->alive.time_ns >= n->alive.since_ns);
		assert_true(n->alive.version[0] != 0);
		assert_int_equal(n->locked, SHARED_LOCKED);
	}
	assert_int_equal(shared_look_now(o.home.homefd, &now_ns), 0);
	assert_true(now_ns >= n->seen_ns);
	close_home(&o);
	assert_int_equal(truncate(at(dir, ".ckptfs/nodes/a/alive"), 40), 0);
	s.count = 0;
	assert_int_equal(shared_home_nodes(dir, see, &s), 0);
	assert_false(n->has_alive); /* damaged: nothing is believed of it */
	assert_int_equal(n->locked, SHARED_UNLOCKED);
	remove_tree(dir);
	free(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			a_directory_is_made_shared_once_whatever_is_in_it),
		cmocka_unit_test(nobody_else_can_make_a_name_in_it),
		cmocka_unit_test(what_is_no_directory_to_share_is_refused),
		cmocka_unit_test(a_store_is_not_shared),
		cmocka_unit_test(what_an_interrupted_making_left_is_made_whole),
		cmocka_unit_test(
			one_that_lost_its_format_does_not_get_a_new_one),
		cmocka_unit_test(
			without_a_format_nothing_is_mounted_and_nothing_made),
		cmocka_unit_test(each_changed_byte_of_the_format_is_found),
		cmocka_unit_test(a_newer_format_is_said_with_its_number),
		cmocka_unit_test(one_of_the_first_form_becomes_this_one),
		cmocka_unit_test(a_node_stays_the_store_that_it_is),
		cmocka_unit_test(a_name_that_is_none_is_refused),
		cmocka_unit_test(a_node_has_one_daemon_at_a_time),
		cmocka_unit_test(the_lock_goes_with_a_killed_daemon),
		cmocka_unit_test(who_looks_keeps_no_daemon_out),
		cmocka_unit_test(
			a_node_that_is_forgotten_as_it_comes_is_refused),
		cmocka_unit_test(
			what_is_lost_and_cannot_be_read_keeps_nodes_out),
		cmocka_unit_test(a_link_is_followed_nowhere),
		cmocka_unit_test(what_others_own_or_write_to_is_refused),
		cmocka_unit_test(what_is_left_of_a_probe_goes_with_the_next),
		cmocka_unit_test(a_node_is_seen_as_it_says_it_is),
	};

	return cmocka_run_group_tests_name("shared_home", tests, NULL, NULL);
}
