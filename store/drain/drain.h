/*
 * drain.h - turning stages into committed content, behind the trainer's back.
 *
 *   drain_closed()                      close: the job gets its place in order
 *        |
 *     WAITING ---> QUEUED ---> RUNNING ---> READY ---> DONE
 *        (until the     |         |  \         |
 *         handle is     |         |   +--------+--> RESTARTED (a successor
 *         released)     |         v                  takes its place)
 *                       +-----> FAILED (retried) / CANCELLED
 *
 * A job is one attempt at one stage. Workers share its work in spans of some
 * MiB; the one that finishes the last span finishes the job and hands it to
 * the committer (commit.h), which keeps the order of closes.
 *
 * What is stored is what was hashed. A stage that nobody can write to is
 * hashed and written from its mapping; if a writer opens it meanwhile the job
 * is `raced` and starts again. While writers exist, bytes are copied before
 * they are hashed, and at the last close everything is hashed once more.
 *
 * Locks: drain.lock guards the lists and the job fields marked so; it is a
 * leaf. Sharing between jobs that run at once goes through the in-flight table
 * (inflight.h).
 */
#ifndef STORE_DRAIN_H
#define STORE_DRAIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "store/base/sync.h"
#include "store/db/hash.h"
#include "store/formats/cut.h"
#include "store/names/inode.h"
#include "store/space/reclaim.h"

enum chunk_kind {
	CHUNK_ZERO, /* a hole */
	CHUNK_NEW, /* written to the job's own image, at its own offset */
	CHUNK_SHARED, /* lies at image, image_offset, and is committed */
	CHUNK_JOINED, /* lies where another running job puts it */
	CHUNK_DEFERRED, /* another running job has it: not decided yet */
};

struct drain_chunk {
	uint64_t offset;
	uint32_t len;
	uint8_t kind; /* enum chunk_kind */
	bool kept; /* SHARED with the file's own committed content */
	bool spare; /* was written to the own image before it was shared */
	uint8_t hash[HASH_BYTES];
	uint64_t image, image_offset;
	struct drain_job *owner; /* DEFERRED: a reference */
	uint32_t owner_chunk;
	struct drain_origin *origin; /* JOINED: a reference; NULL: the file */
};

/*
 * What others must know of a job whose bytes they share, until they are
 * committed themselves. The job may have ended long before: its image and its
 * stage are not kept for them.
 */
struct drain_origin {
	atomic_uint refs;
	uint64_t size_bytes;
	bool adopt;
	atomic_bool written; /* the chunks are in the index now, or were */
	atomic_bool ended; /* when not written: there will be no such chunks */
};
void drain_origin_put(struct drain_origin *o);

enum job_state {
	JOB_WAITING,
	JOB_QUEUED,
	JOB_RUNNING,
	JOB_READY,
	JOB_ENDING, /* in no list any more: whoever took it there ends it */
	JOB_DONE,
	JOB_FAILED,
	JOB_CANCELLED,
	JOB_RESTARTED,
};

struct drain_job {
	struct inode *in; /* a reference */
	struct stage *stage; /* a reference */
	atomic_uint refs;
	atomic_bool raced; /* a writer came, or the inode lost its name */
	atomic_int error; /* first error of any span */

	/* drain.lock: */
	enum job_state state;
	uint64_t
		order; /* place among the closes; 0: none, commits when ready */
	bool urgent; /* somebody waits: commit without regard to the order */
	bool asked; /* may start although hold_drain is set */
	bool listed; /* in the list of READY jobs that need no order */
	bool taken; /* by the committer ... */
	bool in_turn; /* ... in its place of the order; set before it is taken
		       */
	bool begun; /* job_begin() has looked at the writers; in->lock too */
	bool empty_close; /* WAITING: there was nothing to close yet */
	bool again; /* the same bytes failed before */
	uint64_t close_size; /* the stage when it was closed last ... */
	int64_t close_mtime_ns;
	bool overtaken; /* not what was closed any more: it does not count */
	/*
	 * Its stage was closed and then replaced (O_TRUNC): it is drained in
	 * its place all the same, before anything newer of its file. The list
	 * file->earlier has a reference to it, and to the stage and the inode
	 * what the file had.
	 */
	bool earlier;
	struct drain_job *next_earlier;
	bool no_join; /* share with nobody who is not committed yet */
	bool published; /* durable, and in file->content; under inode.lock */
	/* Its chunks' places are final and on the disk, or will never be. */
	bool settled, gave_up;
	uint64_t serial; /* the smaller one of two jobs has the chunk */
	int64_t due_ns; /* WAITING, FAILED: when to go on by itself */
	struct drain_job *successor; /* RESTARTED: a reference */
	struct drain_origin *origin; /* a reference; set when it begins */
	int result;
	/* in_queue: of queue, idle, running or ready, as the state says. */
	TAILQ_ENTRY(drain_job) by_order, in_queue;

	/* Set when it starts to run, then read only: */
	bool exclusive; /* nobody has it open for writing */
	bool adopt; /* the stage is the image */
	struct reclaim_ticket ticket; /* held while it runs */
	bool has_ticket;
	const uint8_t *map; /* of an exclusive memory stage while it runs */
	bool stable; /* it had one: its bytes did not change */
	/*
	 * Open while it runs, and only then: what waits takes no descriptor.
	 * -1: not yet, or not any more. See work_close().
	 */
	int stage_fd;
	int image_fd, direct_fd; /* both under image_turn until they are set */
	uint64_t size_bytes;
	int64_t mtime_ns;
	const char *format;
	uint64_t domain; /* with whose chunks it shares: records.h */
	bool synced; /* what is in the image is durable, with its label */
	uint64_t label; /* a sum of what that says; 0: it has none */
	struct lock image_turn; /* held while the image is made */
	struct image *image; /* where NEW chunks go; a reference, or NULL */
	struct content_ref *old; /* what was committed when it started */
	uint8_t *small; /* all bytes of a small file */
	struct drain_chunk *chunks;
	uint32_t chunk_count;
	uint32_t *spans; /* first chunk of each span, and chunk_count */
	uint32_t span_count;
	atomic_uint next_span, spans_left;

	/* The result, for the committer: */
	bool undid; /* what little it could have shared was stored after all */
	bool unchanged; /* equals what is committed */
	uint8_t digest[HASH_BYTES];
	/* The committer's own, between its steps: */
	bool hold_punch;
	struct content_ref *publish_old;
	struct stage *publish_drop;
};

struct drain;
struct store;

int drain_init(struct store *st);
int drain_start(struct store *st);
/* Stop the threads; jobs that are not done stay in their stages. */
void drain_stop(struct store *st);
void drain_release(struct store *st);

/*
 * A handle for writing was closed: the file is to become durable after all
 * that were closed before. `released`: no writer is left.
 */
int drain_closed(struct store *st, struct inode *in, bool released);
/* The last writer is gone: what waited for that starts, or it is queued. */
void drain_released(struct store *st, struct inode *in);
/*
 * The last writer is gone, but a mapping of his may be left: ask until none is,
 * soon at first. See in_place.h.
 */
void drain_ask_left(struct store *st);
/* The same for a stage found at the start, in its old place (0: the end). */
int drain_resume(struct store *st, struct inode *in, uint64_t order);
/*
 * The same for one that had been replaced by another when the last daemon
 * died. Takes over the references to the stage and, for it, to the inode.
 */
int drain_resume_earlier(struct store *st, struct inode *in, struct stage *s,
			 uint64_t order);

/*
 * Returns when all that was written to the file before the call is durable,
 * or with the error that prevents it. Does not keep the order of closes: this
 * version of the file alone overtakes, not those that it has replaced.
 */
int drain_sync(struct store *st, struct inode *in);
/*
 * Returns when every file at or under `dir` is durable, those that are still
 * open as they stand, and with them all that was closed before; or with
 * the first error.
 */
int drain_sync_tree(struct store *st, uint64_t dir);
/* The same for all that was closed so far; what is open stays as it is. */
int drain_sync_closed(struct store *st);
/*
 * The same for one file, in order: what a publish needs.
 */
int drain_publish(struct store *st, struct inode *in);
/* The same, but what is open for writing stays as it is: only what was closed.
 */
int drain_publish_closed(struct store *st, struct inode *in);
/*
 * Wait until all that was closed before is durable, without hurrying any of it:
 * for who only wants to look afterwards. The error of what keeps failing.
 */
int drain_wait_drained(struct store *st);

/*
 * Somebody is about to change the stage's bytes (open for writing, truncate):
 * a job that reads the mapping must not count. With `wait`, returns when no
 * worker reads it any more.
 */
void drain_disturb(struct store *st, struct inode *in, bool wait);
/*
 * The stage's bytes have been changed by us, not by a writer of whom it is
 * known that he may be in the middle of something: a job that was reading them
 * has neither what was there nor what is, and does not count.
 */
void drain_changed(struct store *st, struct inode *in);
/*
 * Wait until no job of this inode runs: it is frozen only so long. The order
 * of closes is kept, so an error of one that was closed earlier ends it.
 */
int drain_wait_idle(struct store *st, struct inode *in);
/*
 * O_TRUNC of a file that nobody has open: `fresh`, empty, becomes its stage.
 * If the old one was closed, what was closed after it may depend on it, so it
 * is drained in its place of the order all the same: NULL, and the references
 * that the file had, to the stage and for it to the inode, are taken over.
 * Otherwise returns the old stage, for the caller to drop, or NULL.
 */
struct stage *drain_replace(struct store *st, struct inode *in,
			    struct stage *fresh);
/*
 * O_TRUNC of a file whose last close is not durable, while its handle is not
 * released: the kernel sends the release after close(2) has returned, so the
 * next open may be here first, and would take the file for one that somebody
 * still writes to. Wait until no writer is left, or until that close is durable
 * or can not become so; a second at most, for who has a dup(2) of it. Not under
 * in->turn, which the release needs.
 */
void drain_wait_released(struct store *st, struct inode *in);
/* The stage was replaced by a copy in which the writer goes on. */
void drain_moved(struct store *st, struct inode *in);
/*
 * Returns when what was closed of the file is durable, in its place of the
 * order, or cannot become so: its name is about to go to another inode.
 */
void drain_wait_closed(struct store *st, struct inode *in);
/* The same for what was closed and then replaced only: see drain_replace(). */
void drain_wait_replaced(struct store *st, struct inode *in);
/* Was a version closed that is not durable yet? inode.lock is held. */
bool drain_has_closed(struct store *st, const struct file *f);
/* The inode lost its last name and handle: nothing of it is drained. */
void drain_cancel(struct store *st, struct inode *in);

/* hold_drain is over: everything may be drained. */
void drain_ask_all(struct store *st);

struct drain_figures {
	uint64_t draining; /* jobs that are not done */
	uint64_t failed; /* of these, files with an error */
	uint64_t left_native; /* files whose few duplicates were left */
	uint64_t left_native_bytes;
};
void drain_figures(struct store *st, struct drain_figures *ret);
/* Call fn for every failed file, without a lock. */
void drain_each_failed(struct store *st,
		       void (*fn)(void *arg, struct inode *in, int error),
		       void *arg);

/* For commit.c: finish a job in one of its final states. */
void drain_finish(struct store *st, struct drain_job *j, enum job_state to,
		  int result);
/*
 * j is about to be committed, before versions of its file that are older, which
 * somebody did not wait for: how many. With `hide` another daemon would not
 * find them, and bring them back over j; without, it does again.
 */
unsigned drain_older(struct store *st, const struct drain_job *j, bool hide);
/* j is durable and seen: what is older of its file ends. */
void drain_supersede(struct store *st, const struct drain_job *j);
/* It must be drained again, or need not be drained at all. */
void drain_void(struct store *st, struct drain_job *j);
/* The job failed in the committer. */
void drain_fail(struct store *st, struct drain_job *j, int rc);
/* A file's drain went well (again). */
void drain_unstick(struct store *st, struct inode *in);
/* Start the same file again, in the same place. */
void drain_restart(struct store *st, struct drain_job *j);
/* The next jobs that may be committed, oldest first; up to max of them. */
unsigned drain_take_ready(struct store *st, struct drain_job **jobs,
			  unsigned max);
/* A job that was taken is not committed in this group after all. */
void drain_untake(struct store *st, struct drain_job *j);
void drain_job_put(struct store *st, struct drain_job *j);

#endif
