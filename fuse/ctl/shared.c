/*
 * shared.c - a directory that nodes share is looked at from outside, as any
 * node could: through its files, and not through a mount, whose daemon may be
 * what is in question.
 */
#include "fuse/ctl/shared.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "store/base/scope.h"

#define WHY_BYTES 8192

/* Somebody named where it is mounted. */
static bool is_mount(const char *dir)
{
	SCOPED(scope_close) int fd = ctl_open(dir);
	cJSON *status;

	if (fd < 0 || ctl_query(fd, CKPTFS_STATUS, &status) < 0)
		return false;
	ctl_complain("%s is where ckptfs is mounted; give the directory that "
		     "the nodes share",
		     dir);
	cJSON_Delete(status);
	return true;
}

int ctl_shared_open(const char *dir, struct shared_look *ret)
{
	char why[WHY_BYTES] = "";
	int rc;

	if (is_mount(dir))
		return CTL_USAGE;
	rc = shared_look_open(dir, ret, why, sizeof(why));
	if (rc == 0)
		return CTL_FINE;
	ctl_complain("%s", why);
	return rc == -EIO ? CTL_PROBLEM : CTL_USAGE;
}

int ctl_shared_failed(const char *dir, const char *what, int rc)
{
	ctl_complain("%s: cannot %s: %s", dir, what, strerror(-rc));
	return CTL_PROBLEM;
}

const char *ctl_seconds(int64_t seconds)
{
	static const struct {
		int64_t from, unit;
		const char *name;
	} units[] = {
		{ INT64_C(2) * 86400, 86400, "days" },
		{ INT64_C(2) * 3600, 3600, "h" },
		{ 120, 60, "min" },
		{ 0, 1, "s" },
	};
	static char texts[8][32];
	static unsigned next;
	char *text = texts[next++ % 8];
	size_t n = 0;

	if (seconds < 0)
		seconds = 0;
	while (seconds < units[n].from)
		n++;
	(void)snprintf(text, sizeof(texts[0]), "%" PRId64 " %s",
		       seconds / units[n].unit, units[n].name);
	return text;
}
