/* destination.c - split a path, and open its directory. See destination.h. */
#include "gpu/destination.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/say.h"
#include "store/base/ckptfs_ioctl.h"

/* DIRECTORY/NAME; a name without a directory is in the current one. */
static int split(struct destination *d, const char *path)
{
	const char *slash = strrchr(path, '/');
	const char *name = slash ? slash + 1 : path;

	if (*name == 0 || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
		return ckpt_say(-EISDIR, "'%s': give the name of a file", path);
	if (strlen(name) >= CKPTFS_NAME_BYTES)
		return ckpt_say(-ENAMETOOLONG, "%s: its name is too long",
				path);
	d->path = strdup(path);
	d->name = strdup(name);
	if (!slash)
		d->directory = strdup(".");
	else
		d->directory = slash == path
				       ? strdup("/")
				       : strndup(path, (size_t)(slash - path));
	if (!d->path || !d->name || !d->directory)
		return ckpt_say(-ENOMEM, "%s: no memory", path);
	return 0;
}

int destination_reopen(struct destination *d)
{
	int fd = open(d->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return ckpt_say(-errno,
				"%s: its directory cannot be opened: "
				"%s",
				d->path, strerror(errno));
	if (d->dirfd >= 0)
		close(d->dirfd);
	d->dirfd = fd;
	return 0;
}

int destination_open(const char *path, struct destination *ret)
{
	struct destination d = { .dirfd = -1 };
	int rc = split(&d, path);

	if (rc == 0)
		rc = destination_reopen(&d);
	if (rc < 0)
		destination_close(&d);
	else
		*ret = d;
	return rc;
}

void destination_close(struct destination *d)
{
	if (d->dirfd >= 0)
		close(d->dirfd);
	free(d->path);
	free(d->directory);
	free(d->name);
}
