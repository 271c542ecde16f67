/*
 * plan.h - what a run is like: drawn from its seed.
 *
 * Some kinds of calls are left out each time, and some are made more often, so
 * that what needs many of a kind is found as well as what needs all of them.
 */
#ifndef TESTS_SIM_PLAN_H
#define TESTS_SIM_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "store/store.h"

#define CLIENTS_MAX 4
#define FILES_OF_CLIENT 3

enum op {
	OP_WRITE, /* O_TRUNC, all of it, close */
	OP_REPLACE, /* a temporary name, and a rename over it */
	OP_UNLINK,
	OP_SYNC,
	OP_SYNC_ALL,
	OP_READ,
	OP_CHANGE, /* in place */
	OP_LINK,
	OP_PAUSE,
	OP_SAVE, /* by a segment */
	OP_TRUNCATE, /* without a handle */
	OP_FOLDER, /* written, and renamed */
	OP_PEEK, /* open and close */
	OP_COUNT,
};

#define CRASHES_MAX 3
struct crash {
	uint64_t after; /* so many points of its part of the run, or ... */
	uint64_t changes; /* ... so many changes and syncs of the database */
	uint64_t commits; /* ... or before so many commits of files */
	bool cut; /* the power, else the daemon is killed */
};

struct plan {
	uint64_t seed;
	struct store_options options;
	bool passthrough;
	unsigned clients, ops; /* of each */
	unsigned weight[OP_COUNT];
	unsigned sizes; /* which sizes are usual */
	unsigned payloads; /* so few different ones, so that they are shared */
	/* Of each client. Fewer than there can be: all is about these. */
	unsigned files;
	bool slow_reads; /* each takes long, and is of what is durable */
	bool interrupts; /* who waits is told to end, sometimes */
	/* One call in so many fails, for a while; 0: none does. */
	uint64_t errors, errors_kv;
	bool errors_syncs; /* of errors_kv: syncs alone fail */
	uint64_t disk_bytes; /* 0: it is never full */
	struct crash crash[CRASHES_MAX];
	unsigned crashes;
};

void plan_draw(struct plan *plan, uint64_t seed);
void plan_print(const struct plan *plan);

#endif
