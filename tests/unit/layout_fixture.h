/*
 * layout_fixture.h - a directory is opened as a store's, and what was said.
 */
#ifndef TESTS_UNIT_LAYOUT_FIXTURE_H
#define TESTS_UNIT_LAYOUT_FIXTURE_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/store_fixture.h"

#define WHY_BYTES 4096
#define GOOD_UUID "01234567-89ab-4def-8123-456789abcdef"

struct opened {
	int rc, dirfd, lockfd;
	char uuid[LAYOUT_UUID_BYTES];
	char why[WHY_BYTES];
};

static inline struct opened open_layout(const char *path, bool create)
{
	struct opened o = { .dirfd = -7, .lockfd = -7 };

	o.rc = layout_open(path, create ? LAYOUT_ANY : LAYOUT_CHECK, &o.dirfd,
			   &o.lockfd, o.uuid, o.why, sizeof(o.why));
	if (o.rc >= 0)
		layout_say_who(o.lockfd, NULL);
	if (o.rc == 1) /* as if there were a database now */
		o.rc = layout_finish(o.dirfd, o.uuid);
	if (o.rc < 0) {
		assert_int_equal(o.dirfd, -7); /* untouched on failure */
		assert_int_equal(o.lockfd, -7);
		assert_string_equal(o.uuid, "");
		assert_non_null(strstr(o.why, path));
		assert_null(strchr(o.why, '\n'));
	}
	return o;
}

static inline void close_layout(struct opened *o)
{
	assert_int_equal(o->rc, 0);
	assert_int_equal(close(o->dirfd), 0);
	assert_int_equal(close(o->lockfd), 0);
}

static inline void put_text(const char *dir, const char *name, const char *text)
{
	int fd = open(dir, O_RDONLY | O_DIRECTORY);

	write_file(fd, name, text, strlen(text));
	close(fd);
}

#endif
