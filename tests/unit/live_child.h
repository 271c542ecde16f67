/*
 * live_child.h - whatever ends a daemon at once runs in a child: it is this
 * program again, so that no thread of the database is forked.
 */
#ifndef TESTS_UNIT_LIVE_CHILD_H
#define TESTS_UNIT_LIVE_CHILD_H

#include <spawn.h>
#include <sys/wait.h>

#include "tests/unit/live_life.h"

/*
 * Run this program as `PROGRAM child NAME STORE STAGE [ARGUMENT]`, which must
 * exit with 0. main() hands that to live_child_main().
 */
static inline void live_child(struct live *l, const char *name,
			      const char *argument)
{
	char self[] = "/proc/self/exe", child[] = "child";
	char *copy = strdup(name), *last = strdup(argument ? argument : "");
	char *argv[] = { self, child, copy, l->path, l->stage, last, NULL };
	int status;
	pid_t pid;

	assert_int_equal(posix_spawn(&pid, self, NULL, NULL, argv, environ), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	free(copy);
	free(last);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		fail_msg("child %s ended with status %#x", name,
			 (unsigned)status);
}

struct live_child_entry {
	const char *name;
	/* Does not return, or returns when the daemon is to end at once. */
	void (*run)(struct live *l, const char *argument);
};

static inline int live_child_main(int argc, char **argv,
				  const struct live_child_entry *entries,
				  size_t count)
{
	for (size_t i = 0; argc == 6 && i < count; i++) {
		struct live l = { .path = argv[3], .stage = argv[4] };

		if (strcmp(argv[2], entries[i].name) != 0)
			continue;
		log_set_level(LOG_CRIT);
		l.options = live_options();
		entries[i].run(&l, argv[5]);
		_exit(0); /* as kill -9 would end it */
	}
	return 2;
}

/* Which kind of store the child opens: its argument. */
static inline void child_open(struct live *l, const char *kind)
{
	live_open_kind(l, (unsigned)atoi(kind));
}

static inline void live_child_kind(struct live *l, const char *name,
				   unsigned kind)
{
	char text[16];

	(void)snprintf(text, sizeof(text), "%u", kind);
	live_child(l, name, text);
}

/* Killed at its start. */
static inline void child_opens_and_is_killed(struct live *l, const char *kind)
{
	l->options.hold_drain = true;
	child_open(l, kind);
}

#endif
