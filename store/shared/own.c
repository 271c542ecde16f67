/*
 * own.c - which files of DIR are pending on this node: nodes/NODE/own/ has a
 * link of each, called by its number there.
 *
 * The link is there before the call that makes the file returns, and goes when
 * the file is whole, and durably so. Wherever others move the file, it is
 * opened by its link, and nobody has to look for it; and a daemon that starts
 * knows from one list what the last one had not completed. Its number is nobody
 * else's as long as it has the link.
 *
 * What has a link and no record here was made, and its making was never
 * durable: it is lost, as after a power cut on any file system, and nobody will
 * complete it. Its name is not known, so local_search() takes it away where it
 * meets it.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/dir.h"
#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/base/vec.h"
#include "store/shared/pending.h"
#include "store/shared/shared_private.h"

#define OWN_NAME_BYTES 24
/* A node makes a file and its link in two calls. */
#define LEFT_NS (INT64_C(60) * 1000000000)

static void name_of(ino_t number, char ret[OWN_NAME_BYTES])
{
	(void)snprintf(ret, OWN_NAME_BYTES, "%016" PRIx64, (uint64_t)number);
}

int own_link(struct shared *s, struct node *n, int fd, ino_t number)
{
	char name[OWN_NAME_BYTES];
	bool gone;
	int rc;

	{
		HOLD(&s->lock);
		if (s->is_forgotten)
			return -EIO;
	}
	name_of(number, name);
	rc = dir_link(fd, s->home.ownfd, name);
	if (rc < 0 && rc != -EEXIST)
		return rc;
	{
		HOLD(&s->lock);
		gone = n->state == NODE_GONE;
		n->has_link = !gone;
	}
	if (gone) /* nobody would take it away */
		own_unlink(s, number);
	return gone ? -ENOENT : 0;
}

int own_open(struct shared *s, ino_t number, int *ret_fd)
{
	char name[OWN_NAME_BYTES];
	int fd;

	name_of(number, name);
	fd = openat(s->home.ownfd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	*ret_fd = fd;
	return 0;
}

int own_rename(struct shared *s, ino_t from, ino_t to)
{
	char old[OWN_NAME_BYTES], fresh[OWN_NAME_BYTES];

	if (from == to)
		return 0;
	name_of(from, old);
	name_of(to, fresh);
	return renameat(s->home.ownfd, old, s->home.ownfd, fresh) < 0 ? -errno
								      : 0;
}

/* --- links that go -------------------------------------------------------- */

ino_t own_take_locked(struct node *n)
{
	bool had = n->has_link;

	n->has_link = false;
	return had ? n->engine : 0;
}

static int try_unlink(struct shared *s, ino_t number)
{
	char name[OWN_NAME_BYTES];

	name_of(number, name);
	return unlinkat(s->home.ownfd, name, 0) < 0 && errno != ENOENT ? -errno
								       : 0;
}

void own_unlink_later(struct shared *s, ino_t number)
{
	HOLD(&s->lock);
	/* Without memory it stays until the next start. */
	if (vec_grow(&s->unlinks, s->unlink_count, &s->unlink_room,
		     sizeof(*s->unlinks)) == 0)
		s->unlinks[s->unlink_count++] = number;
}

void own_unlink(struct shared *s, ino_t number)
{
	if (try_unlink(s, number) < 0)
		own_unlink_later(s, number);
}

void own_flush(struct shared *s)
{
	SCOPED(scope_free) ino_t *numbers = NULL;
	size_t count;

	{
		HOLD(&s->lock);
		numbers = TAKE(s->unlinks);
		count = s->unlink_count;
		s->unlink_count = s->unlink_room = 0;
	}
	if (count > 0 && kv_sync(s->st->kv) < 0) {
		for (size_t i = 0; i < count; i++)
			own_unlink_later(s, numbers[i]);
		return;
	}
	for (size_t i = 0; i < count; i++)
		own_unlink(s, numbers[i]);
}

/* --- how many names a file has -------------------------------------------- */

/* As it is now, whatever a client of DIR remembers. */
static int count_links(int fd, nlink_t *ret)
{
	struct statx sx;

	if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_NLINK,
		  &sx) < 0)
		return errno == ENOENT ? -ESTALE : -errno;
	*ret = sx.stx_nlink;
	return 0;
}

int own_count_names(int fd, nlink_t *ret)
{
	nlink_t links;
	int rc = count_links(fd, &links);

	if (rc == 0)
		*ret = links > 0 ? links - 1 : 0;
	return rc;
}

bool own_is_only_name(struct shared *s, int fd, const struct stat *sb)
{
	nlink_t links = sb->st_nlink, now = 0;
	char node[SHARED_NODE_MAX + 1];

	while (links > 1) {
		if (pending_owner(s->home.homefd, sb->st_ino, node) > 0)
			return links == 2;
		/* None was found: or it went before it was looked for. */
		if (count_links(fd, &now) < 0 || now == links)
			return false;
		links = now;
	}
	return true;
}

/* --- what is lost --------------------------------------------------------- */

bool own_is_lost(struct shared *s, ino_t number)
{
	HOLD(&s->lock);
	for (size_t i = 0; i < s->lost_count; i++)
		if (s->lost[i] == number)
			return true;
	return false;
}

#define ASIDE ".lost-" /* and the number of the file that is to go */

static void aside_of(ino_t number, char ret[OWN_NAME_BYTES + 8])
{
	(void)snprintf(ret, OWN_NAME_BYTES + 8, ASIDE "%016" PRIx64,
		       (uint64_t)number);
}

/* What was moved there goes, if it is this file. -EEXIST: it is another one. */
static int drop_aside(struct shared *s, ino_t number)
{
	char there[OWN_NAME_BYTES + 8];
	struct stat sb;

	aside_of(number, there);
	if (fstatat(s->home.newfd, there, &sb, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (sb.st_ino != number)
		return -EEXIST;
	return unlinkat(s->home.newfd, there, 0) < 0 ? -errno : 0;
}

void own_sweep_aside(struct shared *s, const char *name)
{
	if (strncmp(name, ASIDE, strlen(ASIDE)) == 0)
		(void)drop_aside(
			s, (ino_t)strtoull(name + strlen(ASIDE), NULL, 16));
}

/* Back to the name, unless a third has it by now. */
static int put_back(struct shared *s, const char *there, int dirfd,
		    const char *name)
{
	if (renameat2(s->home.newfd, there, dirfd, name, RENAME_NOREPLACE) == 0)
		return 0;
	if (errno != EEXIST &&
	    linkat(s->home.newfd, there, dirfd, name, 0) < 0 && errno != EEXIST)
		return -errno;
	return unlinkat(s->home.newfd, there, 0) < 0 ? -errno : 0;
}

/*
 * Another node may put its file at the name in any moment, so that is moved to
 * where nobody else looks, and then seen.
 */
int own_take_away(struct shared *s, int dirfd, const char *name, ino_t number)
{
	char there[OWN_NAME_BYTES + 8];
	int rc = drop_aside(s, number);

	if (rc < 0)
		return rc;
	aside_of(number, there);
	if (renameat(dirfd, name, s->home.newfd, there) < 0)
		return -errno;
	rc = drop_aside(s, number);
	if (rc != -EEXIST)
		return rc;
	rc = put_back(s, there, dirfd, name);
	if (rc < 0)
		log_error("%s/" SHARED_HOME "/" SHARED_NEW_DIR
			  "/%s/%s is '%s' of a user, and cannot be put back: "
			  "%s; move it there",
			  s->dir, s->home.node, there, name, strerror(-rc));
	return -EEXIST;
}

struct age {
	int64_t ctime_ns;
	bool seen;
};

/* 1: it may know of the file. */
static int may_know(void *arg, int nodesfd, const char *node)
{
	const struct age *a = arg;
	char path[SHARED_NODE_MAX + 64];
	struct stat sb;

	if (!shared_node_is_name(node))
		return 0;
	(void)snprintf(path, sizeof(path), "%s/" SHARED_OWN_DIR, node);
	if (fstatat(nodesfd, path, &sb, AT_SYMLINK_NOFOLLOW) < 0)
		return 1; /* of the first form, or who knows? */
	(void)snprintf(path, sizeof(path), "%s/" SHARED_ALIVE_FILE, node);
	return a->seen &&
	       (fstatat(nodesfd, path, &sb, AT_SYMLINK_NOFOLLOW) < 0 ||
		io_ns(&sb.st_mtim) < a->ctime_ns);
}

bool own_is_old(struct shared *s, int fd, bool seen)
{
	struct age a = { .seen = seen };
	struct statx sx;
	int64_t now_ns;

	if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_CTIME,
		  &sx) < 0 ||
	    shared_look_now(s->home.homefd, &now_ns) < 0)
		return false;
	a.ctime_ns = io_ns(&(struct timespec){ sx.stx_ctime.tv_sec,
					       sx.stx_ctime.tv_nsec });
	return now_ns - a.ctime_ns > LEFT_NS &&
	       dir_each(s->home.homefd, SHARED_NODES_DIR, may_know, &a) == 0;
}

/* As it is now: empty, of one name, and nobody's? */
static bool is_left(struct shared *s, int fd, ino_t *ret_number)
{
	char node[SHARED_NODE_MAX + 1];
	struct statx sx;

	if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC,
		  STATX_BASIC_STATS, &sx) < 0 ||
	    sx.stx_mode != (S_IFREG | pending_mode(s)) || sx.stx_nlink != 1 ||
	    sx.stx_size != 0)
		return false;
	*ret_number = (ino_t)sx.stx_ino;
	return own_is_old(s, fd, true) &&
	       pending_owner(s->home.homefd, *ret_number, node) == 0;
}

bool own_take_left(struct shared *s, int dirfd, const char *name)
{
	SCOPED(scope_close)
	int fd = openat(dirfd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	ino_t number;

	if (fd < 0 || !is_left(s, fd, &number) ||
	    own_take_away(s, dirfd, name, number) < 0)
		return false;
	log_warning("%s: %s was being made by a node that died, and no node "
		    "has it: it is gone",
		    s->dir, name);
	return true;
}

/* Does it have its link alone? Then that goes; false: or it could not be seen.
 */
static bool is_over(struct shared *s, ino_t number)
{
	SCOPED(scope_close) int fd = -1;
	nlink_t names;
	int rc;

	(void)drop_aside(s, number); /* what failed after its move */
	rc = own_open(s, number, &fd);
	if (rc == 0)
		rc = own_count_names(fd, &names);
	if (rc == 0 && names == 0)
		rc = try_unlink(s, number) < 0 ? -EIO : -ENOENT;
	return rc == -ENOENT;
}

void own_settle_lost(struct shared *s)
{
	size_t i = 0;

	while (i < s->lost_count) { /* only this thread has a say in it now */
		bool over = is_over(s, s->lost[i]);

		HOLD(&s->lock);
		if (over)
			s->lost[i] = s->lost[--s->lost_count];
		else
			i++;
	}
}

/* --- at the start --------------------------------------------------------- */

struct load {
	struct shared *s;
	bool may_lose;
	size_t room; /* of s->lost */
};

static int add_lost(struct load *l, const char *name, ino_t number)
{
	struct shared *s = l->s;
	int rc;

	if (!l->may_lose) {
		log_error(
			"%s/" SHARED_HOME "/" SHARED_NODES_DIR
			"/%s/" SHARED_OWN_DIR
			"/%s is pending, of this node, and the store does not "
			"know it as such; it stays as it is",
			s->dir, s->home.node, name);
		return 0;
	}
	rc = vec_grow(&s->lost, s->lost_count, &l->room, sizeof(*s->lost));
	if (rc == 0)
		s->lost[s->lost_count++] = number;
	return rc;
}

static int load_one(void *arg, int fd, const char *name)
{
	struct load *l = arg;
	struct stat sb;
	struct node *n;
	int rc;

	if (fstatat(fd, name, &sb, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : -errno;
	rc = own_rename(l->s, (ino_t)strtoull(name, NULL, 16), sb.st_ino);
	if (rc < 0)
		return rc == -ENOENT ? 0 : rc;
	n = node_of_engine(l->s, sb.st_ino);
	node_put(l->s, n);
	if (n)
		return 0;
	/* It was completed, or removed, when the last daemon ended. */
	if (!pending_is(l->s, &sb) || sb.st_nlink == 1) {
		(void)unlinkat(fd, name, 0);
		return 0;
	}
	return add_lost(l, name, sb.st_ino);
}

int own_load(struct shared *s, bool may_lose)
{
	struct load l = { .s = s, .may_lose = may_lose };
	int rc = dir_each(s->home.ownfd, ".", load_one, &l);

	s->search = s->search || s->lost_count > 0;
	return rc;
}
