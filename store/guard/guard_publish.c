/*
 * guard_publish.c - what publishes a step, and which one: a folder's or a
 * .metadata's new name, and what leads to it, a link or a tracker. A tracker
 * that would tell of what is refused gets its durable content back.
 */
#include <errno.h>
#include <fcntl.h>
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
static bool link_publishes(struct guard_visit *v, const char *target,
			   uint64_t parent, const char *name,
			   struct guard_step *ret)
{
	return tracker_is_of_steps(name) &&
	       guard_linked(v, parent, target, ret);
}

/*
 * Is a file of this name there a step by itself? Not one that is a part of a
 * step, or lies where one is being written.
 */
static bool is_file_step(struct guard_visit *v, uint64_t parent,
			 const char *name)
{
	struct guard_attr a;
	uint64_t at = parent;

	if (!step_name_is_file(name) || step_name_is_aside(name))
		return false;
	for (unsigned depth = 0; depth < STRUCTURE_DEPTH_MAX; depth++) {
		if (visit_attr(v, at, &a) < 0)
			return false;
		if (a.parent == 0)
			break;
		at = a.parent;
		if (step_name_of(a.name) == STEP_NAME_SURE ||
		    step_name_is_staging(a.name))
			return false;
	}
	return true;
}

/* One of its folders is a step. */
static int run_one(void *arg, const char *name, uint32_t type, uint64_t number)
{
	bool *has_step = arg;

	(void)number;
	*has_step = *has_step ||
		    (S_ISDIR(type) && step_name_of(name) == STEP_NAME_SURE);
	return 0;
}

/*
 * A folder that gets this name: not what is moved out of the way, which may be
 * broken, and not a whole run, whose steps were published one by one.
 */
static bool is_folder_step(struct guard_visit *v, uint64_t dir, uint64_t parent,
			   const char *name)
{
	bool has_step = false;
	struct guard_attr a;

	if (step_name_is_aside(name) ||
	    (visit_attr(v, parent, &a) == 0 && a.parent != 0 &&
	     step_name_is_aside(a.name)))
		return false;
	if (step_name_of(name) == STEP_NAME_SURE)
		return true;
	(void)visit_list(v, dir, run_one, &has_step);
	return !has_step;
}

/* Does giving this name to `id` publish a step, and which? */
static bool published_by(struct guard_visit *v, uint64_t id, uint64_t parent,
			 const char *name, struct guard_step *ret)
{
	struct guard_attr a, folder;
	bool publishes;

	*ret = (struct guard_step){ .parent = parent, .asked = id };
	if (visit_attr(v, id, &a) < 0)
		return false;
	if (S_ISDIR(a.mode)) {
		ret->dir = id;
		strcpy(ret->name, name);
		return is_folder_step(v, id, parent, name);
	}
	if (S_ISREG(a.mode) && strcmp(name, DCP_METADATA_NAME) == 0) {
		if (visit_attr(v, parent, &folder) < 0)
			return false;
		ret->dir = parent;
		ret->metadata = id;
		ret->dcp_only = true;
		ret->parent = folder.parent;
		strcpy(ret->name, folder.parent ? folder.name : "/");
		return true;
	}
	if (S_ISREG(a.mode) && is_file_step(v, parent, name)) {
		ret->dir = id;
		ret->file = true;
		strcpy(ret->name, name);
		return true;
	}
	publishes = (S_ISLNK(a.mode) || S_ISREG(a.mode)) &&
		    tracker_is_of_steps(name) &&
		    guard_tracked(v, id, parent, ret);
	ret->asked = id;
	return publishes;
}

/* `publishes`: the step is set; otherwise there is nothing to look at. */
static int look_before(struct guard_visit *v, bool publishes,
		       const struct guard_step *step, bool *ret_looked)
{
	*ret_looked = publishes && guard_policy(v, step) == GUARD_REFUSE;
	return *ret_looked ? guard_look(v, step, true) : 0;
}

/* A tracker is to be exchanged for one that leads nowhere. */
static int look_at_stray(struct guard_visit *v, uint64_t id, uint64_t parent,
			 const char *name)
{
	struct guard_step step = { .parent = parent, .asked = id };
	char was[TRACKER_WORD_BYTES] = "", why[GUARD_TEXT_BYTES];
	uint64_t old;

	if (!tracker_is_of_steps(name) ||
	    guard_policy(v, &step) != GUARD_REFUSE ||
	    visit_find(v, parent, name, &old) < 0)
		return 0;
	guard_tracker_word(v, old, was);
	return guard_strays(v, id, parent, name, was, why)
		       ? guard_refuse(v, &step, why)
		       : 0;
}

static int look_at_name(struct guard_visit *v, uint64_t id, uint64_t parent,
			const char *name, bool *ret_looked)
{
	struct guard_step step;
	bool publishes = published_by(v, id, parent, name, &step);

	*ret_looked = false;
	if (!publishes)
		return look_at_stray(v, id, parent, name);
	return look_before(v, publishes, &step, ret_looked);
}

int guard_name(struct guard *g, uint64_t id, uint64_t parent, const char *name,
	       bool *ret_looked)
{
	SCOPED(visit_end) struct guard_visit v;

	visit_begin(&v, g);
	return look_at_name(&v, id, parent, name, ret_looked);
}

int guard_symlink(struct guard *g, const char *target, uint64_t parent,
		  const char *name, bool *ret_looked)
{
	SCOPED(visit_end) struct guard_visit v;
	struct guard_step step;
	bool publishes;

	visit_begin(&v, g);
	publishes = link_publishes(&v, target, parent, name, &step);
	return look_before(&v, publishes, &step, ret_looked);
}

int guard_rename(struct guard *g, uint64_t parent, const char *name,
		 uint64_t new_parent, const char *new_name, bool *ret_looked)
{
	SCOPED(visit_end) struct guard_visit v;
	uint64_t id;

	*ret_looked = false;
	visit_begin(&v, g);
	if (visit_find(&v, parent, name, &id) < 0)
		return 0; /* the rename says why */
	return look_at_name(&v, id, new_parent, new_name, ret_looked);
}

void guard_named(struct guard *g, uint64_t parent, const char *name,
		 bool looked)
{
	SCOPED(visit_end) struct guard_visit v;
	struct guard_step step;
	uint64_t id;

	visit_begin(&v, g);
	if (visit_find(&v, parent, name, &id) < 0 ||
	    !published_by(&v, id, parent, name, &step))
		return;
	guard_refused_forget(&v, step.dir);
	guard_refused_forget(&v, id);
	step.metadata = 0; /* it has its name now */
	step.looked_at = looked;
	if (guard_policy(&v, &step) != GUARD_OFF)
		guard_look_later(g, &step);
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

/* With a handle: what nobody has open may be drained between the two. */
static int rewrite(struct guard *g, struct inode *in, const void *text,
		   size_t len)
{
	const struct file_opener by = { .way = FILE_BY_WRITER };
	struct file_opened opened;
	int rc = file_open_for(g->use.files, in, O_WRONLY, &by, &opened);

	if (rc < 0)
		return rc;
	rc = file_truncate(g->use.files, in, 0);
	if (rc == 0 && len > 0)
		rc = file_write(g->use.files, in, text, len, 0);
	file_release(g->use.files, in, O_WRONLY);
	return rc;
}

/* The tracker says again what it said when it was last durable. */
static int restore(struct guard *g, struct inode *in)
{
	SCOPED(scope_free) void *old = NULL;
	size_t len = 0;
	int rc;

	if (g->table.undo(g->table.self, in->ino))
		return 0;
	rc = load_durable(g, in, &old, &len);
	return rc == 0 ? rewrite(g, in, old, len) : rc;
}

/* No signal ends this: what was refused would become durable. */
static void restore_or_say(struct guard *g, struct inode *in,
			   const struct guard_attr *a)
{
	struct interrupt *call = interrupt_set(NULL);
	char name[STORE_NAME_MAX + 1];
	int rc = restore(g, in);

	(void)interrupt_set(call);
	if (rc == 0)
		return;
	strcpy(name, a->name);
	guard_clean(name, strlen(name));
	log_error("%s: the tracker's old content could not be restored", name);
}

/* Would it be refused, if something is wrong with it? */
static bool is_refused(struct guard_visit *v, const struct inode *in,
		       const struct guard_attr *a)
{
	const struct guard_step step = { .parent = a->parent,
					 .asked = in->ino };

	return guard_policy(v, &step) == GUARD_REFUSE;
}

/* It names nothing: does it lead nowhere now, and led to a step before? */
static int close_stray(struct guard_visit *v, struct inode *in,
		       const struct guard_attr *a)
{
	struct guard_step step = { .parent = a->parent, .asked = in->ino };
	char was[TRACKER_WORD_BYTES], why[GUARD_TEXT_BYTES];
	SCOPED(scope_free) void *old = NULL;
	char before[TRACKER_WORD_BYTES];
	size_t len = 0;
	int rc;

	if (!is_refused(v, in, a) || load_durable(v->g, in, &old, &len) < 0)
		return 0;
	tracker_word(old, len, was);
	if (len == 0 &&
	    visit_replaced(v, in->ino, before, sizeof(before), &len) == 0)
		tracker_word(before, len, was);
	if (!guard_strays(v, in->ino, a->parent, a->name, was, why)) {
		guard_refused_forget(v, in->ino);
		return 0;
	}
	rc = guard_refuse(v, &step, why);
	restore_or_say(v->g, in, a);
	return rc;
}

static bool goes_on(const struct guard_closer *by, const struct guard_attr *a)
{
	return by && by->goes_on(by->arg, a->number);
}

static void set_closed(struct guard_step *step, const struct inode *in,
		       const struct guard_attr *a)
{
	*step = (struct guard_step){ .dir = in->ino,
				     .parent = a->parent,
				     .file = true,
				     .in_place = true };
	strcpy(step->name, a->name);
}

/*
 * A step by itself that stays where it is: what is said comes at the end. Of
 * what others have open to write, besides whoever closes it, nothing is found.
 */
static int close_file(struct guard_visit *v, struct inode *in,
		      const struct guard_attr *a, const struct guard_closer *by)
{
	SCOPED(guard_closed_end) struct guard_closed c = { 0 };
	struct guard_step step;

	set_closed(&step, in, a);
	return guard_policy(v, &step) == GUARD_REFUSE &&
			       guard_closed_begin(v->g, in->ino, 1, &c) &&
			       !guard_closed_untouched(&c) && !goes_on(by, a)
		       ? guard_peek(v, &step, &c)
		       : 0;
}

static int close_tracker(struct guard_visit *v, struct inode *in,
			 const struct guard_attr *a)
{
	struct guard *g = v->g;
	struct guard_step step;
	enum guard_policy policy;
	int rc;

	if (!guard_tracked(v, in->ino, a->parent, &step))
		return close_stray(v, in, a);
	step.asked = in->ino;
	policy = guard_policy(v, &step);
	rc = policy == GUARD_REFUSE ? guard_look(v, &step, true) : 0;
	step.looked_at = policy == GUARD_REFUSE;
	if (rc == 0) {
		guard_refused_forget(v, step.dir);
		guard_refused_forget(v, in->ino);
	}
	if (rc == 0 && policy != GUARD_OFF)
		guard_look_later(g, &step);
	if (rc == -EUCLEAN)
		restore_or_say(g, in, a);
	return rc;
}

int guard_close(struct guard *g, struct inode *in,
		const struct guard_closer *by)
{
	SCOPED(visit_end) struct guard_visit v;
	struct guard_attr a;
	bool dirty, alone;

	visit_begin(&v, g);
	{
		HOLD(&in->lock);
		if (in->attr.nlink == 0 || !in->file)
			return 0;
		dirty = file_is_dirty(in->file);
		alone = in->file->state.writers <= 1;
	}
	if (visit_attr(&v, in->ino, &a) < 0)
		return 0;
	/* Synced is also what is half written. */
	if (by && is_file_step(&v, a.parent, a.name))
		return close_file(&v, in, &a, by);
	if (!dirty || !tracker_is_of_steps(a.name))
		return 0;
	/* Of several who have opened it each has his close. */
	if (alone && is_refused(&v, in, &a) && goes_on(by, &a))
		return 1;
	return close_tracker(&v, in, &a);
}

void guard_released(struct guard *g, struct inode *in)
{
	SCOPED(visit_end) struct guard_visit v;
	struct guard_step step;
	struct guard_attr a;

	visit_begin(&v, g);
	{
		HOLD(&in->lock);
		/* Whoever writes it still is the next to be released. */
		if (in->attr.nlink == 0 || in->file->state.writers > 0)
			return;
	}
	if (visit_attr(&v, in->ino, &a) < 0 ||
	    !is_file_step(&v, a.parent, a.name))
		return;
	set_closed(&step, in, &a);
	if (guard_policy(&v, &step) != GUARD_OFF)
		guard_look_later(g, &step);
}

int guard_committed(struct guard *g, struct inode *in)
{
	SCOPED(visit_end) struct guard_visit v;
	struct guard_attr a;
	int rc = 0;

	visit_begin(&v, g);
	if (visit_attr(&v, in->ino, &a) == 0 &&
	    is_file_step(&v, a.parent, a.name))
		rc = close_file(&v, in, &a, NULL);
	guard_released(g, in);
	return rc;
}

/* A tracker was emptied to be written, and nobody came to that. */
static bool put_back_emptied(struct guard *g, struct inode *in)
{
	SCOPED(scope_free) void *old = NULL;
	SCOPED(visit_end) struct guard_visit v;
	char why[GUARD_TEXT_BYTES], was[TRACKER_WORD_BYTES];
	struct guard_text t = { why, 0, sizeof(why) };
	struct guard_step step = { .asked = in->ino };
	struct guard_attr a;
	size_t len = 0;

	visit_begin(&v, g);
	if (visit_attr(&v, in->ino, &a) < 0 || a.size_bytes != 0 ||
	    !tracker_is_of_steps(a.name) || !is_refused(&v, in, &a) ||
	    load_durable(g, in, &old, &len) < 0 || len == 0)
		return false;
	step.parent = a.parent;
	tracker_word(old, len, was);
	guard_put(&t,
		  "structure: %.200s: it is not complete: it was emptied, and "
		  "not written when the daemon ended, and named %.200s before",
		  a.name, was);
	(void)guard_refuse(&v, &step, why);
	restore_or_say(g, in, &a);
	return true;
}

void guard_was_open(struct guard *g, struct inode *in)
{
	if (g->table.self != &g->use) /* it is no number of that table */
		return;
	if (!put_back_emptied(g, in))
		(void)guard_close(g, in, NULL);
	guard_released(g, in);
}
