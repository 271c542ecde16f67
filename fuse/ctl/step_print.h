/* step_print.h - what a step holds, printed. */
#ifndef FUSE_CTL_STEP_PRINT_H
#define FUSE_CTL_STEP_PRINT_H

#include "fuse/ctl/step.h"

/* For people; all: also the tensors after the first. */
void step_print(const struct step *s, bool all);
/* One JSON object: `head`, which is released, and what the step holds. */
void step_print_json(const struct step *s, cJSON *head);
/* A tensor's type and place, as a JSON object. */
void step_print_side(const struct step *s, const struct tensor *t);

#endif
