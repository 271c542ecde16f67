/* sync_inline.h - sync.h as plain pthread calls; include that. */
#ifndef STORE_BASE_SYNC_INLINE_H
#define STORE_BASE_SYNC_INLINE_H

#include <errno.h>
#include <stdlib.h>
#include <time.h>

/* As CHECK(), which is in scope.h; that needs this. */
static inline void sync_ok(int rc)
{
	if (__builtin_expect(rc != 0, 0))
		abort();
}

static inline void lock_take(struct lock *l)
{
	sync_ok(pthread_mutex_lock(&l->mutex));
}

static inline bool lock_try(struct lock *l)
{
	return pthread_mutex_trylock(&l->mutex) == 0;
}

static inline void lock_give(struct lock *l)
{
	sync_ok(pthread_mutex_unlock(&l->mutex));
}

static inline void shared_lock_read(struct shared_lock *l)
{
	sync_ok(pthread_rwlock_rdlock(&l->rw));
}

static inline void shared_lock_write(struct shared_lock *l)
{
	sync_ok(pthread_rwlock_wrlock(&l->rw));
}

static inline void shared_lock_give(struct shared_lock *l)
{
	sync_ok(pthread_rwlock_unlock(&l->rw));
}

static inline void cond_wait(struct cond *c, struct lock *l)
{
	sync_ok(pthread_cond_wait(&c->cond, &l->mutex));
}

static inline bool cond_wait_until(struct cond *c, struct lock *l,
				   int64_t deadline_ns)
{
	struct timespec t = { .tv_sec = deadline_ns / 1000000000,
			      .tv_nsec = deadline_ns % 1000000000 };
	int rc = pthread_cond_timedwait(&c->cond, &l->mutex, &t);

	sync_ok(rc == ETIMEDOUT ? 0 : rc);
	return rc == 0;
}

static inline void cond_signal(struct cond *c)
{
	sync_ok(pthread_cond_signal(&c->cond));
}

static inline void cond_broadcast(struct cond *c)
{
	sync_ok(pthread_cond_broadcast(&c->cond));
}

#endif
