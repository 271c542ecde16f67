/*
 * drain_timer.c - one thread for what happens without a call: a failed job is
 * tried again, a close whose release does not come is taken for closed, files
 * that stay open and grow are drained now and then, a stage that outgrew its
 * memory gives clean files up, and what a full disk kept from being deleted
 * goes.
 */

#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/drain/commit_private.h"
#include "store/drain/drain_private.h"
#include "store/space/reclaim.h"

/* How often the stage's memory and the disk's room are looked at. */
#define ASK_NS_MAX (INT64_C(1) * 1000000000)
#define RELIEVE_NS (INT64_C(1) * 1000000000)
/*
 * A file that stays open and grew by more than this since the last look is a
 * checkpoint in the middle of being written, not a log: draining it as it
 * stands would only write it twice.
 */
#define DRAIN_OPEN_GROWTH_MAX (UINT64_C(64) << 20)

/* More is used than was admitted: a file outgrew its series. */
static void timer_relieve(struct drain *d)
{
	uint64_t used, total;

	if (atomic_load(&d->stages->memory_count) == 0)
		return;
	stages_usage(d->stages, &used, &total);
	if (used > total)
		(void)stages_make_room(d->stages, 0);
}

/* What a full disk refused, once it has room; or one that has failed. */
static void timer_retry(struct drain *d)
{
	if (kv_mend(d->kv) < 0 || kv_room(d->kv) < 0)
		return;
	commit_retry(d);
	reclaim_retry(d->reclaim);
}

/*
 * Wake what is due; *ret_next is when the next one is. Returned, with a
 * reference, is one that is to be ended: there was dup(2) and close(2) before
 * the first write, so nothing was closed yet, and the real close will come.
 */
static struct drain_job *timer_wake_due_locked(struct drain *d, int64_t now,
					       int64_t *ret_next)
{
	struct version *v = TAILQ_FIRST(&d->order.idle), *after;

	*ret_next = INT64_MAX;
	for (; v; v = after) {
		struct drain_job *j = job_of(v);

		after = TAILQ_NEXT(v, by_state);
		if (j->due_ns > now) {
			if (j->due_ns < *ret_next)
				*ret_next = j->due_ns;
		} else if (job_is_empty(j)) {
			return job_ref(j);
		} else {
			job_wake_locked(d, j);
		}
	}
	return NULL;
}

/*
 * The stage of a file that has been open for an interval, with a reference; not
 * of one that takes the place of something. What is in flight of it may have
 * read it before the last write: that is over first.
 */
static struct stage *open_for_long(struct drain *d, struct inode *in,
				   int64_t now, int64_t interval)
{
	struct file *f;

	HOLD(&in->lock);
	f = in->file;
	if (!f || !f->stage || f->open_since_ns == OPEN_REPLACES ||
	    (f->state.writers == 0 && f->state.left != LEFT_WRITERS) ||
	    now - f->open_since_ns < interval)
		return NULL;
	{
		HOLD(&d->lock);
		if (f->versions.in_flight)
			return NULL;
	}
	f->open_since_ns = now;
	return stage_ref(f->stage);
}

/* Is there something new in it that is worth to be drained? */
static bool open_has_changed(struct drain *d, struct inode *in,
			     struct stage *stage)
{
	struct file *f = in->file;
	uint64_t last, size;
	int64_t mtime;
	struct stat sb;
	bool changed;

	if (stage_stat(d->stages, stage, &sb) < 0)
		return false;
	mtime = io_ns(&sb.st_mtim);
	size = (uint64_t)sb.st_size;
	HOLD(&in->lock);
	HOLD(&d->lock);
	if (f->versions.in_flight)
		return false; /* that, too */
	last = f->drained_size;
	/* What comes through a mapping of a tmpfs leaves no time. */
	changed = f->drained_mtime_ns != mtime || last != size ||
		  f->state.left == LEFT_WRITERS;
	/* Written in one go: its close is not far. */
	if (size > last + DRAIN_OPEN_GROWTH_MAX)
		changed = false;
	f->drained_mtime_ns = mtime;
	f->drained_size = size;
	return changed;
}

void drain_open_files(struct drain *d, int64_t now_ns)
{
	int64_t interval = (int64_t)d->options.interval_s * 1000000000;

	for (uint32_t i = 0; i < d->stages->slot_count; i++) {
		const struct stage_slot *slot = &d->stages->slots[i];
		struct inode *in = NULL;
		struct stage *stage;
		int rc;

		if (SLOT_GET(slot, dirty))
			in = inode_of_slot(d->inodes, slot);
		if (!in)
			continue;
		stage = open_for_long(d, in, now_ns, interval);
		if (stage && open_has_changed(d, in, stage))
			drain_job_put(d, job_for(d, in, CLOSE_NOT, &rc));
		stage_put(d->stages, stage);
		inode_put(d->inodes, in, 1);
	}
}

/* Unless a real close has come since. Puts the reference. */
static void end_empty(struct drain *d, struct drain_job *j)
{
	struct version_queue ended = TAILQ_HEAD_INITIALIZER(ended);

	{
		HOLD(&j->in->lock);
		HOLD(&d->lock);
		if (job_is_empty(j))
			job_end_locked(d, j, VERSION_GONE, 0, &ended);
	}
	jobs_ended(d, &ended);
	drain_job_put(d, j);
}

/* Who is left with a mapping may be gone by now. */
static void timer_ask_left(struct drain *d)
{
	bool again;

	{
		HOLD(&d->lock);
		d->left_due_ns = 0;
	}
	again = d->options.ask_left(d->options.arg);
	HOLD(&d->lock);
	if (!again || d->left_due_ns != 0)
		return;
	if (d->left_delay_ns < ASK_NS_MAX)
		d->left_delay_ns *= 2;
	d->left_due_ns = mono_ns() + d->left_delay_ns;
}

void *drain_timer_main(void *arg)
{
	struct drain *d = arg;
	int64_t interval = (int64_t)d->options.interval_s * 1000000000;
	/* Each file by its own age: so they are looked at more often. */
	int64_t look = interval / 8 > RELIEVE_NS ? interval / 8 : RELIEVE_NS;
	int64_t next_open = interval ? mono_ns() + look : INT64_MAX;

	lock_take(&d->lock);
	while (!d->stop) {
		int64_t now = mono_ns(), next;
		struct drain_job *empty;

		if (now >= next_open) {
			lock_give(&d->lock);
			drain_open_files(d, now);
			lock_take(&d->lock);
			next_open = mono_ns() + look;
			continue;
		}
		if (d->left_due_ns != 0 && now >= d->left_due_ns) {
			lock_give(&d->lock);
			timer_ask_left(d);
			lock_take(&d->lock);
			continue;
		}
		empty = timer_wake_due_locked(d, now, &next);
		if (empty) {
			lock_give(&d->lock);
			end_empty(d, empty);
			lock_take(&d->lock);
			continue;
		}
		if (next > next_open)
			next = next_open;
		if (d->left_due_ns != 0 && next > d->left_due_ns)
			next = d->left_due_ns;
		if (next > now + RELIEVE_NS)
			next = now + RELIEVE_NS;
		(void)cond_wait_until(&d->tick, &d->lock, next);
		lock_give(&d->lock);
		timer_relieve(d);
		d->options.each_second(d->options.arg);
		timer_retry(d);
		lock_take(&d->lock);
	}
	lock_give(&d->lock);
	return NULL;
}
