/*
 * live_flight.h - what is in flight of a file, for a test that waits until it
 * has come somewhere.
 */
#ifndef TESTS_UNIT_LIVE_FLIGHT_H
#define TESTS_UNIT_LIVE_FLIGHT_H

#include "store/base/scope.h"
#include "store/drain/drain_private.h"
#include "tests/unit/live_life.h"

/* Nothing is: VERSION_GONE. */
static inline enum version_state live_flight(struct live *l, struct inode *in)
{
	const struct version *v;

	HOLD(&in->lock);
	HOLD(&l->st->drain->lock);
	v = in->file->versions.in_flight;
	return v ? v->state : VERSION_GONE;
}

#endif
