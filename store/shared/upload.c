/*
 * upload.c - what was closed goes to DIR, in the order in which it was closed.
 *
 * Threads take the oldest file that may be taken, several at a time, but each
 * is shown only when those that were closed before it are, unless they failed,
 * are open again, or are trackers that wait (tracker.c), or another node waits
 * for it: then it goes first.
 *
 *                                                     how many at a time
 *   a trailer behind where the bytes end,
 *   the bytes, fsync                                  as threads are
 *   the database: it may be complete from now on      as threads are
 *   [from here on nobody changes the file here]
 *   cut the trailer off, times                        CUT_AT_ONCE, when all
 *                                                     before are as far
 *   mode: it is shown                                 one, in order
 *   fsync, and it is no longer in the queue           as threads are
 *
 * A file that replaces another one is nobody's to see before its rename: it has
 * its mode and the fsync with the cut, and the rename shows it.
 *
 * What was shown is in the queue until its mode is durable in DIR: a tracker,
 * and who waits for files (upload_wait()), come after that. Between other files
 * the last fsync keeps no order: where a client of DIR loses power that holds
 * modes back, a file may be whole there, and one that was closed before it
 * pending once more, until the node is back.
 *
 * A file without its trailer says to nobody whose it is, so they are few, and
 * what each of them waits for are the last calls of the others.
 *
 * A call that DIR does not answer holds one thread, and no lock. What fails is
 * tried again for ever, at longer and longer intervals.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/io.h"
#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/file/file.h"
#include "store/file/state.h"
#include "store/shared/shared_private.h"

#define SECOND_NS INT64_C(1000000000)
#define RETRY_FIRST_NS (SECOND_NS / 4)
#define RETRY_MOST_NS (60 * SECOND_NS)
#define LOOK_AGAIN_NS (SECOND_NS / 5)
#define CUT_AT_ONCE 4u
/* So often it is looked for before anybody is told that it is not found. */
#define STALE_TRIES 8

enum upload_end {
	UPLOAD_DONE,
	UPLOAD_CHANGED, /* it is open, or was changed: later */
	UPLOAD_WAITS, /* a tracker whose step is not whole */
	UPLOAD_GONE, /* nobody wants it any more */
};

/* --- whose turn it is; the lock is held ------------------------------------
 */

static bool may_be_taken_locked(const struct node *n, int64_t now)
{
	return !n->is_taken && !n->is_staged && n->due_ns <= now &&
	       n->state == NODE_PENDING;
}

static struct node *taken_locked(struct node *n)
{
	n->is_taken = true;
	n->is_told = false;
	n->is_passed = n->failures > 0;
	/* Who is about to write has said so, and perhaps not opened it yet. */
	n->changed = n->changing > 0;
	n->state = NODE_UPLOADING;
	return node_ref_locked(n);
}

/* One that another node waits for, and that is no tracker: it goes first. */
static struct node *take_wanted_locked(struct shared *s, int64_t now)
{
	struct node *n;

	if (s->wanted == 0)
		return NULL;
	TAILQ_FOREACH(n, &s->queue, queued)
	if (n->wanted && may_be_taken_locked(n, now) && !tracker_is(n->name))
		return taken_locked(n);
	return NULL;
}

/* The oldest that may be taken now; else until when to wait, in *ret_due. */
static struct node *take_locked(struct shared *s, int64_t *ret_due)
{
	int64_t now = mono_ns();
	bool tracker_before = false;
	struct node *n = take_wanted_locked(s, now);

	if (n)
		return n;

	*ret_due = now + SECOND_NS;
	TAILQ_FOREACH(n, &s->queue, queued)
	{
		bool tracker = tracker_is(n->name);

		if (may_be_taken_locked(n, now) && !(tracker && tracker_before))
			return taken_locked(n);
		if (n->due_ns > now && n->due_ns < *ret_due)
			*ret_due = n->due_ns;
		/* Nobody can see one that is not found: it keeps no order. */
		tracker_before =
			tracker_before || (tracker && n->error != -ESTALE);
	}
	return NULL;
}

/* Do those that were closed after it wait for it? */
static bool holds_back_locked(const struct node *o)
{
	return !o->is_passed && !tracker_is(o->name);
}

/*
 * May the last calls of n begin, as far as the order goes? Of what somebody
 * waits for they may: a tracker looks for itself whether its step is whole.
 */
static bool may_complete_locked(struct shared *s, const struct node *n)
{
	bool tracker = tracker_is(n->name);
	const struct node *o;
	unsigned cut = 0;

	if (n->wanted && !tracker)
		return true;
	TAILQ_FOREACH(o, &s->queue, queued)
	{
		if (o == n)
			return true;
		if (!holds_back_locked(o))
			continue;
		if (o->state != NODE_COMPLETING || tracker)
			return false;
		cut += !o->is_shown;
		if (cut == CUT_AT_ONCE)
			return false;
	}
	return true;
}

/* Is one that was closed before n, and holds it back, in no thread's hands? */
static bool is_left_before_locked(struct shared *s, const struct node *n)
{
	const struct node *o;

	TAILQ_FOREACH(o, &s->queue, queued)
	{
		if (o == n)
			return false;
		if (holds_back_locked(o) && !o->is_taken && !o->is_staged)
			return true;
	}
	return false;
}

/*
 * Until it is n's turn, or n is changed, or nobody wants it any more. When all
 * threads wait, and a file before n is in the hands of none, n gives its thread
 * to that one, for what it waits for would never come.
 */
static void wait_for_turn_locked(struct shared *s, const struct node *n)
{
	while (n->state == NODE_UPLOADING && !n->changed && !s->stop &&
	       (!may_complete_locked(s, n) || n->renaming > 0)) {
		if (s->waiting + 1 == UPLOAD_THREADS &&
		    is_left_before_locked(s, n))
			return;
		s->waiting++;
		cond_wait(&s->moved, &s->lock);
		s->waiting--;
	}
}

/*
 * Those that held n back when its last calls began were in theirs. One that was
 * open then, and is closed since, does not hold it back now: it may wait for a
 * rename, and that for the last calls of n.
 */
static bool may_show_locked(struct shared *s, const struct node *n)
{
	const struct node *o;

	if (n->wanted && !tracker_is(n->name))
		return true;
	TAILQ_FOREACH(o, &s->queue, queued)
	{
		if (o == n)
			return true;
		if (holds_back_locked(o) && o->state == NODE_COMPLETING &&
		    !o->is_shown)
			return false;
	}
	return true;
}

/* --- one file ------------------------------------------------------------- */

struct upload {
	struct shared *s;
	struct node *n;
	unsigned thread;
	struct stat sb; /* what it is here */
	int fd;
	bool keeps_mode; /* that which somebody has set in DIR */
	mode_t mode;
	uint64_t noted; /* node.saves, when the record said that it comes */
};

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

static bool is_disturbed(struct upload *u)
{
	HOLD(&u->s->lock);
	return u->n->changed || u->n->state == NODE_GONE;
}

static bool is_wanted(void *arg)
{
	return !is_disturbed(arg);
}

static void copy_calls(void *arg, bool begins)
{
	calls(arg, begins);
}

static int copy_bytes(struct upload *u)
{
	const struct upload_copy c = { .s = u->s,
				       .n = u->n,
				       .fd = u->fd,
				       .size = (uint64_t)u->sb.st_size,
				       .wanted = is_wanted,
				       .calls = copy_calls,
				       .arg = u };

	return upload_copy(&c);
}

/*
 * Are there bytes in DIR's file that a hole would let through: those of an
 * upload that did not come to its end, or of the first trailer?
 */
static bool has_leftovers(struct upload *u, const struct stat *sb)
{
	uint64_t hole = 0;

	if (sb->st_size != TRAILER_BYTES)
		return true;
	return file_seek(&u->s->st->files, u->n->in, 0, SEEK_HOLE, &hole) < 0 ||
	       hole < (uint64_t)u->sb.st_size;
}

/*
 * What is not pending any more: complete, which a daemon that died could not
 * write down; or somebody else's hand was there. With our trailer he has set
 * its mode only; without, the file is his now. 0, or -ENODATA.
 */
static int see_foreign_hand(struct upload *u, int path, const struct stat *sb)
{
	struct shared *s = u->s;
	struct trailer t;
	char name[4096];

	if (pending_read(path, &t) == 0 && t.number == u->n->id &&
	    strcmp(t.uuid, s->st->uuid) == 0) {
		u->keeps_mode = true;
		u->mode = sb->st_mode & 07777;
		return 0;
	}
	if (!u->n->completing || sb->st_size != u->sb.st_size) {
		node_path(s, u->n, name, sizeof(name));
		log_warning("%s/%s was changed there before it was whole: it "
			    "stays as it is there",
			    s->dir, name);
	}
	return -ENODATA;
}

/* A file that replaces another one, and is complete, has its name already. */
static bool is_in_place(struct upload *u)
{
	SCOPED(node_use_end) struct node_use parent = { .s = u->s };
	SCOPED(scope_close) int dirfd = -1;
	char name[STORE_NAME_MAX + 1];
	struct stat sb;
	ino_t engine;

	{
		HOLD(&u->s->lock);
		if (!u->n->replaces || !u->n->completing)
			return false;
		(void)snprintf(name, sizeof(name), "%s", u->n->name);
		parent.n = node_ref_locked(u->n->parent);
		engine = u->n->engine;
	}
	return node_fd(u->s, parent.n, &dirfd) == 0 &&
	       fstatat(dirfd, name, &sb, AT_SYMLINK_NOFOLLOW) == 0 &&
	       sb.st_ino == engine && !pending_is(u->s, &sb);
}

static int find_in_dir(struct upload *u, int *ret_path)
{
	int rc = node_fd(u->s, u->n, ret_path);

	return rc == -ESTALE && is_in_place(u) ? -ENODATA : rc;
}

/*
 * Is it to wait, as a tracker? What a node that was away has left may have been
 * moved meanwhile, and is known in the wrong folder: the files there are not
 * what it waits for, and may wait for it. So one that is not found is looked
 * for first.
 */
static int waits_for_step(struct upload *u)
{
	SCOPED(scope_close) int path = -1;
	bool tracker;
	int rc;

	{
		HOLD(&u->s->lock);
		tracker = tracker_is(u->n->name);
	}
	if (!tracker)
		return 0;
	rc = find_in_dir(u, &path);
	if (rc < 0)
		return rc;
	rc = tracker_waits(u->s, u->n);
	return rc == -ENODATA ? -EIO
			      : rc; /* of another file: this is not gone */
}

/* -ENODATA: complete, or nobody wants it any more. */
static int open_in_dir(struct upload *u)
{
	SCOPED(scope_close) int path = -1;
	struct stat sb;
	int rc = find_in_dir(u, &path);

	if (rc < 0)
		return rc;
	if (fstat(path, &sb) < 0)
		return -errno;
	if (sb.st_nlink == 0)
		return -ENODATA;
	if (!pending_is(u->s, &sb)) {
		/* Complete but for its name: all of it once more. */
		rc = node_replaces(u->s, u->n) ? 0
					       : see_foreign_hand(u, path, &sb);
		if (rc < 0)
			return rc;
	}
	rc = node_reopen(path, O_RDWR);
	if (rc < 0)
		return rc;
	u->fd = rc;
	if (has_leftovers(u, &sb) && ftruncate(u->fd, 0) < 0)
		return -errno;
	return 0;
}

/* From here on it is as it is; false: it is not at rest. */
static bool begin_completing(struct upload *u)
{
	struct shared *s = u->s;
	bool rests;

	calls(u, false);
	{
		HOLD(&s->lock);
		wait_for_turn_locked(s, u->n);
		if (!may_complete_locked(s, u->n) || u->n->renaming > 0 ||
		    u->n->changing > 0 || u->n->changed || s->stop ||
		    u->n->awaited_ns > mono_ns() ||
		    u->n->state != NODE_UPLOADING)
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

static int put_in_place(struct upload *u)
{
	SCOPED(node_use_end) struct node_use parent = { .s = u->s };
	SCOPED(scope_close) int dirfd = -1;
	char from[LOCAL_NEW_BYTES], to[STORE_NAME_MAX + 1];
	struct node *old = NULL;
	struct stat sb;
	int rc;

	{
		HOLD(&u->s->lock);
		node_new_name(u->n, from);
		(void)snprintf(to, sizeof(to), "%s", u->n->name);
		parent.n = node_ref_locked(u->n->parent);
	}
	rc = node_fd(u->s, parent.n, &dirfd);
	if (rc < 0)
		return rc;
	if (fstatat(dirfd, to, &sb, AT_SYMLINK_NOFOLLOW) == 0) {
		if (S_ISDIR(sb.st_mode))
			return -EISDIR;
		old = local_at(u->s, parent.n, to, &sb);
	}
	rc = renameat(u->s->home.newfd, from, dirfd, to) < 0 ? -errno : 0;
	if (rc == 0 && old && old->in && sb.st_nlink <= 1)
		local_drop(u->s, old);
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
 * dies in between knows the file for its own. This is done before the file's
 * turn; was_noted(): nobody has written another record since, or meanwhile.
 */
static int note_completing(struct upload *u)
{
	struct shared *s = u->s;
	uint64_t expected;
	bool alone;
	int rc;

	{
		HOLD(&s->lock);
		alone = u->n->saving == 0;
		expected = u->n->saves + 1;
	}
	rc = local_save(s, u->n, true);
	if (rc == 0)
		rc = kv_sync(s->st->kv);
	u->noted = rc == 0 && alone ? expected : 0;
	return rc;
}

static bool was_noted(struct upload *u)
{
	HOLD(&u->s->lock);
	return u->noted != 0 && u->n->saves == u->noted;
}

static int set_mode(struct upload *u)
{
	return fchmod(u->fd, u->keeps_mode ? u->mode : u->sb.st_mode & 07777) <
			       0
		       ? -errno
		       : 0;
}

static int sync_file(struct upload *u)
{
	return fsync(u->fd) < 0 ? -errno : 0;
}

/* All that nobody is to see yet. */
static int prepare(struct upload *u, bool replaces)
{
	struct timespec times[2] = { u->sb.st_atim, u->sb.st_mtim };
	int rc = 0;

	if (ftruncate(u->fd, u->sb.st_size) < 0 || futimens(u->fd, times) < 0)
		return -errno;
	if (replaces)
		rc = set_mode(u);
	if (rc == 0 && replaces)
		rc = sync_file(u);
	return rc;
}

/* When those that were closed before are: they are as far as this one. */
static int show(struct upload *u, bool replaces)
{
	struct shared *s = u->s;
	int rc;

	calls(u, false);
	{
		HOLD(&s->lock);
		while (!may_show_locked(s, u->n))
			cond_wait(&s->moved, &s->lock);
	}
	calls(u, true);
	rc = replaces ? put_in_place(u) : set_mode(u);
	if (rc < 0)
		return rc;
	HOLD(&s->lock);
	u->n->is_shown = true;
	cond_broadcast(&s->moved);
	return 0;
}

static int complete(struct upload *u)
{
	struct shared *s = u->s;
	bool replaces = node_replaces(s, u->n);
	struct stat sb;
	int rc = was_noted(u) ? 0 : note_completing(u);

	if (rc == 0)
		rc = prepare(u, replaces);
	if (rc == 0)
		rc = show(u, replaces);
	if (rc == 0 && !replaces)
		rc = sync_file(u);
	if (rc < 0) {
		/*
		 * Or the next try takes it for whole, whatever it is by then;
		 * and who links to it, while it is in new/, shows it.
		 */
		(void)fchmod(u->fd, pending_mode(s));
		return rc;
	}
	if (fstat(u->fd, &sb) < 0)
		return -errno;
	{
		HOLD(&s->lock);
		if (u->n->state != NODE_COMPLETING)
			return 0;
		if (u->n->replaces) {
			LIST_REMOVE(u->n, replacing);
			u->n->replaces = false;
		}
		local_set_kept_locked(u->n, &sb);
		if (!is_untouched(u, &sb))
			u->n->kept_size = UINT64_MAX; /* no file has it */
		queue_keep_locked(s, u->n, (uint64_t)u->sb.st_size);
		s->figures.uploaded++;
		s->figures.uploaded_bytes += (uint64_t)u->sb.st_size;
		queue_remove_locked(s, u->n);
		cond_broadcast(&s->moved);
	}
	return local_save(s, u->n, false);
}

static int upload_begun(struct upload *u, enum upload_end *ret)
{
	int rc;

	*ret = UPLOAD_CHANGED;
	rc = inode_load_file(u->s->st->inodes, u->n->in);
	if (rc == -ESTALE)
		*ret = UPLOAD_GONE;
	if (rc < 0)
		return rc == -ESTALE ? 0 : rc;
	if (!is_at_rest(u->n))
		return 0;
	rc = waits_for_step(u);
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
		rc = pending_write(u->s, u->n, u->fd, (uint64_t)u->sb.st_size,
				   false);
	if (rc == 0)
		rc = copy_bytes(u);
	if (rc == 0 && !is_disturbed(u))
		rc = note_completing(u);
	if (rc == -ESTALE && is_disturbed(u))
		rc = 0;
	else if (rc == 0 && begin_completing(u)) {
		rc = complete(u);
		*ret = UPLOAD_DONE;
	}
	return rc;
}

/* --- what becomes of it --------------------------------------------------- */

static void say_failed(struct shared *s, struct node *n, int rc)
{
	char path[4096];

	node_path(s, n, path, sizeof(path));
	log_error("%s/%s cannot be written there: %s; it is kept here, and "
		  "tried again",
		  s->dir, path, strerror(-rc));
}

static void put_back(struct upload *u, enum upload_end end, int rc)
{
	struct shared *s = u->s;
	struct node *n = u->n;
	int64_t wait = LOOK_AGAIN_NS;
	bool open = is_open(n), first = false, may_last;

	{
		HOLD(&s->lock);
		n->is_taken = false;
		n->is_shown = false;
		if (n->state == NODE_UPLOADING || n->state == NODE_COMPLETING)
			n->state = NODE_PENDING;
		if (n->state == NODE_GONE)
			rc = 0; /* whatever went wrong: nobody wants it */
		if (rc < 0) {
			n->failures++;
			/* Where it is now is looked for first. */
			first = n->failures ==
					(rc == -ESTALE ? STALE_TRIES : 1) ||
				(n->error != rc && rc != -ESTALE);
			n->error = rc;
			s->figures.error = rc;
			s->search = s->search || rc == -ESTALE;
			wait = RETRY_FIRST_NS
			       << (n->failures < 9 ? n->failures : 9);
			if (wait > RETRY_MOST_NS)
				wait = RETRY_MOST_NS;
		} else {
			n->failures = 0;
			n->error = 0;
			if (end == UPLOAD_DONE)
				s->figures.error = 0;
		}
		may_last = end == UPLOAD_WAITS || n->renaming > 0 ||
			   n->changing > 0 || n->awaited_ns > mono_ns() || open;
		if (n->state == NODE_PENDING) {
			queue_add_locked(s, n, n->place);
			if (!n->is_told)
				n->is_passed = rc < 0 || may_last;
			if (rc < 0 || !n->is_told)
				n->due_ns = mono_ns() + wait;
		}
		cond_broadcast(&s->moved);
	}
	if (first)
		say_failed(s, n, rc);
}

static void upload(struct shared *s, struct node *n, unsigned thread)
{
	struct upload u = { .s = s, .n = n, .thread = thread, .fd = -1 };
	enum upload_end end;
	int rc;

	calls(&u, true);
	rc = upload_begun(&u, &end);
	if (u.fd >= 0)
		(void)close(u.fd);
	calls(&u, false);
	if (rc == 0 && end == UPLOAD_GONE)
		local_drop(s, n);
	put_back(&u, end, rc);
	node_put(s, n);
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
		struct node *n = NULL;
		int64_t due;

		{
			HOLD(&s->lock);
			while (!s->stop && !(n = take_locked(s, &due)))
				(void)cond_wait_until(&s->idle, &s->lock, due);
		}
		if (!n)
			return NULL;
		upload(s, n, me.thread);
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
