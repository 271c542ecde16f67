/*
 * open.c - the opens of a file, and what takes the place of its content.
 *
 * An open to write, or with O_TRUNC, is a change: it begins and ends as any
 * other (change.c). The first open chooses how the kernel serves the file until
 * nobody has it open any more: see the modes in state.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "store/base/scope.h"
#include "store/drain/drain.h"
#include "store/file/file_private.h"
#include "store/names/names.h"
#include "store/space/held.h"

/*
 * A drain failed since somebody last asked: say it once. *ret_written: somebody
 * has it open to write.
 */
static int tell_error(struct inode *in, bool *ret_written)
{
	HOLD(&in->lock);
	*ret_written = in->file->state.writers > 0;
	if (in->file->sticky_error == 0 || in->file->error_told)
		return 0;
	in->file->error_told = true;
	return in->file->sticky_error;
}

/* What the kernel calls it: an id > 0; 0: not this one; else an error. */
static int backing_id(struct files *fs, struct inode *in, struct stage *stage,
		      struct image *image)
{
	int fd, id;

	/* Before we have it open: it is asked who has it. */
	image_note_opened(fs->images, stage ? stage->image : image, in->ino);
	/* For writing the kernel opens it once more, by itself. */
	fd = stage ? stage_open(fs->stages, stage, O_RDONLY)
		   : image_open_fd(fs->images, image, O_RDONLY);
	if (fd < 0)
		return fd == -ENOENT ? -EIO : fd;
	id = fs->kernel.backing_open(fs->kernel.arg, fd);
	(void)close(fd); /* the id keeps it open */
	return id > 0 ? id : 0;
}

/* The mode of the first open, and what backs the file in the kernel. */
struct first_open {
	bool first; /* false: the file has a mode */
	int backing_id; /* 0: we move the bytes */
	struct stage *stage; /* references; one of them at most: */
	struct image *image;
};

/* *ret is all zero, and stays so when the file has a mode. */
static int choose_mode(struct files *fs, struct inode *in, int flags,
		       struct first_open *ret)
{
	bool write = file_flags_write(flags);
	struct file *f = in->file;
	struct stage *stage = NULL;
	struct image *image = NULL;
	uint64_t native = 0;
	int id = 0;

	{
		HOLD(&in->lock);
		if (f->state.mode != IO_CLOSED)
			return 0;
		if (fs->kernel.backing_open &&
		    (write || f->state.name != NAME_AWAITED)) {
			stage = stage_ref(f->stage);
			if (!stage && !write && f->content &&
			    f->content->c.native)
				native = f->content->c.extents[0].image;
		}
	}
	if (native)
		id = file_get_image(fs, native, &image);
	/* It must stay as it is, and who opens it here may see it change. */
	if (stage && held_is_left(fs->stages, stage))
		stage_put(fs->stages, TAKE(stage));
	if (stage || image)
		id = backing_id(fs, in, stage, image);
	if (id > 0) {
		ret->stage = TAKE(stage);
		ret->image = TAKE(image);
	}
	stage_put(fs->stages, stage);
	image_put(fs->images, image);
	if (id < 0)
		return id;
	ret->first = true;
	ret->backing_id = id;
	return 0;
}

static void begin_mode_locked(struct file *f, const struct first_open *o)
{
	file_move(&f->state, o->backing_id > 0 ? FILE_BACKED : FILE_SERVED);
	f->backing_id = o->backing_id;
	f->backing_stage = o->stage;
	f->backing_image = o->image;
}

/*
 * A writer opens the file: does it grow only, or is what was committed, or
 * closed, about to be changed? See file->open_since_ns.
 */
static void note_writer_locked(struct files *fs, struct file *f, int flags)
{
	bool appends = (flags & O_APPEND) && !(flags & O_TRUNC);
	bool complete = (f->content && f->content->c.size_bytes > 0) ||
			drain_has_closed(fs->drain, f);

	if (complete && !appends)
		f->open_since_ns = OPEN_REPLACES;
	else if (f->state.writers == 0)
		f->open_since_ns = mono_ns();
}

/* One more handle; returns the stage whose bytes may change from now on. */
static struct stage *count_open_locked(struct files *fs, struct file *f,
				       int flags)
{
	bool write = file_flags_write(flags);

	if (write && f->state.writers == 0)
		f->unsynced = true;
	if (write) {
		f->flushed_ns = 0;
		note_writer_locked(fs, f, flags);
	}
	file_move(&f->state, write ? FILE_OPENED_WRITER : FILE_OPENED);
	file_show_stage(f);
	if (f->state.mode == IO_BACKED && (flags & O_ACCMODE) == O_RDWR)
		file_move(&f->state, FILE_MAPPABLE_WRITER);
	else if (f->state.mode == IO_BACKED && !write)
		file_move(&f->state, FILE_MAPPABLE);
	return write ? f->stage : NULL;
}

static int open_begun(struct files *fs, struct inode *in, int flags, pid_t pid,
		      enum file_step step, struct file_opened *ret)
{
	struct first_open first = { 0 };
	struct stage *dirtied;
	int rc;

	if (step == STEP_FRESH)
		rc = file_fresh_stage(fs, in, pid);
	else if (file_empties(flags))
		rc = file_cut_begun(fs, in, 0);
	else
		rc = file_check_content(fs, in);
	if (rc == 0)
		rc = choose_mode(fs, in, flags, &first);
	if (rc < 0)
		return rc;
	{
		HOLD(&in->lock);
		if (first.first)
			begin_mode_locked(in->file, &first);
		dirtied = count_open_locked(fs, in->file, flags);
		ret->backing_id = in->file->state.mode == IO_BACKED
					  ? in->file->backing_id
					  : 0;
	}
	if (dirtied)
		file_dirtied(fs, dirtied);
	return 0;
}

/*
 * An open that changes nothing waits for nothing. The kernel may lead to a file
 * by one of several names that have moved; by its only one it leads there who
 * came before.
 */
static int begin_read(struct files *fs, struct inode *in, enum file_way way)
{
	bool untold = way == FILE_BY_ANY && names_are_untold(fs->names);

	HOLD(&in->lock);
	if (in->deleted || (untold && in->file->state.name == NAME_MOVED))
		return -ESTALE;
	file_move(&in->file->state, FILE_BEGUN);
	return 0;
}

int file_open(struct files *fs, struct inode *in, int flags,
	      struct file_opened *ret)
{
	return file_open_for(fs, in, flags, &(struct file_opener){ 0 }, ret);
}

int file_open_for(struct files *fs, struct inode *in, int flags,
		  const struct file_opener *by, struct file_opened *ret)
{
	enum file_step step = STEP_OK;
	int rc = inode_load_file(fs->inodes, in);
	bool written = false;

	if (rc == 0)
		rc = tell_error(in, &written);
	if (rc < 0)
		return rc;
	if (file_empties(flags) && written)
		drain_wait_released(fs->drain, in);
	HOLD(&in->changing);
	if (file_flags_write(flags)) {
		rc = file_begin(fs, in,
				file_empties(flags) ? WISH_EMPTY : WISH_WRITE,
				by->way, &step);
	} else {
		rc = begin_read(fs, in, by->way);
	}
	if (rc < 0) {
		/* Its names have moved; the kernel may have forgotten it. */
		if (step == STEP_RENUMBER)
			file_unlinked(fs, in);
		return rc;
	}
	rc = open_begun(fs, in, flags, by->pid, step, ret);
	file_change_end(fs, in);
	return rc;
}

/* After file_begin() by name. The kernel may have forgotten the old one. */
static int names_moved(struct files *fs, struct inode *in, int rc)
{
	file_unlinked(fs, in);
	return rc == -ENOENT ? -ESTALE : rc; /* it lost its name meanwhile */
}

int file_renumber(struct files *fs, struct inode *in, bool empties)
{
	enum file_step step = STEP_OK;
	int rc = inode_load_file(fs->inodes, in);

	if (rc < 0)
		return rc;
	HOLD(&in->changing);
	{
		/* Whoever it was made for comes to it yet. */
		HOLD(&in->lock);
		if (in->file->state.name == NAME_AWAITED)
			return 0;
	}
	rc = file_begin(fs, in, empties ? WISH_EMPTY : WISH_WRITE,
			FILE_BY_LOOKUP, &step);
	if (rc == 0) /* it can be changed as it is by now */
		file_change_end(fs, in);
	else if (step == STEP_RENUMBER)
		rc = names_moved(fs, in, rc);
	return rc == -ESTALE ? 0 : rc;
}

int file_replace(struct files *fs, struct inode *in, struct stage *fresh)
{
	enum file_step step = STEP_OK;
	int rc = inode_load_file(fs->inodes, in);

	if (rc < 0)
		return rc;
	drain_wait_released(fs->drain, in);
	HOLD(&in->changing);
	{
		HOLD(&in->lock);
		if (in->attr.nlink == 0)
			return -ESTALE;
	}
	rc = file_begin(fs, in, WISH_REPLACE, FILE_BY_NAME, &step);
	if (step == STEP_RENUMBER) /* who has it goes on with what he has */
		return names_moved(fs, in, rc);
	if (rc < 0)
		return rc;
	file_learn_series(fs, in);
	stage_lend(fs->stages, fresh, in->ino);
	stage_show(fresh);
	file_replace_stage(fs, in, fresh);
	file_change_end(fs, in);
	return 0;
}
