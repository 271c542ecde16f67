/* diff.h - what changed from one step to another. */
#ifndef FUSE_CTL_DIFF_H
#define FUSE_CTL_DIFF_H

#include "fuse/ctl/step.h"

/*
 * Print it; the command's exit code: CTL_PROBLEM when the structure differs
 * or a file could not be read. structure_only: no byte is compared.
 */
int diff_steps(struct step *a, struct step *b, bool json, bool all,
	       bool structure_only);

#endif
