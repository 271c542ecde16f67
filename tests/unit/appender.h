/*
 * appender.h - a thread that appends records to a file, each of RECORD_BYTES
 * and full of its own number, as far as it is let, while the test does
 * something with the file.
 */
#ifndef TESTS_UNIT_APPENDER_H
#define TESTS_UNIT_APPENDER_H

#include <pthread.h>

#include "store/base/check.h"
#include "tests/unit/live_store.h"

#define RECORD_BYTES 4096u

struct appender {
	struct handle h; /* the thread's, while it runs */
	pthread_t thread;
	pthread_mutex_t lock; /* guards everything below */
	pthread_cond_t moved;
	uint64_t limit, count; /* records: let to be there, and there */
	bool stop; /* when the limit is reached */
};

static inline void *appender_main(void *arg)
{
	struct appender *a = arg;

	(void)pthread_mutex_lock(&a->lock);
	while (!a->stop || a->count < a->limit) {
		uint64_t record[RECORD_BYTES / 8], n = a->count;

		if (n == a->limit) {
			(void)pthread_cond_wait(&a->moved, &a->lock);
			continue;
		}
		(void)pthread_mutex_unlock(&a->lock);
		for (unsigned i = 0; i < RECORD_BYTES / 8; i++)
			record[i] = n;
		handle_write(&a->h, record, RECORD_BYTES, n * RECORD_BYTES);
		(void)pthread_mutex_lock(&a->lock);
		a->count++;
		(void)pthread_cond_broadcast(&a->moved);
	}
	(void)pthread_mutex_unlock(&a->lock);
	return NULL;
}

static inline void appender_start(struct appender *a, struct handle h)
{
	*a = (struct appender){ .h = h,
				.lock = PTHREAD_MUTEX_INITIALIZER,
				.moved = PTHREAD_COND_INITIALIZER };
	CHECK(pthread_create(&a->thread, NULL, appender_main, a) == 0);
}

/* So many more may be appended. Returns how many there are to be then. */
static inline uint64_t appender_let(struct appender *a, uint64_t more)
{
	uint64_t limit;

	(void)pthread_mutex_lock(&a->lock);
	limit = a->limit += more;
	(void)pthread_cond_broadcast(&a->moved);
	(void)pthread_mutex_unlock(&a->lock);
	return limit;
}

/* Wait until at least so many are there. Returns how many are. */
static inline uint64_t appender_wait(struct appender *a, uint64_t count)
{
	uint64_t now;

	(void)pthread_mutex_lock(&a->lock);
	while (a->count < count)
		(void)pthread_cond_wait(&a->moved, &a->lock);
	now = a->count;
	(void)pthread_mutex_unlock(&a->lock);
	return now;
}

/* All that were let are there. Returns how many; the handle is the caller's. */
static inline uint64_t appender_stop(struct appender *a)
{
	(void)pthread_mutex_lock(&a->lock);
	a->stop = true;
	(void)pthread_cond_broadcast(&a->moved);
	(void)pthread_mutex_unlock(&a->lock);
	(void)pthread_join(a->thread, NULL);
	return a->count;
}

#endif
