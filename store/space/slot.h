/*
 * slot.h - what the table of stages says of one stage, to the next daemon of
 * this boot. It says so at each instant: who is killed between two stores of
 * slot.c leaves a slot of which slot_fate.h makes the right thing. So nobody
 * else writes to one.
 *
 * A slot is read by scans while it is written: field by field, so that a reader
 * sees an old or a new value and never half of one. What a scan finds is a
 * hint; it looks again under the inode's lock.
 *
 * Locks: slot_changes() is called with inode.changing, what the drain calls
 * with inode.lock. So two may write at once: one sets the version to 0, the
 * other to a number that is greater than any durable one. Either value is safe.
 */
#ifndef STORE_SLOT_H
#define STORE_SLOT_H

#include <stdbool.h>
#include <stdint.h>

enum stage_kind {
	STAGE_MEMORY = 1,
	STAGE_DISK = 2,
};

/* Shared with the next daemon: fixed layout. */
struct stage_slot {
	uint64_t ino; /* 0: free, and nothing else counts */
	uint64_t number; /* of the file in memory, or of the image */
	uint64_t close_order; /* the place of its last close; 0: none */
	uint64_t old_generation; /* an older ckptfs's: see slot_fate.c */
	uint32_t kind; /* enum stage_kind */
	uint32_t dirty; /* may differ from what is committed */
	uint32_t unused_opens, unused_writers;
	/*
	 * Closed, then replaced by another of the same ino. It has a version,
	 * also when who has it from an earlier connection still writes to it.
	 */
	uint32_t earlier;
	uint32_t unused;
	/*
	 * The number of the version that was closed with these bytes. Whenever
	 * they may be others it is 0, or greater than any number that is on its
	 * way to the database, or there.
	 */
	uint64_t version;
};
_Static_assert(sizeof(struct stage_slot) == 64, "as in every ckptfs");

#define SLOT_GET(slot, field) __atomic_load_n(&(slot)->field, __ATOMIC_ACQUIRE)

/* Of a stage that is nobody's yet: dirty, and not closed. It is free still. */
void slot_make(struct stage_slot *slot, enum stage_kind kind, uint64_t number);
/* It counts from now on, and is ino's; it does not any more. */
void slot_show(struct stage_slot *slot, uint64_t ino);
void slot_free(struct stage_slot *slot);

/* Its file was closed. place 0: it is never to be durable as it is. */
void slot_closed(struct stage_slot *slot, uint64_t place, uint64_t version);
/* Its bytes are about to be changed. True: they were durable until now. */
bool slot_changes(struct stage_slot *slot);
/* What it holds is about to be durable, and may be changed before that is. */
void slot_stands(struct stage_slot *slot);
/* What it holds is durable, as this version. */
void slot_clean(struct stage_slot *slot, uint64_t version);
/* Its file has another stage. This version is to be durable all the same ... */
void slot_replaced(struct stage_slot *slot, uint64_t version);
/* ... or not any more: newer bytes may be committed. */
void slot_over(struct stage_slot *slot);
/*
 * The copy has the place, and whether it was replaced, but no version: somebody
 * may still write to `old`.
 */
void slot_copied(struct stage_slot *slot, const struct stage_slot *old);
/* The next daemon has found it, and made this of it. */
void slot_found(struct stage_slot *slot, uint64_t place, uint64_t version);
void slot_adopted(struct stage_slot *slot, bool dirty);

#endif
