/* closure_check.h - a check that is under way; for closure*.c alone. */
#ifndef STORE_STEP_CLOSURE_CHECK_H
#define STORE_STEP_CLOSURE_CHECK_H

#include "store/formats/dcp.h"
#include "store/step/closure.h"

/* For printf's %llu. */
typedef unsigned long long ull;

struct check {
	const struct dcp *d;
	const struct closure_file *files;
	size_t file_count;
	const struct closure_file **by_name; /* owned */
	bool *named; /* owned; whether d->files has that of by_name */
	const struct closure_file **found; /* owned; of d->files, or NULL */
	uint32_t *order; /* owned; room for all entries, and all chunks */
	struct span *spans; /* owned; of order that are still to be cut */
	uint64_t work_left;
	struct closure result;
};

struct span {
	uint32_t lo, hi;
};

/* A finding; more than are kept are counted. -ENOMEM. */
int closure_find(struct check *k, enum closure_kind kind, const char *item,
		 const char *file, const char *format, ...)
	__attribute__((format(printf, 5, 6)));
/* The chunks of each tensor, compared with each other. -ENOMEM. */
int closure_check_items(struct check *k);

#endif
