/*
 * shared_fixture.h - a store of the test's, mounted as the node a of a shared
 * directory.
 */
#ifndef TESTS_UNIT_SHARED_FIXTURE_H
#define TESTS_UNIT_SHARED_FIXTURE_H

#include "store/shared/shared_private.h"
#include "tests/unit/home_fixture.h"
#include "tests/unit/live_life.h"

struct mounted {
	struct live live;
	char *dir;
	struct shared *s;
	bool stopped;
};

static const struct shared_caller caller = { 0 };
static const struct names_new as_file = { .mode = S_IFREG | 0644 };

static inline int mounted_try_enter(struct mounted *m, char why[WHY_BYTES])
{
	/* Or what is kept goes as soon as the thread for that comes by. */
	const struct shared_options o = { .dir = m->dir,
					  .node = "a",
					  .pending_wait_s = 1,
					  .local_keep_bytes = SHARED_KEEP_ALL };
	int rc;

	m->stopped = false;
	assert_int_equal(live_try_open(&m->live, why), 0);
	rc = shared_open(m->live.st, &o, &m->s, why, WHY_BYTES);
	if (rc < 0)
		live_close(&m->live);
	return rc;
}

/* Nothing is uploaded or searched for until mounted_start(). */
static inline void mounted_enter(struct mounted *m)
{
	char why[WHY_BYTES];

	if (mounted_try_enter(m, why) < 0)
		fail_msg("%s", why);
	assert_int_equal(store_start(m->live.st), 0);
}

static inline struct mounted mounted_open(void)
{
	struct mounted m = { .live = live_closed(NULL), .dir = make_tmp() };

	assert_int_equal(make_home(m.dir, ""), 0);
	mounted_enter(&m);
	return m;
}

/* It ends without having said so, as a daemon that dies does. */
static inline void mounted_die(struct mounted *m)
{
	shared_free(m->s);
	live_close(&m->live);
}

static inline void mounted_start(struct mounted *m)
{
	assert_int_equal(shared_start(m->s), 0);
}

static inline struct mounted mounted_new(void)
{
	struct mounted m = mounted_open();

	mounted_start(&m);
	return m;
}

/* Its threads have ended. */
static inline void mounted_stop(struct mounted *m)
{
	shared_stop(m->s);
	m->stopped = true;
}

static inline void mounted_free(struct mounted *m)
{
	if (!m->stopped)
		mounted_stop(m);
	shared_free(m->s);
	assert_int_equal(store_close(m->live.st), 0);
	remove_tree(m->live.path);
	remove_tree(m->live.stage);
	remove_tree(m->dir);
	free(m->live.path);
	free(m->live.stage);
	free(m->dir);
}

#endif
