/*
 * slot_fate.h - what becomes of a stage that a daemon left, when the next one
 * finds it in the table: recover.c does it, fsck says it before.
 *
 * A stage holds one version of its file, and the file's record says which one
 * is durable. What has a number that is not greater is over: its bytes are
 * durable, or newer ones are. Everything else is to become durable: what was
 * closed in the place that it had, also when somebody has changed it since;
 * what was not, after all that. So nothing older comes back over what is
 * durable, and nothing newer is given up. (An older ckptfs left slots without a
 * version: of these, what was dirty is dirty.)
 *
 * Pure: no I/O, no lock, no memory of its own.
 */
#ifndef STORE_SLOT_FATE_H
#define STORE_SLOT_FATE_H

#include <stdbool.h>
#include <stdint.h>

struct stage_slot;

enum slot_fate {
	SLOT_GOES,
	SLOT_CACHE, /* it has what is durable, and may stay for who reads */
	SLOT_RESUMES, /* was closed: it has its place again */
	SLOT_OPEN, /* was open: it is closed last, after the guard's look */
	SLOT_FATE_COUNT,
};

/* What is known of the slot's file, and of the store. */
struct slot_facts {
	uint64_t durable; /* the number of what is durable; 0: nothing is */
	/* No version has this number, or a greater one: else it is damaged. */
	uint64_t next;
	bool is_image; /* what is durable lies in the stage's own image */
};

/* Also of a slot of an older ckptfs, which says no version. */
enum slot_fate slot_fate(const struct stage_slot *slot,
			 const struct slot_facts *facts);

#endif
