/*
 * file_stage.c - the stage that a file has: where it comes from and how it is
 * let go.
 *
 * A file gets one when it is created, emptied or written to for the first time
 * since it is durable, or the last daemon left it; drain_replace() exchanges it
 * for a fresh one. With each goes a reference to the stage and, for it, one to
 * the inode. Who takes it from the file (as file_end() said, or because the
 * file is deleted) drops it here, without a lock.
 */
#include <errno.h>
#include <string.h>

#include "store/base/memory.h"
#include "store/base/scope.h"
#include "store/drain/drain.h"
#include "store/file/file_private.h"
#include "store/names/names.h"
#include "store/names/series.h"

/*
 * The kernel charges the memory that a writer touches first to his control
 * group, and ends him when that has no more. What is allocated for him before
 * is the daemon's; what his file has more than that is his. So a file is staged
 * in memory only where his groups have room for one that is so many times as
 * large as it is expected to be.
 */
#define OUTGROWS_TIMES 4

/* debug_stage=memory: room for what tests write. */
#define TEST_STAGE_BYTES (UINT64_C(2) << 20)

static int new_stage(struct files *fs, struct inode *in, uint64_t size,
		     struct stage **ret_stage)
{
	if (fs->stage_all_in_memory && size < TEST_STAGE_BYTES)
		size = TEST_STAGE_BYTES;
	return file_make_stage(fs, in, size, ret_stage);
}

void file_drop_stage(struct files *fs, struct inode *in, struct stage *s)
{
	if (!s)
		return;
	image_clear_clean(fs->images, s);
	stage_drop(fs->stages, s);
	inode_put(fs->inodes, in, 1);
}

void file_dirtied(struct files *fs, struct stage *s)
{
	if (!slot_changes(s->slot))
		return;
	stage_unlist(fs->stages, s);
	image_clear_clean(fs->images, s);
}

struct stage *file_end_locked(struct files *fs, struct file *f,
			      enum file_end why)
{
	bool poor = file_is_poor_cache(fs->stages, f);

	if (!f->stage || file_end(&f->state, why, poor) != FATE_GOES)
		return NULL;
	return TAKE(f->stage);
}

bool file_evict(struct files *fs, struct stage *s)
{
	struct inode *in = inode_peek(fs->inodes, stage_ino(s));
	struct stage *gone = NULL;

	if (!in)
		return false;
	/* Whoever opens it now is asked about when he closes it. */
	if (lock_try(&in->changing)) {
		file_ask_left(fs, in);
		lock_give(&in->changing);
	}
	{
		HOLD(&in->lock);
		if (in->file && in->file->stage == s)
			gone = file_end_locked(fs, in->file, END_EVICTED);
	}
	file_drop_stage(fs, in, gone);
	inode_put(fs->inodes, in, 1);
	return gone != NULL;
}

enum give_back file_give_back(struct files *fs, struct stage *s)
{
	struct inode *in = inode_of_slot(fs->inodes, s->slot);
	bool ask = false, later = false;
	struct attr a = { 0 };

	if (in) {
		HOLD(&in->lock);
		/* What lost its name is not drained any more. */
		later = SLOT_GET(s->slot, dirty) && in->attr.nlink > 0;
		if (in->file && in->file->stage == s &&
		    in->file->state.mode == IO_CLOSED &&
		    in->file->state.left != LEFT_NOBODY &&
		    file_may_move(&in->file->state, FILE_WANTED)) {
			file_move(&in->file->state, FILE_WANTED);
			ask = in->attr.nlink == 1;
			a.parent = in->attr.parent;
			strcpy(a.name, in->attr.name);
		}
	}
	/* It forgets what nobody has open or mapped: see file_forgotten(). */
	if (ask && fs->kernel.on_renamed)
		fs->kernel.on_renamed(fs->kernel.arg, a.parent, a.name);
	if (in)
		inode_put(fs->inodes, in, 1);
	if (!later)
		(void)file_evict(fs, s);
	if (SLOT_GET(s->slot, ino) == 0)
		return GIVEN_BACK;
	return later ? GIVEN_LATER : GIVEN_NEVER;
}

static void learn_series(struct files *fs, struct inode *in,
			 uint64_t ret_keys[2])
{
	char path[4096];

	inode_path(fs->inodes, in, path, sizeof(path));
	series_keys(path, ret_keys);
	HOLD(&in->lock);
	in->file->series[0] = ret_keys[0];
	in->file->series[1] = ret_keys[1];
}

void file_learn_series(struct files *fs, struct inode *in)
{
	uint64_t keys[2];

	learn_series(fs, in, keys);
}

/* That of its series; 0: nothing is known, or it would not fit. */
static uint64_t expected_size(struct files *fs, struct inode *in, pid_t pid)
{
	uint64_t keys[2], size;

	learn_series(fs, in, keys);
	size = series_size(fs->kv, keys);
	if (size < STAGE_MEMORY_BYTES_MIN || pid <= 0)
		return size;
	return memory_cgroup_room("", pid) / OUTGROWS_TIMES < size ? 0 : size;
}

int file_install_stage(struct files *fs, struct inode *in, uint64_t size,
		       struct stage **ret_stage)
{
	int rc = new_stage(fs, in, size, ret_stage);

	if (rc < 0)
		return rc;
	inode_ref(in, 1);
	HOLD(&in->lock);
	file_install_locked(in->file, *ret_stage, FILE_STAGED);
	return 0;
}

int file_prepare(struct files *fs, struct inode *in, const struct names_new *n)
{
	struct stage *s = n->stage;
	int rc = 0;

	if (s) {
		file_learn_series(fs, in);
		stage_lend(fs->stages, s, in->ino);
	} else {
		rc = new_stage(fs, in, expected_size(fs, in, n->pid), &s);
	}
	if (rc < 0)
		return rc;
	inode_ref(in, 1);
	HOLD(&in->lock);
	in->file->stage = s; /* unseen */
	file_move(&in->file->state, s->sealed ? FILE_LENT : FILE_STAGED);
	return 0;
}

void file_created(struct inode *in)
{
	HOLD(&in->lock);
	file_show_stage(in->file);
}

int file_adopt(struct files *fs, struct inode *in, struct stage *s, bool dirty,
	       uint64_t place)
{
	int rc = inode_load_file(fs->inodes, in);

	if (rc < 0)
		return rc;
	file_learn_series(fs, in);
	inode_ref(in, 1);
	{
		HOLD(&in->lock);
		file_install_locked(in->file, s,
				    !dirty      ? FILE_FOUND
				    : s->sealed ? FILE_LENT
						: FILE_STAGED);
	}
	if (!dirty)
		stage_list(fs->stages, s);
	return dirty && place ? drain_resume(fs->drain, in, s, place) : 0;
}

void file_replace_stage(struct files *fs, struct inode *in, struct stage *fresh)
{
	inode_ref(in, 1);
	file_drop_stage(fs, in, drain_replace(fs->drain, in, fresh));
}

int file_fresh_stage(struct files *fs, struct inode *in, pid_t pid)
{
	struct stage *s;
	int rc;

	rc = new_stage(fs, in, expected_size(fs, in, pid), &s);
	if (rc < 0)
		return rc;
	stage_show(s);
	file_replace_stage(fs, in, s);
	return 0;
}
