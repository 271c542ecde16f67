/* file.c - see file.h. */
#include "store/file/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/io.h"
#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/drain/commit.h"
#include "store/file/file_private.h"
#include "store/file/in_place.h"
#include "store/names/names.h"
#include "store/names/series.h"
#include "store/space/held.h"
#include "store/store.h"

/* debug_stage=memory: room for what tests write. */
#define TEST_STAGE_BYTES (UINT64_C(2) << 20)

static bool flags_write(int flags)
{
	return (flags & O_ACCMODE) != O_RDONLY;
}

/* --- stages -------------------------------------------------------------- */

/* A new stage; when there are too many, wait until some are drained. */
static int new_stage(struct store *st, struct inode *in, uint64_t size,
		     struct stage **ret_stage)
{
	int rc;

	if (st->options.stage_all_in_memory && size < TEST_STAGE_BYTES)
		size = TEST_STAGE_BYTES;
	rc = stage_create(&st->stages, in->ino, size, ret_stage);
	if (rc == -ENFILE) {
		rc = drain_sync_closed(st);
		if (rc == 0)
			rc = stage_create(&st->stages, in->ino, size,
					  ret_stage);
	}
	return rc;
}

static void install_stage_locked(struct file *f, struct stage *s)
{
	CHECK(!f->stage);
	f->stage = s;
	f->dirty = true;
}

/* Take the stage from its file; the caller drops it outside the lock. */
static struct stage *take_stage_locked(struct file *f)
{
	struct stage *s = f->stage;

	f->stage = NULL;
	f->dirty = false;
	return s;
}

/* The rest of giving a stage up: memory, slot, the inode's reference. */
static void drop_stage(struct store *st, struct inode *in, struct stage *s)
{
	if (!s)
		return;
	if (s->clean_image)
		image_clear_clean(&st->images, s->clean_image, s);
	stage_drop(&st->stages, s);
	stage_put(&st->stages, s);
	inode_put(st, in, 1);
}

/* Bytes of the stage may change from now on. */
void file_dirtied(struct store *st, struct inode *in, struct stage *s)
{
	stage_unlist(&st->stages, s);
	if (s->clean_image) {
		image_clear_clean(&st->images, s->clean_image, s);
		HOLD(&in->lock);
		s->clean_image = 0;
	}
	if (s->slot)
		SLOT_SET(s->slot, dirty, 1);
}

/*
 * Is its stage a cache that nobody uses? Who has it mapped must see what is
 * written later, and would keep its memory in any case. in->lock is held.
 */
static bool may_give_up_locked(const struct file *f)
{
	return !f->dirty && f->mode == IO_CLOSED && f->changing == 0 &&
	       !f->maybe_mapped;
}

/* A cache that is not worth keeping: small, on disk, or unwanted. */
static bool is_poor_cache_locked(const struct store *st, const struct file *f)
{
	return f->stage && f->content && may_give_up_locked(f) &&
	       (f->content->c.kind == CONTENT_SMALL ||
		f->stage->kind == STAGE_DISK || st->options.no_stage_cache);
}

bool file_evict(void *store, struct stage *s)
{
	struct store *st = store;
	struct inode *in = inode_peek(st, stage_ino(s));
	struct stage *gone = NULL;

	if (!in)
		return false;
	/* Whoever opens it now is asked about when he closes it. */
	if (lock_try(&in->turn)) {
		file_ask_left_turn(st, in);
		lock_give(&in->turn);
	}
	{
		HOLD(&in->lock);
		if (in->file && in->file->stage == s &&
		    may_give_up_locked(in->file))
			gone = take_stage_locked(in->file);
	}
	drop_stage(st, in, gone);
	inode_put(st, in, 1);
	return gone != NULL;
}

enum give_back file_give_back(struct store *st, struct stage *s)
{
	uint64_t ino = SLOT_GET(s->slot, ino);
	struct inode *in = ino ? inode_peek(st, ino) : NULL;
	bool ask = false, later = false;
	struct attr a = { 0 };

	if (in) {
		HOLD(&in->lock);
		/* What lost its name is not drained any more. */
		later = SLOT_GET(s->slot, dirty) && in->attr.nlink > 0;
		if (in->file && in->file->stage == s && !in->file->dirty &&
		    in->file->mode == IO_CLOSED && in->file->maybe_mapped) {
			atomic_store(&s->wanted, true);
			ask = in->attr.nlink == 1;
			a.parent = in->attr.parent;
			strcpy(a.name, in->attr.name);
		}
	}
	/* It forgets what nobody has open or mapped: see file_forgotten(). */
	if (ask && st->on_renamed)
		st->on_renamed(st->on_arg, a.parent, a.name);
	if (in)
		inode_put(st, in, 1);
	if (!later)
		(void)file_evict(st, s);
	if (SLOT_GET(s->slot, ino) == 0)
		return GIVEN_BACK;
	return later ? GIVEN_LATER : GIVEN_NEVER;
}

static void learn_series(struct store *st, struct inode *in)
{
	uint64_t keys[2];
	char path[4096];

	inode_path(st, in, path, sizeof(path));
	series_keys(path, keys);
	HOLD(&in->lock);
	in->file->series[0] = keys[0];
	in->file->series[1] = keys[1];
}

static uint64_t expected_size(struct store *st, struct inode *in)
{
	uint64_t keys[2];

	{
		HOLD(&in->lock);
		keys[0] = in->file->series[0];
		keys[1] = in->file->series[1];
	}
	return series_size(st, keys);
}

int file_install_stage(struct store *st, struct inode *in, uint64_t size,
		       struct stage **ret_stage)
{
	int rc = new_stage(st, in, size, ret_stage);

	if (rc < 0)
		return rc;
	inode_ref(st, in, 1);
	HOLD(&in->lock);
	install_stage_locked(in->file, *ret_stage);
	return 0;
}

/* A segment's stage becomes the content of a file that has none. */
static void install_kept(struct store *st, struct inode *in, struct stage *s)
{
	stage_lend(&st->stages, s, in->ino);
	inode_ref(st, in, 1);
	HOLD(&in->lock);
	install_stage_locked(in->file, s);
}

int file_prepare(struct store *st, struct inode *in, const struct names_new *n)
{
	struct stage *s;

	learn_series(st, in);
	if (n->stage) {
		install_kept(st, in, n->stage);
		return 0;
	}
	return file_install_stage(st, in, expected_size(st, in), &s);
}

int file_adopt(struct store *st, struct inode *in, struct stage *s, bool dirty,
	       uint64_t order)
{
	int rc = inode_load_file(st, in);

	if (rc < 0)
		return rc;
	learn_series(st, in);
	inode_ref(st, in, 1);
	{
		HOLD(&in->lock);
		CHECK(!in->file->stage);
		in->file->stage = s;
		in->file->dirty = dirty;
		in->file->created = in->file->content == NULL;
	}
	if (!dirty) {
		stage_list(&st->stages, s);
		return 0;
	}
	return drain_resume(st, in, order);
}

/* --- opening ---------------------------------------------------------------
 */

static bool is_deleted(struct inode *in)
{
	HOLD(&in->lock);
	return in->deleted;
}

/* Every image is there and as long as the content says. */
static int check_images(struct store *st, struct inode *in,
			const struct content *c)
{
	uint64_t checked = 0;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < c->extent_count; i++) {
		const struct extent *e = &c->extents[i];
		struct image *im;
		struct stat sb;

		if (e->image == checked && i > 0 &&
		    e->image_offset + e->len <= c->extents[i - 1].image_offset)
			continue;
		rc = image_get(&st->images, e->image, &im);
		if (rc == -ENOENT)
			rc = -EIO;
		if (rc < 0)
			break;
		rc = image_stat(&st->images, im, &sb);
		if (rc < 0)
			rc = rc == -ENOENT ? -EIO : rc;
		else if ((uint64_t)sb.st_size < e->image_offset + e->len ||
			 (c->native && (uint64_t)sb.st_size != c->size_bytes))
			rc = -EIO;
		image_put(&st->images, im);
		checked = e->image;
	}
	if (rc < 0 && is_deleted(in))
		return -ESTALE; /* its images may be gone with it */
	if (rc < 0) {
		char path[4096];

		inode_path(st, in, path, sizeof(path));
		log_error("%s: an image of it is missing or too short: %s: run "
			  "ckptctl fsck on the unmounted store",
			  path, strerror(-rc));
	}
	return rc;
}

/* Before committed content is opened: is it whole? */
static int check_content(struct store *st, struct inode *in)
{
	struct content_ref *content = NULL;
	bool verify;
	int rc;

	{
		HOLD(&in->lock);
		if (in->file->content && !in->file->stage) {
			content = in->file->content;
			atomic_fetch_add(&content->refs, 1);
		}
		verify = st->options.verify == VERIFY_OPEN &&
			 !in->file->verified;
	}
	if (!content)
		return 0;
	rc = check_images(st, in, &content->c);
	if (rc == 0 && verify)
		rc = file_verify(st, in, &content->c);
	if (rc == 0 && verify) {
		HOLD(&in->lock);
		in->file->verified = in->file->content == content;
	}
	content_ref_put(content);
	return rc;
}

/* A drain failed since somebody last asked: say it once. */
static int tell_error(struct inode *in)
{
	HOLD(&in->lock);
	if (in->file->sticky_error == 0 || in->file->error_told)
		return 0;
	in->file->error_told = true;
	return in->file->sticky_error;
}

enum open_step {
	OPEN_OK,
	OPEN_WAIT,
	OPEN_RENUMBER, /* who has it keeps what he has */
	OPEN_IN_PLACE, /* the image that readers have becomes the stage */
	OPEN_NEW_STAGE,
	OPEN_STALE,
	OPEN_SYNC, /* first it must be durable */
	OPEN_GIVE_UP, /* its stage, which is a cache of what is committed */
};

/* See reserved_until_ns; in->lock is held. */
static bool is_reserved(const struct file *f)
{
	return f->reserved_until_ns != 0 && mono_ns() < f->reserved_until_ns;
}

/* A sealed stage is not written to: see stage.h. in->lock is held. */
static enum open_step sealed_step_locked(const struct file *f)
{
	if (f->dirty)
		return OPEN_SYNC;
	return f->mode == IO_BACKED || f->maybe_mapped ? OPEN_RENUMBER
						       : OPEN_GIVE_UP;
}

/* Somebody has it open or mapped, and nobody to write. in->lock is held. */
static bool is_read_locked(const struct file *f)
{
	return f->opens > 0 ? f->writers == 0 : f->maybe_mapped;
}

/*
 * What has to be done before the file can be opened; in->lock is held. keeps:
 * it is empty, small or locked, so that O_TRUNC must not give the name another
 * inode; else readers of a large file keep its whole old content.
 */
static enum open_step open_step_locked(const struct inode *in, int flags,
				       bool keeps)
{
	const struct file *f = in->file;
	bool write = flags_write(flags);
	bool trunc = write && (flags & O_TRUNC);
	bool joins = f->mode == IO_DAEMON && is_reserved(f);

	if (!write)
		return OPEN_OK;
	if (f->renumbered)
		return OPEN_STALE;
	if (trunc && f->opens == 0 && f->mode == IO_CLOSED && !f->maybe_mapped)
		return OPEN_NEW_STAGE;
	if (f->stage && f->stage->sealed)
		return sealed_step_locked(f);
	if (f->stage && f->stage->frozen)
		return OPEN_WAIT;
	if (trunc && is_read_locked(f) && !joins) {
		if (!keeps && in->attr.nlink > 0)
			return OPEN_RENUMBER;
		/* Who reads through us sees the new stage, from its start. */
		if (f->mode != IO_BACKED)
			return OPEN_NEW_STAGE;
	}
	return file_reads_image_locked(f) ? OPEN_IN_PLACE : OPEN_OK;
}

/* Must O_TRUNC leave the name its inode? See open_step_locked(). */
static bool keeps_inode(struct store *st, struct inode *in)
{
	struct stat sb;

	return inode_stat(st, in, &sb) < 0 || sb.st_size <= SMALL_BYTES_MAX ||
	       (st->is_locked && st->is_locked(st->on_arg, in->ino));
}

/* The fresh stage, for which the file has a reference, is its content now. */
static void replace_stage(struct store *st, struct inode *in,
			  struct stage *fresh)
{
	inode_ref(st, in, 1);
	drop_stage(st, in, drain_replace(st, in, fresh));
}

/* Replace what is there by an empty stage; the old content stays committed. */
static int open_new_stage(struct store *st, struct inode *in)
{
	struct stage *s;
	int rc;

	learn_series(st, in);
	rc = new_stage(st, in, expected_size(st, in), &s);
	if (rc < 0)
		return rc;
	replace_stage(st, in, s);
	return 0;
}

/* Sealed, clean and not open in passthrough: the committed bytes will do. */
int file_give_up_turn(struct store *st, struct inode *in)
{
	struct stage *gone = NULL;

	{
		HOLD(&in->lock);
		if (in->file->stage && in->file->stage->sealed &&
		    sealed_step_locked(in->file) == OPEN_GIVE_UP)
			gone = take_stage_locked(in->file);
	}
	drop_stage(st, in, gone);
	return gone ? 0 : -EAGAIN;
}

/* Choose the mode of the first open; file_open() holds the turn. */
static int open_backing(struct store *st, struct inode *in, int flags)
{
	bool write = flags_write(flags);
	struct file *f = in->file;
	struct stage *stage = NULL;
	struct image *image = NULL;
	uint64_t native = 0;
	bool reserved;
	int fd, id, rc;

	{
		HOLD(&in->lock);
		if (f->mode != IO_CLOSED)
			return 0;
		reserved = !write && is_reserved(f);
		if (f->stage) {
			stage = f->stage;
			stage_ref(stage);
		} else if (!write && f->content && f->content->c.native) {
			native = f->content->c.extents[0].image;
		}
	}
	if (!st->backing_open || (!stage && !native) || reserved) {
		stage_put(&st->stages, stage);
		HOLD(&in->lock);
		f->mode = IO_DAEMON;
		return 0;
	}
	if (native) {
		rc = image_get(&st->images, native, &image);
		if (rc < 0)
			return rc == -ENOENT ? -EIO : rc;
	}
	/* Before we have it open: it is asked who has it. */
	image_note_opened(&st->images, stage ? stage->image : image, in->ino);
	/* For writing the kernel opens it once more, by itself. */
	fd = stage ? stage_open(&st->stages, stage, O_RDONLY)
		   : image_open_fd(&st->images, image, O_RDONLY);
	if (fd < 0) {
		stage_put(&st->stages, stage);
		image_put(&st->images, image);
		return fd == -ENOENT ? -EIO : fd;
	}
	id = st->backing_open(st->on_arg, fd);
	(void)close(fd); /* the id keeps it open */
	HOLD(&in->lock);
	if (id <= 0) { /* refused for this one: serve it ourselves */
		f->mode = IO_DAEMON;
		stage_put(&st->stages, stage);
		image_put(&st->images, image);
		return 0;
	}
	f->mode = IO_BACKED;
	f->backing_id = id;
	f->backing_stage = stage;
	f->backing_image = image;
	return 0;
}

/*
 * A writer opens the file: does it grow only, or is what was committed, or
 * closed, about to be changed? See file->replaces.
 */
static void note_writer_locked(struct store *st, struct file *f, int flags)
{
	bool appends = (flags & O_APPEND) && !(flags & O_TRUNC);
	bool complete = (f->content && f->content->c.size_bytes > 0) ||
			drain_has_closed(st, f);

	if (f->writers == 0) {
		f->replaces = false;
		f->open_since_ns = mono_ns();
	}
	f->replaces = f->replaces || (complete && !appends);
}

/* One more open; what the table on the tmpfs says follows. */
static struct stage *count_open_locked(struct file *f, bool write, int delta)
{
	f->opens += (unsigned)delta;
	if (write)
		f->writers += (unsigned)delta;
	if (f->opens == 0)
		f->read_by_owner = false;
	if (f->stage && f->stage->slot) {
		SLOT_SET(f->stage->slot, opens, f->opens);
		SLOT_SET(f->stage->slot, writers, f->writers);
	}
	if (delta > 0 && write && f->stage) {
		f->dirty = true;
		return f->stage;
	}
	return NULL;
}

/*
 * After the last release: the mode ends, and what it kept back happens, unless
 * somebody has it mapped. in->turn is held.
 */
static void close_backing(struct store *st, struct inode *in)
{
	struct stage *stage, *drop = NULL;
	struct file *f = in->file;
	struct image *image;
	uint64_t punch = 0, punch_size;
	int id;

	{
		HOLD(&in->lock);
		if (f->opens > 0 || f->changing > 0)
			return;
		id = f->mode == IO_BACKED ? f->backing_id : 0;
		f->mode = IO_CLOSED;
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
		punch_size = f->punch_size;
		if (!f->maybe_mapped) {
			punch = f->punch_image;
			f->punch_image = 0;
		}
		if (is_poor_cache_locked(st, f))
			drop = take_stage_locked(f);
		else if (f->stage && !f->dirty)
			stage_list(&st->stages, f->stage);
	}
	drop_stage(st, in, drop);
	if (punch)
		reclaim_add(st->reclaim, punch, 0, punch_size);
}

static int open_do(struct store *st, struct inode *in, int flags,
		   enum open_step step, struct file_opened *ret);

/* Wait for what `step` needs before it can be looked at again. */
static int open_wait(struct store *st, struct inode *in, enum open_step step)
{
	int rc;

	if (step == OPEN_WAIT) {
		rc = drain_wait_idle(st, in);
	} else if (step == OPEN_SYNC) {
		rc = drain_sync(st, in);
	} else if (step == OPEN_GIVE_UP) {
		rc = file_give_up_turn(st, in);
	} else { /* only what is committed goes with the name, or is kept */
		drain_wait_closed(st, in);
		rc = 0;
	}
	return rc < 0 && rc != -EAGAIN ? rc : 0;
}

/* Begin a change of the file, once nothing has to be waited for any more. */
static int open_begin(struct store *st, struct inode *in, int flags,
		      enum open_step *ret_step)
{
	bool trunc = flags_write(flags) && (flags & O_TRUNC);
	bool waited = false, looked = false, keeps = false;
	enum open_step step;
	int rc = 0;

	for (;;) {
		bool look, wait;

		{
			HOLD(&in->lock);
			step = open_step_locked(in, flags, keeps);
			look = trunc && step == OPEN_RENUMBER && !looked &&
			       !(in->file->stage && in->file->stage->sealed);
			wait = step == OPEN_WAIT || step == OPEN_SYNC ||
			       step == OPEN_GIVE_UP ||
			       (!waited && (step == OPEN_RENUMBER ||
					    (step == OPEN_OK && trunc &&
					     is_read_locked(in->file))));
			if (!look && !wait) {
				in->file->changing++;
				if (flags_write(flags) && in->file->stage)
					in->file->dirty = true;
				*ret_step = step;
				return 0;
			}
		}
		if (look) {
			keeps = keeps_inode(st, in);
			looked = true;
			continue;
		}
		rc = open_wait(st, in, step);
		if (rc < 0)
			return rc;
		waited = waited || step == OPEN_RENUMBER || step == OPEN_OK;
	}
}

static int open_turn(struct store *st, struct inode *in, int flags,
		     struct file_opened *ret)
{
	enum open_step step;
	int rc;

	if (flags_write(flags))
		file_ask_left_turn(st, in);
	rc = open_begin(st, in, flags, &step);
	if (rc < 0)
		return rc;
	rc = open_do(st, in, flags, step, ret);
	file_change_end(st, in);
	return rc;
}

int file_replace(struct store *st, struct inode *in, struct stage *fresh)
{
	int rc = inode_load_file(st, in);
	bool closed;

	if (rc < 0)
		return rc;
	drain_wait_released(st, in);
	HOLD(&in->turn);
	file_ask_left_turn(st, in);
	{
		HOLD(&in->lock);
		if (in->file->renumbered || in->deleted || in->attr.nlink == 0)
			return -ESTALE;
		closed = in->file->opens == 0 && in->file->mode == IO_CLOSED &&
			 !in->file->maybe_mapped;
		if (closed)
			in->file->changing++;
	}
	if (!closed) { /* who has it open goes on with what he has */
		drain_wait_closed(st, in);
		rc = names_renumber(st, in);
		file_unlinked(st, in); /* or the kernel forgot it before */
		/* -ENOENT: it lost its name meanwhile. */
		return rc < 0 && rc != -ENOENT ? rc : -ESTALE;
	}
	learn_series(st, in);
	stage_lend(&st->stages, fresh, in->ino);
	replace_stage(st, in, fresh);
	file_change_end(st, in);
	return 0;
}

/* No step of an open is under way any more: what was put off can happen. */
void file_change_end(struct store *st, struct inode *in)
{
	bool idle;

	{
		HOLD(&in->lock);
		CHECK(in->file->changing > 0);
		in->file->changing--;
		idle = in->file->changing == 0 && in->file->writers == 0 &&
		       in->file->dirty && in->attr.nlink > 0;
	}
	close_backing(st, in);
	if (idle)
		drain_released(st, in);
}

static void note_mappable_locked(struct file *f, int flags)
{
	f->opened++;
	f->maybe_mapped = true;
	if ((flags & O_ACCMODE) == O_RDWR)
		f->maybe_written = true;
}

static int open_do(struct store *st, struct inode *in, int flags,
		   enum open_step step, struct file_opened *ret)
{
	bool write = flags_write(flags);
	struct stage *dirtied;
	bool gone;
	int rc;

	if (step == OPEN_STALE)
		return -ESTALE;
	rc = step == OPEN_IN_PLACE ? file_take_image(st, in) : 0;
	if (step == OPEN_RENUMBER || rc == -EMLINK) {
		rc = names_renumber(st, in);
		return rc < 0 ? rc : -ESTALE;
	}
	if (rc < 0)
		return rc;
	if (step == OPEN_NEW_STAGE) {
		rc = open_new_stage(st, in);
	} else if (write && (flags & O_TRUNC)) {
		rc = file_truncate_turn(st, in, 0);
	} else {
		rc = check_content(st, in);
	}
	if (rc == 0)
		rc = open_backing(st, in, flags);
	if (rc < 0)
		return rc;
	{
		HOLD(&in->lock);
		gone = in->deleted;
		if (write && !gone)
			note_writer_locked(st, in->file, flags);
		dirtied = gone ? NULL : count_open_locked(in->file, write, 1);
		if (write)
			in->file->reserved_until_ns = 0;
		if (in->file->mode == IO_BACKED &&
		    (flags & O_ACCMODE) != O_WRONLY)
			note_mappable_locked(in->file, flags);
		ret->backing_id =
			in->file->mode == IO_BACKED ? in->file->backing_id : 0;
	}
	if (gone) /* cannot be while the kernel knows it */
		return -ESTALE;
	if (dirtied) {
		file_dirtied(st, in, dirtied);
		drain_disturb(st, in, false);
	}
	return 0;
}

int file_open(struct store *st, struct inode *in, int flags,
	      struct file_opened *ret)
{
	int rc = inode_load_file(st, in);

	if (rc == 0)
		rc = tell_error(in);
	if (rc < 0)
		return rc;
	if (flags_write(flags) && (flags & O_TRUNC))
		drain_wait_released(st, in);
	HOLD(&in->turn);
	return open_turn(st, in, flags, ret);
}

/* Whoever has nothing open is not to be kept open by us. */
static void forget_descriptors(struct store *st, struct inode *in,
			       struct stage *s)
{
	bool reads_too;

	{
		HOLD(&in->lock);
		reads_too = in->file->opens == 0;
	}
	stage_fd_forget(&st->stages, s, reads_too);
	stage_put(&st->stages, s);
}

void file_release(struct store *st, struct inode *in, int flags)
{
	bool write = flags_write(flags);
	struct stage *stage = NULL;
	bool last_writer, readers, gone, left;

	{
		HOLD(&in->turn);
		{
			HOLD(&in->lock);
			(void)count_open_locked(in->file, write, -1);
			last_writer = write && in->file->writers == 0;
			gone = in->attr.nlink == 0;
			readers = last_writer && in->file->opens > 0;
			if (in->file->stage &&
			    (last_writer || in->file->opens == 0)) {
				stage = in->file->stage;
				stage_ref(stage);
			}
		}
		if (stage)
			forget_descriptors(st, in, stage);
		if (readers) /* if nobody is left, it is asked there */
			file_ask_left_turn(st, in);
		close_backing(st, in);
		{
			HOLD(&in->lock);
			left = in->file->maybe_written;
		}
	}
	if (gone) {
		file_unlinked(st, in);
	} else if (last_writer) {
		drain_released(st, in);
		if (left)
			drain_ask_left(st);
	}
}

void file_read_by_owner(struct inode *in)
{
	HOLD(&in->lock);
	in->file->read_by_owner = in->file->opens > 0;
}

int file_flush(struct store *st, struct inode *in, int flags)
{
	bool dirty, released;
	int rc;

	if (!flags_write(flags))
		return 0;
	{
		HOLD(&in->lock);
		dirty = in->file->stage && in->file->dirty &&
			in->attr.nlink > 0;
		released = in->file->writers == 0;
	}
	if (!dirty)
		return 0;
	rc = drain_closed(st, in, released);
	if (rc == 0 && (st->options.durable_close || !store_has_room(st)))
		rc = file_sync(st, in);
	return rc;
}

int file_sync(struct store *st, struct inode *in)
{
	int rc = drain_sync(st, in);

	if (rc < 0) {
		HOLD(&in->lock);
		if (in->file)
			in->file->error_told = true;
	}
	return rc;
}

void file_forgotten(struct store *st, struct inode *in)
{
	uint64_t punch = 0, punch_size = 0;
	struct stage *gone = NULL;
	bool written = false;

	{
		HOLD(&in->lock);
		/* Looked up again meanwhile: it may be mapped again, too. */
		if (inode_lookups(st, in) == 0 && in->file &&
		    in->file->opens == 0 && in->file->changing == 0) {
			in->file->maybe_mapped = false;
			written = in->file->maybe_written;
			in->file->maybe_written = false;
			punch = in->file->punch_image;
			punch_size = in->file->punch_size;
			in->file->punch_image = 0;
			if (is_poor_cache_locked(st, in->file) ||
			    (in->file->stage &&
			     atomic_load(&in->file->stage->wanted) &&
			     may_give_up_locked(in->file)))
				gone = take_stage_locked(in->file);
		}
	}
	drop_stage(st, in, gone);
	if (punch)
		reclaim_add(st->reclaim, punch, 0, punch_size);
	if (written) /* what came through a mapping after the last close */
		drain_released(st, in);
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
		if (in->file->maybe_written && in->file->stage) {
			stage = in->file->stage;
			stage_ref(stage);
		}
	}
	held = stage && held_for_writing(&st->stages, stage);
	stage_put(&st->stages, stage);
	HOLD(&in->lock);
	in->file->maybe_written = held;
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
		open = f->opens > 0;
		f->maybe_written = f->mode == IO_BACKED &&
				   (f->writers > 0 || f->maybe_written);
		f->writers = 0;
		(void)count_open_locked(f, false, -(int)f->opens);
	}
	if (open) {
		HOLD(&in->turn);
		close_backing(st, in);
	}
	ask_who_writes(st, in);
	if (!unlinked)
		return;
	lookups = inode_lookups(st, in);
	inode_forget(st, in, lookups);
	file_unlinked(st, in);
	inode_put(st, in, lookups);
}

void files_abandoned(struct store *st)
{
	images_end(&st->images);
	for (uint32_t i = 0; i < st->stages.slot_count; i++) {
		uint64_t ino = SLOT_GET(&st->stages.slots[i], ino);
		struct inode *in = ino ? inode_peek(st, ino) : NULL;

		if (in)
			file_abandoned(st, in);
		inode_put(st, in, 1);
	}
}

void file_unlinked(struct store *st, struct inode *in)
{
	bool known = inode_lookups(st, in) > 0;
	struct stage *stage = NULL;
	bool gone;

	{
		HOLD(&in->lock);
		gone = in->attr.nlink == 0 && !known && !in->deleted &&
		       (!in->file ||
			(in->file->opens == 0 && in->file->changing == 0));
		if (gone) {
			in->deleted = true;
			if (in->file)
				stage = take_stage_locked(in->file);
		}
	}
	if (!gone)
		return;
	drain_cancel(st, in);
	drop_stage(st, in, stage);
	(void)commit_delete(st, in->ino); /* else the next start does it */
}
