/*
 * shared.h - one tree for many nodes: names lie in a directory of the cluster
 * file system (DIR), bytes come from this node's store.
 *
 * What a caller names is a number: that of a local file, or one of a node of
 * the tree (shared_is_node()), which means nothing to the next daemon. A local
 * file is one that was made here, as long as its bytes are not given up: its
 * inode is in the store, by the name that local.c gave it, and whatever
 * is done to its bytes is done there. It is
 *
 *   pending    DIR has a file in its place that is not whole (pending.h)
 *   kept       DIR has all of it; what is here is a cache
 *
 * Everything else is DIR's own: directories, links, and files that were made
 * elsewhere, are opened and changed there.
 *
 * Threads: any. Errors: 0 or a negative errno. All but what says otherwise
 * waits for DIR, for which there is no bound, and holds no lock meanwhile.
 * -ESTALE: the name means another number now, look it up again.
 */
#ifndef STORE_SHARED_SHARED_H
#define STORE_SHARED_SHARED_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>

#include "store/shared/home_text.h"
#include "store/store.h"

struct shared;

struct shared_options {
	const char *dir; /* NULL: nothing is shared */
	const char *node; /* this node's name; NULL: the machine's */
	bool rejoin; /* though it was forgotten: lost.h */
	unsigned pending_wait_s; /* for a file that another node has */
	/*
	 * Patterns as of fnmatch(3), between colons, of names or, with a slash,
	 * of paths from DIR: such files are written in DIR. NULL: none.
	 */
	const char *direct;
	/* Of files that are whole in DIR no more is kept; SHARED_KEEP_ALL. */
	uint64_t local_keep_bytes;
};
#define SHARED_PENDING_WAIT_S 60
#define SHARED_KEEP_ALL UINT64_MAX

/*
 * The store is open and not started. `why` gets a sentence for the user. The
 * caller owns *ret_shared.
 */
int shared_open(struct store *st, const struct shared_options *o,
		struct shared **ret_shared, char *why, size_t why_size);
/* Does the store belong to a shared directory? Then nobody mounts it alone. */
bool shared_has(struct store *st);
int shared_start(struct shared *s);
/*
 * The mount is gone: wait until all is in DIR, as long as that goes on, and
 * stop. What is left goes on with the next mount. Before store_close().
 */
void shared_stop(struct shared *s);
/* NULL: nothing. */
void shared_free(struct shared *s);

#define SHARED_NODE (UINT64_C(1) << 62)
static inline bool shared_is_node(uint64_t id)
{
	return id == ROOT_INO || (id & SHARED_NODE);
}

/* Who calls, as DIR sees him. */
struct shared_caller {
	uid_t uid;
	gid_t gid;
	const gid_t *groups;
	size_t group_count;
	pid_t tid; /* as names_new's; 0: not known */
};

/* A name that was found: its number has one more look-up. */
struct shared_entry {
	uint64_t id;
	struct stat stat;
};

/*
 * tid: the thread that looks, as names_new has it: when it was told ESTALE (see
 * shared_change_begin()) what it was sent to is there after this.
 */
#define SHARED_NOBODY (-1)
int shared_lookup(struct shared *s, uint64_t parent, const char *name,
		  pid_t tid, struct shared_entry *ret);
/* `count` look-ups are given back. Waits for nothing. */
void shared_forget(struct shared *s, uint64_t id, uint64_t count);
/* Of a pending file here it waits for nothing. */
int shared_stat(struct shared *s, uint64_t id, struct stat *ret);

/*
 * A new regular file, pending. It is as if it had been opened once, for
 * shared_change_end(). *ret_local, one reference, is what to open.
 */
int shared_create(struct shared *s, const struct shared_caller *c,
		  uint64_t parent, const char *name, const struct names_new *n,
		  struct shared_entry *ret, struct inode **ret_local);
/*
 * The file was there already, and is to be opened with these flags all the
 * same: -ESTALE, as of shared_change_begin(). n as above.
 */
int shared_create_again(struct shared *s, uint64_t parent, const char *name,
			int flags, const struct names_new *n);
/* Anything but a regular file; target as in names_new. */
int shared_make(struct shared *s, const struct shared_caller *c,
		uint64_t parent, const char *name, const struct names_new *n,
		struct shared_entry *ret);
int shared_link(struct shared *s, const struct shared_caller *c, uint64_t id,
		uint64_t parent, const char *name, struct shared_entry *ret);
int shared_unlink(struct shared *s, const struct shared_caller *c,
		  uint64_t parent, const char *name, bool dir);
/*
 * As publish.h has it of names here; a folder, but with publish=async, when
 * nothing that was closed in it is pending any more, on any node. `look` may
 * refuse it when that was waited for, and is called once; NULL: nobody looks.
 */
struct shared_look_before {
	int (*fn)(void *arg);
	void *arg;
};
int shared_rename(struct shared *s, const struct shared_caller *c,
		  uint64_t parent, const char *name, uint64_t new_parent,
		  const char *new_name, unsigned flags,
		  const struct shared_look_before *look);
int shared_readlink(struct shared *s, uint64_t id, char *buf, size_t size);
int shared_statvfs(struct shared *s, struct statvfs *ret);

/* Its times are the present one: who may write may set them. */
#define SET_TIMES_NOW 0x100u

/* valid as of names_setattr(), of what is not a local file; or SET_TIMES_NOW.
 */
int shared_setattr(struct shared *s, const struct shared_caller *c, uint64_t id,
		   unsigned valid, const struct attr *to,
		   const uint64_t *size_bytes);
/* A local file's attributes were set here: the same for DIR's, if it is kept.
 */
int shared_set_local(struct shared *s, const struct shared_caller *c,
		     uint64_t id, unsigned valid, const struct attr *to);

/* A descriptor of a directory, to list with getdents(2). */
int shared_opendir(struct shared *s, uint64_t id, int *ret_fd);
/* Is the name in the directory one that nobody sees? */
bool shared_is_hidden(struct shared *s, uint64_t dir, const char *name);
/* A path for calls that take one, as for extended attributes; the fd too. */
#define SHARED_PATH_BYTES 32
int shared_path(struct shared *s, uint64_t id, int *ret_fd,
		char ret_path[SHARED_PATH_BYTES]);

/*
 * A local file is about to be opened with these flags, or cut (O_WRONLY; n is
 * NULL then). When it is 0, and it may be written to, shared_change_end()
 * follows once that is done. -ESTALE: the thread is to look the name up again,
 * and to open what it gets: a new file where O_TRUNC is to empty the one that
 * the name means (empty.c). Waits for the last calls of its upload.
 */
int shared_change_begin(struct shared *s, uint64_t id, int flags,
			const struct names_new *n);
void shared_change_end(struct shared *s, uint64_t id);

/*
 * Open what is not a local file. O_TRUNC of a file with one name is -ESTALE,
 * as above, also while it is pending on another node. *ret_backing as
 * file_opened has it; the descriptor is the caller's until shared_close().
 * Waits for another node when the file is pending there, up to pending_wait;
 * -EIO, and a line in the log, when it stays so. -EINTR as the drain's waits;
 * -ERESTART when the call can be put off instead (interrupt.h).
 */
int shared_open_file(struct shared *s, const struct shared_caller *c,
		     uint64_t id, int flags, const struct names_new *n,
		     int *ret_fd, int *ret_backing);
/* Is what is called so to be written in DIR? */
bool shared_is_direct(struct shared *s, uint64_t parent, const char *name);
/*
 * A new file that is to be appended to, or is direct: one of DIR's own, which
 * others read as it grows. The descriptor as above.
 */
int shared_create_plain(struct shared *s, const struct shared_caller *c,
			uint64_t parent, const char *name, mode_t mode,
			int flags, struct shared_entry *ret, int *ret_fd,
			int *ret_backing);
void shared_close(struct shared *s, uint64_t id, int fd);

/*
 * flock(2) and fcntl(2) locks, for an owner as the kernel numbers them. Who
 * waits is ended by any signal: -EINTR.
 */
int shared_flock(struct shared *s, uint64_t id, uint64_t owner, int op);
int shared_lock(struct shared *s, uint64_t id, uint64_t owner,
		const struct flock *l, bool waits);
int shared_lock_test(struct shared *s, uint64_t id, uint64_t owner,
		     struct flock *l);
/* All that he has of the one kind on the file. */
void shared_unlock(struct shared *s, uint64_t id, uint64_t owner,
		   bool is_flock);
bool shared_is_locked(struct shared *s, uint64_t id);

/* Until all that was closed here so far is in DIR. -EINTR likewise. */
int shared_flush(struct shared *s);

struct shared_figures {
	uint64_t pending, pending_bytes; /* here */
	uint64_t kept;
	uint64_t uploaded, uploaded_bytes; /* since the mount began */
	uint64_t failing; /* of the pending: the last try failed */
	int64_t oldest_ns; /* how long the oldest waits; 0: none does */
	int64_t engine_silent_ns; /* a call of the uploader hangs; 0: none */
	int error; /* of the last upload that failed; 0: it went on */
};
void shared_figures(struct shared *s, struct shared_figures *ret);
/* What waits here for a file of another node, or of its own. */
#define SHARED_WAIT_PATH_BYTES 1024 /* what is longer is cut */
enum shared_wait_for {
	SHARED_WAIT_UNKNOWN, /* not looked for yet: it waits for moments */
	SHARED_WAIT_ALIVE,
	SHARED_WAIT_AWAY, /* nobody has that node; "?": it is of none */
	SHARED_WAIT_LOST, /* it was forgotten: somebody has to act */
};
struct shared_wait {
	char path[SHARED_WAIT_PATH_BYTES]; /* what waits */
	char file[SHARED_WAIT_PATH_BYTES]; /* for that; "": in next/ */
	char node[SHARED_NODE_MAX + 1]; /* which has it; "": not known */
	enum shared_wait_for state;
	int64_t for_ns;
};
/* At most `max` of them; returns how many. It does not ask DIR. */
size_t shared_waits(struct shared *s, struct shared_wait *ret, size_t max);
const char *shared_node_name(const struct shared *s);
const char *shared_dir(const struct shared *s);

enum shared_is {
	SHARED_PLAIN, /* whole in DIR */
	SHARED_KEPT, /* and here */
	SHARED_PENDING,
	SHARED_LOST, /* with its node */
};
/* "plain", "kept", "pending", "lost". */
const char *shared_word(enum shared_is is);
/* Of what is none of this node's: "durable", "staged", "failed". */
const char *shared_state(enum shared_is is);
struct shared_where {
	enum shared_is is;
	/* Another one, that has what is pending; "?"; "": it is this one. */
	char node[SHARED_NODE_MAX + 1];
};
/* Where the bytes of a regular file are. Of a local one it waits for nothing.
 */
int shared_where(struct shared *s, uint64_t id, struct shared_where *ret);

#endif
