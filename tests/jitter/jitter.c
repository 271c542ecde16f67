/*
 * jitter.c - a library to preload: threads are late, as on a slow machine. Now
 * and then one sleeps for up to 30 ms where another may overtake it: around
 * locks, signals, syncs, and before it starts. A test that takes something for
 * done because it nearly always is by then fails.
 *
 * CKPTFS_JITTER=SEED turns it on, in ckptfs and the unit tests alone, and
 * CKPTFS_JITTER_RARELY=N makes it that much rarer. A seed says what each thread
 * draws, not in which order they run.
 *
 * CKPTFS_JITTER_WHO=caller: only the program's first thread is late, and often.
 * In a unit test that is the one that calls the store, so what the store does
 * behind it is nearly always done by its next step. A test that takes something
 * for not yet done fails.
 */
#define _GNU_SOURCE 1
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LATE_NS_MAX 30000000u

struct start {
	void *(*main)(void *);
	void *arg;
};

/* The caller is late that many times as often as a thread among others is. */
#define CALLER_OFTEN 4u

static bool on, caller_alone;
static uint64_t seed, rarely = 1;
static atomic_uint_fast64_t threads;
static _Thread_local uint64_t drawn;

__attribute__((constructor)) static void configure(void)
{
	const char *name = program_invocation_short_name;
	const char *given = getenv("CKPTFS_JITTER");
	const char *n = getenv("CKPTFS_JITTER_RARELY");
	const char *who = getenv("CKPTFS_JITTER_WHO");

	if (given)
		seed = strtoull(given, NULL, 10);
	if (n && atoi(n) > 0)
		rarely = (uint64_t)atoi(n);
	caller_alone = who && strcmp(who, "caller") == 0;
	/* A test that starts itself is called exe. */
	on = given &&
	     (strcmp(name, "ckptfs") == 0 || strncmp(name, "test_", 5) == 0 ||
	      strcmp(name, "exe") == 0);
}

static uint64_t draw(void)
{
	if (drawn == 0)
		drawn = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15) ^
			(atomic_fetch_add(&threads, 1) + 1) *
				UINT64_C(0xda942042e4dd58b5);
	drawn ^= drawn << 13;
	drawn ^= drawn >> 7;
	drawn ^= drawn << 17;
	return drawn * UINT64_C(0x2545f4914f6cdd1d) >> 16;
}

/* One time out of so many. */
static void late(uint64_t times)
{
	struct timespec t = { 0 };
	int saved = errno;

	if (!on)
		return;
	if (caller_alone) {
		if (gettid() != getpid())
			return;
		times = (times + CALLER_OFTEN - 1) / CALLER_OFTEN;
	}
	if (draw() % (times * rarely) != 0)
		return;
	t.tv_nsec = (long)(draw() % LATE_NS_MAX);
	(void)nanosleep(&t, NULL);
	errno = saved;
}

/* The function of this name that ours hides. */
static void *hidden(const char *name)
{
	void *f = dlsym(RTLD_NEXT, name);

	if (!f)
		abort();
	return f;
}

int pthread_mutex_lock(pthread_mutex_t *m)
{
	static int (*_Atomic real)(pthread_mutex_t *);

	if (!real)
		real = hidden("pthread_mutex_lock");
	late(400);
	return real(m);
}

int pthread_mutex_unlock(pthread_mutex_t *m)
{
	static int (*_Atomic real)(pthread_mutex_t *);
	int rc;

	if (!real)
		real = hidden("pthread_mutex_unlock");
	rc = real(m);
	late(200);
	return rc;
}

int pthread_cond_signal(pthread_cond_t *c)
{
	static int (*_Atomic real)(pthread_cond_t *);

	if (!real)
		real = hidden("pthread_cond_signal");
	late(100);
	return real(c);
}

int pthread_cond_broadcast(pthread_cond_t *c)
{
	static int (*_Atomic real)(pthread_cond_t *);

	if (!real)
		real = hidden("pthread_cond_broadcast");
	late(100);
	return real(c);
}

static void *start_late(void *arg)
{
	struct start s = *(struct start *)arg;

	free(arg);
	late(4);
	return s.main(s.arg);
}

int pthread_create(pthread_t *t, const pthread_attr_t *attr,
		   void *(*main)(void *), void *arg)
{
	static int (*_Atomic real)(pthread_t *, const pthread_attr_t *,
				   void *(*)(void *), void *);
	struct start *s = malloc(sizeof(*s));
	int rc;

	if (!real)
		real = hidden("pthread_create");
	if (!s)
		return EAGAIN;
	*s = (struct start){ .main = main, .arg = arg };
	rc = real(t, attr, start_late, s);
	if (rc != 0)
		free(s);
	return rc;
}

int fsync(int fd)
{
	static int (*_Atomic real)(int);
	int rc;

	if (!real)
		real = hidden("fsync");
	late(8);
	rc = real(fd);
	late(8);
	return rc;
}

int fdatasync(int fd)
{
	static int (*_Atomic real)(int);
	int rc;

	if (!real)
		real = hidden("fdatasync");
	late(8);
	rc = real(fd);
	late(8);
	return rc;
}
