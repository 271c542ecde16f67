/*
 * What each user may have of the slots: no more than are left for others.
 */
#include "store/space/shares.h"
#include "tests/unit/live_child.h"
#include "tests/unit/live_store.h"

#define USER 1000
#define OTHER 1001
#define SLOTS 12u

static void a_user_has_no_more_than_are_left(void **state)
{
	struct shares s = { 0 };
	uint32_t left = 90, slots, had = 0;

	(void)state;
	while (shares_take(&s, USER, left, &slots) == 0)
		left--;
	assert_int_equal(left, 45);
	while (shares_take(&s, OTHER, left, &slots) == 0) {
		left--;
		had++;
	}
	assert_int_equal(left, 22);
	/* Who has less goes on longer, and one is there for who has none. */
	for (uid_t uid = 2000; uid < 2022; uid++)
		assert_int_equal(shares_take(&s, uid, left--, &slots), 0);
	for (unsigned i = 0; i < 22; i++)
		shares_give(&s, 2000 + i);
	while (had-- > 0)
		shares_give(&s, OTHER);
	assert_int_equal(s.count, 1);
	assert_int_equal(s.at[0].slots, 45);
	shares_release(&s);
}

static void root_has_all(void **state)
{
	struct shares s = { 0 };
	uint32_t slots;

	(void)state;
	for (uint32_t left = 10; left > 0; left--)
		assert_int_equal(shares_take(&s, 0, left, &slots), 0);
	assert_int_equal(s.refused, 0);
	shares_release(&s);
}

/* And the user that this process runs as, whoever that is; nobody else has. */
static void who_runs_the_daemon_has_all(void **state)
{
	int status;
	pid_t pid;

	(void)state;
	if (geteuid() != 0)
		skip();
	pid = fork();
	if (pid == 0) {
		struct shares s = { 0 };
		uint32_t slots;
		int wrong = setresuid(USER, USER, USER) != 0;

		for (uint32_t left = 10; left > 0; left--)
			wrong += shares_take(&s, USER, left, &slots) != 0;
		wrong += shares_take(&s, OTHER, 1, &slots) != 0;
		wrong += shares_take(&s, OTHER, 1, &slots) != -EDQUOT;
		for (int i = 0; i < 2; i++)
			wrong += shares_take(&s, 0, 1, &slots) != 0;
		_exit(wrong);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void who_has_his_share_is_told_of_once(void **state)
{
	struct shares s = { 0 };
	uint32_t slots = 99;

	(void)state;
	for (unsigned i = 0; i < 8; i++)
		assert_int_equal(shares_take(&s, USER, 100, &slots), 0);
	assert_int_equal(slots, 99);
	assert_int_equal(shares_take(&s, USER, 8, &slots), -EDQUOT);
	assert_int_equal(slots, 8);
	assert_int_equal(shares_take(&s, USER, 8, &slots), -EDQUOT);
	assert_int_equal(slots, 0);
	/* Until he has less than half of it. */
	for (unsigned i = 0; i < 5; i++)
		shares_give(&s, USER);
	assert_int_equal(shares_take(&s, USER, 3, &slots), -EDQUOT);
	assert_int_equal(slots, 3);
	assert_int_equal(s.refused, 3);
	assert_int_equal(s.refused_uid, USER);
	shares_release(&s);
}

/* One user has all the memory, until another one has gone without. */
static void a_share_of_the_memory_grows_while_nobody_wants_it(void **state)
{
	struct shares s = { 0 };
	int64_t now = 1000;

	(void)state;
	assert_true(shares_take_bytes(&s, USER, 60, 100, now));
	assert_true(shares_take_bytes(&s, USER, 40, 40, now));
	shares_want(&s, OTHER, now);
	assert_false(shares_take_bytes(&s, USER, 1, 0, now));
	shares_give_bytes(&s, USER, 60);
	/* 40 are his, and of the 60 he would leave 50. */
	assert_true(shares_take_bytes(&s, USER, 10, 60, now));
	assert_false(shares_take_bytes(&s, USER, 10, 50, now));
	/* So he is in want as well, and the other one has his share. */
	assert_true(shares_take_bytes(&s, OTHER, 25, 50, now));
	assert_false(shares_take_bytes(&s, OTHER, 25, 25, now));
	assert_true(shares_take_bytes(&s, 0, 25, 25, now));
	shares_give_bytes(&s, 0, 25);
	/* Whoever comes within the hour is in want yet. */
	now += SHARES_WANT_NS;
	assert_true(shares_take_bytes(&s, OTHER, 1, 50, now));
	now += SHARES_WANT_NS;
	assert_false(shares_take_bytes(&s, USER, 10, 24, now));
	shares_give_bytes(&s, OTHER, 26);
	assert_true(shares_take_bytes(&s, USER, 50, 50, now + 1));
	assert_true(
		shares_take_bytes(&s, OTHER, 1, 1, now + 2 + SHARES_WANT_NS));
	shares_give_bytes(&s, OTHER, 1);
	shares_give_bytes(&s, USER, 100);
	shares_release(&s);
}

/* An open file of a user, which is not closed. */
static int open_as(struct live *l, const char *path, uid_t uid,
		   struct handle *ret)
{
	struct names_new n = { .mode = S_IFREG | 0644, .uid = uid };
	struct inode *in = NULL;
	int rc = names_create(l->st->names, ROOT_INO, path, &n, &in);

	if (rc < 0)
		return rc;
	file_created(in);
	inode_put(l->st->inodes, in, 1);
	return handle_try(l, path, O_WRONLY, ret);
}

/* How many files he can have open at once. */
static unsigned open_all(struct live *l, uid_t uid, struct handle *h)
{
	unsigned n = 0;
	char name[32];
	int rc;

	for (;; n++) {
		(void)snprintf(name, sizeof(name), "%u %u", (unsigned)uid, n);
		rc = open_as(l, name, uid, &h[n]);
		if (rc < 0)
			break;
		assert_true(n < SLOTS);
		handle_write(&h[n], "x", 1, 0);
	}
	assert_int_equal(rc, uid == 0 ? -ENFILE : -EDQUOT);
	return n;
}

static void close_all(struct handle *h, unsigned n)
{
	while (n-- > 0)
		handle_close(&h[n]);
}

static void one_user_leaves_room_for_others(void **state)
{
	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		struct handle user[SLOTS + 1], other[SLOTS + 1],
			root[SLOTS + 1];
		unsigned users, others, roots;
		struct stages_figures f;
		struct handle again;

		l.st->stages.free_count = SLOTS;
		users = open_all(&l, USER, user);
		assert_int_equal(users, SLOTS / 2);
		stages_figures(&l.st->stages, &f);
		assert_true(f.slots_refused > 0);
		assert_int_equal(f.slots_refused_uid, USER);
		others = open_all(&l, OTHER, other);
		assert_int_equal(others, SLOTS / 4);
		roots = open_all(&l, 0, root);
		assert_int_equal(users + others + roots, SLOTS);
		close_all(root, roots);
		close_all(other, others);
		live_sync_all(&l);
		live_settle(&l);
		/* What is durable takes no share. */
		close_all(user, users);
		assert_int_equal(open_as(&l, "again", USER, &again), 0);
		handle_close(&again);
		live_free(&l);
	}
}

static void child_writes(struct live *l, const char *kind)
{
	struct handle user[SLOTS + 1];

	l->options.hold_drain = true;
	child_open(l, kind);
	l->st->stages.free_count = SLOTS;
	close_all(user, open_all(l, USER, user));
}

static void what_the_last_daemon_left_is_of_his_share(void **state)
{
	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_closed(NULL);
		const struct shares *s;

		live_child_kind(&l, "write", kind);
		l.options.hold_drain = true;
		live_open_kind(&l, kind);
		s = &l.st->stages.shares;
		{
			HOLD(&l.st->stages.lock);
			assert_int_equal(s->count, 1);
			assert_int_equal(s->at[0].uid, USER);
			assert_int_equal(s->at[0].slots, SLOTS / 2);
		}
		live_free(&l);
	}
}

int main(int argc, char **argv)
{
	const struct live_child_entry children[] = {
		{ "write", child_writes },
	};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_user_has_no_more_than_are_left),
		cmocka_unit_test(root_has_all),
		cmocka_unit_test(who_runs_the_daemon_has_all),
		cmocka_unit_test(
			a_share_of_the_memory_grows_while_nobody_wants_it),
		cmocka_unit_test(who_has_his_share_is_told_of_once),
		cmocka_unit_test(one_user_leaves_room_for_others),
		cmocka_unit_test(what_the_last_daemon_left_is_of_his_share),
	};

	if (argc > 1)
		return live_child_main(argc, argv, children, 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
