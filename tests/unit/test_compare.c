/*
 * What of a step is refused, and what is only told: a table of what trainers
 * do, on purpose and not. Each row is a step before and the step that is
 * published.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "store/base/scope.h"
#include "store/step/compare.h"

#define COUNT(a) (sizeof(a) / sizeof(*(a)))

/*
 * A step in one line: "file:name[shape]type ...", the type of a letter, 'o' for
 * an object; "@8" at the beginning is the size of its world.
 */
static void make(const char *text, struct structure *s)
{
	SCOPED(scope_free) char *copy = strdup(text);
	char *save = NULL;

	memset(s, 0, sizeof(*s));
	for (char *one = strtok_r(copy, " ", &save); one;
	     one = strtok_r(NULL, " ", &save)) {
		char file[64], name[64], type[2];
		unsigned long length;
		uint64_t shape[1];
		struct tensor t = { .name = name };

		if (sscanf(one, "@%u", &s->world) == 1)
			continue;
		assert_int_equal(sscanf(one, "%63[^:]:%63[^[][%lu]%1s", file,
					name, &length, type),
				 4);
		for (size_t i = 0; i < s->name_count; i++)
			if (strcmp(s->names[i], file) == 0)
				t.file = s->names[i];
		if (!t.file)
			t.file = structure_keep_name(s, file);
		shape[0] = length;
		if (type[0] != 'o') {
			t.dtype = type;
			t.rank = 1;
			t.shape = shape;
		}
		assert_int_equal(tensors_add(&s->tensors, &t), 0);
	}
	assert_int_equal(structure_finish(s), 0);
}

static bool all_count(void *arg, const struct tensor *t)
{
	(void)arg;
	(void)t;
	return true;
}

static void add_word(void *arg, enum compare_change change,
		     const struct tensor *a, const struct tensor *b)
{
	char *said = arg;
	const struct tensor *t = b ? b : a;

	assert_true((change == COMPARE_ADDED) == !a);
	assert_true((change == COMPARE_GONE || change == COMPARE_LEFT_OUT) ==
		    !b);
	assert_true(strlen(said) < 900);
	(void)sprintf(said + strlen(said), "%s%s: %s", *said ? ", " : "",
		      compare_word(change), t->name);
}

static void expect(const char *before, const char *now, const char *want)
{
	char said[1024] = "";
	struct structure x, y;
	struct compare_step a = { &x, "step_10" }, b = { &y, "step_20" };

	make(before, &x);
	make(now, &y);
	assert_int_equal(compare_steps(&a, &b, all_count, add_word, said), 0);
	if (strcmp(said, want) != 0)
		fail_msg("\n%s\n%s:\n\"%s\", not\n\"%s\"", before, now, said,
			 want);
	structure_release(&x);
	structure_release(&y);
}

#define FULL                                                           \
	"m:model.w[8]f m:model.v[4]f m:optimizer.state.exp_avg.w[8]f " \
	"m:optimizer.state.exp_avg.v[4]f m:rng_state[16]u"
#define MODEL "m:model.w[8]f m:model.v[4]f"

/* Whatever was gone in a row here was lost. */
static void what_was_lost_is_gone(void **state)
{
	(void)state;
	expect("m:w[8]f m:v[4]f", "m:w[8]f", "gone: v");
	/* All of the model, an adapter or not. */
	expect(FULL, "m:optimizer.state.exp_avg.w[8]f m:rng_state[16]u",
	       "gone: model.v, gone: model.w, gone: "
	       "optimizer.state.exp_avg.v");
	/* A part of the optimizer. */
	expect(FULL, MODEL " m:optimizer.state.exp_avg.w[8]f m:rng_state[16]u",
	       "gone: optimizer.state.exp_avg.v");
	/* Its optimizer on purpose, and a part of the model by accident. */
	expect(FULL, "m:model.w[8]f",
	       "gone: model.v, left out: optimizer.state.exp_avg.v, "
	       "left out: optimizer.state.exp_avg.w, left out: rng_state");
	/* A second model. */
	expect("a/m:w[8]f c/m:w[8]f", "a/m:w[8]f", "gone: w");
	/* A part of an adapter. */
	expect("a:l0.lora_A[8]f a:l0.lora_B[8]f", "a:l0.lora_A[8]f",
	       "gone: l0.lora_B");
	expect("m:w[8]f a:l0.lora_A[8]f", "m:w[8]f", "gone: l0.lora_A");
	/* The file of one rank; who wrote it is not known. */
	expect("rank_0.pt:w[8]f rank_1.pt:w[8]f", "rank_0.pt:w[8]f", "gone: w");
	expect("@8 rank_0.pt:w[8]f rank_1.pt:w[8]f", "@8 rank_0.pt:w[8]f",
	       "gone: w");
	/* In a smaller world a name that no file has. */
	expect("@2 rank_0.pt:w[8]f rank_1.pt:v[8]f", "@1 rank_0.pt:w[16]f",
	       "gone: v, of another shape: w");
	/* One layer of a pipeline, which has a file of its own. */
	expect("@8 layer_01-model.pt:w[8]f layer_02-model.pt:w[8]f",
	       "@4 layer_01-model.pt:w[8]f", "gone: w");
	/* The words of the optimizer in a name of the model's. */
	expect("m:model.optimal[8]f m:model.w[8]f", "m:model.w[8]f",
	       "gone: model.optimal");
	expect("model_optim_rng.pt:model.w[8]f model_optim_rng.pt:model.v[8]f",
	       "model_optim_rng.pt:model.w[8]f", "gone: model.v");
}

/* What comes and goes on purpose. */
static void what_is_left_out_on_purpose_is_told(void **state)
{
	(void)state;
	expect(FULL, MODEL,
	       "left out: optimizer.state.exp_avg.v, "
	       "left out: optimizer.state.exp_avg.w, left out: rng_state");
	/* Hugging Face's save_only_model: whole files. */
	expect("model.safetensors:w[8]f optimizer.pt:state.0.exp_avg[8]f "
	       "optimizer.pt:state.0.step[1]f scheduler.pt:base_lrs[1]f",
	       "model.safetensors:w[8]f",
	       "left out: base_lrs, left out: state.0.exp_avg, "
	       "left out: state.0.step");
	/* Accelerate's folders, and DeepSpeed's files. */
	expect("optimizer_0/.metadata:state.w[8]f model/.metadata:w[8]f",
	       "model/.metadata:w[8]f", "left out: state.w");
	expect("zero_pp_rank_0_mp_rank_00_optim_states.pt:flat[8]f "
	       "mp_rank_00_model_states.pt:module.w[8]f",
	       "mp_rank_00_model_states.pt:module.w[8]f", "left out: flat");
	/* Names in which the model comes first. */
	expect("m:model.w[8]f m:model.w.exp_avg[8]f", "m:model.w[8]f",
	       "left out: model.w.exp_avg");
	/* An adapter alone. */
	expect("m:model.w[8]f m:model.w.lora_A[8]f", "m:model.w.lora_A[8]f",
	       "left out: model.w");
	expect("model.safetensors:w[8]f",
	       "adapter_model.safetensors:base.model.q[8]f",
	       "new: base.model.q, left out: w");
	expect("model.safetensors:w[8]f optimizer.pt:state.0.exp_avg[8]f "
	       "optimizer.pt:state.1.exp_avg[8]f",
	       "adapter_model.safetensors:base.model.q[8]f "
	       "optimizer.pt:state.0.exp_avg[8]f",
	       "new: base.model.q, left out: state.1.exp_avg, left out: w");
	/* A model is wrapped, or is so no more; what else is gone is gone. */
	expect("m:model.w[8]f", "m:model.module.w[8]f",
	       "new: model.module.w, left out: model.w");
	expect("m:_orig_mod.w[8]f m:_orig_mod.v[8]f", "m:module.w[8]f",
	       "gone: _orig_mod.v, left out: _orig_mod.w, new: module.w");
	expect("m:module.w[8]f m:w[8]f", "m:w[8]f", "gone: module.w");
	expect("m:w[8]f", "m:module.w[9]f", "new: module.w, gone: w");
	/* Random states and loaders, also a part of them. */
	expect("m:w[8]f rng_state_0.pth:a[8]u rng_state_1.pth:a[8]u",
	       "m:w[8]f rng_state_0.pth:a[8]u", "left out: a");
	expect("m:w[8]f m:dataloader.0[8]u m:dataloader.1[8]u",
	       "m:w[8]f m:dataloader.0[8]u", "left out: dataloader.1");
	/* Lightning's scores of the best steps, by their paths. */
	expect("m:state_dict.w[8]f "
	       "m:callbacks.ModelCheckpoint.best_k_models./r/step=1.ckpt[1]f",
	       "m:state_dict.w[8]f "
	       "m:callbacks.ModelCheckpoint.best_k_models./r/step=2.ckpt[1]f",
	       "left out: callbacks.ModelCheckpoint.best_k_models./r/step=1."
	       "ckpt, new: callbacks.ModelCheckpoint.best_k_models./r/step=2."
	       "ckpt");
	/* An object, such as Megatron's rerun state after an emergency. */
	expect("m:w[8]f m:rerun_state[0]o", "m:w[8]f", "left out: rerun_state");
}

static void what_is_more_or_another_is_told(void **state)
{
	(void)state;
	/* The first optimizer step was after the first save. */
	expect(MODEL, FULL,
	       "new: optimizer.state.exp_avg.v, new: "
	       "optimizer.state.exp_avg.w, new: rng_state");
	/* An emergency checkpoint has more. */
	expect("m:w[8]f", "m:w[8]f m:rerun[4]u m:rerun_state[0]o",
	       "new: rerun, new: rerun_state");
	expect("m:w[8]f m:seen[100]i", "m:w[8]f m:seen[101]i",
	       "of another shape: seen");
	expect("m:w[8]f", "m:w[8]h", "of another type: w");
	expect("a.pt:w[8]f", "b.pt:w[8]f", "in another file: w");
	/* Cut into another number of files. */
	expect("model.safetensors:v[4]f model.safetensors:w[8]f",
	       "model-00001-of-00002.safetensors:v[4]f "
	       "model-00002-of-00002.safetensors:w[8]f",
	       "in another file: v, in another file: w");
}

static void the_same_in_other_words_is_the_same(void **state)
{
	(void)state;
	expect(FULL, FULL, "");
	/* Its own number in a file's name. */
	expect("model_10_rank_1.pt:w[8]f", "model_20_rank_1.pt:w[8]f", "");
	expect("rank_10.pt:w[8]f rank_20.pt:w[8]f",
	       "rank_10.pt:w[8]f rank_20.pt:w[8]f", "");
	/* Another world, of which the number is known. */
	expect("@2 rank_0.pt:w[8]f rank_1.pt:w[8]f", "@1 rank_0.pt:w[8]f", "");
	expect("@8 zero_pp_rank_0_mp_rank_00_optim_states.pt:state.0[8]f "
	       "zero_pp_rank_1_mp_rank_00_optim_states.pt:state.0[8]f",
	       "@4 zero_pp_rank_0_mp_rank_00_optim_states.pt:state.0[8]f", "");
	expect("@2 model_world_size_2_rank_0.pt:w[8]f "
	       "model_world_size_2_rank_1.pt:w[8]f",
	       "@1 model_world_size_1_rank_0.pt:w[8]f", "");
	expect("@2 mp_rank_00_000/model_optim_rng.pt:w[8]f "
	       "mp_rank_00_001/model_optim_rng.pt:v[8]f",
	       "@1 mp_rank_00_000/model_optim_rng.pt:w[8]f "
	       "mp_rank_00_000/model_optim_rng.pt:v[8]f",
	       "");
}

static size_t odd(const char *earlier, const char *before, const char *now)
{
	struct structure x, y, z;
	size_t count;

	make(earlier, &x);
	make(before, &y);
	make(now, &z);
	count = compare_odd(&x, &y, &z, all_count, NULL);
	structure_release(&x);
	structure_release(&y);
	structure_release(&z);
	return count;
}

static void what_one_step_alone_had_is_not_lost(void **state)
{
	(void)state;
	assert_int_equal(
		odd("m:w[8]f", "m:w[8]f m:rerun[4]u m:o[0]o", "m:w[8]f"), 1);
	assert_int_equal(odd("a:w[8]f b:w[8]f",
			     "a:w[8]f b:w[8]f a:r[4]u b:r[4]u",
			     "a:w[8]f b:w[8]f c:x[8]f"),
			 2);
	/* It came with more, of which only a part is gone. */
	assert_int_equal(
		odd("m:w[8]f", "m:w[8]f m:a[4]u m:b[4]u", "m:w[8]f m:a[4]u"),
		0);
	assert_int_equal(odd("m:w[8]f m:v[8]f", "m:w[8]f m:v[8]f m:rerun[4]u",
			     "m:w[8]f"),
			 0);
	/* Three that have nothing to do with each other. */
	assert_int_equal(odd("m:a[8]f", "m:b[8]f", "m:c[8]f"), 0);
	/* Not its name, but one file of it. */
	assert_int_equal(odd("a:w[8]f b:w[8]f", "a:w[8]f b:w[8]f", "a:w[8]f"),
			 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_was_lost_is_gone),
		cmocka_unit_test(what_is_left_out_on_purpose_is_told),
		cmocka_unit_test(what_is_more_or_another_is_told),
		cmocka_unit_test(the_same_in_other_words_is_the_same),
		cmocka_unit_test(what_one_step_alone_had_is_not_lost),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
