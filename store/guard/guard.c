/* guard.c - see guard.h: when to look, who looks, and what is said then. */
#include "store/guard/guard.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/stat.h>

#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/drain/drain.h"
#include "store/file/file.h"
#include "store/guard/guard_said.h"
#include "store/guard/guard_step.h"
#include "store/guard/structure_store.h"
#include "store/names/names.h"
#include "store/store.h"

/* A tracker names a step, or a number: it is no longer than this. */
#define TRACKER_BYTES_MAX 512
#define TRACKER_PREFIX "latest"
/* Publishes that wait for the thread; more are not looked at, but counted. */
#define WAITING_MAX 256

struct waiting {
	TAILQ_ENTRY(waiting) next;
	struct guard_step step;
};

TAILQ_HEAD(waiting_list, waiting);

struct guard {
	/* One look at a time, whoever takes it. Before all other locks. */
	struct lock looking;
	struct lock lock; /* guards what follows; a leaf */
	struct cond work, idle;
	struct thread thread;
	bool started, stop;
	bool asked; /* by somebody who looks for people, or waits to */
	struct waiting_list waiting;
	uint64_t queued,
		done; /* of what was to be looked at, since the start */
	struct guard_figures figures;
	uint64_t last_dir; /* of which figures.last speaks */
};

/* --- what is said ----------------------------------------------------------
 */

static void count(struct guard_figures *f, const struct guard_verdict *v)
{
	f->checked++;
	f->different += v->different;
	f->broken += v->broken;
	f->missing += v->missing;
}

static void say(struct store *st, const struct guard_step *step,
		const struct guard_verdict *v, bool refused)
{
	struct guard *g = st->guard;
	bool again;

	{
		HOLD(&g->lock);
		count(&g->figures, v);
		g->figures.refused += refused;
		if (!v->text[0])
			return;
		/* .metadata and the tracker of one step: once is enough. */
		again = !refused && g->last_dir == step->dir &&
			strcmp(g->figures.last, v->text) == 0;
		g->last_dir = step->dir;
		strcpy(g->figures.last, v->text);
	}
	if (refused)
		log_error("%s: not published (structure=refuse; see "
			  "ckptctl inspect --diff, or set " GUARD_POLICY_XATTR
			  " to warn)",
			  v->text);
	else if (!again)
		log_warning("%s", v->text);
}

static void say_identical(struct store *st, const struct guard_step *step)
{
	struct guard *g = st->guard;
	char text[GUARD_TEXT_BYTES];

	if (guard_step_identical(st, step, text) <= 0)
		return;
	{
		HOLD(&g->lock);
		if (g->last_dir == step->dir &&
		    strcmp(g->figures.last, text) == 0)
			return;
		g->figures.identical++;
		g->last_dir = step->dir;
		strcpy(g->figures.last, text);
	}
	log_warning("%s", text);
}

/* 0, or -EUCLEAN when somebody must not go on. */
static int look(struct store *st, const struct guard_step *step, bool refuse)
{
	struct guard_verdict v;
	bool bad;
	int rc;

	HOLD(&st->guard->looking);
	rc = guard_step_check(st, step, &v);
	if (rc == -ENOENT || rc == -E2BIG)
		return 0; /* it has gone meanwhile, or is no step */
	if (rc < 0) {
		(void)snprintf(v.text, sizeof(v.text),
			       "structure: %s could not be looked at: %s",
			       step->name, strerror(-rc));
		guard_clean(v.text, strlen(v.text));
		v.broken = true;
	}
	bad = v.broken || v.missing || v.different;
	say(st, step, &v, refuse && bad);
	return refuse && bad ? -EUCLEAN : 0;
}

/* --- the thread ------------------------------------------------------------
 */

static void *guard_main(void *arg)
{
	struct store *st = arg;
	struct guard *g = st->guard;
	struct waiting *w;

	lock_take(&g->lock);
	for (;;) {
		while ((w = TAILQ_FIRST(&g->waiting)) == NULL && !g->stop)
			cond_wait(&g->work, &g->lock);
		if (!w)
			break;
		TAILQ_REMOVE(&g->waiting, w, next);
		lock_give(&g->lock);
		if (!w->step.looked_at)
			(void)look(st, &w->step, false);
		/* Digests are known of what is durable. */
		if (drain_wait_drained(st) == 0) {
			HOLD(&g->looking);
			say_identical(st, &w->step);
		}
		free(w);
		lock_take(&g->lock);
		g->figures.waiting--;
		g->done++;
		cond_broadcast(&g->idle);
	}
	lock_give(&g->lock);
	return NULL;
}

/* Does it wait already, for the same reason? g->lock is held. */
static bool waits_locked(const struct guard *g, const struct guard_step *step)
{
	const struct waiting *w;

	TAILQ_FOREACH(w, &g->waiting, next)
	if (w->step.dir == step->dir && w->step.parent == step->parent &&
	    w->step.dcp_only == step->dcp_only &&
	    w->step.looked_at == step->looked_at &&
	    strcmp(w->step.name, step->name) == 0)
		return true;
	return false;
}

static void have_looked_at(struct store *st, const struct guard_step *step)
{
	struct guard *g = st->guard;
	struct waiting *w = malloc(sizeof(*w));

	if (!w)
		return;
	w->step = *step;
	{
		HOLD(&g->lock);
		if (!g->started || g->stop || waits_locked(g, step)) {
			/* nobody would come, or somebody does anyway */
		} else if (g->figures.waiting >= WAITING_MAX) {
			g->figures.overlooked++;
		} else {
			TAILQ_INSERT_TAIL(&g->waiting, w, next);
			w = NULL;
			g->figures.waiting++;
			g->queued++;
			cond_signal(&g->work);
		}
	}
	free(w);
}

void guard_wait_idle(struct store *st)
{
	struct guard *g = st->guard;
	uint64_t ticket;

	lock_take(&g->lock);
	ticket = g->queued;
	while (g->started && g->done < ticket)
		cond_wait(&g->idle, &g->lock);
	lock_give(&g->lock);
}

int guard_init(struct store *st)
{
	struct guard *g = calloc(1, sizeof(*g));

	if (!g)
		return -ENOMEM;
	lock_init(&g->looking, LOCK_GUARD_LOOKING);
	lock_init(&g->lock, LOCK_GUARD);
	cond_init(&g->work);
	cond_init(&g->idle);
	TAILQ_INIT(&g->waiting);
	st->guard = g;
	return 0;
}

int guard_start(struct store *st)
{
	struct guard *g = st->guard;
	int rc = thread_create(&g->thread, guard_main, st);

	g->started = rc == 0;
	return -rc;
}

void guard_stop(struct store *st)
{
	struct guard *g = st->guard;

	if (!g || !g->started)
		return;
	{
		HOLD(&g->lock);
		g->stop = true;
		cond_signal(&g->work);
	}
	thread_join(&g->thread);
	g->started = false;
}

void guard_release(struct store *st)
{
	struct guard *g = st->guard;

	if (!g)
		return;
	lock_destroy(&g->looking);
	lock_destroy(&g->lock);
	cond_destroy(&g->work);
	cond_destroy(&g->idle);
	free(g);
	st->guard = NULL;
}

void guard_figures(struct store *st, struct guard_figures *ret)
{
	HOLD(&st->guard->lock);
	*ret = st->guard->figures;
}

/* --- what publishes --------------------------------------------------------
 */

/* latest.tmp is none yet: it becomes one when it is renamed. */
static bool is_tracker(const char *name)
{
	return strncmp(name, TRACKER_PREFIX, strlen(TRACKER_PREFIX)) == 0 &&
	       !strstr(name, ".tmp");
}

/* The folder `name` in `parent`; 0: there is none. */
static uint64_t folder_called(struct store *st, uint64_t parent,
			      const char *name)
{
	struct inode *in;
	uint64_t ino = 0;

	if (names_lookup(st->names, parent, name, &in) < 0)
		return 0;
	{
		HOLD(&in->lock);
		if (S_ISDIR(in->attr.mode))
			ino = in->ino;
	}
	inode_put(st->inodes, in, 1);
	return ino;
}

/* Is the last part of a path's folder, path[0, len), called like this one? */
static bool leads_into(struct store *st, uint64_t dir, const char *path,
		       size_t len)
{
	char name[STORE_NAME_MAX + 1] = "";
	struct inode *in;
	size_t end = len;

	if (path[0] != '/' || inode_get(st->inodes, dir, &in) < 0)
		return false;
	{
		HOLD(&in->lock);
		strcpy(name, in->attr.name);
	}
	inode_put(st->inodes, in, 1);
	while (end > 0 && path[end - 1] == '/')
		end--;
	len = strlen(name); /* 0: the root, whose name is not known here */
	return end >= len && memcmp(path + end - len, name, len) == 0 &&
	       (len == 0 || path[end - len - 1] == '/');
}

/*
 * Which folder beside it a symbolic link leads to: latest -> step_10, with ./
 * before or / behind it, or by its whole path, whose end then is that of the
 * link's own folder.
 */
static bool linked(struct store *st, uint64_t parent, const char *target,
		   struct guard_step *ret)
{
	size_t len = strlen(target);
	const char *name;

	while (len > 0 && target[len - 1] == '/')
		len--;
	name = memrchr(target, '/', len);
	name = name ? name + 1 : target;
	len -= (size_t)(name - target);
	if (len == 0 || len > STORE_NAME_MAX || (name[0] == '.' && len == 1) ||
	    (name[0] == '.' && name[1] == '.' && len == 2))
		return false;
	if (name > target &&
	    strncmp(target, "./", (size_t)(name - target)) != 0 &&
	    !leads_into(st, parent, target, (size_t)(name - target)))
		return false;
	*ret = (struct guard_step){ .parent = parent };
	memcpy(ret->name, name, len);
	ret->dir = folder_called(st, parent, ret->name);
	return ret->dir != 0;
}

/*
 * Which folder beside a tracker it names: as it stands (DeepSpeed's latest), or
 * by a number (Megatron's latest_checkpointed_iteration.txt).
 */
static bool tracked(struct store *st, struct inode *in, uint64_t parent,
		    struct guard_step *ret)
{
	static const char *const forms[] = {
		"%s",       "iter_%07lu",     "iter_%lu",      "step_%lu",
		"step-%lu", "global_step%lu", "checkpoint-%lu"
	};
	char text[TRACKER_BYTES_MAX + 1];
	struct stat sb;
	char *word = text, *end;
	unsigned long number;
	size_t len;

	if (inode_stat(st->inodes, in, &sb) < 0 || !S_ISREG(sb.st_mode) ||
	    sb.st_size == 0 || sb.st_size > TRACKER_BYTES_MAX ||
	    structure_read(st, in, text, (size_t)sb.st_size, 0) < 0)
		return false;
	text[sb.st_size] = 0;
	while (isspace((unsigned char)*word))
		word++;
	len = strlen(word);
	while (len > 0 && isspace((unsigned char)word[len - 1]))
		word[--len] = 0;
	if (len == 0 || len > STORE_NAME_MAX || strchr(word, '/') ||
	    strcmp(word, ".") == 0 || strcmp(word, "..") == 0)
		return false;
	errno = 0;
	number = strtoul(word, &end, 10);
	*ret = (struct guard_step){ .parent = parent };
	for (size_t i = 0; i < sizeof(forms) / sizeof(*forms); i++) {
		if (i == 0)
			strcpy(ret->name, word);
		else if (*end || errno || !isdigit((unsigned char)*word))
			return false;
		else
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
			(void)snprintf(ret->name, sizeof(ret->name), forms[i],
				       number);
#pragma GCC diagnostic pop
		ret->dir = folder_called(st, parent, ret->name);
		if (ret->dir)
			return true;
	}
	return false;
}

/* latest -> step_10 */
static bool link_publishes(struct store *st, const char *target,
			   uint64_t parent, const char *name,
			   struct guard_step *ret)
{
	return is_tracker(name) && linked(st, parent, target, ret);
}

/* Does giving `in` this name publish a step, and which? */
static bool published_by(struct store *st, struct inode *in, uint64_t parent,
			 const char *name, struct guard_step *ret)
{
	const char *target; /* as long as the inode */
	bool dir, reg;

	{
		HOLD(&in->lock);
		dir = S_ISDIR(in->attr.mode);
		reg = S_ISREG(in->attr.mode);
		target = in->attr.target;
	}
	*ret = (struct guard_step){ .parent = parent };
	if (target)
		return link_publishes(st, target, parent, name, ret);
	if (dir) {
		ret->dir = in->ino;
		strcpy(ret->name, name);
		return true;
	}
	if (reg && strcmp(name, DCP_METADATA_NAME) == 0) {
		struct inode *folder;

		ret->dir = parent;
		ret->metadata = in->ino;
		ret->dcp_only = true;
		ret->parent = guard_parent(st, parent);
		if (inode_get(st->inodes, parent, &folder) < 0)
			return false;
		{
			HOLD(&folder->lock);
			strcpy(ret->name,
			       ret->parent ? folder->attr.name : "/");
		}
		inode_put(st->inodes, folder, 1);
		return true;
	}
	return reg && is_tracker(name) && tracked(st, in, parent, ret);
}

static int look_before(struct store *st, const struct guard_step *step,
		       bool *ret_looked)
{
	*ret_looked = guard_policy(st, step) == GUARD_REFUSE;
	return *ret_looked ? look(st, step, true) : 0;
}

int guard_name(struct store *st, struct inode *in, uint64_t parent,
	       const char *name, bool *ret_looked)
{
	struct guard_step step;

	*ret_looked = false;
	return published_by(st, in, parent, name, &step)
		       ? look_before(st, &step, ret_looked)
		       : 0;
}

int guard_symlink(struct store *st, const char *target, uint64_t parent,
		  const char *name, bool *ret_looked)
{
	struct guard_step step;

	*ret_looked = false;
	return link_publishes(st, target, parent, name, &step)
		       ? look_before(st, &step, ret_looked)
		       : 0;
}

int guard_rename(struct store *st, uint64_t parent, const char *name,
		 uint64_t new_parent, const char *new_name, bool *ret_looked)
{
	struct inode *in;
	int rc;

	*ret_looked = false;
	if (names_lookup(st->names, parent, name, &in) < 0)
		return 0; /* the rename says why */
	rc = guard_name(st, in, new_parent, new_name, ret_looked);
	inode_put(st->inodes, in, 1);
	return rc;
}

void guard_named(struct store *st, uint64_t parent, const char *name,
		 bool looked)
{
	struct guard_step step;
	struct inode *in;

	if (names_lookup(st->names, parent, name, &in) < 0)
		return;
	if (published_by(st, in, parent, name, &step)) {
		step.metadata = 0; /* it has its name now */
		step.looked_at = looked;
		if (guard_policy(st, &step) != GUARD_OFF)
			have_looked_at(st, &step);
	}
	inode_put(st->inodes, in, 1);
}

/* The tracker says again what it said when it was last durable. */
static int restore(struct store *st, struct inode *in)
{
	SCOPED(scope_free) uint8_t *old = malloc(SMALL_BYTES_MAX);
	struct content_ref *content;
	size_t len = 0;
	int rc = 0;

	if (!old)
		return -ENOMEM;
	/*
	 * What it said last may be on its way still, in a stage of its own; a
	 * job of the stage that it has would make durable what is refused.
	 */
	drain_wait_replaced(st, in);
	{
		HOLD(&in->lock);
		content = in->file->content;
		if (content)
			atomic_fetch_add(&content->refs, 1);
	}
	if (content && content->c.kind != CONTENT_SMALL) {
		content_ref_put(content); /* it was no tracker before */
		return -EFBIG;
	}
	if (content) {
		struct key d = key_ino('D', in->ino);
		SCOPED(scope_free) void *value = NULL;

		rc = kv_get(st->kv, d.data, d.len, &value, &len);
		if (rc == 0 && len > SMALL_BYTES_MAX)
			rc = -EIO;
		if (rc == 0)
			memcpy(old, value, len);
	}
	content_ref_put(content);
	if (rc == 0)
		rc = file_truncate(st, in, 0);
	return rc == 0 && len > 0 ? file_write(st, in, old, len, 0) : rc;
}

int guard_close(struct store *st, struct inode *in)
{
	char name[STORE_NAME_MAX + 1];
	struct guard_step step;
	enum guard_policy policy;
	uint64_t parent;
	bool dirty;
	int rc;

	{
		HOLD(&in->lock);
		if (!is_tracker(in->attr.name) || in->attr.nlink == 0 ||
		    !in->file)
			return 0;
		strcpy(name, in->attr.name);
		parent = in->attr.parent;
		dirty = file_is_dirty(in->file);
	}
	if (!dirty || !tracked(st, in, parent, &step))
		return 0;
	policy = guard_policy(st, &step);
	if (policy == GUARD_OFF)
		return 0;
	if (policy == GUARD_WARN) {
		have_looked_at(st, &step);
		return 0;
	}
	rc = look(st, &step, true);
	if (rc == 0) {
		step.looked_at = true;
		have_looked_at(st, &step);
	} else if (restore(st, in) < 0) {
		guard_clean(name, strlen(name));
		log_error("%s: the tracker's old content could not be restored",
			  name);
	}
	return rc;
}

/* --- for people ------------------------------------------------------------
 */

/* One at a time: the mount's threads must not queue up behind a slow one. */
static bool ask_begin(struct guard *g)
{
	{
		HOLD(&g->lock);
		if (g->asked)
			return false;
		g->asked = true;
	}
	lock_take(&g->looking);
	return true;
}

static void ask_end(struct guard *g)
{
	lock_give(&g->looking);
	HOLD(&g->lock);
	g->asked = false;
}

int guard_signature(struct store *st, struct inode *in, const uid_t *uid,
		    struct bytes *out)
{
	SCOPED(structure_release) struct structure s = { .format = NULL };
	bool dir;
	int rc;

	{
		HOLD(&in->lock);
		dir = S_ISDIR(in->attr.mode);
	}
	if (!ask_begin(st->guard))
		return -EBUSY;
	rc = dir ? structure_of_dir(st, in->ino, 0, &guard_limits, uid, &s)
		 : structure_of_inode(st, in, &guard_limits, &s);
	ask_end(st->guard);
	if (rc < 0)
		return rc;
	if (s.tensors.count == 0)
		return -ENODATA;
	bytes_put(out, s.signature, strlen(s.signature));
	return out->failed ? -ENOMEM : 0;
}

int guard_difference(struct store *st, struct inode *in, const uid_t *uid,
		     struct bytes *out)
{
	struct guard_step step = { .dir = in->ino };
	int rc;

	{
		HOLD(&in->lock);
		if (!S_ISDIR(in->attr.mode))
			return -ENODATA;
		step.parent = in->attr.parent;
		strcpy(step.name, in->attr.name);
	}
	if (!ask_begin(st->guard))
		return -EBUSY;
	rc = guard_step_difference(st, &step, uid, out);
	ask_end(st->guard);
	return rc;
}
