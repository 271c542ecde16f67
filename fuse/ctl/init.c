/*
 * init.c - ckptctl init: a new store, in the way in which a mount makes one of
 * an empty directory. A mount with create=no makes none: then the directory
 * below a disk that is not mounted does not become a store of its own. Nor is a
 * directory shared in which nobody asked for it: only --shared makes one so.
 */
#include <errno.h>
#include <stdio.h>

#include "fuse/ctl/ctl.h"
#include "store/shared/home.h"
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

static int init_shared(const char *dir, bool json)
{
	char why[WHY_BYTES] = "";
	int rc = ctl_refuse_mount(dir);

	if (rc != CTL_FINE)
		return rc;
	rc = shared_home_make(dir, why, sizeof(why));
	if (rc < 0) {
		ctl_complain("%s", why);
		return exit_code(rc);
	}
	if (json) {
		cJSON *result = cJSON_CreateObject();

		ctl_add_text(result, "shared", dir);
		ctl_print_json(result);
	} else {
		(void)printf("%s can be shared by nodes now\n", ctl_shown(dir));
	}
	return CTL_FINE;
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

static int run(const struct ctl_command *self, int argc, char **argv)
{
	static const struct option names[] = {
		{ "shared", no_argument, NULL, 's' },
		{ 0 },
	};
	struct ctl_options o = { .command = self, .names = names };
	bool shared = false;

	while (ctl_option(&o, argc, argv) >= 0)
		shared = true;
	if (argc - optind != 1)
		return ctl_misused("init: name one %s",
				   shared ? "directory that nodes share"
					  : "store");
	return shared ? init_shared(argv[optind], o.json)
		      : init(argv[optind], o.json);
}

const struct ctl_command ctl_init = {
	.name = "init",
	.arguments = "STORE | --shared DIR",
	.summary = "make a new store, or a directory that nodes share",
	.help = "STORE is an empty directory, or one that is not there yet; "
		"the one above it must\nbe. What is a store already, or has "
		"anything else in it than lost+found, is\nrefused with exit "
		"code 2 and left as it is. One whose making was interrupted "
		"is\nmade anew. What it becomes belongs to who runs this, as "
		"does the mount.\n\n"
		"  --shared  DIR, which must be there and may hold files, "
		"becomes what nodes are\n"
		"            given as shared=DIR, once for all of them\n",
	.run = run,
};
