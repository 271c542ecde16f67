/*
 * fs.h - what the operations on the mount share, and the rules they keep.
 *
 *  1. do_x() works and returns -errno; op_x() alone replies, exactly once
 *     (or leaves that to the teller: teller.h; or puts it off: loop.h).
 *  2. No lock is held while a reply is sent: it may be the kernel's last
 *     reference and FORGET may arrive before it returns.
 *  3. A look-up count goes up before the reply that tells the kernel of it,
 *     and down again if that reply fails: nobody will forget it.
 *  4. A reply to open or create that fails with -ENOENT means that nobody will
 *     release: undo the open.
 *  5. Node ids are inode numbers; a handle (fi->fh) holds nothing but the
 *     flags of its open. Both mean the same to another daemon.
 *  6. Operations may block (fsync, a publishing rename): the loop starts
 *     further threads, up to FS_THREADS_MAX, or fewer where the process may
 *     have few descriptors: the drain must find one at any time. Which requests
 *     may wait for the drain says loop.c: they never have all threads.
 *  7. What may wait for the drain is between waiting_begin() and waiting_end()
 *     (waiting.h), so that a signal ends it.
 */
#ifndef FUSE_FS_H
#define FUSE_FS_H

#define FUSE_USE_VERSION 317
#include <fuse_lowlevel.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "store/store.h"

#define FS_THREADS_MAX 256
#define FS_THREADS_MIN 8
/* Descriptors that an operation opens at a time, at most. */
#define FS_THREAD_FDS 4
#define FS_IDLE_THREADS 16
#define FS_WRITE_BYTES_MAX (1u << 20)
#define FS_READAHEAD_BYTES (1u << 20)
#define FS_BACKGROUND_MAX 64
/* Only this mount changes the store, so the kernel may remember for long. */
#define FS_TIMEOUT_S 86400.0

struct again;
struct shared;
struct callers;
struct ending;
struct opens;
struct server;
struct teller;

struct fs {
	struct store *store;
	struct shared *shared; /* NULL: names are the store's own */
	struct server *server; /* for segments; NULL: none */
	struct teller *teller; /* set when server is */
	struct callers *callers;
	struct opens *opens;
	struct again *again;
	bool read_only; /* mounted with ro */
	bool is_shared; /* shared is, or will be, set */
	unsigned names_timeout_s; /* for what shared has; before it is served */
	struct fuse_session *se;
	const char *mountpoint;
	_Atomic dev_t dev; /* of the mount; 0: not known yet */
	bool want_passthrough; /* passthrough=auto */
	bool passthrough; /* the kernel agreed */
	struct ending *ending; /* set while it is served */
	/* Posted by op_init, by signals, and when the session ends. */
	sem_t answered;
	/* Posted for the loop: by signals, when the session ends (loop.c). */
	sem_t moved;
	unsigned threads; /* of the loop, at most; set before it runs */
	atomic_uint forgetting; /* of these, who is in fs_forget_pages() */
	atomic_bool initialised; /* op_init was there */
	atomic_bool ended; /* the loop; the kernel is told nothing more */
};

/* Names are a table with two implementations: session.c, ops_shared.c. */
extern const struct fuse_lowlevel_ops fs_ops, fs_shared_ops;

static inline struct fs *fs_of(fuse_req_t req)
{
	return fuse_req_userdata(req);
}

static inline struct store *store_of(fuse_req_t req)
{
	return fs_of(req)->store;
}

/* A reference to an inode, and the store that it is of. */
struct fs_inode {
	struct store *st;
	struct inode *in; /* NULL: none */
};
int fs_get(fuse_req_t req, fuse_ino_t ino, struct fs_inode *ret);
/* For SCOPED(): the reference goes at the end of the block. */
void fs_put(struct fs_inode *i);

/* Reply with data, or with the error when rc is one. */
void fs_reply_ioctl(fuse_req_t req, int rc, const void *data, size_t len);

/*
 * The kernel forgets these pages of an inode (len 0: up to its end). It writes
 * what is dirty first, which another thread of the loop answers; so half of
 * them do this at most, and for whoever is one too many nothing happens.
 */
void fs_forget_pages(struct fs *fs, uint64_t ino, off_t from, off_t len);
/* The kernel's look-ups are gone, or were never told of. */
void fs_forget(struct store *st, fuse_ino_t ino, uint64_t nlookup);
/* What the kernel is told of a handle to what was opened. */
void fs_handle_fill(fuse_req_t req, struct fuse_file_info *fi, int flags,
		    const struct file_opened *o);
/* A handle goes, opened with flags, also one that nobody was told of. */
void fs_release(struct store *st, struct inode *in, int flags);
/*
 * How the request comes to the file that it is about to change, and whether it
 * is to be told an error at once; whoever came by any way may have been told to
 * look its name up, after which fs_renumber() is asked: see again.h.
 */
enum file_way fs_way(fuse_req_t req, fuse_ino_t ino, int *ret_rc);
void fs_way_ends(fuse_req_t req, fuse_ino_t ino, enum file_way way,
		 bool empties, int rc);
/*
 * A name was looked up, and is in, NULL: nothing. True: it may mean another
 * inode by now.
 */
bool fs_renumber(fuse_req_t req, struct inode *in);
/* setattr(2): what was set of names_setattr()'s, but for the size. */
int fs_setattr(fuse_req_t req, const struct fs_inode *i, const struct stat *s,
	       int to_set, bool by_handle, unsigned *ret_valid,
	       struct attr *ret_to);
/* One that nobody can set, which is worked out. */
#define FS_OUR_XATTR "user.ckptfs."
bool fs_is_our_xattr(const char *name);
/* 0, or why it cannot be set: -EPERM, -EINVAL, -E2BIG. */
int fs_may_set_xattr(const char *name, const char *value, size_t size);
/* One of ours, by its last word. -ENODATA: not known (yet). */
int fs_our_xattr(fuse_req_t req, fuse_ino_t ino, const char *name,
		 struct bytes *out);
/* Of these those that the guard works out, of a file or a folder. */
bool fs_is_step_xattr(const char *name);
int fs_step_xattr(fuse_req_t req, uint64_t id, uid_t owner, const char *name,
		  struct bytes *out);
/* Reply with the value, or its length for size 0; the error when rc is one. */
void fs_reply_xattr(fuse_req_t req, int rc, const void *value, size_t len,
		    size_t size);

/* Fill e for an inode whose look-up count was raised. 0 or -errno. */
int fs_entry(struct store *st, struct inode *in, struct fuse_entry_param *e);

/*
 * Who asks, as the writer of a file with this name. Blocks on the memory of
 * that process: hold no lock.
 */
void fs_writer(fuse_req_t req, const char *name, struct writer *ret);

/* The operations, by file. */
void op_lookup(fuse_req_t, fuse_ino_t, const char *);
void op_forget(fuse_req_t, fuse_ino_t, uint64_t);
void op_forget_multi(fuse_req_t, size_t, struct fuse_forget_data *);
void op_mknod(fuse_req_t, fuse_ino_t, const char *, mode_t, dev_t);
void op_mkdir(fuse_req_t, fuse_ino_t, const char *, mode_t);
void op_symlink(fuse_req_t, const char *, fuse_ino_t, const char *);
void op_link(fuse_req_t, fuse_ino_t, fuse_ino_t, const char *);
void op_unlink(fuse_req_t, fuse_ino_t, const char *);
void op_rmdir(fuse_req_t, fuse_ino_t, const char *);
void op_rename(fuse_req_t, fuse_ino_t, const char *, fuse_ino_t, const char *,
	       unsigned);
void op_readdir(fuse_req_t, fuse_ino_t, size_t, off_t, struct fuse_file_info *);
void op_readdirplus(fuse_req_t, fuse_ino_t, size_t, off_t,
		    struct fuse_file_info *);
void op_fsyncdir(fuse_req_t, fuse_ino_t, int, struct fuse_file_info *);

void op_create(fuse_req_t, fuse_ino_t, const char *, mode_t,
	       struct fuse_file_info *);
void op_open(fuse_req_t, fuse_ino_t, struct fuse_file_info *);
void op_read(fuse_req_t, fuse_ino_t, size_t, off_t, struct fuse_file_info *);
void op_write(fuse_req_t, fuse_ino_t, const char *, size_t, off_t,
	      struct fuse_file_info *);
void op_flush(fuse_req_t, fuse_ino_t, struct fuse_file_info *);
void op_release(fuse_req_t, fuse_ino_t, struct fuse_file_info *);
void op_fsync(fuse_req_t, fuse_ino_t, int, struct fuse_file_info *);
void op_fallocate(fuse_req_t, fuse_ino_t, int, off_t, off_t,
		  struct fuse_file_info *);
void op_lseek(fuse_req_t, fuse_ino_t, off_t, int, struct fuse_file_info *);

void op_getattr(fuse_req_t, fuse_ino_t, struct fuse_file_info *);
void op_setattr(fuse_req_t, fuse_ino_t, struct stat *, int,
		struct fuse_file_info *);
void op_readlink(fuse_req_t, fuse_ino_t);
void op_statfs(fuse_req_t, fuse_ino_t);
void op_getxattr(fuse_req_t, fuse_ino_t, const char *, size_t);
void op_setxattr(fuse_req_t, fuse_ino_t, const char *, const char *, size_t,
		 int);
void op_listxattr(fuse_req_t, fuse_ino_t, size_t);
void op_removexattr(fuse_req_t, fuse_ino_t, const char *);

void op_ioctl(fuse_req_t, fuse_ino_t, unsigned, void *, struct fuse_file_info *,
	      unsigned, const void *, size_t, size_t);

/* With shared=DIR. The kernel has so many look-ups less, or never had them. */
void fs_shared_forget(fuse_req_t req, uint64_t id, uint64_t count);
void op_shared_getxattr(fuse_req_t, fuse_ino_t, const char *, size_t);
void op_shared_setxattr(fuse_req_t, fuse_ino_t, const char *, const char *,
			size_t, int);
void op_shared_listxattr(fuse_req_t, fuse_ino_t, size_t);
void op_shared_removexattr(fuse_req_t, fuse_ino_t, const char *);

/* The ioctls of segments: true when it was one of them, and answered. */
bool op_segment_ioctl(fuse_req_t, fuse_ino_t, unsigned, const void *, size_t,
		      size_t);

/* A file's state as the extended attribute shows it. */
struct fs_state {
	const char *word; /* "staged", "durable" or "failed" */
	int error; /* of a failed drain, else 0 */
	struct content_ref *content; /* a reference; NULL: nothing is durable */
	uint64_t physical_bytes;
	/* physical_bytes and extents may say what it shares with others. */
	bool shares_shown;
	char digest[2 * HASH_BYTES +
		    1]; /* in hexadecimal; "" without content */
};
/* Does the caller own it, or may he see everything? */
bool fs_is_own(fuse_req_t req, struct inode *in);
/* True for root. */
bool fs_is_in_group(fuse_req_t req, gid_t gid);
/* Has the caller these rights (bits as of S_IRWXO)? 0, -EACCES, -ENOMEM. */
int fs_may(fuse_req_t req, struct inode *in, uint32_t want);
/*
 * own: see fs_is_own(). With share=user nobody else is told what the file
 * shares: the other files with these bytes may not be for him to know of.
 */
int fs_file_state(const struct fs_inode *i, bool own, struct fs_state *ret);
/* For SCOPED(), also of one that is all zeros. */
void fs_state_release(struct fs_state *s);

#endif
