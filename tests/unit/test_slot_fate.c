/*
 * What becomes of a stage that a daemon left: every slot beside every record of
 * its file, and what must hold of each; and the whole of what a daemon does to
 * one file, killed between any two of its steps.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "store/space/slot_fate.h"

struct stage_slot;
static void slot_stored(const struct stage_slot *slot);
#define SLOT_STORED(slot) slot_stored(slot)
#include "store/space/slot.c"

#define NEXT 100

static bool is_kept(enum slot_fate fate)
{
	return fate == SLOT_RESUMES || fate == SLOT_OPEN;
}

static void check_fate(const struct stage_slot *s, const struct slot_facts *f)
{
	enum slot_fate fate = slot_fate(s, f);
	/* A table of an older ckptfs says it of what is durable alone. */
	uint64_t version =
		s->version || s->dirty ? s->version : s->old_generation;
	bool given = version != 0 && version < f->next && f->durable < f->next;
	bool was_cache = version == 0 && !s->dirty && f->durable != 0;

	if (f->is_image || (s->earlier && !s->dirty) || was_cache) {
		assert_int_equal(fate, SLOT_GOES);
		return;
	}
	/* Never given up but for what is as new, never back over what is. */
	assert_int_equal(is_kept(fate), !(given && version <= f->durable));
	/* Never in another place than it had, nor before what was closed. */
	if (is_kept(fate))
		assert_int_equal(fate == SLOT_OPEN,
				 s->close_order == 0 && !s->earlier);
	/* A cache is what is durable, and the file's. */
	if (fate == SLOT_CACHE) {
		assert_int_equal(version, f->durable);
		assert_false(s->earlier);
		assert_int_equal(s->kind, STAGE_MEMORY);
	}
}

static void each_slot_beside_each_record(void **state)
{
	static const uint64_t numbers[] = { 0,    1,        7,
					    8,    9,        NEXT - 1,
					    NEXT, NEXT + 1, UINT64_MAX };
	const size_t n = sizeof(numbers) / sizeof(*numbers);
	unsigned fates[SLOT_FATE_COUNT] = { 0 };

	(void)state;
	for (size_t i = 0; i < n * n * n * 48; i++) {
		size_t bits = i % 48;
		struct stage_slot s = {
			.ino = 5,
			.version = numbers[i / 48 % n],
			.old_generation = numbers[i / 48 / n % n],
			.dirty = bits & 1,
			.earlier = bits >> 1 & 1,
			.kind = bits >> 2 & 1 ? STAGE_MEMORY : STAGE_DISK,
			.close_order = bits >> 4 == 0   ? 0
				       : bits >> 4 == 1 ? 8
							: UINT64_MAX,
		};
		struct slot_facts f = { .durable = numbers[i / 48 / n / n],
					.next = NEXT,
					.is_image = bits >> 3 & 1 };

		check_fate(&s, &f);
		fates[slot_fate(&s, &f)]++;
	}
	for (size_t i = 0; i < SLOT_FATE_COUNT; i++)
		assert_true(fates[i] > 0);
}

/*
 * A file's stages and its record as a daemon changes them. Killed after any
 * store, the next daemon must show the newest bytes, and bring nothing older
 * back.
 */
#define STAGES 2
static struct {
	struct stage_slot slot[STAGES];
	unsigned bytes[STAGES]; /* what each holds, as a reader would tell it */
	uint64_t durable;
	unsigned durable_bytes;
	unsigned newest; /* what was written last */
	uint64_t place; /* of the close of a version with this number */
	unsigned kills;
} life;

/* What is the file after a kill now, when all that is found is durable? */
static void killed(void)
{
	struct slot_facts f = { .durable = life.durable, .next = NEXT };
	unsigned bytes = life.durable_bytes;
	uint64_t last = 0;

	for (unsigned i = 0; i < STAGES; i++) {
		const struct stage_slot *s = &life.slot[i];
		enum slot_fate fate = slot_fate(s, &f);
		uint64_t place =
			fate == SLOT_OPEN ? UINT64_MAX : s->close_order;

		if (s->ino == 0)
			continue;
		if (s->version == life.place && life.place != 0)
			assert_int_equal(s->close_order, life.place);
		if (fate == SLOT_CACHE)
			assert_int_equal(life.bytes[i], life.durable_bytes);
		if (!is_kept(fate) || place < last)
			continue;
		last = place;
		bytes = life.bytes[i];
	}
	assert_int_equal(bytes, life.newest);
	life.kills++;
}

/* In the middle of each change that slot.c makes. */
static void slot_stored(const struct stage_slot *slot)
{
	if (slot >= life.slot && slot < life.slot + STAGES)
		killed();
}

static void changed(unsigned i, unsigned bytes)
{
	life.bytes[i] = bytes;
	life.newest = bytes;
	killed();
}

/* An O_TRUNC that was not answered: the file is what it was. */
static void emptied(unsigned i, unsigned bytes)
{
	slot_make(&life.slot[i], STAGE_MEMORY, i + 1);
	life.bytes[i] = life.newest;
	slot_show(&life.slot[i], 5);
	changed(i, bytes);
}

static void committed(uint64_t version, unsigned bytes)
{
	life.durable = version;
	life.durable_bytes = bytes;
	killed();
}

static void a_kill_between_any_two_stores_loses_nothing(void **state)
{
	struct stage_slot *a = &life.slot[0], *b = &life.slot[1];

	(void)state;
	emptied(0, 1);
	slot_closed(a, 10, 10);
	committed(11, 1); /* the number that it got when its drain began */
	slot_clean(a, 11);
	/* Changed, closed, and changed while the committer has it. */
	assert_true(slot_changes(a));
	changed(0, 2);
	slot_closed(a, 12, 12);
	assert_false(slot_changes(a));
	changed(0, 3);
	committed(13, 2);
	life.place = 14;
	slot_closed(a, 14, 14);
	/* O_TRUNC: the older one waits for its turn, and the newer overtakes.
	 */
	slot_replaced(a, 14);
	emptied(1, 4);
	slot_closed(b, 15, 15);
	committed(16, 4);
	slot_over(a);
	slot_free(a);
	slot_clean(b, 16);
	/* A RELEASE that is late: durable as it stands, and then changed. */
	assert_true(slot_changes(b));
	changed(1, 5);
	slot_closed(b, 17, 17);
	slot_stands(b);
	committed(18, 5);
	changed(1, 6); /* by the handle that is not released yet */
	slot_closed(b, 17, 19); /* what is left has the place of its close */
	committed(20, 6);
	slot_clean(b, 20);
	/* Closed while it is drained as it stands, replaced, and in order. */
	assert_true(slot_changes(b));
	changed(1, 7);
	slot_stands(b);
	changed(1, 8);
	slot_closed(b, 22, 22);
	committed(21, 7);
	slot_replaced(b, 22);
	emptied(0, 9);
	slot_closed(a, 23, 23);
	committed(22, 8); /* what is replaced keeps its number */
	slot_over(b);
	slot_free(b);
	committed(24, 9);
	slot_clean(a, 24);
	assert_true(life.kills > 50);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_slot_beside_each_record),
		cmocka_unit_test(a_kill_between_any_two_stores_loses_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
