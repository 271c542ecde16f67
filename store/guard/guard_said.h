/*
 * guard_said.h - what people said of a step, or of all below a folder, with
 * the attributes that guard.h names: what counts for a step is its own word,
 * else that of the nearest folder above the place that it goes to.
 *
 * Threads: any. Blocks on I/O: hold no lock.
 */
#ifndef STORE_GUARD_SAID_H
#define STORE_GUARD_SAID_H

#include <stdbool.h>

#include "store/guard/guard_step.h"

/* Folders above a step that are asked. */
#define GUARD_DEPTH_MAX 64

/* The folder that `dir` is in; 0: there is none. */
uint64_t guard_parent(struct store *st, uint64_t dir);

enum guard_policy guard_policy(struct store *st, const struct guard_step *step);

/*
 * Names of tensors, one in a line; *ret is the caller's to free. own_only: the
 * folders above do not count. -ENODATA: nothing is declared.
 */
int guard_expected(struct store *st, const struct guard_step *step,
		   bool own_only, char **ret);

struct guard_ignored {
	char *text; /* owned */
	const char *pattern[GUARD_IGNORE_MAX];
	unsigned count;
};

/* Into what is all zero. guard_ignored_release() it in any case. */
int guard_ignored_read(struct store *st, const struct guard_step *step,
		       struct guard_ignored *ret);
void guard_ignored_release(struct guard_ignored *i);
bool guard_is_ignored(const struct guard_ignored *i, const char *name);

#endif
