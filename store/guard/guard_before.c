/*
 * guard_before.c - which step is the one before: the folder, or of a file the
 * file, beside it that is called like a step of the same run, by the next
 * smaller number. Of what lies in a step it is the folder of that name in the
 * step before.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "store/guard/guard_private.h"
#include "store/names/names.h"
#include "store/step/step_name.h"

/* Of folders that might be the step before, how many are looked into. */
#define BEFORE_TRIES 8
/* Trackers beside a step that are asked whether it is one. */
#define TRACKERS_MAX 4

/* What to look for among the folders beside the step. */
struct search {
	const struct guard_step *step;
	const char *below; /* only names that are smaller */
	struct guard_before found; /* the greatest of these; dir 0: none */
	uint64_t trackers[TRACKERS_MAX];
	unsigned tracker_count;
};

static int search_one(void *arg, const char *name,
		      const struct dirent_rec *entry, uint64_t cookie)
{
	struct search *s = arg;

	(void)cookie;
	if (guard_is_tracker(name) && s->tracker_count < TRACKERS_MAX)
		s->trackers[s->tracker_count++] = entry->ino;
	if ((s->step->file ? !S_ISREG(entry->type) : !S_ISDIR(entry->type)) ||
	    entry->ino == s->step->dir ||
	    !step_name_same_series(name, s->step->name) ||
	    step_name_compare(name, s->below) >= 0 ||
	    (s->found.dir != 0 && step_name_compare(name, s->found.name) <= 0))
		return 0;
	s->found.dir = entry->ino;
	strcpy(s->found.name, name);
	return 0;
}

/* The next one that is smaller than `below`. -ENODATA: there is none. */
static int search(struct guard *g, const struct guard_step *step,
		  const char *below, struct search *ret)
{
	int rc;

	*ret = (struct search){ .step = step, .below = below };
	rc = names_list(g->use.names, step->parent, 0, search_one, ret);
	return rc == 0 && ret->found.dir == 0 ? -ENODATA : rc;
}

/* Does this tracker name a step of that run? */
static bool tracks(struct guard *g, uint64_t tracker,
		   const struct guard_step *step)
{
	struct guard_step named;
	struct inode *in;
	bool same;

	if (inode_get(g->use.inodes, tracker, &in) < 0)
		return false;
	same = guard_tracked(g, in, step->parent, &named) &&
	       step_name_same_series(named.name, step->name);
	inode_put(g->use.inodes, in, 1);
	return same;
}

/* The name alone does not say it: do others? first: the step before. */
static bool is_agreed(struct guard *g, const struct guard_step *step,
		      const struct search *first)
{
	struct search second;

	if (step->tracked)
		return true;
	for (unsigned i = 0; i < first->tracker_count; i++)
		if (tracks(g, first->trackers[i], step))
			return true;
	return search(g, step, first->found.name, &second) == 0 &&
	       step_name_even(second.found.name, first->found.name, step->name);
}

/*
 * The step that this is, or that it lies in; ret_part gets its path there, ""
 * or like "/actor". -ENODATA: it is none, nor in one.
 */
static int whole_of(struct guard *g, const struct guard_step *step,
		    struct guard_step *ret, char ret_part[GUARD_PATH_BYTES])
{
	struct attr a;

	*ret = *step;
	ret_part[0] = 0;
	for (unsigned depth = 0; ret->parent != 0; depth++) {
		size_t len = strlen(ret_part), name = strlen(ret->name) + 1;

		if (step_name_of(ret->name) == STEP_NAME_SURE ||
		    (depth == 0 &&
		     step_name_of(ret->name) == STEP_NAME_PERHAPS))
			return 0;
		if (depth == STRUCTURE_DEPTH_MAX ||
		    len + name >= GUARD_PATH_BYTES ||
		    inode_attr_of(g->use.inodes, ret->parent, &a) < 0)
			break;
		memmove(ret_part + name, ret_part, len + 1);
		ret_part[0] = '/';
		memcpy(ret_part + 1, ret->name, name - 1);
		ret->dir = ret->parent;
		ret->parent = a.parent;
		strcpy(ret->name, a.name);
	}
	return -ENODATA;
}

/* The folder that has this path in that one. -ENOENT. */
static int find_part(struct guard *g, const char *part, uint64_t *dir)
{
	struct inode *in;
	int rc = *part ? guard_find(g, *dir, part + 1, &in) : 0;

	if (rc < 0 || !*part)
		return rc;
	if (!S_ISDIR(inode_attr(in).mode))
		rc = -ENOENT;
	*dir = in->ino;
	inode_put(g->use.inodes, in, 1);
	return rc;
}

static bool has_metadata(struct guard *g, uint64_t dir)
{
	struct inode *in;

	if (names_lookup(g->use.names, dir, DCP_METADATA_NAME, &in) < 0)
		return false;
	inode_put(g->use.inodes, in, 1);
	return true;
}

/* When it was changed last; -1: it is gone. */
static int64_t changed_at(struct guard *g, uint64_t dir, uid_t *ret_uid)
{
	struct attr a;

	if (inode_attr_of(g->use.inodes, dir, &a) < 0)
		return -1;
	*ret_uid = a.uid;
	return a.nlink > 0 ? a.mtime_ns : -1;
}

/* 0: it is a measure; 1: it is none, look at the next; -errno. */
static int try_one(struct guard *g, const struct guard_step *step, uint64_t dir,
		   bool dcp, const uid_t *uid, const uid_t *reader,
		   struct structure *ret)
{
	uid_t owner = 0;
	int64_t when;
	int rc;

	if (dcp && !has_metadata(g, dir))
		return 1; /* it was not finished */
	when = changed_at(g, dir, &owner);
	if (uid && *uid != 0 && *uid != owner)
		return -EACCES;
	rc = guard_read_step(g, step, dir, reader, true, ret);
	if (rc == 0 && ret->tensors.count > 0 && ret->error_count == 0 &&
	    when >= 0 && when == changed_at(g, dir, &owner))
		return 0;
	structure_release(ret);
	return rc == 0 || rc == -ENOENT || rc == -E2BIG ||
			       (!uid && rc == -EACCES)
		       ? 1
		       : rc;
}

int guard_read_before(struct guard *g, const struct guard_step *step,
		      const uid_t *uid, struct guard_before *ret,
		      struct structure *ret_what)
{
	bool dcp = step->metadata != 0 || has_metadata(g, step->dir);
	bool further = ret->dir != 0;
	char part[GUARD_PATH_BYTES];
	struct guard_step whole;
	uid_t publisher = 0;
	const uid_t *reader = uid ? uid : &publisher;
	int rc = whole_of(g, step, &whole, part);

	if (rc < 0)
		return rc;
	(void)changed_at(g, step->dir, &publisher);
	strcpy(ret->now, whole.name);
	if (!further)
		strcpy(ret->name, whole.name);
	for (unsigned tries = 0; tries < BEFORE_TRIES; tries++) {
		struct search s;

		rc = search(g, &whole, ret->name, &s);
		if (rc < 0)
			return rc;
		if (tries == 0 && !further &&
		    step_name_of(whole.name) == STEP_NAME_PERHAPS &&
		    !is_agreed(g, &whole, &s))
			return -ENODATA;
		ret->dir = s.found.dir;
		strcpy(ret->name, s.found.name);
		rc = find_part(g, part, &ret->dir);
		if (rc == 0)
			rc = try_one(g, step, ret->dir, dcp, uid, reader,
				     ret_what);
		if (rc == 0 || (rc < 0 && rc != -ENOENT))
			return rc;
	}
	return -ENODATA;
}
