/*
 * sched_private.h - threads and the schedule, for sched.c and for locks.c,
 * which has what waits in base/sync.h.
 */
#ifndef TESTS_SIM_SCHED_PRIVATE_H
#define TESTS_SIM_SCHED_PRIVATE_H

#include <ucontext.h>

#include "store/base/sync.h"
#include "tests/sim/sim.h"

#define THREADS_MAX 160
#define HELD_MAX 16
#define CHANGES_MAX 8
#define POINT_NS 700 /* a point takes as long */

enum state {
	FREE,
	READY,
	ON_LOCK,
	ON_READ,
	ON_WRITE,
	ON_COND,
	ON_JOIN,
	ON_FN,
	ENDED,
};

struct sim_thread {
	ucontext_t context;
	enum state state;
	unsigned id;
	unsigned group; /* see sim_set_group() */
	char name[24];
	const void *on; /* what it waits for: a lock, a thread */
	const void *cond; /* ON_COND */
	struct lock *relock; /* ON_COND */
	int64_t deadline_ns; /* ON_COND; INT64_MAX: none */
	bool late; /* the deadline has passed */
	bool (*until)(void *arg); /* ON_FN */
	void *until_arg;
	uint64_t priority;
	int saved_errno;
	struct {
		const void *lock;
		enum lock_rank rank;
	} held[HELD_MAX];
	unsigned held_count;
	struct interrupt *served; /* see base/interrupt.h */
	uint64_t points; /* its own */
	void *(*main)(void *);
	void *arg;
};

struct sim_state {
	struct sim_thread thread[THREADS_MAX];
	unsigned count;
	struct sim_thread *self;
	ucontext_t root;
	char *stacks;
	struct chance chance;
	uint64_t points, crash_at, trace, seed;
	uint64_t crash_change; /* at so many more changes; 0: never */
	uint64_t crash_commit; /* the same of commits */
	int64_t now_ns;
	bool crashed, print;
	/* The strategy: */
	bool pct;
	uint64_t walk; /* change once in so many points */
	uint64_t spurious, early; /* once in so many; 0: never */
	struct {
		uint64_t at;
		unsigned thread; /* of its points; 0: of all points */
	} change[CHANGES_MAX];
	unsigned changes;
	uint64_t lowest;
	void (*first)(void *);
	void *first_arg;
	void (*on_fail)(void);
};
extern struct sim_state sim;

const char *sim_rank_name(enum lock_rank rank);
/* A point at which nobody else goes on. */
void sim_count_point(const char *kind, const char *what);
/* Self has said what it waits for; returns when it can have that. */
void sim_go_on(void);
/* t waited for a condition, and can go on. */
void sim_wake(struct sim_thread *t, bool late);
struct sim_thread *sim_thread_new(void *(*main)(void *), void *arg);

#endif
