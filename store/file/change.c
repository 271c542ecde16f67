/*
 * change.c - how a change of what a file holds begins, and what it waits for.
 *
 * file_begin() asks file_step() whether the bytes may be changed, and does what
 * is first: waits for the drain, makes the file durable, lets a cache go, turns
 * the image that readers have into the stage, gives the name to a fresh inode.
 * From then until file_change_end() the file counts as open for writing, and
 * the caller has in->changing.
 */
#include <errno.h>

#include "store/base/scope.h"
#include "store/drain/drain.h"
#include "store/file/file_private.h"
#include "store/names/names.h"
#include "store/space/held.h"

/* Wait for what `step` needs before it can be looked at again. */
static int begin_wait(struct files *fs, struct inode *in, enum file_step step)
{
	int rc = 0;

	if (step == STEP_WAIT) {
		rc = drain_wait_taken(fs->drain, in);
	} else if (step == STEP_SYNC && inode_attr(in).nlink == 0) {
		rc = -ESTALE; /* what has no name does not become durable */
	} else if (step == STEP_SYNC) {
		/* In its place; who commits it has perhaps not asked for one */
		rc = drain_closed(fs->drain, in, true);
		if (rc == 0)
			rc = drain_wait_closed(fs->drain, in);
	} else if (step == STEP_GIVE_UP) {
		struct stage *gone;

		{
			HOLD(&in->lock);
			gone = file_end_locked(fs, in->file, END_EVICTED);
		}
		file_drop_stage(fs, in, gone);
	} else { /* only what is committed goes with the name, or is kept */
		rc = drain_wait_closed(fs->drain, in);
	}
	return rc;
}

/* Between the looks of one file_begin(). */
struct beginning {
	enum file_wish wish;
	enum file_way way;
	unsigned facts;
	bool looked; /* whether the name keeps its inode */
	bool may_move; /* it keeps it for its size alone */
	bool waited; /* for what was closed */
	enum file_step step;
};

/* What is first; what is drained of the bytes that will change is stopped. */
static enum file_step step_locked(struct files *fs, struct inode *in,
				  const struct beginning *b)
{
	struct file *f = in->file;
	unsigned facts = b->facts;
	enum file_step step;

	if (file_mapped_image_locked(f))
		facts |= WISH_HAS_IMAGE;
	if (in->attr.nlink == 0)
		facts |= WISH_KEEPS_INODE;
	if (b->way == FILE_BY_WRITER)
		facts |= WISH_HAS_HANDLE;
	step = file_step(&f->state, b->wish, facts);
	if (step == STEP_WAIT && drain_reopen(fs->drain, f))
		step = file_step(&f->state, b->wish, facts);
	/* A look-up changes nothing, and whose bytes may change is stopped. */
	if (step == STEP_OK && f->stage && b->way != FILE_BY_LOOKUP &&
	    !file_may_change(f) && !drain_reopen(fs->drain, f))
		step = STEP_WAIT;
	return step;
}

/* 0: it has begun. 1: look whether it keeps its inode. 2: wait. */
static int begin_locked(struct files *fs, struct inode *in, struct beginning *b)
{
	struct file *f = in->file;
	bool sealed = f->stage && f->stage->sealed;

	b->step = step_locked(fs, in, b);
	if (b->wish == WISH_EMPTY && b->step == STEP_RENUMBER && !b->looked &&
	    !sealed)
		return 1;
	if (b->step == STEP_WAIT || b->step == STEP_SYNC ||
	    b->step == STEP_GIVE_UP)
		return 2;
	if (!b->waited && (b->step == STEP_RENUMBER ||
			   (b->wish == WISH_EMPTY && b->step == STEP_OK &&
			    file_is_read(&f->state))))
		return 2;
	if (b->step == STEP_STALE)
		return 0;
	file_move(&f->state, FILE_BEGUN);
	file_move(&f->state, FILE_WRITER_CAME);
	f->changes++;
	return 0;
}

/* Its names go to a fresh inode: -ESTALE, or why they do not. */
static int renumber(struct files *fs, struct inode *in, enum file_wish wish,
		    enum file_way way)
{
	int rc = 0;

	if (way == FILE_BY_ANY)
		return -ESTALE;
	if (way != FILE_BY_NAME && way != FILE_BY_LOOKUP)
		return -EBUSY;
	/* What would fail for the fresh one fails before there is one. */
	if (wish != WISH_REPLACE)
		rc = file_try_stage(fs, in);
	if (rc == 0)
		rc = names_renumber(fs->names, in);
	if (rc < 0)
		return rc;
	HOLD(&in->lock);
	file_move(&in->file->state, FILE_NAME_MOVED);
	return -ESTALE;
}

/*
 * Who has the stage from an earlier connection keeps it as it is: the file goes
 * on in a copy. What was closed is drained from the old one, in its place.
 */
static int leave_to_readers(struct files *fs, struct inode *in)
{
	struct stage *old, *fresh;
	int rc = 0;

	{
		HOLD(&in->lock);
		old = stage_ref(in->file->stage);
	}
	if (old && held_is_left(fs->stages, old)) {
		rc = held_copy(fs->stages, old, &fresh);
		if (rc == 0) {
			stage_show(fresh);
			stage_own(fs->stages, fresh, inode_attr(in).uid);
			file_replace_stage(fs, in, fresh);
		}
	}
	stage_put(fs->stages, old);
	return rc;
}

/*
 * A look-up copies no image, for its folder is locked: whoever it is for was
 * told that there is no room for the copy, or that another reader has the
 * image.
 */
static int take_image(struct files *fs, struct inode *in,
		      const struct beginning *b)
{
	if (b->way != FILE_BY_LOOKUP)
		return file_take_image(fs, in);
	return b->may_move || file_shares_image(fs, in) ? -EMLINK : 0;
}

/*
 * Whether O_TRUNC must, or had better, leave the name its inode: a log is seen
 * by who follows it; a checkpoint is not torn under a reader.
 */
static void look(struct files *fs, struct inode *in, enum file_way way,
		 struct beginning *b)
{
	uint64_t size = 0;
	struct stat sb;
	bool must = true;

	if (inode_stat(fs->inodes, in, &sb) == 0) {
		size = (uint64_t)sb.st_size;
		must = way == FILE_BY_HANDLE || size <= SMALL_BYTES_MAX ||
		       (fs->kernel.is_locked &&
			fs->kernel.is_locked(fs->kernel.arg, in->ino));
	}
	b->looked = true;
	b->may_move = !must && size <= fs->empty_in_place_bytes;
	b->facts = must || b->may_move ? WISH_KEEPS_INODE : 0;
}

int file_begin(struct files *fs, struct inode *in, enum file_wish wish,
	       enum file_way way, enum file_step *ret_step)
{
	struct beginning b = { .wish = wish, .way = way };
	int what, rc = 0;

	do {
		{
			HOLD(&in->lock);
			what = begin_locked(fs, in, &b);
		}
		if (what == 1) {
			look(fs, in, way, &b);
		} else if (what == 2) {
			rc = begin_wait(fs, in, b.step);
			b.waited = b.waited || b.step == STEP_RENUMBER ||
				   b.step == STEP_OK;
		}
		if (rc < 0)
			return rc;
	} while (what != 0);
	if (b.step == STEP_STALE)
		return -ESTALE;
	if (b.step == STEP_OK)
		rc = leave_to_readers(fs, in);
	if (b.step == STEP_TAKE_IMAGE)
		rc = take_image(fs, in, &b);
	/* Nobody else has its image, and there is room for the copy. */
	if (rc == -EMLINK || (rc == -ENOSPC && b.may_move))
		b.step = STEP_RENUMBER;
	if (b.step == STEP_RENUMBER)
		rc = renumber(fs, in, wish, way);
	if (rc < 0)
		file_change_end(fs, in);
	*ret_step = b.step;
	return rc;
}
