/*
 * in_place.c - see in_place.h.
 *
 * A lease is asked for with no descriptor of ours open for writing, and while
 * in->turn keeps everybody from opening the file: a refusal then means a
 * mapping, or a handle whose release is still on its way. In doubt somebody is
 * left, which costs a copy or another drain, never bytes.
 */
#include "store/file/in_place.h"

#include <errno.h>

#include "store/base/lease.h"
#include "store/base/scope.h"
#include "store/file/file_private.h"
#include "store/space/image_copy.h"
#include "store/store.h"

uint64_t file_mapped_image_locked(const struct file *f)
{
	if (f->punch_image)
		return f->punch_image;
	if (f->content && f->content->c.native && f->content->c.extent_count)
		return f->content->c.extents[0].image;
	return 0;
}

/* The image that readers have, with a reference. -EMLINK: it is no image. */
static int image_of_readers(struct store *st, struct inode *in,
			    struct image **ret_image)
{
	struct file *f = in->file;
	struct image *i;
	uint64_t id;

	{
		HOLD(&in->lock);
		i = f->backing_image;
		if (f->backing_stage)
			i = f->backing_stage->image;
		id = file_mapped_image_locked(f);
		if (i) {
			image_ref(&st->images, i);
			*ret_image = i;
			return 0;
		}
		if (f->state.mode == IO_BACKED)
			return -EMLINK;
	}
	return id ? image_get(&st->images, id, ret_image) : -EMLINK;
}

/* s, whose bytes the readers have, is the file's stage from now on. */
static void install_taken(struct store *st, struct inode *in, struct stage *s,
			  uint64_t image)
{
	struct file *f = in->file;
	struct stage *old_stage = NULL;
	struct image *old_image = NULL;
	struct file_punch punch = { 0 };

	inode_ref(st->inodes, in, 1);
	{
		HOLD(&in->lock);
		file_install_locked(f, s, FILE_TAKEN);
		if (f->state.mode == IO_BACKED) {
			old_stage = f->backing_stage;
			old_image = TAKE(f->backing_image);
			f->backing_stage = stage_ref(s);
		}
		if (f->punch_image == image)
			punch = file_take_punch_locked(f);
	}
	stage_put(&st->stages, old_stage);
	image_put(&st->images, old_image);
	file_punch(st, punch);
}

int file_take_image(struct store *st, struct inode *in)
{
	struct image *from = NULL;
	struct stage *s;
	int rc = image_of_readers(st, in, &from);

	if (rc < 0)
		return rc;
	if (!image_opened_by(&st->images, from, in->ino))
		rc = -EMLINK;
	if (rc == 0)
		rc = stage_create(&st->stages, in->ino, 0, &s);
	if (rc < 0) {
		image_put(&st->images, from);
		return rc;
	}
	CHECK(s->kind == STAGE_DISK);
	rc = image_copy_make(&st->images, from);
	if (rc == 0) {
		HOLD(reclaim_deciding(st->reclaim));
		rc = image_copy_swap(&st->images, from, s->image);
	}
	if (rc < 0) {
		stage_drop(&st->stages, s);
	} else {
		image_unmap(&st->images, from); /* it is of the old inode */
		image_move_opened(&st->images, from, s->image);
		file_set_committed_time(st, in, s);
		install_taken(st, in, s, from->id);
	}
	image_put(&st->images, from);
	return rc;
}

/* --- who is left ---------------------------------------------------------- */

/* What the leases are asked of. */
struct left {
	struct stage *stage; /* a reference, or NULL */
	uint64_t image; /* 0: none */
	bool writers, mapped; /* what is to be asked */
};

/* false: there is nothing to be asked. */
static bool left_begin(struct inode *in, struct left *l)
{
	struct file *f;

	*l = (struct left){ 0 };
	HOLD(&in->lock);
	f = in->file;
	if (!f)
		return false;
	l->writers = f->state.left == LEFT_WRITERS && f->state.writers == 0;
	l->mapped = f->state.left != LEFT_NOBODY && f->state.opens == 0 &&
		    f->state.mode == IO_CLOSED;
	if (!l->writers && !l->mapped)
		return false;
	l->stage = stage_ref(f->stage);
	if (!l->stage)
		l->image = file_mapped_image_locked(f);
	return true;
}

/* Our own mapping of an image counts as well. */
static bool ask_image(struct store *st, struct image *i, enum lease what)
{
	bool yes = image_ask(&st->images, i, what) == 1;

	if (!yes && what == LEASE_NOBODY && image_unmap_idle(&st->images, i))
		yes = image_ask(&st->images, i, what) == 1;
	if (yes && what == LEASE_NOBODY)
		image_note_free(&st->images, i);
	return yes;
}

static bool granted(struct store *st, const struct left *l, enum lease what)
{
	struct image *i;
	bool yes;

	if (l->stage && l->stage->image)
		return ask_image(st, l->stage->image, what);
	if (l->stage)
		return stage_ask(&st->stages, l->stage, what) == 1;
	if (l->image == 0 || image_get(&st->images, l->image, &i) < 0)
		return true; /* nothing is there that could be mapped */
	yes = ask_image(st, i, what);
	image_put(&st->images, i);
	return yes;
}

void file_ask_left_turn(struct store *st, struct inode *in)
{
	struct file_punch punch = { 0 };
	struct file *f = in->file;
	bool nobody, none_writes;
	struct left l;

	if (!left_begin(in, &l))
		return;
	nobody = l.mapped && granted(st, &l, LEASE_NOBODY);
	none_writes = l.writers && (nobody || granted(st, &l, LEASE_NO_WRITER));
	{
		HOLD(&in->lock);
		if (f->stage != l.stage) /* it was about another one */
			nobody = none_writes = false;
		if (none_writes)
			file_move(&f->state, FILE_NO_WRITER_LEFT);
		if (nobody) {
			file_move(&f->state, FILE_NOBODY_LEFT);
			punch = file_take_punch_locked(f);
		}
	}
	stage_put(&st->stages, l.stage);
	file_punch(st, punch);
}

/* True when it has to be asked again. */
static bool ask_one(struct store *st, struct inode *in)
{
	bool left;

	{
		HOLD(&in->lock);
		if (!in->file || in->file->state.left != LEFT_WRITERS ||
		    in->file->state.writers > 0)
			return false;
	}
	/* Who has the turn may wait for us, in whose thread jobs are woken. */
	if (!lock_try(&in->turn))
		return true;
	file_ask_left_turn(st, in);
	lock_give(&in->turn);
	{
		HOLD(&in->lock);
		left = in->file->state.left == LEFT_WRITERS;
	}
	if (!left)
		drain_released(st->drain, in);
	return left;
}

bool files_ask_left(struct store *st)
{
	bool again = false;

	for (uint32_t i = 0; i < st->stages.slot_count; i++) {
		uint64_t ino = SLOT_GET(&st->stages.slots[i], ino);
		struct inode *in = NULL;

		if (ino != 0 && SLOT_GET(&st->stages.slots[i], dirty))
			in = inode_peek(st->inodes, ino);
		if (in && ask_one(st, in))
			again = true;
		inode_put(st->inodes, in, 1);
	}
	return again;
}
