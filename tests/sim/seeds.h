/*
 * seeds.h - what a simulator is, for seeds.c, which has main(), its options, and
 * a process for each seed.
 */
#ifndef TESTS_SIM_SEEDS_H
#define TESTS_SIM_SEEDS_H

#include <stdbool.h>
#include <stdint.h>

struct outcome {
	uint64_t trace, points;
};

/* Before the first seed: what all of them have in common. */
void seed_prepare(void);
/* In a process of its own; root: an empty directory. sim_fail() ends it, too. */
void seed_run(uint64_t seed, const char *root, bool trace, struct outcome *out);
/* Of tests/sim/run, to have this simulator: "" or " --nodes". */
extern const char seed_option[];

#endif
