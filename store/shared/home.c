/*
 * home.c - `format` is the last thing that is made, and appears at once: a
 * .ckptfs without it was never one, or had one taken away, which its nodes
 * tell. Of two who make one at the same time one is told that it is one.
 *
 * A node's lock is taken before anything is read or written of it. A daemon
 * whose node is forgotten while it comes has the lock of a file that is gone,
 * which it sees, and begins anew.
 */
#include "store/shared/home.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "store/base/dir.h"
#include "store/base/scope.h"
#include "store/base/sync.h"
#include "store/db/identity.h"
#include "store/shared/forget.h"
#include "store/shared/home_private.h"
#include "store/shared/lost.h"
#include "store/shared/pending.h"

#define HOME_MODE 0755 /* who looks may know the nodes */
#define OWN_MODE 0700
#define DEAD_AFTER_NS SHARED_DEAD_AFTER_NS
#define LOCK_TRIES_MAX 8 /* it was removed in between */
#define SHOWN_BYTES (SHARED_NODE_MAX + 64)
#define FORMAT_TMP SHARED_FORMAT_FILE "." /* and a UUID */

/* --- Make one ----------------------------------------------------------- */

static bool is_format_tmp(const char *name)
{
	return strncmp(name, FORMAT_TMP, strlen(FORMAT_TMP)) == 0;
}

/* May it lie in a .ckptfs that has no format yet? */
static int look_no_parts(void *arg, int homefd, const char *name)
{
	(void)arg;
	if (is_format_tmp(name))
		return 0;
	if (strcmp(name, SHARED_NODES_DIR) == 0 ||
	    strcmp(name, SHARED_LOST_DIR) == 0 ||
	    strcmp(name, SHARED_NEXT_DIR) == 0 ||
	    strcmp(name, SHARED_NEW_DIR) == 0)
		return dir_is_empty(homefd, name) ? 0 : -EUCLEAN;
	return -ENOTEMPTY;
}

/* 0: it may become one. */
static int look_unmade(const struct home_why *w, int homefd)
{
	char uuid[LAYOUT_UUID_BYTES];
	unsigned number = 0;
	int rc = home_format_read(homefd, &number, uuid);

	if (rc == 0)
		return home_refuse(w, -EEXIST,
				   "%s is a directory that nodes share "
				   "already; it was left as it is",
				   w->dir);
	if (rc != -ENOENT)
		return home_refuse_format(w, rc, number);
	rc = dir_each(homefd, ".", look_no_parts, NULL);
	if (rc == -EUCLEAN)
		return home_refuse(w, rc,
				   "%s/%s has nodes and no file '%s'; nothing "
				   "was changed: put that file back from a "
				   "copy",
				   w->dir, SHARED_HOME, SHARED_FORMAT_FILE);
	if (rc == -ENOTEMPTY)
		return home_refuse(w, -EINVAL,
				   "%s/%s is there and not from ckptfs, which "
				   "needs that name; nothing was changed",
				   w->dir, SHARED_HOME);
	if (rc < 0)
		return home_refuse(w, rc, "%s/%s: cannot be listed: %s", w->dir,
				   SHARED_HOME, strerror(-rc));
	return 0;
}

/* Its name is exclusive where DIR has links; else the last one has it. */
static int publish_format(int homefd, const char *tmp)
{
	if (linkat(homefd, tmp, homefd, SHARED_FORMAT_FILE, 0) == 0)
		return fsync(homefd) < 0 ? -errno : 0;
	if (errno == EEXIST || errno == ENOENT)
		return -errno;
	return dir_rename(homefd, tmp, SHARED_FORMAT_FILE);
}

static int remove_format_tmp(void *arg, int homefd, const char *name)
{
	(void)arg;
	if (is_format_tmp(name))
		(void)unlinkat(homefd, name, 0);
	return 0;
}

static int make_format(const struct home_why *w, int dirfd, int homefd)
{
	char tmp[sizeof(FORMAT_TMP) + LAYOUT_UUID_BYTES];
	char text[HOME_TEXT_BYTES_MAX], uuid[LAYOUT_UUID_BYTES];
	int rc = identity_make_uuid(uuid);

	if (rc == 0) {
		(void)snprintf(tmp, sizeof(tmp), FORMAT_TMP "%s", uuid);
		rc = home_text_put(homefd, tmp, text,
				   home_format_text(uuid, text), true);
	}
	/* Its name before its format: one that is not found is none. */
	if (rc == 0 && fsync(dirfd) < 0)
		rc = -errno;
	if (rc == 0)
		rc = publish_format(homefd, tmp);
	/* Another one was quicker, and has cleared up. */
	if (rc == -ENOENT && faccessat(homefd, SHARED_FORMAT_FILE, F_OK,
				       AT_SYMLINK_NOFOLLOW) == 0)
		rc = -EEXIST;
	if (rc == 0 || rc == -EEXIST)
		(void)dir_each(homefd, ".", remove_format_tmp, NULL);
	if (rc == -EEXIST)
		return home_refuse(w, rc,
				   "%s was made a directory that nodes share "
				   "at the same time; it was left as it is",
				   w->dir);
	if (rc < 0)
		return home_refuse(w, rc, "%s: cannot be made one: %s", w->dir,
				   strerror(-rc));
	return 0;
}

int shared_home_make(const char *dir, char *why, size_t why_size)
{
	const struct home_why w = { .dir = dir, .text = why, .size = why_size };
	SCOPED(scope_close) int dirfd = -1;
	SCOPED(scope_close) int homefd = -1;
	SCOPED(scope_close) int nodesfd = -1;
	SCOPED(scope_close) int newfd = -1;
	struct format store;
	int rc = home_open_dir(&w, &dirfd);

	if (rc < 0)
		return rc;
	if (format_read(dirfd, &store) == 0)
		return home_refuse(&w, -EINVAL,
				   "%s is a store; name the directory that "
				   "the nodes share",
				   dir);
	rc = home_make_part(&w, dirfd, SHARED_HOME, SHARED_HOME, HOME_MODE,
			    &homefd);
	if (rc == 0)
		rc = look_unmade(&w, homefd);
	if (rc == 0)
		rc = home_make_part(&w, homefd, SHARED_NODES_DIR,
				    SHARED_HOME "/" SHARED_NODES_DIR, HOME_MODE,
				    &nodesfd);
	if (rc == 0)
		rc = home_make_part(&w, homefd, SHARED_NEW_DIR,
				    SHARED_HOME "/" SHARED_NEW_DIR, HOME_MODE,
				    &newfd);
	return rc < 0 ? rc : make_format(&w, dirfd, homefd);
}

/* --- Be a node of it ---------------------------------------------------- */

struct opening {
	struct home_why why;
	const char *node, *store;
	bool rejoin;
	struct shared_home *home;
};

/* Below .ckptfs: PARENT/NODE. */
static int open_own(const struct opening *o, const char *parent, mode_t mode,
		    int *ret_fd)
{
	SCOPED(scope_close) int fd = -1;
	char shown[SHOWN_BYTES];
	int rc;

	(void)snprintf(shown, sizeof(shown), SHARED_HOME "/%s", parent);
	rc = home_make_part(&o->why, o->home->homefd, parent, shown, HOME_MODE,
			    &fd);
	if (rc < 0)
		return rc;
	(void)snprintf(shown, sizeof(shown), SHARED_HOME "/%s/%s", parent,
		       o->node);
	rc = home_make_part(&o->why, fd, o->node, shown, mode, ret_fd);
	if (rc == 0 && fsync(fd) < 0) {
		rc = home_refuse_call(&o->why, "make a directory durable");
		(void)close(*ret_fd);
		*ret_fd = -1;
	}
	return rc;
}

/* It was not removed, and another made in its place. */
static bool has_name(int dirfd, const char *name, int fd)
{
	struct stat a, b;

	return fstat(fd, &a) == 0 &&
	       fstatat(dirfd, name, &b, AT_SYMLINK_NOFOLLOW) == 0 &&
	       a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* Is this node's directory at its name? 1; 0: another one, or none; -errno. */
static int look_at_name(const struct shared_home *h)
{
	char path[SHOWN_BYTES];
	struct stat a, b;

	(void)snprintf(path, sizeof(path), SHARED_NODES_DIR "/%s", h->node);
	if (fstatat(h->homefd, path, &b, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (fstat(h->nodefd, &a) < 0)
		return -errno;
	return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

bool shared_home_answers(const struct shared_home *h)
{
	return look_at_name(h) == 1;
}

/*
 * That the name is not there alone says nothing: a client of CephFS that was
 * evicted may say so of all names.
 */
static bool is_forgotten(const struct shared_home *h)
{
	return look_at_name(h) == 0 &&
	       faccessat(h->homefd, SHARED_FORMAT_FILE, F_OK,
			 AT_SYMLINK_NOFOLLOW) == 0;
}

static int refuse_lock(const struct opening *o, int rc)
{
	if (rc == -EWOULDBLOCK)
		return home_refuse(&o->why, -EBUSY,
				   "another ckptfs has %s mounted as node %s; "
				   "unmount it first, or give this one another "
				   "name",
				   o->why.dir, o->node);
	return home_refuse(&o->why, rc,
			   "%s: files cannot be locked there (flock: %s), and "
			   "a node must be locked against a second one; "
			   "Lustre has a mount option for it, flock",
			   o->why.dir, strerror(-rc));
}

/*
 * The lock of a node that died may be held for minutes: by the servers of the
 * file system, which wait for it to come back. The caller has this node's store
 * for himself, and another store is refused as this node; so what is left to
 * fear is a copy of the store. Its daemon would write `alive`.
 */
static bool holder_is_dead(const struct opening *o)
{
	const struct timespec pause = { .tv_sec = 1 };
	int64_t end_ns = mono_ns() + DEAD_AFTER_NS, seen_ns;
	struct home_alive first, now;
	char uuid[LAYOUT_UUID_BYTES], boot[HOME_BOOT_BYTES];
	int nodefd = o->home->nodefd;

	if (home_store_read(nodefd, uuid) < 0 || strcmp(uuid, o->store) != 0 ||
	    home_alive_read(nodefd, &first, &seen_ns) < 0)
		return false;
	home_boot_id(boot);
	if (strcmp(boot, first.boot) == 0)
		return kill((pid_t)first.pid, 0) < 0 && errno == ESRCH;
	while (mono_ns() < end_ns) {
		(void)nanosleep(&pause, NULL);
		if (home_alive_read(nodefd, &now, &seen_ns) < 0 ||
		    now.time_ns != first.time_ns)
			return false;
	}
	return true;
}

static int take_lock(const struct opening *o)
{
	struct shared_home *h = o->home;

	for (int tries = 0; tries < LOCK_TRIES_MAX; tries++) {
		SCOPED(scope_close)
		int fd = openat(h->nodefd, SHARED_LOCK_FILE,
				O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW |
					O_NONBLOCK | O_NOCTTY,
				0600);
		int rc;

		if (fd < 0)
			return home_refuse_call(&o->why,
						"open the lock of this node");
		rc = shared_lock_in_time(fd);
		if (rc == -EWOULDBLOCK && holder_is_dead(o)) {
			h->is_unlocked = true;
			/* Or it is held by who forgets this node, and looks
			 * for that. */
			rc = home_alive_write(h->nodefd, h->since_ns);
			return rc < 0 ? refuse_lock(o, rc) : 0;
		}
		if (rc < 0)
			return refuse_lock(o, rc);
		if (has_name(h->nodefd, SHARED_LOCK_FILE, fd) &&
		    !is_forgotten(h)) {
			h->lockfd = fd;
			fd = -1;
			return 0;
		}
	}
	return home_refuse(&o->why, -EBUSY,
			   "%s: node %s is being forgotten; try again",
			   o->why.dir, o->node);
}

static int look_forgotten(void *arg, const struct lost_node *n)
{
	char path[sizeof(SHARED_LOST_DIR "/") + SHARED_LOST_MAX];
	struct opening *o = arg;
	uint64_t files, bytes;
	int rc;

	if (strcmp(n->store, o->store) != 0)
		return 0;
	o->home->joins = true;
	if (o->rejoin)
		return 0;
	(void)snprintf(path, sizeof(path), SHARED_LOST_DIR "/%s", n->dir);
	rc = pending_count(o->home->homefd, path, &files, &bytes);
	if (rc < 0)
		return rc;
	return home_refuse(
		&o->why, -ESHUTDOWN,
		"%s: this store was node %s there, and was forgotten "
		"(ckptctl forget-node); %llu files of it never came "
		"and are at their names, lost; with -o rejoin it "
		"joins again, and they are pending on it once more",
		o->why.dir, n->node, (unsigned long long)files);
}

static int refuse_lost(const struct opening *o, int rc)
{
	return home_refuse(&o->why, rc,
			   "%s: what is lost there cannot be looked at: %s",
			   o->why.dir, strerror(-rc));
}

static int look_whether_forgotten(struct opening *o)
{
	int rc = lost_each(o->home->homefd, look_forgotten, o);

	return rc < 0 && rc != -ESHUTDOWN ? refuse_lost(o, rc) : rc;
}

/* It was forgotten since it was looked for that: what was made goes. */
static int look_again(struct opening *o)
{
	struct shared_home *h = o->home;
	char uuid[LAYOUT_UUID_BYTES];
	int rc = look_whether_forgotten(o);

	if (rc == -ESHUTDOWN && home_store_read(h->nodefd, uuid) == -ENOENT)
		(void)shared_node_remove(h->homefd, o->node);
	return rc;
}

/* Links come back before anything is looked for by them. */
static int join(const struct opening *o)
{
	struct shared_home *h = o->home;
	int rc = 0;

	if (h->joins)
		rc = lost_join(h->homefd, o->store, h->ownfd, &h->joined);
	h->is_new = h->is_new || h->joins;
	return rc < 0 ? refuse_lost(o, rc) : 0;
}

int shared_home_joined(const struct shared_home *h, const char *store_uuid)
{
	return h->joins ? lost_remove(h->homefd, store_uuid) : 0;
}

/* A store has one name: the pending files that it has left say that one. */
static int look_same_store(void *arg, const struct shared_node *n)
{
	const struct opening *o = arg;

	if (strcmp(n->store, o->store) != 0 || strcmp(n->name, o->node) == 0)
		return 0;
	return home_refuse(&o->why, -EEXIST,
			   "%s: this store is node %s there, and what is "
			   "pending says so; give that name, or 'ckptctl "
			   "forget-node %s %s' if nothing of it is wanted",
			   o->why.dir, n->name, o->why.dir, n->name);
}

static int take_store(struct opening *o)
{
	struct shared_home *h = o->home;
	char uuid[LAYOUT_UUID_BYTES] = "";
	int rc = home_store_read(h->nodefd, uuid);

	if (rc == 0 && strcmp(uuid, o->store) == 0)
		return 0;
	if (rc == 0)
		return home_refuse(&o->why, -EEXIST,
				   "%s: node %s is another store (%s); give "
				   "this one another name, or 'ckptctl "
				   "forget-node %s %s' if that store is gone",
				   o->why.dir, o->node, uuid, o->why.dir,
				   o->node);
	if (rc == -EINVAL)
		return home_refuse(&o->why, -EUCLEAN,
				   "%s: the file '%s' of node %s is damaged, "
				   "so that it is not known whose node it is; "
				   "give another name, or 'ckptctl forget-node "
				   "%s %s'",
				   o->why.dir, SHARED_STORE_FILE, o->node,
				   o->why.dir, o->node);
	if (rc == -ENOENT)
		rc = shared_look_nodes(h->homefd, look_same_store, o);
	if (rc == -EEXIST)
		return rc;
	h->is_new = true;
	if (rc == 0)
		rc = home_store_write(h->nodefd, o->store);
	if (rc < 0)
		return home_refuse(&o->why, rc,
				   "%s: cannot say there which store node %s "
				   "is: %s",
				   o->why.dir, o->node, strerror(-rc));
	return 0;
}

/* In nodes/NODE, and nobody else's. */
static int open_part(const struct opening *o, const char *name, int *ret_fd)
{
	char shown[SHOWN_BYTES];

	(void)snprintf(shown, sizeof(shown),
		       SHARED_HOME "/" SHARED_NODES_DIR "/%s/%s", o->node,
		       name);
	return home_make_part(&o->why, o->home->nodefd, name, shown, OWN_MODE,
			      ret_fd);
}

static int open_parts(const struct opening *o)
{
	SCOPED(scope_close) int wantedfd = -1;
	struct shared_home *h = o->home;
	int rc = open_part(o, SHARED_WANTED_DIR, &wantedfd);

	if (rc == 0)
		rc = open_part(o, SHARED_OWN_DIR, &h->ownfd);
	if (rc == 0)
		rc = home_make_part(&o->why, h->homefd, SHARED_NEXT_DIR,
				    SHARED_HOME "/" SHARED_NEXT_DIR, OWN_MODE,
				    &h->nextfd);
	if (rc == 0)
		rc = open_own(o, SHARED_NEW_DIR, OWN_MODE, &h->newfd);
	return rc;
}

struct older {
	int homefd;
	int64_t now_ns; /* by DIR's clock */
	char name[SHARED_NODE_MAX + 1];
};

/*
 * 1: a daemon of the first form has that node, or one that just starts. Where
 * locks are each machine's own, it writes `alive`.
 */
static int look_older(void *arg, const struct shared_node *n)
{
	struct older *o = arg;
	char path[SHOWN_BYTES];

	(void)snprintf(path, sizeof(path),
		       SHARED_NODES_DIR "/%s/" SHARED_OWN_DIR, n->name);
	if (n->locked != SHARED_LOCKED &&
	    (!n->has_alive || o->now_ns - n->seen_ns > DEAD_AFTER_NS))
		return 0;
	if (faccessat(o->homefd, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
		return 0;
	(void)snprintf(o->name, sizeof(o->name), "%s", n->name);
	return 1;
}

static int refuse_format(const struct opening *o, const struct older *older)
{
	/* Who goes back to the older one is not to look like this one. */
	(void)unlinkat(o->home->nodefd, SHARED_OWN_DIR, AT_REMOVEDIR);
	return home_refuse(
		&o->why, -EBUSY,
		"%s: node %s has it mounted with an older ckptfs, or "
		"had so a few seconds ago, which cannot share it with "
		"this one; unmount it there first, and on all nodes",
		o->why.dir, older->name);
}

/* By a name that no other node uses. */
static int write_format(const struct shared_home *h)
{
	char tmp[sizeof(FORMAT_TMP) + LAYOUT_UUID_BYTES];
	char text[HOME_TEXT_BYTES_MAX], uuid[LAYOUT_UUID_BYTES];
	int rc = identity_make_uuid(uuid);

	if (rc < 0)
		return rc;
	(void)snprintf(tmp, sizeof(tmp), FORMAT_TMP "%s", uuid);
	rc = home_text_put(h->homefd, tmp, text,
			   home_format_text(h->uuid, text), true);
	return rc < 0 ? rc : dir_rename(h->homefd, tmp, SHARED_FORMAT_FILE);
}

/*
 * Daemons of the first form know no links, and would take what has one for
 * nobody's. So it is of this form when none of them is there, and from then on
 * none comes.
 */
static int take_format(const struct opening *o)
{
	const struct timespec pause = { .tv_nsec = LOCK_POLL_NS };
	int64_t deadline_ns = mono_ns() + LOCK_WAIT_NS;
	struct shared_home *h = o->home;
	struct older older = { .homefd = h->homefd };
	int rc;

	/* Who may not ask takes his own clock for DIR's. */
	if (shared_look_now(h->homefd, &older.now_ns) < 0)
		older.now_ns = wall_ns();
	while ((rc = shared_look_nodes(h->homefd, look_older, &older)) == 1) {
		if (mono_ns() > deadline_ns)
			return refuse_format(o, &older);
		(void)nanosleep(&pause, NULL);
	}
	if (rc == 0)
		rc = write_format(h);
	if (rc < 0)
		return home_refuse(&o->why, rc,
				   "%s: cannot say there that it is of a newer "
				   "format: %s",
				   o->why.dir, strerror(-rc));
	return 0;
}

int shared_home_open(const char *dir, const char *node, const char *store_uuid,
		     bool rejoin, struct shared_home *ret, char *why,
		     size_t why_size)
{
	SCOPED(shared_home_release) struct shared_home h = SHARED_HOME_NONE;
	struct opening o = { .why = { dir, why, why_size },
			     .node = node,
			     .store = store_uuid,
			     .rejoin = rejoin,
			     .home = &h };
	struct shared_look l;
	int rc;

	CHECK(strlen(store_uuid) == LAYOUT_UUID_BYTES - 1);
	if (!shared_node_is_name(node))
		return home_refuse(&o.why, -EINVAL,
				   "'%s' is no name for a node: 1 to %d of "
				   "A-Z a-z 0-9 . _ - that do not begin with a "
				   "dot",
				   node, SHARED_NODE_MAX);
	rc = shared_look_open(dir, &l, why, why_size);
	if (rc < 0)
		return rc;
	h.dirfd = l.dirfd;
	h.homefd = l.homefd;
	h.dev = l.dev;
	h.ino = l.ino;
	memcpy(h.uuid, l.uuid, sizeof(h.uuid));
	(void)snprintf(h.node, sizeof(h.node), "%s", node);
	h.since_ns = wall_ns();
	rc = look_whether_forgotten(&o);
	if (rc == 0)
		rc = open_own(&o, SHARED_NODES_DIR, HOME_MODE, &h.nodefd);
	if (rc == 0)
		rc = take_lock(&o);
	if (rc == 0)
		rc = look_again(&o);
	if (rc == 0)
		rc = take_store(&o);
	if (rc == 0)
		rc = open_parts(&o);
	if (rc == 0)
		rc = join(&o);
	if (rc == 0)
		rc = home_probe(&o.why, h.newfd);
	if (rc == 0 && l.format < HOME_FORMAT)
		rc = take_format(&o);
	if (rc < 0)
		return rc;
	*ret = h;
	h = SHARED_HOME_NONE;
	return 0;
}

void shared_home_release(struct shared_home *h)
{
	scope_close(&h->nextfd);
	scope_close(&h->newfd);
	scope_close(&h->ownfd);
	scope_close(&h->nodefd);
	scope_close(&h->homefd);
	scope_close(&h->dirfd);
	scope_close(&h->lockfd); /* last: now the next one may come */
	*h = SHARED_HOME_NONE;
}

int shared_home_alive(struct shared_home *h)
{
	return is_forgotten(h) ? -ESHUTDOWN
			       : home_alive_write(h->nodefd, h->since_ns);
}

int shared_home_nodes(const char *dir,
		      int (*fn)(void *arg, const struct shared_node *n),
		      void *arg)
{
	SCOPED(shared_look_release) struct shared_look l = SHARED_LOOK_NONE;
	char why[1];
	int rc = shared_look_open(dir, &l, why, sizeof(why));

	return rc < 0 ? rc : shared_look_nodes(l.homefd, fn, arg);
}
