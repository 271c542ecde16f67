/*
 * compare.h - two steps of one run: what is new, what is gone, what is another.
 *
 * Compared is what a trainer would load, not how it was cut up: of a .metadata
 * the tensors with their whole shapes (structure_source.whole), of other files
 * each tensor by its name. A tensor may be in several files, one of each rank.
 * Files are the same when their names are, but for the step's own number; when
 * the two steps are known to be written by worlds of different sizes, the
 * numbers of ranks in their names do not count either.
 *
 * What is gone is damage, unless
 *
 *   - it is no tensor (an object, a random state of Megatron's): those come
 *     and go;
 *   - it is of what is saved beside the training (random states, schedulers,
 *     data loaders, callbacks: Lightning's has the paths of the best steps in
 *     the names of their scores);
 *   - it is of the optimizer, and nothing of the optimizer is left: a step
 *     that was saved without it. When some of it is left, a part was lost;
 *   - it is there under the name that a wrapper gives it, or took (DDP,
 *     torch.compile; see wrapped.h);
 *   - it is of the model, of which nothing is left, and an adapter is there;
 *     then the optimizer is the adapter's, and may have less.
 *
 * What an object belongs to is told by words in its name or its file's; see
 * compare_kind(). What is no damage is reported as left out.
 *
 * Pure functions.
 */
#ifndef STORE_STEP_COMPARE_H
#define STORE_STEP_COMPARE_H

#include "store/step/structure.h"

enum compare_change {
	COMPARE_ADDED,
	COMPARE_GONE, /* damage */
	COMPARE_LEFT_OUT,
	COMPARE_RETYPED,
	COMPARE_RESHAPED,
	COMPARE_MOVED, /* to a file of another name */
	COMPARE_RESIZED,
	COMPARE_CHANGES
};

enum compare_kind {
	COMPARE_MODEL, /* what nothing else is known of */
	COMPARE_ADAPTER,
	COMPARE_OPTIMIZER,
	COMPARE_BESIDE,
	COMPARE_KINDS
};

/* "gone", "new", "of another shape", ... */
const char *compare_word(enum compare_change change);

enum compare_kind compare_kind(const struct tensor *t);

struct compare_step {
	const struct structure *of;
	const char *name;
};

/* Is a tensor to be compared at all? */
typedef bool compare_filter(void *arg, const struct tensor *t);
/* a or b is NULL where there is none. */
typedef void compare_found(void *arg, enum compare_change change,
			   const struct tensor *a, const struct tensor *b);

/*
 * Call found for all that changed from a to b, in the order of the names.
 * -ENOMEM.
 */
int compare_steps(const struct compare_step *a, const struct compare_step *b,
		  compare_filter *counts, compare_found *found, void *arg);

/*
 * How many tensors `before` alone had, of three steps, if it is the odd one
 * out: what it has over `now` is what it has over `earlier`, of which `now` has
 * all. An emergency checkpoint with more state than all others is such a step.
 * 0: it is not.
 */
size_t compare_odd(const struct structure *earlier,
		   const struct structure *before, const struct structure *now,
		   compare_filter *counts, void *arg);

#endif
