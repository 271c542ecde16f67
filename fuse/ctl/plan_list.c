/* folder.c - what a folder holds, and what .metadata names below it. */
#include "fuse/ctl/folder.h"

#include <dirent.h>
#include <sys/stat.h>

#include "store/base/scope.h"
#include "store/base/vec.h"

void folder_release(struct folder *f)
{
	for (size_t i = 0; i < f->count; i++) {
		char *name;

		memcpy(&name, &f->files[i].name, sizeof(name));
		free(name);
	}
	free(f->files);
}

static void folder_add(struct folder *f, int dirfd, const char *name)
{
	struct stat st;

	if (fstatat(dirfd, name, &st, 0) < 0 || !S_ISREG(st.st_mode))
		return;
	CHECK(vec_grow(&f->files, f->count, &f->capacity, sizeof(*f->files)) ==
	      0); /* out of memory */
	f->files[f->count].name = strdup(name);
	f->files[f->count].size_bytes = (uint64_t)st.st_size;
	CHECK(f->files[f->count].name); /* out of memory */
	f->count++;
}

int folder_read(struct folder *f, const char *path, int dirfd,
		const struct dcp *d)
{
	struct dirent **names;
	int count = scandir(path, &names, NULL, alphasort);

	if (count < 0)
		return -errno;
	for (int i = 0; i < count; i++) {
		folder_add(f, dirfd, names[i]->d_name);
		free(names[i]);
	}
	free(names);
	for (uint32_t i = 0; i < d->file_count; i++)
		if (strchr(d->files[i].name, '/'))
			folder_add(f, dirfd, d->files[i].name);
	return 0;
}
