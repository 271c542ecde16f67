/*
 * crew.c - a few threads that work off a numbered list together.
 *
 * A round is one crew_run(). The threads wait for the round's number to
 * change; whoever takes an index that is not there goes home, and the last
 * thread home ends the round.
 */
#include "gpu/crew.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "store/base/scope.h"

struct crew {
	atomic_size_t next; /* index that nobody has taken */
	atomic_int rc; /* the round's first error */

	/* The round's; written while all are home. */
	size_t count;
	crew_work *work;
	void *arg;

	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t begun;
	pthread_cond_t home;
	unsigned round;
	unsigned away; /* threads that are not home yet in this round */
	bool ending;

	unsigned thread_count;
	pthread_t threads[];
};

static void work_round(struct crew *c)
{
	for (;;) {
		size_t index = atomic_fetch_add(&c->next, 1);
		int none = 0;
		int rc;

		if (index >= c->count || atomic_load(&c->rc) < 0)
			return;
		rc = c->work(c->arg, index);
		if (rc < 0)
			(void)atomic_compare_exchange_strong(&c->rc, &none, rc);
	}
}

static void *crew_thread(void *arg)
{
	struct crew *c = arg;
	unsigned done = 0;

	for (;;) {
		{
			HOLD(&c->lock);
			while (c->round == done && !c->ending)
				pthread_cond_wait(&c->begun, &c->lock);
			if (c->ending)
				return NULL;
			done = c->round;
		}
		work_round(c);
		{
			HOLD(&c->lock);
			if (--c->away == 0)
				pthread_cond_signal(&c->home);
		}
	}
}

/* The program's signals are for the program's threads. */
static void start_threads(struct crew *c, unsigned count)
{
	sigset_t all;
	sigset_t old;

	sigfillset(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all, &old);
	while (c->thread_count < count &&
	       pthread_create(&c->threads[c->thread_count], NULL, crew_thread,
			      c) == 0)
		c->thread_count++;
	(void)pthread_sigmask(SIG_SETMASK, &old, NULL);
}

int crew_new(unsigned threads, struct crew **ret_crew)
{
	unsigned count = threads > 1 ? threads - 1 : 0;
	struct crew *c = calloc(1, sizeof(*c) + count * sizeof(*c->threads));

	if (!c)
		return -ENOMEM;
	/* With default attributes none of the three can fail. */
	CHECK(pthread_mutex_init(&c->lock, NULL) == 0);
	CHECK(pthread_cond_init(&c->begun, NULL) == 0);
	CHECK(pthread_cond_init(&c->home, NULL) == 0);
	start_threads(c, count);
	*ret_crew = c;
	return 0;
}

void crew_free(struct crew *c)
{
	if (!c)
		return;
	{
		HOLD(&c->lock);
		c->ending = true;
		pthread_cond_broadcast(&c->begun);
	}
	for (unsigned i = 0; i < c->thread_count; i++)
		CHECK(pthread_join(c->threads[i], NULL) == 0);
	pthread_cond_destroy(&c->home);
	pthread_cond_destroy(&c->begun);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

int crew_run(struct crew *c, size_t count, crew_work *work, void *arg)
{
	/* Waking the others takes longer than one item is worth. */
	bool alone = count <= 1 || c->thread_count == 0;

	atomic_store(&c->next, 0);
	atomic_store(&c->rc, 0);
	c->count = count;
	c->work = work;
	c->arg = arg;
	if (!alone) {
		HOLD(&c->lock);
		c->away = c->thread_count;
		c->round++;
		pthread_cond_broadcast(&c->begun);
	}
	work_round(c);
	if (!alone) {
		HOLD(&c->lock);
		while (c->away > 0)
			pthread_cond_wait(&c->home, &c->lock);
	}
	return atomic_load(&c->rc);
}

int crew_once(unsigned threads, size_t count, crew_work *work, void *arg)
{
	struct crew *c;
	int rc = crew_new(count < threads ? (unsigned)count : threads, &c);

	if (rc < 0)
		return rc;
	rc = crew_run(c, count, work, arg);
	crew_free(c);
	return rc;
}
