/*
 * local_load.c - what the last daemon left: local files and their records, and
 * where their files in DIR are now.
 *
 * A daemon dies between a call to DIR and its record, or before the next one.
 * So a pending file is looked for at its name, in new/, and then everywhere, by
 * its trailer; and one that is not pending any more is complete, or somebody
 * else has changed it (upload.c asks). A file that was made and never durable
 * has no inode after a power cut: what DIR has of it goes, too.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/shared/shared_private.h"
#include "store/shared/walk.h"

/* So often one that the store does not know is looked at before that is said.
 */
#define UNKNOWN_LOOKS 4
/*
 * For so long searches of all of DIR have to find nothing of a file before it
 * is given up: longer than clients of DIR remember a listing (NFS: a minute).
 */
#define MISSED_NS (INT64_C(90) * 1000000000)

/* The node of a folder, by its path below DIR. A reference. */
static int find_dir(struct shared *s, char *path, struct node **ret)
{
	struct node *at, *next;
	char *save = NULL;

	{
		HOLD(&s->lock);
		at = node_ref_locked(s->root);
	}
	for (char *part = strtok_r(path, "/", &save); part;
	     part = strtok_r(NULL, "/", &save)) {
		SCOPED(scope_close) int fd = -1;
		struct stat sb;
		int rc = node_fd(s, at, &fd);

		if (rc == 0 && fstatat(fd, part, &sb, AT_SYMLINK_NOFOLLOW) < 0)
			rc = -errno;
		if (rc == 0 && !S_ISDIR(sb.st_mode))
			rc = -ENOTDIR;
		next = rc == 0 ? local_at(s, at, part, &sb) : NULL;
		node_put(s, at);
		if (!next)
			return rc < 0 ? rc : -ENOMEM;
		at = next;
	}
	*ret = at;
	return 0;
}

/* What was to be made in DIR when its bytes were lost: nobody has them. */
static void remove_lost(struct shared *s, uint64_t ino,
			const struct local_record *r, struct node *parent)
{
	SCOPED(scope_close) int dirfd = -1, fd = -1;
	struct trailer t;
	char name[64];

	if (r->flags & LOCAL_REPLACES) {
		(void)snprintf(name, sizeof(name), "%016" PRIx64, r->new_id);
		(void)unlinkat(s->home.newfd, name, 0);
		return;
	}
	if (!parent || node_fd(s, parent, &dirfd) < 0)
		return;
	fd = openat(dirfd, r->name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || pending_read(fd, &t) < 0 || t.number != ino ||
	    strcmp(t.uuid, s->st->uuid) != 0)
		return;
	if (unlinkat(dirfd, r->name, 0) == 0)
		log_warning("%s/%s/%s was made and was never durable: it is "
			    "gone, as after a power cut",
			    s->dir, r->dir, r->name);
}

/* Is the file in DIR, of which the record does not know the number, ours? */
static void adopt_engine(struct shared *s, struct node *n)
{
	SCOPED(node_use_end) struct node_use parent = { .s = s };
	SCOPED(scope_close) int dirfd = -1, fd = -1;
	struct trailer t;
	struct stat sb;
	char name[STORE_NAME_MAX + 1];

	{
		HOLD(&s->lock);
		if (n->replaces)
			node_new_name(n, name);
		else
			(void)snprintf(name, sizeof(name), "%s", n->name);
		parent.n = node_ref_locked(n->parent);
	}
	if (!n->replaces && node_fd(s, parent.n, &dirfd) < 0)
		return;
	fd = openat(n->replaces ? s->home.newfd : dirfd, name,
		    O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &sb) < 0 || !pending_is(s, &sb))
		return;
	if (pending_read(fd, &t) == 0 &&
	    (t.number != n->id || strcmp(t.uuid, s->st->uuid) != 0))
		return;
	{
		HOLD(&s->lock);
		node_engine_locked(s, n, sb.st_ino);
	}
	node_keep_fd(s, n, fd);
}

/* --- pending files that are not where they were ----------------------------
 */

/*
 * A pending file of this store that it knows nothing of. When the last mount
 * ended by itself that cannot be, and it stays; as does one whose bytes are
 * here after all, such as in a store whose database was made anew. But after a
 * power cut the number may be that of another file, which is where it should
 * be.
 */
static void remove_unknown(struct shared *s, int dirfd, const char *path,
			   const char *name, const struct stat *sb,
			   const struct trailer *t, bool is_used_again)
{
	struct stat now;
	struct attr a;

	if (!s->unclean ||
	    (!is_used_again &&
	     inode_attr_of(s->st->inodes, t->number, &a) == 0 && a.nlink > 0)) {
		/* Another file may get the number just now: the next searches.
		 */
		if (s->unclean && s->unknown_looks < UNKNOWN_LOOKS) {
			s->unknown_looks++;
			s->walk_failed = true;
		} else {
			log_error("%s/%s is pending, of this node, and the "
				  "store does not know it as such; it stays as "
				  "it is",
				  s->dir, path);
		}
		return;
	}
	if (fstatat(dirfd, name, &now, AT_SYMLINK_NOFOLLOW) < 0) {
		s->walk_failed = s->walk_failed || errno != ENOENT;
		return;
	}
	if (now.st_ino != sb->st_ino || !pending_is(s, &now))
		return;
	if (unlinkat(dirfd, name, 0) < 0)
		s->walk_failed = s->walk_failed || errno != ENOENT;
	else
		log_warning("%s/%s was made and was never durable: it is gone, "
			    "as after a power cut",
			    s->dir, path);
}

/*
 * A power cut may have taken the trailer, which is not synced: the file has the
 * number that our record says then, by whatever name. One that another node
 * makes just now gets its trailer in time. It may be anybody's else: nobody's
 * file is given up after this search.
 */
static bool is_bare_of_ours(struct shared *s, int fd, const struct stat *sb)
{
	struct trailer t;
	struct node *n;
	bool ours = false;

	s->walk_bare = true;
	{
		HOLD(&s->lock);
		TAILQ_FOREACH(n, &s->queue, queued)
		ours = ours || (n->engine == sb->st_ino && !n->replaces);
	}
	return ours && pending_read_soon(fd, &t) == -ENODATA;
}

/* Does it still replace something, from where it should be? */
static bool is_in_new(struct shared *s, struct node *n, const struct stat *sb)
{
	char name[LOCAL_NEW_BYTES];
	struct stat there;

	if (!node_replaces(s, n))
		return false;
	node_new_name(n, name);
	return fstatat(s->home.newfd, name, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
	       there.st_ino == sb->st_ino;
}

static int on_found(void *arg, int dirfd, const char *path, const char *name,
		    const struct stat *sb)
{
	SCOPED(node_use_end) struct node_use parent = { .s = arg };
	SCOPED(node_use_end) struct node_use u = { .s = arg };
	SCOPED(scope_close) int fd = -1, other = -1;
	SCOPED(scope_free) char *dir = NULL;
	struct shared *s = arg;
	bool told = false, is_used_again = false, is_linked;
	int rc;
	struct trailer t;

	if (!pending_is(s, sb))
		return s->stop;
	fd = openat(dirfd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0) { /* it may have gone since */
		s->walk_failed = s->walk_failed || errno != ENOENT;
		return 0;
	}
	rc = pending_read(fd, &t);
	if (rc < 0) {
		if (rc != -ENODATA && rc != -EUCLEAN)
			s->walk_failed = true;
		if (!is_bare_of_ours(s, fd, sb))
			return 0;
	} else if (strcmp(t.uuid, s->st->uuid) != 0) {
		return 0;
	} else {
		told = true;
	}
	dir = strndup(path, strlen(path) - strlen(name));
	if (!dir || find_dir(s, dir, &parent.n) < 0) {
		s->walk_failed = true;
		return 0;
	}
	u.n = told ? node_get(s, t.number) : NULL;
	if (u.n && !node_may_be(s, u.n, sb->st_ino)) {
		is_used_again = u.n->in && node_fd(s, u.n, &other) == 0;
		node_put(s, TAKE(u.n));
	}
	if (!u.n) /* its number is another one since: O_TRUNC under readers */
		u.n = local_at(s, parent.n, name, sb);
	if (!u.n) {
		s->walk_failed = true;
		return 0;
	}
	if (!u.n->in) {
		if (told)
			remove_unknown(s, dirfd, path, name, sb, &t,
				       is_used_again);
		return 0;
	}
	is_linked = is_in_new(s, u.n, sb);
	{
		HOLD(&s->lock);
		u.n->seen_walk = s->walks;
		if (is_linked) /* this is another name of it */
			return 0;
		if (u.n->state != NODE_PENDING)
			return 0;
		if (u.n->replaces) { /* a rename that did not happen */
			LIST_REMOVE(u.n, replacing);
			u.n->replaces = false;
		}
		node_place_locked(s, u.n, parent.n, name);
		node_engine_locked(s, u.n, sb->st_ino);
		if (u.n->due_ns > 0) /* at once; others went on without it */
			u.n->due_ns = mono_ns();
	}
	node_keep_fd(s, u.n, fd);
	(void)local_save(s, u.n);
	return 0;
}

static void on_unread(void *arg, const char *path, int rc)
{
	struct shared *s = arg;

	(void)path;
	(void)rc;
	s->walk_failed = true;
}

/*
 * A file that no upload finds, and no search for MISSED_NS: a reference, and
 * nobody completes it.
 */
static struct node *find_missed(struct shared *s)
{
	int64_t now = mono_ns();
	struct node *n;

	HOLD(&s->lock);
	TAILQ_FOREACH(n, &s->queue, queued)
	{
		if (n->error != -ESTALE || n->seen_walk == s->walks) {
			n->missed_ns = 0;
			continue;
		}
		if (n->missed_ns == 0)
			n->missed_ns = now;
		if (now - n->missed_ns >= MISSED_NS && !n->is_taken &&
		    n->state == NODE_PENDING && n->changing == 0 &&
		    n->renaming == 0) {
			n->renaming++;
			return node_ref_locked(n);
		}
	}
	return NULL;
}

/* Nobody has it in DIR any more, so nobody can be told that it is whole. */
static void drop_missed(struct shared *s)
{
	struct node *n;
	char path[4096];

	while ((n = find_missed(s))) {
		node_path(s, n, path, sizeof(path));
		log_warning("%s/%s is nowhere there: it was removed while this "
			    "node was away, or never made; it goes here, too",
			    s->dir, path);
		local_drop(s, n);
		node_put(s, n);
	}
}

void local_search(struct shared *s)
{
	const struct shared_walk w = { .found = on_found,
				       .unread = on_unread,
				       .arg = s };
	int rc;

	s->walks++;
	s->walk_failed = s->walk_bare = false;
	rc = shared_walk(s->home.dirfd, &w);
	if (rc < 0)
		log_warning("%s: pending files of this node that are not where "
			    "they were cannot be looked for: %s",
			    s->dir, strerror(-rc));
	else if (rc == 0 && !s->walk_failed && !s->walk_bare)
		drop_missed(s);
	HOLD(&s->lock);
	cond_broadcast(&s->idle);
	s->search = s->search || rc < 0 || s->walk_failed;
	cond_broadcast(&s->moved);
}

/*
 * Where DIR's file of a pending one is: at its name, in new/, or complete,
 * which a daemon that died had no time to write down.
 */
static void load_place(struct shared *s, struct node *n)
{
	SCOPED(scope_close) int fd = -1;
	struct stat sb;

	if (n->engine == 0)
		adopt_engine(s, n);
	if (node_fd(s, n, &fd) < 0) {
		HOLD(&s->lock);
		s->search = true;
		return;
	}
	if (fstat(fd, &sb) == 0)
		node_keep_fd(s, n, fd);
}

static bool is_not_there(int rc)
{
	return rc == -ENOENT || rc == -ENOTDIR || rc == -ESTALE;
}

static int load_one(struct shared *s, uint64_t ino,
		    const struct local_record *r)
{
	struct node *parent = NULL, *n;
	struct inode *in;
	struct stat sb;
	uint64_t place;
	bool staged;
	int found = find_dir(s, r->dir, &parent), rc;

	/* In the wrong place it could not be found any more. */
	if (found < 0 && !is_not_there(found))
		return found;
	rc = inode_get(s->st->inodes, ino, &in);

	if (rc == 0 &&
	    (!S_ISREG(inode_attr(in).mode) || inode_attr(in).nlink == 0)) {
		inode_put(s->st->inodes, in, 1);
		rc = -ENOENT;
	}
	if (rc == -ENOENT) {
		remove_lost(s, ino, r, found == 0 ? parent : NULL);
		node_put(s, parent);
		return local_forget_records(s, ino);
	}
	if (rc < 0) {
		node_put(s, parent);
		return rc;
	}
	if (inode_stat(s->st->inodes, in, &sb) < 0)
		sb.st_size = 0; /* it counts for nothing that is kept */
	n = node_new_local(s, in);
	if (!n) {
		node_put(s, parent);
		inode_put(s->st->inodes, in, 1);
		return -ENOMEM;
	}
	{
		HOLD(&s->lock);
		node_place_locked(s, n, parent ? parent : s->root, r->name);
		n->replaces = (r->flags & LOCAL_REPLACES) != 0;
		n->completing = (r->flags & LOCAL_COMPLETING) != 0;
		n->state = NODE_PENDING;
		if (r->flags & LOCAL_KEPT)
			queue_keep_locked(s, n, (uint64_t)sb.st_size);
		if (n->replaces)
			LIST_INSERT_HEAD(&s->replacing, n, replacing);
		n->new_id = r->new_id;
		n->kept_size = r->size;
		n->kept_mtime_ns = r->mtime_ns;
		n->kept_ctime_ns = r->ctime_ns;
		n->since_ns = mono_ns();
		node_engine_locked(s, n, (ino_t)r->engine);
	}
	node_put(s, parent);
	if (n->state == NODE_PENDING) {
		load_place(s, n);
		place = drain_place_of(s->st->drain, n->in);
		staged = place != 0;
		/* A file that was made, and is as it was made, has no place. */
		if (!staged &&
		    u64_load(s->st->kv, local_key(LOCAL_PLACE_KEY, ino),
			     &place) < 0)
			place = drain_draw_place(s->st->drain);
		HOLD(&s->lock);
		n->is_staged = staged;
		queue_add_locked(s, n, place);
	}
	node_put(s, n);
	return 0;
}

struct loading {
	struct shared *s;
	uint64_t *ino;
	struct local_record *r;
	size_t count, room;
};

static int collect(void *arg, struct kv_slice key, struct kv_slice value)
{
	struct loading *l = arg;
	char name[64];
	size_t skip = 1 + strlen(LOCAL_FILE_KEY), len = key.len - skip;

	if (key.len <= skip || len >= sizeof(name))
		return 0;
	if (l->count == l->room) {
		size_t room = l->room ? 2 * l->room : 64;
		uint64_t *ino = realloc(l->ino, room * sizeof(*ino));
		struct local_record *r;

		if (!ino)
			return -ENOMEM;
		l->ino = ino;
		r = realloc(l->r, room * sizeof(*r));
		if (!r)
			return -ENOMEM;
		l->r = r;
		l->room = room;
	}
	memcpy(name, (const char *)key.data + skip, len);
	name[len] = 0;
	l->ino[l->count] = strtoull(name, NULL, 16);
	if (local_record_decode(value, &l->r[l->count]) < 0) {
		log_error("local file %" PRIu64 ": its record is damaged; the "
			  "file is kept in the store",
			  l->ino[l->count]);
		return 0;
	}
	l->count++;
	return 0;
}

static int see_serial(void *arg, const char *name,
		      const struct dirent_rec *entry, uint64_t cookie)
{
	struct shared *s = arg;
	uint64_t serial = strtoull(name, NULL, 10);

	(void)entry;
	(void)cookie;
	if (s->next_local <= serial)
		s->next_local = serial + 1;
	return 0;
}

int local_load(struct shared *s, char *why, size_t why_size)
{
	struct loading l = { .s = s };
	int rc;

	s->next_local = 1;
	rc = names_list(s->st->names, ROOT_INO, 2, see_serial, s);
	if (rc == 0)
		rc = records_each(s->st->kv, key_meta(LOCAL_FILE_KEY), collect,
				  &l);
	for (size_t i = 0; i < l.count; i++) {
		if (rc == 0)
			rc = load_one(s, l.ino[i], &l.r[i]);
		local_record_release(&l.r[i]);
	}
	free(l.ino);
	free(l.r);
	if (rc < 0)
		(void)snprintf(
			why, why_size,
			"%s: what this node has of %s cannot be read: %s",
			s->st->path, s->dir, strerror(-rc));
	return rc;
}
