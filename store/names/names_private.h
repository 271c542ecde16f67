/* names_private.h - between the names*.c files: see names.h. */
#ifndef STORE_NAMES_PRIVATE_H
#define STORE_NAMES_PRIVATE_H

#include <stdatomic.h>
#include <sys/queue.h>

#include "store/names/names.h"

#define AWAITED_INODES_MAX 64

/* A name that means another inode, which the kernel may not know. */
struct moved_name {
	STAILQ_ENTRY(moved_name) link;
	uint64_t parent;
	char name[];
};
STAILQ_HEAD(moved_names, moved_name);

struct names {
	struct kv *kv;
	struct inode_table *inodes;
	struct names_hooks hooks;
	/*
	 * Held while a change of names or attributes is put together and
	 * written: a directory's record is changed by what happens in it and
	 * by its own rename, which the kernel does not serialise. Taken before
	 * any inode.lock; the committer never takes it.
	 */
	struct lock changing;
	/*
	 * The last inodes that renumbering made, a reference each, so that they
	 * are NAME_AWAITED until he comes for whom they were made. changing
	 */
	struct inode *awaited[AWAITED_INODES_MAX];
	unsigned awaited_next;
	/* What names_tell_moved() has to tell. changing */
	struct moved_names untold;
	atomic_bool untold_any; /* read without it */
	atomic_bool telling; /* one thread is at it */
};

/*
 * What the inodes of a batch become once it is written. Not before: a full
 * disk refuses the batch, and then nothing has changed; and nobody may see
 * an inode without a name while the name can still be read. names.changing is
 * held, as by everybody who changes attributes.
 */
#define CHANGED_INODES_MAX 4
struct names_change {
	struct inode *in[CHANGED_INODES_MAX]; /* the caller's references */
	struct attr attr[CHANGED_INODES_MAX];
	unsigned count;
};

/* What the directory says of the name. -ENOENT: it has none such. */
int names_get_entry(struct names *nm, uint64_t parent, const char *name,
		    struct dirent_rec *ret);
bool inode_has_name(struct inode *in);

/* To be changed by the caller; names_write() puts it into the batch. */
struct attr *names_changed_attr(struct names_change *c, struct inode *in);
int names_write(struct names *nm, struct kv_batch *b, struct names_change *c);
/* The same by names_hooks.keep, when old is not NULL. */
int names_write_keeping(struct names *nm, struct kv_batch *b,
			struct names_change *c, const struct inode *old,
			struct inode *in);
/* Into b: who wrote a file, if that is known. */
void names_put_writer(struct kv_batch *b, uint64_t ino, const struct writer *w);

/*
 * The key of an entry (E) or a further name (L): the name, and the number
 * before it. False: it is none.
 */
bool names_key_split(struct kv_slice key, uint64_t *ret_middle,
		     char ret_name[STORE_NAME_MAX + 1]);

/* Call fn for each name but the first, until it returns other than 0. */
typedef int (*names_link_fn)(void *arg, uint64_t parent, const char *name);
int names_each_link(struct names *nm, uint64_t ino, names_link_fn fn,
		    void *arg);

#endif
