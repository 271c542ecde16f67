/* file.h - an open file, as ckpt_file_open() made it: file.c and load.c. */
#ifndef GPU_FILE_H
#define GPU_FILE_H

#include <sys/stat.h>

#include "gpu/handle.h"
#include "store/base/safetensors_header.h"

struct ckpt_file { /* immutable while it is open, but for `pinned` */
	struct ckpt *c;
	char *path; /* owned; as it was given, for messages */
	int fd; /* owned; keeps the version alive */
	struct stat stat; /* when it was opened */
	uint64_t bytes; /* st_size */
	void *map; /* all of it, read-only; NULL: it cannot be mapped */
	bool pinned; /* the map is, for devices: ckpt_file_pin() */
	struct safetensors_header header;
	struct ckpt_entry *entries; /* owned; of the header, as callers see it */
};

#endif
