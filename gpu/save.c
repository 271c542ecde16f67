/*
 * save.c - one save, from ckpt_begin() to ckpt_save_free(). What is promised
 * is in ckpt_gpu.h.
 *
 *   OPEN --> RUNNING --> COMMITTED
 *     |         `------> FAILED      (ckpt_begin() and ckpt_add() leave OPEN)
 *     `-- ckpt_start() runs it in a thread, ckpt_commit() where it is called
 *
 * A save runs through a segment (save_segment.h) when the mount has one for
 * it, and else through the file (save_plain.h).
 */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "gpu/destination.h"
#include "gpu/layout.h"
#include "gpu/mapping.h"
#include "gpu/save_plain.h"
#include "gpu/save_segment.h"
#include "gpu/thread.h"
#include "store/base/scope.h"
#include "store/base/vec.h"

#define FLAGS_OF_SAVE \
	(0u | CKPT_PLAIN | CKPT_SKIP_UNCHANGED | CKPT_SEGMENT_ONLY)

enum save_state {
	SAVE_OPEN,
	SAVE_RUNNING,
	SAVE_COMMITTED,
	SAVE_FAILED,
};

/*
 * What a stream of the caller's had when the save was started: the copy waits
 * for that, and for nothing that is enqueued later.
 */
struct stream_mark {
	int device;
	void *raw;
	struct gpu_event *event;
};

struct ckpt_save {
	struct ckpt *c;
	unsigned flags; /* enum ckpt_flags */
	struct destination to;
	struct layout layout;
	struct stream_mark *marks; /* one for each stream of its tensors */
	size_t mark_count, mark_room;
	pthread_t thread;
	bool has_thread; /* to be joined */
	int fd; /* of a file that was written plainly; else -1 */
	uint64_t ino; /* of the file that was committed */

	pthread_mutex_t lock; /* guards everything below */
	enum save_state state;
	int rc; /* FAILED: why */
	char why[1024]; /* FAILED, or COMMITTED without a segment: the sentence */
};

/* Is the directory in a mount of ours, and does it matter? */
static int find_mount(struct ckpt_save *s)
{
	struct ckpt_mount *m;
	int rc = mapping_find_mount(s->c, s->to.dirfd, &m);

	s->to.in_mount = rc != -ENOTTY;
	if (rc == -EROFS)
		return ckpt_say(rc, "%s: the mount is read-only", s->to.path);
	if (rc == 0 || rc == -EOPNOTSUPP)
		return 0;
	if (rc != -ENOTTY)
		return ckpt_say(rc, "%s: the mount does not answer: %s",
				s->to.path, strerror(-rc));
	if (s->flags & CKPT_PLAIN)
		return 0;
	return ckpt_say(rc,
			"%s: not in a ckptfs mount: give a path in one, or "
			"ask for a plain file (CKPT_PLAIN)",
			s->to.path);
}

int ckpt_begin(struct ckpt *c, const char *path, struct ckpt_save **ret_save)
{
	return ckpt_begin_with(c, path, c->flags & FLAGS_OF_SAVE, ret_save);
}

int ckpt_begin_with(struct ckpt *c, const char *path, unsigned flags,
		    struct ckpt_save **ret_save)
{
	struct ckpt_save *s;
	int rc = ckpt_check_process(c);

	if (rc < 0)
		return rc;
	if (flags & ~FLAGS_OF_SAVE)
		return ckpt_say(-EINVAL, "%s: flags 0x%x are none of a save's",
				path, flags);
	s = calloc(1, sizeof(*s));
	if (!s)
		return ckpt_say(-ENOMEM, "%s: no memory", path);
	s->c = c;
	s->flags = flags;
	s->to.dirfd = -1;
	s->fd = -1;
	CHECK(pthread_mutex_init(&s->lock, NULL) == 0);
	/* Host memory may be a device's as well, and is pinned for one. */
	(void)ckpt_driver_if_started(c);
	rc = destination_open(path, &s->to);
	if (rc == 0)
		rc = find_mount(s);
	if (rc < 0) {
		ckpt_save_free(s);
		return rc;
	}
	*ret_save = s;
	return 0;
}

static enum save_state state_of(struct ckpt_save *s)
{
	HOLD(&s->lock);
	return s->state;
}

/* What was said when it failed, in this thread as well. */
static int say_again(struct ckpt_save *s)
{
	HOLD(&s->lock);
	return ckpt_say(s->rc, "%s", s->why);
}

static int check_open(struct ckpt_save *s)
{
	int rc = ckpt_check_process(s->c);

	if (rc < 0)
		return rc;
	if (state_of(s) != SAVE_OPEN)
		return ckpt_say(-EINVAL,
				"%s: it was committed or started "
				"before",
				s->to.path);
	return 0;
}

int ckpt_metadata(struct ckpt_save *s, const char *key, const char *value)
{
	int rc = check_open(s);

	return rc < 0 ? rc : layout_add_metadata(&s->layout, key, value);
}

/* Where the data really is; *ret_device is not CKPT_DEVICE_ANY. */
static int find_device(struct ckpt *c, const struct ckpt_tensor *t,
		       int *ret_device)
{
	int found = CKPT_DEVICE_HOST;
	int rc;

	if (t->data &&
	    (t->device >= 0 ? ckpt_driver(c) : ckpt_driver_opened(c))) {
		rc = gpu_pointer_device(c->gpu, t->data, t->device, &found);
		if (rc < 0)
			return rc;
	}
	*ret_device = found;
	if (t->device == CKPT_DEVICE_ANY || t->device == found || !t->data)
		return 0;
	if (found != CKPT_DEVICE_HOST && t->device == CKPT_DEVICE_HOST)
		return ckpt_say(-EINVAL,
				"tensor '%s': said to be in host memory, but "
				"its pointer is device %d's",
				t->name, found);
	if (found == CKPT_DEVICE_HOST)
		return ckpt_say(-EINVAL,
				"tensor '%s': said to be on device %d, but its "
				"pointer is none of a device's (%s)",
				t->name, t->device, c->gpu_state);
	return ckpt_say(-EINVAL,
			"tensor '%s': said to be on device %d, but its pointer "
			"is device %d's",
			t->name, t->device, found);
}

/* May it be added, and where is it? */
static int check_tensor(struct ckpt_save *s, const struct ckpt_tensor *t,
			int *ret_device)
{
	int rc = check_open(s);

	if (rc == 0 && t->device < CKPT_DEVICE_ANY)
		rc = ckpt_say(-EINVAL, "tensor '%s': %d is no device",
			      t->name ? t->name : "", t->device);
	return rc < 0 ? rc : find_device(s->c, t, ret_device);
}

int ckpt_add(struct ckpt_save *s, const struct ckpt_tensor *t)
{
	int device = CKPT_DEVICE_HOST, rc = check_tensor(s, t, &device);

	return rc < 0 ? rc : layout_add(&s->layout, t, device);
}

int ckpt_place(struct ckpt_save *s, const struct ckpt_tensor *t,
	       uint64_t offset)
{
	int device = CKPT_DEVICE_HOST, rc = check_tensor(s, t, &device);

	return rc < 0 ? rc : layout_place(&s->layout, t, device, offset);
}

/* --- what is waited for ----------------------------------------------------
 */

static int mark_stream(struct ckpt_save *s, int device, void *raw,
		       struct gpu_event **ret_event)
{
	struct gpu_stream *stream;
	struct stream_mark *m;
	int rc;

	for (size_t i = 0; i < s->mark_count; i++)
		if (s->marks[i].device == device && s->marks[i].raw == raw) {
			*ret_event = s->marks[i].event;
			return 0;
		}
	if (vec_grow(&s->marks, s->mark_count, &s->mark_room, sizeof(*m)) < 0)
		return ckpt_say(-ENOMEM, "%s: no memory", s->to.path);
	m = &s->marks[s->mark_count];
	*m = (struct stream_mark){ .device = device, .raw = raw };
	rc = gpu_stream_wrap(s->c->gpu, device, raw, &stream);
	if (rc < 0)
		return rc;
	rc = gpu_stream_check_recording(stream);
	if (rc == 0)
		rc = gpu_event_new(s->c->gpu, device, &m->event);
	if (rc == 0) {
		s->mark_count++;
		rc = gpu_event_record(m->event, stream);
	}
	gpu_stream_free(stream);
	*ret_event = m->event;
	return rc;
}

/* In the caller's thread, which enqueues nothing meanwhile. */
static int mark_streams(struct ckpt_save *s)
{
	int rc = 0;

	for (size_t i = 0; i < s->layout.count && rc == 0; i++) {
		struct layout_tensor *t = &s->layout.tensors[i];

		if (t->device != CKPT_DEVICE_HOST && !t->ready)
			rc = mark_stream(s, t->device, t->stream, &t->ready);
	}
	return rc;
}

/* --- the work ------------------------------------------------------------- */

/* Is it worth trying without a segment? */
static bool is_no_segment(int rc)
{
	return rc == -ENOSPC || rc == -EDQUOT || rc == -EOPNOTSUPP;
}

/* Through the file, since there is no segment: ckpt_last_error() says why. */
static int work_plainly(struct ckpt_save *s)
{
	int rc;

	if (s->layout.file_bytes > 0) {
		HOLD(&s->lock);
		(void)snprintf(s->why, sizeof(s->why), "%s", ckpt_last_error());
	}
	rc = save_plainly(s->c, &s->to, &s->layout, &s->fd, &s->ino);
	if (rc == 0)
		CKPT_COUNT(s->c, plain_saves, 1);
	return rc;
}

static int work(struct ckpt_save *s)
{
	int rc = layout_finish(&s->layout);

	if (rc < 0)
		return rc;
	if (!s->to.in_mount)
		rc = ckpt_say(-EOPNOTSUPP, "%s: not in a ckptfs mount",
			      s->to.path);
	else if (s->layout.file_bytes == 0)
		rc = -EOPNOTSUPP;
	else
		rc = save_through_segment(s->c, s->flags, &s->to, &s->layout,
					  &s->ino);
	if (!is_no_segment(rc) ||
	    (s->to.in_mount && (s->flags & CKPT_SEGMENT_ONLY)))
		return rc;
	return work_plainly(s);
}

/* RUNNING -> FAILED, with what this thread has just said. */
static int fail(struct ckpt_save *s, int rc)
{
	HOLD(&s->lock);
	s->rc = rc;
	s->state = SAVE_FAILED;
	(void)snprintf(s->why, sizeof(s->why), "%s", ckpt_last_error());
	return rc;
}

static int run(struct ckpt_save *s)
{
	int rc = work(s);

	if (rc < 0)
		return fail(s, rc);
	CKPT_COUNT(s->c, saves, 1);
	HOLD(&s->lock);
	s->state = SAVE_COMMITTED;
	return 0;
}

static void *run_thread(void *arg)
{
	(void)run(arg);
	return NULL;
}

/* OPEN -> RUNNING, or FAILED. */
static int begin_running(struct ckpt_save *s)
{
	int rc;

	{
		HOLD(&s->lock);
		if (s->state != SAVE_OPEN)
			return ckpt_say(-EINVAL, "%s: it was started before",
					s->to.path);
		s->state = SAVE_RUNNING;
	}
	rc = mark_streams(s);
	return rc < 0 ? fail(s, rc) : 0;
}

int ckpt_start(struct ckpt_save *s)
{
	int rc = ckpt_check_process(s->c);

	if (rc == 0)
		rc = begin_running(s);
	if (rc < 0)
		return rc;
	rc = thread_start(&s->thread, NULL, run_thread, s);
	if (rc == 0) {
		s->has_thread = true;
		return 0;
	}
	HOLD(&s->lock);
	s->state = SAVE_OPEN; /* ckpt_commit() can do it */
	return ckpt_say(rc, "%s: no thread: %s", s->to.path, strerror(-rc));
}

int ckpt_is_committed(struct ckpt_save *s)
{
	enum save_state state = state_of(s);

	return state == SAVE_COMMITTED || state == SAVE_FAILED;
}

const char *ckpt_plain_reason(struct ckpt_save *s)
{
	HOLD(&s->lock);
	return s->state == SAVE_COMMITTED && s->why[0] ? s->why : NULL;
}

static void join(struct ckpt_save *s)
{
	if (!s->has_thread)
		return;
	CHECK(pthread_join(s->thread, NULL) == 0);
	s->has_thread = false;
}

int ckpt_commit(struct ckpt_save *s)
{
	int rc = ckpt_check_process(s->c);

	if (rc < 0)
		return rc;
	join(s);
	if (state_of(s) == SAVE_OPEN) {
		rc = begin_running(s);
		return rc < 0 ? rc : run(s);
	}
	return state_of(s) == SAVE_FAILED ? say_again(s) : 0;
}

static int wait_in_mount(struct ckpt_save *s)
{
	struct ckptfs_wait w = { .ino = s->ino };
	int rc;

	do {
		rc = ioctl(s->to.dirfd, CKPTFS_IOC_WAIT, &w) < 0 ? -errno : 0;
	} while (rc == -EINTR);
	if (rc != -ENOTCONN && rc != -ECONNABORTED)
		return rc;
	/* The daemon ended meanwhile; if there is another one, ask that. */
	rc = destination_reopen(&s->to);
	if (rc == 0 && ioctl(s->to.dirfd, CKPTFS_IOC_WAIT, &w) < 0)
		rc = -errno;
	return rc;
}

int ckpt_wait(struct ckpt_save *s)
{
	int rc = ckpt_commit(s);

	if (rc < 0)
		return rc;
	if (s->to.in_mount)
		rc = wait_in_mount(s);
	else if (fsync(s->fd) < 0 || fsync(s->to.dirfd) < 0)
		rc = -errno;
	if (rc == -ENOENT)
		return ckpt_say(rc,
				"%s: deleted or replaced before it was "
				"durable",
				s->to.path);
	return rc < 0 ? ckpt_say(rc, "%s: it is not durable: %s", s->to.path,
				 strerror(-rc))
		      : 0;
}

void ckpt_save_free(struct ckpt_save *s)
{
	if (!s)
		return;
	if (s->c->pid == getpid())
		join(s);
	for (size_t i = 0; i < s->mark_count; i++)
		gpu_event_free(s->marks[i].event);
	free(s->marks);
	layout_release(&s->layout);
	destination_close(&s->to);
	if (s->fd >= 0)
		close(s->fd);
	pthread_mutex_destroy(&s->lock);
	free(s);
}
