/*
 * sync.c - see sync.h. With CKPTFS_LOCK_CHECK each thread remembers which locks
 * it holds, and taking one that may not follow them stops the process: such an
 * order waits for ever as soon as another thread has the other one, whether or
 * not it did so today.
 * The simulator has its own of all this.
 */
#include "store/base/sync.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "store/base/check.h"
#include "store/base/io.h"

#ifdef LOCK_HAS_RANK
#define SET_RANK(l, of) ((l)->rank = (of))
#else
#define SET_RANK(l, of) ((void)(of))
#endif

void lock_init(struct lock *l, enum lock_rank rank)
{
	CHECK(pthread_mutex_init(&l->mutex, NULL) == 0);
	SET_RANK(l, rank);
}

void lock_destroy(struct lock *l)
{
	(void)pthread_mutex_destroy(&l->mutex);
}

void shared_lock_init(struct shared_lock *l, enum lock_rank rank)
{
	pthread_rwlockattr_t attr;

	(void)pthread_rwlockattr_init(&attr);
	(void)pthread_rwlockattr_setkind_np(
		&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	CHECK(pthread_rwlock_init(&l->rw, &attr) == 0);
	(void)pthread_rwlockattr_destroy(&attr);
	SET_RANK(l, rank);
}

void shared_lock_destroy(struct shared_lock *l)
{
	(void)pthread_rwlock_destroy(&l->rw);
}

void cond_init(struct cond *c)
{
	pthread_condattr_t a;

	(void)pthread_condattr_init(&a);
	CHECK(pthread_condattr_setclock(&a, CLOCK_MONOTONIC) == 0);
	CHECK(pthread_cond_init(&c->cond, &a) == 0);
	(void)pthread_condattr_destroy(&a);
}

void cond_destroy(struct cond *c)
{
	(void)pthread_cond_destroy(&c->cond);
}

int thread_create(struct thread *t, void *(*main)(void *), void *arg)
{
	return -pthread_create(&t->id, NULL, main, arg);
}

void thread_join(struct thread *t)
{
	CHECK(pthread_join(t->id, NULL) == 0);
}

/* No header of the C library has these; they are the kernel's, ioprio.h. */
#define IOPRIO_WHO_PROCESS 1 /* 0: the calling thread */
#define IOPRIO_CLASS_SHIFT 13
#define IOPRIO_CLASS_IDLE 3

void thread_yield_disk(bool yields)
{
	static _Thread_local bool now;
	static _Thread_local long own; /* what it goes back to */
	long priority = own;

	if (yields == now)
		return;
	if (yields) {
		own = syscall(SYS_ioprio_get, IOPRIO_WHO_PROCESS, 0);
		priority = IOPRIO_CLASS_IDLE << IOPRIO_CLASS_SHIFT;
	}
	(void)syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0,
		      priority < 0 ? 0 : priority);
	now = yields;
}

bool cond_wait_until(struct cond *c, struct lock *l, int64_t deadline_ns)
{
	struct timespec t = io_timespec(deadline_ns);
	int rc;

	IN_ORDER(order_check(l->rank, l, "waited with"));
	rc = pthread_cond_timedwait(&c->cond, &l->mutex, &t);
	CHECK(rc == 0 || rc == ETIMEDOUT);
	return rc == 0;
}

int64_t mono_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return io_ns(&t);
}

#ifdef CKPTFS_LOCK_CHECK

#define HELD_MAX 16

static _Thread_local struct {
	const void *lock;
	enum lock_rank rank;
} held[HELD_MAX];
static _Thread_local unsigned held_count;

static const char *rank_name(enum lock_rank rank)
{
#define LOCK_NAME_(r, name) name,
	static const char *const names[] = { LOCK_RANKS(LOCK_NAME_) };
#undef LOCK_NAME_

	return names[rank];
}

void order_check(enum lock_rank rank, const void *given_up, const char *what)
{
	for (unsigned i = 0; i < held_count; i++)
		if (held[i].lock != given_up &&
		    !lock_may_follow(held[i].rank, rank)) {
			fprintf(stderr,
				"lock order: %s is %s by a thread that holds "
				"%s; see LOCK_RANKS in base/sync.h\n",
				rank_name(rank), what, rank_name(held[i].rank));
			abort();
		}
}

void order_note_taken(const void *lock, enum lock_rank rank)
{
	CHECK(held_count < HELD_MAX);
	held[held_count].lock = lock;
	held[held_count++].rank = rank;
}

void order_note_given(const void *lock)
{
	unsigned i = held_count;

	while (i > 0 && held[i - 1].lock != lock)
		i--;
	CHECK(i > 0); /* else it is not held by this thread */
	for (; i < held_count; i++)
		held[i - 1] = held[i];
	held_count--;
}

#endif
