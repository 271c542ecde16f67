/*
 * await.c - who waits for a file that another node has (pending.h): he asks
 * that node for it, once, and looks again and again, with no thread if the call
 * can be put off.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "store/base/interrupt.h"
#include "store/base/io.h"
#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/shared/pending.h"
#include "store/shared/shared_private.h"

#define WAIT_FIRST_NS (INT64_C(10) * 1000000)
#define WAIT_MOST_NS (INT64_C(500) * 1000000)
/* Others may replace it this often between two looks at it. */
#define FIND_AGAIN_MAX 16

void pending_show(const struct shared *s, struct stat *sb)
{
	if (!pending_is(s, sb))
		return;
	sb->st_mode = S_IFREG | pending_mode_of(sb);
	sb->st_atim = sb->st_mtim;
	if (sb->st_nlink > 1)
		sb->st_nlink--; /* the link is no name that a user gave it */
}

void pending_note_mode(int fd, mode_t mode)
{
	const struct timespec times[2] = { pending_atime(mode),
					   { .tv_nsec = UTIME_OMIT } };

	(void)futimens(fd, times);
}

/* Say to the node that has it that somebody waits; whether it hears or not. */
static bool ask_for(struct shared *s, const char *node, ino_t number)
{
	SCOPED(scope_close) int fd = -1;
	char path[SHARED_NODE_MAX + 64];

	(void)snprintf(path, sizeof(path),
		       SHARED_NODES_DIR "/%s/" SHARED_WANTED_DIR "/%016" PRIx64,
		       node, (uint64_t)number);
	fd = openat(s->home.homefd, path,
		    O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	return fd >= 0;
}

/* Once for each file that it turns out to be. -EIO: it is lost. */
static int ask_once(struct shared *s, struct put_off *p, ino_t number)
{
	char node[SHARED_NODE_MAX + 1];
	int rc;

	if (p->asked == number)
		return 0;
	rc = pending_owner(s->home.homefd, number, node);
	if (rc == PENDING_OF_NODE && ask_for(s, node, number))
		p->asked = number;
	return rc == PENDING_LOST ? -EIO : 0;
}

/*
 * Has it none of the names that users gave it? Its link goes when its node has
 * seen that.
 */
static bool has_no_name(struct shared *s, struct node *n, const struct stat *sb)
{
	return sb->st_nlink == 0 ||
	       (sb->st_nlink == 1 && node_has_name(s, n, sb->st_ino) == 0);
}

/* 0: it is whole; 1: not yet. -ESTALE: what was looked up is gone. */
static int look(struct shared *s, struct node *n, int fd, struct stat *sb)
{
	if (fstat(fd, sb) < 0)
		return errno == ENOENT ? -ESTALE : -errno;
	if (!pending_is(s, sb))
		return sb->st_nlink == 0 ? -ESTALE : 0;
	/* It was just being made here when it was looked up, perhaps. */
	return has_no_name(s, n, sb) || node_is_local(s, sb->st_ino) ? -ESTALE
								     : 1;
}

/* The same of what is at the name by now. */
static int look_again(struct shared *s, struct node *n, int *fd,
		      struct stat *sb)
{
	int rc = look(s, n, *fd, sb), fresh = -1;

	for (unsigned i = 0; rc == -ESTALE && i < FIND_AGAIN_MAX; i++) {
		rc = node_find_again(s, n, &fresh);
		if (rc < 0)
			return rc;
		(void)close(*fd);
		*fd = fresh;
		rc = look(s, n, *fd, sb);
	}
	return rc;
}

/* Nobody will ever complete it: its name goes. */
static bool is_left(struct shared *s, struct node *n)
{
	SCOPED(node_use_end) struct node_use parent = { .s = s };
	SCOPED(scope_close) int dirfd = -1;
	char name[STORE_NAME_MAX + 1];

	{
		HOLD(&s->lock);
		if (!n->parent)
			return false;
		parent.n = node_ref_locked(n->parent);
		(void)snprintf(name, sizeof(name), "%s", n->name);
	}
	return node_fd(s, parent.n, &dirfd) == 0 &&
	       own_take_left(s, dirfd, name);
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

static void say_not_come(struct shared *s, struct node *n, ino_t number)
{
	char path[4096], node[SHARED_NODE_MAX + 1];

	node_path(s, n, path, sizeof(path));
	switch (pending_owner(s->home.homefd, number, node)) {
	case PENDING_OF_NODE:
		log_warning("%s/%s is not whole: node %s has its bytes, and "
			    "they did not come in %u s",
			    s->dir, path, node, s->pending_wait_s);
		break;
	case PENDING_LOST:
		log_warning("%s/%s is lost with node %s, which was forgotten; "
			    "remove it, or write it again",
			    s->dir, path, node);
		break;
	default:
		log_warning("%s/%s is not whole, and no node says that it has "
			    "its bytes",
			    s->dir, path);
		break;
	}
}

int pending_wait(struct shared *s, struct node *n, int *fd)
{
	int64_t most_ns = (int64_t)s->pending_wait_s * 1000000000;
	struct put_off here = { 0 }, *off = put_off_of_thread();
	struct put_off *p = off ? off : &here;
	struct stat sb;
	int rc;

	if (p->since_ns == 0)
		p->since_ns = mono_ns();
	for (;;) {
		struct timespec pause;
		bool is_over;

		rc = look_again(s, n, fd, &sb);
		if (rc <= 0)
			return rc;
		if (interrupt_is_due())
			return -EINTR;
		is_over = mono_ns() - p->since_ns >= most_ns;
		if ((is_over || p->pause_ns == 0) && is_left(s, n))
			return -ESTALE;
		if (is_over || ask_once(s, p, sb.st_ino) < 0)
			break;
		pause = pause_of(p);
		if (off)
			return -ERESTART;
		(void)nanosleep(&pause, NULL);
	}
	say_not_come(s, n, sb.st_ino);
	return -EIO;
}
