/*
 * upload_wait.c - who waits until files are whole in DIR: `ckptctl flush
 * --shared`, a rename that publishes, the end of the mount.
 *
 * For this node's files it waits until the queue has none that was closed
 * before; what other nodes have is looked for in DIR, by a walk.
 */
#include <errno.h>
#include <string.h>

#include "store/base/interrupt.h"
#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/drain/drain.h"
#include "store/shared/pending.h"
#include "store/shared/shared_private.h"

#define SECOND_NS INT64_C(1000000000)
/* At the end of a mount: for as long without a file that was completed. */
#define STOP_WITHOUT_PROGRESS_NS (10 * SECOND_NS)

/*
 * Is a file that was closed here before `place` not in DIR, below the folder?
 * -EUCLEAN: a tracker alone, whose step is not whole before somebody acts.
 */
static int has_pending_locked(struct shared *s, const struct node *dir,
			      uint64_t place)
{
	const struct node *n;
	int rc = 0;

	TAILQ_FOREACH(n, &s->queue, queued)
	{
		if (n->place >= place || (dir && !node_is_under_locked(n, dir)))
			continue;
		if (n->error != -EUCLEAN)
			return 1;
		rc = -EUCLEAN;
	}
	return rc;
}

/* What missed a file when it was tried last: is it there by now? */
static void try_again_locked(struct shared *s)
{
	struct node *n;

	TAILQ_FOREACH(n, &s->queue, queued)
	if (n->error == -EUCLEAN) {
		n->error = 0;
		n->due_ns = mono_ns();
	}
	cond_broadcast(&s->idle);
}

/* Before it is looked again what others have made whole. -EINTR. */
static int pause_for_others(struct shared *s, int64_t *pause)
{
	if (interrupt_is_due())
		return -EINTR;
	HOLD(&s->lock);
	(void)cond_wait_until(&s->moved, &s->lock, mono_ns() + *pause);
	if (*pause < SECOND_NS / 2)
		*pause *= 2;
	return 0;
}

/* Who waits for what others have, and for how long its node is dead. */
struct patience {
	struct shared *s;
	struct tracker_last last;
	int64_t dead_ns; /* 0: it lives */
};

static void patience_end(struct patience *p)
{
	waits_end(p->s, &p->last);
	tracker_last_release(&p->last);
}

/*
 * As long as its node lives its bytes may come, however long that takes. -EIO:
 * it is dead for pending_wait, and did not come back.
 */
static int look_whose(struct patience *p, struct node *dir)
{
	struct shared *s = p->s;
	char path[4096];

	tracker_note_wait(s, dir, &p->last);
	if (p->last.asked_ns == 0 || mono_ns() - p->last.asked_ns >= SECOND_NS)
		tracker_ask_whose(s, &p->last);
	if (!p->last.is_dead) {
		p->dead_ns = 0;
		return 0;
	}
	if (p->dead_ns == 0)
		p->dead_ns = mono_ns();
	if (mono_ns() - p->dead_ns < (int64_t)s->pending_wait_s * SECOND_NS)
		return 0;
	node_path(s, dir, path, sizeof(path));
	log_warning("%s/%s is not published: node %s has bytes of it, and is "
		    "not there; mount it again, or 'ckptctl forget-node %s %s'",
		    s->dir, path, p->last.node, s->dir, p->last.node);
	return -EIO;
}

/* Those of other nodes, of which a walk says when they are whole. */
static int upload_wait_for_others(struct shared *s, struct node *dir)
{
	SCOPED(patience_end)
	struct patience p = { .s = s, .last = TRACKER_LAST_NONE };
	int64_t pause = SECOND_NS / 50;
	int rc;

	do {
		SCOPED(scope_close) int fd = -1;

		rc = node_fd(s, dir, &fd);
		if (rc == 0)
			rc = tracker_find_pending(s, fd, true, &p.last);
		if (rc == -ESTALE) /* it is elsewhere: the rename will see */
			return 0;
		if (rc == -EUCLEAN)
			tracker_say_lost(s, dir, &p.last);
		if (rc > 0)
			rc = look_whose(&p, dir) < 0 ? -EIO : 1;
		if (rc <= 0)
			return rc;
		rc = pause_for_others(s, &pause);
	} while (rc == 0);
	return rc;
}

int upload_wait_for_step(struct shared *s, struct node *n, struct node *dir,
			 const char *name)
{
	SCOPED(patience_end)
	struct patience p = { .s = s, .last = TRACKER_LAST_NONE };
	int64_t pause = SECOND_NS / 50;
	int rc;

	do {
		rc = tracker_waits_as(s, n, dir, name, &p.last);
		if (rc == -EUCLEAN)
			tracker_say_lost(s, n, &p.last);
		if (rc > 0)
			rc = look_whose(&p, n) < 0 ? -EIO : 1;
		if (rc <= 0)
			return rc;
		rc = pause_for_others(s, &pause);
	} while (rc == 0);
	return rc;
}

int upload_wait(struct shared *s, struct node *dir)
{
	bool tried_again = false;
	uint64_t place;
	int rc = drain_sync_closed(s->st->drain);

	if (rc < 0)
		return rc;
	place = drain_draw_place(s->st->drain);
	for (;;) {
		{
			HOLD(&s->lock);
			rc = has_pending_locked(s, dir, place);
			if (rc == -EUCLEAN && !tried_again) {
				tried_again = true;
				try_again_locked(s);
				rc = 1;
			}
			if (rc > 0)
				(void)cond_wait_until(&s->moved, &s->lock,
						      mono_ns() +
							      SECOND_NS / 10);
		}
		if (rc < 0)
			return rc;
		if (rc == 0)
			break;
		if (interrupt_is_due())
			return -EINTR;
	}
	return dir ? upload_wait_for_others(s, dir) : 0;
}

int shared_flush(struct shared *s)
{
	return upload_wait(s, NULL);
}

void upload_finish(struct shared *s)
{
	uint64_t left = 0, seen = UINT64_MAX;
	int64_t end_ns = 0;

	(void)drain_sync_tree(s->st->drain, ROOT_INO);
	for (;;) {
		HOLD(&s->lock);
		if (TAILQ_EMPTY(&s->queue))
			break;
		if (s->figures.uploaded != seen) {
			seen = s->figures.uploaded;
			end_ns = mono_ns() + STOP_WITHOUT_PROGRESS_NS;
		}
		if (!cond_wait_until(&s->moved, &s->lock, end_ns) &&
		    s->figures.uploaded == seen)
			break;
	}
	{
		struct node *n;

		HOLD(&s->lock);
		TAILQ_FOREACH(n, &s->queue, queued)
		left++;
	}
	if (left > 0)
		log_warning("%s: %llu files of this node are not whole there "
			    "yet; they go on with the next mount",
			    s->dir, (unsigned long long)left);
}
