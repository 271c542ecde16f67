/*
 * slot.c - the one place that writes to a slot of the table of stages: see
 * slot.h. Where the order of two stores matters, a comment says why.
 */
#include "store/space/slot.h"

#ifndef SLOT_STORED /* a test looks at what a kill here would leave */
#define SLOT_STORED(slot) ((void)0)
#endif

#define STORE(slot, field, value)                                          \
	do {                                                               \
		__atomic_store_n(&(slot)->field, value, __ATOMIC_RELEASE); \
		SLOT_STORED(slot);                                         \
	} while (0)

void slot_make(struct stage_slot *slot, enum stage_kind kind, uint64_t number)
{
	STORE(slot, number, number);
	STORE(slot, close_order, 0);
	STORE(slot, version, 0);
	STORE(slot, old_generation, 0);
	STORE(slot, kind, kind);
	STORE(slot, dirty, 1);
	STORE(slot, earlier, 0);
	STORE(slot, unused, 0);
}

void slot_show(struct stage_slot *slot, uint64_t ino)
{
	STORE(slot, ino, ino);
}

void slot_free(struct stage_slot *slot)
{
	STORE(slot, ino, 0);
}

/* The place first: with the one before, it would be drained too early. */
void slot_closed(struct stage_slot *slot, uint64_t place, uint64_t version)
{
	STORE(slot, close_order, place);
	STORE(slot, version, version);
}

bool slot_changes(struct stage_slot *slot)
{
	STORE(slot, version, 0);
	if (SLOT_GET(slot, dirty))
		return false;
	STORE(slot, close_order, 0);
	STORE(slot, dirty, 1);
	return true;
}

void slot_stands(struct stage_slot *slot)
{
	STORE(slot, version, 0);
}

void slot_clean(struct stage_slot *slot, uint64_t version)
{
	STORE(slot, version, version);
	STORE(slot, dirty, 0);
}

void slot_replaced(struct stage_slot *slot, uint64_t version)
{
	STORE(slot, version, version);
	STORE(slot, earlier, 1);
}

void slot_over(struct stage_slot *slot)
{
	STORE(slot, dirty, 0);
}

void slot_copied(struct stage_slot *slot, const struct stage_slot *old)
{
	STORE(slot, earlier, SLOT_GET(old, earlier));
	STORE(slot, close_order, SLOT_GET(old, close_order));
}

void slot_found(struct stage_slot *slot, uint64_t place, uint64_t version)
{
	STORE(slot, version, version);
	STORE(slot, close_order, place);
}

void slot_adopted(struct stage_slot *slot, bool dirty)
{
	STORE(slot, dirty, dirty);
}
