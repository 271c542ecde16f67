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
#include "store/space/stage.h"

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
 * A file's stages and its record as a daemon changes them, one store at a time;
 * `content` is what each has, as a reader would see it. Killed after any of
 * them, the next daemon must show the newest, and bring nothing older back.
 */
struct life {
	struct stage_slot slot[2];
	unsigned content[2]; /* of the slot: 0: it is not there */
	uint64_t durable;
	unsigned durable_content;
	unsigned newest; /* what was written last */
	unsigned lives;
};

/* What is the file after a kill now, when all that is found is durable? */
static void killed(struct life *l)
{
	struct slot_facts f = { .durable = l->durable, .next = NEXT };
	unsigned content = l->durable_content;
	uint64_t last = 0;

	for (unsigned i = 0; i < 2; i++) {
		const struct stage_slot *s = &l->slot[i];
		enum slot_fate fate;
		uint64_t place;

		if (l->content[i] == 0)
			continue;
		fate = slot_fate(s, &f);
		place = fate == SLOT_OPEN ? UINT64_MAX : s->close_order;
		if (fate == SLOT_CACHE)
			assert_int_equal(l->content[i], l->durable_content);
		if (!is_kept(fate) || place < last)
			continue;
		last = place;
		content = l->content[i];
	}
	assert_int_equal(content, l->newest);
	l->lives++;
}

#define STORE(assignment)   \
	do {                \
		assignment; \
		killed(l);  \
	} while (0)

static void closed(struct life *l, unsigned i, uint64_t place, uint64_t number)
{
	STORE(l->slot[i].close_order = place);
	STORE(l->slot[i].version = number);
}

static void made(struct life *l, unsigned i, unsigned content)
{
	l->slot[i] = (struct stage_slot){ .ino = 5,
					  .kind = STAGE_MEMORY,
					  .dirty = 1 };
	l->newest = content;
	STORE(l->content[i] = content);
}

/* file_dirtied(), and then it is written to. */
static void written(struct life *l, unsigned i, unsigned content)
{
	STORE(l->slot[i].version = 0);
	if (!l->slot[i].dirty) {
		STORE(l->slot[i].close_order = 0);
		STORE(l->slot[i].dirty = 1);
	}
	l->content[i] = content;
	l->newest = content;
	killed(l);
}

static void committed(struct life *l, uint64_t number, unsigned content)
{
	l->durable = number;
	l->durable_content = content;
	killed(l);
}

static void clean(struct life *l, unsigned i)
{
	STORE(l->slot[i].version = l->durable);
	STORE(l->slot[i].dirty = 0);
}

static void a_kill_between_any_two_stores_loses_nothing(void **state)
{
	struct life life = { 0 }, *l = &life;

	(void)state;
	/* Written, closed, durable, a cache; changed, closed, durable. */
	made(l, 0, 1);
	closed(l, 0, 10, 10);
	committed(l, 10, 1);
	clean(l, 0);
	written(l, 0, 2);
	closed(l, 0, 11, 11);
	/* Somebody comes to change it while the committer has it. */
	written(l, 0, 3);
	committed(l, 11, 2);
	closed(l, 0, 12, 12);
	/* O_TRUNC: the older one waits for its turn, and the newer overtakes.
	 */
	STORE(l->slot[0].earlier = 1);
	made(l, 1, 4);
	closed(l, 1, 13, 13);
	committed(l, 13, 4);
	STORE(l->slot[0].dirty = 0);
	STORE(l->content[0] = 0);
	clean(l, 1);
	/* The same of who is overtaken while a worker has it. */
	written(l, 1, 7);
	closed(l, 1, 14, 14);
	STORE(l->slot[1].earlier = 1);
	made(l, 0, 8);
	STORE(l->slot[1].version = 14); /* drain_replace(); no work takes it */
	closed(l, 0, 15, 15);
	committed(l, 15, 8);
	STORE(l->slot[1].dirty = 0);
	STORE(l->content[1] = 0);
	clean(l, 0);
	/* A release that is late: durable as it stands, and then changed. */
	written(l, 0, 5);
	closed(l, 0, 16, 16);
	STORE(l->slot[0].version = 0); /* work_freeze() of an open file */
	committed(l, 16, 5);
	l->content[0] = 6; /* by the handle that is not released yet */
	l->newest = 6;
	killed(l);
	closed(l, 0, 16, 17); /* what is left has the place of its close */
	committed(l, 17, 6);
	clean(l, 0);
	assert_true(l->lives > 30);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_slot_beside_each_record),
		cmocka_unit_test(a_kill_between_any_two_stores_loses_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
