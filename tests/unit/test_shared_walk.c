/*
 * All that is below a shared directory is found once, and nothing that is not;
 * and of each file it is known whether it is whole.
 */
#include "store/base/dir.h"
#include "store/shared/pending.h"
#include "store/shared/walk.h"
#include "tests/unit/home_fixture.h"

#define FOUND_MAX 64
#define OTHER 1234 /* a user without a name */

struct found {
	unsigned count;
	char paths[FOUND_MAX][256];
	unsigned unread;
	int rc;
};

static int find(void *arg, int dirfd, const char *path, const char *name,
		const struct stat *st)
{
	struct found *f = arg;
	struct stat again;

	assert_true(f->count < FOUND_MAX);
	assert_int_equal(fstatat(dirfd, name, &again, AT_SYMLINK_NOFOLLOW), 0);
	assert_int_equal(again.st_ino, st->st_ino);
	(void)snprintf(f->paths[f->count++], sizeof(f->paths[0]), "%s", path);
	return 0;
}

static void cannot(void *arg, const char *path, int rc)
{
	struct found *f = arg;

	(void)path;
	f->unread++;
	f->rc = rc;
}

static int by_text(const void *a, const void *b)
{
	return strcmp(a, b);
}

static int walk(const char *dir, struct found *f)
{
	const struct shared_walk w = { .found = find,
				       .unread = cannot,
				       .arg = f };
	int fd = open(dir, O_RDONLY | O_DIRECTORY);
	int rc = shared_walk(fd, &w);

	close(fd);
	qsort(f->paths, f->count, sizeof(f->paths[0]), by_text);
	return rc;
}

static void every_name_is_found_but_those_of_ckptfs(void **state)
{
	static const char *const names[] = { ".ckptfs-of-a-user",
					     "a",
					     "a/.ckptfs",
					     "a/.ckptfs/f",
					     "a/b",
					     "a/b/f",
					     "a/link" };
	char *dir = make_tmp(), *away = make_tmp();
	struct found f = { 0 };

	(void)state;
	assert_int_equal(make_home(dir, ""), 0);
	assert_int_equal(mkdir(at(dir, "a"), 0755), 0);
	assert_int_equal(mkdir(at(dir, "a/b"), 0755), 0);
	assert_int_equal(mkdir(at(dir, "a/.ckptfs"), 0755), 0);
	put_file(dir, "a/.ckptfs/f", "x");
	put_file(dir, "a/b/f", "x");
	put_file(dir, ".ckptfs-of-a-user", "x");
	put_file(away, "not-to-be-found", "x");
	assert_int_equal(symlink(away, at(dir, "a/link")), 0);
	assert_int_equal(walk(dir, &f), 0);
	assert_int_equal(f.count, 7);
	assert_int_equal(f.unread, 0);
	for (size_t n = 0; n < 7; n++)
		assert_string_equal(f.paths[n], names[n]);
	remove_tree(dir);
	remove_tree(away);
	free(dir);
	free(away);
}

static int count(void *arg, int dirfd, const char *path, const char *name,
		 const struct stat *st)
{
	struct found *f = arg;

	(void)dirfd;
	(void)path;
	(void)name;
	(void)st;
	f->count++;
	return 0;
}

/* Deeper than it goes, made as a user would make it. */
static void what_is_too_deep_is_told_and_the_rest_is_found(void **state)
{
	char *dir = make_tmp();
	struct found f = { 0 };
	const struct shared_walk w = { .found = count,
				       .unread = cannot,
				       .arg = &f };
	int top = open(dir, O_RDONLY | O_DIRECTORY);
	int fd = dup(top);

	(void)state;
	for (unsigned n = 0; n < SHARED_WALK_DEPTH_MAX + 10; n++) {
		int below;

		assert_int_equal(mkdirat(fd, "d", 0755), 0);
		below = openat(fd, "d", O_RDONLY | O_DIRECTORY);
		close(fd);
		fd = below;
	}
	close(fd);
	put_file(dir, "other", "x");
	assert_int_equal(shared_walk(top, &w), 0);
	assert_int_equal(f.count, SHARED_WALK_DEPTH_MAX + 1);
	assert_int_equal(f.unread, 1);
	assert_int_equal(f.rc, -ENAMETOOLONG);
	close(top);
	remove_tree(dir);
	free(dir);
}

static int stop_at_second(void *arg, int dirfd, const char *path,
			  const char *name, const struct stat *st)
{
	unsigned *left = arg;

	(void)dirfd;
	(void)path;
	(void)name;
	(void)st;
	return --*left == 0 ? -ECANCELED : 0;
}

static void a_walk_ends_when_it_is_told_to(void **state)
{
	char *dir = make_tmp();
	unsigned left = 2;
	const struct shared_walk w = { .found = stop_at_second, .arg = &left };
	int fd = open(dir, O_RDONLY | O_DIRECTORY);

	(void)state;
	for (char name[] = "a"; name[0] <= 'd'; name[0]++)
		assert_int_equal(mkdir(at(dir, name), 0755), 0);
	assert_int_equal(shared_walk(fd, &w), -ECANCELED);
	assert_int_equal(left, 0);
	close(fd);
	remove_tree(dir);
	free(dir);
}

static void what_may_not_be_read_is_told(void **state)
{
	char *dir = make_tmp();
	struct found f = { 0 };
	bool as_root = geteuid() == 0;

	(void)state;
	if (as_root) { /* as somebody who may not read everything */
		assert_int_equal(chown(dir, OTHER, OTHER), 0);
		assert_int_equal(seteuid(OTHER), 0);
	}
	assert_int_equal(mkdir(at(dir, "a"), 0), 0);
	assert_int_equal(mkdir(at(dir, "b"), 0755), 0);
	assert_int_equal(walk(dir, &f), 0);
	assert_int_equal(f.count, 2);
	assert_int_equal(f.unread, 1);
	assert_int_equal(f.rc, -EACCES);
	assert_int_equal(rmdir(at(dir, "a")), 0);
	if (as_root)
		assert_int_equal(seteuid(0), 0);
	remove_tree(dir);
	free(dir);
}

/* As a node makes one; node: whose link it gets, or NULL. */
static void put_pending(const char *dir, const char *name, const char *node)
{
	int fd = open(at(dir, name), O_RDWR | O_CREAT | O_EXCL, 0600);
	char own[256];
	struct stat st;

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, 12345), 0);
	assert_int_equal(fchmod(fd, shared_pending_mode()), 0);
	assert_int_equal(fstat(fd, &st), 0);
	if (node) {
		(void)snprintf(own, sizeof(own), ".ckptfs/nodes/%s/own/%016llx",
			       node, (unsigned long long)st.st_ino);
		assert_int_equal(dir_link(fd, AT_FDCWD, at(dir, own)), 0);
	}
	close(fd);
}

static int find_pending(void *arg, const struct pending_file *p)
{
	struct found *f = arg;

	assert_true(f->count < FOUND_MAX);
	(void)snprintf(f->paths[f->count], sizeof(f->paths[0]), "%s: %s",
		       p->path, p->node ? p->node : "?");
	f->count++;
	return 0;
}

static char *home_of(const char *dir)
{
	char *path = strdup(at(dir, ".ckptfs"));

	assert_non_null(path);
	return path;
}

static void a_file_is_pending_by_its_mode_and_whose_by_its_link(void **state)
{
	static const char *const names[] = { "a: a", "b: b", "nobodys: ?",
					     "sub/a: a" };
	char *dir = make_tmp(), *home = home_of(dir);
	struct opened_home a, b;
	struct found f = { 0 };
	const struct pending_walk w = { .found = find_pending,
					.unread = cannot,
					.arg = &f };
	int fd = open(dir, O_RDONLY | O_DIRECTORY), homefd;
	uint64_t files, bytes;

	(void)state;
	assert_int_equal(make_home(dir, ""), 0);
	a = open_home(dir, "a", STORE_A);
	b = open_home(dir, "b", STORE_B);
	homefd = open(home, O_RDONLY | O_DIRECTORY);
	assert_int_equal(mkdir(at(dir, "sub"), 0755), 0);
	put_pending(dir, "a", "a");
	put_pending(dir, "sub/a", "a");
	put_pending(dir, "b", "b");
	put_pending(dir, "nobodys", NULL);
	put_file(dir, "plain", "x");
	assert_int_equal(mkdir(at(dir, "sticky"), 01777), 0);
	assert_int_equal(chmod(at(dir, "sticky"), 01777), 0);
	assert_int_equal(symlink("a", at(dir, "link")), 0);
	assert_int_equal(mkfifo(at(dir, "fifo"), 01600), 0);
	assert_int_equal(pending_walk(fd, homefd, &w), 0);
	qsort(f.paths, f.count, sizeof(f.paths[0]), by_text);
	assert_int_equal(f.count, 4);
	assert_int_equal(f.unread, 0);
	for (size_t n = 0; n < 4; n++)
		assert_string_equal(f.paths[n], names[n]);
	assert_int_equal(pending_count(homefd, "nodes/a", &files, &bytes), 0);
	assert_int_equal(files, 2);
	assert_int_equal(bytes, 2 * 12345);
	assert_int_equal(pending_count(homefd, "nodes/nobody", &files, &bytes),
			 0);
	assert_int_equal(files, 0);
	/* It is whole, and its link has not gone yet. */
	assert_int_equal(chmod(at(dir, "b"), 0644), 0);
	assert_int_equal(pending_count(homefd, "nodes/b", &files, &bytes), 0);
	assert_int_equal(files, 0);
	close(homefd);
	close(fd);
	close_home(&a);
	close_home(&b);
	remove_tree(dir);
	free(home);
	free(dir);
}

/* Whoever was not listed is asked: he may have made it since. */
static void the_owner_of_one_file_is_known_at_once(void **state)
{
	char *dir = make_tmp(), *home = home_of(dir);
	char node[SHARED_NODE_MAX + 1] = "";
	struct opened_home a, b;
	struct stat st;
	int homefd;

	(void)state;
	assert_int_equal(make_home(dir, ""), 0);
	a = open_home(dir, "a", STORE_A);
	b = open_home(dir, "b", STORE_B);
	homefd = open(home, O_RDONLY | O_DIRECTORY);
	put_pending(dir, "f", "b");
	assert_int_equal(stat(at(dir, "f"), &st), 0);
	assert_int_equal(pending_owner(homefd, st.st_ino, node), 1);
	assert_string_equal(node, "b");
	assert_int_equal(pending_owner(homefd, st.st_ino + 1, node), 0);
	close(homefd);
	close_home(&a);
	close_home(&b);
	remove_tree(dir);
	free(home);
	free(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_name_is_found_but_those_of_ckptfs),
		cmocka_unit_test(
			what_is_too_deep_is_told_and_the_rest_is_found),
		cmocka_unit_test(a_walk_ends_when_it_is_told_to),
		cmocka_unit_test(what_may_not_be_read_is_told),
		cmocka_unit_test(
			a_file_is_pending_by_its_mode_and_whose_by_its_link),
		cmocka_unit_test(the_owner_of_one_file_is_known_at_once),
	};

	return cmocka_run_group_tests_name("shared_walk", tests, NULL, NULL);
}
