/* held.c - see held.h. */
#include "store/space/held.h"

#include <sys/stat.h>

#include "store/space/stage.h"

void held_keep(struct stages *st, struct stage *s)
{
	s->unseen_reader = true;
	if (s->kind == STAGE_DISK)
		image_note_opened(st->images, s->image, IMAGE_OPENED_BY_MANY);
}

bool held_for_writing(struct stages *st, struct stage *s)
{
	stage_fd_forget(st, s, true);
	return stage_ask(st, s, LEASE_NO_WRITER) != 1;
}

bool held_is_left(struct stages *st, struct stage *s)
{
	if (!s->unseen_reader)
		return false;
	stage_fd_forget(st, s, true);
	s->unseen_reader = stage_ask(st, s, LEASE_NOBODY) != 1;
	return s->unseen_reader;
}

int held_copy(struct stages *st, const struct stage *old,
	      struct stage **ret_fresh)
{
	struct stage *fresh;
	struct stat sb;
	int rc = stage_stat(st, old, &sb);

	if (rc == 0)
		rc = stage_create(
			st, old->ino, 0,
			old->kind == STAGE_MEMORY ? (uint64_t)sb.st_size : 0,
			&fresh);
	if (rc < 0)
		return rc;
	rc = stage_copy(st, old, fresh);
	if (rc < 0)
		stage_drop(st, fresh);
	else
		*ret_fresh = fresh;
	return rc;
}

int held_replace(struct stages *st, struct stage **stage)
{
	struct stage *old = *stage, *fresh;
	int rc = held_copy(st, old, &fresh);

	if (rc < 0)
		return rc;
	slot_copied(fresh->slot, old->slot);
	stage_show(fresh);
	held_keep(st, old);
	stage_drop(st, old);
	*stage = fresh;
	return 0;
}
