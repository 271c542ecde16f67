/* drain_private.h - the drain's own state, for drain.c and drain_work.c. */
#ifndef STORE_DRAIN_PRIVATE_H
#define STORE_DRAIN_PRIVATE_H

#include "store/drain.h"

#define DRAIN_THREADS_MAX 8

TAILQ_HEAD(job_order, drain_job);

struct drain {
	struct inflight *inflight;
	pthread_t thread[DRAIN_THREADS_MAX];
	unsigned thread_count;
	pthread_t timer;
	bool started;

	pthread_mutex_t lock; /* guards everything below */
	pthread_cond_t work; /* there is something for a worker, or stop */
	pthread_cond_t moved; /* a job changed its state */
	pthread_cond_t tick; /* wakes the timer early */
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
};

struct store;
/* A file kept its few duplicates, so as to stay native. */
void drain_count_left(struct store *st, uint64_t bytes);

#endif
