/* mount_private.h - a request, for mount.c and mount_fuse.c. */
#ifndef TESTS_SIM_MOUNT_PRIVATE_H
#define TESTS_SIM_MOUNT_PRIVATE_H

#include "fuse/fs.h"

struct fuse_req {
	struct fs *fs;
	struct fuse_ctx ctx;
	bool answered;
	int rc; /* -errno */
	struct fuse_entry_param entry;
	struct fuse_file_info file;
	struct stat stat;
	void *buf; /* what was read; the caller's */
	size_t len, size;
};

#endif
