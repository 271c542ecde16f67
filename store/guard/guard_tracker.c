/*
 * guard_tracker.c - what names a step: a small file called latest*, or a
 * symbolic link, and the folder beside it that is meant, or the file.
 */
#include <string.h>

#include "store/guard/guard_private.h"
#include "store/step/step_name.h"

/*
 * Is there a folder `name` beside what names it, or a file of tensors, called
 * like a step or not (model.pt)? Then that is the step.
 */
static bool is_beside(struct guard_visit *v, uint64_t parent, const char *name,
		      struct guard_step *ret)
{
	struct guard_attr a;
	uint64_t id;

	/* A word that a tracker says may be anything. */
	if (strchr(name, '/') || strcmp(name, ".") == 0 ||
	    strcmp(name, "..") == 0 || visit_find(v, parent, name, &id) < 0 ||
	    visit_attr(v, id, &a) < 0)
		return false;
	*ret = (struct guard_step){ .parent = parent, .tracked = true };
	strcpy(ret->name, name);
	if (S_ISREG(a.mode) && step_name_is_of_tensors(name))
		ret->file = true;
	if (S_ISDIR(a.mode) || ret->file)
		ret->dir = id;
	return ret->dir != 0;
}

/* Is the last part of a path's folder, path[0, len), called like this one? */
static bool leads_into(struct guard_visit *v, uint64_t dir, const char *path,
		       size_t len)
{
	struct guard_attr a;
	size_t end = len;

	if (path[0] != '/' || visit_attr(v, dir, &a) < 0)
		return false;
	while (end > 0 && path[end - 1] == '/')
		end--;
	len = strlen(a.name); /* 0: the root, whose name is not known here */
	return end >= len && memcmp(path + end - len, a.name, len) == 0 &&
	       (len == 0 || path[end - len - 1] == '/');
}

/*
 * Which folder beside it a symbolic link leads to: latest -> step_10, with ./
 * before or / behind it, or by its whole path, whose end then is that of the
 * link's own folder.
 */
bool guard_linked(struct guard_visit *v, uint64_t parent, const char *target,
		  struct guard_step *ret)
{
	char folder[STORE_NAME_MAX + 1] = "";
	size_t len = strlen(target);
	const char *name;

	while (len > 0 && target[len - 1] == '/')
		len--;
	name = memrchr(target, '/', len);
	name = name ? name + 1 : target;
	len -= (size_t)(name - target);
	if (len == 0 || len > STORE_NAME_MAX)
		return false;
	if (name > target &&
	    strncmp(target, "./", (size_t)(name - target)) != 0 &&
	    !leads_into(v, parent, target, (size_t)(name - target)))
		return false;
	memcpy(folder, name, len);
	return is_beside(v, parent, folder, ret);
}

/* As it lies in the file. false: it has none, or more than a tracker has. */
static bool read_word(struct guard_visit *v, uint64_t id,
		      const struct guard_attr *a, char ret[TRACKER_WORD_BYTES])
{
	char text[TRACKER_BYTES_MAX];

	ret[0] = 0;
	if (!S_ISREG(a->mode) || a->size_bytes == 0 ||
	    a->size_bytes > TRACKER_BYTES_MAX ||
	    visit_read(v, id, text, (size_t)a->size_bytes) < 0)
		return false;
	tracker_word(text, (size_t)a->size_bytes, ret);
	return true;
}

static void word_of(struct guard_visit *v, uint64_t id,
		    const struct guard_attr *a, char ret[TRACKER_WORD_BYTES])
{
	SCOPED(bytes_release) struct bytes target = { 0 };

	ret[0] = 0;
	if (!S_ISLNK(a->mode))
		(void)read_word(v, id, a, ret);
	else if (visit_target(v, id, &target) == 0)
		tracker_word(target.data, target.len, ret);
}

void guard_tracker_word(struct guard_visit *v, uint64_t id,
			char ret[TRACKER_WORD_BYTES])
{
	struct guard_attr a;

	ret[0] = 0;
	if (visit_attr(v, id, &a) == 0)
		word_of(v, id, &a, ret);
}

struct beside {
	struct guard_visit *v;
	uint64_t parent;
	struct guard_step *ret;
};

static int beside_one(void *arg, const char *name)
{
	struct beside *b = arg;

	return is_beside(b->v, b->parent, name, b->ret);
}

/* Which folder beside a tracker its word names. */
static bool names_step(struct guard_visit *v, uint64_t parent, const char *word,
		       struct guard_step *ret)
{
	struct beside b = { v, parent, ret };

	return tracker_each_step(word, beside_one, &b) != 0;
}

static bool exists(struct guard_visit *v, uint64_t parent, const char *name)
{
	uint64_t id;

	return visit_find(v, parent, name, &id) == 0;
}

/* Of a text that is no name: several words, or JSON. */
#define NO_NAME " \t\r\n\"'{}[],:"

static bool is_number(const char *word)
{
	return *word && strspn(word, "0123456789") == strlen(word);
}

struct siblings {
	const char *name;
	bool found;
};

static int sibling_one(void *arg, const char *name, uint32_t type,
		       uint64_t number)
{
	struct siblings *s = arg;

	(void)type;
	(void)number;
	s->found = s->found || step_name_same_series(name, s->name);
	return 0;
}

/* Do steps of this one's run lie here, and not elsewhere? */
static bool has_siblings(struct guard_visit *v, uint64_t parent,
			 const char *name)
{
	struct siblings s = { .name = name };

	return step_name_of(name) == STEP_NAME_SURE &&
	       visit_list(v, parent, sibling_one, &s) == 0 && s.found;
}

/*
 * Did it name a step, which may be gone by now? A number may count anything,
 * but where everybody knows what it counts.
 */
static bool was_tracker(struct guard_visit *v, uint64_t parent,
			const char *name, const char *was)
{
	struct guard_step step;

	if (!was[0] || strpbrk(was, NO_NAME))
		return false;
	if (is_number(was) && tracker_is_of_number(name))
		return true;
	return has_siblings(v, parent, was) ||
	       ((!is_number(was) || tracker_counts_steps(name)) &&
		names_step(v, parent, was, &step));
}

struct numbered {
	const char *digits;
	size_t len;
	bool found;
};

static int numbered_one(void *arg, const char *name, uint32_t type,
			uint64_t number)
{
	struct numbered *n = arg;

	(void)number;
	n->found = n->found || ((S_ISDIR(type) || step_name_is_file(name)) &&
				step_name_has(name, n->digits, n->len));
	return 0;
}

/* Is there a step beside it that has this number, however it is called? */
static bool has_number(struct guard_visit *v, uint64_t parent, const char *word)
{
	struct numbered n = { .found = false };

	n.digits = step_name_number(word, &n.len);
	return is_number(word) &&
	       visit_list(v, parent, numbered_one, &n) == 0 && n.found;
}

bool guard_strays(struct guard_visit *v, uint64_t id, uint64_t parent,
		  const char *name, const char *was, char why[GUARD_TEXT_BYTES])
{
	struct guard_text t = { why, 0, GUARD_TEXT_BYTES };
	char word[TRACKER_WORD_BYTES];
	struct guard_attr a;

	if (visit_attr(v, id, &a) < 0 ||
	    (!S_ISLNK(a.mode) && !S_ISREG(a.mode)) ||
	    !was_tracker(v, parent, name, was))
		return false;
	word_of(v, id, &a, word);
	if (strchr(word, '/') || (word[0] && exists(v, parent, word)) ||
	    has_number(v, parent, word) ||
	    (S_ISREG(a.mode) && a.size_bytes == 0 &&
	     !tracker_is_of_number(name)))
		return false;
	guard_put(&t, "structure: %.200s: it is not complete: ", name);
	if (word[0])
		guard_put(&t, "it names %.200s, which is not there", word);
	else
		guard_put(&t, "it names no step");
	guard_put(&t, ", and named %.200s before", was);
	return true;
}

bool guard_tracked(struct guard_visit *v, uint64_t id, uint64_t parent,
		   struct guard_step *ret)
{
	SCOPED(bytes_release) struct bytes target = { 0 };
	char word[TRACKER_WORD_BYTES];
	struct guard_attr a;

	if (visit_attr(v, id, &a) < 0)
		return false;
	if (!S_ISLNK(a.mode))
		return read_word(v, id, &a, word) &&
		       names_step(v, parent, word, ret);
	if (visit_target(v, id, &target) < 0)
		return false;
	bytes_put(&target, "", 1);
	return !target.failed &&
	       guard_linked(v, parent, (const char *)target.data, ret);
}
