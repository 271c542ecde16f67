/*
 * work.h - what the clients of a run do.
 */
#ifndef TESTS_SIM_WORK_H
#define TESTS_SIM_WORK_H

#include <stdbool.h>

#include "tests/sim/plan.h"

/* For this plan the paths, once. */
void work_init(const struct plan *plan);
/* All clients, from the first op to the last. The store is mounted. */
void work_run(const struct plan *plan, struct store *st, unsigned round);
/* Before the store is closed. */
void work_end(void);
/* Each path as it is now, compared with its last state. */
void work_check_all(void);
/* Each path as it was found after a crash. */
void work_check_found(bool cut);

#endif
