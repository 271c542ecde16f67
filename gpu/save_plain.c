/*
 * save_plain.c - a save that is written through the file: outside of a mount,
 * or in one that has no segment for it.
 *
 * The file is put together in memory a window at a time, and gets its name
 * when it is complete, by rename(2); in a mount that is a publish, so it
 * returns when the file is durable.
 */
#include "gpu/save_plain.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpu/copy.h"
#include "store/base/io.h"
#include "store/base/scope.h"

#define TEMPORARY_NAME_BYTES 48

/* What of the tensors lies in [from, to) of the file, into the window. */
static int fill_window(struct ckpt *c, const struct layout *l, uint8_t *window,
		       uint64_t from, uint64_t to)
{
	SCOPED(scope_free)
	struct copy_job *jobs = calloc(l->count + 1, sizeof(*jobs));
	size_t n = 0;

	if (!jobs)
		return ckpt_say(-ENOMEM, "no memory for a list of copies");
	if (from < l->header_bytes) {
		uint64_t end = to < l->header_bytes ? to : l->header_bytes;

		memcpy(window, l->header + from, end - from);
	}
	if (l->placed) /* the window has what was before, and that has gaps */
		memset(window, 0, to - from);
	for (size_t i = 0; i < l->count; i++) {
		const struct layout_tensor *t = &l->tensors[i];
		uint64_t begin = t->offset > from ? t->offset : from;
		uint64_t end = t->offset + t->bytes;

		if (end > to)
			end = to;
		if (begin >= end)
			continue;
		jobs[n++] = (struct copy_job){
			.tensor = t,
			.from = begin - t->offset,
			.bytes = end - begin,
			.to = window + (begin - from),
		};
	}
	return copy_run(c, jobs, n);
}

static int write_file(struct ckpt *c, const struct destination *d,
		      const struct layout *l, int fd)
{
	const uint64_t total = l->file_bytes;
	/* Whole elements of every tensor: windows begin at multiples of it. */
	uint64_t room = c->buffer_bytes / LAYOUT_ALIGN * LAYOUT_ALIGN;
	uint8_t *window;
	int rc = 0;

	if (room == 0)
		room = LAYOUT_ALIGN;
	window = mmap(NULL, room, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (window == MAP_FAILED)
		return ckpt_say(-ENOMEM, "%s: no memory for a buffer", d->path);
	for (uint64_t at = 0; at < total && rc == 0; at += room) {
		uint64_t end = total - at < room ? total : at + room;

		rc = fill_window(c, l, window, at, end);
		if (rc < 0)
			break;
		rc = io_write_full(fd, window, end - at, at);
		if (rc < 0)
			(void)ckpt_say(rc, "%s: %s", d->path, strerror(-rc));
	}
	(void)munmap(window, room);
	return rc;
}

static int temporary_name(char name[TEMPORARY_NAME_BYTES])
{
	uint64_t random;

	if (getrandom(&random, sizeof(random), 0) != sizeof(random))
		return -EIO;
	(void)snprintf(name, TEMPORARY_NAME_BYTES, ".ckpt-tmp-%016llx",
		       (unsigned long long)random);
	return 0;
}

int save_plainly(struct ckpt *c, const struct destination *d,
		 const struct layout *l, int *ret_fd, uint64_t *ret_ino)
{
	char name[TEMPORARY_NAME_BYTES];
	struct stat sb;
	int fd, rc = temporary_name(name);

	if (rc < 0)
		return ckpt_say(rc, "%s: no random numbers", d->path);
	if (fstatat(d->dirfd, d->name, &sb, 0) == 0 && S_ISDIR(sb.st_mode))
		return ckpt_say(-EISDIR, "%s: is a directory", d->path);
	fd = openat(d->dirfd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
		    0666);
	if (fd < 0)
		return ckpt_say(-errno, "%s: cannot be written: %s", d->path,
				strerror(errno));
	rc = write_file(c, d, l, fd);
	if (rc == 0 && fstat(fd, &sb) < 0)
		rc = ckpt_say(-errno, "%s: %s", d->path, strerror(errno));
	/* In a mount a close says that it is complete. */
	if (d->in_mount) {
		if (close(fd) < 0 && rc == 0)
			rc = ckpt_say(-errno, "%s: %s", d->path,
				      strerror(errno));
		fd = -1;
	}
	if (rc == 0 && renameat(d->dirfd, name, d->dirfd, d->name) < 0)
		rc = ckpt_say(-errno, "%s: %s", d->path, strerror(errno));
	if (rc < 0) {
		(void)unlinkat(d->dirfd, name, 0);
		if (fd >= 0)
			close(fd);
		return rc;
	}
	*ret_fd = fd;
	*ret_ino = sb.st_ino;
	return 0;
}
