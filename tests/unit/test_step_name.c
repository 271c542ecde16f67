/* Which names are steps, of which run, and in which order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/step/step_name.h"

#define COUNT(a) (sizeof(a) / sizeof(*(a)))

static void expect(const char *name, enum step_name want)
{
	if (step_name_of(name) != want)
		fail_msg("%s: %d, not %d", name, (int)step_name_of(name),
			 (int)want);
}

/* As trainers write them. */
static void a_number_behind_a_word_is_a_step(void **state)
{
	static const char *const names[] = {
		"iter_0000100", /* Megatron */
		"checkpoint-500", /* Hugging Face's Trainer */
		"global_step1", /* DeepSpeed */
		"global_step_10", /* verl */
		"step-500", /* torchtitan */
		"epoch=3-step=1000.ckpt", /* Lightning */
		"model--val_loss=0.5-epoch=1-step=100-last", /* NeMo */
		"checkpoint_100", /* t5x */
		"ckpt-7",
		"Step1",
		"EPOCH_3",
		"Iteration=5",
		"run2_step_10",
		"llama-7b-step-100",
		"epoch3",
	};

	(void)state;
	for (size_t i = 0; i < COUNT(names); i++)
		expect(names[i], STEP_NAME_SURE);
}

static void a_number_alone_may_be_a_step(void **state)
{
	static const char *const names[] = { "100", "run_100", "llama-7",
					     "trial_0", "0" };

	(void)state;
	for (size_t i = 0; i < COUNT(names); i++)
		expect(names[i], STEP_NAME_PERHAPS);
}

static void what_is_called_otherwise_is_no_step(void **state)
{
	static const char *const names[] = {
		"",
		"llama-7b",
		"llama-13b",
		"stage1",
		"export-v2",
		"v2",
		"checkpoint-7b",
		"checkpoint-best",
		"ckpt-1.5",
		"footstep5",
		"step",
		"run1.5",
		"rank_0",
		"node_10",
		"part-00001",
		"mp_rank_00",
		/* what is not finished */
		"step_10.tmp",
		"tmp-checkpoint-500",
		"tmp_500",
		"500.orbax-checkpoint-tmp-1700000000",
		"step_10.incomplete",
		"step-10.partial",
		"model--epoch=1-step=100-unfinished",
	};

	(void)state;
	for (size_t i = 0; i < COUNT(names); i++)
		expect(names[i], STEP_NAME_NONE);
}

static void only_steps_and_what_was_measured_may_differ(void **state)
{
	static const struct {
		const char *a, *b;
		bool same;
	} rows[] = {
		{ "step_9", "step_10", true },
		{ "iter_0000090", "iter_0000100", true },
		{ "epoch=0-step=100", "epoch=1-step=9", true },
		{ "epoch=0-step=100.ckpt", "epoch=1-step=9.ckpt", true },
		{ "100", "200", true },
		{ "run_100", "run_200", true },
		{ "llama-7b-step-1", "llama-7b-step-2", true },
		{ "model--val_loss=0.5-epoch=1-step=100",
		  "model--val_loss=12.25-epoch=0-step=50", true },
		{ "model--val_loss=nan-epoch=1-step=100-last",
		  "model--val_loss=-1.5e-05-epoch=0-step=50", true },
		{ "epoch=1-step=100-last.ckpt", "epoch=0-step=50.ckpt", true },
		{ "llama-7b-step-1", "llama-13b-step-2", false },
		{ "run1_step_1", "run2_step_2", false },
		{ "rank_0_step_1", "rank_1_step_2", false },
		{ "step_1", "step_2.pt", false },
		{ "step_1", "step_2.tmp", false },
		{ "step_1", "Step_2", false },
		{ "step_1", "step-2", false },
		{ "step_1", "iter_2", false },
		{ "100", "run_200", false },
		{ "step_1", "200", false },
		{ "llama-7b", "llama-13b", false },
		{ "stage1", "stage2", false },
		{ "export-v1", "export-v2", false },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(rows); i++)
		if (step_name_same_series(rows[i].a, rows[i].b) !=
			    rows[i].same ||
		    step_name_same_series(rows[i].b, rows[i].a) != rows[i].same)
			fail_msg("%s %s", rows[i].a, rows[i].b);
}

static void steps_are_in_the_order_of_their_numbers(void **state)
{
	/* Each before the next. */
	static const char *const rows[][2] = {
		{ "step_9", "step_10" },
		{ "iter_0000090", "iter_100" },
		{ "epoch=0-step=100", "epoch=1-step=9" },
		/* not in the order of what was measured */
		{ "model--val_loss=0.9-epoch=0-step=50",
		  "model--val_loss=0.5-epoch=1-step=100-last" },
		{ "99", "100" },
		{ "run_9", "run_10" },
		{ "step_99999999999999999999", "step_100000000000000000000" },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(rows); i++) {
		assert_true(step_name_compare(rows[i][0], rows[i][1]) < 0);
		assert_true(step_name_compare(rows[i][1], rows[i][0]) > 0);
	}
	assert_int_equal(step_name_compare("step_07", "step_7"), 0);
	assert_int_equal(
		step_name_compare("epoch=1-step=7-last", "epoch=1-step=7"), 0);
}

static void steps_lie_in_a_row_and_models_do_not(void **state)
{
	(void)state;
	assert_true(step_name_even("0", "100", "200"));
	assert_true(step_name_even("run_500", "run_1000", "run_1500"));
	assert_false(step_name_even("trial_0", "trial_1", "trial_2"));
	assert_false(step_name_even("llama-7", "llama-13", "llama-70"));
	assert_false(step_name_even("100", "200", "250"));
	assert_false(step_name_even("200", "100", "0"));
	assert_false(step_name_even("99999999999999999999", "100", "200"));
	assert_false(step_name_even("100", "200", "99999999999999999999"));
}

static void a_file_is_a_step_by_itself_when_its_name_is_sure(void **state)
{
	(void)state;
	assert_true(step_name_is_file("epoch=0-step=100.ckpt"));
	assert_true(step_name_is_file("step_7.pt"));
	assert_true(step_name_is_file("model_step_7.safetensors"));
	assert_false(step_name_is_file("step_7"));
	assert_false(step_name_is_file("step_7.pt.tmp"));
	assert_false(step_name_is_file("tmp_step_7.pt"));
	assert_false(step_name_is_file("run_7.pt"));
	assert_false(step_name_is_file("step_7.json"));
	assert_true(step_name_is_file("last.ckpt"));
	assert_true(step_name_is_file("last-v12.ckpt"));
	assert_false(step_name_is_file("last-v.ckpt"));
	assert_false(step_name_is_file("lasting.ckpt"));
	assert_false(step_name_is_file("last.ckpt.tmp"));
	assert_true(step_name_is_of_tensors("model.pt"));
	assert_false(step_name_is_of_tensors("model.tmp.pt"));
	assert_false(step_name_is_of_tensors("model.json"));
	assert_true(step_name_is_aside("step_7.corrupt"));
	assert_true(step_name_is_aside("step_7.old"));
	assert_true(step_name_is_aside(".step_7"));
	assert_true(step_name_is_aside("step_7.tmp"));
	assert_true(step_name_is_aside("trash"));
	assert_false(step_name_is_aside("old_step_7"));
	assert_false(step_name_is_aside("threshold"));
	assert_false(step_name_is_aside("step_7"));
	assert_true(step_name_is_staging("step_7.tmp"));
	assert_false(step_name_is_staging("attempt"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_number_behind_a_word_is_a_step),
		cmocka_unit_test(a_number_alone_may_be_a_step),
		cmocka_unit_test(what_is_called_otherwise_is_no_step),
		cmocka_unit_test(only_steps_and_what_was_measured_may_differ),
		cmocka_unit_test(steps_are_in_the_order_of_their_numbers),
		cmocka_unit_test(steps_lie_in_a_row_and_models_do_not),
		cmocka_unit_test(
			a_file_is_a_step_by_itself_when_its_name_is_sure),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
