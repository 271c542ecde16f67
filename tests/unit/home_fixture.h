/*
 * home_fixture.h - a directory is shared or not, and what was said.
 */
#ifndef TESTS_UNIT_HOME_FIXTURE_H
#define TESTS_UNIT_HOME_FIXTURE_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/shared/home.h"
#include "tests/unit/store_fixture.h"

#define WHY_BYTES 4096
#define STORE_A "01234567-89ab-4def-8123-456789abcdea"
#define STORE_B "01234567-89ab-4def-8123-456789abcdeb"

struct opened_home {
	int rc;
	struct shared_home home;
	char why[WHY_BYTES];
};

/* Of what is refused nothing is set, and the sentence names the directory. */
static inline void assert_said(const char *dir, const char *why)
{
	assert_non_null(strstr(why, dir));
	assert_null(strchr(why, '\n'));
}

static inline struct opened_home open_home_as(const char *dir, const char *node,
					      const char *store, bool rejoins)
{
	struct opened_home o = { .home = SHARED_HOME_NONE };

	o.rc = shared_home_open(dir, node, store, rejoins, &o.home, o.why,
				sizeof(o.why));
	if (o.rc < 0) {
		assert_said(dir, o.why);
		assert_int_equal(o.home.dirfd, -1);
		assert_int_equal(o.home.lockfd, -1);
	}
	return o;
}

static inline struct opened_home open_home(const char *dir, const char *node,
					   const char *store)
{
	return open_home_as(dir, node, store, false);
}

static inline void close_home(struct opened_home *o)
{
	if (o->rc < 0)
		print_error("%s\n", o->why);
	assert_int_equal(o->rc, 0);
	shared_home_release(&o->home);
	assert_int_equal(o->home.lockfd, -1);
}

static inline int make_home(const char *dir, const char *said)
{
	char why[WHY_BYTES] = "";
	int rc = shared_home_make(dir, why, sizeof(why));

	if (rc < 0)
		assert_said(dir, why);
	assert_non_null(strstr(why, said));
	return rc;
}

/* The path of something below it; valid until the fourth call after this. */
static inline const char *at(const char *dir, const char *name)
{
	static char paths[4][1024];
	static unsigned next;
	char *path = paths[next++ % 4];

	(void)snprintf(path, sizeof(paths[0]), "%s/%s", dir, name);
	return path;
}

static inline bool is_there(const char *dir, const char *name)
{
	return access(at(dir, name), F_OK) == 0;
}

static inline void put_file(const char *dir, const char *name, const char *text)
{
	write_file(AT_FDCWD, at(dir, name), text, strlen(text));
}

#endif
