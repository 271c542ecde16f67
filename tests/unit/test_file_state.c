/*
 * The states of a file: every event in every one of them, what is first before
 * a write, and when a stage goes. test_file_state_walk.c walks through them.
 */
#include "store/file/state.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cmocka.h>

/* --- the table --- */

/*
 * Where each event leads, as letters: Committed, Dirty, Clean (L), Frozen,
 * Sealed, sealed and clean (E), Wanted, Gone; '.': it is refused.
 */
static const char letters[] = "CDLFSEWG";
static const char *const leads[FILE_EVENTS] = {
	/*			   CDLFSEWG */
	[FILE_STAGED] = "DDDDDDD.",
	[FILE_LENT] = "SSSSSSS.",
	[FILE_FOUND] = "L.......",
	[FILE_TAKEN] = "D.......",
	[FILE_WRITTEN] = ".DD.....",
	[FILE_FROZEN] = ".FFF....",
	[FILE_THAWED] = "...D....",
	[FILE_DURABLE] = ".LL.EEW.",
	[FILE_BECAME_IMAGE] = "...C....",
	[FILE_WANTED] = ".....WW.",
	[FILE_GIVEN_UP] = "..C..CC.",
	[FILE_DELETED] = "GGGGGGG.",
	[FILE_BACKED] = "CDLFSEW.",
	[FILE_SERVED] = "CDLFSEW.",
	[FILE_OPENED] = "CDLFSEW.",
	[FILE_OPENED_WRITER] = "CDD.....",
	[FILE_RELEASED] = "CDLFSEW.",
	[FILE_RELEASED_WRITER] = "CD......",
	[FILE_CLOSED] = "CDLFSEWG",
	[FILE_BEGUN] = "CDLFSEW.",
	[FILE_ENDED] = "CDLFSEW.",
	[FILE_MAPPABLE] = "CDLFSEW.",
	[FILE_MAPPABLE_WRITER] = ".D......",
	[FILE_NO_WRITER_LEFT] = "CDLFSEWG",
	[FILE_NOBODY_LEFT] = "CDLFSEWG",
	[FILE_ABANDONED] = "CDLFSEWG",
	[FILE_NAME_MOVED] = "CDLFSEW.",
	[FILE_WRITER_CAME] = "CDLFSEWG",
};

/* May it be, as far as handles, steps and mappings are concerned? */
static bool may_be(const struct file_state *s, enum file_event e)
{
	bool closed = s->mode == IO_CLOSED, backed = s->mode == IO_BACKED;
	bool quiet = s->writers == 0 && s->changing == 0;

	switch (e) {
	case FILE_STAGED:
		return !backed;
	case FILE_LENT:
		return closed && s->opens == 0 && s->left == LEFT_NOBODY;
	case FILE_FOUND:
		return closed && s->opens == 0 && s->changing == 0 &&
		       s->left == LEFT_NOBODY;
	case FILE_TAKEN:
		return s->mode != IO_DAEMON && s->changing > 0;
	case FILE_FROZEN:
	case FILE_DURABLE:
		return quiet && s->left != LEFT_WRITERS;
	case FILE_GIVEN_UP:
		return !backed && quiet && s->left == LEFT_NOBODY;
	case FILE_DELETED:
	case FILE_CLOSED:
		return s->opens == 0 && s->changing == 0;
	case FILE_BACKED:
	case FILE_SERVED:
		return closed && s->changing > 0;
	case FILE_OPENED:
	case FILE_OPENED_WRITER:
		return !closed && s->changing > 0;
	case FILE_RELEASED:
		return !closed && s->opens > s->writers;
	case FILE_RELEASED_WRITER:
		return !closed && s->writers > 0;
	case FILE_ENDED:
		return s->changing > 0;
	case FILE_MAPPABLE:
		return backed && s->opens > s->writers;
	case FILE_MAPPABLE_WRITER:
		return backed && s->writers > 0;
	case FILE_NO_WRITER_LEFT:
		return s->writers == 0;
	case FILE_NOBODY_LEFT:
		return s->opens == 0;
	case FILE_ABANDONED:
		return s->changing == 0;
	case FILE_WRITTEN:
	case FILE_THAWED:
	case FILE_BECAME_IMAGE:
	case FILE_WANTED:
	case FILE_BEGUN:
	case FILE_NAME_MOVED:
	case FILE_WRITER_CAME:
	case FILE_EVENTS:
		break;
	}
	return true;
}

#define COUNT_MAX 3u

/* The n-th of all states with up to two handles and one step; false: no more.
 */
static bool nth_state(unsigned n, struct file_state *ret)
{
	memset(ret, 0, sizeof(*ret));
	ret->bytes = n % FILE_BYTES_COUNT;
	n /= FILE_BYTES_COUNT;
	ret->mode = n % 3;
	n /= 3;
	ret->left = n % 3;
	n /= 3;
	ret->name = n % 3;
	n /= 3;
	ret->opens = n % COUNT_MAX;
	n /= COUNT_MAX;
	ret->writers = n % COUNT_MAX;
	n /= COUNT_MAX;
	ret->changing = n % 2;
	return n / 2 == 0;
}

static void each_event_leads_where_it_is_said_to_and_nowhere_else(void **state)
{
	struct file_state s;

	(void)state;
	for (unsigned n = 0; nth_state(n, &s); n++)
		for (enum file_event e = 0; e < FILE_EVENTS; e++) {
			char to = leads[e][s.bytes];
			struct file_state after = s;

			if (s.writers > s.opens)
				continue;
			assert_int_equal(file_may_move(&s, e),
					 to != '.' && may_be(&s, e));
			if (!file_may_move(&s, e))
				continue;
			file_move(&after, e);
			assert_int_equal(letters[after.bytes], to);
			assert_true(after.writers <= after.opens);
			if (e != FILE_BACKED && e != FILE_SERVED &&
			    e != FILE_CLOSED)
				assert_int_equal(after.mode, s.mode);
			if (e < FILE_MAPPABLE)
				assert_int_equal(after.left, s.left);
		}
}

/* What file_move() does with it; it must stop. */
static void assert_stops(const struct file_state *s, enum file_event e)
{
	pid_t child = fork();
	int status = 0;

	assert_true(child >= 0);
	if (child == 0) {
		const struct rlimit none = { 0, 0 };
		struct file_state copy = *s;

		(void)setrlimit(RLIMIT_CORE, &none);
		(void)signal(SIGABRT, SIG_DFL);
		(void)close(STDERR_FILENO);
		file_move(&copy, e);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void what_cannot_be_stops_the_daemon(void **state)
{
	(void)state;
	for (enum file_event e = 0; e < FILE_EVENTS; e++)
		for (unsigned b = 0; b < FILE_BYTES_COUNT; b++) {
			struct file_state s = { .bytes = b };

			if (leads[e][b] == '.')
				assert_stops(&s, e);
		}
}

/* --- what is first, before a write --- */

struct asked {
	struct file_state s;
	enum file_wish wish;
	unsigned facts;
	enum file_step step;
};

static void a_writer_waits_for_what_is_in_his_way(void **state)
{
	static const struct asked all[] = {
		{ { .bytes = BYTES_DIRTY }, WISH_WRITE, 0, STEP_OK },
		{ { .bytes = BYTES_CLEAN }, WISH_WRITE, 0, STEP_OK },
		{ { .bytes = BYTES_FROZEN }, WISH_WRITE, 0, STEP_WAIT },
		{ { .bytes = BYTES_SEALED }, WISH_WRITE, 0, STEP_SYNC },
		{ { .bytes = BYTES_GONE }, WISH_WRITE, 0, STEP_STALE },
		{ { .bytes = BYTES_SEALED_CLEAN },
		  WISH_WRITE,
		  0,
		  STEP_GIVE_UP },
		{ { .bytes = BYTES_SEALED_WANTED, .left = LEFT_READERS },
		  WISH_WRITE,
		  0,
		  STEP_RENUMBER },
		/* An image that nobody has is copied; else it is the stage. */
		{ { .bytes = BYTES_COMMITTED },
		  WISH_WRITE,
		  WISH_HAS_IMAGE,
		  STEP_OK },
		{ { .left = LEFT_READERS },
		  WISH_WRITE,
		  WISH_HAS_IMAGE,
		  STEP_TAKE_IMAGE },
		{ { .left = LEFT_READERS }, WISH_WRITE, 0, STEP_OK },
		{ { .mode = IO_BACKED, .opens = 1 },
		  WISH_WRITE,
		  0,
		  STEP_TAKE_IMAGE },
		/* O_TRUNC, with nobody there: all of it is replaced. */
		{ { .bytes = BYTES_FROZEN }, WISH_EMPTY, 0, STEP_FRESH },
		{ { .bytes = BYTES_SEALED }, WISH_EMPTY, 0, STEP_FRESH },
		/* What a drain has frozen keeps its place, replaced or not. */
		{ { .bytes = BYTES_FROZEN, .left = LEFT_READERS },
		  WISH_EMPTY,
		  WISH_KEEPS_INODE,
		  STEP_FRESH },
		{ { .bytes = BYTES_FROZEN, .left = LEFT_READERS },
		  WISH_EMPTY,
		  0,
		  STEP_RENUMBER },
		{ { .bytes = BYTES_FROZEN, .mode = IO_BACKED, .opens = 1 },
		  WISH_EMPTY,
		  WISH_KEEPS_INODE,
		  STEP_WAIT },
		/* Readers keep what they have, or see it shrink. */
		{ { .bytes = BYTES_CLEAN, .mode = IO_BACKED, .opens = 1 },
		  WISH_EMPTY,
		  0,
		  STEP_RENUMBER },
		{ { .bytes = BYTES_CLEAN, .mode = IO_BACKED, .opens = 1 },
		  WISH_EMPTY,
		  WISH_KEEPS_INODE,
		  STEP_OK },
		{ { .mode = IO_DAEMON, .opens = 1 },
		  WISH_EMPTY,
		  0,
		  STEP_RENUMBER },
		{ { .mode = IO_DAEMON, .opens = 1 },
		  WISH_EMPTY,
		  WISH_KEEPS_INODE,
		  STEP_FRESH },
		/* A writer goes on with who writes. */
		{ { .bytes = BYTES_DIRTY,
		    .mode = IO_BACKED,
		    .opens = 2,
		    .writers = 1 },
		  WISH_EMPTY,
		  0,
		  STEP_OK },
		/* The kernel looks again only once. */
		{ { .mode = IO_DAEMON, .opens = 1, .name = NAME_AWAITED },
		  WISH_EMPTY,
		  0,
		  STEP_OK },
		{ { .name = NAME_MOVED }, WISH_EMPTY, 0, STEP_STALE },
		{ { .name = NAME_MOVED }, WISH_WRITE, 0, STEP_STALE },
		/* A segment's commit. */
		{ { .bytes = BYTES_DIRTY }, WISH_REPLACE, 0, STEP_FRESH },
		{ { .bytes = BYTES_DIRTY, .left = LEFT_READERS },
		  WISH_REPLACE,
		  WISH_KEEPS_INODE,
		  STEP_RENUMBER },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		assert_int_equal(
			file_step(&all[i].s, all[i].wish, all[i].facts),
			all[i].step);
}

/* --- does the stage go? --- */

struct ended {
	struct file_state s;
	enum file_end why;
	bool poor;
	enum file_fate fate;
	enum file_bytes bytes; /* afterwards */
};

static void a_stage_goes_when_it_is_a_cache_that_nobody_keeps(void **state)
{
	static const struct ended all[] = {
		{ { .bytes = BYTES_DIRTY },
		  END_EVICTED,
		  true,
		  FATE_STAYS,
		  BYTES_DIRTY },
		{ { .bytes = BYTES_SEALED },
		  END_CLOSED,
		  true,
		  FATE_STAYS,
		  BYTES_SEALED },
		{ { .bytes = BYTES_FROZEN },
		  END_FORGOTTEN,
		  true,
		  FATE_STAYS,
		  BYTES_FROZEN },
		{ { .bytes = BYTES_DIRTY },
		  END_DURABLE,
		  false,
		  FATE_CACHED,
		  BYTES_CLEAN },
		{ { .bytes = BYTES_DIRTY },
		  END_DURABLE,
		  true,
		  FATE_GOES,
		  BYTES_COMMITTED },
		{ { .bytes = BYTES_DIRTY, .changing = 1 },
		  END_DURABLE,
		  true,
		  FATE_STAYS,
		  BYTES_DIRTY },
		{ { .bytes = BYTES_DIRTY, .left = LEFT_WRITERS },
		  END_DURABLE,
		  true,
		  FATE_STAYS,
		  BYTES_DIRTY },
		{ { .bytes = BYTES_DIRTY, .left = LEFT_READERS },
		  END_DURABLE,
		  true,
		  FATE_CACHED,
		  BYTES_CLEAN },
		{ { .bytes = BYTES_FROZEN, .mode = IO_BACKED, .opens = 1 },
		  END_DURABLE,
		  true,
		  FATE_GOES,
		  BYTES_COMMITTED },
		{ { .bytes = BYTES_SEALED },
		  END_DURABLE,
		  false,
		  FATE_CACHED,
		  BYTES_SEALED_CLEAN },
		{ { .bytes = BYTES_CLEAN },
		  END_CLOSED,
		  false,
		  FATE_CACHED,
		  BYTES_CLEAN },
		{ { .bytes = BYTES_CLEAN },
		  END_EVICTED,
		  false,
		  FATE_GOES,
		  BYTES_COMMITTED },
		{ { .bytes = BYTES_CLEAN, .mode = IO_BACKED, .opens = 1 },
		  END_EVICTED,
		  true,
		  FATE_CACHED,
		  BYTES_CLEAN },
		{ { .bytes = BYTES_CLEAN, .left = LEFT_READERS },
		  END_EVICTED,
		  true,
		  FATE_CACHED,
		  BYTES_CLEAN },
		{ { .bytes = BYTES_SEALED_CLEAN },
		  END_FORGOTTEN,
		  false,
		  FATE_CACHED,
		  BYTES_SEALED_CLEAN },
		{ { .bytes = BYTES_SEALED_WANTED },
		  END_FORGOTTEN,
		  false,
		  FATE_GOES,
		  BYTES_COMMITTED },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		struct file_state s = all[i].s;

		assert_int_equal(file_end(&s, all[i].why, all[i].poor),
				 all[i].fate);
		assert_int_equal(s.bytes, all[i].bytes);
	}
}

/* --- what the states that can be come to have in common --- */

#define STATES_MAX 20000u

static bool same(const struct file_state *a, const struct file_state *b)
{
	return a->bytes == b->bytes && a->mode == b->mode &&
	       a->left == b->left && a->name == b->name &&
	       a->opens == b->opens && a->writers == b->writers &&
	       a->changing == b->changing;
}

static void assert_consistent(const struct file_state *s)
{
	bool still = s->bytes != BYTES_DIRTY && s->bytes != BYTES_GONE;

	assert_true(s->writers <= s->opens);
	if (s->mode == IO_CLOSED || s->bytes == BYTES_GONE)
		assert_int_equal(s->opens, 0);
	/* Only what is dirty is written to; before that it is copied. */
	if (still && s->bytes != BYTES_COMMITTED)
		assert_int_equal(s->writers, 0);
	if (still && s->bytes != BYTES_COMMITTED)
		assert_int_not_equal(s->left, LEFT_WRITERS);
}

/* Without the kernel's end, after which nobody opens anything. */
static void bytes_that_are_not_dirty_have_no_writer(void **state)
{
	static struct file_state seen[STATES_MAX];
	unsigned count = 1;

	(void)state;
	memset(seen, 0, sizeof(seen[0]));
	for (unsigned at = 0; at < count; at++)
		for (enum file_event e = 0; e < FILE_EVENTS; e++) {
			struct file_state s = seen[at];
			bool known = false;

			if (e == FILE_ABANDONED || !file_may_move(&s, e))
				continue;
			/* It has a stage: file_step() says STEP_TAKE_IMAGE. */
			if (e == FILE_OPENED_WRITER && s.mode == IO_BACKED &&
			    s.bytes == BYTES_COMMITTED)
				continue;
			/* Under writers nothing is exchanged in the kernel. */
			if ((e == FILE_STAGED || e == FILE_LENT) &&
			    s.left == LEFT_WRITERS)
				continue;
			file_move(&s, e);
			if (s.opens >= COUNT_MAX || s.changing > 1)
				continue;
			assert_consistent(&s);
			for (unsigned i = 0; i < count && !known; i++)
				known = same(&s, &seen[i]);
			if (known)
				continue;
			assert_true(count < STATES_MAX);
			seen[count++] = s;
		}
	assert_true(count > 100);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			each_event_leads_where_it_is_said_to_and_nowhere_else),
		cmocka_unit_test(what_cannot_be_stops_the_daemon),
		cmocka_unit_test(a_writer_waits_for_what_is_in_his_way),
		cmocka_unit_test(
			a_stage_goes_when_it_is_a_cache_that_nobody_keeps),
		cmocka_unit_test(bytes_that_are_not_dirty_have_no_writer),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
