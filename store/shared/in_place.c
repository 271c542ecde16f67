/*
 * in_place.c - what was to replace a file is written into that.
 *
 * Who comes by a name to lock it locks the file that DIR has there, whatever is
 * to replace that: locks.c. While others hold that lock, or wait for it, it has
 * to stay the file that the name means. So what was locked while it was to
 * replace a file has its bytes written into it, and an empty file is not
 * replaced by an empty one, whoever may be about to lock it: `exec 9> LOCK` of
 * a shell empties it each time. A large file takes the place of the old one all
 * the same: who writes one wants it whole, or not at all. So does what could
 * not be written into it, and mends what was written of it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
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
	/* Its node may take it back until its last sync, and its link goes
	 * then. */
	return fd >= 0 && sb.st_nlink > 1 &&
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

/* A reader sees what he would have seen with O_TRUNC, and no mixture. */
static int copy_into(int to, int from, const struct stat *sb,
		     const struct stat *there)
{
	SCOPED(scope_free) char *buf = malloc(LOCKED_MOST_BYTES);
	const struct timespec times[2] = { { .tv_nsec = UTIME_OMIT },
					   sb->st_mtim };
	size_t len = 0;
	int rc = buf ? io_read(from, buf, LOCKED_MOST_BYTES, 0, &len) : -ENOMEM;

	if (rc == 0 && there->st_size > (off_t)len && ftruncate(to, 0) < 0)
		rc = -errno;
	if (rc == 0)
		rc = io_write_full(to, buf, len, 0);
	if (rc == 0 && (futimens(to, times) < 0 || fsync(to) < 0))
		rc = -errno;
	return rc;
}

/* One that users set: file systems list others of their own for each file. */
static bool is_users(const char *attribute)
{
	return strncmp(attribute, "user.", 5) == 0 ||
	       strcmp(attribute, "security.capability") == 0 ||
	       strcmp(attribute, "system.posix_acl_access") == 0;
}

static bool has_attributes(int fd)
{
	ssize_t len = flistxattr(fd, NULL, 0);
	SCOPED(scope_free) char *names = len > 0 ? malloc((size_t)len) : NULL;

	if (len <= 0)
		return len < 0 && errno != ENOTSUP;
	len = names ? flistxattr(fd, names, (size_t)len) : -1;
	for (ssize_t i = 0; i < len; i += (ssize_t)strlen(names + i) + 1)
		if (is_users(names + i))
			return true;
	return len < 0; /* who knows? */
}

/* The new file has names, or attributes, that the old one would not get. */
static bool has_more(int fd, const struct stat *sb)
{
	return sb->st_nlink > 2 || has_attributes(fd);
}

/*
 * Does a program of any node lock DIR's file? If none does with flock(2) it is
 * locked by this from now on, until fd is closed.
 */
static bool is_locked_there(int fd)
{
	struct flock any = { .l_type = F_WRLCK, .l_whence = SEEK_SET };

	if (flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
		return true;
	return fcntl(fd, F_OFD_GETLK, &any) == 0 && any.l_type != F_UNLCK;
}

/*
 * Is it pending? A client of DIR may remember that of a file that is whole by
 * now: then no node has its link.
 */
static bool is_anybodys(struct shared *s, const struct stat *sb)
{
	char node[SHARED_NODE_MAX + 1];

	return pending_is(s, sb) && pending_owner(s->home.homefd, sb->st_ino,
						  node) != PENDING_NOBODYS;
}

/* 0: it is written. 1: it is not to be, or could not. */
static int write_into(struct shared *s, const struct at *a, int from,
		      bool locked, ino_t number)
{
	SCOPED(scope_close) int to = -1;
	struct stat sb, there;

	if (fstat(from, &sb) < 0 || sb.st_size > LOCKED_MOST_BYTES ||
	    has_more(from, &sb))
		return 1;
	to = at_open(a, O_RDWR, &there);
	if (to < 0 || there.st_ino != number || is_anybodys(s, &there))
		return 1;
	if (sb.st_size + there.st_size > 0 && !locked && !is_locked_there(to))
		return 1;
	return set_as(to, &sb, &there) < 0 ||
	       copy_into(to, from, &sb, &there) < 0;
}

int in_place_write(const struct at *a, struct node *n, int fd,
		   const struct node *old)
{
	struct shared *s = a->s;
	bool empties, locked;
	ino_t number;

	{
		HOLD(&s->lock);
		empties = n->empties && old;
		locked = n->is_locked;
		number = old ? old->engine : 0;
	}
	if (!empties)
		return 1;
	locked = locked || locks_has(s, number);
	return write_into(s, a, fd, locked, number);
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
	if (!owned)
		return 0;
	/* Its number is another file's when that is gone, and the record is not
	 * to name that one after a power cut. */
	if (local_save(s, n) < 0)
		own_unlink_later(s, owned);
	else
		own_unlink(s, owned);
	return 0;
}
