/* gc.c - ckptctl gc: have the mount give back what it does not need. */
#include <stdio.h>

#include "fuse/ctl/ctl.h"

static int gc_of(const char *path, bool json)
{
	cJSON *answer = NULL;
	int code = ctl_ask(path, CKPTFS_GC, &answer);

	if (code != CTL_FINE)
		return code;
	if (json) {
		ctl_print_json(answer);
		return CTL_FINE;
	}
	(void)printf("%s: %s given back to the disk, %s of memory\n",
		     ctl_shown(path),
		     ctl_bytes(ctl_number(answer, "freed_bytes")),
		     ctl_bytes(ctl_number(answer, "stage_freed_bytes")));
	cJSON_Delete(answer);
	return CTL_FINE;
}

const struct ctl_command ctl_gc = {
	.name = "gc",
	.arguments = "MOUNTPOINT",
	.summary = "give back now what no file needs any more",
	.help = "The mount does this by itself; gc waits until it is done and "
		"also lets go of the\nmemory that holds durable files for "
		"readers.\n\n",
	.takes = "mount point",
	.run_on = gc_of,
};
