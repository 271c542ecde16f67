/* closure_chunks.h - the chunks of each tensor, compared with each other. */
#ifndef STORE_STEP_CLOSURE_CHUNKS_H
#define STORE_STEP_CLOSURE_CHUNKS_H

#include "store/step/closure_check.h"

/* -ENOMEM. */
int closure_check_items(struct check *k);

#endif
