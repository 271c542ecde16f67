/* commit_private.h - between the commit*.c files: see commit.h. */
#ifndef STORE_COMMIT_PRIVATE_H
#define STORE_COMMIT_PRIVATE_H

#include <stdbool.h>
#include <sys/queue.h>

#include "store/db/hash.h"
#include "store/db/kv.h"
#include "store/db/records.h"
#include "store/drain/commit.h"
#include "store/drain/drain_private.h"

enum commit_kind {
	COMMIT_DELETE,
	COMMIT_CLONE,
	COMMIT_KEEP,
	COMMIT_ABANDON,
	COMMIT_NOTHING, /* somebody waits for those before it */
};

struct commit_op {
	TAILQ_ENTRY(commit_op) next;
	enum commit_kind kind;
	uint64_t ino; /* DELETE; CLONE, KEEP: to */
	uint64_t from; /* CLONE, KEEP */
	struct inode *keeper; /* KEEP: to */
	struct kv_batch *batch; /* CLONE, KEEP: the caller's */
	struct image *image; /* ABANDON: a reference */
	uint64_t size_bytes; /* ABANDON */
	bool waited, done; /* CLONE, KEEP, NOTHING: on the caller's stack */
	int result;
};
/* How many jobs share a sync of the log, or deletions a batch. */
#define COMMIT_GROUP_MAX 64

/* --- commit_queue.c */

/* Deletions that a full disk refused are tried again. */
void commit_retry(struct drain *d);

/* --- commit.c */

/* Nothing, when it runs already: drain_start() may come again. */
int commit_start(struct drain *d);
/* Once nothing is given to it any more. */
void commit_stop(struct drain *d);

/* --- commit_job.c */

/* Commit, or give back, what was taken, and what can be taken after it. */
void commit_jobs(struct drain *d, const struct drain_taken *first);

/* --- commit_refs.c */

/* A change of one chunk's references, to be summed up. */
struct ref_change {
	uint64_t image, offset;
	uint32_t len;
	int32_t delta;
	uint8_t hash[HASH_BYTES];
	uint64_t domain;
	bool made; /* set by changes_apply(): it was the first reference */
	bool gone; /* the same: it was the last one */
	bool fresh; /* may not be there yet: its work brings it */
	uint64_t image_size; /* fresh: what the image's I record says */
};

struct ref_changes {
	struct ref_change *at;
	size_t count, capacity;
};

int changes_add(struct ref_changes *c, const struct ref_change *one);
void changes_release(struct ref_changes *c);
/* Every chunk under these extents gets `delta` more references. */
int changes_of_content(struct drain *d, const struct content *c, int32_t delta,
		       struct ref_changes *out);
/*
 * Into b: all changes. -ESTALE: a shared chunk is not there any more; nothing
 * in b may be used then.
 */
int changes_apply(struct drain *d, struct kv_batch *b,
		  struct ref_changes *changes);
/* What changes_apply() left behind for the reclaimer, once it is written. */
void changes_reclaim(struct drain *d, const struct ref_changes *changes);

/* --- commit_ops.c */

/*
 * Delete n inodes in one batch: what `rm -r` of many small files costs is
 * mostly the batches. The ops are freed.
 */
void commit_ops_delete(struct drain *d, struct commit_op **ops, unsigned n);
/* Do it and answer; op is freed unless its caller waits for it. */
void commit_op_run(struct drain *d, struct commit_op *op);

#endif
