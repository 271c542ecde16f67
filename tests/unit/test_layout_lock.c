/*
 * A store has one opener at a time, whom the next one is told, and nobody when
 * he was killed.
 */
#include <sys/wait.h>

#include "tests/unit/layout_fixture.h"

static void a_second_opener_is_told_who_has_it(void **state)
{
	char *dir = make_tmp();
	struct opened first = open_layout(dir, true), second;
	char pid[64];

	(void)state;
	(void)snprintf(pid, sizeof(pid), "process %ld", (long)getpid());
	for (int create = 0; create < 2; create++) {
		second = open_layout(dir, create);
		assert_int_equal(second.rc, -EBUSY);
		assert_non_null(strstr(second.why, "is mounted already"));
		assert_non_null(strstr(second.why, "unmount it first"));
		assert_non_null(strstr(second.why, pid));
	}
	close_layout(&first);
	second = open_layout(dir, true);
	close_layout(&second);
	remove_tree(dir);
	free(dir);
}

static void a_holder_that_forked_is_not_named_wrongly(void **state)
{
	static const struct {
		const char *text, *expected;
	} locks[] = {
		{ "", "mounted already; unmount it first" },
		{ "garbage", "mounted already; unmount it first" },
		{ "-4 x\n", "mounted already; unmount it first" },
		/* No process has so high a number. */
		{ "1999999999 ckptfs\n", "mounted already; unmount it first" },
		{ "1 ckptctl\n", "is being checked (by process 1)" },
	};
	char *dir = make_tmp();
	struct opened first = open_layout(dir, true), second;

	(void)state;
	for (size_t n = 0; n < sizeof(locks) / sizeof(*locks); n++) {
		put_text(dir, "lock", locks[n].text);
		second = open_layout(dir, false);
		assert_int_equal(second.rc, -EBUSY);
		assert_non_null(strstr(second.why, locks[n].expected));
	}
	close_layout(&first);
	remove_tree(dir);
	free(dir);
}

static void the_lock_goes_with_a_killed_holder(void **state)
{
	char *dir = make_tmp();
	struct opened o;
	int pipes[2], status;
	char byte;
	pid_t child;

	(void)state;
	assert_int_equal(pipe(pipes), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		o = open_layout(dir, true);
		if (write(pipes[1], "x", 1) != 1 || o.rc < 0)
			_exit(1);
		for (;;)
			pause();
	}
	assert_int_equal(read(pipes[0], &byte, 1), 1);
	o = open_layout(dir, true);
	assert_int_equal(o.rc, -EBUSY);
	assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	o = open_layout(dir, true);
	close_layout(&o);
	close(pipes[0]);
	close(pipes[1]);
	remove_tree(dir);
	free(dir);
}

/* Who only looks leaves not even his name. */
static void a_look_changes_no_byte_of_the_lock(void **state)
{
	struct layout_lock_text old, now;
	char *dir = make_tmp();
	struct opened o = open_layout(dir, true);

	(void)state;
	close_layout(&o);
	put_text(dir, "lock", "4711 ckptfs\n");
	o.rc = layout_open(dir, LAYOUT_CHECK, &o.dirfd, &o.lockfd, o.uuid, o.why,
			   sizeof(o.why));
	assert_int_equal(o.rc, 0);
	layout_say_who(o.lockfd, &old);
	layout_unsay(o.lockfd, &old);
	now.len = (size_t)pread(o.lockfd, now.text, sizeof(now.text), 0);
	assert_int_equal(now.len, 12);
	assert_memory_equal(now.text, "4711 ckptfs\n", 12);
	/* Too long for a name: somebody else's, and left alone. */
	assert_int_equal(ftruncate(o.lockfd, 1000), 0);
	layout_say_who(o.lockfd, &old);
	layout_unsay(o.lockfd, &old);
	assert_int_equal(lseek(o.lockfd, 0, SEEK_END), 1000);
	close_layout(&o);
	remove_tree(dir);
	free(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_second_opener_is_told_who_has_it),
		cmocka_unit_test(a_holder_that_forked_is_not_named_wrongly),
		cmocka_unit_test(the_lock_goes_with_a_killed_holder),
		cmocka_unit_test(a_look_changes_no_byte_of_the_lock),
	};

	return cmocka_run_group_tests_name("layout", tests, NULL, NULL);
}
