/*
 * shared.c - the shared directory of one mount: opened, started, ended; and how
 * files of it are opened, whose bytes are not here.
 *
 * A store belongs to one shared directory, for good: what is pending there can
 * be completed by it alone. So one that has files of its own is refused, and
 * one that belongs to DIR is not mounted without it.
 */
#include "store/shared/shared.h"

#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "store/base/dir.h"
#include "store/base/io.h"
#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/file/file.h"
#include "store/guard/guard.h"
#include "store/shared/pending.h"
#include "store/shared/shared_private.h"

#define META_SHARED_UUID "shared.uuid"
#define META_SHARED_MOUNTED "shared.mounted"
/* Others may replace a file this often while it is opened. */
#define OPEN_TRIES 16
#define ALIVE_PAUSE_NS (INT64_C(500) * 1000000)
/* What a node without pending files finds there came too late. */
#define WANTED_PERIOD_NS (INT64_C(10) * 1000000000)
#define DIRECT_GLOB_BYTES 1024
#define SEARCH_PERIOD_NS (INT64_C(10) * 1000000000)

/* --- the beginning and the end -------------------------------------------- */

bool shared_has(struct store *st)
{
	return record_find(st->kv, key_meta(META_SHARED_UUID)) == 0;
}

static int is_any(void *arg, const char *name, const struct dirent_rec *entry,
		  uint64_t cookie)
{
	(void)arg;
	(void)name;
	(void)entry;
	(void)cookie;
	return 1;
}

/* The store is DIR's, or becomes it. */
static int bind_store(struct shared *s, char *why, size_t why_size)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	SCOPED(scope_free) void *value = NULL;
	struct key k = key_meta(META_SHARED_UUID);
	struct store *st = s->st;
	size_t len;
	int rc = record_load(st->kv, k, &value, &len);

	if (rc == 0 && (len != strlen(s->home.uuid) ||
			memcmp(value, s->home.uuid, len) != 0)) {
		(void)snprintf(why, why_size,
			       "%s: belongs to another shared directory (%.*s) "
			       "than %s (%s)",
			       st->path, (int)len, (const char *)value, s->dir,
			       s->home.uuid);
		return -EINVAL;
	}
	if (rc != -ENOENT)
		return rc;
	rc = names_list(st->names, ROOT_INO, 2, is_any, NULL);
	if (rc == 1) {
		(void)snprintf(why, why_size,
			       "%s: has files of its own, which nobody would "
			       "see with shared=; copy them to %s through a "
			       "mount of another store",
			       st->path, s->dir);
		return -EINVAL;
	}
	if (rc < 0)
		return rc;
	record_save(b, k, s->home.uuid, strlen(s->home.uuid));
	record_mark(b, key_meta(META_SHARED_OWN));
	rc = kv_write(st->kv, b);
	return rc < 0 ? rc : kv_sync(st->kv);
}

/* Noted while it is mounted, and gone when it has ended. */
static int note_mounted(struct shared *s, bool mounted)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	struct key k = key_meta(META_SHARED_MOUNTED);
	int rc;

	if (mounted)
		record_mark(b, k);
	else
		record_delete(b, k);
	rc = kv_write(s->st->kv, b);
	return rc < 0 ? rc : kv_sync(s->st->kv);
}

/* What its database does not know then may have its bytes here all the same. */
static bool was_rebuilt(struct shared *s)
{
	return record_find(s->st->kv, key_meta(META_SHARED_REBUILT)) == 0;
}

/* The root's node. */
static int make_root(struct shared *s)
{
	struct node *n = calloc(1, sizeof(*n));
	struct stat sb;

	if (!n)
		return -ENOMEM;
	n->id = ROOT_INO;
	n->fd = -1;
	n->last = TRACKER_LAST_NONE;
	n->refs = 1;
	n->type = S_IFDIR;
	if (fstat(s->home.dirfd, &sb) < 0) {
		free(n);
		return -errno;
	}
	s->dev = sb.st_dev;
	s->root = n;
	n->fd = node_reopen(s->home.dirfd, O_PATH | O_DIRECTORY);
	if (n->fd < 0)
		return n->fd;
	HOLD(&s->lock);
	node_insert_locked(s, n, sb.st_ino);
	return 0;
}

/* What a daemon that died has moved aside, or an older one has left. */
static int sweep_new(void *arg, int fd, const char *name)
{
	struct shared *s = arg;

	own_sweep_aside(s, name);
	if (strlen(name) == 16 && unlinkat(fd, name, 0) == 0)
		log_info("%s: " SHARED_HOME "/" SHARED_NEW_DIR
			 "/%s/%s was of no file any more",
			 s->dir, s->home.node, name);
	return 0;
}

/*
 * What is not there any more is not known here any more, either, and durably
 * so: from now on the next start takes what it does not find for an error.
 */
static int end_joining(struct shared *s)
{
	int rc = shared_home_answers(&s->home) ? kv_sync(s->st->kv) : -EIO;

	if (rc == 0)
		rc = shared_home_joined(&s->home, s->st->uuid);
	if (rc == 0)
		log_info("%s: node %s was forgotten, and joins again; %" PRIu64
			 " files that were lost are pending on it",
			 s->dir, s->home.node, s->home.joined);
	return rc;
}

int shared_open(struct store *st, const struct shared_options *o,
		struct shared **ret_shared, char *why, size_t why_size)
{
	struct shared *s = calloc(1, sizeof(*s));
	struct utsname machine;
	bool is_unclean = false, all_known = false;
	int rc;

	if (!s)
		return -ENOMEM;
	lock_init(&s->lock, LOCK_SHARED);
	cond_init(&s->moved);
	cond_init(&s->idle);
	TAILQ_INIT(&s->queue);
	TAILQ_INIT(&s->kept);
	TAILQ_INIT(&s->seen);
	LIST_INIT(&s->sent);
	LIST_INIT(&s->drops);
	LIST_INIT(&s->waits);
	s->st = st;
	s->home = SHARED_HOME_NONE;
	s->as_root = geteuid() == 0;
	s->pending_wait_s = o->pending_wait_s;
	s->fds_max = io_fd_share(40, 200000);
	s->local_keep_bytes = o->local_keep_bytes;
	s->next_ticket = (uint64_t)wall_ns();
	s->dir = strdup(o->dir);
	s->direct = o->direct ? strdup(o->direct) : NULL;
	rc = s->dir && (s->direct || !o->direct) ? 0 : -ENOMEM;
	if (rc == 0 && !o->node && uname(&machine) < 0)
		rc = -errno;
	why[0] = 0;
	if (rc == 0)
		rc = shared_home_open(
			s->dir, o->node ? o->node : machine.nodename, st->uuid,
			o->rejoin, &s->home, why, why_size);
	if (rc == 0 && s->home.is_unlocked)
		log_warning("%s: the lock of node %s is still held for its "
			    "daemon that died; it goes on without",
			    s->dir, s->home.node);
	if (rc == 0)
		rc = bind_store(s, why, why_size);
	if (rc == 0)
		is_unclean =
			record_find(st->kv, key_meta(META_SHARED_MOUNTED)) == 0;
	if (rc == 0)
		rc = note_mounted(s, true);
	if (rc == 0)
		rc = make_root(s);
	if (rc == 0)
		rc = local_load(s, was_rebuilt(s), &all_known, why, why_size);
	if (rc == 0)
		rc = dir_each(s->home.newfd, ".", sweep_new, s);
	if (rc == 0)
		rc = own_load(s, is_unclean && all_known && !was_rebuilt(s));
	if (rc == 0 && s->home.joins)
		rc = end_joining(s);
	if (rc < 0) {
		if (!why[0])
			(void)snprintf(why, why_size, "%s: %s", o->dir,
				       strerror(-rc));
		shared_free(s);
		return rc;
	}
	st->hooks = (struct store_hooks){ .arg = s,
					  .committing = local_committing,
					  .tell_place = local_tell_place,
					  .renumbering = local_renumbering,
					  .renumbered = local_renumbered };
	steps_begin(s);
	*ret_shared = s;
	return 0;
}

/* --- each few seconds ----------------------------------------------------- */

/* Somebody waits for the file of DIR of this number. */
static int on_wanted(void *arg, int fd, const char *name)
{
	struct shared *s = arg;
	struct node *n = node_of_engine(s, (ino_t)strtoull(name, NULL, 16));

	(void)unlinkat(fd, name, 0);
	if (n) {
		HOLD(&s->lock);
		queue_want_locked(s, n);
	}
	node_put(s, n);
	return 0;
}

/* Each time that an upload did not find its file, but not all the time. */
static bool wants_search(struct shared *s)
{
	HOLD(&s->lock);
	if (!s->search || mono_ns() < s->search_due_ns)
		return false;
	s->search = false;
	s->search_due_ns = mono_ns() + SEARCH_PERIOD_NS;
	return true;
}

/*
 * Half a second, or until it is to stop, or to look for a file: what else moves
 * ends no pause, as each round is five calls to DIR.
 */
static bool pause_alive(struct shared *s)
{
	int64_t end_ns = mono_ns() + ALIVE_PAUSE_NS;

	HOLD(&s->lock);
	while (!s->stop && !(s->search && mono_ns() >= s->search_due_ns) &&
	       cond_wait_until(&s->moved, &s->lock, end_ns))
		;
	return s->stop;
}

static bool has_queue(struct shared *s)
{
	HOLD(&s->lock);
	return !TAILQ_EMPTY(&s->queue);
}

static void *alive_main(void *arg)
{
	struct shared *s = arg;
	int64_t wanted_due_ns = 0;
	bool stop = false;

	while (!stop) {
		struct stat sb;
		int rc = 0;

		if (fstat(s->home.dirfd, &sb) == 0) {
			HOLD(&s->lock);
			s->root_stat = sb;
			s->answered_ns = mono_ns();
		}
		rc = shared_say_alive(s);
		if (rc == -ESHUTDOWN)
			log_error("%s: node %s was forgotten there (ckptctl "
				  "forget-node) while it was away: no file can "
				  "be made; unmount it, and mount it with -o "
				  "rejoin",
				  s->dir, s->home.node);
		else if (rc < 0)
			log_warning("%s: this node cannot say there that it "
				    "lives: %s",
				    s->dir, strerror(-rc));
		if (has_queue(s) || mono_ns() >= wanted_due_ns) {
			(void)dir_each(s->home.nodefd, "wanted", on_wanted, s);
			wanted_due_ns = mono_ns() + WANTED_PERIOD_NS;
		}
		sent_expire(s);
		empty_give_up_left(s);
		own_flush(s);
		drops_flush(s);
		node_forget_seen(s);
		local_make_room(s);
		if (wants_search(s))
			local_search(s);
		stop = pause_alive(s);
	}
	return NULL;
}

int shared_start(struct shared *s)
{
	int rc;

	s->is_alive = true;
	rc = thread_create(&s->alive, alive_main, s);
	if (rc < 0) {
		s->is_alive = false;
		return rc;
	}
	return upload_start(s);
}

void shared_stop(struct shared *s)
{
	guard_stop(s->st->guard); /* it walks through the tree */
	upload_finish(s);
	upload_stop(s);
	if (s->is_alive)
		thread_join(&s->alive);
	s->is_alive = false;
	own_flush(s);
	drops_flush(s);
	/* The next mount goes on looking for what is lost. */
	if (s->lost_count == 0)
		(void)note_mounted(s, false);
}

void shared_free(struct shared *s)
{
	if (!s)
		return;
	s->st->hooks = (struct store_hooks){ 0 };
	locks_free(s);
	sent_free(s);
	drops_free(s);
	nodes_free(s);
	shared_home_release(&s->home);
	cond_destroy(&s->moved);
	cond_destroy(&s->idle);
	lock_destroy(&s->lock);
	free(s->unlinks);
	free(s->lost);
	free(s->direct);
	free(s->dir);
	free(s);
}

/* --- who changes a local file --------------------------------------------- */

/* One of the patterns, between colons, is this: of names, or of paths. */
static bool matches_direct(const struct shared *s, const char *name,
			   const char *path)
{
	const char *at = s->direct;

	while (at && *at) {
		char glob[DIRECT_GLOB_BYTES];
		size_t len = strcspn(at, ":");

		if (len > 0 && len < sizeof(glob)) {
			memcpy(glob, at, len);
			glob[len] = 0;
			if (fnmatch(glob, strchr(glob, '/') ? path : name,
				    FNM_PATHNAME) == 0)
				return true;
		}
		at += len + (at[len] == ':');
	}
	return false;
}

bool shared_is_direct(struct shared *s, uint64_t parent, const char *name)
{
	SCOPED(node_use_end) struct node_use u = { 0 };
	char path[4096] = "";
	size_t len;

	if (!s->direct || node_use(s, parent, &u) < 0)
		return false;
	node_path(s, u.n, path, sizeof(path));
	len = strlen(path);
	(void)snprintf(path + len, sizeof(path) - len, "%s%s",
		       len > 0 ? "/" : "", name);
	return matches_direct(s, name, path);
}

static bool is_direct_node(struct shared *s, struct node *n)
{
	char path[4096];
	const char *name;

	if (!s->direct)
		return false;
	node_path(s, n, path, sizeof(path));
	name = strrchr(path, '/');
	return matches_direct(s, name ? name + 1 : path, path);
}

static bool writes(int flags)
{
	return (flags & O_ACCMODE) != O_RDONLY;
}

/* Is a new file to take the place of what is opened? */
static bool is_to_empty(struct shared *s, struct node *n, int flags,
			const struct names_new *new)
{
	return writes(flags) && (flags & O_TRUNC) && new &&
	       !is_direct_node(s, n);
}

static int send_away(struct shared *s, uint64_t parent, const char *name,
		     int flags, const struct names_new *n)
{
	return writes(flags) && (flags & O_TRUNC) && n &&
			       !shared_is_direct(s, parent, name)
		       ? empty_away(s, parent, name, n)
		       : -ESTALE; /* the kernel looks it up once more */
}

int shared_create_again(struct shared *s, uint64_t parent, const char *name,
			int flags, const struct names_new *n)
{
	return send_away(s, parent, name, flags, n);
}

/* In DIR: what is put in the place of one leaves the others what they are. */
static bool has_one_name(struct shared *s, struct node *n)
{
	SCOPED(scope_close) int fd = -1;
	struct stat sb;

	return node_fd(s, n, &fd) == 0 && fstat(fd, &sb) == 0 &&
	       own_is_only_name(s, fd, &sb);
}

/* 1: what it would be now is a file of its own, after that of others. */
static int is_followed(struct shared *s, struct node *n)
{
	SCOPED(hold_end) struct hold h = { 0 };

	hold_begin(s, n, &h);
	return replace_is_followed(s, n);
}

/*
 * What is changed in place here, while it is pending at its name, is lost when
 * another node's new file gets that name: it began before. 1: it has it now.
 */
static int wait_for_theirs(struct shared *s, struct node *n)
{
	ino_t number;

	{
		HOLD(&s->lock);
		if (n->ticket || n->dropped ||
		    (n->state != NODE_PENDING && n->state != NODE_UPLOADING))
			return 0;
		number = n->engine;
	}
	return replace_wait_for(s, n, number);
}

int shared_change_begin(struct shared *s, uint64_t id, int flags,
			const struct names_new *n)
{
	SCOPED(node_use_end) struct node_use u = { 0 };
	bool kept, dropped, to_empty = false;
	struct dropped d;

	if (node_use(s, id, &u) < 0)
		return writes(flags) && local_was_dropped(s, id, &d)
			       ? send_away(s, d.parent, d.name, flags, n)
			       : 0;
	if (!writes(flags)) {
		if (n)
			sent_forget(s, n->pid);
		HOLD(&s->lock);
		queue_read_locked(s, u.n);
		return 0;
	}
	to_empty = is_to_empty(s, u.n, flags, n);
	if (to_empty) {
		int rc = is_followed(s, u.n);

		if (rc != 0)
			return rc < 0 ? rc : empty_away_from(s, u.n, n);
	} else if (n) { /* who cuts it may have had it open before */
		int rc = wait_for_theirs(s, u.n);

		if (rc != 0)
			return rc < 0 ? rc : -ESTALE;
	}
	{
		HOLD(&s->lock);
		while (u.n->state == NODE_COMPLETING)
			cond_wait(&s->moved, &s->lock);
		kept = u.n->state == NODE_KEPT;
		dropped = u.n->dropped;
		if (!kept && !dropped) {
			u.n->changing++;
			queue_changed_locked(s, u.n);
			sent_came_locked(s, u.n, n ? n->pid : 0);
			return 0;
		}
	}
	if (dropped) /* what is written there would be lost */
		return local_was_dropped(s, id, &d)
			       ? send_away(s, d.parent, d.name, flags, n)
			       : -ESTALE;
	if (to_empty && has_one_name(s, u.n)) /* it is read until then */
		return empty_away_from(s, u.n, n);
	/* Under its name there may be another one by now. */
	(void)local_give_up_kept(s, u.n);
	return to_empty ? empty_away_from(s, u.n, n) : -ESTALE;
}

void shared_change_end(struct shared *s, uint64_t id)
{
	SCOPED(node_use_end) struct node_use u = { 0 };

	if (node_use(s, id, &u) < 0)
		return;
	HOLD(&s->lock);
	if (u.n->changing > 0)
		u.n->changing--;
	/* What began meanwhile has not seen the end of it. */
	queue_changed_locked(s, u.n);
}

/* --- files whose bytes are not here --------------------------------------- */

/* What the kernel calls the file: one for all that have it open. */
static int backing_of(struct shared *s, struct node *n, int fd)
{
	const struct kernel_hooks *k = &s->st->files.kernel;
	int id = 0, extra = 0;
	struct stat sb = { 0 };

	(void)fstat(fd, &sb);
	{
		HOLD(&s->lock);
		if (n->opens++ == 0) {
			n->opened = sb.st_ino;
			node_opened_locked(s, n);
		}
		/* The node was another file when it was opened before. */
		if (n->opened != sb.st_ino)
			return 0;
		if (n->backing_id > 0 || n->opens > 1)
			return n->backing_id;
	}
	if (k->backing_open)
		id = k->backing_open(k->arg, fd);
	if (id <= 0)
		return 0;
	{
		HOLD(&s->lock);
		if (n->backing_id == 0 && n->opens == 1)
			n->backing_id = id;
		else
			extra = id;
		id = n->backing_id;
	}
	if (extra)
		k->backing_close(k->arg, extra);
	return id;
}

/* As fuse/ does it for a local file: what is written goes past everybody. */
static int drop_suid(const struct shared_caller *c, int fd,
		     const struct stat *sb)
{
	mode_t mode = sb->st_mode & ~(mode_t)S_ISUID;

	if (mode & S_IXGRP)
		mode &= ~(mode_t)S_ISGID;
	if (c->uid == 0 || !S_ISREG(sb->st_mode) || mode == sb->st_mode)
		return 0;
	return fchmod(fd, mode & 07777) < 0 ? -errno : 0;
}

/* What a try to open a file came to, if it did not fail. */
enum tried {
	TRIED_OPEN,
	TRIED_GONE, /* others have put another one at the name */
};

/* *path as of pending_wait(). -errno, or enum tried. */
static int try_open(struct shared *s, const struct shared_caller *c,
		    struct node *n, int flags, const struct names_new *new,
		    int *path, int *ret_fd)
{
	bool to_empty = is_to_empty(s, n, flags, new);
	struct stat sb;
	int fd, rc = 0;

	if (fstat(*path, &sb) < 0)
		return errno == ESTALE || errno == ENOENT ? TRIED_GONE : -errno;
	/* Of what is pending elsewhere, too: its bytes are not asked for. */
	if (to_empty && S_ISREG(sb.st_mode) && own_is_only_name(s, *path, &sb))
		return empty_away_from(s, n, new);
	if (pending_is(s, &sb)) {
		rc = pending_wait(s, n, path);
		if (rc == -ESTALE)
			return TRIED_GONE;
		if (rc == -EIO && writes(flags))
			rc = -EBUSY;
		if (rc < 0)
			return rc;
		if (fstat(*path, &sb) < 0)
			return errno == ESTALE || errno == ENOENT ? TRIED_GONE
								  : -errno;
	}
	if (writes(flags) && sb.st_nlink == 0)
		return TRIED_GONE; /* replaced since it was looked up */
	if (writes(flags) && S_ISREG(sb.st_mode)) {
		/* What others are to put there is what is to be changed. */
		rc = replace_wait_for(s, n, sb.st_ino);
		if (rc != 0)
			return rc < 0 ? rc : TRIED_GONE;
	}
	act_as(s, c);
	fd = node_reopen(*path, flags & (O_ACCMODE | O_APPEND | O_TRUNC));
	act_as_self(s, c);
	if (fd == -ESTALE || fd == -ENOENT)
		return TRIED_GONE;
	if (fd < 0)
		return fd;
	rc = writes(flags) ? drop_suid(c, fd, &sb) : 0;
	if (rc < 0) {
		(void)close(fd);
		return rc;
	}
	*ret_fd = fd;
	return TRIED_OPEN;
}

int shared_open_file(struct shared *s, const struct shared_caller *c,
		     uint64_t id, int flags, const struct names_new *new,
		     int *ret_fd, int *ret_backing)
{
	SCOPED(node_use_end) struct node_use u = { 0 };
	SCOPED(scope_close) int path = -1;
	int fd = -1, rc = node_use(s, id, &u);

	if (rc < 0 || !(flags & O_TRUNC)) /* that is another call by now */
		sent_forget(s, c->tid);
	if (rc < 0)
		return -ESTALE;
	rc = node_fd(s, u.n, &path);
	if (rc == 0)
		rc = try_open(s, c, u.n, flags, new, &path, &fd);
	else if (rc == -ESTALE)
		rc = TRIED_GONE;
	for (unsigned i = 0; rc == TRIED_GONE && i < OPEN_TRIES; i++) {
		int again = -1;

		rc = node_find_again(s, u.n, &again);
		if (rc < 0)
			break; /* the kernel looks up once more */
		scope_close(&path);
		path = again;
		rc = try_open(s, c, u.n, flags, new, &path, &fd);
	}
	/* It has another number; or there is none, and O_CREAT makes it. */
	if (rc > 0 || (rc == -ENOENT && writes(flags)))
		return is_to_empty(s, u.n, flags, new)
			       ? empty_away_from(s, u.n, new)
			       : -ESTALE;
	if (rc != -ESTALE && rc != -ERESTART)
		sent_forget(s, c->tid);
	if (rc < 0)
		return rc;
	*ret_fd = fd;
	*ret_backing = backing_of(s, u.n, fd);
	if (u.n->type == S_IFREG) /* for who asks for its attributes */
		node_keep_fd(s, u.n, path);
	return 0;
}

int shared_create_plain(struct shared *s, const struct shared_caller *c,
			uint64_t parent, const char *name, mode_t mode,
			int flags, struct shared_entry *ret, int *ret_fd,
			int *ret_backing)
{
	SCOPED(node_use_end) struct node_use u = { 0 };
	int fd, rc;

	fd = tree_create_plain(s, c, parent, name, mode, flags, ret);
	if (fd < 0)
		return fd;
	sent_forget(s, c->tid);
	rc = node_use(s, ret->id, &u);
	if (rc < 0) {
		(void)close(fd);
		return rc;
	}
	*ret_fd = fd;
	*ret_backing = backing_of(s, u.n, fd);
	return 0;
}

void shared_close(struct shared *s, uint64_t id, int fd)
{
	SCOPED(node_use_end) struct node_use u = { 0 };
	const struct kernel_hooks *k = &s->st->files.kernel;
	int backing = 0;

	(void)close(fd);
	if (node_use(s, id, &u) < 0)
		return;
	{
		HOLD(&s->lock);
		if (u.n->opens > 0 && --u.n->opens == 0)
			backing = u.n->backing_id;
		if (u.n->opens == 0) {
			u.n->backing_id = 0;
			node_closed_locked(s, u.n);
		}
	}
	if (backing > 0 && k->backing_close)
		k->backing_close(k->arg, backing);
}

/* --- what is told --------------------------------------------------------- */

/* Up to `room` of the files that are to be uploaded, a reference of each. */
static size_t get_queued(struct shared *s, struct node **to, size_t room)
{
	size_t count = 0;
	struct node *n;

	HOLD(&s->lock);
	TAILQ_FOREACH(n, &s->queue, queued)
	if (count < room)
		to[count++] = node_ref_locked(n);
	return count;
}

/* Their sizes are asked for without our lock, which inodes' come before. */
static uint64_t bytes_of_queued(struct shared *s, size_t count)
{
	struct node **queued = calloc(count, sizeof(*queued));
	uint64_t bytes = 0;
	struct stat sb;

	if (!queued)
		return 0;
	count = get_queued(s, queued, count);
	for (size_t i = 0; i < count; i++) {
		if (inode_stat(s->st->inodes, queued[i]->in, &sb) == 0)
			bytes += (uint64_t)sb.st_size;
		node_put(s, queued[i]);
	}
	free(queued);
	return bytes;
}

static void figures_locked(struct shared *s, struct shared_figures *ret)
{
	int64_t now = mono_ns();
	struct node *n;

	*ret = s->figures;
	TAILQ_FOREACH(n, &s->queue, queued)
	{
		ret->pending++;
		ret->failing += n->failures > 0;
		if (ret->oldest_ns < now - n->since_ns)
			ret->oldest_ns = now - n->since_ns;
	}
	for (unsigned i = 0; i < UPLOAD_THREADS; i++)
		if (s->calling_ns[i] &&
		    now - s->calling_ns[i] > ret->engine_silent_ns)
			ret->engine_silent_ns = now - s->calling_ns[i];
}

void shared_figures(struct shared *s, struct shared_figures *ret)
{
	{
		HOLD(&s->lock);
		figures_locked(s, ret);
	}
	if (ret->pending > 0)
		ret->pending_bytes = bytes_of_queued(s, (size_t)ret->pending);
}

const char *shared_node_name(const struct shared *s)
{
	return s->home.node;
}

const char *shared_dir(const struct shared *s)
{
	return s->dir;
}

const char *shared_word(enum shared_is is)
{
	static const char *const words[] = { [SHARED_PLAIN] = "plain",
					     [SHARED_KEPT] = "kept",
					     [SHARED_PENDING] = "pending",
					     [SHARED_LOST] = "lost" };

	return words[is];
}

const char *shared_state(enum shared_is is)
{
	/* Of what is pending elsewhere that node alone can say more. */
	static const char *const words[] = { [SHARED_PLAIN] = "durable",
					     [SHARED_KEPT] = "durable",
					     [SHARED_PENDING] = "staged",
					     [SHARED_LOST] = "failed" };

	return words[is];
}

int shared_where(struct shared *s, uint64_t id, struct shared_where *ret)
{
	SCOPED(node_use_end) struct node_use u = { 0 };
	SCOPED(scope_close) int fd = -1;
	struct stat sb;
	int rc = node_use(s, id, &u);

	*ret = (struct shared_where){ .is = SHARED_PLAIN };
	if (rc < 0)
		return rc;
	if (u.n->in) {
		HOLD(&s->lock);
		ret->is =
			u.n->state == NODE_KEPT ? SHARED_KEPT : SHARED_PENDING;
		return 0;
	}
	rc = node_fd(s, u.n, &fd);
	if (rc < 0)
		return rc;
	if (fstat(fd, &sb) < 0)
		return -errno;
	if (!pending_is(s, &sb))
		return 0;
	rc = pending_owner(s->home.homefd, sb.st_ino, ret->node);
	ret->is = rc == PENDING_LOST ? SHARED_LOST : SHARED_PENDING;
	if (rc <= 0)
		strcpy(ret->node, "?");
	return 0;
}
