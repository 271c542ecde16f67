/*
 * staged.c - a slot of the stage table against the records of its file, as
 * recover.c compares them.
 */
#include "store/check/staged.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

#include "store/db/kv.h"
#include "store/db/layout.h"
#include "store/db/records.h"
#include "store/space/slot_fate.h"
#include "store/space/stage_table.h"

static bool lies_in(const struct content *c, uint64_t image)
{
	for (size_t i = 0; i < c->extent_count; i++)
		if (c->extents[i].image == image)
			return true;
	return false;
}

/* 0: it is not there, or damaged. */
static int next_place(struct kv *kv, uint64_t *ret)
{
	int rc = u64_load(kv, key_meta(META_NEXT_PLACE), ret);

	if (rc < 0)
		*ret = 0;
	return rc == -ENOENT || rc == -EIO ? 0 : rc;
}

int staged_fate(struct kv *kv, const struct stage_table *t, size_t i)
{
	struct stage_slot copy = t->slots[i], *slot = &copy;
	struct slot_facts facts = { .next = 0 };
	enum slot_fate fate;
	struct attr a;
	struct content c;
	bool is_named;
	int rc = attr_load(kv, key_ino('A', slot->ino), &a);

	if (rc < 0)
		return rc == -ENOENT || rc == -EIO ? STAGED_DELETED : rc;
	is_named = a.nlink > 0 && S_ISREG(a.mode);
	attr_release(&a);
	if (!is_named)
		return STAGED_DELETED;
	rc = next_place(kv, &facts.next);
	if (rc < 0)
		return rc;
	if (facts.next > t->next_place)
		slot->version = 0;
	if (facts.next == 0)
		facts.next = PLACES_OF_A_MOUNT;
	rc = content_load(kv, key_ino('F', slot->ino), &c);
	if (rc < 0 && rc != -ENOENT && rc != -EIO)
		return rc;
	if (rc == 0) {
		facts.durable = c.generation;
		facts.is_image =
			slot->kind == STAGE_DISK && lies_in(&c, slot->number);
		content_release(&c);
	}
	fate = slot_fate(slot, &facts);
	return fate == SLOT_RESUMES || fate == SLOT_OPEN ? STAGED_TAKEN
							 : STAGED_CACHE;
}

const char *staged_where(const struct stage_slot *slot,
			 char buf[STAGED_WHERE_BYTES])
{
	char name[LAYOUT_IMAGE_NAME_BYTES];

	if (slot->kind == STAGE_DISK) {
		layout_image_name(slot->number, name);
		(void)snprintf(buf, STAGED_WHERE_BYTES, LAYOUT_IMAGE_DIR "/%s",
			       name);
	} else {
		(void)snprintf(buf, STAGED_WHERE_BYTES, "memory");
	}
	return buf;
}
