/*
 * slot_fate.c - what becomes of a stage that a daemon left: see slot_fate.h.
 * The one place that reads what an older ckptfs wrote to a slot.
 */
#include "store/space/slot_fate.h"

#include "store/space/slot.h"

/* 0: what it holds is no version that was closed. */
static uint64_t version_of(const struct stage_slot *slot)
{
	/* An older ckptfs said it of caches alone. */
	if (slot->version == 0 && !slot->dirty)
		return slot->old_generation;
	return slot->version;
}

enum slot_fate slot_fate(const struct stage_slot *slot,
			 const struct slot_facts *facts)
{
	uint64_t version = version_of(slot);
	/* What the store does not know is kept. */
	bool known = version != 0 && version < facts->next &&
		     facts->durable < facts->next;

	if (facts->is_image || (slot->earlier && !slot->dirty))
		return SLOT_GOES;
	/* It was a cache, of what is durable or of something older. */
	if (version == 0 && !slot->dirty && facts->durable != 0)
		return SLOT_GOES;
	if (known && version <= facts->durable)
		return version == facts->durable && !slot->earlier &&
				       slot->kind == STAGE_MEMORY
			       ? SLOT_CACHE
			       : SLOT_GOES;
	return slot->earlier || slot->close_order != 0 ? SLOT_RESUMES
						       : SLOT_OPEN;
}
