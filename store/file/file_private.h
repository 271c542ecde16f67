/* file_private.h - between the files of this folder. */
#ifndef STORE_FILE_PRIVATE_H
#define STORE_FILE_PRIVATE_H

#include <fcntl.h>

#include "store/file/file.h"
#include "store/file/state.h"

static inline bool file_flags_write(int flags)
{
	return (flags & O_ACCMODE) != O_RDONLY;
}

static inline bool file_empties(int flags)
{
	return file_flags_write(flags) && (flags & O_TRUNC);
}

/*
 * Its stage counts: whoever has a handle must find it after a kill -9. in->lock
 * is held.
 */
static inline void file_show_stage(const struct file *f)
{
	if (f->stage && f->stage->slot)
		stage_show(f->stage);
}

/*
 * s, with the file's reference, is where its bytes are from now on, and counts;
 * in->lock is held.
 */
static inline void file_install_locked(struct file *f, struct stage *s,
				       enum file_event e)
{
	CHECK(!f->stage);
	f->stage = s;
	file_move(&f->state, e);
	file_show_stage(f);
}

/* A range that was left in an image for its readers' sake only. */
struct file_punch {
	uint64_t image, size_bytes; /* image 0: there is none */
};

/* The last reader has gone; in->lock is held. */
static inline struct file_punch file_take_punch_locked(struct file *f)
{
	struct file_punch p = { f->punch_image, f->punch_size };

	f->punch_image = 0;
	return p;
}

/* Its bytes are given back, if there is one; without locks. */
static inline void file_punch(struct files *fs, struct file_punch p)
{
	if (p.image)
		reclaim_add(fs->reclaim, p.image, 0, p.size_bytes);
}

/* --- in_place.c */

/*
 * The image that a mapping of a file without a stage may be of; 0: none.
 * in->lock is held.
 */
uint64_t file_mapped_image_locked(const struct file *f);
/*
 * The image that readers have becomes the file's stage. The caller holds
 * in->changing and has begun a change. -EMLINK: another file has the same image
 * open, so nothing was changed. Copies the image; other errors are the disk's.
 */
int file_take_image(struct files *fs, struct inode *in);
/* Would that be -EMLINK? */
bool file_shares_image(struct files *fs, struct inode *in);
/*
 * Ask whether a mapping is left of a file, and note when none is. in->changing
 * is held, so that nobody opens it meanwhile. What came through a writer's that
 * is gone is drained: it has the place of the close before.
 */
void file_ask_left(struct files *fs, struct inode *in);
/* Is there something to be asked? in->lock is held. */
bool file_has_left_locked(const struct file *f);
/* A stage for the content as it is gets the content's time. */
void file_set_committed_time(struct files *fs, struct inode *in,
			     struct stage *s);

/* --- change.c. in->changing is held. */

/*
 * A change of the file begins, once nothing is in its way any more, and ends
 * with file_change_end(). Who is left is asked for first. *ret_step is STEP_OK
 * or STEP_TAKE_IMAGE (the stage can be written to) or STEP_FRESH. After an
 * error none has begun; -ESTALE and -EBUSY: as file_open_for(). STEP_RENUMBER,
 * -ESTALE: its names have moved.
 */
int file_begin(struct files *fs, struct inode *in, enum file_wish wish,
	       enum file_way way, enum file_step *ret_step);

/* --- close.c */

/* in->changing is held. What was put off until nobody is at work happens. */
void file_change_end(struct files *fs, struct inode *in);

/* --- write.c */

/* file_truncate() in a change that has begun. */
int file_cut_begun(struct files *fs, struct inode *in, uint64_t size);

/* --- tail.c */

#define FILE_PAGE 4096u

/* It ended at `from` and goes on now, in a page: in->lock is held. */
void file_tail_begins_locked(struct file *f, uint64_t from);
/* The kernel has what is there now: in->lock is held. */
void file_was_read_locked(struct file *f, uint64_t off, size_t len);
/* A stage that ended at `from` and is longer now holds zeros behind it. */
int file_clear_tail(const struct stage *s, int fd, uint64_t from);

/* --- image_read.c */

/* image_get(); an image that is missing is damage: -EIO. */
int file_get_image(struct files *fs, uint64_t id, struct image **ret_image);
/* len bytes of it. -EIO: it has less, or is missing. */
int file_read_image(struct files *fs, uint64_t image, uint64_t off, void *buf,
		    size_t len);

/* --- verify.c */
/*
 * Something under [off, off + len) could not be read: mend the chunks there
 * that are not what was stored. 0: all of them can be read now. The caller has
 * a reclaim ticket from before he took the content.
 */
int file_mend(struct files *fs, struct inode *in, const struct content *c,
	      uint64_t off, size_t len);

/* Before committed content is opened: is it whole? */
int file_check_content(struct files *fs, struct inode *in);

/* --- new_stage.c */

/*
 * Room for so many bytes, in memory if it may be; 0: on the disk. Waits for a
 * slot until some files are drained. The caller owns it, until a file has it.
 */
int file_make_stage(struct files *fs, struct inode *in, uint64_t size,
		    struct stage **ret_stage);
/* Could the file get one just now? 0 or why not. */
int file_try_stage(struct files *fs, struct inode *in);

/* --- file_stage.c */

/* The stage that goes now, if it does: for file_drop_stage(). Locked. */
struct stage *file_end_locked(struct files *fs, struct file *f,
			      enum file_end why);
/* The rest of giving a stage up, without locks; NULL: nothing. */
void file_drop_stage(struct files *fs, struct inode *in, struct stage *s);
/* s, referenced, is to be written to: it is no cache any more. */
void file_dirtied(struct files *fs, struct stage *s);
/* A new stage for a file that has none. */
int file_install_stage(struct files *fs, struct inode *in, uint64_t size,
		       struct stage **ret_stage);
/* Replace what is there by an empty stage; the old content stays committed. */
int file_fresh_stage(struct files *fs, struct inode *in, pid_t pid);
/* The same by this one, for which the file has a reference. */
void file_replace_stage(struct files *fs, struct inode *in,
			struct stage *fresh);
/* Find the series that the file's name belongs to. */
void file_learn_series(struct files *fs, struct inode *in);

#endif
