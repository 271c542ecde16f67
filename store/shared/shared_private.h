/*
 * shared_private.h - between the files of this folder.
 *
 * A node is what is known of one file of DIR. It is found by its number and by
 * its inode number in DIR; it remembers the name by which it was seen last, and
 * a descriptor, which survives renames by others.
 *
 * What a local file is, and who moves it:
 *
 *   NODE_MAKING ---> NODE_PENDING <---> NODE_UPLOADING ---> NODE_COMPLETING
 *      (create)          |     (upload.c: bytes are copied)      |
 *                        |                                       v
 *                        +---------> NODE_GONE <----------- NODE_KEPT
 *                               (deleted, replaced, given up)
 *
 * Whoever changes a pending file is counted in `changing` meanwhile. What an
 * upload brings has a number, which moves when it is changed: its bytes, its
 * mode, or its name, if that is a tracker's now. An upload that finds another number
 * than it began with is void. Nobody changes what is being completed: he waits.
 */
#ifndef STORE_SHARED_PRIVATE_H
#define STORE_SHARED_PRIVATE_H

#include <fcntl.h>
#include <stdio.h>
#include <sys/queue.h>
#include <unistd.h>

#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/guard/guard_table.h"
#include "store/shared/home.h"
#include "store/shared/shared.h"
#include "store/shared/ticket.h"
#include "store/step/tracker.h"

enum node_state {
	NODE_OF_DIR, /* no local file */
	NODE_MAKING,
	NODE_PENDING,
	NODE_UPLOADING,
	NODE_COMPLETING,
	NODE_KEPT,
	NODE_GONE,
};

/*
 * Who waits for a step asks again and again: for the file alone that was
 * pending at the last walk, and not for each of thousands.
 */
struct tracker_last {
	int fd; /* O_PATH, or -1 */
	unsigned looks; /* since the walk */
	ino_t number; /* of the file; 0: it is a ticket, or nothing */
	char node[SHARED_NODE_MAX + 1]; /* whose it is; "": not asked yet */
	bool is_lost; /* with it: it never comes */
	bool is_dead; /* the node, or it is nobody's: when it was asked */
	int64_t asked_ns; /* 0: not yet */
	struct wait_note *note; /* waits.c: while it waits; or NULL */
};
#define TRACKER_LAST_NONE ((struct tracker_last){ .fd = -1 })

static inline void tracker_last_release(struct tracker_last *last)
{
	if (last->fd >= 0)
		(void)close(last->fd);
	*last = TRACKER_LAST_NONE;
}

struct node {
	LIST_ENTRY(node) by_id, by_engine;
	uint64_t id;
	bool in_engine; /* it is in the second table */
	ino_t engine; /* its inode number in DIR; 0: not known */
	uint32_t type; /* S_IFMT bits */
	uint64_t lookups; /* the kernel's, but for local files */
	unsigned refs;
	struct node *parent; /* a reference; NULL: the root, or not known */
	char *name; /* owned; in parent */
	int fd; /* O_PATH, or -1; see node_fd.c */
	TAILQ_ENTRY(node) seen;
	bool is_seen; /* the descriptor is kept since a look-up, at seen_ns */
	int64_t seen_ns;
	/* Of what is DIR's: */
	unsigned opens;
	ino_t opened; /* which file of DIR, for the first of those */
	int backing_id;
	/* Of local files: */
	enum node_state state;
	struct inode *in; /* a reference */
	bool has_link; /* in own/: who clears it removes that */
	nlink_t links; /* DIR's file's, when it was looked at last; 0: never */
	char *ticket; /* DIR's file is that, until it is complete; owned */
	bool completing; /* it may be complete, as its records are to say */
	bool saving; /* a record is being written, and the next one waits */
	LIST_ENTRY(node) replacing;
	unsigned changing;
	uint64_t number; /* of what an upload would bring now */
	unsigned renaming; /* who moves it in DIR; it is not completed then */
	/* It is a ticket for a file that was emptied; it is locked: in_place.c
	 */
	bool empties, is_locked;
	bool undone; /* of no use but to him who was sent to it: empty.c */
	bool dropped; /* given up: who comes to write has to look again */
	TAILQ_ENTRY(node) queued; /* to be uploaded, by place */
	bool is_queued, is_taken;
	bool is_passed; /* those that were closed after it do not wait for it */
	/* What was closed, or is committed, is not durable: not to be taken. */
	bool is_staged;
	bool is_copying; /* a large one: see upload_copy.c */
	bool is_shown; /* NODE_COMPLETING: it has its mode, or its name */
	uint64_t place; /* in the store's order of closes */
	int64_t since_ns, due_ns;
	unsigned failures;
	int error;
	struct tracker_last last; /* of who has taken it */
	bool wanted; /* another node waits for it */
	TAILQ_ENTRY(node) kept; /* while it is NODE_KEPT: the oldest first */
	/* What DIR's file was when it was complete. */
	uint64_t kept_bytes; /* that it takes here */
	uint64_t kept_size;
	int64_t kept_mtime_ns, kept_ctime_ns;
};

#define NODE_BUCKETS 16384u
#define NODE_DEPTH_MAX 256u /* folders in each other, of a path */
/* Files on their way at a time, of which most wait for DIR. */
#define UPLOAD_THREADS 16u
#define DROPPED_MAX 512u

/* A local file that was given up, and where it was: node numbers. */
struct dropped {
	uint64_t id, parent;
	char name[STORE_NAME_MAX + 1];
};

struct shared {
	struct store *st; /* borrowed */
	struct shared_home home;
	char *dir; /* owned: the path of DIR */
	unsigned pending_wait_s;
	char *direct; /* owned; NULL: none */
	uint64_t local_keep_bytes;
	bool as_root;
	dev_t dev;
	struct lock lock; /* guards everything below, and all nodes */
	struct cond moved; /* a local file's state, the queue */
	struct cond idle; /* of an uploader that has nothing to do */
	LIST_HEAD(node_list, node) by_id[NODE_BUCKETS];
	struct node_list by_engine[NODE_BUCKETS], replacing;
	struct node *root;
	uint64_t next_node, next_local, next_ticket;
	uint64_t first_ticket; /* of this daemon */
	uint64_t kept_bytes; /* of all that is kept */
	unsigned wanted; /* nodes that are */
	unsigned fds, fds_max;
	TAILQ_HEAD(node_queue, node) queue, kept, seen;
	LIST_HEAD(, lock_owner) lock_owners; /* locks.c */
	LIST_HEAD(, sent) sent; /* sent.c */
	LIST_HEAD(, drop) drops; /* drops.c */
	LIST_HEAD(, wait_note) waits; /* waits.c */
	/* The last local files that were given up: see shared_change_begin() */
	struct dropped dropped[DROPPED_MAX];
	unsigned next_dropped;
	struct shared_figures figures;
	/* Since when each thread is in a call to DIR; 0: it is in none. */
	int64_t calling_ns[UPLOAD_THREADS];
	unsigned waiting; /* of those, for the turn of their file */
	unsigned pausing; /* ... for the next try of one that keeps its turn */
	bool stop;
	int64_t search_due_ns;
	/* DIR itself, and when it was asked last: see shared_stat(). */
	struct stat root_stat;
	int64_t answered_ns;
	bool search; /* a pending file is not where it was: local_search() */
	bool unfinished; /* a call of the last daemon has left its ticket */
	/* Of DIR, owned: made here, and not durable before the start: own.c */
	ino_t *lost;
	size_t lost_count;
	/* Of DIR, owned: links to be removed once what was forgotten is durable
	 */
	ino_t *unlinks;
	size_t unlink_count, unlink_room;
	struct thread threads[UPLOAD_THREADS];
	unsigned thread_count;
	struct thread alive;
	bool is_alive; /* that one was started */
	bool is_forgotten; /* no node knows it any more: nothing new is made */
	int64_t alive_due_ns; /* of that thread alone */
	struct guard_table local_table; /* of local files: steps.c */
};

/* --- what a file of DIR is */

static inline mode_t pending_mode(const struct shared *s)
{
	/* A daemon that is not root has no other way to its own files. */
	return s->as_root ? S_ISVTX : S_ISVTX | S_IRUSR | S_IWUSR;
}

static inline bool pending_is(const struct shared *s, const struct stat *sb)
{
	return S_ISREG(sb->st_mode) && (sb->st_mode & 07777) == pending_mode(s);
}

/* Did DIR get this time? Some keep a part of it: microseconds, whole seconds.
 */
static inline bool node_is_time(const struct timespec *there, int64_t own_ns)
{
	int64_t lost_ns = own_ns - io_ns(there);

	return lost_ns == 0 || (lost_ns > 0 && there->tv_nsec % 100 == 0 &&
				there->tv_sec == io_timespec(own_ns).tv_sec);
}

/* Does it have what is kept of it here? */
static inline bool node_is_current(const struct node *n, const struct stat *sb)
{
	return (uint64_t)sb->st_size == n->kept_size &&
	       io_ns(&sb->st_mtim) == n->kept_mtime_ns &&
	       io_ns(&sb->st_ctim) == n->kept_ctime_ns;
}

/* --- queue.c: what is to be uploaded, by place. The lock is held. */

/* An upload of it that has begun is void: see `number`. */
void queue_changed_locked(struct shared *s, struct node *n);
/* At the place, unless it has one that is later. */
void queue_add_locked(struct shared *s, struct node *n, uint64_t place);
void queue_remove_locked(struct shared *s, struct node *n);
/* It is whole in DIR, and what is here is a cache; or is none any more. */
void queue_keep_locked(struct shared *s, struct node *n, uint64_t bytes);
/* It is read here: it goes after the others. */
void queue_read_locked(struct shared *s, struct node *n);
/* Another node waits for it. */
void queue_want_locked(struct shared *s, struct node *n);
void queue_unkeep_locked(struct shared *s, struct node *n, enum node_state to);
/*
 * The oldest that may be taken now, one that another node waits for before it;
 * NULL: *ret_due is when to look again.
 */
struct node *queue_next_locked(struct shared *s, int64_t *ret_due);
/*
 * May the last calls of n begin, as far as the order goes? Of what somebody
 * waits for they may: a tracker looks for itself whether its step is whole.
 */
bool queue_may_complete_locked(const struct shared *s, const struct node *n);
/* Is one that was closed before n, and holds it back, in no thread's hands? */
bool queue_left_before_locked(const struct shared *s, const struct node *n);
/*
 * May n be shown? Those that held it back when its last calls began were in
 * theirs. One that was open then, and is closed since, does not hold it back
 * now: it may wait for a rename, and that for the last calls of n.
 */
bool queue_may_show_locked(const struct shared *s, const struct node *n);

/* --- nodes.c */

/* A node that is in no table yet. The lock is held. */
void node_insert_locked(struct shared *s, struct node *n, ino_t engine);
/* All of them, when nobody has a reference any more. */
void nodes_free(struct shared *s);
struct node *node_find_locked(struct shared *s, uint64_t id);
/* The pending local file that is this one of DIR; a reference, or NULL. */
struct node *node_of_engine(struct shared *s, ino_t engine);
bool node_is_local(struct shared *s, ino_t engine); /* is there such a one? */
/* One more reference, or NULL. */
struct node *node_get(struct shared *s, uint64_t id);
struct node *node_ref_locked(struct node *n);
void node_put(struct shared *s, struct node *n);
/* Its descriptor, if it has one, is not one since a look-up (node_fd.c). */
void node_unsee_locked(struct shared *s, struct node *n);
/* It has none any more; -1, or the caller closes it, without the lock. */
int node_take_fd_locked(struct shared *s, struct node *n);
struct node_use { /* for SCOPED() */
	struct shared *s;
	struct node *n;
};
static inline void node_use_end(struct node_use *u)
{
	if (u->n)
		node_put(u->s, u->n);
}
/* -ENOENT: the kernel has a number that we do not know. */
int node_use(struct shared *s, uint64_t id, struct node_use *ret);
/*
 * What DIR has at this name: the node that is known, or a new one; a reference.
 * *ret_stale: a local file that it was until somebody changed it in DIR; a
 * reference, or NULL. See local_at().
 */
struct node *node_at(struct shared *s, struct node *parent, const char *name,
		     const struct stat *sb, struct node **ret_stale);
/* A node for a local file: its number is the inode's. Takes `in`. */
struct node *node_new_local(struct shared *s, struct inode *in);
struct node *node_alloc_local(struct inode *in); /* which nobody finds yet */
void node_place_locked(struct shared *s, struct node *n, struct node *parent,
		       const char *name);
void node_engine_locked(struct shared *s, struct node *n, ino_t engine);
/*
 * The node is another file of DIR from now on; what has that number already is
 * what is found by it. The kernel's number for it stays.
 */
void node_becomes_locked(struct shared *s, struct node *n, ino_t engine);
/* ... and is what is found by it. */
void node_found_locked(struct shared *s, struct node *n, ino_t engine);
/* Which local file is to be at this name; NULL: none. A reference. */
struct node *node_replacing(struct shared *s, const struct node *parent,
			    const char *name);
/* Its ticket, which is taken; NULL: it is to replace nothing any more. */
void node_set_ticket_locked(struct shared *s, struct node *n, char *ticket);
/* false: it has none, and that is "". */
bool node_ticket(struct shared *s, const struct node *n,
		 char ret[TICKET_PATH_BYTES]);
/*
 * The pending local file `fresh`, of node_alloc_local(), is at the place of
 * `old`, which is none any more: who finds it, finds it there.
 */
void node_take_over_locked(struct shared *s, struct node *fresh,
			   struct node *old);
/* Of this moment: for who holds the file, or does without being right. */
enum node_state node_state(struct shared *s, const struct node *n);
bool node_replaces(struct shared *s, const struct node *n);
/* It is no local file any more. */
void node_forget_local_locked(struct shared *s, struct node *n);
/* Is it `dir`, or below it, as far as is known? The lock is held. */
bool node_is_under_locked(const struct node *n, const struct node *dir);

/* --- node_fd.c */

/* A descriptor of what fd, O_PATH, is of; -errno. */
int node_reopen(int fd, int flags);
/*
 * A descriptor of it, O_PATH, that the caller closes. -ESTALE: it is not where
 * it was seen last, and no descriptor was kept.
 */
int node_fd(struct shared *s, struct node *n, int *ret_fd);
/* Keep one like this for the node, if there is room. */
void node_keep_fd(struct shared *s, struct node *n, int fd);
/* A look-up has found it, by this O_PATH descriptor; it is taken, or not. */
void node_see(struct shared *s, struct node *n, int *fd);
/* Nobody comes to open it. */
void node_unsee(struct shared *s, struct node *n);
/* Each half second: those of which the look-up is long ago. */
void node_forget_seen(struct shared *s);
/* n->opens is about to be 1, or became 0. */
void node_opened_locked(struct shared *s, struct node *n);
void node_closed_locked(struct shared *s, struct node *n);
/*
 * The file cannot be opened any more, as it has lost its name, and the engine
 * wants one: the node is what is at the name now, *ret_fd as of node_fd().
 * -ENOENT: that is nothing. -ESTALE: it is no regular file, or somebody has the
 * old one open.
 */
int node_find_again(struct shared *s, struct node *n, int *ret_fd);
/* Is DIR's file of that number at the name that is known of n? 1, 0, -errno. */
int node_has_name(struct shared *s, struct node *n, ino_t number);
/* "a/b/c", as it was seen last. */
void node_path(struct shared *s, struct node *n, char *buf, size_t size);

/*
 * It says in DIR that it lives, when that is due. By the thread that does so,
 * which walks over DIR sometimes: others take who is silent for dead.
 */
static inline int shared_say_alive(struct shared *s)
{
	int rc;

	if (mono_ns() < s->alive_due_ns)
		return 0;
	s->alive_due_ns = mono_ns() + SHARED_ALIVE_PERIOD_NS;
	rc = shared_home_alive(&s->home);
	if (rc == -ESHUTDOWN) {
		HOLD(&s->lock);
		s->is_forgotten = true;
	}
	return rc;
}

/* --- local.c: which local file is which of DIR's, and what the database has */

#define LOCAL_FILE_KEY "shared.file."
#define LOCAL_PLACE_KEY "shared.place."
#define META_SHARED_OWN "shared.own"
#define LOCAL_KEPT 1u
#define LOCAL_REPLACES 2u
#define LOCAL_COMPLETING 4u
#define LOCAL_EMPTIES 8u
/* What the database has of a local file. */
struct local_record {
	unsigned flags;
	uint64_t engine, size;
	uint64_t new_id; /* of an older daemon: what it is called in new/ */
	int64_t mtime_ns, ctime_ns;
	char *dir, *name; /* owned; where it was seen last */
	bool has_dir; /* that folder is there, and the file in it */
	bool is_found; /* in DIR, */
	bool is_moved; /* by another number: that was put back from a copy */
};
struct key local_key(const char *what, uint64_t ino);
/* -EIO: it is damaged. */
int local_record_decode(struct kv_slice v, struct local_record *ret);
void local_record_release(struct local_record *r);
int local_forget_records(struct shared *s, uint64_t ino);
/* One of its names in DIR went. The last one? */
void local_name_removed(struct shared *s, struct node *n);
/*
 * Put what is known of it into the database. Of two at once the later one has
 * the last word; it waits for the first. While it may be complete the record is
 * durable when this returns.
 */
int local_save(struct shared *s, struct node *n);
/* A local file, of whose name only DIR knows; a reference. ticket: or NULL. */
int local_make(struct shared *s, const struct names_new *n, const char *name,
	       struct node *parent, const char *ticket, struct node **ret_node);
/* node_at(); what somebody has changed in DIR is dropped here. */
struct node *local_at(struct shared *s, struct node *parent, const char *name,
		      const struct stat *sb);
/* While the store's disk is short of room, kept files go, the oldest first. */
void local_make_room(struct shared *s);
/* The local copy goes; who has it open keeps it. A reference is needed. */
void local_drop(struct shared *s, struct node *n);
/* One that DIR has whole: who comes to write here has to look again. */
void local_give_up(struct shared *s, struct node *n);
/* ... if DIR has it whole still: a rename may have made it pending. */
bool local_give_up_kept(struct shared *s, struct node *n);
void local_note_dropped_locked(struct shared *s, struct node *n);
/* Was it given up, or made for somebody who came too late? And where it was. */
bool local_was_dropped(struct shared *s, uint64_t id, struct dropped *ret);
void local_set_kept_locked(struct node *n, const struct stat *sb);
/* For the drain: see drain_options. */
void local_committing(void *arg, struct kv_batch *b, uint64_t ino,
		      uint64_t place);
void local_tell_place(void *arg, uint64_t ino, uint64_t place, bool holds);
void local_renumbering(void *arg, struct kv_batch *b, uint64_t from,
		       uint64_t to);
void local_renumbered(void *arg, uint64_t from, uint64_t to);

/* --- local_load.c */

/*
 * Read what the last daemon left, and queue what is to be uploaded. false:
 * there may be files here that are not known, as a record of one is damaged.
 */
int local_load(struct shared *s, bool was_rebuilt, bool *ret_all_known,
	       char *why, size_t why_size);
/*
 * Look everywhere for the names of this node's pending files: a tracker that is
 * not where it was, as others have renamed it, or the last daemon died between
 * a rename and its record, has to know its step; and the names of what is lost
 * (own.c) go.
 */
void local_search(struct shared *s);

/* --- own.c */

/*
 * fd, which may be O_PATH, is of DIR's file of that number, which n is.
 * -ENOENT: it has no name any more, or nobody wants it.
 */
int own_link(struct shared *s, struct node *n, int fd, ino_t number);
/*
 * Whoever gets the number of its link is to remove it; 0: it has none, or
 * another one does that. The lock is held.
 */
ino_t own_take_locked(struct node *n);
/*
 * It is whole, so that it does not matter what the next start knows of it. When
 * this fails, own_flush() does it.
 */
void own_unlink(struct shared *s, ino_t number);
/*
 * It was given up, and its number is not to be another file's before that is
 * durable: the next start would take that one for it. So own_flush() does it.
 */
void own_unlink_later(struct shared *s, ino_t number);
/* Each half second, and at the end. */
void own_flush(struct shared *s);
/* O_PATH, the caller's. -ENOENT: it has no link. */
int own_open(struct shared *s, ino_t number, int *ret_fd);
/* How many names a file that has a link has besides that: as it is now. */
int own_count_names(int fd, nlink_t *ret);
/*
 * Has a whole file one name, besides the link that its node is just taking
 * away? Of one that has more links it asks once for each node.
 */
bool own_is_only_name(struct shared *s, int fd, const struct stat *sb);
/* A link gets the name of the number that its file has. -errno. */
int own_rename(struct shared *s, ino_t from, ino_t to);
/*
 * Was the pending file made so long ago that nobody is just making it, by DIR's
 * clock, and does no node of the first form exist, which knows no links? seen:
 * and was each node there since, so that it would know it.
 */
bool own_is_old(struct shared *s, int fd, bool seen);
/*
 * When all records are read: which links are of files that are lost? may_lose:
 * none of what is not known here has its bytes here.
 */
int own_load(struct shared *s, bool may_lose);
bool own_is_lost(struct shared *s, ino_t number);
/* A name of a file that is lost goes, unless it is another one's by now. */
int own_take_away(struct shared *s, int dirfd, const char *name, ino_t number);
/*
 * A file that no node says is its own, and that is empty and was made more than
 * a minute ago by DIR's clock, was left by a node that died while it made it:
 * its name goes. False: it is none.
 */
bool own_take_left(struct shared *s, int dirfd, const char *name);
/* What the last daemon moved aside under that name, and did not remove. */
void own_sweep_aside(struct shared *s, const char *name);
/* Those without a name are not looked for any more. */
void own_settle_lost(struct shared *s);

/* --- await.c: files in DIR that are not whole */

/* What stat(2) shows of a file that is pending on another node. */
void pending_show(const struct shared *s, struct stat *sb);
/* What it is to show as the mode; it is only shown, so nothing is said of
 * errors.
 */
void pending_note_mode(int fd, mode_t mode);
/*
 * Wait for the node that has the file of *fd, an O_PATH descriptor that the
 * caller closes. When that is replaced meanwhile, go on with what is at its
 * name, and a descriptor of that. 0: it is plain now.
 */
int pending_wait(struct shared *s, struct node *n, int *fd);

/* --- upload.c */

int upload_start(struct shared *s);
void upload_stop(struct shared *s);

/* --- upload_wait.c */

/* Wait for all of it, as long as it goes on. */
void upload_finish(struct shared *s);
/* Until no file below the folder (all: NULL) is pending here. */
int upload_wait(struct shared *s, struct node *dir);
/* Until n, which DIR has, may be a tracker of that name: tracker_waits_as(). */
int upload_wait_for_step(struct shared *s, struct node *n, struct node *dir,
			 const char *name);

/* --- upload_copy.c */

/*
 * n was taken with this number: does an upload of it bring what n is no more,
 * or is about to be no more? Once true, this is true for good.
 */
static inline bool upload_is_void_locked(const struct node *n, uint64_t number)
{
	return n->number != number || n->changing > 0 || n->state == NODE_GONE;
}

/*
 * The bytes of n, `size` of them, to DIR's file. wanted() is asked in between:
 * false ends it with 0. It says to `calls` when a call begins that DIR may not
 * answer.
 */
struct upload_copy {
	struct shared *s;
	struct node *n;
	uint64_t number;
	int fd;
	uint64_t size;
	bool (*wanted)(void *arg);
	void (*calls)(void *arg, bool begins);
	void *arg;
};
int upload_copy(const struct upload_copy *c);

/* --- locks.c */

void locks_free(struct shared *s);
/* Does somebody of this node lock DIR's file of that number, or try to? */
bool locks_has(struct shared *s, ino_t number);

/* --- tracker.c */

/*
 * Must it wait for a file in DIR that is not whole? 1: yes. -EUCLEAN: for one
 * that is lost, until somebody removes it, or writes it again.
 */
int tracker_waits(struct shared *s, struct node *n);
/* The same if it were called so. last: or NULL, then there is no -EUCLEAN. */
int tracker_waits_as(struct shared *s, struct node *n, struct node *parent,
		     const char *name, struct tracker_last *last);
/* The first pending file below a directory: 1, 0 or -errno; as above. */
int tracker_find_pending(struct shared *s, int dirfd, bool trackers,
			 struct tracker_last *last);
/* Whose is it, and is that node there? Of what was found last. */
void tracker_ask_whose(struct shared *s, struct tracker_last *last);
/* n waits for what was found last: waits.c. */
void tracker_note_wait(struct shared *s, struct node *n,
		       struct tracker_last *last);
/* Who waits, and is told -EUCLEAN: n says for which file. */
void tracker_say_lost(struct shared *s, struct node *n,
		      const struct tracker_last *last);

/* --- waits.c */

void waits_note(struct shared *s, struct tracker_last *last,
		const struct shared_wait *is);
/* 0: it does not wait. */
int64_t waits_for_ns(struct shared *s, const struct tracker_last *last);
/* Before `last` is released. */
void waits_end(struct shared *s, struct tracker_last *last);
void waits_end_locked(struct tracker_last *last);

/* --- at.c */

/* A name in a directory: for SCOPED(). */
struct at {
	struct shared *s;
	struct node *dir; /* a reference */
	int fd;
	const char *name;
};
int at_begin(struct shared *s, uint64_t dir, const char *name, struct at *ret);
void at_end(struct at *a);
/* Where a node is, as it was seen last. False: that is not known. */
bool at_node(struct shared *s, struct node *n, struct at *ret,
	     char name[STORE_NAME_MAX + 1]);
/* The regular file at the name; its descriptor. -ENOENT: it is none. */
int at_open(const struct at *a, int flags, struct stat *sb);

/*
 * A local file stays where it is in DIR, and as it is, but for what the caller
 * does: the last calls of its upload are over, and do not begin. The uploader
 * waits for no held one.
 */
struct hold {
	struct shared *s;
	struct node *n; /* NULL: nothing is held */
};
void hold_begin(struct shared *s, struct node *n, struct hold *h);
void hold_end(struct hold *h);

void act_as(const struct shared *s, const struct shared_caller *c);
void act_as_self(const struct shared *s, const struct shared_caller *c);

/* --- replace.c: what other nodes are about to replace, too: ticket.h */

/* What the next ticket for the name is called. */
int replace_next_for(const struct at *a, char ret[TICKET_PATH_BYTES]);
/* Is anybody else about to replace it? 1, 0 or -errno. */
int replace_look(struct shared *s, const struct at *a);
/* Until nobody else is. -EBUSY after pending_wait, with a line in the log. */
int replace_wait(struct shared *s, const struct at *a);
/*
 * Something is to be made there. -EEXIST: it is there already; or else a
 * removal came beside a replacement, which is waited for.
 */
int replace_wait_to_make(struct shared *s, const struct at *a);
/*
 * Until nobody else is about to replace a node, which was this file of DIR. 1:
 * its name means another one now. It is not waited for when that is not known.
 */
int replace_wait_for(struct shared *s, struct node *n, ino_t number);
/*
 * A pending file gets the name of a file that others may read: they go on with
 * that one until this one is complete. It is held.
 */
int replace_by_pending(struct shared *s, struct node *n, const struct at *from,
		       const struct at *to);
/* The pending file `name` of that folder is to replace what is at its name. */
int replace_from(struct shared *s, struct node *n, int fromfd,
		 const char *name);
/* What is to replace a name is to replace this one instead. It is held. */
int replace_another(struct shared *s, struct node *n, const struct at *to);
/* 1: others are about to replace what is pending here, or have. It is held. */
int replace_is_followed(struct shared *s, struct node *n);
/* Theirs is later: at its name it stays, until that is another one's. */
void replace_give_way(struct shared *s, struct node *n);
/* Was it overtaken? Then it is given up. */
bool replace_is_over(struct shared *s, struct node *n);
/* Until it has its name. -EBUSY after pending_wait. */
int replace_await(struct shared *s, struct node *n);
/* What is no pending file of ours, and no folder, is renamed over a name. */
int replace_by_whole(struct shared *s, const struct at *from,
		     const struct at *to);
/* What is at the name goes, and what others are to put there. */
int replace_by_none(struct shared *s, const struct at *a);
/*
 * It is to replace nothing any more. A link of it may have given it a name: it
 * stays pending then. False: it is complete by now.
 */
bool replace_drop(struct shared *s, struct node *n);
/* The one of this node that replaces what is at the name. False: there is none.
 */
bool replace_drop_at(struct shared *s, const struct at *a);
/*
 * It is whole, fd is it, and it gets its name. 1: a later one was quicker. 2:
 * `old` has its bytes: in_place_end() follows. `old` is what this node has of
 * what was there, a reference or NULL, also after an error.
 */
int replace_complete(struct shared *s, struct node *n, int fd,
		     struct node **ret_old);
/* What calls of the last daemon had taken. An error: not all, or not yet. */
int replace_finish(struct shared *s);

/* --- drops.c */

/* A ticket of this node is over. -errno: it is tried again. */
int drops_ticket(struct shared *s, const char *ticket);
void drops_flush(struct shared *s); /* each half second, and at the end */
void drops_free(struct shared *s);

/* --- in_place.c: what is locked keeps its number */

/* Must n wait for a pending file at its name, as somebody locks that? 1, 0. */
int in_place_waits(struct shared *s, struct node *n);
/*
 * fd is what n's ticket is; it is whole, and has its turn. 0: the file at the
 * name, which is `old` (NULL: none), has its bytes. 1: it is to be renamed to
 * the name, whatever was tried.
 */
int in_place_write(const struct at *a, struct node *n, int fd,
		   const struct node *old);
/* n is that file. The caller has closed what it had open of n in DIR. */
int in_place_end(struct shared *s, struct node *n, const struct node *old);

/* --- sent.c: who was told ESTALE, and comes to open what is there now */

/* He will find this local file by its name. */
void sent_expect(struct shared *s, struct node *n);
/* Is it to stay as it is, for somebody who comes to open it? */
bool sent_awaits_locked(const struct shared *s, const struct node *n);
/* The thread opens this one, and what it may have been sent for is over. */
void sent_came_locked(struct shared *s, struct node *n, pid_t tid);
void sent_forget(struct shared *s, pid_t tid);
/* A look-up of it has failed; of two, what it was sent for is over. */
void sent_missed(struct shared *s, pid_t tid);
/* Each half second. */
void sent_expire(struct shared *s);
void sent_free(struct shared *s);

/* --- empty.c: who opens with O_TRUNC what DIR has */

/*
 * The thread n->pid was to empty what that name of a folder is, and is told
 * -ESTALE now: it looks the name up again. -ENOMEM.
 */
int empty_away(struct shared *s, uint64_t parent, const char *name,
	       const struct names_new *n);
/* ... what is known of the node's name. */
int empty_away_from(struct shared *s, struct node *n,
		    const struct names_new *new);
/*
 * A look-up begins. If it is of a thread that was sent to this name, what it
 * finds next is a pending file here that it can open, or what is not replaced
 * (a file with other names, none). An error is what it is to be told.
 */
int empty_look(struct shared *s, const struct at *a, pid_t tid);
/* What was made for somebody who did not come goes. */
void empty_give_up_left(struct shared *s);
/* Is that about to happen to it? It may be held: then it does not begin. */
bool empty_is_left(struct shared *s, const struct node *n);

/* --- steps.c */

/* The guard looks at the tree. Before it is started. */
void steps_begin(struct shared *s);

/* --- tree.c */

/* A new file in DIR, open; its descriptor or -errno. */
int tree_create_plain(struct shared *s, const struct shared_caller *c,
		      uint64_t parent, const char *name, mode_t mode, int flags,
		      struct shared_entry *ret);

#endif
