/*
 * structure_megatron.h - what the common state of Megatron-LM says that ranks
 * have saved besides.
 */
#ifndef STORE_STEP_STRUCTURE_MEGATRON_H
#define STORE_STEP_STRUCTURE_MEGATRON_H

#include "store/step/structure.h"

#define MEGATRON_COMMON_NAME "common.pt"

/*
 * A job that is to run its last step again, to find out whose arithmetic went
 * wrong, saves what each rank has for that, and resumes from nothing less. The
 * common state of this folder, of which `where` is the file, says that it is
 * such a job: does its .metadata have all of it? -ENOMEM.
 */
int structure_check_reruns(struct structure *s, const struct dcp *d,
			   const char *below, const char *where);

/*
 * The same where the common state is an item of the .metadata, as it is from
 * megatron-core 0.18 on; else nothing. One that cannot be read says nothing.
 */
int structure_check_common(struct structure *s,
			   const struct structure_source *in,
			   const struct dcp *d, const char *below);

#endif
