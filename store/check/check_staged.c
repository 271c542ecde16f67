/*
 * check_staged.c - the part of the check that tells of files that a daemon was
 * about to make durable when it ended. They are no problem: the next mount
 * takes them over, unless the machine is started anew before that.
 */
#include "store/check/check_work.h"
#include "store/check/staged.h"
#include "store/space/stage_table.h"

static int check_slot(struct check *c, const struct stage_table *t, size_t i)
{
	const struct stage_slot *slot = &t->slots[i];
	char where[STAGED_WHERE_BYTES];
	int fate = staged_fate(c->kv, t, i);

	if (fate < 0)
		return check_database_failed(c, fate);
	(void)staged_where(slot, where);
	if (fate == STAGED_TAKEN) {
		const char *path = check_path(c, slot->ino);

		check_remark(c, "staged", path,
			     "%s: was not durable yet when its daemon ended; "
			     "the bytes are in %s, and the next mount makes "
			     "them durable",
			     path, where);
	} else if (slot->kind == STAGE_DISK && fate == STAGED_DELETED &&
		   !check_find_image(c, slot->number)) {
		check_remark(c, "leftover", where,
			     "%s: was staged for a file that has no name any "
			     "more; the next mount removes it",
			     where);
	}
	return 0;
}

int check_staged(struct check *c)
{
	const struct stage_table *t = c->options->staged;
	int rc = 0;

	for (size_t i = 0; t && rc == 0 && i < t->count; i++)
		rc = check_slot(c, t, i);
	return rc;
}
