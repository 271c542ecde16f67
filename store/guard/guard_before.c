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
	uint64_t number; /* of the step */
	char trackers[TRACKERS_MAX][STORE_NAME_MAX + 1];
	unsigned tracker_count;
};

static int search_one(void *arg, const char *name, uint32_t type,
		      uint64_t number)
{
	struct search *s = arg;

	if (tracker_is_of_steps(name) && s->tracker_count < TRACKERS_MAX)
		strcpy(s->trackers[s->tracker_count++], name);
	if ((s->step->file ? !S_ISREG(type) : !S_ISDIR(type)) ||
	    number == s->number ||
	    !step_name_same_series(name, s->step->name) ||
	    step_name_compare(name, s->below) >= 0 ||
	    (s->found.name[0] && step_name_compare(name, s->found.name) <= 0))
		return 0;
	strcpy(s->found.name, name);
	return 0;
}

/* The next one that is smaller than `below`. -ENODATA: there is none. */
static int search(struct guard_visit *v, const struct guard_step *step,
		  const char *below, struct search *ret)
{
	struct guard_attr a;
	int rc;

	*ret = (struct search){ .step = step, .below = below };
	if (visit_attr(v, step->dir, &a) == 0)
		ret->number = a.number;
	rc = visit_list(v, step->parent, search_one, ret);
	if (rc == 0 && !ret->found.name[0])
		rc = -ENODATA;
	/* One that went in this moment has dir 0, in which nothing is found. */
	if (rc == 0)
		(void)visit_find(v, step->parent, ret->found.name,
				 &ret->found.dir);
	return rc;
}

/* Does this tracker name a step of that run? */
static bool tracks(struct guard_visit *v, const char *tracker,
		   const struct guard_step *step)
{
	struct guard_step named;
	uint64_t id;

	return visit_find(v, step->parent, tracker, &id) == 0 &&
	       guard_tracked(v, id, step->parent, &named) &&
	       step_name_same_series(named.name, step->name);
}

/* The name alone does not say it: do others? first: the step before. */
static bool is_agreed(struct guard_visit *v, const struct guard_step *step,
		      const struct search *first)
{
	struct search second;

	if (step->tracked)
		return true;
	for (unsigned i = 0; i < first->tracker_count; i++)
		if (tracks(v, first->trackers[i], step))
			return true;
	return search(v, step, first->found.name, &second) == 0 &&
	       step_name_even(second.found.name, first->found.name, step->name);
}

/*
 * The step that this is, or that it lies in; ret_part gets its path there, ""
 * or like "/actor". -ENODATA: it is none, nor in one.
 */
static int whole_of(struct guard_visit *v, const struct guard_step *step,
		    struct guard_step *ret, char ret_part[GUARD_PATH_BYTES])
{
	struct guard_attr a;

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
		    visit_attr(v, ret->parent, &a) < 0)
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
static int find_part(struct guard_visit *v, const char *part, uint64_t *dir)
{
	struct guard_attr a;
	int rc;

	if (!*part)
		return *dir == 0 ? -ENOENT : 0;
	rc = guard_find(v, *dir, part + 1, dir);
	if (rc == 0)
		rc = visit_attr(v, *dir, &a);
	return rc == 0 && !S_ISDIR(a.mode) ? -ENOENT : rc;
}

static bool has_metadata(struct guard_visit *v, uint64_t dir)
{
	uint64_t id;

	return visit_find(v, dir, DCP_METADATA_NAME, &id) == 0;
}

/* When it was changed last; -1: it is gone. */
static int64_t changed_at(struct guard_visit *v, uint64_t dir, uid_t *ret_uid)
{
	struct guard_attr a;

	if (visit_attr(v, dir, &a) < 0)
		return -1;
	*ret_uid = a.uid;
	return a.nlink > 0 ? a.mtime_ns : -1;
}

/* 0: it is a measure; 1: it is none, look at the next; -errno. */
static int try_one(struct guard_visit *v, const struct guard_step *step,
		   uint64_t dir, bool dcp, const uid_t *uid,
		   const uid_t *reader, struct structure *ret)
{
	uid_t owner = 0;
	int64_t when;
	int rc;

	if (dcp && !has_metadata(v, dir))
		return 1; /* it was not finished */
	when = changed_at(v, dir, &owner);
	if (uid && *uid != 0 && *uid != owner)
		return -EACCES;
	rc = guard_read_step(v, step, dir, reader, true, ret);
	if (rc == 0 && ret->tensors.count > 0 && ret->error_count == 0 &&
	    when >= 0 && when == changed_at(v, dir, &owner))
		return 0;
	structure_release(ret);
	return rc == 0 || rc == -ENOENT || rc == -E2BIG ||
			       (!uid && rc == -EACCES)
		       ? 1
		       : rc;
}

int guard_read_before(struct guard_visit *v, const struct guard_step *step,
		      const uid_t *uid, struct guard_before *ret,
		      struct structure *ret_what)
{
	bool dcp = step->metadata != 0 || has_metadata(v, step->dir);
	bool further = ret->dir != 0;
	char part[GUARD_PATH_BYTES];
	struct guard_step whole;
	uid_t publisher = 0;
	const uid_t *reader = uid ? uid : &publisher;
	int rc = whole_of(v, step, &whole, part);

	if (rc < 0)
		return rc;
	(void)changed_at(v, step->dir, &publisher);
	strcpy(ret->now, whole.name);
	if (!further)
		strcpy(ret->name, whole.name);
	for (unsigned tries = 0; tries < BEFORE_TRIES; tries++) {
		struct search s;

		rc = search(v, &whole, ret->name, &s);
		if (rc < 0)
			return rc;
		if (tries == 0 && !further &&
		    step_name_of(whole.name) == STEP_NAME_PERHAPS &&
		    !is_agreed(v, &whole, &s))
			return -ENODATA;
		ret->dir = s.found.dir;
		strcpy(ret->name, s.found.name);
		rc = find_part(v, part, &ret->dir);
		if (rc == 0)
			rc = try_one(v, step, ret->dir, dcp, uid, reader,
				     ret_what);
		if (rc == 0 || (rc < 0 && rc != -ENOENT))
			return rc;
	}
	return -ENODATA;
}
