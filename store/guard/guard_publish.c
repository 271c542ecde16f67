/*
 * guard_publish.c - what publishes a step, and which one: a folder's or a
 * .metadata's new name, and what leads to it, a link or a tracker. A tracker
 * that would tell of what is refused gets its durable content back.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/interrupt.h"
#include "store/base/log.h"
#include "store/drain/drain.h"
#include "store/file/file.h"
#include "store/guard/guard_private.h"
#include "store/names/names.h"
#include "store/step/step_name.h"

/* latest -> step_10 */
static bool link_publishes(struct guard *g, const char *target, uint64_t parent,
			   const char *name, struct guard_step *ret)
{
	return guard_is_tracker(name) && guard_linked(g, parent, target, ret);
}

/*
 * Is a file of this name there a step by itself? Not one that is a part of a
 * step, or lies where one is being written.
 */
static bool is_file_step(struct guard *g, uint64_t parent, const char *name)
{
	struct attr a = { .parent = parent };

	if (!step_name_is_file(name) || step_name_is_aside(name))
		return false;
	for (unsigned depth = 0; depth < STRUCTURE_DEPTH_MAX; depth++) {
		if (inode_attr_of(g->use.inodes, a.parent, &a) < 0)
			return false;
		if (a.parent == 0)
			break;
		if (step_name_of(a.name) == STEP_NAME_SURE ||
		    step_name_is_staging(a.name))
			return false;
	}
	return true;
}

/* One of its folders is a step. */
static int run_one(void *arg, const char *name, const struct dirent_rec *entry,
		   uint64_t cookie)
{
	bool *has_step = arg;

	(void)cookie;
	*has_step = *has_step || (S_ISDIR(entry->type) &&
				  step_name_of(name) == STEP_NAME_SURE);
	return 0;
}

/*
 * A folder that gets this name: not what is moved out of the way, which may be
 * broken, and not a whole run, whose steps were published one by one.
 */
static bool is_folder_step(struct guard *g, uint64_t dir, uint64_t parent,
			   const char *name)
{
	bool has_step = false;
	struct attr a;

	if (step_name_is_aside(name) ||
	    (inode_attr_of(g->use.inodes, parent, &a) == 0 && a.parent != 0 &&
	     step_name_is_aside(a.name)))
		return false;
	if (step_name_of(name) == STEP_NAME_SURE)
		return true;
	(void)names_list(g->use.names, dir, 0, run_one, &has_step);
	return !has_step;
}

/* Does giving `in` this name publish a step, and which? */
static bool published_by(struct guard *g, struct inode *in, uint64_t parent,
			 const char *name, struct guard_step *ret)
{
	const struct attr a = inode_attr(in);
	struct attr folder;
	bool publishes;

	*ret = (struct guard_step){ .parent = parent, .asked = in->ino };
	if (S_ISDIR(a.mode)) {
		ret->dir = in->ino;
		strcpy(ret->name, name);
		return is_folder_step(g, in->ino, parent, name);
	}
	if (S_ISREG(a.mode) && strcmp(name, DCP_METADATA_NAME) == 0) {
		if (inode_attr_of(g->use.inodes, parent, &folder) < 0)
			return false;
		ret->dir = parent;
		ret->metadata = in->ino;
		ret->dcp_only = true;
		ret->parent = folder.parent;
		strcpy(ret->name, folder.parent ? folder.name : "/");
		return true;
	}
	if (S_ISREG(a.mode) && is_file_step(g, parent, name)) {
		ret->dir = in->ino;
		ret->file = true;
		strcpy(ret->name, name);
		return true;
	}
	if (a.target)
		publishes = link_publishes(g, a.target, parent, name, ret);
	else
		publishes = S_ISREG(a.mode) && guard_is_tracker(name) &&
			    guard_tracked(g, in, parent, ret);
	ret->asked = in->ino;
	return publishes;
}

/* `publishes`: the step is set; otherwise there is nothing to look at. */
static int look_before(struct guard *g, bool publishes,
		       const struct guard_step *step, bool *ret_looked)
{
	*ret_looked = publishes && guard_policy(g, step) == GUARD_REFUSE;
	return *ret_looked ? guard_look(g, step, true) : 0;
}

/* A tracker is to be exchanged for one that leads nowhere. */
static int look_at_stray(struct guard *g, struct inode *in, uint64_t parent,
			 const char *name)
{
	struct guard_step step = { .parent = parent, .asked = in->ino };
	char was[GUARD_WORD_BYTES] = "", why[GUARD_TEXT_BYTES];
	struct inode *old;

	if (!guard_is_tracker(name) || guard_policy(g, &step) != GUARD_REFUSE ||
	    names_lookup(g->use.names, parent, name, &old) < 0)
		return 0;
	guard_tracker_word(g, old, was);
	inode_put(g->use.inodes, old, 1);
	return guard_strays(g, in, parent, name, was, why)
		       ? guard_refuse(g, &step, why)
		       : 0;
}

int guard_name(struct guard *g, struct inode *in, uint64_t parent,
	       const char *name, bool *ret_looked)
{
	struct guard_step step;
	bool publishes = published_by(g, in, parent, name, &step);

	*ret_looked = false;
	if (!publishes)
		return look_at_stray(g, in, parent, name);
	return look_before(g, publishes, &step, ret_looked);
}

int guard_symlink(struct guard *g, const char *target, uint64_t parent,
		  const char *name, bool *ret_looked)
{
	struct guard_step step;
	bool publishes = link_publishes(g, target, parent, name, &step);

	return look_before(g, publishes, &step, ret_looked);
}

int guard_rename(struct guard *g, uint64_t parent, const char *name,
		 uint64_t new_parent, const char *new_name, bool *ret_looked)
{
	struct inode *in;
	int rc;

	*ret_looked = false;
	if (names_lookup(g->use.names, parent, name, &in) < 0)
		return 0; /* the rename says why */
	rc = guard_name(g, in, new_parent, new_name, ret_looked);
	inode_put(g->use.inodes, in, 1);
	return rc;
}

void guard_named(struct guard *g, uint64_t parent, const char *name,
		 bool looked)
{
	struct guard_step step;
	struct inode *in;

	if (names_lookup(g->use.names, parent, name, &in) < 0)
		return;
	if (published_by(g, in, parent, name, &step)) {
		guard_refused_forget(g, step.dir);
		guard_refused_forget(g, in->ino);
		step.metadata = 0; /* it has its name now */
		step.looked_at = looked;
		if (guard_policy(g, &step) != GUARD_OFF)
			guard_look_later(g, &step);
	}
	inode_put(g->use.inodes, in, 1);
}

/*
 * What was durable last of a small file, which may be on its way still in a
 * stage of its own: a job of the stage that it has would make durable what is
 * refused. -EFBIG: it is no small file.
 */
static int load_durable(struct guard *g, struct inode *in, void **ret,
			size_t *ret_len)
{
	bool committed, small;
	int rc = 0;

	(void)drain_wait_replaced(g->use.drain, in);
	{
		HOLD(&in->lock);
		committed = in->file->content != NULL;
		small = committed && in->file->content->c.kind == CONTENT_SMALL;
	}
	if (committed && !small)
		return -EFBIG; /* it was no tracker before */
	if (small)
		rc = record_load(g->use.kv, key_ino('D', in->ino), ret,
				 ret_len);
	return rc == 0 && *ret_len > SMALL_BYTES_MAX ? -EIO : rc;
}

/* The tracker says again what it said when it was last durable. */
static int restore(struct guard *g, struct inode *in)
{
	SCOPED(scope_free) void *old = NULL;
	size_t len = 0;
	int rc = load_durable(g, in, &old, &len);

	if (rc == 0)
		rc = file_truncate(g->use.files, in, 0);
	return rc == 0 && len > 0 ? file_write(g->use.files, in, old, len, 0)
				  : rc;
}

/* No signal ends this: what was refused would become durable. */
static void restore_or_say(struct guard *g, struct inode *in)
{
	struct attr a = inode_attr(in);
	struct interrupt *call = interrupt_set(NULL);
	int rc = restore(g, in);

	(void)interrupt_set(call);
	if (rc == 0)
		return;
	guard_clean(a.name, strlen(a.name));
	log_error("%s: the tracker's old content could not be restored",
		  a.name);
}

/* It names nothing: does it lead nowhere now, and led to a step before? */
static int close_stray(struct guard *g, struct inode *in, const struct attr *a)
{
	struct guard_step step = { .parent = a->parent, .asked = in->ino };
	char was[GUARD_WORD_BYTES], why[GUARD_TEXT_BYTES];
	SCOPED(scope_free) void *old = NULL;
	size_t len = 0;

	if (guard_policy(g, &step) != GUARD_REFUSE ||
	    load_durable(g, in, &old, &len) < 0)
		return 0;
	guard_word_of(old, len, was);
	if (!guard_strays(g, in, a->parent, a->name, was, why)) {
		guard_refused_forget(g, in->ino);
		return 0;
	}
	restore_or_say(g, in);
	return guard_refuse(g, &step, why);
}

/*
 * No byte was written yet: it was made, perhaps with its size, for somebody who
 * will write it: a child that has the descriptor, a mapping, who opens it next.
 */
static bool is_untouched(struct guard *g, struct inode *in)
{
	struct stat sb;

	return inode_stat(g->use.inodes, in, &sb) == 0 &&
	       (sb.st_size == 0 || sb.st_blocks == 0);
}

/* A step by itself that stays where it is: what is said comes at the end. */
static int close_file(struct guard *g, struct inode *in, const struct attr *a)
{
	struct guard_step step = { .dir = in->ino,
				   .parent = a->parent,
				   .file = true,
				   .in_place = true };

	strcpy(step.name, a->name);
	return guard_policy(g, &step) == GUARD_REFUSE && !is_untouched(g, in)
		       ? guard_peek(g, &step)
		       : 0;
}

int guard_close(struct guard *g, struct inode *in, bool sync)
{
	struct guard_step step;
	enum guard_policy policy;
	bool dirty, shared;
	struct attr a;
	int rc;

	{
		HOLD(&in->lock);
		a = in->attr;
		if (a.nlink == 0 || !in->file)
			return 0;
		dirty = file_is_dirty(in->file);
		shared = in->file->state.writers > 1;
	}
	/* Synced is also what is half written, and so is what others write. */
	if (!sync && is_file_step(g, a.parent, a.name))
		return shared ? 0 : close_file(g, in, &a);
	if (!dirty || !guard_is_tracker(a.name))
		return 0;
	if (!guard_tracked(g, in, a.parent, &step))
		return close_stray(g, in, &a);
	step.asked = in->ino;
	policy = guard_policy(g, &step);
	rc = policy == GUARD_REFUSE ? guard_look(g, &step, true) : 0;
	step.looked_at = policy == GUARD_REFUSE;
	if (rc == 0) {
		guard_refused_forget(g, step.dir);
		guard_refused_forget(g, in->ino);
	}
	if (rc == 0 && policy != GUARD_OFF)
		guard_look_later(g, &step);
	if (rc < 0)
		restore_or_say(g, in);
	return rc;
}

void guard_released(struct guard *g, struct inode *in)
{
	struct guard_step step = { .dir = in->ino,
				   .file = true,
				   .in_place = true };
	struct attr a;

	{
		HOLD(&in->lock);
		a = in->attr;
		if (a.nlink == 0 || !in->file || in->file->state.writers > 0)
			return;
	}
	if (!is_file_step(g, a.parent, a.name))
		return;
	step.parent = a.parent;
	strcpy(step.name, a.name);
	step.in_place = !is_untouched(g, in); /* as its close, see there */
	if (guard_policy(g, &step) != GUARD_OFF)
		guard_look_later(g, &step);
}
