/*
 * lost.c - a directory in lost/ is a node's as it was, lock and all, so that
 * moving it is one rename, and who dies before or after it leaves nothing half
 * done.
 */
#include "store/shared/lost.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/dir.h"
#include "store/base/scope.h"
#include "store/db/identity.h"
#include "store/shared/forget.h"
#include "store/shared/pending.h"

#define DIR_FLAGS (O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)
#define LOST_MODE 0755 /* as nodes/ */
#define PATH_BYTES \
	(sizeof(SHARED_LOST_DIR "/" SHARED_OWN_DIR) + SHARED_LOST_MAX + 1)

/* --- to lost/ ------------------------------------------------------------- */

static int make_lost(int homefd)
{
	if (mkdirat(homefd, SHARED_LOST_DIR, 0700) < 0)
		return errno == EEXIST ? 0 : -errno;
	/* Whatever umask and ACLs made of it. */
	return fchmodat(homefd, SHARED_LOST_DIR, LOST_MODE, 0) < 0 ? -errno : 0;
}

static int sync_part(int homefd, const char *path)
{
	SCOPED(scope_close) int fd = openat(homefd, path, DIR_FLAGS);

	return fd < 0 || fsync(fd) < 0 ? -errno : 0;
}

static int move_node(int homefd, const char *node, char to[PATH_BYTES])
{
	char from[PATH_BYTES], uuid[LAYOUT_UUID_BYTES];
	int rc = make_lost(homefd);

	if (rc == 0)
		rc = identity_make_uuid(uuid);
	if (rc < 0)
		return rc;
	(void)snprintf(from, sizeof(from), SHARED_NODES_DIR "/%s", node);
	(void)snprintf(to, PATH_BYTES, SHARED_LOST_DIR "/%s.%s", node, uuid);
	if (renameat(homefd, from, homefd, to) < 0)
		return -errno;
	rc = sync_part(homefd, SHARED_LOST_DIR);
	return rc < 0 ? rc : sync_part(homefd, SHARED_NODES_DIR);
}

/* --- what lies there ------------------------------------------------------ */

struct each {
	int (*fn)(void *arg, const struct lost_node *n);
	void *arg;
};

static int look_each(void *arg, int lostfd, const char *name)
{
	SCOPED(scope_close) int fd = -1;
	const struct each *e = arg;
	struct lost_node n = { .dir = "" };
	struct home_alive alive;
	int rc;

	if (!shared_lost_node(name, n.node))
		return 0;
	fd = openat(lostfd, name, DIR_FLAGS);
	if (fd < 0)
		return errno == ENOENT || errno == ENOTDIR || errno == ELOOP
			       ? 0
			       : -errno;
	(void)snprintf(n.dir, sizeof(n.dir), "%s", name);
	rc = home_store_read(fd, n.store);
	if (rc == -ESTALE) /* it joins again just now */
		return 0;
	if (rc < 0 && rc != -ENOENT && rc != -EINVAL)
		return rc;
	if (home_alive_read(fd, &alive, &n.seen_ns) < 0)
		n.seen_ns = 0;
	return e->fn(e->arg, &n);
}

int lost_each(int homefd, int (*fn)(void *arg, const struct lost_node *n),
	      void *arg)
{
	struct each e = { .fn = fn, .arg = arg };
	int rc = dir_each(homefd, SHARED_LOST_DIR, look_each, &e);

	return rc == -ENOENT ? 0 : rc; /* no node was ever forgotten */
}

/* --- links ---------------------------------------------------------------- */

/* As it is now: is it pending, by a name that a user gave it? */
static int has_name(int fd, const char *name)
{
	struct statx sx;

	if (statx(fd, name, AT_SYMLINK_NOFOLLOW | AT_STATX_FORCE_SYNC,
		  STATX_BASIC_STATS, &sx) < 0)
		return -errno;
	return S_ISREG(sx.stx_mode) && (sx.stx_mode & S_ISVTX) &&
	       sx.stx_nlink > 1;
}

/* While it is there each look for an owner asks it, too. */
static void remove_if_empty(int homefd)
{
	(void)unlinkat(homefd, SHARED_LOST_DIR, AT_REMOVEDIR);
}

struct joining {
	int homefd;
	const char *store; /* NULL: of all */
	int ownfd; /* -1: what has a name stays */
	uint64_t joined;
};

static int settle_link(void *arg, int fd, const char *name)
{
	struct joining *j = arg;
	int rc = has_name(fd, name);

	if (rc == 0 && unlinkat(fd, name, 0) < 0)
		rc = -errno;
	if (rc > 0 && j->ownfd >= 0) {
		rc = renameat(fd, name, j->ownfd, name) < 0 ? -errno : 0;
		j->joined += rc == 0;
	}
	return rc < 0 && rc != -ENOENT ? rc : 0;
}

static int settle_node(void *arg, const struct lost_node *n)
{
	struct joining *j = arg;
	char path[PATH_BYTES];
	int rc;

	if (j->store && strcmp(n->store, j->store) != 0)
		return 0;
	(void)snprintf(path, sizeof(path),
		       SHARED_LOST_DIR "/%s/" SHARED_OWN_DIR, n->dir);
	rc = dir_each(j->homefd, path, settle_link, j);
	return rc == -ENOENT ? 0 : rc; /* of the first form */
}

int lost_join(int homefd, const char *store, int ownfd, uint64_t *ret)
{
	struct joining j = { .homefd = homefd, .store = store, .ownfd = ownfd };
	int rc = lost_each(homefd, settle_node, &j);

	if (rc == 0 && fsync(ownfd) < 0)
		rc = -errno;
	if (rc == 0)
		*ret = j.joined;
	return rc;
}

/*
 * Links of files that nobody has a name of any more keep their bytes: they go.
 * What cannot be looked at stays until the next time.
 */
static void sweep(int homefd)
{
	struct joining j = { .homefd = homefd, .ownfd = -1 };

	(void)lost_each(homefd, settle_node, &j);
	remove_if_empty(homefd);
}

static int remove_node(void *arg, const struct lost_node *n)
{
	const struct joining *j = arg;

	if (strcmp(n->store, j->store) != 0)
		return 0;
	return shared_node_remove_dir(j->homefd, SHARED_LOST_DIR, n->dir);
}

int lost_remove(int homefd, const char *store)
{
	struct joining j = { .homefd = homefd, .store = store };
	int rc = lost_each(homefd, remove_node, &j);

	remove_if_empty(homefd);
	return rc;
}

/* --- all of it ------------------------------------------------------------ */

int lost_put(int homefd, const char *node, bool has_more, bool *ret_is_lost)
{
	char path[PATH_BYTES];
	uint64_t files = 0, bytes;
	/* First: when it is moved its name is anybody's. */
	int rc = shared_node_remove_dir(homefd, SHARED_NEW_DIR, node);

	if (rc == 0)
		rc = move_node(homefd, node, path);
	if (rc == 0)
		rc = pending_count(homefd, path, &files, &bytes);
	if (rc < 0)
		return rc;
	*ret_is_lost = has_more || files > 0;
	if (!*ret_is_lost)
		rc = shared_node_remove_dir(homefd, SHARED_LOST_DIR,
					    path + strlen(SHARED_LOST_DIR "/"));
	sweep(homefd);
	return rc;
}
