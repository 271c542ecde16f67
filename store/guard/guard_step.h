/*
 * guard_step.h - one step against the step before it: what guard.h reports.
 *
 * No state is kept of earlier steps: the step before is found by its name each
 * time, so a restart, a deleted step or one that was written again cannot make
 * a comparison stale. The caller has one call at a time run (guard.looking).
 */
#ifndef STORE_GUARD_STEP_H
#define STORE_GUARD_STEP_H

#include <stdbool.h>
#include <stdint.h>

#include "store/base/bytes.h"
#include "store/guard/guard.h"
#include "store/db/records.h"
#include "store/guard/structure_store.h"

extern const struct structure_limits guard_limits;

struct guard_step {
	uint64_t dir;
	/* The name it has, or is to have. */
	uint64_t parent;
	char name[STORE_NAME_MAX + 1];
	uint64_t metadata; /* what is about to be its .metadata; 0: what is */
	/*
	 * Only what .metadata names is compared: other files may still come.
	 * Set with metadata, too.
	 */
	bool dcp_only;
	bool looked_at; /* but for its bytes */
};

struct guard_verdict {
	bool broken, missing, different;
	char text[GUARD_TEXT_BYTES]; /* one line; empty: nothing to say */
};

/* -ENOENT: the step is gone. */
int guard_step_check(struct store *st, const struct guard_step *step,
		     struct guard_verdict *ret);
/*
 * Do all files with tensors have the bytes they have in the step before? 1:
 * text says so; 0: no, or not all of them are durable.
 */
int guard_step_identical(struct store *st, const struct guard_step *step,
			 char text[GUARD_TEXT_BYTES]);
/* A line for each difference. -ENODATA: there is no step before. */
int guard_step_difference(struct store *st, const struct guard_step *step,
			  const uid_t *uid, struct bytes *out);

/* No control characters, and nothing but UTF-8: '?' instead. */
void guard_clean(char *text, size_t len);

#endif
