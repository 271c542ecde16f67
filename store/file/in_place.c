/*
 * in_place.c - changes in place of a file that somebody reads, and who that is.
 *
 * A reader in passthrough has the inode that backs the file: a stage, or the
 * image that its committed bytes lie in. The kernel allows one such inode for
 * as long as the file is open, so a change that he is to see must go into it.
 * A stage is there to be written to; an image is not, since records refer to
 * its bytes. So the image's inode becomes the file's stage, and a copy takes
 * its place under the records (image_copy.h). An append to a file of 1 GiB that
 * is being read waits for that copy once, 0.6 s on ext4 (measured), and not at
 * all where there are reflinks; nothing else is asked of readers or of
 * later writes, which stay in the kernel.
 *
 * Who is left after the last handle, with a mapping, is asked for, not
 * remembered: the kernel grants a lease when there is nobody (lease.h). It is
 * asked for with no descriptor of ours open for writing, and while in->changing
 * keeps everybody from opening the file: a refusal then means a mapping, or a
 * handle whose release is still on its way. In doubt somebody is left, which
 * costs a copy or another drain, never bytes.
 */
#include <errno.h>

#include "store/base/io.h"
#include "store/base/lease.h"
#include "store/base/scope.h"
#include "store/drain/drain.h"
#include "store/file/file_private.h"
#include "store/space/image_copy.h"

uint64_t file_mapped_image_locked(const struct file *f)
{
	if (f->punch_image)
		return f->punch_image;
	if (f->content && f->content->c.native && f->content->c.extent_count)
		return f->content->c.extents[0].image;
	return 0;
}

/* The image that readers have, with a reference. -EMLINK: it is no image. */
static int image_of_readers(struct files *fs, struct inode *in,
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
			image_ref(fs->images, i);
			*ret_image = i;
			return 0;
		}
		if (f->state.mode == IO_BACKED)
			return -EMLINK;
	}
	return id ? image_get(fs->images, id, ret_image) : -EMLINK;
}

/* s, whose bytes the readers have, is the file's stage from now on. */
static void install_taken(struct files *fs, struct inode *in, struct stage *s,
			  uint64_t image)
{
	struct file *f = in->file;
	struct stage *old_stage = NULL;
	struct image *old_image = NULL;
	struct file_punch punch = { 0 };

	inode_ref(in, 1);
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
	stage_put(fs->stages, old_stage);
	image_put(fs->images, old_image);
	file_punch(fs, punch);
}

void file_set_committed_time(struct files *fs, struct inode *in,
			     struct stage *s)
{
	struct timespec times[2] = { { 0, UTIME_OMIT }, { 0, 0 } };
	int64_t ns;

	{
		const struct content *c;

		HOLD(&in->lock);
		c = &in->file->content->c;
		ns = c->mtime_ns;
		if (c->generation && in->attr.mtime_gen >= c->generation)
			ns = in->attr.mtime_ns;
	}
	times[1] = io_timespec(ns);
	stage_set_times(fs->stages, s, times);
}

bool file_shares_image(struct files *fs, struct inode *in)
{
	struct image *i = NULL;
	int rc = image_of_readers(fs, in, &i);
	bool shares = rc == -EMLINK ||
		      (rc == 0 && !image_opened_by(fs->images, i, in->ino));

	image_put(fs->images, i);
	return shares;
}

int file_take_image(struct files *fs, struct inode *in)
{
	struct image *from = NULL;
	struct stage *s;
	int rc = image_of_readers(fs, in, &from);

	if (rc < 0)
		return rc;
	if (!image_opened_by(fs->images, from, in->ino))
		rc = -EMLINK;
	if (rc == 0)
		rc = file_make_stage(fs, in, 0, &s);
	if (rc < 0) {
		image_put(fs->images, from);
		return rc;
	}
	CHECK(s->kind == STAGE_DISK);
	rc = image_copy_make(fs->images, from);
	if (rc == 0) {
		HOLD(reclaim_deciding(fs->reclaim));
		rc = image_copy_swap(fs->images, from, s->image);
	}
	if (rc < 0) {
		stage_drop(fs->stages, s);
	} else {
		image_unmap(fs->images, from); /* it is of the old inode */
		image_move_opened(fs->images, from, s->image);
		file_set_committed_time(fs, in, s);
		install_taken(fs, in, s, from->id);
	}
	image_put(fs->images, from);
	return rc;
}

/* --- who is left ---------------------------------------------------------- */

/* What the leases are asked of. */
struct left {
	struct stage *stage; /* a reference, or NULL */
	uint64_t image; /* 0: none */
	bool writers, mapped; /* what is to be asked */
};

static bool asks_writers(const struct file *f)
{
	return f->state.left == LEFT_WRITERS && f->state.writers == 0;
}

static bool asks_mapped(const struct file *f)
{
	return f->state.left != LEFT_NOBODY && f->state.opens == 0 &&
	       f->state.mode == IO_CLOSED;
}

bool file_has_left_locked(const struct file *f)
{
	return asks_writers(f) || asks_mapped(f);
}

/* false: there is nothing to be asked. */
static bool left_begin(struct inode *in, struct left *l)
{
	struct file *f;

	*l = (struct left){ 0 };
	HOLD(&in->lock);
	f = in->file;
	if (!f || !file_has_left_locked(f))
		return false;
	l->writers = asks_writers(f);
	l->mapped = asks_mapped(f);
	l->stage = stage_ref(f->stage);
	if (!l->stage)
		l->image = file_mapped_image_locked(f);
	return true;
}

/* Our own mapping of an image counts as well. */
static bool ask_image(struct files *fs, struct image *i, enum lease what)
{
	bool yes = image_ask(fs->images, i, what) == 1;

	if (!yes && what == LEASE_NOBODY && image_unmap_idle(fs->images, i))
		yes = image_ask(fs->images, i, what) == 1;
	if (yes && what == LEASE_NOBODY)
		image_note_free(fs->images, i);
	return yes;
}

static bool granted(struct files *fs, const struct left *l, enum lease what)
{
	struct image *i;
	bool yes;

	if (l->stage && l->stage->image)
		return ask_image(fs, l->stage->image, what);
	if (l->stage)
		return stage_ask(fs->stages, l->stage, what) == 1;
	if (l->image == 0 || image_get(fs->images, l->image, &i) < 0)
		return true; /* nothing is there that could be mapped */
	yes = ask_image(fs, i, what);
	image_put(fs->images, i);
	return yes;
}

void file_ask_left(struct files *fs, struct inode *in)
{
	struct file_punch punch = { 0 };
	struct file *f = in->file;
	bool nobody, none_writes;
	struct left l;

	if (!left_begin(in, &l))
		return;
	nobody = l.mapped && granted(fs, &l, LEASE_NOBODY);
	none_writes = l.writers && (nobody || granted(fs, &l, LEASE_NO_WRITER));
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
	stage_put(fs->stages, l.stage);
	file_punch(fs, punch);
	/* Whoever asked: what came through the mapping was not closed. */
	if (none_writes)
		drain_released(fs->drain, in);
}

/* True when it has to be asked again. */
static bool ask_one(struct files *fs, struct inode *in)
{
	{
		HOLD(&in->lock);
		if (!in->file || in->file->state.left != LEFT_WRITERS ||
		    in->file->state.writers > 0)
			return false;
	}
	/* Who has it may wait for us, in whose thread jobs are woken. */
	if (!lock_try(&in->changing))
		return true;
	file_ask_left(fs, in);
	lock_give(&in->changing);
	HOLD(&in->lock);
	return in->file->state.left == LEFT_WRITERS;
}

static bool is_used(struct inode *in)
{
	const struct file *f;

	HOLD(&in->lock);
	f = in->file;
	return f && (f->state.opens > 0 || f->state.changing > 0 ||
		     f->state.left != LEFT_NOBODY);
}

bool file_is_used(struct files *fs, struct inode *in)
{
	if (!is_used(in))
		return false;
	if (!lock_try(&in->changing))
		return true;
	if (in->file)
		file_ask_left(fs, in);
	lock_give(&in->changing);
	return is_used(in);
}

bool files_ask_left(struct files *fs)
{
	bool again = false;

	for (uint32_t i = 0; i < fs->stages->slot_count; i++) {
		const struct stage_slot *slot = &fs->stages->slots[i];
		struct inode *in = NULL;

		if (SLOT_GET(slot, dirty))
			in = inode_of_slot(fs->inodes, slot);
		if (in && ask_one(fs, in))
			again = true;
		inode_put(fs->inodes, in, 1);
	}
	return again;
}
