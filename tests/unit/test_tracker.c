/* Which names are those of trackers, what these say, and which steps it means.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "store/step/tracker.h"

#define COUNT(a) (sizeof(a) / sizeof(*(a)))

static void a_tracker_is_known_by_its_name(void **state)
{
	static const struct {
		const char *name;
		enum tracker want;
		bool of_number, counts_steps; /* of TRACKER_OF_STEPS */
	} rows[] = {
		{ "latest", TRACKER_OF_STEPS, false, true },
		{ "latest_step", TRACKER_OF_STEPS, false, true },
		{ "latest_universal", TRACKER_OF_STEPS, false, false },
		{ "latest_epoch", TRACKER_OF_STEPS, false, false },
		{ "latest_checkpointed_iteration.txt", TRACKER_OF_STEPS, true,
		  true },
		{ ".metadata", TRACKER_IN_STEP, false, false },
		{ "model.safetensors.index.json", TRACKER_IN_STEP, false,
		  false },
		{ "latest.tmp", TRACKER_NONE, false, false },
		{ "latest.tmp.17", TRACKER_NONE, false, false },
		{ ".metadata.tmp", TRACKER_NONE, false, false },
		{ "model.tmp.index.json", TRACKER_NONE, false, false },
		{ ".index.json", TRACKER_NONE, false, false },
		{ "the_latest", TRACKER_NONE, false, false },
		{ "metadata", TRACKER_NONE, false, false },
		{ "", TRACKER_NONE, false, false },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(rows); i++) {
		const char *name = rows[i].name;

		if (tracker_of(name) != rows[i].want)
			fail_msg("%s: %d", name, (int)tracker_of(name));
		assert_int_equal(tracker_is(name),
				 rows[i].want != TRACKER_NONE);
		if (!tracker_is_of_steps(name))
			continue;
		assert_int_equal(tracker_is_of_number(name), rows[i].of_number);
		assert_int_equal(tracker_counts_steps(name),
				 rows[i].counts_steps);
	}
}

/* Which files publish when they are renamed: README's table counts on it. */
static void a_step_and_what_makes_one_whole_publish(void **state)
{
	static const struct {
		const char *name;
		bool publishes;
	} rows[] = {
		/* steps */
		{ "step_100.pt", true },
		{ "epoch=3-step=1000.ckpt", true },
		{ "last.ckpt", true },
		{ "checkpoint-500", true },
		{ "ckpt_7.safetensors", true },
		/* what makes one whole */
		{ ".metadata", true },
		{ "model.safetensors.index.json", true },
		{ "pytorch_model.bin.index.json", true },
		{ "latest", true },
		{ "latest_checkpointed_iteration.txt", true },
		{ "checkpoint", true },
		/* parts of one, and what it is written as */
		{ "model.safetensors", false },
		{ "model-00001-of-00003.safetensors", false },
		{ ".tmpAb12Cd", false },
		{ "__0_0.distcp", false },
		{ "pytorch_model.bin", false },
		{ "rank_3.pt", false },
		{ "mp_rank_00_model_states.pt", false },
		{ "optimizer.pt", false },
		{ "0", false }, /* a chunk of zarr */
		{ "0.0", false },
		{ ".metadata.tmp", false },
		{ "latest.tmp", false },
		{ "latest.tmp.17", false },
		{ "step_100.pt.tmp", false },
		{ "last.ckpt.tmp", false },
		{ ".ckpt", false },
		{ "index.json", false },
		{ "", false },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(rows); i++)
		if (tracker_publishes(rows[i].name) != rows[i].publishes)
			fail_msg("%s: publishes is not %d", rows[i].name,
				 rows[i].publishes);
}

static void the_word_is_without_the_space_around_it(void **state)
{
	char word[TRACKER_WORD_BYTES], text[TRACKER_BYTES_MAX + 1];

	(void)state;
	tracker_word("  step_7\n", 9, word);
	assert_string_equal(word, "step_7");
	tracker_word("7", 1, word);
	assert_string_equal(word, "7");
	tracker_word(" \n", 2, word);
	assert_string_equal(word, "");
	tracker_word(NULL, 0, word);
	assert_string_equal(word, "");
	tracker_word("two words", 9, word);
	assert_string_equal(word, "two words");
	memset(text, 'x', sizeof(text));
	tracker_word(text, TRACKER_BYTES_MAX, word);
	assert_int_equal(strlen(word), TRACKER_BYTES_MAX);
	tracker_word(text, TRACKER_BYTES_MAX + 1, word);
	assert_string_equal(word, "");
}

static char names[1000];
static int stop_after;

static int note(void *arg, const char *name)
{
	(void)arg;
	(void)snprintf(names + strlen(names), sizeof(names) - strlen(names),
		       "%s ", name);
	return --stop_after == 0 ? -7 : 0;
}

static const char *steps_of(const char *word, int stop)
{
	names[0] = 0;
	stop_after = stop;
	assert_int_equal(tracker_each_step(word, note, NULL),
			 stop > 0 ? -7 : 0);
	return names;
}

static void a_word_means_the_steps_that_frameworks_name_so(void **state)
{
	char longest[300];

	(void)state;
	assert_string_equal(steps_of("global_step10", 0), "global_step10 ");
	assert_string_equal(
		steps_of("100", 0),
		"100 iter_0000100 iter_100 step_0000100 step_100 step-0000100 "
		"step-100 global_step0000100 global_step100 "
		"global_step_0000100 global_step_100 checkpoint-0000100 "
		"checkpoint-100 ");
	/* As wide as that, or with zeros before it. */
	assert_non_null(strstr(steps_of("1234567", 0), " iter_1234567 step_"));
	assert_non_null(
		strstr(steps_of("0000006", 0), "0000006 iter_0000006 iter_6 "));
	assert_non_null(strstr(steps_of("0", 0), "0 iter_0000000 iter_0 "));
	assert_string_equal(steps_of("100", 2), "100 iter_0000100 ");
	/* What no name beside a tracker is. */
	assert_string_equal(steps_of("", 0), "");
	assert_string_equal(steps_of(".", 0), "");
	assert_string_equal(steps_of("..", 0), "");
	assert_string_equal(steps_of("../step_1", 0), "");
	assert_string_equal(steps_of("/ckpt/step_1", 0), "");
	assert_string_equal(steps_of("123456789012345678901", 0),
			    "123456789012345678901 ");
	memset(longest, 'x', sizeof(longest));
	longest[256] = 0;
	assert_string_equal(steps_of(longest, 0), "");
	longest[255] = 0;
	assert_int_equal(strlen(steps_of(longest, 0)), 256);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_tracker_is_known_by_its_name),
		cmocka_unit_test(a_step_and_what_makes_one_whole_publish),
		cmocka_unit_test(the_word_is_without_the_space_around_it),
		cmocka_unit_test(
			a_word_means_the_steps_that_frameworks_name_so),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
