/*
 * guard_publish.c - what publishes a step, and which one: a folder's or a
 * .metadata's new name, and what leads to it, a link or a tracker. A tracker
 * that would tell of what is refused gets its durable content back.
 */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/log.h"
#include "store/drain/drain.h"
#include "store/file/file.h"
#include "store/guard/guard_private.h"
#include "store/names/names.h"

/* A tracker names a step, or a number: it is no longer than this. */
#define TRACKER_BYTES_MAX 512
#define TRACKER_PREFIX "latest"

/* latest.tmp is none yet: it becomes one when it is renamed. */
static bool is_tracker(const char *name)
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
	*ret = (struct guard_step){ .parent = parent };
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
static bool linked(struct guard *g, uint64_t parent, const char *target,
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

/* latest -> step_10 */
static bool link_publishes(struct guard *g, const char *target, uint64_t parent,
			   const char *name, struct guard_step *ret)
{
	return is_tracker(name) && linked(g, parent, target, ret);
}

/* Does giving `in` this name publish a step, and which? */
static bool published_by(struct guard *g, struct inode *in, uint64_t parent,
			 const char *name, struct guard_step *ret)
{
	const struct attr a = inode_attr(in);
	struct attr folder;

	*ret = (struct guard_step){ .parent = parent };
	if (a.target)
		return link_publishes(g, a.target, parent, name, ret);
	if (S_ISDIR(a.mode)) {
		ret->dir = in->ino;
		strcpy(ret->name, name);
		return true;
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
	return S_ISREG(a.mode) && is_tracker(name) &&
	       tracked(g, in, parent, ret);
}

/* `publishes`: the step is set; otherwise there is nothing to look at. */
static int look_before(struct guard *g, bool publishes,
		       const struct guard_step *step, bool *ret_looked)
{
	*ret_looked = publishes && guard_policy(g, step) == GUARD_REFUSE;
	return *ret_looked ? guard_look(g, step, true) : 0;
}

int guard_name(struct guard *g, struct inode *in, uint64_t parent,
	       const char *name, bool *ret_looked)
{
	struct guard_step step;
	bool publishes = published_by(g, in, parent, name, &step);

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
		step.metadata = 0; /* it has its name now */
		step.looked_at = looked;
		if (guard_policy(g, &step) != GUARD_OFF)
			guard_look_later(g, &step);
	}
	inode_put(g->use.inodes, in, 1);
}

/* The tracker says again what it said when it was last durable. */
static int restore(struct guard *g, struct inode *in)
{
	SCOPED(scope_free) void *old = NULL;
	bool committed, small;
	size_t len = 0;
	int rc = 0;

	/*
	 * What it said last may be on its way still, in a stage of its own; a
	 * job of the stage that it has would make durable what is refused.
	 */
	drain_wait_replaced(g->use.drain, in);
	{
		HOLD(&in->lock);
		committed = in->file->content != NULL;
		small = committed && in->file->content->c.kind == CONTENT_SMALL;
	}
	if (committed && !small)
		return -EFBIG; /* it was no tracker before */
	if (small)
		rc = record_load(g->use.kv, key_ino('D', in->ino), &old, &len);
	if (rc == 0 && len > SMALL_BYTES_MAX)
		rc = -EIO;
	if (rc == 0)
		rc = file_truncate(g->use.files, in, 0);
	return rc == 0 && len > 0 ? file_write(g->use.files, in, old, len, 0)
				  : rc;
}

int guard_close(struct guard *g, struct inode *in)
{
	struct guard_step step;
	enum guard_policy policy;
	struct attr a;
	int rc;

	{
		HOLD(&in->lock);
		a = in->attr;
		if (!is_tracker(a.name) || a.nlink == 0 || !in->file ||
		    !file_is_dirty(in->file))
			return 0;
	}
	if (!tracked(g, in, a.parent, &step))
		return 0;
	policy = guard_policy(g, &step);
	rc = policy == GUARD_REFUSE ? guard_look(g, &step, true) : 0;
	step.looked_at = policy == GUARD_REFUSE;
	if (rc == 0 && policy != GUARD_OFF)
		guard_look_later(g, &step);
	if (rc < 0 && restore(g, in) < 0) {
		guard_clean(a.name, strlen(a.name));
		log_error("%s: the tracker's old content could not be restored",
			  a.name);
	}
	return rc;
}
