/*
 * The states of a file: every event in every one of them, and a walk through
 * those that the store can come to, with a model of whose bytes lie where.
 */
#include "store/file/state.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "store/base/scope.h"

/* --- the table
 * ---------------------------------------------------------------- */

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
	case FILE_NAME_MOVED:
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

/* --- what is first, before a write
 * -------------------------------------------------- */

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

/* --- does the stage go?
 * ------------------------------------------------------------- */

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

/* --- what the states that can be come to have in common
 * -------------------------- */

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

/* --- a walk
 * -------------------------------------------------------------------- */

/*
 * A world with one file: its versions are numbers, its stages and images
 * objects, each held by the kernel for whoever has it open or mapped.
 */
#define OBJECTS 4096u
struct world {
	struct file_state s;
	unsigned acked, durable; /* versions */
	unsigned next_object;
	unsigned version[OBJECTS];
	unsigned mapped[OBJECTS]; /* by how many */
	unsigned writably[OBJECTS]; /* of these, to write */
	bool gone[OBJECTS];
	bool is_segment[OBJECTS];
	unsigned stage; /* 0: none */
	unsigned image; /* where the durable bytes lie; 0: nowhere yet */
	unsigned backing; /* 0: none */
	bool on_disk; /* the stage */
	/* The drain that runs: */
	bool running, exclusive, adopt, raced;
	unsigned job_stage, job_version;
	unsigned rewritten, renumbered, taken, given_up, adopted;
	uint64_t seed;
};

static unsigned roll(struct world *w, unsigned n)
{
	w->seed = w->seed * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)(w->seed >> 33) % n;
}

static unsigned new_object(struct world *w, unsigned version)
{
	w->next_object++;
	assert_true(w->next_object < OBJECTS);
	w->version[w->next_object] = version;
	return w->next_object;
}

/*
 * The file lets go of it, and a segment is filled again: invariant 5. What was
 * replaced may be mapped yet, as the kernel keeps it for who has it; but not a
 * segment, and nothing that the file is still said to consist of.
 */
static void give_back(struct world *w, unsigned object, bool replaced)
{
	if (object == 0)
		return;
	assert_false(w->gone[object]);
	if (!replaced || w->is_segment[object])
		assert_int_equal(w->mapped[object], 0);
	assert_true(w->backing != object);
	w->gone[object] = true;
}

/* Invariant 4: what was acknowledged is in the stage, or else committed. */
static void look(const struct world *w)
{
	unsigned seen = w->stage ? w->version[w->stage] : w->durable;
	bool dirty = w->s.bytes == BYTES_DIRTY || w->s.bytes == BYTES_SEALED ||
		     w->s.bytes == BYTES_FROZEN;

	assert_int_equal(seen, w->acked);
	assert_int_equal(w->stage != 0, w->s.bytes != BYTES_COMMITTED);
	if (!dirty)
		assert_int_equal(w->durable, w->acked);
	if (w->stage)
		assert_false(w->gone[w->stage]);
	if (w->s.mode == IO_BACKED)
		assert_false(w->gone[w->backing]);
	/* In passthrough everybody has what the file is. */
	if (w->s.mode == IO_BACKED && w->stage)
		assert_int_equal(w->backing, w->stage);
}

static void may_change(struct world *w)
{
	if (w->running && w->exclusive && w->job_stage == w->stage)
		w->raced = true;
}

/* As writes and truncations do. */
static void change(struct world *w)
{
	assert_true(w->stage != 0);
	assert_int_equal(w->s.bytes, BYTES_DIRTY);
	may_change(w);
	w->acked++;
	w->version[w->stage] = w->acked;
	w->rewritten++;
}

static void set_stage(struct world *w, unsigned version, bool sealed)
{
	w->stage = new_object(w, version);
	w->is_segment[w->stage] = sealed;
	w->on_disk = !sealed && roll(w, 2);
	file_move(&w->s, sealed ? FILE_LENT : FILE_STAGED);
}

static void drain_begin(struct world *w)
{
	if (w->running || !w->stage ||
	    (w->s.bytes != BYTES_DIRTY && w->s.bytes != BYTES_SEALED))
		return;
	w->running = true;
	w->raced = false;
	w->exclusive = w->s.writers == 0 && w->s.changing == 0 &&
		       w->s.left != LEFT_WRITERS;
	w->adopt = w->exclusive && w->on_disk;
	w->job_stage = w->stage;
	w->job_version = w->version[w->stage];
	if (w->adopt)
		file_move(&w->s, FILE_FROZEN);
}

static void end_with(struct world *w, enum file_end why, bool poor)
{
	bool reached = file_is_reached(&w->s);
	unsigned old = w->stage;

	if (!old || file_end(&w->s, why, poor) != FATE_GOES)
		return;
	w->stage = 0;
	w->given_up++;
	if (why == END_DURABLE && w->adopt) {
		assert_true(!reached || old == w->image);
		return; /* it is the image */
	}
	give_back(w, old, false);
}

static void drain_end(struct world *w)
{
	if (!w->running)
		return;
	w->running = false;
	if (roll(w, 4) == 0) { /* it failed */
		if (w->adopt && w->stage == w->job_stage)
			file_move(&w->s, FILE_THAWED);
		return;
	}
	if (w->stage != w->job_stage || (w->exclusive && w->raced)) {
		if (w->adopt && w->stage == w->job_stage)
			file_move(&w->s, FILE_THAWED);
		return;
	}
	w->durable = w->job_version;
	w->image = w->adopt ? w->stage : new_object(w, w->durable);
	w->adopted += w->adopt;
	if (w->exclusive)
		end_with(w, END_DURABLE, roll(w, 2));
}

static void sync_all(struct world *w)
{
	for (int i = 0; i < 100 && w->s.bytes == BYTES_SEALED; i++) {
		drain_begin(w);
		drain_end(w);
	}
	drain_end(w);
}

/* file_begin(), with file_step() to say what is first. false: it is over. */
static bool begin(struct world *w, enum file_wish wish, enum file_step *ret)
{
	for (int i = 0; i < 1000; i++) {
		unsigned facts = (roll(w, 2) ? WISH_KEEPS_INODE : 0) |
				 (w->image ? WISH_HAS_IMAGE : 0);

		*ret = file_step(&w->s, wish, facts);
		if (*ret == STEP_STALE)
			return false;
		if (*ret == STEP_WAIT) {
			drain_end(w);
		} else if (*ret == STEP_SYNC) {
			sync_all(w);
		} else if (*ret == STEP_GIVE_UP) {
			end_with(w, END_EVICTED, false);
		} else {
			file_move(&w->s, FILE_BEGUN);
			return true;
		}
	}
	fail_msg("it waits for ever: bytes %d, mode %d, left %d", w->s.bytes,
		 w->s.mode, w->s.left);
	return false;
}

/* The bytes can be changed after this, in place. false: in another inode. */
static bool make_writable(struct world *w, enum file_step step)
{
	if (step == STEP_RENUMBER) {
		w->renumbered++;
		return false;
	}
	if (step == STEP_FRESH) {
		unsigned old = w->stage;
		bool closed = w->job_stage == old && w->running;

		set_stage(w, ++w->acked, false);
		if (!closed)
			give_back(w, old, true);
		return true;
	}
	if (step == STEP_TAKE_IMAGE) {
		w->stage = w->image;
		w->on_disk = true;
		w->image = new_object(w, w->durable); /* the copy */
		file_move(&w->s, FILE_TAKEN);
		w->taken++;
	} else if (!w->stage) {
		set_stage(w, w->durable, false);
	} else {
		file_move(&w->s, FILE_WRITTEN);
	}
	return true;
}

static void hold(struct world *w, bool write)
{
	if (w->s.mode != IO_BACKED || roll(w, 2))
		return; /* he has no mapping */
	w->mapped[w->backing]++;
	w->writably[w->backing] += write;
}

static void choose_mode(struct world *w, bool write)
{
	unsigned what = w->stage ? w->stage : write ? 0 : w->image;

	if (w->s.mode != IO_CLOSED)
		return;
	if (what && roll(w, 4) && !(w->s.name == NAME_AWAITED && !write)) {
		file_move(&w->s, FILE_BACKED);
		w->backing = what;
	} else {
		file_move(&w->s, FILE_SERVED);
	}
}

static void open_it(struct world *w, bool write, bool trunc)
{
	enum file_step step = STEP_OK;

	if (w->s.opens > 3)
		return;
	if (!write)
		file_move(&w->s, FILE_BEGUN);
	else if (!begin(w, trunc ? WISH_EMPTY : WISH_WRITE, &step))
		return;
	if (write && !make_writable(w, step)) {
		file_move(&w->s, FILE_ENDED);
		return;
	}
	if (trunc && step != STEP_FRESH)
		change(w);
	choose_mode(w, write);
	file_move(&w->s, write ? FILE_OPENED_WRITER : FILE_OPENED);
	if (write)
		may_change(w);
	if (w->s.mode == IO_BACKED) {
		file_move(&w->s, write ? FILE_MAPPABLE_WRITER : FILE_MAPPABLE);
		hold(w, write);
	}
	file_move(&w->s, FILE_ENDED);
}

static void replace_it(struct world *w)
{
	enum file_step step;
	unsigned old = w->stage;

	if (!begin(w, WISH_REPLACE, &step))
		return;
	if (step == STEP_FRESH) {
		bool closed = w->job_stage == old && w->running;

		set_stage(w, ++w->acked, true);
		if (!closed)
			give_back(w, old, true);
	}
	file_move(&w->s, FILE_ENDED);
}

/* A lease is asked for. */
static void ask(struct world *w)
{
	unsigned what = w->stage ? w->stage : w->image;

	if (w->s.left == LEFT_WRITERS && w->s.writers == 0 &&
	    w->writably[what] == 0)
		file_move(&w->s, FILE_NO_WRITER_LEFT);
	if (w->s.left != LEFT_NOBODY && w->s.opens == 0 &&
	    w->s.mode == IO_CLOSED && w->mapped[what] == 0)
		file_move(&w->s, FILE_NOBODY_LEFT);
}

static void release(struct world *w)
{
	bool write =
		w->s.writers > 0 && (w->s.opens == w->s.writers || roll(w, 2));

	file_move(&w->s, write ? FILE_RELEASED_WRITER : FILE_RELEASED);
	if (!file_may_move(&w->s, FILE_CLOSED))
		return;
	file_move(&w->s, FILE_CLOSED);
	w->backing = 0;
	ask(w);
	end_with(w, END_CLOSED, roll(w, 2));
}

static void unmap(struct world *w)
{
	unsigned left = roll(w, 2); /* of each: all go, or but one */

	for (unsigned i = 1; i <= w->next_object; i++)
		if (w->mapped[i] > left) {
			w->mapped[i] = left;
			w->writably[i] = w->writably[i] ? left : 0;
		}
}

static void step_at_random(struct world *w)
{
	switch (roll(w, 14)) {
	case 0:
	case 1:
		open_it(w, false, false);
		break;
	case 2:
		open_it(w, true, false);
		break;
	case 3:
		open_it(w, true, true);
		break;
	case 4:
	case 5:
	case 6:
		while (w->s.opens > roll(w, 2))
			release(w);
		break;
	case 7:
		if (w->s.writers > 0 && w->stage)
			change(w);
		break;
	case 8:
		drain_begin(w);
		break;
	case 9:
		drain_end(w);
		break;
	case 10:
		end_with(w, END_EVICTED, false);
		break;
	case 11:
		unmap(w);
		break;
	case 12:
		if (roll(w, 2))
			ask(w);
		else if (file_may_move(&w->s, FILE_WANTED))
			file_move(&w->s, FILE_WANTED);
		break;
	default:
		replace_it(w);
		break;
	}
}

static void no_byte_is_lost_and_no_stage_given_back_twice(void **state)
{
	unsigned rewritten = 0, renumbered = 0, taken = 0, up = 0, adopted = 0;
	static struct world w;

	(void)state;
	for (uint64_t seed = 1; seed <= 3000; seed++) {
		memset(&w, 0, sizeof(w));
		w.seed = seed;
		for (int i = 0; i < 400; i++) {
			step_at_random(&w);
			look(&w);
		}
		rewritten += w.rewritten;
		renumbered += w.renumbered;
		taken += w.taken;
		up += w.given_up;
		adopted += w.adopted;
	}
	/* It went everywhere. */
	assert_true(rewritten > 1000 && renumbered > 1000 && taken > 1000 &&
		    up > 1000 && adopted > 1000);
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
		cmocka_unit_test(no_byte_is_lost_and_no_stage_given_back_twice),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
