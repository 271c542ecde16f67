/*
 * wrapped.h - tensors that are called otherwise since a model was wrapped, or
 * is so no more: by DDP (module.), torch.compile (_orig_mod.), FSDP or
 * activation checkpoints. They are the same once these parts of the names are
 * left away.
 *
 * Pure functions. Names are copied; the tensors are borrowed.
 */
#ifndef STORE_STEP_WRAPPED_H
#define STORE_STEP_WRAPPED_H

#include "store/step/structure.h"

struct wrapped {
	struct wrapped_name *all; /* owned; sorted */
	size_t count, capacity;
};

/* Those of b that a has nothing of the name of. -ENOMEM. */
int wrapped_init(struct wrapped *w, const struct structure *a,
		 const struct structure *b);
void wrapped_release(struct wrapped *w);
/* Is this tensor, which a alone has, one of them, and of the same shape? */
bool wrapped_has(const struct wrapped *w, const struct tensor *t);

#endif
