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
#include <inttypes.h>
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

static void name_of(ino_t number, char ret[OWN_NAME_BYTES])
{
	(void)snprintf(ret, OWN_NAME_BYTES, "%016" PRIx64, (uint64_t)number);
}

int own_link(struct shared *s, int fd, ino_t number)
{
	char name[OWN_NAME_BYTES];
	int rc;

	name_of(number, name);
	rc = dir_link(fd, s->home.ownfd, name);
	return rc == -EEXIST ? 0 : rc;
}

void own_unlink(struct shared *s, ino_t number)
{
	char name[OWN_NAME_BYTES];

	name_of(number, name);
	if (unlinkat(s->home.ownfd, name, 0) < 0 && errno != ENOENT)
		log_warning("%s/" SHARED_HOME "/" SHARED_NODES_DIR
			    "/%s/" SHARED_OWN_DIR
			    "/%s cannot be removed: %s; the next mount does it",
			    s->dir, s->home.node, name, strerror(errno));
}

int own_open(struct shared *s, ino_t number, int *ret_fd)
{
	SCOPED(scope_close) int fd = -1;
	char name[OWN_NAME_BYTES];
	struct stat sb;

	name_of(number, name);
	fd = openat(s->home.ownfd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &sb) < 0)
		return errno == ENOENT ? -ESTALE : -errno;
	if (sb.st_ino != number)
		return -ESTALE;
	*ret_fd = fd;
	fd = -1;
	return 0;
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

static int has_link(void *arg, int nodesfd, const char *node)
{
	const char *name = arg;
	char path[SHARED_NODE_MAX + 64];
	struct stat sb;

	(void)snprintf(path, sizeof(path), "%.*s/" SHARED_OWN_DIR "/%s",
		       SHARED_NODE_MAX, node, name);
	return fstatat(nodesfd, path, &sb, AT_SYMLINK_NOFOLLOW) == 0;
}

/* Has any node a link of it? 1, 0 or -errno. */
static int is_owned(struct shared *s, ino_t number)
{
	SCOPED(scope_close)
	int fd = openat(s->home.homefd, SHARED_NODES_DIR,
			O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	char name[OWN_NAME_BYTES];
	int rc = fd < 0 ? -errno : dir_ask_anew(fd);

	name_of(number, name);
	return rc < 0 ? rc : dir_each(fd, ".", has_link, name);
}

bool own_is_only_name(struct shared *s, int fd, const struct stat *sb)
{
	nlink_t links = sb->st_nlink, now;

	while (links > 1) {
		if (is_owned(s, sb->st_ino) == 1)
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

/*
 * Another node may put its file at the name in any moment, so that is moved to
 * where nobody else looks, and then seen.
 */
int own_take_away(struct shared *s, int dirfd, const char *name, ino_t number)
{
	char there[OWN_NAME_BYTES + 8];
	struct stat sb;

	(void)snprintf(there, sizeof(there), ".lost-%016" PRIx64,
		       (uint64_t)number);
	if (renameat(dirfd, name, s->home.newfd, there) < 0 ||
	    fstatat(s->home.newfd, there, &sb, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	/* Another one: back, unless a third has the name by now. */
	if (sb.st_ino != number &&
	    linkat(s->home.newfd, there, dirfd, name, 0) < 0 &&
	    errno != EEXIST) {
		log_error("%s/" SHARED_HOME "/" SHARED_NEW_DIR
			  "/%s/%s is '%s', and cannot be put back: %s",
			  s->dir, s->home.node, there, name, strerror(errno));
		return 0;
	}
	return unlinkat(s->home.newfd, there, 0) < 0 ? -errno : 0;
}

/* Does it have its link alone? Then that goes; false: or it could not be seen.
 */
static bool is_over(struct shared *s, ino_t number)
{
	SCOPED(scope_close) int fd = -1;
	nlink_t names;
	int rc = own_open(s, number, &fd);

	if (rc == 0)
		rc = own_count_names(fd, &names);
	if (rc == 0 && names == 0)
		own_unlink(s, number);
	return rc == -ESTALE || (rc == 0 && names == 0);
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
	bool is_unclean;
	size_t room; /* of s->lost */
};

/*
 * Has the store a file of this number, and knows nothing of it? So it is when
 * its database was made anew: then its bytes are here.
 */
static bool has_bytes(struct shared *s, const char *own)
{
	struct trailer t;
	struct stat sb;
	struct attr a;
	enum pending is;
	struct node *n;

	if (pending_look(s->home.ownfd, own, &is, &t, &sb) < 0 ||
	    is != PENDING_TOLD ||
	    inode_attr_of(s->st->inodes, t.number, &a) < 0 || a.nlink == 0)
		return false;
	n = node_get(s, t.number);
	node_put(s, n);
	return !n;
}

static int add_lost(struct load *l, const char *name, ino_t number)
{
	struct shared *s = l->s;
	int rc;

	if (!l->is_unclean || has_bytes(s, name)) {
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

	if (fstatat(fd, name, &sb, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : -errno;
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

int own_load(struct shared *s, bool is_unclean)
{
	struct load l = { .s = s, .is_unclean = is_unclean };
	int rc = dir_each(s->home.ownfd, ".", load_one, &l);

	s->search = s->search || s->lost_count > 0;
	return rc;
}
