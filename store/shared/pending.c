/*
 * pending.c - the file is looked at by one descriptor: what its mode, its size
 * and its trailer say is of one inode, whatever its name becomes. A file may be
 * completed at any moment; then it is found plain, or bare, and never damaged.
 */
#include "store/shared/pending.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/shared/walk.h"

static bool is_pending(const struct stat *st)
{
	return S_ISREG(st->st_mode) && (st->st_mode & S_ISVTX);
}

/* What the end of the file is. */
static int look_end(int fd, uint64_t size_bytes, enum pending *ret_is,
		    struct trailer *ret)
{
	uint8_t bytes[TRAILER_BYTES];
	int rc;

	*ret_is = PENDING_BARE;
	if (size_bytes < TRAILER_BYTES)
		return 0;
	rc = io_read_full(fd, bytes, sizeof(bytes), size_bytes - TRAILER_BYTES);
	if (rc == -ESTALE) /* it was cut just now */
		return 0;
	if (rc < 0)
		return rc;
	rc = trailer_decode(bytes, ret);
	if (rc != -ENODATA)
		*ret_is = rc == 0 ? PENDING_TOLD : PENDING_DAMAGED;
	return 0;
}

int pending_look(int dirfd, const char *name, enum pending *ret_is,
		 struct trailer *ret_trailer, struct stat *ret_st)
{
	SCOPED(scope_close)
	int fd = openat(dirfd, name,
			O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK |
				O_NOCTTY);
	struct stat st;
	enum pending is;
	int rc;

	if (fd < 0 && (errno == ENOENT || errno == ELOOP)) {
		*ret_is = PENDING_NOT;
		return 0;
	}
	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (!is_pending(&st)) {
		*ret_is = PENDING_NOT;
		return 0;
	}
	rc = look_end(fd, (uint64_t)st.st_size, &is, ret_trailer);
	if (rc < 0)
		return rc;
	*ret_st = st;
	*ret_is = is;
	return 0;
}

static int find(void *arg, int dirfd, const char *path, const char *name,
		const struct stat *st)
{
	const struct pending_walk *w = arg;
	struct pending_file f = { .path = path, .dirfd = dirfd, .name = name };
	int rc;

	if (!is_pending(st))
		return 0;
	rc = pending_look(dirfd, name, &f.is, &f.trailer, &f.st);
	if (rc < 0) {
		if (w->unread)
			w->unread(w->arg, path, rc);
		return 0;
	}
	return f.is == PENDING_NOT ? 0 : w->found(w->arg, &f);
}

static void pass_unread(void *arg, const char *path, int rc)
{
	const struct pending_walk *w = arg;

	if (w->unread)
		w->unread(w->arg, path, rc);
}

int pending_walk(int dirfd, const struct pending_walk *w)
{
	struct pending_walk copy = *w;
	const struct shared_walk all = { .found = find,
					 .unread = pass_unread,
					 .arg = &copy };

	return shared_walk(dirfd, &all);
}
