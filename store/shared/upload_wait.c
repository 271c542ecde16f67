/*
 * upload_wait.c - who waits until files are whole in DIR: `ckptctl flush
 * --shared`, a rename that publishes, the end of the mount.
 *
 * For this node's files it waits until the queue has none that was closed
 * before; what other nodes have is looked for in DIR, by a walk.
 */
#include <errno.h>

#include "store/base/interrupt.h"
#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/drain/drain.h"
#include "store/shared/shared_private.h"

#define SECOND_NS INT64_C(1000000000)
/* At the end of a mount: for as long without a file that was completed. */
#define STOP_WITHOUT_PROGRESS_NS (10 * SECOND_NS)

/* Is a file that was closed here before `place` not in DIR, below the folder?
 */
static bool has_pending_locked(struct shared *s, const struct node *dir,
			       uint64_t place)
{
	const struct node *n;

	TAILQ_FOREACH(n, &s->queue, queued)
	if (n->place < place && (!dir || node_is_under_locked(n, dir)))
		return true;
	return false;
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

/* Those of other nodes, of which a walk says when they are whole. */
static int upload_wait_for_others(struct shared *s, struct node *dir)
{
	SCOPED(tracker_last_release)
	struct tracker_last last = TRACKER_LAST_NONE;
	int64_t pause = SECOND_NS / 50;
	int rc;

	do {
		SCOPED(scope_close) int fd = -1;

		rc = node_fd(s, dir, &fd);
		if (rc == 0)
			rc = tracker_find_pending(s, fd, true, &last);
		if (rc == -ESTALE) /* it is elsewhere: the rename will see */
			return 0;
		if (rc <= 0)
			return rc;
		rc = pause_for_others(s, &pause);
	} while (rc == 0);
	return rc;
}

int upload_wait_for_step(struct shared *s, struct node *n, struct node *dir,
			 const char *name)
{
	int64_t pause = SECOND_NS / 50;
	int rc;

	do {
		rc = tracker_waits_as(s, n, dir, name);
		if (rc <= 0)
			return rc;
		rc = pause_for_others(s, &pause);
	} while (rc == 0);
	return rc;
}

int upload_wait(struct shared *s, struct node *dir)
{
	uint64_t place;
	bool pending;
	int rc = drain_sync_closed(s->st->drain);

	if (rc < 0)
		return rc;
	place = drain_draw_place(s->st->drain);
	for (;;) {
		{
			HOLD(&s->lock);
			pending = has_pending_locked(s, dir, place);
			if (pending)
				(void)cond_wait_until(&s->moved, &s->lock,
						      mono_ns() +
							      SECOND_NS / 10);
		}
		if (!pending)
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
