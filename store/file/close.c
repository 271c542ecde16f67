/*
 * close.c - how a file is let go of: by handles, by the kernel's look-ups, by a
 * kernel that is gone, by its last name.
 *
 * Each of them may be the last. The last handle ends the mode, and what that
 * kept back happens (close_backing()); the last writer lets the drain begin;
 * without a name, a handle and a look-up the inode and its bytes go.
 */
#include <fcntl.h>

#include "store/base/scope.h"
#include "store/drain/commit.h"
#include "store/drain/drain.h"
#include "store/file/file_private.h"
#include "store/file/in_place.h"
#include "store/space/held.h"
#include "store/store.h"

/*
 * After the last release: the mode ends, and what it kept back happens, unless
 * somebody has it mapped. in->turn is held.
 */
static void close_backing(struct store *st, struct inode *in)
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
			stage_touch(&st->stages, f->stage);
		image = TAKE(f->backing_image);
	}
	if (id > 0 && st->backing_close)
		st->backing_close(st->on_arg, id);
	stage_put(&st->stages, stage);
	image_put(&st->images, image);
	file_ask_left_turn(st, in);
	{
		HOLD(&in->lock);
		if (f->state.left == LEFT_NOBODY)
			punch = file_take_punch_locked(f);
		drop = file_end_locked(st, f, END_CLOSED);
		if (f->stage && !file_is_dirty(f))
			stage_list(&st->stages, f->stage);
	}
	file_drop_stage(st, in, drop);
	file_punch(st, punch);
}

/* No step of an open is under way any more: what was put off can happen. */
void file_change_end(struct store *st, struct inode *in)
{
	bool idle;

	{
		HOLD(&in->lock);
		file_move(&in->file->state, FILE_ENDED);
		idle = in->file->state.changing == 0 &&
		       in->file->state.writers == 0 &&
		       file_is_dirty(in->file) && in->attr.nlink > 0;
	}
	close_backing(st, in);
	if (idle)
		drain_released(st->drain, in);
}

/* Whoever has nothing open is not to be kept open by us. */
static void forget_descriptors(struct store *st, struct inode *in,
			       struct stage *s)
{
	bool reads_too;

	{
		HOLD(&in->lock);
		reads_too = in->file->state.opens == 0;
	}
	stage_fd_forget(&st->stages, s, reads_too);
	stage_put(&st->stages, s);
}

void file_release(struct store *st, struct inode *in, int flags)
{
	bool write = file_flags_write(flags);
	struct stage *stage = NULL;
	struct file *f = in->file;
	bool last_writer, readers, gone, left;

	{
		HOLD(&in->turn);
		{
			HOLD(&in->lock);
			file_move(&f->state,
				  write ? FILE_RELEASED_WRITER : FILE_RELEASED);
			file_show_opens(f);
			if (f->state.opens == 0)
				f->read_by_owner = false;
			last_writer = write && f->state.writers == 0;
			gone = in->attr.nlink == 0;
			readers = last_writer && f->state.opens > 0;
			if (last_writer || f->state.opens == 0)
				stage = stage_ref(f->stage);
		}
		if (stage)
			forget_descriptors(st, in, stage);
		if (readers) /* if nobody is left, it is asked there */
			file_ask_left_turn(st, in);
		close_backing(st, in);
		{
			HOLD(&in->lock);
			left = f->state.left == LEFT_WRITERS;
		}
	}
	if (gone) {
		file_unlinked(st, in);
	} else if (last_writer) {
		drain_released(st->drain, in);
		if (left)
			drain_ask_left(st->drain);
	}
}

void file_read_by_owner(struct inode *in)
{
	HOLD(&in->lock);
	in->file->read_by_owner = in->file->state.opens > 0;
}

int file_flush(struct store *st, struct inode *in, int flags)
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
	rc = drain_closed(st->drain, in, released);
	if (rc == 0 && (st->options.durable_close || !store_has_room(st)))
		rc = file_sync(st, in);
	return rc;
}

int file_sync(struct store *st, struct inode *in)
{
	int rc = drain_sync(st->drain, in);

	if (rc < 0) {
		HOLD(&in->lock);
		if (in->file)
			in->file->error_told = true;
	}
	return rc;
}

void file_forgotten(struct store *st, struct inode *in)
{
	struct file_punch punch = { 0 };
	struct stage *gone = NULL;
	bool written = false;
	struct file *f;

	{
		HOLD(&in->lock);
		f = in->file;
		/* Looked up again meanwhile: it may be mapped again, too. */
		if (inode_lookups(st->inodes, in) == 0 && f &&
		    f->state.opens == 0 && f->state.changing == 0) {
			written = f->state.left == LEFT_WRITERS;
			file_move(&f->state, FILE_NOBODY_LEFT);
			punch = file_take_punch_locked(f);
			gone = file_end_locked(st, f, END_FORGOTTEN);
		}
	}
	file_drop_stage(st, in, gone);
	file_punch(st, punch);
	if (written) /* what came through a mapping after the last close */
		drain_released(st->drain, in);
	file_unlinked(st, in);
}

/*
 * Somebody may go on writing to the file's stage, in passthrough: as long as he
 * does, what is there becomes durable as it stands, and the stage stays for the
 * next start.
 */
static void ask_who_writes(struct store *st, struct inode *in)
{
	struct stage *stage = NULL;
	bool held;

	{
		HOLD(&in->lock);
		if (in->file->state.left == LEFT_WRITERS)
			stage = stage_ref(in->file->stage);
	}
	held = stage && held_for_writing(&st->stages, stage);
	stage_put(&st->stages, stage);
	if (held)
		return;
	HOLD(&in->lock);
	file_move(&in->file->state, FILE_NO_WRITER_LEFT);
}

static void file_abandoned(struct store *st, struct inode *in)
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
		file_show_opens(f);
		f->read_by_owner = false;
	}
	if (open) {
		HOLD(&in->turn);
		close_backing(st, in);
	}
	ask_who_writes(st, in);
	if (!unlinked)
		return;
	lookups = inode_lookups(st->inodes, in);
	inode_forget(st->inodes, in, lookups);
	file_unlinked(st, in);
	inode_put(st->inodes, in, lookups);
}

void files_abandoned(struct store *st)
{
	images_end(&st->images);
	for (uint32_t i = 0; i < st->stages.slot_count; i++) {
		uint64_t ino = SLOT_GET(&st->stages.slots[i], ino);
		struct inode *in = ino ? inode_peek(st->inodes, ino) : NULL;

		if (in)
			file_abandoned(st, in);
		inode_put(st->inodes, in, 1);
	}
}

void file_unlinked(struct store *st, struct inode *in)
{
	bool known = inode_lookups(st->inodes, in) > 0;
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
	drain_cancel(st->drain, in);
	file_drop_stage(st, in, stage);
	/* Else the next start does it. */
	(void)commit_delete(st->drain, in->ino);
}
