/*
 * step_name.h - is a folder called like a step of training, and which steps
 * are of one run?
 *
 * A number counts the steps of a run
 *
 *   surely    behind step, iter, iteration, epoch, checkpoint or ckpt, in any
 *             case, with or without one of _ - = between: global_step10,
 *             iter_0000100, epoch=3-step=1000.ckpt, checkpoint-500
 *   perhaps   where it is all of the name, or its end behind - or _ (100,
 *             run_100): the caller has to ask a tracker or the siblings
 *
 * All other numbers are part of what the series is called, and must be the
 * same: llama-7b-step-1 and llama-13b-step-2 are two runs. What stands behind
 * '=' and is no step is measured (val_loss=0.5), and may differ. A step that is
 * still being written (tmp, incomplete, ... in its name) is none yet, and
 * -last at the end says nothing.
 *
 * This is strict, because a publish may be refused for it; what a wrong guess
 * costs in names/series.h is some memory, so that one takes any number.
 *
 * Pure functions of names.
 */
#ifndef STORE_STEP_STEP_NAME_H
#define STORE_STEP_STEP_NAME_H

#include <stdbool.h>
#include <stddef.h>

enum step_name {
	STEP_NAME_NONE,
	STEP_NAME_PERHAPS,
	STEP_NAME_SURE,
};

enum step_name step_name_of(const char *name);
/* It is being written, or given up (tmp, incomplete, ...): no step yet. */
bool step_name_is_staging(const char *name);
/*
 * Nobody is to trust it under this name: as above, hidden, or put aside
 * (step_7.corrupt, step_7.old, trash).
 */
bool step_name_is_aside(const char *name);
/*
 * A file that is all of a step by itself: step_100.pt, epoch=1-step=9.ckpt, and
 * Lightning's last.ckpt, which is written over and has no number.
 */
bool step_name_is_file(const char *name);
/* A file of tensors, by the end of its name, and no staging one. */
bool step_name_is_of_tensors(const char *name);
/* Two names that differ in their step, or what was measured, at the most. */
bool step_name_same_series(const char *a, const char *b);
/* Of one series: < 0, 0 or > 0, as a is before b. */
int step_name_compare(const char *a, const char *b);
/*
 * Do three steps of one series lie equally far apart, by more than one? Trials
 * are counted one by one, and the sizes of models are in no such row.
 */
bool step_name_even(const char *a, const char *b, const char *c);
/* Is a number, without leading zeros, one of those in a step's name? */
bool step_name_has(const char *name, const char *digits, size_t len);

/* The first number in p, without leading zeros; *ret_len 0: none. */
const char *step_name_number(const char *p, size_t *ret_len);
/* Does a word end at text[0, len), behind what is no letter? Any case. */
bool step_name_word_ends(const char *text, size_t len, const char *word);

#endif
