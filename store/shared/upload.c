/*
 * upload.c - what was closed goes to DIR, in the order in which it was closed.
 *
 * Threads take the oldest file that may be taken, and copy its bytes: several
 * files at a time, but each is completed only when those that were closed
 * before it are, unless they failed, are open again, or are trackers that wait
 * (tracker.c). Completing is
 *
 *   a trailer behind where the bytes end, the bytes, fsync,
 *   [from here on nobody changes the file here]
 *   cut the trailer off, times, mode, fsync
 *   [a file that replaces another one: rename]
 *
 * Before the cut the database says that it comes, so that a node that dies in
 * between knows the file for its own.
 *
 * A call that DIR does not answer holds one thread, and no lock. What fails is
 * tried again for ever, at longer and longer intervals.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "store/base/interrupt.h"
#include "store/base/io.h"
#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/drain/drain.h"
#include "store/file/file.h"
#include "store/file/state.h"
#include "store/shared/shared_private.h"

#define SECOND_NS INT64_C(1000000000)
#define READ_BYTES_MAX (8u << 20)
#define RETRY_FIRST_NS (SECOND_NS / 4)
#define RETRY_MOST_NS (60 * SECOND_NS)
#define LOOK_AGAIN_NS (SECOND_NS / 5)
/* So often it is looked for before anybody is told that it is not found. */
#define STALE_TRIES 8
/* At the end of a mount: for as long without a file that was completed. */
#define STOP_WITHOUT_PROGRESS_NS (10 * SECOND_NS)

enum upload_end {
	UPLOAD_DONE,
	UPLOAD_CHANGED, /* it is open, or was changed: later */
	UPLOAD_WAITS, /* a tracker whose step is not whole */
	UPLOAD_GONE, /* nobody wants it any more */
};

/* --- whose turn it is; the lock is held ------------------------------------ */

/* The oldest that may be taken now; else until when to wait, in *ret_due. */
static struct node *take_locked(struct shared *s, int64_t *ret_due)
{
	int64_t now = mono_ns();
	bool tracker_before = false;
	struct node *n;

	*ret_due = now + SECOND_NS;
	TAILQ_FOREACH(n, &s->queue, queued)
	{
		bool tracker = tracker_is(n->name);

		if (!n->is_taken && n->due_ns <= now &&
		    !(tracker && tracker_before) && n->state == NODE_PENDING) {
			n->is_taken = true;
			n->changed = false;
			n->state = NODE_UPLOADING;
			return node_ref_locked(n);
		}
		if (n->due_ns > now && n->due_ns < *ret_due)
			*ret_due = n->due_ns;
		tracker_before = tracker_before || tracker;
	}
	return NULL;
}

/* May n be completed, as far as the order goes? */
static bool is_next_locked(struct shared *s, const struct node *n)
{
	const struct node *o;

	TAILQ_FOREACH(o, &s->queue, queued)
	{
		if (o == n)
			return true;
		if (o->failures == 0 && o->due_ns == 0 && !tracker_is(o->name))
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

static int write_vectors(int fd, const struct iovec *iov, int count,
			 uint64_t off, size_t *ret_len)
{
	size_t done = 0;

	for (int i = 0; i < count;) {
		ssize_t n = pwritev(fd, iov + i, count - i, (off_t)(off + done));
		size_t left;

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		done += (size_t)n;
		left = (size_t)n;
		while (i < count && left >= iov[i].iov_len)
			left -= iov[i++].iov_len;
		if (left > 0) { /* a part of one: the rest by itself */
			const struct iovec *v = &iov[i++];
			int rc = io_write_full(fd,
					       (const char *)v->iov_base + left,
					       v->iov_len - left, off + done);

			if (rc < 0)
				return rc;
			done += v->iov_len - left;
		}
	}
	*ret_len = done;
	return 0;
}

static bool is_disturbed(struct upload *u)
{
	HOLD(&u->s->lock);
	return u->n->changed || u->n->state == NODE_GONE;
}

static int copy_bytes(struct upload *u)
{
	struct files *files = &u->s->st->files;
	uint64_t size = (uint64_t)u->sb.st_size, off = 0;

	while (off < size && !is_disturbed(u)) {
		struct file_read r = { 0 };
		size_t len = 0;
		int rc = file_seek(files, u->n->in, off, SEEK_DATA, &off);

		if (rc == -ENXIO) /* a hole to the end */
			return 0;
		if (rc < 0)
			return rc;
		rc = file_read_begin(files, u->n->in,
					 size - off < READ_BYTES_MAX
						 ? (size_t)(size - off)
						 : READ_BYTES_MAX,
					 off, &r);

		if (rc == 0)
			rc = write_vectors(u->fd, r.iov, r.count, off, &len);
		file_read_end(files, &r);
		if (rc == 0 && len == 0)
			rc = -ESTALE; /* it is shorter now */
		if (rc < 0)
			return rc;
		off += len;
		calls(u, true);
	}
	return 0;
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

/* -ENODATA: complete, or nobody wants it any more. */
static int open_in_dir(struct upload *u)
{
	SCOPED(scope_close) int path = -1;
	struct stat sb;
	int rc = node_fd(u->s, u->n, &path);

	if (rc == -ESTALE && is_in_place(u))
		return -ENODATA;
	if (rc < 0)
		return rc;
	if (fstat(path, &sb) < 0)
		return -errno;
	if (sb.st_nlink == 0)
		return -ENODATA;
	if (!pending_is(u->s, &sb)) {
		/* Complete but for its name: all of it once more. */
		rc = node_replaces(u->s, u->n) ? 0 : see_foreign_hand(u, path, &sb);
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

	{
		HOLD(&s->lock);
		while ((!is_next_locked(s, u->n) || u->n->renaming > 0) &&
		       !s->stop)
			cond_wait(&s->moved, &s->lock);
		if (u->n->changing > 0 || u->n->changed || s->stop ||
		    u->n->awaited_ns > mono_ns() ||
		    u->n->state != NODE_UPLOADING)
			return false;
		u->n->kept_size = (uint64_t)u->sb.st_size;
		u->n->state = NODE_COMPLETING;
	}
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

	return !u->keeps_mode && (sb->st_mode & 07777) == (own->st_mode & 07777) &&
	       sb->st_uid == own->st_uid && sb->st_gid == own->st_gid &&
	       sb->st_size == own->st_size &&
	       sb->st_mtim.tv_sec == own->st_mtim.tv_sec;
}

static int complete(struct upload *u)
{
	struct timespec times[2] = { u->sb.st_atim, u->sb.st_mtim };
	struct shared *s = u->s;
	struct stat sb;
	int rc = local_save(s, u->n, true);

	if (rc == 0)
		rc = kv_sync(s->st->kv);
	if (rc < 0)
		return rc;
	if (ftruncate(u->fd, u->sb.st_size) < 0 || futimens(u->fd, times) < 0 ||
	    fchmod(u->fd, u->keeps_mode ? u->mode : u->sb.st_mode & 07777) <
		    0 ||
	    fsync(u->fd) < 0)
		return -errno;
	if (node_replaces(s, u->n)) {
		rc = put_in_place(u);
		if (rc < 0)
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
		queue_keep_locked(s, u->n);
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
	rc = tracker_waits(u->s, u->n);
	if (rc != 0) {
		*ret = UPLOAD_WAITS;
		return rc < 0 ? rc : 0;
	}
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
	if (rc == 0 && fsync(u->fd) < 0)
		rc = -errno;
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
	bool first = false;

	{
		HOLD(&s->lock);
		n->is_taken = false;
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
		if (n->state == NODE_PENDING) {
			queue_add_locked(s, n, n->place);
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
				(void)cond_wait_until(&s->moved, &s->lock, due);
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
	}
	while (s->thread_count > 0)
		thread_join(&s->threads[--s->thread_count]);
}

/* --- who waits ------------------------------------------------------------ */

/* Is a file that was closed here before `place` not in DIR, below the folder? */
static bool has_pending_locked(struct shared *s, const struct node *dir,
			       uint64_t place)
{
	const struct node *n;

	TAILQ_FOREACH(n, &s->queue, queued)
	if (n->place < place && (!dir || node_is_under_locked(n, dir)))
		return true;
	return false;
}

/* Those of other nodes, of which a walk says when they are whole. */
int upload_wait_for_others(struct shared *s, struct node *dir)
{
	int64_t pause = SECOND_NS / 50;

	for (;;) {
		SCOPED(scope_close) int fd = -1;
		int rc = node_fd(s, dir, &fd);

		if (rc == 0)
			rc = tracker_find_pending(s, fd, true);
		if (rc == -ESTALE) /* it is elsewhere: the rename will see */
			return 0;
		if (rc <= 0)
			return rc;
		if (interrupt_is_due())
			return -EINTR;
		HOLD(&s->lock);
		(void)cond_wait_until(&s->moved, &s->lock, mono_ns() + pause);
		if (pause < SECOND_NS / 2)
			pause *= 2;
	}
}

int upload_wait(struct shared *s, struct node *dir)
{
	uint64_t place;
	bool pending;
	int rc = drain_sync_closed(s->st->drain);

	if (rc < 0)
		return rc;
	{
		HOLD(&s->lock);
		place = s->next_place;
	}
	for (;;) {
		{
			HOLD(&s->lock);
			pending = has_pending_locked(s, dir, place);
			if (pending)
				(void)cond_wait_until(&s->moved, &s->lock,
						      mono_ns() +
							      SECOND_NS / 10);
		}
		if (!pending)
			break;
		if (interrupt_is_due())
			return -EINTR;
	}
	return dir ? upload_wait_for_others(s, dir) : 0;
}

int shared_flush(struct shared *s)
{
	return upload_wait(s, NULL);
}

void upload_finish(struct shared *s)
{
	uint64_t left = 0, seen = UINT64_MAX;
	int64_t end_ns = 0;

	(void)drain_sync_tree(s->st->drain, ROOT_INO);
	for (;;) {
		HOLD(&s->lock);
		if (TAILQ_EMPTY(&s->queue))
			break;
		if (s->figures.uploaded != seen) {
			seen = s->figures.uploaded;
			end_ns = mono_ns() + STOP_WITHOUT_PROGRESS_NS;
		}
		if (!cond_wait_until(&s->moved, &s->lock, end_ns) &&
		    s->figures.uploaded == seen)
			break;
	}
	{
		struct node *n;

		HOLD(&s->lock);
		TAILQ_FOREACH(n, &s->queue, queued)
		left++;
	}
	if (left > 0)
		log_warning("%s: %llu files of this node are not whole there "
			    "yet; they go on with the next mount",
			    s->dir, (unsigned long long)left);
}
