/* What log.h promises: one message is one line, whatever is in it. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "store/base/log.h"

/* What one message makes of standard error, which is a pipe meanwhile. */
static void logged(const char *name, bool journal, char *ret, size_t size)
{
	int was = dup(STDERR_FILENO), ends[2];
	struct stat sb;
	char stream[64];
	ssize_t n;

	assert_int_equal(pipe(ends), 0);
	assert_int_equal(fstat(ends[1], &sb), 0);
	(void)snprintf(stream, sizeof(stream), "%llu:%llu",
		       (unsigned long long)sb.st_dev,
		       (unsigned long long)sb.st_ino + (journal ? 0 : 1));
	assert_int_equal(setenv("JOURNAL_STREAM", stream, 1), 0);
	assert_int_equal(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
	log_warning("%s: not durable", name);
	assert_int_equal(dup2(was, STDERR_FILENO), STDERR_FILENO);
	n = read(ends[0], ret, size - 1);
	assert_true(n > 0);
	ret[n] = 0;
	assert_int_equal(unsetenv("JOURNAL_STREAM"), 0);
	close(was);
	close(ends[0]);
	close(ends[1]);
}

static void a_name_cannot_forge_a_line(void **state)
{
	char line[4096];

	(void)state;
	logged("a\nckptfs: ERROR: b\x1b[31m\x7f", false, line, sizeof(line));
	assert_string_equal(line, "ckptfs: WARNING: a\\nckptfs: ERROR: b"
				  "\\x1b[31m\\x7f: not durable\n");
}

static void what_is_too_long_is_cut_and_still_one_line(void **state)
{
	char line[4096], name[3000];

	(void)state;
	memset(name, '\n', sizeof(name));
	name[sizeof(name) - 1] = 0;
	logged(name, false, line, sizeof(line));
	assert_ptr_equal(strchr(line, '\n'), line + strlen(line) - 1);
	assert_true(strlen(line) <= 2048);
}

static void the_journal_is_told_the_level(void **state)
{
	char line[4096];

	(void)state;
	logged("a", true, line, sizeof(line));
	assert_string_equal(line, "<4>ckptfs: WARNING: a: not durable\n");
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_name_cannot_forge_a_line),
		cmocka_unit_test(what_is_too_long_is_cut_and_still_one_line),
		cmocka_unit_test(the_journal_is_told_the_level),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
