/*
 * A walk at random through the states of a file that the store can come to,
 * with a model of whose bytes lie where: what was acknowledged is never lost,
 * and nothing is given back while somebody has it.
 */
#include "store/file/state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

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
		cmocka_unit_test(no_byte_is_lost_and_no_stage_given_back_twice),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
