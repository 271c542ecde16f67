/*
 * in_place.c - what was to replace a file is written into that.
 *
 * Who comes by a name to lock it locks the file that DIR has there, whatever is
 * to replace that: locks.c. While others hold that lock, or wait for it, it has
 * to stay the file that the name means. So what was locked while it was to
 * replace a file has its bytes written into it, and an empty file is not
 * replaced by an empty one, whoever may be about to lock it: `exec 9> LOCK` of
 * a shell empties it each time. A large file takes the place of the old one all
 * the same: who writes one wants it whole, or not at all.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/shared/pending.h"
#include "store/shared/shared_private.h"

/* A file that is locked is small: more than that is data. */
#define LOCKED_MOST_BYTES 65536

int in_place_waits(struct shared *s, struct node *n)
{
	SCOPED(at_end) struct at a = { .s = s, .fd = -1 };
	char name[STORE_NAME_MAX + 1], node[SHARED_NODE_MAX + 1];
	SCOPED(scope_close) int fd = -1;
	struct stat sb;

	{
		HOLD(&s->lock);
		if (!n->ticket || !n->empties || !n->is_locked)
			return 0;
	}
	if (!at_node(s, n, &a, name))
		return 0;
	fd = at_open(&a, O_PATH, &sb);
	return fd >= 0 && pending_is(s, &sb) &&
	       pending_owner(s->home.homefd, sb.st_ino, node) == 1 &&
	       !shared_node_is_dead(s->home.homefd, node);
}

/* What somebody has set of the new one meanwhile is set of the old one. */
static int set_as(int to, const struct stat *sb, const struct stat *there)
{
	mode_t mode = sb->st_mode & 07777;

	if ((sb->st_uid != there->st_uid || sb->st_gid != there->st_gid) &&
	    fchown(to, sb->st_uid, sb->st_gid) < 0)
		return -errno;
	return mode != (there->st_mode & 07777) && fchmod(to, mode) < 0 ? -errno
									: 0;
}

static int copy_into(int to, int from, const struct stat *sb)
{
	SCOPED(scope_free) char *buf = malloc(LOCKED_MOST_BYTES);
	const struct timespec times[2] = { { .tv_nsec = UTIME_OMIT },
					   sb->st_mtim };
	size_t len = 0;
	int rc = buf ? io_read(from, buf, LOCKED_MOST_BYTES, 0, &len) : -ENOMEM;

	if (rc == 0)
		rc = io_write_full(to, buf, len, 0);
	if (rc == 0 && (ftruncate(to, (off_t)len) < 0 ||
			futimens(to, times) < 0 || fsync(to) < 0))
		rc = -errno;
	return rc;
}

/* The new file has names, or attributes, that the old one would not get. */
static bool has_more(int fd, const struct stat *sb)
{
	return sb->st_nlink > 2 || flistxattr(fd, NULL, 0) > 0;
}

int in_place_write(const struct at *a, struct node *n, const char *ticket,
		   const struct node *old)
{
	struct shared *s = a->s;
	SCOPED(scope_close) int from = -1, to = -1;
	char taken[TICKET_PATH_BYTES];
	struct stat sb, there;
	bool empties, locked;
	ino_t number;
	int rc;

	{
		HOLD(&s->lock);
		empties = n->empties && old;
		locked = n->is_locked;
		number = old ? old->engine : 0;
	}
	if (!empties)
		return 1;
	ticket_path(ticket, TICKET_TAKEN, taken);
	locked = locked || locks_has(s, number);
	if (fstatat(s->home.nextfd, taken, &sb, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	if (sb.st_size > (locked ? LOCKED_MOST_BYTES : 0))
		return 1;
	from = openat(s->home.nextfd, taken, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (from < 0)
		return -errno;
	if (has_more(from, &sb))
		return 1;
	to = at_open(a, O_WRONLY, &there);
	if (to < 0)
		return to == -ENOENT ? 1 : to;
	if (there.st_ino != number || pending_is(s, &there) ||
	    (!locked && there.st_size > 0))
		return 1;
	rc = copy_into(to, from, &sb);
	return rc < 0 ? rc : set_as(to, &sb, &there);
}

int in_place_end(struct shared *s, struct node *n, const struct node *old)
{
	char ticket[TICKET_PATH_BYTES];
	ino_t owned;
	int rc = 0;

	if (node_ticket(s, n, ticket))
		rc = ticket_drop(s->home.nextfd, ticket);
	if (rc < 0)
		return rc;
	{
		HOLD(&s->lock);
		node_set_ticket_locked(s, n, NULL);
		owned = own_take_locked(n);
		node_found_locked(s, n, old->engine);
	}
	if (owned)
		own_unlink(s, owned);
	return 0;
}
