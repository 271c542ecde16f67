/*
 * A node is forgotten with all that it had, by one who has its lock; what was
 * begun and interrupted is still a node.
 */
#include "store/base/dir.h"
#include "store/shared/forget.h"
#include "tests/unit/home_fixture.h"

struct place {
	char *dir;
	struct shared_look look;
};

static struct place place_new(void)
{
	struct place p = { .dir = make_tmp() };
	char why[WHY_BYTES];

	assert_int_equal(make_home(p.dir, ""), 0);
	assert_int_equal(shared_look_open(p.dir, &p.look, why, sizeof(why)), 0);
	return p;
}

static void place_free(struct place *p)
{
	shared_look_release(&p->look);
	remove_tree(p->dir);
	free(p->dir);
}

static void a_node_goes_with_all_that_it_had(void **state)
{
	struct place p = place_new();
	struct opened_home o = open_home(p.dir, "a", STORE_A);
	struct opened_home other = open_home(p.dir, "b", STORE_B);
	int lockfd = -1;

	(void)state;
	assert_int_equal(shared_home_alive(&o.home), 0);
	close_home(&o);
	put_file(p.dir, ".ckptfs/new/a/7", "x");
	put_file(p.dir, ".ckptfs/nodes/a/wanted/9", "x");
	put_file(p.dir, ".ckptfs/nodes/a/alive.tmp", "x");
	assert_true(shared_node_has_new(p.look.homefd, "a"));
	assert_int_equal(shared_node_lock(p.look.homefd, "a", &lockfd), 0);
	assert_int_equal(shared_node_remove(p.look.homefd, "a"), 0);
	close(lockfd);
	assert_false(is_there(p.dir, ".ckptfs/nodes/a"));
	assert_false(is_there(p.dir, ".ckptfs/new/a"));
	assert_true(is_there(p.dir, ".ckptfs/nodes/b/store"));
	assert_true(is_there(p.dir, ".ckptfs/new/b"));
	assert_int_equal(shared_node_remove(p.look.homefd, "a"), 0);
	assert_int_equal(shared_node_lock(p.look.homefd, "a", &lockfd),
			 -ENOENT);
	/* The name is free, and so is the store. */
	o = open_home(p.dir, "a", STORE_A);
	close_home(&o);
	close_home(&other);
	place_free(&p);
}

static void a_node_that_is_mounted_is_not_locked_for_it(void **state)
{
	struct place p = place_new();
	struct opened_home o = open_home(p.dir, "a", STORE_A);
	int lockfd = -1;

	(void)state;
	assert_int_equal(shared_node_lock(p.look.homefd, "a", &lockfd),
			 -EWOULDBLOCK);
	assert_int_equal(lockfd, -1);
	close_home(&o);
	assert_int_equal(shared_node_lock(p.look.homefd, "a", &lockfd), 0);
	o = open_home(p.dir, "a", STORE_A);
	assert_int_equal(o.rc, -EBUSY);
	close(lockfd);
	place_free(&p);
}

/* A link in the place of a file goes, and not what it leads to. */
static void nothing_is_removed_through_a_link(void **state)
{
	struct place p = place_new();
	struct opened_home o = open_home(p.dir, "a", STORE_A);

	(void)state;
	close_home(&o);
	put_file(p.dir, "weights", "x");
	assert_int_equal(mkdir(at(p.dir, "step"), 0755), 0);
	put_file(p.dir, "step/weights", "x");
	assert_int_equal(
		symlink(at(p.dir, "weights"), at(p.dir, ".ckptfs/new/a/1")), 0);
	assert_int_equal(
		symlink(at(p.dir, "step"), at(p.dir, ".ckptfs/nodes/a/dir")),
		0);
	assert_int_equal(shared_node_remove(p.look.homefd, "a"), 0);
	assert_true(is_there(p.dir, "weights"));
	assert_true(is_there(p.dir, "step/weights"));
	assert_false(is_there(p.dir, ".ckptfs/nodes/a"));
	place_free(&p);
}

static void what_cannot_be_removed_leaves_a_node(void **state)
{
	struct place p = place_new();
	struct opened_home o = open_home(p.dir, "a", STORE_A);
	struct shared_node n;

	(void)state;
	close_home(&o);
	/* Deeper than anything that ckptfs makes there. */
	assert_int_equal(mkdir(at(p.dir, ".ckptfs/nodes/a/wanted/d"), 0755), 0);
	put_file(p.dir, ".ckptfs/nodes/a/wanted/d/f", "x");
	assert_true(shared_node_remove(p.look.homefd, "a") < 0);
	assert_int_equal(shared_look_node(p.look.homefd, "a", &n), 0);
	assert_true(is_there(p.dir, ".ckptfs/nodes/a/lock"));
	place_free(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_node_goes_with_all_that_it_had),
		cmocka_unit_test(a_node_that_is_mounted_is_not_locked_for_it),
		cmocka_unit_test(nothing_is_removed_through_a_link),
		cmocka_unit_test(what_cannot_be_removed_leaves_a_node),
	};

	return cmocka_run_group_tests_name("shared_forget", tests, NULL, NULL);
}
