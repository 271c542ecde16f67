/*
 * image_opened.c - who has an image open or mapped past the daemon. Passthrough
 * gives a file's descriptor to the kernel, and its mappings outlive the close:
 * of this daemon's own opens is kept which inode had them (opened_by), and of
 * those of an earlier one nothing is known. In both cases a lease asks the
 * kernel before bytes go.
 */
#include "store/space/image.h"

#include <errno.h>

#include "store/base/lease.h"
#include "store/base/scope.h"

void images_end(struct images *im)
{
	HOLD(&im->lock);
	im->ending = true;
}

/* 1: nobody has it; 0: somebody may; else nobody can be asked. */
static int ask(struct images *im, struct image *i)
{
	int rc;

	(void)image_unmap_idle(im, i); /* our own mapping is no reason */
	rc = image_ask(im, i, LEASE_NOBODY);
	return rc == -EMFILE || rc == -ENFILE ? 0 : rc;
}

bool image_is_had(struct images *im, struct image *i)
{
	bool opened;
	int rc;

	{
		HOLD(&im->lock);
		opened = i->opened_by != 0;
	}
	/* It stays noted: its file may be another one's in this moment. */
	rc = opened ? ask(im, i) : 1;
	return rc != 1 && rc != -ENOENT;
}

bool image_is_left(struct images *im, struct image *i)
{
	uint8_t bit = (uint8_t)(1u << (i->id % 8));
	int rc;

	{
		HOLD(&im->lock);
		if (!im->ending && (i->id >= im->next_id_at_start ||
				    (i->id < im->free_of_old_end &&
				     (im->free_of_old[i->id / 8] & bit))))
			return false;
	}
	rc = ask(im, i);
	if (rc == 0)
		return true;
	HOLD(&im->lock);
	if (rc == 1 && i->id < im->free_of_old_end)
		im->free_of_old[i->id / 8] |= bit;
	return false; /* without leases nobody can be asked */
}

void image_note_free(struct images *im, struct image *i)
{
	HOLD(&im->lock);
	i->opened_by = 0;
}

void image_note_opened(struct images *im, struct image *i, uint64_t ino)
{
	bool first, left;

	if (!i)
		return;
	{
		HOLD(&im->lock);
		first = i->opened_by == 0;
	}
	/* Somebody may have it from before this start: of whatever file. */
	left = first && image_is_left(im, i);
	HOLD(&im->lock);
	if (i->opened_by != ino)
		i->opened_by =
			i->opened_by || left ? IMAGE_OPENED_BY_MANY : ino;
}

bool image_opened_by(struct images *im, struct image *i, uint64_t ino)
{
	HOLD(&im->lock);
	return i->opened_by == 0 || i->opened_by == ino;
}

void image_move_opened(struct images *im, struct image *from, struct image *to)
{
	HOLD(&im->lock);
	to->opened_by = from->opened_by;
	from->opened_by = 0;
}
