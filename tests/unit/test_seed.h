/*
 * test_seed.h - what a random test starts from. Each run is the same: the seed
 * is 1, or the number that the environment has as CKPTFS_TEST_SEED. So a failed
 * run is done again with what it printed, and who wants other inputs each time
 * sets another number each time.
 */
#ifndef TESTS_UNIT_TEST_SEED_H
#define TESTS_UNIT_TEST_SEED_H

#include <errno.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define TEST_SEED "CKPTFS_TEST_SEED"

/* What is no number there ends the process: it was meant to be one. */
static inline uint64_t test_seed_read(void)
{
	const char *text = getenv(TEST_SEED);
	uint64_t seed;
	char *end;

	if (!text)
		return 1;
	errno = 0;
	seed = strtoull(text, &end, 10);
	if (errno != 0 || *end != '\0' || *text < '0' || *text > '9') {
		fprintf(stderr, TEST_SEED "='%s' is no number of 64 bits\n",
			text);
		exit(2);
	}
	return seed;
}

/* The same, and it is printed as who repeats the run has to give it. */
static inline uint64_t test_seed(void)
{
	uint64_t seed = test_seed_read();

	printf("# " TEST_SEED "=%" PRIu64 "\n", seed);
	(void)fflush(stdout);
	return seed;
}

/* For a generator that wants many bits set, and never 0. */
static inline uint64_t test_seed_spread(uint64_t seed)
{
	return seed * UINT64_C(0x9e3779b97f4a7c15) | 1;
}

#endif
