/* thread.h - threads of a library in somebody else's program. */
#ifndef GPU_THREAD_H
#define GPU_THREAD_H

#include <pthread.h>
#include <signal.h>

/* pthread_create(3), for which the program's signals are not meant. -errno. */
static inline int thread_start(pthread_t *ret_thread,
			       const pthread_attr_t *attr,
			       void *(*main)(void *arg), void *arg)
{
	sigset_t all, old;
	int rc;

	sigfillset(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = -pthread_create(ret_thread, attr, main, arg);
	(void)pthread_sigmask(SIG_SETMASK, &old, NULL);
	return rc;
}

#endif
