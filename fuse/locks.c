/*
 * locks.c - see locks.h. /proc/locks has one line for each lock and each waiter:
 *
 *   1: FLOCK  ADVISORY  WRITE 4711 00:2d:17 0 EOF
 *
 * The device is in hexadecimal, the inode number decimal (proc(5)). Leases are
 * in it too; they are no locks. Locks of processes that this pid namespace does
 * not see are left out by the kernel.
 */
#include "fuse/locks.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>

bool locks_held(dev_t dev, uint64_t ino)
{
	FILE *f = fopen("/proc/locks", "re");
	char line[256];
	bool held = false;

	if (!f)
		return true;
	while (!held && fgets(line, sizeof(line), f)) {
		const char *at = strchr(line, ':');
		unsigned major, minor;
		char kind[16];
		uint64_t number;

		if (!at)
			continue;
		if (strncmp(at, ": ->", 4) == 0) /* waits for one */
			continue;
		if (sscanf(at + 1, "%15s %*s %*s %*d %x:%x:%" SCNu64, kind,
			   &major, &minor, &number) != 4)
			continue;
		held = number == ino && makedev(major, minor) == dev &&
		       strcmp(kind, "LEASE") != 0 && strcmp(kind, "DELEG") != 0;
	}
	(void)fclose(f);
	return held;
}
