/*
 * guard_tracker.c - what names a step: a small file called latest*, or a
 * symbolic link, and the folder beside it that is meant.
 */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/guard/guard_private.h"
#include "store/names/names.h"

/* A tracker names a step, or a number: it is no longer than this. */
#define TRACKER_BYTES_MAX 512
#define TRACKER_PREFIX "latest"

/* latest.tmp is none yet: it becomes one when it is renamed. */
bool guard_is_tracker(const char *name)
{
	return strncmp(name, TRACKER_PREFIX, strlen(TRACKER_PREFIX)) == 0 &&
	       !strstr(name, ".tmp");
}

/*
 * Is there a folder `name` beside what names it? Then that is the step. No name
 * in the store is "." or "..", or has a slash.
 */
static bool is_beside(struct guard *g, uint64_t parent, const char *name,
		      struct guard_step *ret)
{
	struct inode *in;

	if (names_lookup(g->use.names, parent, name, &in) < 0)
		return false;
	*ret = (struct guard_step){ .parent = parent, .tracked = true };
	strcpy(ret->name, name);
	if (S_ISDIR(inode_attr(in).mode))
		ret->dir = in->ino;
	inode_put(g->use.inodes, in, 1);
	return ret->dir != 0;
}

/* Is the last part of a path's folder, path[0, len), called like this one? */
static bool leads_into(struct guard *g, uint64_t dir, const char *path,
		       size_t len)
{
	struct attr a;
	size_t end = len;

	if (path[0] != '/' || inode_attr_of(g->use.inodes, dir, &a) < 0)
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
bool guard_linked(struct guard *g, uint64_t parent, const char *target,
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
	    !leads_into(g, parent, target, (size_t)(name - target)))
		return false;
	memcpy(folder, name, len);
	return is_beside(g, parent, folder, ret);
}

/*
 * Which folder beside a tracker it names: as it stands (DeepSpeed's latest), or
 * by a number (Megatron's latest_checkpointed_iteration.txt).
 */
static bool tracked(struct guard *g, struct inode *in, uint64_t parent,
		    struct guard_step *ret)
{
	static const struct {
		const char *word;
		int digits; /* at least */
	} forms[] = {
		{ "iter_", 7 }, { "iter_", 1 },       { "step_", 1 },
		{ "step-", 1 }, { "global_step", 1 }, { "checkpoint-", 1 }
	};
	char text[TRACKER_BYTES_MAX + 1], name[64];
	struct stat sb;
	char *word = text, *end;
	unsigned long number;
	size_t len;

	if (inode_stat(g->use.inodes, in, &sb) < 0 || !S_ISREG(sb.st_mode) ||
	    sb.st_size == 0 || sb.st_size > TRACKER_BYTES_MAX ||
	    guard_read(g, in, text, (size_t)sb.st_size, 0) < 0)
		return false;
	text[sb.st_size] = 0;
	while (isspace((unsigned char)*word))
		word++;
	len = strlen(word);
	while (len > 0 && isspace((unsigned char)word[len - 1]))
		word[--len] = 0;
	if (len == 0 || len > STORE_NAME_MAX)
		return false;
	if (is_beside(g, parent, word, ret))
		return true;
	errno = 0;
	number = strtoul(word, &end, 10);
	if (*end || errno || !isdigit((unsigned char)*word))
		return false;
	for (size_t i = 0; i < sizeof(forms) / sizeof(*forms); i++) {
		(void)snprintf(name, sizeof(name), "%s%0*lu", forms[i].word,
			       forms[i].digits, number);
		if (is_beside(g, parent, name, ret))
			return true;
	}
	return false;
}

bool guard_tracked(struct guard *g, struct inode *in, uint64_t parent,
		   struct guard_step *ret)
{
	const struct attr a = inode_attr(in);

	return a.target ? guard_linked(g, parent, a.target, ret)
			: tracked(g, in, parent, ret);
}
