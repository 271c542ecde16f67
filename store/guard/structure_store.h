/*
 * structure_store.h - structure.h for what lies in the store: files as they
 * stand, staged or durable, without a handle. Threads: any; blocks on I/O.
 */
#ifndef STORE_STRUCTURE_STORE_H
#define STORE_STRUCTURE_STORE_H

#include "store/names/inode.h"
#include "store/step/structure.h"

struct store;

struct structure_limits {
	uint64_t metadata_bytes_max;
	size_t memory_bytes_max;
};

/*
 * Of a folder. metadata: the inode that is about to be its .metadata; 0: what
 * has that name. reader: -EACCES when he may not read all of it (his groups'
 * rights do not count); NULL: whoever. structure_release() it in any case.
 */
int structure_of_dir(struct store *st, uint64_t dir, uint64_t metadata,
		     const struct structure_limits *limits,
		     const uid_t *reader, struct structure *ret);
/* Of a file. */
int structure_of_inode(struct store *st, struct inode *in,
		       const struct structure_limits *limits,
		       struct structure *ret);

/* "a/b" below a folder, with a reference. -ENOENT, -ENOTDIR. */
int structure_lookup(struct store *st, uint64_t dir, const char *path,
		     struct inode **ret_inode);

/* Exactly [off, off + len) of a file. -ESTALE: it ends before. */
int structure_read(struct store *st, struct inode *in, void *buf, size_t len,
		   uint64_t off);

#endif
