/*
 * guard.c - when to look and who looks: the call that publishes, when it may be
 * refused, or else a thread, which also compares the bytes once all is durable;
 * and what is said then. What publishes a step: guard_publish.c.
 */
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "store/base/log.h"
#include "store/drain/drain.h"
#include "store/guard/guard_private.h"

/* Publishes that wait for the thread; more are not looked at, but counted. */
#define WAITING_MAX 256

struct guard_waiting {
	TAILQ_ENTRY(guard_waiting) next;
	struct guard_step step;
};

/* What reading a step took is given back at once, from this size on. */
#define GIVEN_BACK_BYTES_MIN ((size_t)16 << 20)

static void give_back(struct guard *g)
{
	{
		HOLD(&g->lock);
		g->figures.memory_bytes = g->memory.bytes;
		g->figures.memory_peak = g->memory.peak;
	}
	if (mallinfo2().fordblks >= GIVEN_BACK_BYTES_MIN)
		(void)malloc_trim(0);
}

/* --- what is said --- */

/* False: that is what was said last, of the same step. g->lock is held. */
static bool is_news_locked(struct guard *g, const struct guard_step *step,
			   const char *text)
{
	bool again =
		g->last_dir == step->dir && strcmp(g->figures.last, text) == 0;

	g->last_dir = step->dir;
	strcpy(g->figures.last, text);
	return !again;
}

static void say(struct guard *g, const struct guard_step *step,
		const struct guard_verdict *v, bool refused)
{
	bool news;

	{
		HOLD(&g->lock);
		g->figures.checked++;
		g->figures.different += v->different;
		g->figures.broken += v->broken;
		g->figures.missing += v->missing;
		g->figures.gone += v->gone;
		g->figures.refused += refused;
		if (!v->text[0])
			return;
		/* .metadata and the tracker of one step: once is enough. */
		news = is_news_locked(g, step, v->text);
	}
	if (refused)
		log_error("%s: %s (structure=refuse; if it is meant, "
			  "set " GUARD_POLICY_XATTR " to warn on the folder)",
			  v->text,
			  step->in_place ? "its close failed, it stays as it is"
					 : "not published");
	else if (news)
		log_warning("%s", v->text);
}

static void say_identical(struct guard *g, const struct guard_step *step)
{
	char text[GUARD_TEXT_BYTES];

	if (guard_step_identical(g, step, text) <= 0)
		return;
	{
		HOLD(&g->lock);
		if (!is_news_locked(g, step, text))
			return;
		g->figures.identical++;
	}
	log_warning("%s", text);
}

/* False: it has gone meanwhile, or is no step. */
static bool look(struct guard *g, const struct guard_step *step,
		 struct guard_verdict *ret)
{
	int rc = guard_step_check(g, step, ret);

	give_back(g);
	if (rc == -ENOENT || rc == -E2BIG)
		return false;
	if (rc < 0) {
		*ret = (struct guard_verdict){ .different = true };
		(void)snprintf(ret->text, sizeof(ret->text),
			       "structure: %s could not be looked at: %s",
			       step->name, strerror(-rc));
		guard_clean(ret->text, strlen(ret->text));
	}
	return true;
}

int guard_look(struct guard *g, const struct guard_step *step, bool refuse)
{
	struct guard_verdict v;

	HOLD(&g->looking);
	if (!look(g, step, &v))
		return 0;
	refuse = refuse && (v.broken || v.missing || v.gone);
	if (refuse)
		guard_refused_note(g, step, v.text, false);
	say(g, step, &v, refuse);
	return refuse ? -EUCLEAN : 0;
}

int guard_peek(struct guard *g, const struct guard_step *step)
{
	struct guard_verdict v;

	HOLD(&g->looking);
	if (!look(g, step, &v) || (!v.broken && !v.missing && !v.gone))
		return 0;
	guard_refused_note(g, step, v.text, true);
	return -EUCLEAN;
}

int guard_refuse(struct guard *g, const struct guard_step *step,
		 const char *why)
{
	struct guard_verdict v = { .missing = true, .different = true };

	strcpy(v.text, why);
	guard_refused_note(g, step, why, false);
	say(g, step, &v, true);
	return -EUCLEAN;
}

/* --- the thread --- */

static void *guard_main(void *arg)
{
	struct guard *g = arg;
	struct guard_waiting *w;

	lock_take(&g->lock);
	for (;;) {
		while ((w = TAILQ_FIRST(&g->waiting)) == NULL && !g->stop)
			cond_wait(&g->work, &g->lock);
		if (!w)
			break;
		TAILQ_REMOVE(&g->waiting, w, next);
		lock_give(&g->lock);
		if (!w->step.looked_at)
			(void)guard_look(g, &w->step,
					 w->step.in_place &&
						 guard_policy(g, &w->step) ==
							 GUARD_REFUSE);
		/* Digests are known of what is durable. */
		if (drain_wait_drained(g->use.drain) == 0) {
			HOLD(&g->looking);
			say_identical(g, &w->step);
		}
		free(w);
		lock_take(&g->lock);
		g->done++;
		cond_broadcast(&g->idle);
	}
	lock_give(&g->lock);
	return NULL;
}

/* Does it wait already, for the same reason? g->lock is held. */
static bool waits_locked(const struct guard *g, const struct guard_step *step)
{
	const struct guard_waiting *w;

	TAILQ_FOREACH(w, &g->waiting, next)
	if (w->step.dir == step->dir && w->step.parent == step->parent &&
	    w->step.dcp_only == step->dcp_only &&
	    w->step.looked_at == step->looked_at &&
	    strcmp(w->step.name, step->name) == 0)
		return true;
	return false;
}

void guard_look_later(struct guard *g, const struct guard_step *step)
{
	struct guard_waiting *w = malloc(sizeof(*w));

	if (!w)
		return;
	w->step = *step;
	{
		HOLD(&g->lock);
		if (!g->started || g->stop || waits_locked(g, step)) {
			/* nobody would come, or somebody does anyway */
		} else if (g->queued - g->done >= WAITING_MAX) {
			g->figures.overlooked++;
		} else {
			TAILQ_INSERT_TAIL(&g->waiting, w, next);
			w = NULL;
			g->queued++;
			cond_signal(&g->work);
		}
	}
	free(w);
}

void guard_wait_idle(struct guard *g)
{
	HOLD(&g->lock);
	for (uint64_t ticket = g->queued; g->started && g->done < ticket;)
		cond_wait(&g->idle, &g->lock);
}

int guard_new(const struct guard_uses *use, struct guard **ret_guard)
{
	struct guard *g = calloc(1, sizeof(*g));

	if (!g)
		return -ENOMEM;
	g->use = *use;
	g->memory.bytes_max = GUARD_MEMORY_OF_ALL_MAX;
	lock_init(&g->looking, LOCK_GUARD_LOOKING);
	lock_init(&g->lock, LOCK_GUARD);
	cond_init(&g->work);
	cond_init(&g->idle);
	TAILQ_INIT(&g->waiting);
	*ret_guard = g;
	return 0;
}

int guard_start(struct guard *g)
{
	int rc = thread_create(&g->thread, guard_main, g);

	g->started = rc == 0;
	return rc;
}

void guard_stop(struct guard *g)
{
	if (!g->started)
		return;
	{
		HOLD(&g->lock);
		g->stop = true;
		cond_signal(&g->work);
	}
	thread_join(&g->thread);
	g->started = false;
}

void guard_free(struct guard *g)
{
	if (!g)
		return;
	guard_stop(g);
	lock_destroy(&g->looking);
	lock_destroy(&g->lock);
	cond_destroy(&g->work);
	cond_destroy(&g->idle);
	free(g);
}

void guard_figures(struct guard *g, struct guard_figures *ret)
{
	HOLD(&g->lock);
	*ret = g->figures;
	ret->waiting = g->queued - g->done;
}

/* --- for people --- */

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
	give_back(g);
	lock_give(&g->looking);
	HOLD(&g->lock);
	g->asked = false;
}

int guard_signature(struct guard *g, struct inode *in, const uid_t *uid,
		    struct bytes *out)
{
	struct structure s = { .format = NULL };
	const struct attr a = inode_attr(in);
	int rc;

	if (!ask_begin(g))
		return -EBUSY;
	rc = S_ISDIR(a.mode) ? guard_read_dir(g, in->ino, 0, uid, false, &s)
			     : guard_read_file(g, in, a.name, &s);
	if (rc == 0 && s.tensors.count == 0)
		rc = structure_is_partly_read(&s) ? -EFBIG : -ENODATA;
	if (rc == 0)
		bytes_put(out, s.signature, strlen(s.signature));
	structure_release(&s);
	ask_end(g);
	return rc < 0 ? rc : out->failed ? -ENOMEM : 0;
}

int guard_difference(struct guard *g, struct inode *in, const uid_t *uid,
		     struct bytes *out)
{
	const struct attr a = inode_attr(in);
	struct guard_step step = { .dir = in->ino, .parent = a.parent };
	int rc;

	if (!S_ISDIR(a.mode))
		return -ENODATA;
	strcpy(step.name, a.name);
	if (!ask_begin(g))
		return -EBUSY;
	rc = guard_step_difference(g, &step, uid, out);
	ask_end(g);
	return rc;
}
