/*
 * drain_wait.c - waiting for jobs: fsync, publish, sync of a tree, and who must
 * not touch a stage before its job is done.
 *
 * Nobody waits with a lock held, and every wait ends with the job, with the
 * error that keeps it from ending, or when the caller is to end.
 */
#include <errno.h>
#include <stdlib.h>

#include "store/base/interrupt.h"
#include "store/base/scope.h"
#include "store/base/vec.h"
#include "store/drain/drain_private.h"
#include "store/file/state.h"

/* How long an open with O_TRUNC waits for the release of the last handle. */
#define RELEASED_WAIT_NS (INT64_C(1) * 1000000000)
/*
 * How often who was signalled, and is not to end, is asked again: the kernel
 * tells of the first signal only.
 */
#define SIGNALLED_WAIT_NS (INT64_C(100) * 1000000)

/*
 * Wait for something to happen to a job. -EINTR: the caller is to end.
 * drain.lock is held, but given up meanwhile: what was seen under it may have
 * changed.
 */
static int moved_wait_idly(struct drain *d)
{
	struct interrupt *i = interrupt_of_thread();
	bool ends;

	if (!i || !atomic_load(&i->signalled)) {
		cond_wait(&d->moved, &d->lock);
		return 0;
	}
	lock_give(&d->lock);
	ends = i->ends(i);
	lock_take(&d->lock);
	if (ends)
		return -EINTR;
	/* What moved while we asked is seen after this, at the latest. */
	(void)cond_wait_until(&d->moved, &d->lock,
			      mono_ns() + SIGNALLED_WAIT_NS);
	return 0;
}

/* The same for a user's call. */
static int moved_wait(struct drain *d)
{
	int rc;

	drain_hurry_begin(d);
	rc = moved_wait_idly(d);
	drain_hurry_end(d);
	return rc;
}

void drain_look_again(struct drain *d)
{
	HOLD(&d->lock);
	cond_broadcast(&d->moved);
}

/*
 * What is in flight of the file, with a reference; NULL: nothing. drain.lock is
 * held from here on. *ret_frozen, unless NULL: is the file's stage?
 */
static struct drain_job *look_in_flight(struct drain *d, struct inode *in,
					bool *ret_frozen)
{
	HOLD(&in->lock);
	lock_take(&d->lock);
	if (ret_frozen)
		*ret_frozen = in->file && in->file->state.bytes == BYTES_FROZEN;
	return in->file ? job_ref(job_of(in->file->versions.in_flight)) : NULL;
}

/* Is the attempt still under way that was the n-th? */
static bool is_in_flight(const struct drain_job *j, unsigned n)
{
	return j->in->file->versions.in_flight == &j->v && j->attempts == n;
}

/*
 * Wait until j is over, or fails. Consumes the reference. 1: it is over, but
 * not durable itself: the file lost its last name, which a power cut may still
 * bring back, or newer bytes of it are durable. -EAGAIN: its bytes are another
 * job's now.
 */
static int job_wait(struct drain *d, struct drain_job *j)
{
	unsigned failures;
	int rc = 0;

	lock_take(&d->lock);
	job_want_locked(d, j);
	failures = j->failures;
	while (rc == 0 && !version_over(&j->v) && j->failures == failures)
		rc = moved_wait(d);
	/* Closed anew since, it has no error any more; what we saw, we say. */
	if (version_over(&j->v))
		rc = j->result == 0 && j->v.state == VERSION_GONE ? 1
								  : j->result;
	else if (j->failures != failures)
		rc = j->failure;
	job_leave_locked(d, j);
	lock_give(&d->lock);
	drain_job_put(d, j);
	return rc;
}

/*
 * Wait for the attempt that is under way: it began before our caller's bytes
 * came. Not for a version that was replaced: it waits for its turn, and makes
 * way.
 */
static int running_wait(struct drain *d, struct inode *in)
{
	struct drain_job *j = look_in_flight(d, in, NULL);
	int rc = 0;

	if (j && (!j->v.replaced || j->v.want == WANT_ALONE)) {
		unsigned attempts = j->attempts;

		job_want_locked(d, j);
		while (rc == 0 && is_in_flight(j, attempts))
			rc = moved_wait(d);
		job_leave_locked(d, j);
	}
	lock_give(&d->lock);
	drain_job_put(d, j);
	return rc;
}

/* 1: its bytes need nothing more, but its name, or that it is gone, may. */
static int sync_bytes(struct drain *d, struct inode *in)
{
	struct drain_job *j;
	int rc;

	do {
		rc = running_wait(d, in);
		if (rc < 0)
			return rc;
		j = job_for(d, in, CLOSE_NOT, &rc);
		if (j)
			rc = job_wait(d, j);
	} while (j && rc == -EAGAIN);
	return rc == 0 && !j ? 1 : rc;
}

int drain_sync(struct drain *d, struct inode *in)
{
	int rc = sync_bytes(d, in);

	return rc > 0 ? kv_sync(d->kv) : rc;
}

/* What has a place before `place` is made durable now, for who waits. */
static void hurry_locked(struct drain *d, uint64_t place)
{
	struct version *v;

	TAILQ_FOREACH(v, &d->order.placed, by_place)
	{
		if (v->place >= place)
			break;
		order_want_soon(v);
		if (v->state == VERSION_FAILED)
			order_wake(&d->order, v); /* once more, for us */
	}
	cond_broadcast(&d->work);
}

/*
 * Wait until all jobs with a place before `place` are done; 0: all that have
 * one now. The first of them that fails while we wait ends it: nothing after
 * it can be in order. hurry: they are made durable now, even while they are
 * changed. Who was closed and is not released yet gets his time for that all
 * the same: what is drained while it may change has to be drained once more.
 */
static int order_wait(struct drain *d, uint64_t place, bool hurry)
{
	struct version *v;
	int rc = 0;

	HOLD(&d->lock);
	if (place == 0 || place > d->order.next_place)
		place = d->order.next_place;
	if (hurry)
		hurry_locked(d, place);
	while (rc == 0) {
		v = order_first(&d->order);
		if (!v || v->place >= place)
			return 0;
		if (v->state == VERSION_FAILED)
			return job_of(v)->result;
		rc = hurry ? moved_wait(d) : moved_wait_idly(d);
	}
	return rc;
}

int drain_sync_closed(struct drain *d)
{
	int rc = order_wait(d, 0, true);

	return rc < 0 ? rc : kv_sync(d->kv);
}

int drain_wait_drained(struct drain *d)
{
	return order_wait(d, 0, false);
}

static bool is_dirty(struct inode *in)
{
	HOLD(&in->lock);
	return in->file && file_is_dirty(in->file);
}

static bool has_number(const struct content *c)
{
	return c->generation >= PLACES_OF_A_MOUNT;
}

/*
 * What was closed before the file has a place before *ret_place. When all of it
 * is durable, that is the place that it had, for it may have overtaken them; or
 * its number, which is greater. Else 0: all that have a place now, as for a
 * record that has no number, but 0 or an older ckptfs's count of commits.
 */
static int closed_before(struct drain *d, struct inode *in, uint64_t *ret_place)
{
	int rc = inode_load_file(d->inodes, in);
	const struct file *f = in->file;

	*ret_place = 1; /* what cannot be read, or is gone: nothing */
	if (rc < 0)
		return rc == -ENOMEM ? rc : 0;
	HOLD(&in->lock);
	if (file_is_dirty(f))
		*ret_place = 0;
	else if (f->durable_place)
		*ret_place = f->durable_place;
	else if (f->content)
		*ret_place = has_number(&f->content->c)
				     ? f->content->c.generation
				     : 0;
	return 0;
}

int drain_publish(struct drain *d, struct inode *in)
{
	uint64_t place;
	int rc = closed_before(d, in, &place);

	if (rc == 0)
		rc = order_wait(d, place, true);
	if (rc == 0)
		rc = drain_sync(d, in); /* still open: as it stands */
	return rc;
}

int drain_publish_closed(struct drain *d, struct inode *in)
{
	bool writers;

	{
		HOLD(&in->lock);
		writers = in->file && in->file->state.writers > 0;
	}
	return writers ? drain_sync_closed(d) : drain_publish(d, in);
}

/* Files with a stage, under a directory: collected, then synced one by one. */
struct tree_list {
	struct inode **at;
	size_t count, capacity;
	int rc;
};

static void tree_add(struct drain *d, struct tree_list *l, struct inode *in)
{
	int rc = vec_grow(&l->at, l->count, &l->capacity, sizeof(*l->at));

	if (rc == 0)
		l->at[l->count++] = in;
	else
		inode_put(d->inodes, in, 1);
	l->rc = l->rc < 0 ? l->rc : rc;
}

static void tree_collect(struct drain *d, uint64_t dir, struct tree_list *l)
{
	for (uint32_t i = 0; i < d->stages->slot_count; i++) {
		struct inode *in =
			inode_of_slot(d->inodes, &d->stages->slots[i]);

		if (in && is_dirty(in) && inode_is_under(d->inodes, in, dir))
			tree_add(d, l, in);
		else
			inode_put(d->inodes, in, 1);
	}
}

/*
 * What is durable already may have overtaken what was closed before it: that
 * has a place before this one. 1: it has overtaken nothing.
 */
static uint64_t overtaken_place(struct drain *d)
{
	HOLD(&d->lock);
	return d->overtook > 0 ? d->overtook : 1;
}

int drain_sync_tree(struct drain *d, uint64_t dir)
{
	struct tree_list l = { 0 };
	int rc;

	tree_collect(d, dir, &l);
	rc = l.rc;
	if (rc == 0)
		rc = order_wait(d, l.count > 0 ? 0 : overtaken_place(d), true);
	for (size_t i = 0; i < l.count; i++) {
		if (rc >= 0) /* all names with one sync, below */
			rc = sync_bytes(d, l.at[i]);
		inode_put(d->inodes, l.at[i], 1);
	}
	free(l.at);
	return rc < 0 ? rc : kv_sync(d->kv);
}

/* Has it a name there? In doubt, with several, it has. */
static bool is_in(struct inode *in, uint64_t dir)
{
	HOLD(&in->lock);
	return in->attr.nlink > 1 ||
	       (in->attr.nlink == 1 && in->attr.parent == dir);
}

/* The last place that a version of the file has, replaced ones alone or all. */
static uint64_t last_place(struct drain *d, struct inode *in, bool replaced)
{
	const struct version *v;
	uint64_t place = 0;

	HOLD(&in->lock);
	if (!in->file)
		return 0;
	HOLD(&d->lock);
	TAILQ_FOREACH(v, &in->file->versions.list, by_file)
	if (v->place > place && (v->replaced || !replaced))
		place = v->place;
	return place;
}

int drain_sync_folder(struct drain *d, uint64_t dir)
{
	uint64_t last = 0, before;
	int rc;

	for (uint32_t i = 0; i < d->stages->slot_count; i++) {
		struct inode *in =
			inode_of_slot(d->inodes, &d->stages->slots[i]);
		uint64_t place;

		if (!in)
			continue;
		place = is_in(in, dir) ? last_place(d, in, false) : 0;
		last = place > last ? place : last;
		inode_put(d->inodes, in, 1);
	}
	before = overtaken_place(d);
	rc = order_wait(d, last >= before ? last + 1 : before, true);
	return rc < 0 ? rc : kv_sync(d->kv);
}

/* May a worker touch the stage's mapping now? */
static bool is_read(const struct drain_job *j)
{
	return j->v.state == VERSION_RUNNING && j->work &&
	       work_is_stable(j->work) && !j->work->rests;
}

int drain_wait_unread(struct drain *d, struct inode *in)
{
	struct drain_job *j = look_in_flight(d, in, NULL);
	int rc = 0;

	if (j && !j->v.replaced) { /* else it has another stage */
		unsigned attempts = j->attempts;

		while (rc == 0 && is_read(j) && j->attempts == attempts)
			rc = moved_wait(d);
	}
	lock_give(&d->lock);
	drain_job_put(d, j);
	return rc;
}

void drain_changed(struct drain *d, struct inode *in)
{
	struct drain_job *j;

	HOLD(&in->lock);
	HOLD(&d->lock);
	j = job_of(in->file->versions.in_flight);
	if (j && !j->v.replaced)
		job_disturb_locked(j);
}

/* Frozen for good: what a power cut shows may have the stage as the image. */
static bool is_in_doubt(const struct drain *d, const struct drain_job *j,
			bool frozen)
{
	return frozen && (!j || kv_health(d->kv) == KV_CONDEMNED);
}

bool drain_reopen(struct drain *d, struct file *f)
{
	bool frozen = f->state.bytes == BYTES_FROZEN;
	struct drain_job *j;

	HOLD(&d->lock);
	j = job_of(f->versions.in_flight);
	if (is_in_doubt(d, j, frozen))
		return false;
	if (!j || j->v.replaced || !j->work || j->work->kind == WORK_OF_OPEN)
		return true;
	if (j->v.state == VERSION_TAKEN)
		return false;
	job_stop_locked(d, j);
	if (frozen)
		file_move(&f->state, FILE_THAWED);
	return true;
}

int drain_wait_taken(struct drain *d, struct inode *in)
{
	bool frozen;
	struct drain_job *j = look_in_flight(d, in, &frozen);
	unsigned attempts = j ? j->attempts : 0;
	int rc = is_in_doubt(d, j, frozen) ? -EIO : 0;

	while (rc == 0 && j && j->v.state == VERSION_TAKEN &&
	       is_in_flight(j, attempts))
		rc = moved_wait(d);
	lock_give(&d->lock);
	drain_job_put(d, j);
	return rc;
}

/* Up to the last place that a version of the file has. */
static int wait_last(struct drain *d, struct inode *in, bool replaced)
{
	uint64_t place = last_place(d, in, replaced);

	return place ? order_wait(d, place + 1, true) : 0;
}

int drain_wait_closed(struct drain *d, struct inode *in)
{
	return wait_last(d, in, false);
}

int drain_wait_replaced(struct drain *d, struct inode *in)
{
	return wait_last(d, in, true);
}

bool drain_has_closed(struct drain *d, const struct file *f)
{
	const struct version *v;

	HOLD(&d->lock);
	TAILQ_FOREACH(v, &f->versions.list, by_file)
	if (v->replaced || v->place)
		return true;
	return false;
}

bool drain_is_in_place(struct drain *d, const struct file *f)
{
	struct version *v;

	HOLD(&d->lock);
	v = TAILQ_FIRST(&f->versions.list);
	return v && !TAILQ_NEXT(v, by_file) && v->place && !v->replaced &&
	       !job_is_empty(job_of(v)) && v->state != VERSION_FAILED;
}

/* Is a close of the stage that it has on its way? Under both locks. */
static bool close_pending_locked(const struct file *f)
{
	struct version *v = versions_next(&f->versions);

	if (!v)
		v = f->versions.in_flight;
	return v && v->place && !v->replaced && !job_is_empty(job_of(v)) &&
	       v->state != VERSION_FAILED && job_of(v)->stage == f->stage;
}

/* Is its writer perhaps one who has closed it? Under both locks. */
static bool release_due_locked(const struct file *f)
{
	return f && f->state.writers > 0 &&
	       (close_pending_locked(f) ||
		(f->flushed_ns != 0 &&
		 mono_ns() < f->flushed_ns + RELEASED_WAIT_NS));
}

void drain_wait_released(struct drain *d, struct inode *in)
{
	int64_t deadline = mono_ns() + RELEASED_WAIT_NS;
	bool wait;

	do {
		lock_take(&in->lock);
		lock_take(&d->lock);
		wait = release_due_locked(in->file);
		lock_give(&in->lock);
		if (wait) {
			d->awaiting_release++;
			wait = cond_wait_until(&d->moved, &d->lock, deadline);
			d->awaiting_release--;
		}
		lock_give(&d->lock);
	} while (wait);
}
