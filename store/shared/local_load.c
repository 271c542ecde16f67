/*
 * local_load.c - what the last daemon left: local files and their records, and
 * where their files in DIR are now.
 *
 * A daemon dies between a call to DIR and its record, or before the next one. A
 * pending file is found by its link in own/ (own.c), wherever it was moved; and
 * one that is not pending any more is complete, or somebody else has changed it
 * (upload.c asks). A file that was made and never durable has no inode after a
 * power cut: what DIR has of it goes, too.
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
#include "store/shared/pending.h"
#include "store/shared/shared_private.h"
#include "store/shared/walk.h"

#define NEW_NAME_BYTES 20

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

static bool is_not_there(int rc)
{
	return rc == -ENOENT || rc == -ENOTDIR || rc == -ESTALE;
}

/*
 * Is it the one that was being made here? Without a number it is of a create
 * that has not returned, ours or another node's: that one sees that it is gone,
 * and fails.
 */
static bool is_lost(struct shared *s, const struct local_record *r,
		    const struct stat *sb)
{
	if (!pending_is(s, sb))
		return false;
	return r->engine != 0 ? sb->st_ino == r->engine
			      : sb->st_nlink == 1 && sb->st_size == 0;
}

static int remove_lost_at(struct shared *s, struct node *parent,
			  const struct local_record *r)
{
	SCOPED(scope_close) int dirfd = -1, fd = -1;
	struct stat sb;
	int rc = node_fd(s, parent, &dirfd);

	if (rc < 0)
		return rc;
	fd = openat(dirfd, r->name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &sb) < 0)
		return -errno;
	if (!is_lost(s, r, &sb))
		return 0;
	rc = own_take_away(s, dirfd, r->name, sb.st_ino);
	if (rc == 0)
		log_warning("%s/%s/%s was made and was never durable: it is "
			    "gone, as after a power cut",
			    s->dir, r->dir, r->name);
	return rc;
}

/*
 * What was to be made in DIR when its bytes were lost: nobody has them. What
 * was to replace something is a ticket without a file here: load_ticket().
 */
static int remove_lost(struct shared *s, const struct local_record *r,
		       struct node *parent)
{
	int rc = 0;

	if (!(r->flags & LOCAL_REPLACES) && parent)
		rc = remove_lost_at(s, parent, r);
	return is_not_there(rc) ? 0 : rc;
}

/* --- pending files that are not where they were ----------------------------
 */

struct search {
	struct shared *s;
	bool is_alive; /* by the thread that says so: shared_say_alive() */
	ino_t folder; /* that is looked for, or 0 */
	struct node *found; /* it; a reference */
	bool failed; /* it could not look everywhere */
};

static void take_lost(struct search *w, int dirfd, const char *path,
		      const char *name, ino_t number)
{
	int rc = own_take_away(w->s, dirfd, name, number);

	if (rc < 0) /* it may have gone, or be another one */
		w->failed = w->failed || (rc != -ENOENT && rc != -EEXIST);
	else
		log_warning("%s/%s was made and was never durable: it is gone, "
			    "as after a power cut",
			    w->s->dir, path);
}

/* The upload of what has its link may be just taking that away. */
static int link_found(struct shared *s, struct node *n, int fd, ino_t number)
{
	{
		HOLD(&s->lock);
		if (n->has_link || n->state != NODE_PENDING)
			return 0;
	}
	return own_link(s, n, fd, number);
}

/* 1: it is the one that is looked for. */
static int on_folder(struct search *w, const char *path, ino_t number)
{
	SCOPED(scope_free) char *copy = NULL;

	if (number != w->folder)
		return w->s->stop;
	copy = strdup(path);
	if (!copy || find_dir(w->s, copy, &w->found) < 0)
		w->failed = true;
	return 1;
}

static int on_found(void *arg, int dirfd, const char *path, const char *name,
		    const struct stat *sb)
{
	struct search *w = arg;
	struct shared *s = w->s;
	SCOPED(node_use_end) struct node_use parent = { .s = s };
	SCOPED(node_use_end) struct node_use u = { .s = s };
	SCOPED(scope_close) int fd = -1;
	SCOPED(scope_free) char *dir = NULL;

	if (w->is_alive)
		(void)shared_say_alive(s);
	if (S_ISDIR(sb->st_mode))
		return on_folder(w, path, sb->st_ino);
	if (!pending_is(s, sb))
		return s->stop;
	if (own_is_lost(s, sb->st_ino)) {
		take_lost(w, dirfd, path, name, sb->st_ino);
		return 0;
	}
	u.n = node_of_engine(s, sb->st_ino);
	if (!u.n)
		return 0;
	fd = openat(dirfd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	dir = strndup(path, strlen(path) - strlen(name));
	/* One of the first form has no link yet. */
	if (fd < 0 || link_found(s, u.n, fd, sb->st_ino) < 0 || !dir ||
	    find_dir(s, dir, &parent.n) < 0) {
		w->failed = true;
		return 0;
	}
	{
		HOLD(&s->lock);
		/* What is a ticket goes to the name that is known. */
		if (u.n->state != NODE_PENDING || u.n->ticket)
			return 0;
		node_place_locked(s, u.n, parent.n, name);
		node_engine_locked(s, u.n, sb->st_ino);
		if (u.n->due_ns > 0) /* at once; others went on without it */
			u.n->due_ns = mono_ns();
	}
	(void)local_save(s, u.n);
	return 0;
}

static void on_unread(void *arg, const char *path, int rc)
{
	struct search *w = arg;

	(void)path;
	(void)rc;
	w->failed = true;
}

/* Once: -EAGAIN when it could not look everywhere. */
static int search(struct shared *s, struct search *search)
{
	const struct shared_walk w = { .found = on_found,
				       .unread = on_unread,
				       .arg = search };
	int rc;

	search->s = s;
	rc = shared_walk(s->home.dirfd, &w);
	return rc >= 0 && search->failed ? -EAGAIN : rc;
}

void local_search(struct shared *s)
{
	struct search all = { .is_alive = s->is_alive };
	int rc = search(s, &all), finished = 0;

	if (s->unfinished)
		finished = replace_finish(s);
	s->unfinished = finished < 0; /* only this thread has a say in it */

	if (rc < 0 && rc != -EAGAIN)
		log_warning("%s: pending files of this node that are not where "
			    "they were cannot be looked for: %s",
			    s->dir, strerror(-rc));
	own_settle_lost(s);
	HOLD(&s->lock);
	cond_broadcast(&s->idle);
	s->search = s->search || rc < 0 || s->lost_count > 0 || s->unfinished;
	cond_broadcast(&s->moved);
}

/*
 * Is DIR's file of n, which has no link, at this name: 1, 0 or -errno. What is
 * pending there may be, if nobody says that he has it, nor will: it has another
 * number where DIR was put back from a copy. has_dir: it is known that the name
 * is in this folder.
 */
static int find_named(struct shared *s, struct node *n, int dirfd,
		      const char *name, bool has_dir, int *ret_fd)
{
	SCOPED(scope_close)
	int fd = openat(dirfd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	char node[SHARED_NODE_MAX + 1];
	struct stat sb;
	int rc;

	if (fd < 0 || fstat(fd, &sb) < 0)
		return is_not_there(-errno) ? 0 : -errno;
	if (sb.st_ino != n->engine && (!has_dir || !pending_is(s, &sb)))
		return 0;
	/* The number of what was lost, and removed, may be another file's. */
	if (s->home.joins && !pending_is(s, &sb))
		return 0;
	if (pending_is(s, &sb)) {
		rc = pending_owner(s->home.homefd, sb.st_ino, node);
		if (rc < 0 || rc == PENDING_LOST ||
		    (rc > 0 && strcmp(node, s->home.node) != 0))
			return rc < 0 ? rc : 0;
		if (sb.st_ino != n->engine && !own_is_old(s, fd, false))
			return 0;
	}
	{
		HOLD(&s->lock);
		node_engine_locked(s, n, sb.st_ino);
	}
	*ret_fd = fd;
	fd = -1;
	return 1;
}

static int find_at_name(struct shared *s, struct node *n, bool has_dir,
			int *ret_fd)
{
	SCOPED(scope_close) int dirfd = -1;
	int rc = node_fd(s, n->parent, &dirfd);

	return rc < 0 ? rc : find_named(s, n, dirfd, n->name, has_dir, ret_fd);
}

/* By its link: 1, 0 or -errno. */
static int find_link(struct shared *s, struct node *n, int *ret_fd)
{
	SCOPED(scope_close) int fd = -1;
	struct stat sb;
	int rc = own_open(s, n->engine, &fd);

	if (rc == 0 && fstat(fd, &sb) < 0)
		rc = -errno;
	if (rc == 0) /* in a copy of the directory it has another number */
		rc = own_rename(s, n->engine, sb.st_ino);
	if (rc < 0)
		return rc == -ENOENT ? 0 : rc;
	*ret_fd = fd;
	fd = -1;
	HOLD(&s->lock);
	node_engine_locked(s, n, sb.st_ino);
	n->has_link = true;
	return 1;
}

/*
 * DIR's file of a pending one is found by its link. It has none when it is
 * whole and the daemon died before it could write that down; or somebody has
 * taken the link, and it is known by its name. 1: it is there; 0: nowhere.
 */
static int load_place(struct shared *s, struct node *n, bool has_dir)
{
	SCOPED(scope_close) int fd = -1, linked = -1;
	struct stat sb;
	int rc = find_link(s, n, &fd);

	if (rc == 0)
		rc = find_at_name(s, n, has_dir, &fd);
	if (rc <= 0)
		return rc;
	if (fstat(fd, &sb) < 0)
		return -errno;
	rc = pending_is(s, &sb) ? own_link(s, n, fd, sb.st_ino)
				: find_link(s, n, &linked);
	return rc < 0 ? rc : 1;
}

static int load_one(struct shared *s, uint64_t ino, struct local_record *r)
{
	struct node *parent = NULL, *n;
	struct inode *in;
	struct stat sb;
	bool is_made;
	int found = find_dir(s, r->dir, &parent), rc;

	/* In the wrong place it could not be found any more. */
	if (found < 0 && !is_not_there(found))
		return found;
	/* What is to replace something is not at its name, or is it already. */
	r->has_dir = found == 0 && !(r->flags & LOCAL_REPLACES);
	rc = inode_get(s->st->inodes, ino, &in);

	if (rc == 0 &&
	    (!S_ISREG(inode_attr(in).mode) || inode_attr(in).nlink == 0)) {
		inode_put(s->st->inodes, in, 1);
		rc = -ENOENT;
	}
	/* Without a number it was being made, and its create has not returned.
	 */
	is_made = r->engine != 0 || (r->flags & LOCAL_KEPT);
	if (rc == -ENOENT) {
		rc = remove_lost(s, r, found == 0 ? parent : NULL);
		node_put(s, parent);
		return rc < 0 ? rc : local_forget_records(s, ino);
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
	if (!is_made) {
		rc = remove_lost(s, r, found == 0 ? parent : NULL);
		if (rc == 0)
			local_drop(s, n);
		node_put(s, parent);
		node_put(s, n);
		return rc;
	}
	{
		HOLD(&s->lock);
		node_place_locked(s, n, parent ? parent : s->root, r->name);
		n->completing = (r->flags & LOCAL_COMPLETING) != 0;
		n->empties = (r->flags & LOCAL_EMPTIES) != 0;
		n->state = NODE_PENDING;
		if (r->flags & LOCAL_KEPT)
			queue_keep_locked(s, n, (uint64_t)sb.st_size);
		n->kept_size = r->size;
		n->kept_mtime_ns = r->mtime_ns;
		n->kept_ctime_ns = r->ctime_ns;
		n->since_ns = mono_ns();
		node_engine_locked(s, n, (ino_t)r->engine);
	}
	node_put(s, parent);
	node_put(s, n);
	return 0;
}

/*
 * What has neither a link nor its name any more, since the node was forgotten.
 * Otherwise it is kept, and its upload says that it is not found.
 */
static void drop_missing(struct shared *s, struct node *n)
{
	char path[4096];

	node_path(s, n, path, sizeof(path));
	log_warning(
		"%s/%s is nowhere there: it was removed, or replaced, while "
		"this node was forgotten (ckptctl forget-node); it goes "
		"here, too",
		s->dir, path);
	local_drop(s, n);
}

/* Where is it now? Of a file that is not whole. */
static int find_one(struct shared *s, uint64_t ino, struct local_record *r)
{
	SCOPED(node_use_end) struct node_use u = { 0 };
	int rc;

	if (node_use(s, ino, &u) < 0 || u.n->state != NODE_PENDING)
		return 0;
	rc = load_place(s, u.n, r->has_dir);
	r->is_found = rc > 0;
	r->is_moved = r->engine != 0 && u.n->engine != r->engine;
	return rc < 0 ? rc : 0;
}

/* It goes into the queue. */
static int queue_one(struct shared *s, uint64_t ino,
		     const struct local_record *r, bool all_seen)
{
	SCOPED(node_use_end) struct node_use u = { 0 };
	bool staged, is_found;
	uint64_t place;

	if (node_use(s, ino, &u) < 0 || u.n->state != NODE_PENDING)
		return 0;
	is_found = r->is_found || u.n->ticket;
	/* It is whole, and was moved since. */
	if (!is_found && all_seen && u.n->completing) {
		local_drop(s, u.n);
		return 0;
	}
	if (!is_found && all_seen && s->home.is_new) {
		if (!shared_home_answers(&s->home))
			return -EIO; /* it says so of all files, perhaps */
		drop_missing(s, u.n);
		return 0;
	}
	place = drain_place_of(s->st->drain, u.n->in);
	staged = place != 0;
	/* A file that was made, and is as it was made, has no place. */
	if (!staged &&
	    u64_load(s->st->kv, local_key(LOCAL_PLACE_KEY, ino), &place) < 0)
		place = drain_draw_place(s->st->drain);
	HOLD(&s->lock);
	u.n->is_staged = staged;
	queue_add_locked(s, u.n, place);
	return 0;
}

/* --- tickets of the last daemon ------------------------------------------- */

struct tickets {
	struct shared *s;
	bool may_lose; /* what no file here knows of is of none */
	bool is_copy; /* DIR was put back: all numbers are others */
};

/*
 * The folder that a ticket names by its number. As the record has it, if that
 * is still so; else it was renamed, or is another one in a copy of DIR.
 */
static int find_folder(struct shared *s, struct node *n, ino_t folder,
		       struct node **ret)
{
	struct search w = { .folder = folder };
	int rc;

	{
		HOLD(&s->lock);
		if (n->parent->engine == folder) {
			*ret = node_ref_locked(n->parent);
			return 0;
		}
	}
	if (s->root->engine == folder)
		w.found = node_get(s, ROOT_INO);
	rc = w.found ? 0 : search(s, &w);
	if (!w.found)
		return rc < 0 ? rc : -ENOENT;
	*ret = w.found;
	return 0;
}

/*
 * No folder has the number that its ticket says: it was removed, and the file
 * with it; but in a copy of DIR what it is to replace is where it was.
 */
static int move_ticket(struct shared *s, struct node *n, const char *name,
		       char *ticket)
{
	SCOPED(at_end) struct at to = { .s = s, .fd = -1, .name = name };
	struct stat sb;
	int rc;

	{
		HOLD(&s->lock);
		to.dir = node_ref_locked(n->parent);
		node_set_ticket_locked(s, n, ticket);
	}
	rc = node_fd(s, to.dir, &to.fd);
	if (rc == 0 && fstatat(to.fd, name, &sb, AT_SYMLINK_NOFOLLOW) < 0)
		rc = -errno;
	return rc < 0 ? rc : replace_another(s, n, &to);
}

static int drop_ticket(struct shared *s, struct node *n, char *ticket)
{
	char path[4096];

	{
		HOLD(&s->lock);
		node_set_ticket_locked(s, n, ticket);
	}
	node_path(s, n, path, sizeof(path));
	log_warning("%s/%s was to be replaced, and its folder is gone: the new "
		    "file goes, too",
		    s->dir, path);
	(void)replace_drop(s, n);
	return 0;
}

static int load_ticket_of(const struct tickets *load, struct node *n,
			  const struct ticket_left *t)
{
	struct shared *s = load->s;
	SCOPED(node_use_end) struct node_use parent = { .s = s };
	SCOPED(scope_free) char *ticket = strdup(t->path);
	int rc = -ENOMEM;

	if (ticket && load->is_copy)
		return move_ticket(s, n, t->name, TAKE(ticket));
	if (ticket)
		rc = find_folder(s, n, t->folder, &parent.n);
	if (rc == -ENOENT)
		return drop_ticket(s, n, TAKE(ticket));
	if (rc < 0) {
		log_error("%s: the folder in which '%s' is to be replaced is "
			  "not where it was, and cannot be looked for: %s",
			  s->dir, t->name, strerror(-rc));
		return rc;
	}
	HOLD(&s->lock);
	node_place_locked(s, n, parent.n, t->name);
	node_set_ticket_locked(s, n, TAKE(ticket));
	return 0;
}

static int load_ticket(void *arg, const struct ticket_left *t)
{
	const struct tickets *load = arg;
	SCOPED(node_use_end) struct node_use u = { .s = load->s };
	struct shared *s = load->s;
	uint64_t number = strtoull(strrchr(t->path, '.') + 1, NULL, 16);

	if (strcmp(t->node, s->home.node) != 0)
		return 0;
	if (number >= s->next_ticket)
		s->next_ticket = number + 1;
	if (t->kind == TICKET_OPEN || t->kind == TICKET_TAKEN)
		u.n = node_of_engine(s, t->st.st_ino);
	if (u.n)
		return load_ticket_of(load, u.n, t);
	if (ticket_is_to_finish(t)) {
		s->unfinished = true;
		return 0;
	}
	if (load->may_lose)
		return ticket_drop(s->home.nextfd, t->path);
	log_error("%s/" SHARED_HOME "/" SHARED_NEXT_DIR
		  "/%s is pending, of this node, and the store does not know "
		  "it; it stays as it is",
		  s->dir, t->path);
	return 0;
}

/* A daemon without tickets has it in new/, called by a number. */
static int move_from_new(struct shared *s, uint64_t ino,
			 const struct local_record *r)
{
	SCOPED(node_use_end) struct node_use u = { 0 };
	SCOPED(at_end) struct at from = { .s = s, .fd = -1 };
	char name[NEW_NAME_BYTES];
	struct stat sb;

	(void)snprintf(name, sizeof(name), "%016" PRIx64, r->new_id);
	if (!(r->flags & LOCAL_REPLACES) || r->new_id == 0 ||
	    node_use(s, ino, &u) < 0 || u.n->state != NODE_PENDING ||
	    u.n->ticket)
		return 0;
	if (fstatat(s->home.newfd, name, &sb, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : -errno;
	return sb.st_ino == u.n->engine
		       ? replace_from(s, u.n, s->home.newfd, name)
		       : 0;
}

/*
 * A store of the first form has no links, and others may have moved its files:
 * they are looked for, once. false: not everywhere.
 */
static bool take_over(struct shared *s)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	struct key k = key_meta(META_SHARED_OWN);
	struct search all = { 0 };

	if (record_find(s->st->kv, k) == 0)
		return true;
	if (search(s, &all) < 0)
		return false;
	record_mark(b, k);
	return kv_write(s->st->kv, b) == 0;
}

struct loading {
	struct shared *s;
	uint64_t *ino;
	struct local_record *r;
	size_t count, room;
	bool any_damaged;
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
		l->any_damaged = true;
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

int local_load(struct shared *s, bool was_rebuilt, bool *ret_all_known,
	       char *why, size_t why_size)
{
	struct tickets tickets = { .s = s };
	struct loading l = { .s = s };
	bool all_seen;
	int rc;

	s->next_local = 1;
	rc = names_list(s->st->names, ROOT_INO, 2, see_serial, s);
	if (rc == 0)
		rc = records_each(s->st->kv, key_meta(LOCAL_FILE_KEY), collect,
				  &l);
	for (size_t i = 0; rc == 0 && i < l.count; i++)
		rc = load_one(s, l.ino[i], &l.r[i]);
	*ret_all_known = !l.any_damaged;
	all_seen = rc == 0 && take_over(s);
	for (size_t i = 0; rc == 0 && i < l.count; i++) {
		rc = find_one(s, l.ino[i], &l.r[i]);
		tickets.is_copy = tickets.is_copy || l.r[i].is_moved;
	}
	tickets.may_lose = !l.any_damaged && !was_rebuilt;
	if (rc == 0)
		rc = tickets_each(s->home.nextfd, load_ticket, &tickets);
	s->first_ticket = s->next_ticket;
	s->search = s->search || s->unfinished;
	for (size_t i = 0; rc == 0 && i < l.count; i++)
		rc = move_from_new(s, l.ino[i], &l.r[i]);
	for (size_t i = 0; rc == 0 && i < l.count; i++)
		rc = queue_one(s, l.ino[i], &l.r[i], all_seen);
	for (size_t i = 0; i < l.count; i++)
		local_record_release(&l.r[i]);
	free(l.ino);
	free(l.r);
	if (rc < 0)
		(void)snprintf(
			why, why_size,
			"%s: what this node has of %s cannot be read: %s",
			s->st->path, s->dir, strerror(-rc));
	return rc;
}
