/* names_private.h - between the names*.c files: see names.h. */
#ifndef STORE_NAMES_PRIVATE_H
#define STORE_NAMES_PRIVATE_H

#include "store/names/names.h"

#define RESERVED_INODES_MAX 64

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
	 * remember for whom they are reserved until he comes. changing
	 */
	struct inode *reserved[RESERVED_INODES_MAX];
	unsigned reserved_next;
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

/* Into b: an entry of a directory, a further name of an inode (L), a record
 * that only is there, and who wrote it, if anything is known of him. */
void names_put_entry(struct kv_batch *b, uint64_t parent, const char *name,
		     uint64_t ino, uint32_t mode);
void names_put_link(struct kv_batch *b, uint64_t ino, uint64_t parent,
		    const char *name);
void names_delete_link(struct kv_batch *b, uint64_t ino, uint64_t parent,
		       const char *name);
void names_mark(struct kv_batch *b, char kind, uint64_t ino);
void names_put_writer(struct kv_batch *b, uint64_t ino, const struct writer *w);

/* Call fn for each name but the first, until it returns other than 0. */
typedef int (*names_link_fn)(void *arg, uint64_t parent, const char *name);
int names_each_link(struct names *nm, uint64_t ino, names_link_fn fn,
		    void *arg);

#endif
