/*
 * init.c - ckptctl init: a new store, in the way in which a mount makes one of
 * an empty directory. A mount with create=no makes none: then the directory
 * below a disk that is not mounted does not become a store of its own.
 */
#include <errno.h>
#include <stdio.h>

#include "fuse/ctl/ctl.h"
#include "store/store.h"

#define WHY_BYTES 8192

/* What has nothing to do with the directory that was named. */
static int exit_code(int rc)
{
	switch (rc) {
	case -EIO:
	case -ENOSPC:
	case -EDQUOT:
	case -ENOMEM:
		return CTL_PROBLEM;
	default:
		return CTL_USAGE;
	}
}

static int init(const char *path, bool json)
{
	char why[WHY_BYTES] = "";
	int rc = ctl_refuse_mount(path);

	if (rc != CTL_FINE)
		return rc;
	rc = store_make(path, why, sizeof(why));
	if (rc < 0) {
		ctl_complain("%s", why);
		return exit_code(rc);
	}
	if (json) {
		cJSON *result = cJSON_CreateObject();

		ctl_add_text(result, "store", path);
		ctl_print_json(result);
	} else {
		(void)printf("%s is a new store\n", ctl_shown(path));
	}
	return CTL_FINE;
}

const struct ctl_command ctl_init = {
	.name = "init",
	.arguments = "STORE",
	.summary = "make a new store",
	.help = "STORE is an empty directory, or one that is not there yet; "
		"the one above it must\nbe. What is a store already, or has "
		"anything else in it than lost+found, is\nrefused with exit "
		"code 2 and left as it is. One whose making was interrupted "
		"is\nmade anew. What it becomes belongs to who runs this, as "
		"does the mount.\n\n",
	.takes = "store",
	.run_on = init,
};
