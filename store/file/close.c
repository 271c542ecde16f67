/*
 * close.c - how a file is let go of: by handles, by the kernel's look-ups, by a
 * kernel that is gone, by its last name.
 *
 * Each of them may be the last. The last handle ends the mode, and what that
 * kept back happens (close_backing()); the last writer lets the drain begin;
 * without a name, a handle and a look-up the inode and its bytes go.
 */
#include <errno.h>
#include <fcntl.h>

#include "store/base/scope.h"
#include "store/drain/commit.h"
#include "store/drain/drain.h"
#include "store/file/file_private.h"
#include "store/space/held.h"

/*
 * After the last release: the mode ends, and what it kept back happens, unless
 * somebody has it mapped. in->changing is held.
 */
static void close_backing(struct files *fs, struct inode *in)
{
	struct stage *stage, *drop = NULL;
	struct file *f = in->file;
	struct image *image;
	struct file_punch punch = { 0 };
	int id;

	{
		HOLD(&in->lock);
		if (!file_may_move(&f->state, FILE_CLOSED))
			return;
		file_move(&f->state, FILE_CLOSED);
		id = f->backing_id;
		f->backing_id = 0;
		stage = TAKE(f->backing_stage);
		if (f->stage)
			stage_touch(fs->stages, f->stage);
		image = TAKE(f->backing_image);
	}
	if (id > 0 && fs->kernel.backing_close)
		fs->kernel.backing_close(fs->kernel.arg, id);
	stage_put(fs->stages, stage);
	image_put(fs->images, image);
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
	bool idle;

	{
		HOLD(&in->lock);
		file_move(&in->file->state, FILE_ENDED);
		idle = in->file->state.changing == 0 &&
		       in->file->state.writers == 0 &&
		       file_is_dirty(in->file) && in->attr.nlink > 0;
	}
	close_backing(fs, in);
	if (idle)
		drain_released(fs->drain, in);
}

void file_release(struct files *fs, struct inode *in, int flags)
{
	bool write = file_flags_write(flags);
	struct stage *stage = NULL;
	struct file *f = in->file;
	bool last_writer, last, gone, left;

	{
		HOLD(&in->changing);
		{
			HOLD(&in->lock);
			file_move(&f->state,
				  write ? FILE_RELEASED_WRITER : FILE_RELEASED);
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
		if (last_writer && !last) /* else close_backing() asks */
			file_ask_left(fs, in);
		close_backing(fs, in);
		{
			HOLD(&in->lock);
			left = f->state.left == LEFT_WRITERS;
		}
	}
	if (gone) {
		file_unlinked(fs, in);
	} else if (last_writer) {
		drain_released(fs->drain, in);
		if (left)
			drain_ask_left(fs->drain);
	}
}

void file_read_by_owner(struct inode *in)
{
	HOLD(&in->lock);
	in->file->read_by_owner = in->file->state.opens > 0;
}

int file_flush(struct files *fs, struct inode *in, int flags)
{
	bool dirty, released;
	int rc;

	if (!file_flags_write(flags))
		return 0;
	{
		HOLD(&in->lock);
		dirty = file_is_dirty(in->file) && in->attr.nlink > 0;
		released = in->file->state.writers == 0;
	}
	if (!dirty)
		return 0;
	rc = drain_closed(fs->drain, in, released);
	if (rc == 0 && (fs->durable_close || !stages_have_room(fs->stages)))
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
	bool written = false;
	struct file *f;

	{
		HOLD(&in->lock);
		f = in->file;
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
		HOLD(&in->changing);
		close_backing(fs, in);
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
