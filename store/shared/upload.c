/*
 * upload.c - what was closed goes to DIR, in the order in which it was closed.
 *
 * Threads take the oldest file that may be taken, several at a time, but each
 * is shown only when those that were closed before it are, unless they fail,
 * are open again, or are trackers that wait (tracker.c), or another node waits
 * for it: then it goes first (queue.c). What fails is tried again in its turn a
 * few times first; what is in its last calls then does not wait for it.
 *
 *                                                     how many at a time
 *   its size, the bytes, fsync                        as threads are
 *   the database: it may be complete from now on      as threads are
 *   [from here on nobody changes the file here]
 *   times                                             when all before are as
 * far mode: it is shown                                 one, in order fsync,
 * its link in own/ goes, and it is no longer in the queue as threads are
 *
 * A file that replaces another one is nobody's to see before its rename, unless
 * it has another name: it has its times, its mode and the fsync as soon as
 * those before it are as far, and the rename shows it.
 *
 * What was shown is in the queue until its mode is durable in DIR: a tracker,
 * and who waits for files (upload_wait()), come after that. Between other files
 * the last fsync keeps no order: where a client of DIR loses power that holds
 * modes back, a file may be whole there, and one that was closed before it
 * pending once more, until the node is back.
 *
 * A call that DIR does not answer holds one thread, and no lock. What fails is
 * tried again for ever, at longer and longer intervals.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/io.h"
#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/file/file.h"
#include "store/file/state.h"
#include "store/shared/pending.h"
#include "store/shared/shared_private.h"

#define SECOND_NS INT64_C(1000000000)
#define RETRY_FIRST_NS (SECOND_NS / 4)
#define RETRY_MOST_NS (60 * SECOND_NS)
#define LOOK_AGAIN_NS (SECOND_NS / 5)
#define LOST_AGAIN_NS SECOND_NS /* a step that misses a file: it may go */
/*
 * What fails keeps its turn for so many tries, after the second one for so long
 * at most, if no more than so many files do. Then it holds nothing back until
 * it is whole, or closed anew.
 */
#define HOLDING_TRIES 4u
#define HOLDING_NS (4 * SECOND_NS)
#define HOLDING_AT_ONCE (UPLOAD_THREADS / 2)
/* So often it is looked for before anybody is told that it is not found. */
#define STALE_TRIES 8

enum upload_end {
	UPLOAD_DONE, /* whole: others have it by now */
	UPLOAD_VOID, /* it is open, or was changed: later */
	UPLOAD_WAITS, /* for a step that is not whole, or a locked file */
	UPLOAD_GONE, /* nobody wants it any more */
};

/* What goes to DIR: the file, as it was when it had this number. */
struct upload {
	struct shared *s;
	struct node *n; /* a reference */
	uint64_t number; /* of n, when it was taken */
	int64_t taken_ns;
	unsigned thread;
	struct stat sb; /* what it is here */
	int fd; /* of DIR's file, or -1 */
	bool is_linked; /* DIR's file has other names than its own */
	bool keeps_mode; /* that which somebody has set in DIR */
	mode_t mode;
};

/* --- its turn; the lock is held ------------------------------------------- */

static bool take_locked(struct upload *u, int64_t *ret_due)
{
	struct node *n = queue_next_locked(u->s, ret_due);

	if (!n)
		return false;
	n->is_taken = true;
	n->is_passed = n->failures > 0;
	n->state = NODE_UPLOADING;
	u->n = node_ref_locked(n);
	u->number = n->number;
	u->taken_ns = mono_ns();
	return true;
}

static bool is_void_locked(const struct upload *u)
{
	return upload_is_void_locked(u->n, u->number);
}

/*
 * Until it is its turn, or it is void. When all threads wait, and a file before
 * n is in the hands of none, n gives its thread to that one, for what it waits
 * for would never come.
 */
static void wait_for_turn_locked(struct upload *u)
{
	struct shared *s = u->s;
	const struct node *n = u->n;

	while (!is_void_locked(u) && !s->stop &&
	       (!queue_may_complete_locked(s, n) || n->renaming > 0)) {
		if (s->waiting + 1 == UPLOAD_THREADS &&
		    queue_left_before_locked(s, n))
			return;
		s->waiting++;
		cond_wait(&s->moved, &s->lock);
		s->waiting--;
	}
}

/* --- one file ------------------------------------------------------------- */

/* DIR is about to be called, or has answered. */
static void calls(struct upload *u, bool begins)
{
	HOLD(&u->s->lock);
	u->s->calling_ns[u->thread] = begins ? mono_ns() : 0;
}

/* Is it at rest, as far as its handles and its drain go? */
static bool is_at_rest(struct node *n)
{
	HOLD(&n->in->lock);
	return n->in->file && !file_may_change(n->in->file) &&
	       !file_is_dirty(n->in->file);
}

/* Or in a change that may last; who only opens it to read is through soon. */
static bool is_open(struct node *n)
{
	HOLD(&n->in->lock);
	return n->in->file && (n->in->file->state.writers > 0 ||
			       n->in->file->state.left == LEFT_WRITERS ||
			       file_is_dirty(n->in->file));
}

static bool is_void(const struct upload *u)
{
	HOLD(&u->s->lock);
	return is_void_locked(u);
}

static bool is_wanted(void *arg)
{
	return !is_void(arg);
}

static void copy_calls(void *arg, bool begins)
{
	calls(arg, begins);
}

static int copy_bytes(struct upload *u)
{
	const struct upload_copy c = { .s = u->s,
				       .n = u->n,
				       .number = u->number,
				       .fd = u->fd,
				       .size = (uint64_t)u->sb.st_size,
				       .wanted = is_wanted,
				       .calls = copy_calls,
				       .arg = u };

	return upload_copy(&c);
}

/*
 * It has its size from now on, for who looks at it elsewhere; and no bytes that
 * a hole would let through, of an upload that did not come to its end.
 */
static int set_size(struct upload *u, const struct stat *sb)
{
	if (sb->st_size != 0 && ftruncate(u->fd, 0) < 0)
		return -errno;
	return u->sb.st_size != 0 && ftruncate(u->fd, u->sb.st_size) < 0
		       ? -errno
		       : 0;
}

/*
 * What is not pending any more: complete, which a daemon that died could not
 * write down; or somebody else's hand was there, and has set its mode. 0, or
 * -ENODATA.
 */
static int see_foreign_hand(struct upload *u, const struct stat *sb)
{
	struct shared *s = u->s;
	char name[4096];

	if (!u->n->completing) {
		u->keeps_mode = true;
		u->mode = sb->st_mode & 07777;
		return 0;
	}
	if (sb->st_size != u->sb.st_size) {
		node_path(s, u->n, name, sizeof(name));
		log_warning("%s/%s was changed there before it was whole: it "
			    "stays as it is there",
			    s->dir, name);
	}
	return -ENODATA;
}

/* 0: nobody wants it any more. */
static ino_t engine_of(const struct upload *u)
{
	HOLD(&u->s->lock);
	return u->n->engine;
}

/*
 * What may be whole, as a daemon that died has noted, and has no link any more,
 * is: others have moved or removed it since. -ENODATA.
 */
static int find_in_dir(struct upload *u, int *ret_path, struct stat *sb)
{
	SCOPED(scope_close) int fd = -1;
	int rc = node_fd(u->s, u->n, ret_path);

	if (rc == 0 && fstat(*ret_path, sb) < 0)
		rc = -errno;
	if (rc != -ESTALE || !u->n->completing)
		return rc;
	/* A server that is away says so of everything: is it the link? */
	return own_open(u->s, engine_of(u), &fd) == -ENOENT ? -ENODATA : rc;
}

/* Nobody wants what has no name any more: -ENODATA. path: of it, pending. */
static int look_for_names(struct upload *u, int path)
{
	SCOPED(scope_close) int fd = -1;
	ino_t engine = engine_of(u);
	nlink_t names;
	int rc = engine == 0 ? -ENODATA : own_open(u->s, engine, &fd);

	/* Somebody has removed the link, and what is left is a name. */
	if (rc == -ENOENT) {
		rc = own_link(u->s, u->n, path, engine);
		rc = rc == -ENOENT ? -ENODATA : rc;
	}
	if (rc == 0)
		rc = own_count_names(path, &names);
	return rc == 0 && names == 0 ? -ENODATA : rc;
}

/*
 * A tracker that others have moved, or that a node that was away has left, may
 * be known in the wrong folder: the files there are not what it waits for, and
 * may wait for it. 0: it is where it is known to be; 1: it is shown already;
 * -ESTALE: it is looked for first.
 */
static int look_for_place(struct upload *u, ino_t engine)
{
	SCOPED(scope_close) int path = -1;
	struct stat sb;
	int rc = node_has_name(u->s, u->n, engine);

	if (rc != 0)
		return rc < 0 ? rc : 0;
	rc = find_in_dir(u, &path, &sb);
	if (rc < 0)
		return rc;
	if (!pending_is(u->s, &sb))
		return 1;
	rc = look_for_names(u, path);
	return rc < 0 ? rc : -ESTALE;
}

/* Is it to wait, as a tracker? */
static int waits_for_step(struct upload *u)
{
	bool tracker, replaces;
	ino_t engine;
	int rc = 0;

	{
		HOLD(&u->s->lock);
		tracker = tracker_is(u->n->name);
		replaces = u->n->ticket;
		engine = u->n->engine;
	}
	if (!tracker)
		return 0;
	if (!replaces)
		rc = look_for_place(u, engine);
	if (rc != 0)
		return rc < 0 ? rc : 0;
	rc = tracker_waits(u->s, u->n);
	return rc == -ENODATA ? -EIO
			      : rc; /* of another file: this is not gone */
}

/*
 * Without a link it is known by its name and number alone, and some file
 * systems use a number again: is it another node's?
 */
static int look_whose(struct upload *u, const struct stat *sb)
{
	char node[SHARED_NODE_MAX + 1];
	struct shared *s = u->s;
	int rc;

	{
		HOLD(&s->lock);
		if (u->n->has_link)
			return 0;
	}
	if (!pending_is(s, sb))
		return 0;
	rc = pending_owner(s->home.homefd, sb->st_ino, node);
	if (rc <= 0 ||
	    (rc == PENDING_OF_NODE && strcmp(node, s->home.node) == 0))
		return rc < 0 ? rc : 0;
	return u->n->completing ? -ENODATA : -ESTALE;
}

/* -ENODATA: complete, or nobody wants it any more. */
static int open_in_dir(struct upload *u)
{
	SCOPED(scope_close) int path = -1;
	struct stat sb;
	int rc = find_in_dir(u, &path, &sb);

	if (rc < 0)
		return rc;
	if (sb.st_nlink <= 1 && pending_is(u->s, &sb)) {
		rc = look_for_names(u, path);
		if (rc < 0)
			return rc;
	}
	u->is_linked = sb.st_nlink > 2; /* one is in own/ */
	rc = look_whose(u, &sb);
	if (rc < 0)
		return rc;
	if (!pending_is(u->s, &sb)) {
		/* Complete but for its name: all of it once more. */
		rc = node_replaces(u->s, u->n) ? 0 : see_foreign_hand(u, &sb);
		if (rc < 0)
			return rc;
	}
	rc = node_reopen(path, O_RDWR);
	if (rc < 0)
		return rc;
	u->fd = rc;
	/* It has another name perhaps, by which it is not to be seen so. */
	if (!pending_is(u->s, &sb) && fchmod(u->fd, pending_mode(u->s)) < 0)
		return -errno;
	{
		HOLD(&u->s->lock); /* not from here on */
		u->n->completing = false;
	}
	return set_size(u, &sb);
}

/* From here on it is as it is; false: it is not at rest. */
static bool begin_completing(struct upload *u)
{
	struct shared *s = u->s;
	bool rests;

	calls(u, false);
	{
		HOLD(&s->lock);
		wait_for_turn_locked(u);
		if (!queue_may_complete_locked(s, u->n) || is_void_locked(u) ||
		    u->n->renaming > 0 || s->stop || u->n->undone ||
		    sent_awaits_locked(s, u->n))
			return false;
		u->n->kept_size = (uint64_t)u->sb.st_size;
		u->n->kept_mtime_ns = io_ns(&u->sb.st_mtim);
		u->n->state = NODE_COMPLETING;
		u->n->is_shown = false;
		cond_broadcast(&s->moved);
	}
	calls(u, true);
	rests = is_at_rest(u->n);
	if (!rests) {
		HOLD(&s->lock);
		if (u->n->state == NODE_COMPLETING)
			u->n->state = NODE_UPLOADING;
		cond_broadcast(&s->moved);
	}
	return rests;
}

/* 1: what is to replace the name since is whole already, or that went. */
static int put_in_place(struct upload *u)
{
	struct node *old;
	int rc = replace_complete(u->s, u->n, u->fd, &old);

	if (rc == 2) { /* a client of NFS renames what it has open */
		scope_close(&u->fd);
		u->fd = -1;
		rc = in_place_end(u->s, u->n, old);
	}
	if (rc == 0 && old && old->in)
		local_name_removed(u->s, old);
	node_put(u->s, old);
	return rc;
}

/* As it was made whole: nobody who saw that was faster with something else. */
static bool is_untouched(const struct upload *u, const struct stat *sb)
{
	const struct stat *own = &u->sb;

	return !u->keeps_mode &&
	       (sb->st_mode & 07777) == (own->st_mode & 07777) &&
	       sb->st_uid == own->st_uid && sb->st_gid == own->st_gid &&
	       sb->st_size == own->st_size &&
	       node_is_time(&sb->st_mtim, io_ns(&own->st_mtim));
}

/*
 * Before the last calls the database says that they come, so that a node that
 * dies in between knows the file for its own. Each record says so from here on,
 * durably, until it is whole.
 */
static int note_completing(struct upload *u)
{
	{
		HOLD(&u->s->lock);
		u->n->completing = true;
	}
	return local_save(u->s, u->n);
}

/* The time of access says what mode it will have until then: pending.h. */
static int set_mode(struct upload *u)
{
	struct timespec times[2] = { u->sb.st_atim, u->sb.st_mtim };

	if (futimens(u->fd, times) < 0)
		return -errno;
	return fchmod(u->fd, u->keeps_mode ? u->mode : u->sb.st_mode & 07777) <
			       0
		       ? -errno
		       : 0;
}

static int sync_file(struct upload *u)
{
	return fsync(u->fd) < 0 ? -errno : 0;
}

/* Before it gets its name. */
static int make_whole(struct upload *u)
{
	int rc = set_mode(u);

	return rc < 0 ? rc : sync_file(u);
}

/*
 * When those that were closed before are: they are as far as this one. 1: it
 * was overtaken, and has its other names, if there are any, the next time.
 */
static int show(struct upload *u, bool replaces, bool hidden)
{
	struct shared *s = u->s;
	int rc;

	calls(u, false);
	{
		HOLD(&s->lock);
		while (!queue_may_show_locked(s, u->n))
			cond_wait(&s->moved, &s->lock);
	}
	calls(u, true);
	if (!replaces)
		rc = set_mode(u);
	else
		rc = hidden ? 0 : make_whole(u);
	if (rc == 0 && replaces)
		rc = put_in_place(u);
	if (rc != 0)
		return rc;
	HOLD(&s->lock);
	u->n->is_shown = true;
	cond_broadcast(&s->moved);
	return 0;
}

/* It is whole, and in no thread's hands from here on: it may change again. */
static bool keep(struct upload *u, const struct stat *sb)
{
	struct shared *s = u->s;
	struct node *n = u->n;

	HOLD(&s->lock);
	if (n->state != NODE_COMPLETING)
		return false;
	local_set_kept_locked(n, sb);
	if (!is_untouched(u, sb))
		n->kept_size = UINT64_MAX; /* no file has it */
	queue_keep_locked(s, n, (uint64_t)u->sb.st_size);
	queue_remove_locked(s, n);
	n->completing = n->is_taken = n->is_shown = false;
	n->failures = 0;
	n->error = s->figures.error = 0;
	s->figures.uploaded++;
	s->figures.uploaded_bytes += (uint64_t)u->sb.st_size;
	cond_broadcast(&s->moved);
	return true;
}

/*
 * It is whole, and durably so. It is closed first, since a client of NFS
 * renames what it has open under a name that goes.
 */
static void leave_link(struct upload *u)
{
	SCOPED(scope_close) int kept = -1;
	ino_t owned;

	scope_close(&u->fd);
	u->fd = -1;
	{
		HOLD(&u->s->lock);
		kept = node_take_fd_locked(u->s, u->n);
		owned = own_take_locked(u->n);
	}
	scope_close(&kept);
	kept = -1;
	if (owned)
		own_unlink(u->s, owned);
}

/* What it is at its name now: 1; 0: that is another file, or none; -errno. */
static int stat_whole(struct upload *u, struct stat *sb)
{
	SCOPED(node_use_end) struct node_use parent = { .s = u->s };
	SCOPED(scope_close) int dirfd = -1;
	char name[STORE_NAME_MAX + 1];
	ino_t engine;
	int rc;

	{
		HOLD(&u->s->lock);
		(void)snprintf(name, sizeof(name), "%s", u->n->name);
		parent.n = node_ref_locked(u->n->parent);
		engine = u->n->engine;
	}
	rc = node_fd(u->s, parent.n, &dirfd);
	if (rc == 0 && fstatat(dirfd, name, sb, AT_SYMLINK_NOFOLLOW) < 0)
		rc = -errno;
	return rc < 0 ? rc : sb->st_ino == engine;
}

/* The rename that said that it failed has come: by NFS, that did it twice. */
static int has_its_place(struct upload *u)
{
	struct shared *s = u->s;
	char ticket[TICKET_PATH_BYTES];
	int rc = 0;

	if (node_ticket(s, u->n, ticket))
		rc = ticket_drop(s->home.nextfd, ticket);
	if (rc < 0)
		return rc;
	HOLD(&s->lock);
	node_set_ticket_locked(s, u->n, NULL);
	return 0;
}

static int complete(struct upload *u, enum upload_end *ret)
{
	struct shared *s = u->s;
	bool replaces = node_replaces(s, u->n);
	bool hidden = replaces && !u->is_linked; /* until its rename */
	nlink_t names;
	struct stat sb;
	int rc = hidden ? make_whole(u) : 0;

	if (rc == 0)
		rc = show(u, replaces, hidden);
	if (rc == 0 && !replaces)
		rc = sync_file(u);
	if (rc < 0 && replaces && stat_whole(u, &sb) == 1)
		rc = has_its_place(u);
	if (rc != 0) {
		/*
		 * Or the next try takes it for whole, whatever it is by then;
		 * and who links to it, while it is a ticket, shows it.
		 */
		(void)fchmod(u->fd, pending_mode(s));
		pending_note_mode(u->fd, u->sb.st_mode);
		if (rc > 0 && own_count_names(u->fd, &names) == 0 &&
		    names == 0) { /* who waits to write looks again */
			local_give_up(s, u->n);
			*ret = UPLOAD_GONE;
		}
		return rc < 0 ? rc : 0;
	}
	leave_link(u);
	/* Somebody has moved or removed it: who waits to write looks again. */
	if (stat_whole(u, &sb) <= 0) {
		local_give_up(s, u->n);
		*ret = UPLOAD_GONE;
		return 0;
	}
	if (!keep(u, &sb))
		return 0;
	*ret = UPLOAD_DONE;
	if (local_save(s, u->n) < 0)
		log_warning("local file %" PRIu64 ": its record stays, and "
			    "says that it may be whole",
			    u->n->id);
	return 0;
}

static int upload_begun(struct upload *u, enum upload_end *ret)
{
	int rc;

	*ret = UPLOAD_VOID;
	rc = inode_load_file(u->s->st->inodes, u->n->in);
	if (rc == -ESTALE)
		*ret = UPLOAD_GONE;
	if (rc < 0)
		return rc == -ESTALE ? 0 : rc;
	if (!is_at_rest(u->n))
		return 0;
	rc = waits_for_step(u);
	if (rc > 0 || rc == -EUCLEAN)
		tracker_note_wait(u->s, u->n, &u->n->last);
	else
		waits_end(u->s, &u->n->last);
	if (rc == 0)
		rc = in_place_waits(u->s, u->n);
	if (rc > 0) {
		*ret = UPLOAD_WAITS;
		return 0;
	}
	if (rc == 0)
		rc = inode_stat(u->s->st->inodes, u->n->in, &u->sb);
	if (rc == 0)
		rc = open_in_dir(u);
	if (rc == -ENODATA) {
		*ret = UPLOAD_GONE;
		return 0;
	}
	if (rc == 0)
		rc = copy_bytes(u);
	if (rc == 0 && !is_void(u))
		rc = note_completing(u);
	if (rc == -ESTALE && is_void(u))
		rc = 0;
	else if (rc == 0 && begin_completing(u))
		rc = complete(u, ret);
	return rc;
}

/* --- what becomes of it --------------------------------------------------- */

static void say_failed(struct shared *s, struct node *n, int rc)
{
	char path[4096];

	if (rc == -EUCLEAN) {
		tracker_say_lost(s, n, &n->last);
		return;
	}
	node_path(s, n, path, sizeof(path));
	log_error("%s/%s cannot be written there: %s; it is kept here, and "
		  "tried again",
		  s->dir, path, strerror(-rc));
}

static int64_t retry_ns(unsigned failures, int rc)
{
	int64_t wait = RETRY_FIRST_NS << (failures < 9 ? failures : 9);
	int64_t most = rc == -EUCLEAN ? LOST_AGAIN_NS : RETRY_MOST_NS;

	return wait > most ? most : wait;
}

/*
 * true: say it. Of one that is not found nothing is said before it was looked
 * for.
 */
static bool note_failed_locked(struct upload *u, int rc)
{
	struct node *n = u->n;
	bool first;

	n->failures++;
	first = n->failures == (rc == -ESTALE ? STALE_TRIES : 1) ||
		(n->error != rc && rc != -ESTALE);
	n->error = rc;
	u->s->figures.error = rc;
	if (n->state == NODE_COMPLETING) {
		n->state = NODE_UPLOADING;
		n->is_shown = false;
	}
	cond_broadcast(&u->s->moved);
	return first;
}

/*
 * Nobody can see one that is not found, and a tracker that misses a file may
 * never come: they keep no turn.
 */
static bool keeps_turn_locked(const struct upload *u, int rc)
{
	const struct node *n = u->n;

	return rc != -ESTALE && rc != -EUCLEAN && !n->is_passed &&
	       n->failures < HOLDING_TRIES &&
	       (n->failures == 1 || mono_ns() - u->taken_ns < HOLDING_NS) &&
	       u->s->pausing < HOLDING_AT_ONCE;
}

/* Until it is to be tried once more here; false: it is not. */
static bool pause_locked(struct upload *u, int64_t due_ns)
{
	struct shared *s = u->s;

	s->pausing++;
	while (!is_void_locked(u) && !s->stop && !u->n->wanted &&
	       mono_ns() < due_ns)
		(void)cond_wait_until(&s->moved, &s->lock, due_ns);
	s->pausing--;
	return !is_void_locked(u) && !s->stop;
}

static bool try_again(struct upload *u, int rc)
{
	struct shared *s = u->s;
	int64_t due_ns;
	bool first;

	{
		HOLD(&s->lock);
		if (u->n->state == NODE_GONE)
			return false;
		first = note_failed_locked(u, rc);
		due_ns = mono_ns() + retry_ns(u->n->failures, rc);
	}
	if (first)
		say_failed(s, u->n, rc);
	HOLD(&s->lock);
	return keeps_turn_locked(u, rc) && pause_locked(u, due_ns);
}

static void put_back(struct upload *u, enum upload_end end, int rc)
{
	struct shared *s = u->s;
	struct node *n = u->n;
	bool open = is_open(n), may_last;

	HOLD(&s->lock);
	n->is_taken = false;
	n->is_shown = false;
	if (n->state == NODE_UPLOADING || n->state == NODE_COMPLETING)
		n->state = NODE_PENDING;
	if (n->state == NODE_GONE)
		rc = 0; /* whatever went wrong: nobody wants it */
	if (rc == 0) {
		n->failures = 0;
		n->error = 0;
	}
	/* Not before it is put back: what is taken is not given up. */
	s->search = s->search || rc == -ESTALE;
	may_last = end == UPLOAD_WAITS || n->renaming > 0 || n->changing > 0 ||
		   n->undone || sent_awaits_locked(s, n) || open;
	if (n->state == NODE_PENDING) {
		bool moved = n->number != u->number;

		/* What was found says nothing of what it is since: at once. */
		queue_add_locked(s, n, n->place);
		if (rc < 0 || !moved)
			n->is_passed = rc < 0 || may_last;
		if (rc < 0)
			n->due_ns = mono_ns() + retry_ns(n->failures, rc);
		else if (!moved)
			n->due_ns = mono_ns() + LOOK_AGAIN_NS;
	}
	cond_broadcast(&s->moved);
}

static int upload_try(struct upload *u, enum upload_end *ret)
{
	int rc;

	u->fd = -1;
	u->keeps_mode = false;
	calls(u, true);
	rc = upload_begun(u, ret);
	if (u->fd >= 0)
		(void)close(u->fd);
	calls(u, false);
	return rc;
}

static void upload(struct upload *u)
{
	enum upload_end end;
	int rc;

	do
		rc = upload_try(u, &end);
	while (rc < 0 && try_again(u, rc));
	if (rc == 0 && end == UPLOAD_GONE)
		local_drop(u->s, u->n);
	if (rc < 0 || end != UPLOAD_DONE)
		put_back(u, end, rc);
	node_put(u->s, u->n);
}

struct uploader {
	struct shared *s;
	unsigned thread;
};

static void *upload_main(void *arg)
{
	struct uploader me = *(struct uploader *)arg;
	struct shared *s = me.s;

	free(arg);
	for (;;) {
		struct upload u = { .s = s, .thread = me.thread };
		bool taken = false;
		int64_t due;

		{
			HOLD(&s->lock);
			while (!s->stop && !(taken = take_locked(&u, &due)))
				(void)cond_wait_until(&s->idle, &s->lock, due);
		}
		if (!taken)
			return NULL;
		upload(&u);
	}
}

int upload_start(struct shared *s)
{
	for (unsigned i = 0; i < UPLOAD_THREADS; i++) {
		struct uploader *u = malloc(sizeof(*u));
		int rc;

		if (!u)
			return -ENOMEM;
		*u = (struct uploader){ s, i };
		rc = thread_create(&s->threads[i], upload_main, u);
		if (rc < 0) {
			free(u);
			return rc;
		}
		s->thread_count++;
	}
	return 0;
}

void upload_stop(struct shared *s)
{
	{
		HOLD(&s->lock);
		s->stop = true;
		cond_broadcast(&s->moved);
		cond_broadcast(&s->idle);
	}
	while (s->thread_count > 0)
		thread_join(&s->threads[--s->thread_count]);
}
