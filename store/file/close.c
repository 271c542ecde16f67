/*
 * close.c - how a file is let go of: by handles, by the kernel's look-ups, by a
 * kernel that is gone, by its last name.
 *
 * Each of them may be the last. The last handle ends the mode, and what that
 * kept back happens (mode_ended()); the last writer lets the drain begin;
 * without a name, a handle and a look-up the inode and its bytes go.
 */
#include <errno.h>
#include <fcntl.h>

#include "store/base/scope.h"
#include "store/drain/commit.h"
#include "store/drain/drain.h"
#include "store/file/file_private.h"
#include "store/space/held.h"

/* What a mode that has ended had. */
struct ended_mode {
	bool ended; /* false: somebody has the file open, or is at work */
	bool has_left; /* it is to be asked who is left */
	int backing_id;
	struct stage *stage;
	struct image *image;
};

/* The mode ends, if nobody has the file any more. Both locks are held. */
static void end_mode_locked(struct files *fs, struct file *f,
			    struct ended_mode *ret)
{
	*ret = (struct ended_mode){ .ended = file_may_move(&f->state,
							   FILE_CLOSED) };
	if (!ret->ended)
		return;
	file_move(&f->state, FILE_CLOSED);
	ret->backing_id = f->backing_id;
	f->backing_id = 0;
	ret->stage = TAKE(f->backing_stage);
	ret->image = TAKE(f->backing_image);
	if (f->stage && !file_is_dirty(f))
		stage_touch(fs->stages, f->stage);
	ret->has_left = file_has_left_locked(f);
}

/*
 * What the mode kept back happens, unless somebody has the file mapped.
 * in->changing is held.
 */
static void mode_ended(struct files *fs, struct inode *in,
		       const struct ended_mode *m)
{
	struct file_punch punch = { 0 };
	struct file *f = in->file;
	struct stage *drop = NULL;

	if (!m->ended)
		return;
	if (m->backing_id > 0 && fs->kernel.backing_close)
		fs->kernel.backing_close(fs->kernel.arg, m->backing_id);
	stage_put(fs->stages, m->stage);
	image_put(fs->images, m->image);
	if (m->has_left)
		file_ask_left(fs, in);
	{
		HOLD(&in->lock);
		if (f->state.left == LEFT_NOBODY)
			punch = file_take_punch_locked(f);
		drop = file_end_locked(fs, f, END_CLOSED);
		if (f->stage && !file_is_dirty(f))
			stage_list(fs->stages, f->stage);
	}
	file_drop_stage(fs, in, drop);
	file_punch(fs, punch);
}

void file_change_end(struct files *fs, struct inode *in)
{
	struct ended_mode m;
	bool idle;

	{
		HOLD(&in->lock);
		file_move(&in->file->state, FILE_ENDED);
		end_mode_locked(fs, in->file, &m);
		idle = in->file->state.changing == 0 &&
		       in->file->state.writers == 0 &&
		       file_is_dirty(in->file) && in->attr.nlink > 0;
	}
	mode_ended(fs, in, &m);
	if (idle)
		drain_released(fs->drain, in);
}

void file_release(struct files *fs, struct inode *in, int flags)
{
	bool write = file_flags_write(flags);
	struct stage *stage = NULL;
	struct file *f = in->file;
	bool last_writer, last, gone;
	struct ended_mode m;

	{
		HOLD(&in->changing);
		{
			HOLD(&in->lock);
			file_move(&f->state,
				  write ? FILE_RELEASED_WRITER : FILE_RELEASED);
			end_mode_locked(fs, f, &m);
			if (write)
				f->flushed_ns = 0;
			last = f->state.opens == 0;
			last_writer = write && f->state.writers == 0;
			if (last)
				f->read_by_owner = false;
			gone = in->attr.nlink == 0;
			if (last || last_writer)
				stage = stage_ref(f->stage);
		}
		/* What nobody has open is not to be kept open by us. */
		if (stage)
			stage_fd_forget(fs->stages, stage, last);
		stage_put(fs->stages, stage);
		if (last_writer && !m.ended) /* else mode_ended() asks */
			file_ask_left(fs, in);
		mode_ended(fs, in, &m);
	}
	if (gone)
		file_unlinked(fs, in);
	else if (last_writer)
		drain_released(fs->drain, in);
}

void file_read_by_owner(struct inode *in)
{
	HOLD(&in->lock);
	in->file->read_by_owner = in->file->state.opens > 0;
}

/* Is it to be made durable? */
static bool is_staged(struct inode *in)
{
	HOLD(&in->lock);
	return file_is_dirty(in->file) && in->attr.nlink > 0;
}

int file_flush(struct files *fs, struct inode *in, int flags)
{
	int rc;

	if (!file_flags_write(flags))
		return 0;
	rc = drain_closed(fs->drain, in);
	if (rc == 0 && (fs->durable_close || !stages_have_room(fs->stages)) &&
	    is_staged(in))
		rc = file_sync(fs, in);
	return rc;
}

int file_sync(struct files *fs, struct inode *in)
{
	int rc;

	{
		HOLD(&in->lock);
		if (in->file)
			in->file->unsynced = false;
	}
	rc = drain_sync(fs->drain, in);
	if (rc < 0 && rc != -EINTR) {
		HOLD(&in->lock);
		if (in->file)
			in->file->error_told = true;
	}
	return rc;
}

void file_forgotten(struct files *fs, struct inode *in)
{
	struct file_punch punch = { 0 };
	struct stage *gone = NULL;
	bool written = false, unlinked;
	struct file *f;

	{
		HOLD(&in->lock);
		f = in->file;
		/* Who takes its last name later asks for himself. */
		unlinked = in->attr.nlink == 0;
		/* Looked up again meanwhile: it may be mapped again, too. */
		if (inode_lookups(fs->inodes, in) == 0 && f &&
		    f->state.opens == 0 && f->state.changing == 0) {
			written = f->state.left == LEFT_WRITERS;
			file_move(&f->state, FILE_NOBODY_LEFT);
			punch = file_take_punch_locked(f);
			gone = file_end_locked(fs, f, END_FORGOTTEN);
		}
	}
	file_drop_stage(fs, in, gone);
	file_punch(fs, punch);
	if (written) /* what came through a mapping after the last close */
		drain_released(fs->drain, in);
	if (unlinked)
		file_unlinked(fs, in);
}

/*
 * Somebody may go on writing to the file's stage, in passthrough: as long as he
 * does, what is there becomes durable as it stands, and the stage stays for the
 * next start.
 */
static void ask_who_writes(struct files *fs, struct inode *in)
{
	struct stage *stage = NULL;
	bool held;

	{
		HOLD(&in->lock);
		if (in->file->state.left == LEFT_WRITERS)
			stage = stage_ref(in->file->stage);
	}
	held = stage && held_for_writing(fs->stages, stage);
	stage_put(fs->stages, stage);
	if (held)
		return;
	HOLD(&in->lock);
	file_move(&in->file->state, FILE_NO_WRITER_LEFT);
}

static void file_abandoned(struct files *fs, struct inode *in)
{
	bool open, unlinked;
	uint64_t lookups;
	struct file *f;

	{
		HOLD(&in->lock);
		f = in->file;
		if (!f)
			return;
		unlinked = in->attr.nlink == 0;
		open = f->state.opens > 0;
		file_move(&f->state, FILE_ABANDONED);
		f->read_by_owner = false;
	}
	if (open) {
		struct ended_mode m;

		HOLD(&in->changing);
		{
			HOLD(&in->lock);
			end_mode_locked(fs, f, &m);
		}
		mode_ended(fs, in, &m);
	}
	ask_who_writes(fs, in);
	if (!unlinked)
		return;
	lookups = inode_lookups(fs->inodes, in);
	inode_forget(fs->inodes, in, lookups);
	file_unlinked(fs, in);
	inode_put(fs->inodes, in, lookups);
}

void files_abandoned(struct files *fs)
{
	images_end(fs->images);
	for (uint32_t i = 0; i < fs->stages->slot_count; i++) {
		struct inode *in =
			inode_of_slot(fs->inodes, &fs->stages->slots[i]);

		if (in)
			file_abandoned(fs, in);
		inode_put(fs->inodes, in, 1);
	}
}

void file_unlinked(struct files *fs, struct inode *in)
{
	bool known = inode_lookups(fs->inodes, in) > 0;
	struct stage *stage = NULL;
	bool gone;

	{
		HOLD(&in->lock);
		gone = in->attr.nlink == 0 && !known && !in->deleted &&
		       (!in->file ||
			file_may_move(&in->file->state, FILE_DELETED));
		if (gone) {
			in->deleted = true;
			if (in->file) {
				file_move(&in->file->state, FILE_DELETED);
				stage = TAKE(in->file->stage);
			}
		}
	}
	if (!gone)
		return;
	drain_cancel(fs->drain, in);
	file_drop_stage(fs, in, stage);
	(void)commit_delete(fs->drain,
			    in->ino); /* else the next start does it */
}
