/*
 * trailing.c - files of DIR that are not whole: the sticky bit and no
 * permission say so, and a trailer at the end says who has the bytes
 * (trailer.h).
 *
 * Between the cut that takes the trailer away and the chmod that follows there
 * is neither a trailer nor a file that anybody may read: ask again.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "store/base/interrupt.h"
#include "store/base/io.h"
#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/shared/shared_private.h"

#define WAIT_FIRST_NS (INT64_C(10) * 1000000)
/*
 * For how long a pending file may seem to have no trailer: it is being made, or
 * completed, or a client of DIR remembers its size (MooseFS: a second).
 */
#define BARE_NS (INT64_C(5000) * 1000000)
#define WAIT_MOST_NS (INT64_C(500) * 1000000)
/* Others may replace it this often between two looks at it. */
#define FIND_AGAIN_MAX 16

static int read_at_end(int fd, uint64_t size, struct trailer *ret)
{
	uint8_t bytes[TRAILER_BYTES];
	int rc;

	if (size < TRAILER_BYTES)
		return -ENODATA;
	rc = io_read_full(fd, bytes, sizeof(bytes), size - TRAILER_BYTES);
	if (rc < 0)
		return rc == -ESTALE ? -ENODATA : rc;
	return trailer_decode(bytes, ret);
}

int pending_read(int fd, struct trailer *ret)
{
	SCOPED(scope_close) int rfd = node_reopen(fd, O_RDONLY);
	struct statx sx;
	struct stat sb;
	int rc;

	if (rfd < 0)
		return rfd;
	if (fstat(rfd, &sb) < 0)
		return -errno;
	rc = read_at_end(rfd, (uint64_t)sb.st_size, ret);
	/* An engine's client may have remembered another size. */
	if (rc == -ENODATA &&
	    statx(rfd, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_SIZE,
		  &sx) == 0 &&
	    sx.stx_size != (uint64_t)sb.st_size)
		rc = read_at_end(rfd, sx.stx_size, ret);
	return rc;
}

int pending_read_soon(int fd, struct trailer *ret)
{
	int64_t end_ns = mono_ns() + BARE_NS;
	struct timespec pause = { .tv_nsec = 20000000 };
	struct stat sb;
	int rc;

	while ((rc = pending_read(fd, ret)) == -ENODATA && mono_ns() < end_ns) {
		/* Plain now, or gone: there is nothing to wait for. */
		if (fstat(fd, &sb) < 0 || !(sb.st_mode & S_ISVTX) ||
		    sb.st_nlink == 0)
			break;
		(void)nanosleep(&pause, NULL);
	}
	return rc;
}

int pending_write(struct shared *s, struct node *n, int fd, uint64_t at,
		  bool writing)
{
	struct trailer t = { .number = n->in->ino, .writing = writing };
	uint8_t bytes[TRAILER_BYTES];
	struct stat sb;
	int rc = inode_stat(s->st->inodes, n->in, &sb);

	if (rc < 0)
		return rc;
	strcpy(t.node, s->home.node);
	strcpy(t.uuid, s->st->uuid);
	t.size_bytes = writing ? 0 : (uint64_t)sb.st_size;
	t.mode = sb.st_mode & ~(mode_t)S_ISVTX; /* that means another thing */
	t.atime_ns = io_ns(&sb.st_atim);
	t.mtime_ns = io_ns(&sb.st_mtim);
	trailer_encode(&t, bytes);
	return io_write_full(fd, bytes, sizeof(bytes), at);
}

void pending_stat(const struct trailer *t, struct stat *sb)
{
	sb->st_size = (off_t)t->size_bytes;
	sb->st_mode = S_IFREG | (t->mode & 07777);
	sb->st_atim = io_timespec(t->atime_ns);
	sb->st_mtim = io_timespec(t->mtime_ns);
}

/* Say to the node that has it that somebody waits. Whether it hears or not. */
static void ask_for(struct shared *s, const struct trailer *t)
{
	SCOPED(scope_close) int fd = -1;
	char path[SHARED_NODE_MAX + 64];

	(void)snprintf(path, sizeof(path), ".ckptfs/nodes/%s/wanted/%016llx",
		       t->node, (unsigned long long)t->number);
	fd = openat(s->home.dirfd, path,
		    O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
}

/*
 * Has it none of the names that users gave it? Its link in own/ goes when its
 * node has seen that.
 */
static bool has_no_name(struct shared *s, struct node *n, const struct stat *sb)
{
	return sb->st_nlink == 0 ||
	       (sb->st_nlink == 1 && node_has_name(s, n, sb->st_ino) == 0);
}

/* 0: it is whole; 1: not yet, *ret as far as it is known. -ESTALE: gone. */
static int look(struct shared *s, struct node *n, int fd, struct trailer *ret)
{
	struct stat sb;
	int rc;

	if (fstat(fd, &sb) < 0)
		return errno == ENOENT ? -ESTALE : -errno;
	if (!pending_is(s, &sb))
		return sb.st_nlink == 0 ? -ESTALE : 0;
	if (has_no_name(s, n, &sb))
		return -ESTALE;
	rc = pending_read(fd, ret);
	if (rc == -ENODATA)
		ret->node[0] = 0;
	if (rc == -ENOENT)
		return -ESTALE;
	return rc == 0 || rc == -ENODATA ? 1 : rc;
}

/* The same of what is at the name by now. */
static int look_again(struct shared *s, struct node *n, int *fd,
		      struct trailer *ret)
{
	int rc = look(s, n, *fd, ret), fresh = -1;

	for (unsigned i = 0; rc == -ESTALE && i < FIND_AGAIN_MAX; i++) {
		rc = node_find_again(s, n, &fresh);
		if (rc < 0)
			return rc;
		(void)close(*fd);
		*fd = fresh;
		rc = look(s, n, *fd, ret);
	}
	return rc;
}

/* Ask once for each file that it turns out to be. */
static void ask_once(struct shared *s, struct put_off *p,
		     const struct trailer *t)
{
	uint64_t what = t->number;

	for (const char *c = t->uuid; *c; c++)
		what = what * 31 + (unsigned char)*c;
	if (t->node[0] && p->asked != what)
		ask_for(s, t);
	p->asked = t->node[0] ? what : p->asked;
}

/* Its next pause is longer than the last. */
static struct timespec pause_of(struct put_off *p)
{
	if (p->pause_ns == 0)
		p->pause_ns = WAIT_FIRST_NS;
	else if (p->pause_ns < WAIT_MOST_NS)
		p->pause_ns *= 2;
	return io_timespec(p->pause_ns);
}

int pending_wait(struct shared *s, struct node *n, int *fd)
{
	int64_t most_ns = (int64_t)s->pending_wait_s * 1000000000;
	struct put_off here = { 0 }, *off = put_off_of_thread();
	struct put_off *p = off ? off : &here;
	struct trailer t = { 0 };
	char path[4096];
	int rc;

	if (p->since_ns == 0)
		p->since_ns = mono_ns();
	for (;;) {
		struct timespec pause;

		rc = look_again(s, n, fd, &t);
		if (rc <= 0)
			break;
		if (interrupt_is_due())
			return -EINTR;
		if (mono_ns() - p->since_ns >= most_ns)
			break;
		ask_once(s, p, &t);
		pause = pause_of(p);
		if (off)
			return -ERESTART;
		(void)nanosleep(&pause, NULL);
	}
	if (rc == 0)
		return 0;
	node_path(s, n, path, sizeof(path));
	if (rc == -EUCLEAN)
		log_error("%s/%s is not whole, and its trailer is damaged: "
			  "nobody knows which node has its bytes",
			  s->dir, path);
	else if (rc > 0 && t.node[0])
		log_warning("%s/%s is not whole: node %s has its bytes, and "
			    "they did not come in %u s",
			    s->dir, path, t.node, s->pending_wait_s);
	else if (rc > 0)
		log_warning("%s/%s is not whole, and does not say which node "
			    "has its bytes",
			    s->dir, path);
	return rc > 0 || rc == -EUCLEAN ? -EIO : rc;
}
