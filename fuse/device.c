/*
 * device.c - see device.h.
 *
 * libfuse says that the device is not found, whatever was in the way; most of
 * those who read that are in a container, where another line of a start script
 * helps and loading a module does not. An ordinary user's mount is made by
 * fusermount3, which opens the device as root and says itself what it lacks.
 */
#include "fuse/device.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "store/base/scope.h"

#define DEVICE "/dev/fuse"
#define RUN_IT                                                          \
	"a container needs\n"                                           \
	"  docker run --device /dev/fuse --cap-add SYS_ADMIN (with "    \
	"AppArmor also\n"                                               \
	"         --security-opt apparmor=unconfined)\n"                \
	"  podman run --device /dev/fuse --cap-add SYS_ADMIN\n"         \
	"  Kubernetes: securityContext: privileged: true, or a device " \
	"plugin that gives\n"                                           \
	"         /dev/fuse and capabilities: add: [SYS_ADMIN]\n"

int device_check(void)
{
	SCOPED(scope_close) int fd = open(DEVICE, O_RDWR | O_CLOEXEC);
	int rc = fd < 0 ? -errno : 0;

	switch (rc) {
	case -ENOENT:
		(void)fputs(
			"ckptfs: there is no " DEVICE
			": a machine needs its module (modprobe fuse), " RUN_IT,
			stderr);
		return rc;
	case -ENODEV:
	case -ENXIO:
		(void)fputs("ckptfs: " DEVICE " is there, but the kernel has "
			    "no FUSE behind it: load the module (modprobe "
			    "fuse), for a container on its host\n",
			    stderr);
		return rc;
	case -EACCES:
	case -EPERM:
		if (geteuid() != 0)
			return 0;
		(void)fprintf(stderr,
			      "ckptfs: " DEVICE
			      " may not be opened here (%s): " RUN_IT,
			      strerror(-rc));
		return rc;
	default:
		return 0;
	}
}

static bool may_mount(void)
{
	struct __user_cap_header_struct head = {
		.version = _LINUX_CAPABILITY_VERSION_3
	};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {
		{ 0 }
	};

	if (syscall(SYS_capget, &head, data) < 0)
		return true; /* not known */
	return data[CAP_TO_INDEX(CAP_SYS_ADMIN)].effective &
	       CAP_TO_MASK(CAP_SYS_ADMIN);
}

void device_explain(const char *mountpoint)
{
	(void)fprintf(stderr, "ckptfs: cannot mount on %s: ", mountpoint);
	if (geteuid() != 0)
		(void)fputs("see the line above; without root it needs "
			    "fusermount3, of the package fuse3\n",
			    stderr);
	else if (!may_mount())
		(void)fputs("this root has no CAP_SYS_ADMIN: " RUN_IT, stderr);
	else
		(void)fputs("see the line above; where it says that the "
			    "operation is not permitted, a security module "
			    "forbids it (docker: --security-opt "
			    "apparmor=unconfined), and dmesg has more\n",
			    stderr);
}
