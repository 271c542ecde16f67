/*
 * drain.h - turning stages into committed content, behind the trainer's back.
 *
 * What was closed gets its place in the one order (order.h); workers make its
 * bytes durable (work.h), and the committer its records, in that order
 * (commit.h). What of a file is on its way is in its list of versions.
 *
 * Threads: any. Nothing here waits with a lock held; what waits says so. Each
 * wait ends with -EINTR when the call that its thread serves is to end
 * (interrupt.h): what was asked for goes on, but overtakes no more, and nothing
 * is undone.
 */
#ifndef STORE_DRAIN_H
#define STORE_DRAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "store/names/inode.h"

struct drain;
struct kv_batch;
struct reclaim;

/* How it works, and whom it calls. All that is pointed to is borrowed. */
struct drain_options {
	const char *uuid; /* of the store, for labels */
	const uint8_t *secret; /* HASH_SECRET_BYTES */
	unsigned threads; /* 0: one for each processor, 2 to 8 */
	unsigned interval_s; /* for files that stay open; 0: never */
	unsigned dedup_min_saving_percent;
	unsigned copies; /* of a chunk: 1 to CHUNK_COPIES_MAX */
	bool verify; /* bytes are compared before they are shared */
	bool share_all; /* bytes are shared between owners: records.h */
	bool hold; /* drain only when asked */
	/* Each is called by the drain's timer alone, with `arg` and no lock: */
	void *arg;
	bool (*ask_left)(void *arg); /* see drain_released(); true: again */
	void (*each_second)(void *arg);
	/*
	 * With `arg`; NULL: nobody. By the committer: a version of the file is
	 * about to be written with b. This is its place; of one that was not
	 * closed, the number that was drawn when its drain began.
	 */
	void (*committing)(void *arg, struct kv_batch *b, uint64_t ino,
			   uint64_t place);
	/*
	 * By any thread, with drain.lock: the newest that was closed of the
	 * file, and is not durable, has this place; it holds up what was closed
	 * after it, unless it failed. 0: what was closed of it is durable,
	 * deleted or open again. It takes no lock above drain.lock.
	 */
	void (*tell_place)(void *arg, uint64_t ino, uint64_t place, bool holds);
};
/* Work may be given to it from now on. */
int drain_new(struct kv *kv, struct images *images, struct stages *stages,
	      struct inode_table *inodes, struct reclaim *reclaim,
	      const struct drain_options *options, struct drain **ret_drain);
int drain_start(struct drain *d);
/*
 * Stop the workers; jobs that are not done stay in their stages. They may be
 * started again. The committer goes on until drain_free().
 */
void drain_stop(struct drain *d);
/* Before inodes_free(), for jobs hold inodes. NULL: nothing. */
void drain_free(struct drain *d);

/*
 * A handle for writing was closed: the file is to become durable after all
 * that were closed before. It is drained when no writer is left; after a tenth
 * of a second also with one, unless it is empty.
 */
int drain_closed(struct drain *d, struct inode *in);
/*
 * The last writer is gone: what waited for that starts, or it is queued. When a
 * mapping of his may be left it is asked until none is, soon at first: see
 * drain_options.ask_left.
 */
void drain_released(struct drain *d, struct inode *in);
/*
 * Before any version is: no place from `first` on was given by an earlier
 * daemon.
 */
void drain_begin_places(struct drain *d, uint64_t first);
/*
 * What an earlier daemon had closed has its stage and its place again. If the
 * file has another stage, s had been replaced: the references to the stage and,
 * for it, to the inode are taken over.
 */
int drain_resume(struct drain *d, struct inode *in, struct stage *s,
		 uint64_t place);
/* A place, or a number, after all that were given, which no version has. */
uint64_t drain_draw_place(struct drain *d);
/* What tell_place() would say of the file now; see drain_options. */
uint64_t drain_place_of(struct drain *d, struct inode *in);

/*
 * Returns when all that was written to the file before the call is durable,
 * or with the error that prevents it. Does not keep the order of closes: this
 * version of the file alone overtakes, not those that it has replaced.
 */
int drain_sync(struct drain *d, struct inode *in);
/*
 * Returns when every file at or under `dir` is durable, those that are still
 * open as they stand, and with them all that was closed before; or with
 * the first error. When all of them are durable already, one may have overtaken
 * what was closed before it: what anything durable has overtaken is waited for.
 */
int drain_sync_tree(struct drain *d, uint64_t dir);
/* The same for all that was closed so far; what is open stays as it is. */
int drain_sync_closed(struct drain *d);
/*
 * fsync(2) of a folder: what its names say is durable, the files included that
 * were closed, and with them all that was closed before, overtaken or not. What
 * is open, or below, stays as it is.
 */
int drain_sync_folder(struct drain *d, uint64_t dir);
/* The same for one file, in order: what a publish needs. */
int drain_publish(struct drain *d, struct inode *in);
/* The same, but what is open for writing stays as it is. */
int drain_publish_closed(struct drain *d, struct inode *in);
/*
 * Wait until all that was closed before is durable, without hurrying any of it:
 * for who only wants to look afterwards. The error of what keeps failing.
 */
int drain_wait_drained(struct drain *d);
/*
 * Somebody waits, though not for the drain itself, and until drain_hurry_end()
 * nothing of it yields the disk. All that waits in a call above does so too.
 */
void drain_hurry_begin(struct drain *d);
void drain_hurry_end(struct drain *d);

/*
 * The bytes of the file's stage are about to change: what reads them as they
 * were closed does not count any more, and is begun anew in its place. A stage
 * that was to become the image is the file's to be written again. False: that
 * is too late, for the committer has it, or it stays frozen (see the next one).
 * inode.lock is held, in which the change also begins (FILE_BEGUN), so that
 * nothing takes them for closed bytes after this.
 */
bool drain_reopen(struct drain *d, struct file *f);
/*
 * Returns when the committer does not have it any more. -EINTR; -EIO: it stays
 * frozen, since the store has to be mounted again.
 */
int drain_wait_taken(struct drain *d, struct inode *in);
/*
 * Returns when no worker reads the mapping of the file's stage any more, which
 * is after one span at the latest: it may become shorter. A change has begun,
 * so that nobody maps it. 0, or -EINTR.
 */
int drain_wait_unread(struct drain *d, struct inode *in);
/*
 * The stage's bytes have been changed by us, not by a writer of whom it is
 * known that he may be in the middle of something: what was reading them, as
 * they stood, has neither what was there nor what is, and does not count.
 */
void drain_changed(struct drain *d, struct inode *in);
/*
 * O_TRUNC of a file that nobody has open: `fresh`, empty, becomes its stage.
 * If the old one was closed, what was closed after it may depend on it, so it
 * is drained in its place of the order all the same: NULL, and the references
 * that the file had, to the stage and for it to the inode, are taken over.
 * Otherwise returns the old stage, for the caller to drop, or NULL.
 */
struct stage *drain_replace(struct drain *d, struct inode *in,
			    struct stage *fresh);
/*
 * O_TRUNC of a file that was just closed, or whose last close is not durable,
 * while its handle is not released: the kernel sends the release after close(2)
 * has returned, so the next open may be here first, and would take the file for
 * one that somebody still writes to. Wait until no writer is left, or neither
 * is so any more; a second at most, for who has a dup(2) of it. Not under
 * in->changing, which the release needs.
 *
 * A lease cannot replace this: it is granted at once for a file in passthrough,
 * whose RELEASE is held up (measured with F_RDLCK on tmpfs, Linux 6.18), but of
 * one whose bytes pass through us the kernel has no stage open at all, so that
 * it would be granted while somebody writes, too.
 */
void drain_wait_released(struct drain *d, struct inode *in);
/* The stage was replaced by a copy in which the writer goes on. */
void drain_moved(struct drain *d, struct inode *in);
/*
 * Returns when what was closed of the file is durable, in its place of the
 * order, or with the error of what prevents that, this file or an older one;
 * -EINTR: the caller is to end.
 */
int drain_wait_closed(struct drain *d, struct inode *in);
/* The same for what was closed and then replaced only: see drain_replace(). */
int drain_wait_replaced(struct drain *d, struct inode *in);
/* Was a version closed that is not durable yet? inode.lock is held. */
bool drain_has_closed(struct drain *d, const struct file *f);
/*
 * Is all that the file ever was one version that was closed, and is in its
 * place of the order? inode.lock is held.
 */
bool drain_is_in_place(struct drain *d, const struct file *f);
/* The inode lost its last name and handle: nothing of it is drained. */
void drain_cancel(struct drain *d, struct inode *in);

/* Who waits here asks whether his call is to end: see interrupt.h. */
void drain_look_again(struct drain *d);

/* hold_drain is over: everything may be drained. */
void drain_go_on(struct drain *d);

struct drain_figures {
	uint64_t draining; /* jobs that are not done */
	uint64_t failed; /* of these, files with an error */
	uint64_t left_native; /* files whose few duplicates were left */
	uint64_t left_native_bytes;
};
void drain_figures(struct drain *d, struct drain_figures *ret);
/* Call fn for every failed file, without a lock. */
void drain_each_failed(struct drain *d,
		       void (*fn)(void *arg, struct inode *in, int error),
		       void *arg);

#endif
