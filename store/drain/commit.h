/*
 * commit.h - the committer: one thread that alone changes contents, chunks,
 * hashes and images in the database, so that their records need no lock.
 *
 * It takes finished drain jobs in the order in which their files were closed
 * (those that somebody waits for at once), writes one batch for each, syncs the
 * log once for all of them, and only then lets anybody see them as durable.
 * Bytes are on the disk before their job gets here.
 *
 * A share that a deletion has overtaken (its chunk is gone) sends the job
 * back to be drained again.
 */
#ifndef STORE_COMMIT_H
#define STORE_COMMIT_H

#include <stdint.h>

#include "store/db/kv.h"

struct drain;
struct image;
struct inode;

/*
 * Delete an inode that has no name and no handle: its records and its share of
 * the chunks. Returns at once; deletions are applied in order.
 */
int commit_delete(struct drain *d, uint64_t ino);
/*
 * Write b together with a copy of from's committed content for `to`; when it
 * has none, `to` counts as never committed. Waits for the committer; the
 * caller keeps b.
 */
int commit_clone(struct drain *d, struct kv_batch *b, uint64_t from,
		 uint64_t to);
/*
 * Write b, in which `in` takes the place of the inode `from`: unless `in` has
 * committed content by now, it gets a copy of from's, and drops it when it is
 * committed itself. So a power cut leaves the one or the other. -EAGAIN: it
 * keeps another one's already. Waits for the committer; the caller keeps b.
 */
int commit_keep(struct drain *d, struct kv_batch *b, uint64_t from,
		struct inode *in);
/* Returns when all that was asked for above before this call is done. */
void commit_wait(struct drain *d);
/*
 * An image that no job will commit: removed, unless another file has shared
 * some of it meanwhile. Takes over the caller's reference.
 */
void commit_abandon(struct drain *d, struct image *i, uint64_t size_bytes);

#endif
