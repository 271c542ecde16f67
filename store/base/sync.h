/*
 * sync.h - locks, waits, threads and clocks: all that decides which thread goes
 * on, and when. Nothing in store/ calls pthread or a clock by itself, so that
 *
 *   - a build with CKPTFS_LOCK_CHECK (debug, sanitizers) stops the process when
 *     a lock is taken out of order, naming both;
 *   - the simulator (CKPTFS_SIM, tests/sim) lets one thread run at a time and
 *     decides which, and lends its own clock.
 *
 * In every other build these are the pthread calls, inline; but a wait with a
 * deadline and the clock that ends it are functions of sync.c, so that a unit
 * test may link its own (tests/unit/test_clock.h). A failing call is a broken
 * invariant: there is nothing that a caller could do about it.
 */
#ifndef STORE_BASE_SYNC_H
#define STORE_BASE_SYNC_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * THE lock order: who holds a lock takes only those further down, and who holds
 * a leaf takes none. Two of one line are never held at once. lock_try() may be
 * called out of order: it does not wait. What each lock guards is said where it
 * is defined.
 */
#define LOCK_RANKS(X)                                   \
	X(LOCK_INODE_CHANGING, "inode.changing")        \
	X(LOCK_NAMES_CHANGING, "names.changing")        \
	X(LOCK_RECLAIM_DECIDING, "reclaim.deciding")    \
	X(LOCK_INO_NUMBERING, "inode_table.numbering")  \
	X(LOCK_CUTTING, "work.cutting")                 \
	X(LOCK_MAKING_IMAGE, "work.making_image")       \
	X(LOCK_IMAGE_NUMBERING, "images.numbering")     \
	X(LOCK_STAGE_ADMIT, "stages.admit")             \
	X(LOCK_INODE, "inode.lock")                     \
	X(LOCK_DRAIN, "drain.lock")                     \
	X(LOCK_KV_LOG_USE, "kv.log_use")                \
	/* The leaves: LOCK_FIRST_LEAF is the first. */ \
	X(LOCK_SEGMENTS, "segments.lock")               \
	X(LOCK_INFLIGHT, "inflight.lock")               \
	X(LOCK_RECLAIM, "reclaim.lock")                 \
	X(LOCK_IMAGES, "images.lock")                   \
	X(LOCK_STAGES, "stages.lock")                   \
	X(LOCK_STAGE_FDS, "stage_fds.lock")             \
	X(LOCK_INODE_SHARD, "inode_table.shard.lock")   \
	X(LOCK_GUARD, "guard.lock")                     \
	X(LOCK_BACKUP, "backup.lock")                   \
	X(LOCK_AHEAD, "ahead.lock")                     \
	X(LOCK_SCRUB, "scrub.lock")                     \
	X(LOCK_SHARED, "shared.lock")                   \
	X(LOCK_KV_LOG_SYNC, "kv.log_sync")              \
	X(LOCK_KV_GATE, "kv.gate")                      \
	X(LOCK_MARK, "mark.lock")

#define LOCK_FIRST_LEAF LOCK_SEGMENTS

#define LOCK_RANK_(rank, name) rank,
enum lock_rank { LOCK_RANKS(LOCK_RANK_) LOCK_RANK_COUNT };
#undef LOCK_RANK_

#if defined(CKPTFS_LOCK_CHECK) || defined(CKPTFS_SIM)
#define LOCK_HAS_RANK 1

/* May a thread that holds the one wait for the other? */
static inline bool lock_may_follow(enum lock_rank held, enum lock_rank rank)
{
	return held < rank && held < LOCK_FIRST_LEAF;
}
#endif

#ifdef CKPTFS_SIM
struct sim_thread;
struct lock {
	struct sim_thread *holder;
	enum lock_rank rank;
};
struct shared_lock {
	struct sim_thread *writer;
	unsigned readers;
	enum lock_rank rank;
};
struct cond {
	unsigned waiting;
};
struct thread {
	struct sim_thread *sim;
};
#else
struct lock {
	pthread_mutex_t mutex;
#ifdef LOCK_HAS_RANK
	enum lock_rank rank;
#endif
};

/* Many have it to read, or one alone, who does not starve. */
struct shared_lock {
	pthread_rwlock_t rw;
#ifdef LOCK_HAS_RANK
	enum lock_rank rank;
#endif
};

struct cond {
	pthread_cond_t cond;
};

struct thread {
	pthread_t id;
};
#endif

void lock_init(struct lock *l, enum lock_rank rank);
void lock_destroy(struct lock *l);
void shared_lock_init(struct shared_lock *l, enum lock_rank rank);
void shared_lock_destroy(struct shared_lock *l);
/* Its waits end by mono_ns(): they go on when somebody sets the clock. */
void cond_init(struct cond *c);
void cond_destroy(struct cond *c);
/* 0, or a negative errno: no thread could be made. */
int thread_create(struct thread *t, void *(*main)(void *), void *arg);
void thread_join(struct thread *t);
/*
 * From here on the disk serves the calling thread after all others, where its
 * scheduler knows classes (bfq, mq-deadline): ioprio_set(2), class idle. Or as
 * any other again. What the kernel refuses is left as it was.
 */
void thread_yield_disk(bool yields);

/*
 * lock_try() is false when somebody has the lock. A wait gives the lock up, and
 * may end without a reason; cond_wait_until() is false when mono_ns() has
 * reached deadline_ns.
 */
#ifdef CKPTFS_SIM
void lock_take(struct lock *l);
bool lock_try(struct lock *l);
void lock_give(struct lock *l);
void shared_lock_read(struct shared_lock *l);
void shared_lock_write(struct shared_lock *l);
void shared_lock_give(struct shared_lock *l);
void cond_wait(struct cond *c, struct lock *l);
void cond_signal(struct cond *c);
void cond_broadcast(struct cond *c);
#else
#include "store/base/sync_inline.h"
#endif
bool cond_wait_until(struct cond *c, struct lock *l, int64_t deadline_ns);

/* For deadlines: it goes on when somebody sets the clock. */
int64_t mono_ns(void);
/* Since 1970, for what stat(2) shows: by the clock of files, see wall.c. */
int64_t wall_ns(void);

#endif
