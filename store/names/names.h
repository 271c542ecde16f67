/*
 * names.h - directories: every change of a name is one atomic batch.
 *
 * The kernel holds the directory's (and for unlink, link and rename the
 * file's) own lock while one of these runs, but a segment's commit (segment.h)
 * comes without: what is decided is decided under names.changing.
 * Batches reach the log in order: if one survives a power cut, so do all
 * earlier ones.
 *
 * Errors are those of the POSIX call. Everything may block on the database.
 */
#ifndef STORE_NAMES_H
#define STORE_NAMES_H

#include "store/names/inode.h"

struct names;
struct names_new;

/* What is above: each is called with `arg`, and with no lock but `changing`. */
struct names_hooks {
	void *arg;
	/* A new regular file gets its first stage; see names_create(). */
	int (*prepare)(void *arg, struct inode *in, const struct names_new *n);
	/* ... and was never there after all, or lost its last name. */
	void (*unlinked)(void *arg, struct inode *in);
	/* Write b, in which the committed content of `from` is `to`'s, too. */
	int (*clone)(void *arg, struct kv_batch *b, uint64_t from, uint64_t to);
	/*
	 * Write b, in which `in` takes the place of `old`: what is committed of
	 * `old` is `in`'s until it has content of its own.
	 */
	int (*keep)(void *arg, struct kv_batch *b, const struct inode *old,
		    struct inode *in);
	/* A name means another inode, an inode lost its names: no lock held. */
	void (*renamed)(void *arg, uint64_t parent, const char *name);
	void (*changed)(void *arg, uint64_t ino);
	/*
	 * Greater than all that were given. A drain of what the file is now
	 * draws a greater one when it begins: see drain/order.h.
	 */
	uint64_t (*number)(void *arg);
};

/* kv and inodes are borrowed. */
int names_new(struct kv *kv, struct inode_table *inodes,
	      const struct names_hooks *hooks, struct names **ret_names);
/* Before inodes_free(). NULL: nothing. */
void names_free(struct names *nm);
/*
 * Held while a change of names or attributes is put together and written, by
 * who decides something that none of these may come between.
 */
struct lock *names_changing(struct names *nm);

struct names_new {
	uint32_t mode, uid, gid;
	uint64_t rdev;
	const char *target; /* a symbolic link's */
	struct stage *stage; /* a segment's that is its content; else NULL */
	const struct writer *writer; /* of a regular file; NULL: not known */
	pid_t pid; /* who asks, as /proc has it; 0: not known */
};

/* One reference for the caller. -ENOENT: no such name. */
int names_lookup(struct names *nm, uint64_t parent, const char *name,
		 struct inode **ret_inode);

/*
 * Make a new inode with a name. A regular file gets its stage from
 * names_hooks.prepare before anybody can see it; an error of that stops the
 * creation.
 */
int names_create(struct names *nm, uint64_t parent, const char *name,
		 const struct names_new *n, struct inode **ret_inode);

int names_link(struct names *nm, struct inode *in, uint64_t parent,
	       const char *name);
/*
 * Remove a name. *ret_inode (one reference) is what it named: when its
 * nlink is 0 now, file_unlinked() must be told.
 */
int names_unlink(struct names *nm, uint64_t parent, const char *name,
		 struct inode **ret_inode);
int names_rmdir(struct names *nm, uint64_t parent, const char *name,
		struct inode **ret_inode);
/*
 * flags: RENAME_NOREPLACE or RENAME_EXCHANGE. `keeps`: a file that is replaced
 * stays, after a power cut, until the other one is durable: see names_hooks.
 * *ret_replaced may be NULL.
 */
int names_rename(struct names *nm, uint64_t parent, const char *name,
		 uint64_t new_parent, const char *new_name, unsigned flags,
		 bool keeps, struct inode **ret_replaced);

/*
 * Entries of a directory after `cookie` (0: from the start), until fn returns
 * other than 0, which is returned. A cookie stays valid while names come and
 * go.
 */
typedef int (*names_fn)(void *arg, const char *name,
			const struct dirent_rec *entry, uint64_t cookie);
int names_list(struct names *nm, uint64_t dir, uint64_t cookie, names_fn fn,
	       void *arg);

/*
 * Give every name of `in` to a new inode with the same attributes and, if
 * there is one, the same committed content; `in` keeps its bytes, without a
 * name. So readers keep the complete old content while a writer begins anew.
 * The kernel looks the name up that it is about to open, but not the others of
 * a file with several: names_tell_moved() follows.
 */
int names_renumber(struct names *nm, struct inode *in);
/*
 * Tell the kernel of such names. It takes their directories' locks, which
 * whoever looks up or creates there holds until he is answered: so this comes
 * after the answer, and without a lock. One thread tells; another one's names
 * are told by it, later than the other one is back. Until then an open by such
 * a name finds an inode without one, and is -ESTALE (file_open_for()).
 */
void names_tell_moved(struct names *nm);
/* May the kernel have a name yet that has moved? */
bool names_are_untold(const struct names *nm);

/*
 * Attributes: chmod, chown, times. Bits of `valid` below. A time of a regular
 * file counts for the bytes that it has: file_set_times() first.
 */
enum names_set {
	SET_MODE = 1,
	SET_UID = 2,
	SET_GID = 4,
	SET_ATIME = 8,
	SET_MTIME = 16,
};
int names_setattr(struct names *nm, struct inode *in, unsigned valid,
		  const struct attr *to);

/* Into b: an entry of a directory. */
void names_put_entry(struct kv_batch *b, uint64_t parent, const char *name,
		     uint64_t ino, uint32_t mode);

/*
 * Who wrote a file. Set when it is created, and again when somebody begins it
 * anew (O_TRUNC, a segment's commit): from then on, though a power cut may
 * still bring the content back that somebody else wrote. It goes with the
 * file and not with the name. -ENODATA: nothing is known.
 */
int names_set_writer(struct names *nm, struct inode *in,
		     const struct writer *w);
int names_get_writer(struct names *nm, uint64_t ino, struct writer *ret);

/* Extended attributes. Value buffers are the caller's to free. */
#define XATTR_VALUE_MAX 65536
int names_getxattr(struct names *nm, uint64_t ino, const char *name,
		   void **ret_value, size_t *ret_len);
int names_setxattr(struct names *nm, struct inode *in, const char *name,
		   const void *value, size_t len, int flags);
int names_removexattr(struct names *nm, struct inode *in, const char *name);
/*
 * The capabilities that a program in it would run with go before its bytes are
 * changed, whoever changes them. It costs nothing when there are none.
 */
int names_drop_caps(struct names *nm, struct inode *in);
/* NUL-terminated names, one after the other. */
int names_listxattr(struct names *nm, uint64_t ino, struct bytes *out);

#endif
