/* The smallest limit of all groups that a process is in, of both versions. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "store/base/memory.h"
#include "tests/unit/store_fixture.h"

#define V1 "/sys/fs/cgroup/memory"
#define V2 "/sys/fs/cgroup"
#define MIB (UINT64_C(1) << 20)
#define NONE "9223372036854771712\n" /* what version 1 says for no limit */

/* A file below root, with the directories above it. */
static void put(const char *root, const char *name, const char *text)
{
	char path[4096];
	FILE *f;

	assert_true(snprintf(path, sizeof(path), "%s%s", root, name) <
		    (int)sizeof(path));
	for (char *at = path + strlen(root) + 1; (at = strchr(at, '/'));
	     *at++ = '/') {
		*at = 0;
		assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
	}
	f = fopen(path, "w");
	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

struct line {
	const char *name, *text;
};

/* Of a machine where these files are. */
static uint64_t limit_with(const struct line *files, size_t count)
{
	char *root = make_tmp();
	uint64_t limit;

	for (size_t i = 0; i < count; i++)
		put(root, files[i].name, files[i].text);
	limit = memory_cgroup_limit(root);
	remove_tree(root);
	free(root);
	return limit;
}
#define LIMIT_WITH(...)                                               \
	limit_with((const struct line[]){ __VA_ARGS__ },              \
		   sizeof((const struct line[]){ __VA_ARGS__ }) /     \
			   sizeof(struct line))

static void without_groups_there_is_no_limit(void **state)
{
	(void)state;
	assert_true(LIMIT_WITH({ "/nothing", "" }) == UINT64_MAX);
	assert_true(LIMIT_WITH({ "/proc/self/cgroup", "0::/a\n" },
			       { V2 "/a/memory.max", "max\n" }) == UINT64_MAX);
}

static void the_own_group_limits_of_version_1_too(void **state)
{
	(void)state;
	assert_int_equal(
		LIMIT_WITH({ "/proc/self/cgroup", "12:cpu,cpuacct:/x\n"
						  "4:memory:/job/7\n"
						  "0::/\n" },
			   { V1 "/memory.limit_in_bytes", NONE },
			   { V1 "/job/memory.limit_in_bytes", NONE },
			   { V1 "/job/7/memory.limit_in_bytes", "314572800\n" }),
		300 * MIB);
	assert_int_equal(
		LIMIT_WITH({ "/proc/self/cgroup", "0::/job/7\n" },
			   { V2 "/job/7/memory.max", "314572800\n" }),
		300 * MIB);
}

static void a_group_above_may_allow_less(void **state)
{
	(void)state;
	assert_int_equal(
		LIMIT_WITH({ "/proc/self/cgroup", "4:memory:/a/b/c\n" },
			   { V1 "/a/memory.limit_in_bytes", "1048576\n" },
			   { V1 "/a/b/memory.limit_in_bytes", NONE },
			   { V1 "/a/b/c/memory.limit_in_bytes", "2097152\n" }),
		MIB);
	assert_int_equal(
		LIMIT_WITH({ "/proc/self/cgroup", "0::/a/b/c\n" },
			   { V2 "/a/memory.max", "1048576\n" },
			   { V2 "/a/b/memory.max", "max\n" },
			   { V2 "/a/b/c/memory.max", "2097152\n" }),
		MIB);
}

/* The path is the host's, and /sys begins at the container's group. */
static void a_container_that_sees_only_its_own_group_is_limited(void **state)
{
	(void)state;
	assert_int_equal(
		LIMIT_WITH({ "/proc/self/cgroup", "4:memory:/docker/0123\n" },
			   { V1 "/memory.limit_in_bytes", "1048576\n" }),
		MIB);
	assert_int_equal(LIMIT_WITH({ "/proc/self/cgroup", "0::/\n" },
				    { V2 "/memory.max", "1048576\n" }),
			 MIB);
	assert_int_equal(LIMIT_WITH({ "/proc/self/cgroup", "0::/../x\n" },
				    { V2 "/memory.max", "1048576\n" }),
			 MIB);
}

static void other_controllers_and_garbage_limit_nothing(void **state)
{
	(void)state;
	assert_true(LIMIT_WITH({ "/proc/self/cgroup", "4:notmemory:/a\n"
						      "nonsense\n"
						      "1:x\n"
						      "5:memory:\n" },
			       { V1 "/a/memory.limit_in_bytes", "1048576\n" },
			       { V1 "/memory.limit_in_bytes", "-\n" }) ==
		    UINT64_MAX);
}

/* What is left to process 42, of a machine where these files are. */
static uint64_t room_with(const struct line *files, size_t count)
{
	char *root = make_tmp();
	uint64_t room;

	for (size_t i = 0; i < count; i++)
		put(root, files[i].name, files[i].text);
	room = memory_cgroup_room(root, 42);
	remove_tree(root);
	free(root);
	return room;
}
#define ROOM_WITH(...)                                               \
	room_with((const struct line[]){ __VA_ARGS__ },              \
		  sizeof((const struct line[]){ __VA_ARGS__ }) /     \
			  sizeof(struct line))

static void what_no_group_limits_has_no_end_of_room(void **state)
{
	(void)state;
	assert_true(ROOM_WITH({ "/proc/42/cgroup", "0::/a\n" },
			      { V2 "/a/memory.max", "max\n" },
			      { V2 "/a/memory.current", "5000\n" }) ==
		    UINT64_MAX);
	assert_true(ROOM_WITH({ "/proc/42/cgroup", "4:memory:/a\n" },
			      { V1 "/a/memory.limit_in_bytes", NONE },
			      { V1 "/a/memory.usage_in_bytes", "5000\n" }) ==
		    UINT64_MAX);
	/* Another process's group. */
	assert_true(ROOM_WITH({ "/proc/42/cgroup", "0::/a\n" },
			      { "/proc/self/cgroup", "0::/b\n" },
			      { V2 "/b/memory.max", "1048576\n" },
			      { V2 "/b/memory.current", "5000\n" }) ==
		    UINT64_MAX);
}

static void the_fullest_group_has_the_least_room(void **state)
{
	(void)state;
	assert_int_equal(ROOM_WITH({ "/proc/42/cgroup", "0::/a/b\n" },
				   { V2 "/a/memory.max", "4194304\n" },
				   { V2 "/a/memory.current", "3145728\n" },
				   { V2 "/a/b/memory.max", "2097152\n" },
				   { V2 "/a/b/memory.current", "0\n" }),
			 MIB);
	assert_int_equal(
		ROOM_WITH({ "/proc/42/cgroup", "4:memory:/a/b\n0::/\n" },
			  { V1 "/a/memory.limit_in_bytes", NONE },
			  { V1 "/a/memory.usage_in_bytes", "3145728\n" },
			  { V1 "/a/b/memory.limit_in_bytes", "2097152\n" },
			  { V1 "/a/b/memory.usage_in_bytes", "2097153\n" }),
		0);
}

static void what_can_be_reclaimed_is_room(void **state)
{
	(void)state;
	assert_int_equal(ROOM_WITH({ "/proc/42/cgroup", "0::/a\n" },
				   { V2 "/a/memory.max", "4194304\n" },
				   { V2 "/a/memory.current", "4194304\n" },
				   { V2 "/a/memory.stat",
				     "anon 4096\nfile 4190208\n"
				     "shmem 3141632\n"
				     "inactive_file 1000000\n"
				     "active_file 48576\n" }),
			 MIB);
	assert_int_equal(
		ROOM_WITH({ "/proc/42/cgroup", "4:memory:/a\n" },
			  { V1 "/a/memory.limit_in_bytes", "4194304\n" },
			  { V1 "/a/memory.usage_in_bytes", "4194304\n" },
			  { V1 "/a/memory.stat",
			    "inactive_file 7\ntotal_inactive_file 1048576\n"
			    "total_active_file 1048576\n" }),
		2 * MIB);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_groups_there_is_no_limit),
		cmocka_unit_test(the_own_group_limits_of_version_1_too),
		cmocka_unit_test(a_group_above_may_allow_less),
		cmocka_unit_test(
			a_container_that_sees_only_its_own_group_is_limited),
		cmocka_unit_test(other_controllers_and_garbage_limit_nothing),
		cmocka_unit_test(what_no_group_limits_has_no_end_of_room),
		cmocka_unit_test(the_fullest_group_has_the_least_room),
		cmocka_unit_test(what_can_be_reclaimed_is_room),
	};

	return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
