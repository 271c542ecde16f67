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

/*
 * A step that other nodes have parts of is looked at again, at longer and
 * longer intervals, until all of it can be read.
 */
#define AGAIN_FIRST_NS (INT64_C(1) * 1000000000)
#define AGAIN_MOST_NS (INT64_C(60) * 1000000000)
#define AGAIN_FOR_NS (INT64_C(3600) * 1000000000)

struct guard_waiting {
	TAILQ_ENTRY(guard_waiting) next;
	struct guard_step step; /* its numbers are held */
	int64_t due_ns; /* not before; 0: at once */
	int64_t wait_ns, since_ns; /* of one that is looked at again */
};

/* What reading a step took is given back at once, from this size on. */
#define GIVEN_BACK_BYTES_MIN ((size_t)16 << 20)

static void give_back(struct guard *g)
{
	{
		HOLD(&g->lock);
		g->figures.memory_bytes =
			__atomic_load_n(&g->memory.bytes, __ATOMIC_RELAXED);
		g->figures.memory_peak =
			__atomic_load_n(&g->memory.peak, __ATOMIC_RELAXED);
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
			  step->in_place ? "it stays as it is"
					 : "not published");
	else if (news)
		log_warning("%s", v->text);
}

static void say_identical(struct guard_visit *v, const struct guard_step *step)
{
	struct guard *g = v->g;
	char text[GUARD_TEXT_BYTES];

	if (guard_step_identical(v, step, text) <= 0)
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
static bool look(struct guard_visit *v, const struct guard_step *step,
		 struct guard_verdict *ret)
{
	int rc = guard_step_check(v, step, ret);

	give_back(v->g);
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

static bool is_loss(const struct guard_verdict *found)
{
	return found->broken || found->missing || found->gone;
}

/* What was found is said, and is refused if it is to be: 0, or -EUCLEAN. */
static int tell(struct guard_visit *v, const struct guard_step *step,
		const struct guard_verdict *found, bool refuse)
{
	refuse = refuse && is_loss(found);
	if (refuse)
		guard_refused_note(v, step, found->text, false);
	say(v->g, step, found, refuse);
	return refuse ? -EUCLEAN : 0;
}

int guard_look(struct guard_visit *v, const struct guard_step *step,
	       bool refuse)
{
	struct guard_verdict found;
	int rc = visit_turn(v);
	bool seen;

	if (rc < 0)
		return rc;
	seen = look(v, step, &found);
	if (seen && refuse && is_loss(&found) && v->cached_count > 0) {
		/* The rest of a file may be in the kernel. */
		visit_turn_end(v);
		visit_write_back(v);
		rc = visit_turn(v);
		if (rc < 0)
			return rc;
		seen = look(v, step, &found);
	}
	if (seen)
		rc = tell(v, step, &found, refuse);
	visit_turn_end(v);
	return rc;
}

int guard_peek(struct guard_visit *v, const struct guard_step *step,
	       const struct guard_closed *c)
{
	struct guard_verdict found;
	int rc = visit_turn(v);

	if (rc < 0)
		return rc;
	if (look(v, step, &found) && is_loss(&found) && guard_closed_still(c)) {
		guard_refused_note(v, step, found.text, true);
		rc = -EUCLEAN;
	}
	visit_turn_end(v);
	return rc;
}

int guard_refuse(struct guard_visit *v, const struct guard_step *step,
		 const char *why)
{
	struct guard_verdict found = { .missing = true, .different = true };

	strcpy(found.text, why);
	guard_refused_note(v, step, why, false);
	say(v->g, step, &found, true);
	return -EUCLEAN;
}

/* --- the threads --- */

/* All numbers of a step; 0: it has none. */
#define STEP_NUMBERS 4

static bool hold_step(struct guard *g, const struct guard_step *step)
{
	const uint64_t all[STEP_NUMBERS] = { step->dir, step->parent,
					     step->metadata, step->asked };
	const struct guard_table *t = &g->table;

	for (unsigned i = 0; t->hold && i < STEP_NUMBERS; i++) {
		if (all[i] == 0 || t->hold(t->self, all[i]) == 0)
			continue;
		while (i-- > 0)
			if (all[i] != 0)
				t->put(t->self, all[i]);
		return false;
	}
	return true;
}

static void free_waiting(struct guard *g, struct guard_waiting *w)
{
	const struct guard_step *step = &w->step;
	const uint64_t all[STEP_NUMBERS] = { step->dir, step->parent,
					     step->metadata, step->asked };

	for (unsigned i = 0; g->table.put && i < STEP_NUMBERS; i++)
		if (all[i] != 0)
			g->table.put(g->table.self, all[i]);
	free(w);
}

enum looked {
	LOOK_OVER,
	LOOK_AGAIN, /* it was changed meanwhile, and nothing is said of it */
	LOOK_LATER, /* others have parts of it */
};

/* What the last close of a file left: see guard_closed.c. */
static enum looked look_at_closed(struct guard_visit *v,
				  const struct guard_step *step,
				  const struct guard_closed *c)
{
	bool refuse = guard_policy(v, step) == GUARD_REFUSE &&
		      !guard_closed_untouched(c); /* as its close, see there */
	struct guard_verdict found;
	bool seen, still;

	if (visit_turn(v) < 0)
		return LOOK_OVER;
	seen = look(v, step, &found);
	still = guard_closed_still(c);
	if (seen && still)
		(void)tell(v, step, &found, refuse);
	visit_turn_end(v);
	return still ? LOOK_OVER : LOOK_AGAIN;
}

static enum looked look_and_compare(struct guard *g, struct guard_waiting *w)
{
	SCOPED(guard_closed_end) struct guard_closed c = { 0 };
	SCOPED(visit_end) struct guard_visit v;

	visit_begin(&v, g);
	if (w->step.in_place) {
		if (!guard_closed_begin(g, w->step.dir, 0, &c))
			return LOOK_OVER;
		if (look_at_closed(&v, &w->step, &c) == LOOK_AGAIN)
			return LOOK_AGAIN;
	} else if (!w->step.looked_at) {
		(void)guard_look(&v, &w->step, false);
	}
	if (v.elsewhere)
		return LOOK_LATER;
	/* Digests are known of what is durable. */
	if (drain_wait_drained(g->use.drain) == 0 && visit_turn(&v) == 0) {
		say_identical(&v, &w->step);
		visit_turn_end(&v);
	}
	return v.elsewhere ? LOOK_LATER : LOOK_OVER;
}

/* Who is due; else until when to wait. g->lock is held. */
static struct guard_waiting *take_locked(struct guard *g, int64_t *ret_due_ns)
{
	struct guard_waiting *w;
	bool later = false;

	*ret_due_ns = INT64_MAX;
	TAILQ_FOREACH(w, &g->waiting, next)
	{
		if (w->due_ns == 0)
			return w;
		later = true;
	}
	if (!later)
		return NULL;
	TAILQ_FOREACH(w, &g->waiting, next)
	{
		if (w->due_ns <= mono_ns())
			return w;
		if (w->due_ns < *ret_due_ns)
			*ret_due_ns = w->due_ns;
	}
	return NULL;
}

/* It is put back, unless it was looked at for long enough. g->lock is held. */
static bool again_locked(struct guard *g, struct guard_waiting *w)
{
	int64_t now = mono_ns();

	if (w->since_ns == 0)
		w->since_ns = now;
	if (g->stop || now - w->since_ns > AGAIN_FOR_NS)
		return false;
	w->wait_ns = w->wait_ns == 0 ? AGAIN_FIRST_NS : 2 * w->wait_ns;
	if (w->wait_ns > AGAIN_MOST_NS)
		w->wait_ns = AGAIN_MOST_NS;
	w->due_ns = now + w->wait_ns;
	w->step.looked_at = false;
	TAILQ_INSERT_TAIL(&g->waiting, w, next);
	return true;
}

/*
 * Does it wait already, for the same reason? What was closed under its name may
 * be refused, so that is not left to what waits for another reason. g->lock is
 * held.
 */
static bool waits_locked(const struct guard *g, const struct guard_step *step)
{
	const struct guard_waiting *w;

	TAILQ_FOREACH(w, &g->waiting, next)
	if (w->step.dir == step->dir && w->step.parent == step->parent &&
	    w->step.dcp_only == step->dcp_only &&
	    w->step.looked_at == step->looked_at &&
	    w->step.in_place == step->in_place &&
	    strcmp(w->step.name, step->name) == 0)
		return true;
	return false;
}

static void *guard_main(void *arg)
{
	struct guard *g = arg;
	struct guard_waiting *w;
	int64_t due_ns;

	lock_take(&g->lock);
	for (;;) {
		enum looked end;
		bool first;

		while ((w = take_locked(g, &due_ns)) == NULL && !g->stop) {
			if (due_ns == INT64_MAX)
				cond_wait(&g->work, &g->lock);
			else
				(void)cond_wait_until(&g->work, &g->lock,
						      due_ns);
		}
		if (!w)
			break;
		TAILQ_REMOVE(&g->waiting, w, next);
		lock_give(&g->lock);
		first = w->since_ns == 0;
		end = look_and_compare(g, w);
		lock_take(&g->lock);
		if (end == LOOK_AGAIN && !waits_locked(g, &w->step)) {
			TAILQ_INSERT_TAIL(&g->waiting, w, next);
			continue;
		}
		if (first)
			g->done++;
		cond_broadcast(&g->idle);
		if (end == LOOK_LATER && again_locked(g, w))
			continue;
		lock_give(&g->lock);
		free_waiting(g, w);
		lock_take(&g->lock);
	}
	lock_give(&g->lock);
	return NULL;
}

void guard_look_later(struct guard *g, const struct guard_step *step)
{
	struct guard_waiting *w = malloc(sizeof(*w));

	if (!w)
		return;
	*w = (struct guard_waiting){ .step = *step };
	if (!hold_step(g, step)) { /* it is gone */
		free(w);
		return;
	}
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
	if (w)
		free_waiting(g, w);
}

void guard_wait_idle(struct guard *g)
{
	drain_hurry_begin(g->use.drain); /* what it looks at is drained first */
	{
		HOLD(&g->lock);
		for (uint64_t ticket = g->queued;
		     g->started && g->done < ticket;)
			cond_wait(&g->idle, &g->lock);
	}
	drain_hurry_end(g->use.drain);
}

int guard_new(const struct guard_uses *use, struct guard **ret_guard)
{
	struct guard *g = calloc(1, sizeof(*g));

	if (!g)
		return -ENOMEM;
	g->use = *use;
	g->memory.bytes_max = GUARD_MEMORY_OF_ALL_MAX;
	lock_init(&g->lock, LOCK_GUARD);
	cond_init(&g->work);
	cond_init(&g->idle);
	cond_init(&g->turn);
	guard_local_table(&g->use, &g->table);
	TAILQ_INIT(&g->waiting);
	*ret_guard = g;
	return 0;
}

void guard_set_table(struct guard *g, const struct guard_table *t)
{
	CHECK(!g->started);
	g->table = *t;
}

const struct guard_table *guard_table(const struct guard *g)
{
	return &g->table;
}

int guard_start(struct guard *g)
{
	unsigned count = g->table.hangs ? GUARD_THREADS : 1;
	int rc = 0;

	while (rc == 0 && g->thread_count < count) {
		rc = thread_create(&g->threads[g->thread_count], guard_main, g);
		g->thread_count += rc == 0;
	}
	g->started = g->thread_count > 0;
	return rc;
}

void guard_stop(struct guard *g)
{
	struct guard_waiting *w; /* for others, who may come later */

	if (!g->started)
		return;
	{
		HOLD(&g->lock);
		g->stop = true;
		cond_broadcast(&g->work);
	}
	while (g->thread_count > 0)
		thread_join(&g->threads[--g->thread_count]);
	g->started = false;
	while ((w = TAILQ_FIRST(&g->waiting))) {
		TAILQ_REMOVE(&g->waiting, w, next);
		free_waiting(g, w);
	}
}

void guard_free(struct guard *g)
{
	if (!g)
		return;
	guard_stop(g);
	lock_destroy(&g->lock);
	cond_destroy(&g->work);
	cond_destroy(&g->idle);
	cond_destroy(&g->turn);
	free(g);
}

void guard_figures(struct guard *g, struct guard_figures *ret)
{
	HOLD(&g->lock);
	*ret = g->figures;
	ret->waiting = g->queued - g->done;
}

/* --- for people --- */

/*
 * One at a time, or of those that may hang a few: the mount's threads must not
 * queue up behind a slow one.
 */
static int ask_begin(struct guard *g, struct guard_visit *v)
{
	int rc;

	visit_begin(v, g);
	{
		HOLD(&g->lock);
		if (g->asked >= (g->table.hangs ? GUARD_THREADS : 1))
			return -EBUSY;
		g->asked++;
	}
	rc = visit_turn(v);
	if (rc < 0) {
		HOLD(&g->lock);
		g->asked--;
	}
	return rc;
}

static void ask_end(struct guard *g, struct guard_visit *v)
{
	give_back(g);
	visit_turn_end(v);
	HOLD(&g->lock);
	g->asked--;
}

int guard_signature(struct guard *g, uint64_t id, const uid_t *uid,
		    struct bytes *out)
{
	SCOPED(visit_end) struct guard_visit v;
	struct structure s = { .format = NULL };
	struct guard_attr a;
	int rc = ask_begin(g, &v);

	if (rc < 0)
		return rc;
	rc = visit_attr(&v, id, &a);
	if (rc == 0)
		rc = S_ISDIR(a.mode) ? guard_read_dir(&v, id, 0, uid, false, &s)
				     : guard_read_file(&v, id, a.name, &s);
	if (rc == 0 && v.elsewhere)
		rc = -EAGAIN;
	if (rc == 0 && s.tensors.count == 0)
		rc = structure_is_partly_read(&s) ? -EFBIG : -ENODATA;
	if (rc == 0)
		bytes_put(out, s.signature, strlen(s.signature));
	structure_release(&s);
	ask_end(g, &v);
	return rc < 0 ? rc : out->failed ? -ENOMEM : 0;
}

int guard_difference(struct guard *g, uint64_t id, const uid_t *uid,
		     struct bytes *out)
{
	SCOPED(visit_end) struct guard_visit v;
	struct guard_step step = { .dir = id };
	struct guard_attr a;
	int rc = ask_begin(g, &v);

	if (rc < 0)
		return rc;
	rc = visit_attr(&v, id, &a);
	if (rc == 0 && !S_ISDIR(a.mode))
		rc = -ENODATA;
	if (rc == 0) {
		step.parent = a.parent;
		strcpy(step.name, a.name);
		rc = guard_step_difference(&v, &step, uid, out);
	}
	ask_end(g, &v);
	return rc;
}
