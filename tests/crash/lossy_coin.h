/*
 * lossy_coin.h - the seeded coins that say what of the unsynced survives.
 *
 * The same seed and the same order of questions give the same answers, on
 * every machine: a failure is repeated by its seed.
 */
#ifndef TESTS_CRASH_LOSSY_COIN_H
#define TESTS_CRASH_LOSSY_COIN_H

#include <stdbool.h>
#include <stdint.h>

struct lossy_coin {
	uint64_t state;
};

static inline uint64_t lossy_coin_next(struct lossy_coin *c)
{
	uint64_t z;

	c->state += UINT64_C(0x9e3779b97f4a7c15);
	z = c->state;
	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

/* True in `quarters` of 4 throws: 0 never, 4 always. */
static inline bool lossy_coin_toss(struct lossy_coin *c, unsigned quarters)
{
	return lossy_coin_next(c) % 4 < quarters;
}

#endif
