/*
 * await.h - a unit test waits until something is true of the store that no
 * condition variable tells: AWAIT(what). What threads share is guarded by a
 * lock, so `what` can have become true only when somebody gives a lock up: it
 * is evaluated then, and between that nobody asks. For a test that is linked by
 * ckpt_await_test(), see CMakeLists.txt.
 *
 * There is no bound: what never becomes true is ended by ctest, whose output
 * shows the test's name.
 */
#ifndef TESTS_UNIT_AWAIT_H
#define TESTS_UNIT_AWAIT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	atomic_uint_fast64_t given; /* locks, by whoever waits for nothing */
	atomic_uint waiting;
} await_all = { .lock = PTHREAD_MUTEX_INITIALIZER,
		.changed = PTHREAD_COND_INITIALIZER };

/* It evaluates: what it gives up itself changes nothing. */
static _Thread_local bool await_here;

int __real_pthread_mutex_unlock(pthread_mutex_t *m);
int __real_pthread_rwlock_unlock(pthread_rwlock_t *rw);
int __real_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m);
int __real_pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m,
				  const struct timespec *until);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *m);
int __wrap_pthread_rwlock_unlock(pthread_rwlock_t *rw);
int __wrap_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m);
int __wrap_pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m,
				  const struct timespec *until);

/*
 * Before the lock is given up: who then evaluates what it guards waits for it.
 * Either he sees that `given` has changed, or we see that he waits.
 */
static inline void await_note(void)
{
	if (await_here)
		return;
	atomic_fetch_add(&await_all.given, 1);
	if (atomic_load(&await_all.waiting) == 0)
		return;
	(void)pthread_mutex_lock(&await_all.lock);
	(void)pthread_cond_broadcast(&await_all.changed);
	(void)__real_pthread_mutex_unlock(&await_all.lock);
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *m)
{
	await_note();
	return __real_pthread_mutex_unlock(m);
}

int __wrap_pthread_rwlock_unlock(pthread_rwlock_t *rw)
{
	await_note();
	return __real_pthread_rwlock_unlock(rw);
}

int __wrap_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m)
{
	await_note();
	return __real_pthread_cond_wait(c, m);
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m,
				  const struct timespec *until)
{
	await_note();
	return __real_pthread_cond_timedwait(c, m, until);
}

static inline uint64_t await_seen(void)
{
	return atomic_load(&await_all.given);
}

/* Until somebody has given a lock up since await_seen() said `seen`. */
static inline void await_change(uint64_t seen)
{
	atomic_fetch_add(&await_all.waiting, 1);
	(void)pthread_mutex_lock(&await_all.lock);
	while (atomic_load(&await_all.given) == seen)
		(void)__real_pthread_cond_wait(&await_all.changed,
					       &await_all.lock);
	(void)__real_pthread_mutex_unlock(&await_all.lock);
	atomic_fetch_sub(&await_all.waiting, 1);
}

#define AWAIT(what)                            \
	do {                                   \
		uint64_t seen_ = await_seen(); \
                                               \
		await_here = true;             \
		while (!(what)) {              \
			await_change(seen_);   \
			seen_ = await_seen();  \
		}                              \
		await_here = false;            \
	} while (0)

/* Do it, and wait until another thread has been awake since. */
#define AWAIT_ANY_AFTER(act)                   \
	do {                                   \
		uint64_t seen_ = await_seen(); \
                                               \
		await_here = true;             \
		act;                           \
		await_here = false;            \
		await_change(seen_);           \
	} while (0)

#endif
