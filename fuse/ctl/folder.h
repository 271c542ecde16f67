/* folder.h - the files of a checkpoint's folder, with their sizes. */
#ifndef FUSE_CTL_FOLDER_H
#define FUSE_CTL_FOLDER_H

#include "store/step/closure.h"
#include "store/formats/dcp.h"

/* Sizes of what the folder has, and of what entries name in folders below. */
struct folder {
	struct closure_file *files; /* owned, with their names */
	size_t count, capacity;
};

/* -errno, as scandir(3). Release it in any case. */
int folder_read(struct folder *f, const char *path, int dirfd,
		const struct dcp *d);
void folder_release(struct folder *f);

#endif
