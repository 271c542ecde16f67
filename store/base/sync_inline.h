/*
 * sync_inline.h - sync.h as pthread calls, with the checks of the locks' order
 * where the build has them; include that.
 */
#ifndef STORE_BASE_SYNC_INLINE_H
#define STORE_BASE_SYNC_INLINE_H

#include "store/base/check.h"

#ifdef CKPTFS_LOCK_CHECK
/*
 * Stop the process unless a lock of this rank may be waited for now: could it
 * be that its holder waits for us? given_up: the lock that is not held
 * meanwhile, and taken again in its order; or NULL.
 */
void order_check(enum lock_rank rank, const void *given_up, const char *what);
void order_note_taken(const void *lock, enum lock_rank rank);
void order_note_given(const void *lock);
#define IN_ORDER(call) call
#else
#define IN_ORDER(call) ((void)0)
#endif

static inline void lock_take(struct lock *l)
{
	IN_ORDER(order_check(l->rank, NULL, "taken"));
	CHECK(pthread_mutex_lock(&l->mutex) == 0);
	IN_ORDER(order_note_taken(l, l->rank));
}

static inline bool lock_try(struct lock *l)
{
	if (pthread_mutex_trylock(&l->mutex) != 0)
		return false;
	IN_ORDER(order_note_taken(l, l->rank));
	return true;
}

static inline void lock_give(struct lock *l)
{
	IN_ORDER(order_note_given(l));
	CHECK(pthread_mutex_unlock(&l->mutex) == 0);
}

static inline void shared_lock_read(struct shared_lock *l)
{
	IN_ORDER(order_check(l->rank, NULL, "taken"));
	CHECK(pthread_rwlock_rdlock(&l->rw) == 0);
	IN_ORDER(order_note_taken(l, l->rank));
}

static inline void shared_lock_write(struct shared_lock *l)
{
	IN_ORDER(order_check(l->rank, NULL, "taken"));
	CHECK(pthread_rwlock_wrlock(&l->rw) == 0);
	IN_ORDER(order_note_taken(l, l->rank));
}

static inline void shared_lock_give(struct shared_lock *l)
{
	IN_ORDER(order_note_given(l));
	CHECK(pthread_rwlock_unlock(&l->rw) == 0);
}

static inline void cond_wait(struct cond *c, struct lock *l)
{
	IN_ORDER(order_check(l->rank, l, "waited with"));
	CHECK(pthread_cond_wait(&c->cond, &l->mutex) == 0);
}

static inline void cond_signal(struct cond *c)
{
	CHECK(pthread_cond_signal(&c->cond) == 0);
}

static inline void cond_broadcast(struct cond *c)
{
	CHECK(pthread_cond_broadcast(&c->cond) == 0);
}

#endif
