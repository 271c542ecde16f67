/*
 * live_commits.h - what a store does in the background: waited for, or stopped.
 */
#ifndef TESTS_UNIT_LIVE_COMMITS_H
#define TESTS_UNIT_LIVE_COMMITS_H

#include <pthread.h>
#include <semaphore.h>

#include "store/base/scope.h"
#include "store/drain/commit.h"
#include "store/space/reclaim.h"
#include "tests/unit/live_files.h"

static inline int live_sync(struct live *l, const char *path)
{
	struct inode *in;
	int rc = live_lookup(l, path, &in);

	if (rc < 0)
		return rc;
	rc = file_sync(&l->st->files, in);
	inode_put(l->st->inodes, in, 1);
	return rc;
}

/*
 * Nobody is in the middle of a job: its end is seen before those who worked on
 * it have let go of its stage, its image and its inode. Workers have when they
 * have ended, the committer when it gives its lock up. Waits for what may
 * start; one thread at a time.
 */
static inline void live_quiet(struct live *l)
{
	drain_stop(l->st->drain);
	assert_int_equal(drain_start(l->st->drain), 0);
	HOLD(reclaim_deciding(l->st->reclaim));
}

/* All is durable, and what followed from that has happened. */
static inline void live_sync_all(struct live *l)
{
	assert_int_equal(drain_sync_tree(l->st->drain, ROOT_INO), 0);
	assert_int_equal(drain_wait_drained(l->st->drain), 0);
	live_quiet(l);
}

/* Until every deletion is committed and its bytes are given back. */
static inline void live_settle(struct live *l)
{
	uint64_t freed;

	live_quiet(l);
	commit_wait(l->st->drain);
	reclaim_drain(l->st->reclaim, &freed);
}

/*
 * The committer stands from here to the end of the block. Another thread holds
 * its lock: this one goes on to use the store, and takes locks that come before
 * that one.
 */
struct commits_paused {
	pthread_t thread;
	struct lock *turn;
	sem_t held, over;
};

static inline void *commits_hold(void *arg)
{
	struct commits_paused *p = arg;

	HOLD(p->turn);
	CHECK(sem_post(&p->held) == 0);
	while (sem_wait(&p->over) != 0)
		;
	return NULL;
}

static inline void commits_pause(struct commits_paused *p, struct live *l)
{
	p->turn = reclaim_deciding(l->st->reclaim);
	CHECK(sem_init(&p->held, 0, 0) == 0 && sem_init(&p->over, 0, 0) == 0);
	CHECK(pthread_create(&p->thread, NULL, commits_hold, p) == 0);
	while (sem_wait(&p->held) != 0)
		;
}

static inline void commits_go_on(struct commits_paused *p)
{
	CHECK(sem_post(&p->over) == 0);
	CHECK(pthread_join(p->thread, NULL) == 0);
	(void)sem_destroy(&p->held);
	(void)sem_destroy(&p->over);
}

#define PAUSE_COMMITS(l)                                    \
	SCOPED(commits_go_on)                               \
	struct commits_paused SCOPE_CAT(paused_, __LINE__); \
	commits_pause(&SCOPE_CAT(paused_, __LINE__), l)

#endif
