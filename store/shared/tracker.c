/*
 * tracker.c - what tells others that a step is there must not be there first:
 * a tracker is completed when no file of the step that it names, or lies in, is
 * pending, whichever node has it.
 *
 * Sticky bits say so; and what is to replace a file is a ticket, by the number
 * of its folder. A step with a file that is lost is never whole: its tracker
 * fails (EUCLEAN), and is tried again, until that file is removed or written
 * again.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/dir.h"
#include "store/base/io.h"
#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/file/file.h"
#include "store/shared/pending.h"
#include "store/shared/shared_private.h"

#define DEPTH_MAX 64
/*
 * So often what was pending is asked for alone: it may have been moved to
 * another folder, and then the step does not wait for it any more.
 */
#define LAST_LOOKS_MAX 10u
/*
 * Whose it is, and whether that node is there, is looked for by who waits, when
 * that lasts, and then now and again: each node is asked.
 */
#define LASTS_NS (INT64_C(2) * 1000000000)
#define ASK_AGAIN_NS (INT64_C(10) * 1000000000)

/* What a walk looks for, and found. */
struct search {
	struct shared *s;
	bool trackers; /* these too */
	struct tracker_last *last; /* NULL: nobody asks again */
};

static int find_in(const struct search *w, int dirfd, unsigned depth);

static int found(const struct tracker_last *last)
{
	return last->is_lost ? -EUCLEAN : 1;
}

/* Is what was found at the last look pending still? As then; 0: no. */
static int look_at_last(struct shared *s, struct tracker_last *last)
{
	struct stat sb;

	if (last->fd < 0)
		return 0;
	/* With one name it is in own/ alone: it was removed. */
	if (last->looks++ < LAST_LOOKS_MAX && fstat(last->fd, &sb) == 0 &&
	    sb.st_nlink > 1 && pending_is(s, &sb)) {
		char node[SHARED_NODE_MAX + 1];

		/* Its node may join again. */
		if (last->is_lost)
			last->is_lost =
				pending_lost_with(s->home.homefd, last->number,
						  node) == PENDING_LOST;
		return found(last);
	}
	(void)close(last->fd);
	last->fd = -1;
	last->looks = 0;
	return 0;
}

/* It is another one than before, perhaps. */
static void note(struct tracker_last *last, ino_t number, const char *node)
{
	if (last->number == number && (!node || strcmp(last->node, node) == 0))
		return;
	last->number = number;
	last->asked_ns = 0;
	last->is_dead = false;
	(void)snprintf(last->node, sizeof(last->node), "%s", node ? node : "");
}

/* A name of the step is pending. */
static int note_found(const struct search *w, int dirfd, const char *name,
		      ino_t number)
{
	struct tracker_last *last = w->last;
	char node[SHARED_NODE_MAX + 1];

	if (!last)
		return 1;
	last->fd = openat(dirfd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	last->is_lost = pending_lost_with(w->s->home.homefd, number, node) ==
			PENDING_LOST;
	note(last, number, last->is_lost ? node : NULL);
	return found(last);
}

static int look_at(const struct search *w, int dirfd, const struct dirent *e,
		   unsigned depth)
{
	SCOPED(scope_close) int fd = -1;
	struct stat sb;

	if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
		return 0;
	if (e->d_type != DT_UNKNOWN && e->d_type != DT_REG &&
	    e->d_type != DT_DIR)
		return 0;
	if (fstatat(dirfd, e->d_name, &sb, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (pending_is(w->s, &sb)) {
		if (!w->trackers && tracker_is(e->d_name))
			return 0;
		if (sb.st_nlink == 1 && own_take_left(w->s, dirfd, e->d_name))
			return 0;
		return note_found(w, dirfd, e->d_name, sb.st_ino);
	}
	if (!S_ISDIR(sb.st_mode))
		return 0;
	if (depth == 0)
		return -ELOOP;
	fd = openat(dirfd, e->d_name,
		    O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT || errno == ENOTDIR ? 0 : -errno;
	return find_in(w, fcntl(fd, F_DUPFD_CLOEXEC, 0), depth - 1);
}

static bool is_any(const char *name)
{
	(void)name;
	return true;
}

static bool is_no_tracker(const char *name)
{
	return !tracker_is(name);
}

/* What is to replace a file in it is not whole, either. */
static int find_tickets(const struct search *w, int dirfd)
{
	struct stat sb;

	char node[SHARED_NODE_MAX + 1];
	int rc;

	if (fstat(dirfd, &sb) < 0)
		return -errno;
	rc = ticket_any_in(w->s->home.nextfd, sb.st_ino,
			   w->trackers ? is_any : is_no_tracker, node);
	if (rc > 0 && w->last) {
		note(w->last, 0, node);
		w->last->is_lost = false;
	}
	return rc;
}

/* Takes dirfd. */
static int find_in(const struct search *w, int dirfd, unsigned depth)
{
	int rc = dirfd < 0 ? -errno : dir_ask_anew(dirfd);
	DIR *d;
	struct dirent *e;

	d = rc == 0 ? fdopendir(dirfd) : NULL;
	if (!d) {
		rc = rc < 0 ? rc : -errno;
		if (dirfd >= 0)
			(void)close(dirfd);
		return rc;
	}
	while (rc == 0 && (errno = 0, e = readdir(d)))
		rc = look_at(w, dirfd, e, depth);
	if (rc == 0 && !e && errno != 0)
		rc = -errno;
	/* After that: what is pending in the folder becomes a ticket. */
	if (rc == 0)
		rc = find_tickets(w, dirfd);
	(void)closedir(d);
	return rc;
}

int tracker_find_pending(struct shared *s, int dirfd, bool trackers,
			 struct tracker_last *last)
{
	const struct search w = { s, trackers, last };
	int rc = last ? look_at_last(s, last) : 0;
	int fd;

	if (rc != 0)
		return rc;
	fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? -errno : find_in(&w, fd, DEPTH_MAX);
}

/* What the tracker says, of which DIR has the bytes. */
static int read_word_there(struct shared *s, struct node *n,
			   char ret[TRACKER_WORD_BYTES])
{
	SCOPED(scope_close) int path = -1, fd = -1;
	char text[TRACKER_BYTES_MAX + 1];
	size_t len = 0;
	int rc = node_fd(s, n, &path);

	ret[0] = 0;
	if (rc < 0)
		return rc;
	fd = node_reopen(path, O_RDONLY);
	rc = fd < 0 ? fd : io_read(fd, text, sizeof(text), 0, &len);
	if (rc == 0 && len <= TRACKER_BYTES_MAX)
		tracker_word(text, len, ret);
	return rc;
}

/* What the tracker says. */
static int read_word(struct shared *s, struct node *n,
		     char ret[TRACKER_WORD_BYTES])
{
	struct files *files = &s->st->files;
	char text[TRACKER_BYTES_MAX + 1];
	struct file_read r = { 0 };
	size_t len = 0;
	struct stat sb;
	int rc;

	if (!n->in)
		return read_word_there(s, n, ret);
	rc = inode_stat(s->st->inodes, n->in, &sb);
	ret[0] = 0;
	if (rc < 0 || sb.st_size > TRACKER_BYTES_MAX)
		return rc;
	rc = file_read_begin(files, n->in, TRACKER_BYTES_MAX, 0, &r);
	for (int i = 0; rc == 0 && i < r.count; i++) {
		memcpy(text + len, r.iov[i].iov_base, r.iov[i].iov_len);
		len += r.iov[i].iov_len;
	}
	file_read_end(files, &r);
	if (rc == 0)
		tracker_word(text, len, ret);
	return rc;
}

/* Is there no folder of that name? */
static bool is_no_step(int error)
{
	return error == ENOENT || error == ENOTDIR || error == ELOOP ||
	       error == ENAMETOOLONG;
}

struct named {
	const struct search *w;
	int dirfd;
};

/* A folder beside it that a tracker may mean by its word. */
static int find_named(void *arg, const char *name)
{
	const struct named *n = arg;
	int fd = openat(n->dirfd, name,
			O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd >= 0)
		return find_in(n->w, fd, DEPTH_MAX);
	return is_no_step(errno) ? 0 : -errno; /* who knows? */
}

int tracker_waits_as(struct shared *s, struct node *n, struct node *parent,
		     const char *name, struct tracker_last *last)
{
	const struct search w = { s, true, last };
	struct named named = { .w = &w };
	SCOPED(scope_close) int dirfd = -1;
	char word[TRACKER_WORD_BYTES];
	int rc;

	if (!tracker_is(name))
		return 0;
	rc = node_fd(s, parent, &dirfd);
	if (rc < 0)
		return rc;
	named.dirfd = dirfd;
	if (!tracker_is_of_steps(name)) /* it lies in the step */
		return tracker_find_pending(s, dirfd, false, last);
	rc = last ? look_at_last(s, last) : 0;
	if (rc == 0)
		rc = read_word(s, n, word);
	return rc != 0 ? rc : tracker_each_step(word, find_named, &named);
}

/* One that is not there at all has left a ticket, and nobody forgets it. */
static bool is_away(int homefd, const char *node)
{
	struct shared_node n;

	return shared_node_is_dead(homefd, node) ||
	       shared_look_node(homefd, node, &n) == -ENOENT;
}

void tracker_ask_whose(struct shared *s, struct tracker_last *last)
{
	int homefd = s->home.homefd, rc;
	struct stat sb;

	if (last->is_lost)
		return;
	if (last->fd >= 0 && (fstat(last->fd, &sb) < 0 || !pending_is(s, &sb)))
		return; /* it has come */
	last->asked_ns = mono_ns();
	if (last->number != 0) {
		rc = pending_owner(homefd, last->number, last->node);
		last->is_dead = rc == 0;
		if (rc <= 0)
			strcpy(last->node, "?");
		if (rc != PENDING_OF_NODE)
			return;
	}
	last->is_dead = last->node[0] && is_away(homefd, last->node);
}

/* What it is called now, from DIR; "" if that is not known. */
static void path_of(const struct shared *s, const struct tracker_last *last,
		    char ret[SHARED_WAIT_PATH_BYTES])
{
	size_t dir = strlen(s->dir), at;
	char fd[SHARED_PATH_BYTES], path[4096];
	ssize_t len;

	ret[0] = 0;
	if (last->fd < 0)
		return;
	(void)snprintf(fd, sizeof(fd), "/proc/self/fd/%d", last->fd);
	len = readlink(fd, path, sizeof(path) - 1);
	if (len < 0)
		return;
	path[len] = 0;
	at = strncmp(path, s->dir, dir) == 0 && path[dir] == '/' ? dir + 1 : 0;
	(void)snprintf(ret, SHARED_WAIT_PATH_BYTES, "%.*s",
		       SHARED_WAIT_PATH_BYTES - 1, path + at);
}

void tracker_say_lost(struct shared *s, struct node *n,
		      const struct tracker_last *last)
{
	char path[4096], file[SHARED_WAIT_PATH_BYTES];

	path_of(s, last, file);
	node_path(s, n, path, sizeof(path));
	log_error("%s/%s does not come: %s is lost with node %s, which was "
		  "forgotten; remove that file, or write it again",
		  s->dir, path, file[0] ? file : "a file of it", last->node);
}

static enum shared_wait_for state_of(const struct tracker_last *last)
{
	if (last->is_lost)
		return SHARED_WAIT_LOST;
	if (last->asked_ns == 0)
		return SHARED_WAIT_UNKNOWN;
	return last->is_dead ? SHARED_WAIT_AWAY : SHARED_WAIT_ALIVE;
}

void tracker_note_wait(struct shared *s, struct node *n,
		       struct tracker_last *last)
{
	struct shared_wait is = { .node = "" };
	bool asks = waits_for_ns(s, last) >= LASTS_NS &&
		    (last->asked_ns == 0 ||
		     mono_ns() - last->asked_ns >= ASK_AGAIN_NS);

	if (asks)
		tracker_ask_whose(s, last);
	else if (last->looks > 0) /* nothing is new since the walk */
		return;
	node_path(s, n, is.path, sizeof(is.path));
	path_of(s, last, is.file);
	memcpy(is.node, last->node, sizeof(is.node));
	is.state = state_of(last);
	waits_note(s, last, &is);
}

int tracker_waits(struct shared *s, struct node *n)
{
	SCOPED(node_use_end) struct node_use parent = { .s = s };
	char name[STORE_NAME_MAX + 1];

	{
		HOLD(&s->lock);
		(void)snprintf(name, sizeof(name), "%s", n->name);
		parent.n = node_ref_locked(n->parent);
	}
	return tracker_waits_as(s, n, parent.n, name, &n->last);
}
