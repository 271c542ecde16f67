/*
 * change.c - how a change of what a file holds begins, and what it waits for.
 *
 * file_begin() asks file_step() whether the bytes may be changed, and does what
 * is first: stops the drain, or waits for the committer, makes the file
 * durable, lets a cache go, turns the image that readers have into the stage,
 * gives the name to a fresh inode. From then until file_change_end() the file
 * counts as open for writing, and the caller has in->changing.
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
	struct stage *gone;
	int rc;

	if (step == STEP_WAIT)
		return drain_wait_taken(fs->drain, in);
	if (step == STEP_SYNC) {
		/* What has no name does not become durable. */
		if (inode_attr(in).nlink == 0)
			return -ESTALE;
		/* In its place; who commits it has perhaps not asked for one */
		rc = drain_closed(fs->drain, in);
		return rc < 0 ? rc : drain_wait_closed(fs->drain, in);
	}
	{
		HOLD(&in->lock);
		gone = file_end_locked(fs, in->file, END_EVICTED);
	}
	file_drop_stage(fs, in, gone);
	return 0;
}

/* Between the looks of one file_begin(). */
struct beginning {
	enum file_wish wish;
	enum file_way way;
	unsigned facts;
	bool looked; /* whether the name keeps its inode */
	bool may_move; /* it keeps it for its size alone */
	bool waited; /* for what was closed */
	bool asked; /* who is left */
	/*
	 * Somebody has the stage from an earlier connection: it stays as it is,
	 * and the file goes on in a copy.
	 */
	bool leaves;
	enum file_step step;
};

/* What begin_locked() found. */
enum beginning_next {
	NEXT_BEGUN,
	NEXT_ASK, /* who is left */
	NEXT_LOOK, /* whether it keeps its inode */
	NEXT_WAIT, /* for the step */
	NEXT_WAIT_CLOSED, /* until what was closed of it is durable */
};

static enum file_step step_locked(struct inode *in, const struct beginning *b)
{
	unsigned facts = b->facts;

	if (file_mapped_image_locked(in->file))
		facts |= WISH_HAS_IMAGE;
	if (in->attr.nlink == 0)
		facts |= WISH_KEEPS_INODE;
	if (b->way == FILE_BY_WRITER)
		facts |= WISH_HAS_HANDLE;
	return file_step(&in->file->state, b->wish, facts);
}

/*
 * What is drained of the stage as it was closed is stopped, if its bytes are
 * about to change. Who could change them already has stopped it. STEP_WAIT: the
 * committer has it.
 */
static enum file_step stop_locked(struct files *fs, struct inode *in,
				  const struct beginning *b)
{
	struct file *f = in->file;
	bool frozen = b->step == STEP_WAIT;

	if (!f->stage || (b->step != STEP_OK && !frozen))
		return b->step;
	if (!frozen &&
	    (b->leaves || b->way == FILE_BY_LOOKUP || file_may_change(f)))
		return STEP_OK;
	if (!drain_reopen(fs->drain, f))
		return STEP_WAIT;
	return frozen ? step_locked(in, b) : STEP_OK;
}

static enum beginning_next begin_locked(struct files *fs, struct inode *in,
					struct beginning *b)
{
	struct file *f = in->file;
	bool sealed = f->stage && f->stage->sealed;

	if (!b->asked &&
	    (file_has_left_locked(f) || (f->stage && f->stage->unseen_reader)))
		return NEXT_ASK;
	b->step = step_locked(in, b);
	if (b->wish == WISH_EMPTY && b->step == STEP_RENUMBER && !b->looked &&
	    !sealed)
		return NEXT_LOOK;
	/* Only what is committed goes with the name, or is kept. */
	if (!b->waited && (b->step == STEP_RENUMBER ||
			   (b->wish == WISH_EMPTY &&
			    (b->step == STEP_OK || b->step == STEP_WAIT) &&
			    file_is_read(&f->state))))
		return NEXT_WAIT_CLOSED;
	b->step = stop_locked(fs, in, b);
	if (b->step == STEP_WAIT || b->step == STEP_SYNC ||
	    b->step == STEP_GIVE_UP)
		return NEXT_WAIT;
	if (b->step == STEP_STALE)
		return NEXT_BEGUN;
	file_move(&f->state, FILE_BEGUN);
	file_move(&f->state, FILE_WRITER_CAME);
	f->changes++;
	return NEXT_BEGUN;
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

/* Has somebody the file's stage from an earlier connection? */
static bool is_left(struct files *fs, struct inode *in)
{
	struct stage *s = NULL;
	bool left;

	{
		HOLD(&in->lock);
		if (in->file->stage && in->file->stage->unseen_reader)
			s = stage_ref(in->file->stage);
	}
	left = s && held_is_left(fs->stages, s);
	stage_put(fs->stages, s);
	return left;
}

/*
 * He keeps it as it is: the file goes on in a copy. What was closed is drained
 * from the old one, in its place.
 */
static int leave_to_readers(struct files *fs, struct inode *in)
{
	struct stage *old, *fresh;
	int rc = 0;

	{
		HOLD(&in->lock);
		old = stage_ref(in->file->stage);
	}
	if (old && old->unseen_reader) { /* else it is another one by now */
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
	enum beginning_next next;
	int rc = 0;

	do {
		{
			HOLD(&in->lock);
			next = begin_locked(fs, in, &b);
		}
		if (next == NEXT_ASK) {
			file_ask_left(fs, in);
			b.leaves = is_left(fs, in);
			b.asked = true;
		} else if (next == NEXT_LOOK) {
			look(fs, in, way, &b);
		} else if (next == NEXT_WAIT_CLOSED) {
			rc = drain_wait_closed(fs->drain, in);
			b.waited = true;
		} else if (next == NEXT_WAIT) {
			rc = begin_wait(fs, in, b.step);
		}
		if (rc < 0)
			return rc;
	} while (next != NEXT_BEGUN);
	if (b.step == STEP_STALE)
		return -ESTALE;
	if (b.step == STEP_OK && b.leaves)
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
