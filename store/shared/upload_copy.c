/*
 * upload_copy.c - the bytes of one file go to DIR.
 *
 * What was written is handed to the disk below DIR at once, where the kernel
 * has it: else all of it waits for the fsync, and the disk with it.
 *
 * Many small files are on their way at a time, but few large ones, the oldest
 * first: they would share what DIR can take, and the first be whole no sooner
 * than the last.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/file/file.h"
#include "store/shared/shared_private.h"

#define READ_BYTES_MAX (8u << 20)
#define LARGE_BYTES (4u << 20)
#define LARGE_AT_ONCE 4u

static int write_vectors(int fd, const struct iovec *iov, int count,
			 uint64_t off, size_t *ret_len)
{
	size_t done = 0;

	for (int i = 0; i < count;) {
		ssize_t n =
			pwritev(fd, iov + i, count - i, (off_t)(off + done));
		size_t left;

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		done += (size_t)n;
		left = (size_t)n;
		while (i < count && left >= iov[i].iov_len)
			left -= iov[i++].iov_len;
		if (left > 0) { /* a part of one: the rest by itself */
			const struct iovec *v = &iov[i++];
			int rc = io_write_full(fd,
					       (const char *)v->iov_base + left,
					       v->iov_len - left, off + done);

			if (rc < 0)
				return rc;
			done += v->iov_len - left;
		}
	}
	*ret_len = done;
	return 0;
}

/* The bytes from off on, as many as one call takes. */
static int copy_some(const struct upload_copy *c, uint64_t off, size_t *ret_len)
{
	struct files *files = &c->s->st->files;
	uint64_t left = c->size - off;
	size_t len = left < READ_BYTES_MAX ? (size_t)left : READ_BYTES_MAX;
	struct file_read r = { 0 };
	int rc;

	*ret_len = 0;
	rc = file_read_begin(files, c->n->in, len, off, &r);
	if (rc == 0)
		rc = write_vectors(c->fd, r.iov, r.count, off, ret_len);
	if (rc == -EFAULT)
		rc = file_read_failed(files, c->n->in, &r, len, off);
	file_read_end(files, &r);
	if (rc == 0 && *ret_len == 0)
		rc = -ESTALE; /* it is shorter now */
	/* Only to begin it: what fails here, or is not known, fsync sees. */
	if (rc == 0 && c->size > READ_BYTES_MAX)
		(void)sync_file_range(c->fd, (off64_t)off, (off64_t)*ret_len,
				      SYNC_FILE_RANGE_WRITE);
	return rc;
}

static int copy_all(const struct upload_copy *c)
{
	uint64_t off = 0;

	while (off < c->size && c->wanted(c->arg)) {
		size_t len;
		int rc = file_seek(&c->s->st->files, c->n->in, off, SEEK_DATA,
				   &off);

		if (rc == -ENXIO) /* a hole to the end */
			return 0;
		if (rc == 0)
			rc = copy_some(c, off, &len);
		if (rc < 0)
			return rc;
		off += len;
		c->calls(c->arg, true);
	}
	return 0;
}

/* May n begin, as far as those go that were closed before? */
static bool has_turn_locked(const struct shared *s, const struct node *n)
{
	const struct node *o;
	unsigned before = 0;

	TAILQ_FOREACH(o, &s->queue, queued)
	{
		if (o == n)
			return true;
		before += o->is_copying;
		if (before == LARGE_AT_ONCE)
			return false;
	}
	return true;
}

static void wait_for_turn(const struct upload_copy *c)
{
	c->calls(c->arg, false);
	{
		HOLD(&c->s->lock);
		c->n->is_copying = true;
		while (!has_turn_locked(c->s, c->n) && !c->s->stop &&
		       !upload_is_void_locked(c->n, c->number))
			cond_wait(&c->s->moved, &c->s->lock);
	}
	c->calls(c->arg, true);
}

int upload_copy(const struct upload_copy *c)
{
	int rc;

	if (c->size >= LARGE_BYTES)
		wait_for_turn(c);
	rc = copy_all(c);
	if (rc == 0 && c->wanted(c->arg) && fsync(c->fd) < 0)
		rc = -errno;
	HOLD(&c->s->lock);
	if (c->n->is_copying)
		cond_broadcast(&c->s->moved);
	c->n->is_copying = false;
	return rc;
}
