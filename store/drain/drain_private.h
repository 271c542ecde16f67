/*
 * drain_private.h - the drain's own state, shared by the files of this room.
 *
 * drain.lock is the one monitor: it guards the order and what each job says
 * below it. What a worker or the committer does goes on without it, on a
 * struct work (work.h) that nobody else changes.
 */
#ifndef STORE_DRAIN_PRIVATE_H
#define STORE_DRAIN_PRIVATE_H

#include "store/base/sync.h"
#include "store/drain/drain.h"
#include "store/drain/order.h"
#include "store/drain/work.h"
#include "store/names/inode.h"
#include "store/space/image.h"
#include "store/space/stage.h"

#define DRAIN_THREADS_MAX 8

/*
 * A version of a file, from its close to its end. Who has it, and where it
 * stands, is in `v`; the attempt at it that is under way is its work.
 */
struct drain_job {
	struct inode *in; /* a reference */
	struct stage *stage; /* a reference; see also drain.c */
	atomic_uint refs; /* of these, one is the order's, until v is over */

	/* drain.lock: */
	struct version v;
	struct work *work; /* a reference; NULL: no worker has looked at it */
	unsigned attempts, failures; /* that are over; of these, failed */
	int result; /* of the last that failed; or of all, when v is over */
	int failure; /* of the last that failed, also when v is placed anew */
	struct stage *drop; /* v is over: what the file had of it, or NULL */
	int64_t due_ns; /* v is idle: when it goes on by itself */
	int64_t since_ns; /* when it was made; never changed */
	bool closed; /* it is for a close, which had no place for it, too */
	uint64_t close_size; /* the stage when it was closed last ... */
	int64_t close_mtime_ns;
};

TAILQ_HEAD(works, work);
TAILQ_HEAD(commit_ops, commit_op);

struct drain {
	struct kv *kv;
	struct images *images;
	struct stages *stages;
	struct inode_table *inodes;
	struct reclaim *reclaim;
	struct drain_options options;
	struct inflight *inflight;
	atomic_bool label_failed; /* and that was said */
	atomic_uint_fast64_t writing_bytes; /* by workers, just now */
	atomic_uint hurried; /* who waits: see drain_hurry_begin() */
	struct thread thread[DRAIN_THREADS_MAX];
	unsigned thread_count;
	struct thread standby; /* the worker that stands by for who waits */
	struct thread timer, committer;
	bool started, commit_started;

	struct lock lock; /* guards everything below */
	struct cond work; /* there is something for a worker, or stop */
	struct cond wanted; /* the same for the one that stands by */
	struct cond moved; /* a job changed its state, or a writer went */
	struct cond commit; /* there may be something to commit, or stop */
	struct cond tick; /* wakes the timer early */
	struct order order;
	/*
	 * The greatest rank of what left its file clean while something older
	 * had a place; 0: nothing did. Of an earlier daemon it is not known, so
	 * that the first place of this one stands for it.
	 */
	uint64_t overtook;
	struct works running; /* their spans can be claimed */
	unsigned running_count; /* jobs that workers have */
	uint64_t turns; /* works that were begun */
	bool stop, commit_stop;
	struct commit_ops ops; /* what else the committer is asked for */
	struct commit_ops refused; /* deletions that found the disk full */
	uint64_t failed; /* files with a sticky error */
	uint64_t left_native, left_native_bytes;
	unsigned awaiting_release; /* who is in drain_wait_released() */
	/* When options.ask_left() is next (0: never); how long after that. */
	int64_t left_due_ns, left_delay_ns;
};

static inline struct drain_job *job_of(struct version *v)
{
	return v ? (struct drain_job *)((char *)v -
					offsetof(struct drain_job, v))
		 : NULL;
}

/* --- job.c. _locked: inode.lock and drain.lock are held. */

/* One reference; takes its own of the inode and the stage. NULL: no memory. */
struct drain_job *job_new(struct inode *in, struct stage *stage);
/* One more reference, or NULL when there is no job. */
struct drain_job *job_ref(struct drain_job *j);
void drain_job_put(struct drain *d, struct drain_job *j);
/* What one of the workers may do now is not known; drain.lock is held. */
static inline void workers_wake_locked(struct drain *d)
{
	cond_broadcast(&d->work);
	cond_signal(&d->wanted);
}
/*
 * It was closed with nothing in it, and may still be changed: perhaps it was
 * not closed for good, as in `cmd >file` of a shell. drain.lock is held.
 */
bool job_is_empty(const struct drain_job *j);
/* It waits for no event any more; drain.lock alone is held. */
void job_wake_locked(struct drain *d, struct drain_job *j);
/* If it is RUNNING: what a worker has done of it does not count. */
void job_disturb_locked(struct drain_job *j);
/* The same; and when it is READY, the committer gives it back. */
void job_stop_locked(struct drain *d, struct drain_job *j);
/* Somebody waits for it, and then not any more. drain.lock alone is held. */
void job_want_locked(struct drain *d, struct drain_job *j);
void job_leave_locked(struct drain *d, struct drain_job *j);
/* See drain_options.tell_place; drain.lock alone is held. */
uint64_t job_place_of_locked(const struct file *f, bool *ret_holds);
void job_tell_place_locked(struct drain *d, const struct inode *in);
/*
 * It is over, in the state `to` with this result; it waits in `ended` for the
 * caller's jobs_ended(), without locks.
 */
void job_end_locked(struct drain *d, struct drain_job *j, enum version_state to,
		    int result, struct version_queue *ended);
void jobs_ended(struct drain *d, struct version_queue *ended);

/* --- drain.c */

/* What made somebody ask for a job. */
enum close_kind {
	/* It is asked for as it stands: it gets no place. */
	CLOSE_NOT,
	CLOSE_FLUSHED, /* closed; it waits while somebody has it to write */
	CLOSE_LEFT, /* nobody can change it any more: if that is still so */
};
/*
 * The job that will drain in's stage next, made when there is none, with one
 * reference; for CLOSE_NOT the one that is in flight, if there is one: who asks
 * knows that it began after what he asks for was written. NULL when there is
 * nothing to drain (*ret_rc 0) or no memory; also when a job that runs has the
 * place for these very bytes, which are sealed.
 */
struct drain_job *job_for(struct drain *d, struct inode *in,
			  enum close_kind kind, int *ret_rc);
/* --- drain_over.c */

/* The newer job of the very stage that j has, or NULL. drain.lock is held. */
struct drain_job *newer_locked(const struct drain_job *j);
/*
 * The file has no error any more: what failed is durable, deleted, or written
 * over. inode.lock and drain.lock are held.
 */
void unstick_locked(struct drain *d, struct file *f);
/* An attempt is over; the job is drained again, or not needed any more. */
void drain_void(struct drain *d, struct drain_job *j, bool overtaken);
/*
 * It failed: the stage is kept, the error sticks to the file, and it is tried
 * again later in the same place.
 */
void drain_fail(struct drain *d, struct drain_job *j, int rc);
struct drain_taken {
	struct drain_job *j;
	bool makes_way; /* for drain_void(); else it may be committed */
};
/*
 * The next one for the committer, those that make way first, then oldest first;
 * false: there is none.
 */
bool drain_take(struct drain *d, struct drain_taken *ret);
bool drain_take_locked(struct drain *d, struct drain_taken *ret);
/*
 * j is durable, and everybody may see it. clean: there are no other bytes in
 * its stage, so a later close of it ends as well. inode.lock is held.
 */
void drain_seen(struct drain *d, struct drain_job *j, bool clean,
		struct version_queue *ended);
/* All that follows is done. Unless `stored`, its own image is given up. */
void drain_done(struct drain *d, struct drain_job *j, bool stored);

/* --- drain_timer.c */

void *drain_timer_main(void *arg);
/*
 * Drain as they stand the files that have been open for drain_interval seconds
 * by now_ns, each since its first writer opened it or it was looked at last.
 * One that takes the place of something is left: OPEN_REPLACES.
 */
void drain_open_files(struct drain *d, int64_t now_ns);

#endif
