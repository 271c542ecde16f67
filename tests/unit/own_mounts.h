/*
 * own_mounts.h - a mount namespace of a test's own, also for who is not root:
 * nobody else sees what is mounted there, and it goes with the process.
 */
#ifndef TESTS_UNIT_OWN_MOUNTS_H
#define TESTS_UNIT_OWN_MOUNTS_H

#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

/* Whether this process may; see enter_namespace(). */
static bool may_mount;

static inline void write_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		return;
	(void)!write(fd, text, strlen(text));
	close(fd);
}

/* Before any thread runs. */
static inline void enter_namespace(void)
{
	char map[64];
	unsigned uid = geteuid(), gid = getegid();

	if (unshare(CLONE_NEWNS) < 0) {
		if (unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
			return;
		write_text("/proc/self/setgroups", "deny");
		(void)snprintf(map, sizeof(map), "%u %u 1", uid, uid);
		write_text("/proc/self/uid_map", map);
		(void)snprintf(map, sizeof(map), "%u %u 1", gid, gid);
		write_text("/proc/self/gid_map", map);
	}
	may_mount = mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
}

#endif
