/* drain_private.h - the drain's own state, shared by the drain*.c files. */
#ifndef STORE_DRAIN_PRIVATE_H
#define STORE_DRAIN_PRIVATE_H

#include "store/base/sync.h"
#include "store/drain/drain.h"

#define DRAIN_THREADS_MAX 8

TAILQ_HEAD(job_order, drain_job);

struct drain {
	struct inflight *inflight;
	atomic_uint_fast64_t writing_bytes; /* by workers, just now */
	struct thread thread[DRAIN_THREADS_MAX];
	unsigned thread_count;
	struct thread timer;
	bool started;

	struct lock lock; /* guards everything below */
	struct cond work; /* there is something for a worker, or stop */
	struct cond moved; /* a job changed its state, or a writer went */
	struct cond tick; /* wakes the timer early */
	struct job_order order; /* ordered jobs that are not done, by order */
	struct job_order queue; /* QUEUED; urgent ones first */
	struct job_order idle; /* WAITING and FAILED */
	struct job_order running;
	struct job_order ready; /* READY, to be committed without order */
	unsigned running_count;
	uint64_t next_order, next_serial;
	bool stop;
	bool release_all; /* hold_drain is over: the store is being closed */
	uint64_t draining; /* jobs that are not in a final state */
	uint64_t failed; /* files with a sticky error */
	uint64_t left_native, left_native_bytes;
	unsigned awaiting_release; /* who is in drain_wait_released() */
	/* When files_ask_left() is next, and how long after that; 0: never. */
	int64_t left_due_ns, left_delay_ns;
};

struct store;

/* --- drain.c. _locked: drain.lock is held. */

void job_ref(struct drain_job *j);
/* One reference; takes its own of the inode and the stage. NULL: no memory. */
struct drain_job *job_new(struct store *st, struct inode *in,
			  struct stage *stage);
/*
 * The job that will drain in's stage next, made when there is none, with one
 * reference. NULL when there is nothing to drain (*ret_rc 0) or no memory.
 * ordered: the file was closed, and takes its place in the order; NULL also
 * when a job that runs has the place for these very bytes, which are sealed.
 */
struct drain_job *job_for(struct store *st, struct inode *in, bool ordered,
			  bool waiting, int *ret_rc);
bool job_final(enum job_state s);
bool job_may_start_locked(const struct store *st, const struct drain_job *j);
void job_enqueue_locked(struct drain *d, struct drain_job *j);
/* Out of the list that its state says; nothing for the others. */
void job_unqueue_locked(struct drain *d, struct drain_job *j);
/* As that, for good: the caller ends it with drain_finish(), without locks. */
void job_end_locked(struct drain *d, struct drain_job *j);
/* It waits for no event any more. */
void job_wake_locked(struct drain *d, struct drain_job *j);
/* Finished in its place of the order, but somebody waits for it alone. */
void job_list_ready_locked(struct drain *d, struct drain_job *j);
/*
 * Somebody waits for this job: it goes to the front. Versions of its file that
 * were replaced stay where they are in the order: nobody asked for them.
 */
void job_promote_locked(struct drain *d, struct drain_job *j);

/* --- drain_earlier.c. _locked: inode.lock and drain.lock are held. */

/* next stands for j from now on; the caller puts the list's reference to j. */
void earlier_replace_locked(struct drain_job *j, struct drain_job *next);
/* Out of the list; true: no other job has its stage, so it goes. */
bool earlier_remove_locked(struct drain_job *j);
/* May j start, as far as the other versions of its file are concerned? */
bool job_is_next_locked(const struct drain_job *j);
/* The store is closed: a replaced stage stays for the next start as well. */
void earlier_discard(struct store *st, struct drain_job *j);

/* --- drain_wait.c */

/*
 * Wait until all jobs with a place before `order` are done. The first of them
 * that fails while we wait ends it: nothing after it can be in order.
 */
int order_wait(struct store *st, uint64_t order);

/* --- drain_timer.c */

void *drain_timer_main(void *arg);
/*
 * Drain as they stand the files that have been open for drain_interval seconds
 * by now_ns, each since its first writer opened it or it was looked at last.
 * One that takes the place of something is left: OPEN_REPLACES.
 */
void drain_open_files(struct store *st, int64_t now_ns);

/* A file kept its few duplicates, so as to stay native. */
void drain_count_left(struct store *st, uint64_t bytes);

#endif
