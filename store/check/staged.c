/*
 * staged.c - a slot of the stage table against the records of its file, as
 * adopt_one() of recover.c compares them.
 */
#include "store/check/staged.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

#include "store/db/kv.h"
#include "store/db/layout.h"
#include "store/db/records.h"
#include "store/space/stage_table.h"

static bool lies_in(const struct content *c, uint64_t image)
{
	for (size_t i = 0; i < c->extent_count; i++)
		if (c->extents[i].image == image)
			return true;
	return false;
}

static enum staged_fate fate_beside(const struct content *c,
				    const struct stage_slot *slot)
{
	/* Its file had let go of it, and something newer is committed. */
	if (!slot->dirty && c->generation > slot->clean_generation)
		return STAGED_CACHE;
	if (slot->kind == STAGE_DISK) /* it was committed just before the end */
		return lies_in(c, slot->number) ? STAGED_CACHE : STAGED_TAKEN;
	return slot->dirty || slot->clean_generation != c->generation
		       ? STAGED_TAKEN
		       : STAGED_CACHE;
}

int staged_fate(struct kv *kv, const struct stage_slot *slot)
{
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
	if (slot->earlier && !slot->dirty)
		return STAGED_CACHE; /* what superseded it is staged, too */
	rc = content_load(kv, key_ino('F', slot->ino), &c);
	if (rc < 0)
		return rc == -ENOENT || rc == -EIO ? STAGED_TAKEN : rc;
	rc = (int)fate_beside(&c, slot);
	content_release(&c);
	return rc;
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
