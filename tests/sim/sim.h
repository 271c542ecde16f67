/*
 * sim.h - one thread runs at a time, and a seed decides which.
 *
 * The store's threads and the clients are coroutines of one thread of the
 * process. Each goes on until it comes to a point: a lock, a wait, a thread's
 * start or end, a clock, a call that reaches the disk or the database. There
 * the strategy that the seed has chosen says who goes on. The clock is lent:
 * it moves a little with each point, and on to the next deadline when all wait.
 *
 * Strategies: PCT (each thread has a random priority, the highest one that can
 * run does, and at d random points who runs falls behind all others) and random
 * walks that change the thread with a probability of their own.
 *
 * Nothing but the seed decides: two runs of one seed have the same trace, a sum
 * over (thread, kind of point, what) of all points.
 */
#ifndef TESTS_SIM_SIM_H
#define TESTS_SIM_SIM_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* --- chance
 * ------------------------------------------------------------------- */

/* One stream of random numbers; streams do not disturb each other. */
struct chance {
	uint64_t x;
};
struct chance chance_of(uint64_t seed, uint64_t stream);
uint64_t chance_next(struct chance *c);
/* 0 .. n - 1; 0 when n is 0. */
uint64_t chance_below(struct chance *c, uint64_t n);
/* true once in n times. */
bool chance_one_in(struct chance *c, uint64_t n);

/* --- a run
 * -------------------------------------------------------------------- */

enum sim_end {
	SIM_DONE, /* main returned */
	SIM_CRASHED, /* at the point that was asked for */
};

void sim_init(uint64_t seed);
/* Print each point. */
void sim_trace_on(void);
bool sim_traces(void);
/* Stop at this point of the run (0: never), where everybody stands. */
void sim_crash_at(uint64_t point);
/*
 * From here on plans, and the schedule, come to rare places more often. Not by
 * default: what such a plan finds has to be judged first.
 */
void sim_seek_rare(void);
bool sim_seeks_rare(void);
/* Or when the database is about to change, or to be synced, or just was: the
 * n-th time from now on. */
void sim_crash_at_change(uint64_t n);
/* Or just before what a file holds is written to it, the n-th time. */
void sim_crash_at_commit(uint64_t n);
/*
 * Run main as the first thread, and all that it starts, until it returns. After
 * a crash no thread is left: what they held is lost.
 */
enum sim_end sim_run(void (*main)(void *arg), void *arg);
uint64_t sim_points(void);
uint64_t sim_trace(void);
int64_t sim_clock(void);
/* Somebody runs, that is, a point may be taken. */
bool sim_running(void);

#define SIM_COMMIT "write content" /* what the database's point says then */
/* A point: another thread may go on here. what: for people, and the trace. */
void sim_point(const char *kind, const char *what);
/* What was read of the outside, as a sum: the trace has it too. */
void sim_note(uint64_t value);

/* A mistake was found: say so and end the process with SIM_EXIT_FOUND. */
#define SIM_EXIT_FOUND 3
__attribute__((noreturn, format(printf, 1, 2))) void
sim_fail(const char *format, ...);
/* Also run by a failure: the last words of the model. */
void sim_on_fail(void (*fn)(void));

/*
 * Threads belong to a group, that of who made them; the first one to 0. A group
 * is what dies at once: the daemon of a node, and all that run there.
 */
void sim_set_group(unsigned group);
unsigned sim_group(void);
/* Its threads are gone, where they stand. Self is of another one. */
void sim_kill(unsigned group);
/*
 * Until fn says so, which is asked at each point. Whoever waits like this goes
 * on before anybody else, so nothing happens in between.
 */
void sim_wait(bool (*fn)(void *arg), void *arg);

/* Threads of clients are made with thread_create(); this gives a name. */
/* Does time pass while somebody can go on, that is, may anybody starve? */
bool sim_is_early(void);
void sim_name(const char *name);
bool sim_has_name(const char *name);
unsigned sim_self(void);

#endif
