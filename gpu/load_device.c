/*
 * load_device.c - as many slices as fit are read into one pinned buffer, and
 * go from there to their tensors while the other buffer is filled. What this
 * process saved itself, and still has mapped, goes to the device from there,
 * and so does a file that is pinned.
 */
#include "gpu/load_device.h"

#include <errno.h>
#include <stdlib.h>

#include "gpu/mapping.h"
#include "store/base/scope.h"

#define BUFFERS CKPT_SPARE_MAX

struct transfer {
	struct ckpt *c;
	struct gpu_stream *stream;
	struct transfer_buffer {
		uint8_t *data; /* NULL: not needed yet */
		bool pinned;
		/* The copies out of it are done; NULL: never used. */
		struct gpu_event *copied;
	} buffers[BUFFERS];
};

static void *take_spare(struct ckpt *c)
{
	HOLD(&c->lock);
	for (size_t i = 0; i < CKPT_SPARE_MAX; i++)
		if (c->spare[i])
			return TAKE(c->spare[i]);
	return NULL;
}

/* Returns what there was no room for. */
static void *keep_spare(struct ckpt *c, void *p)
{
	HOLD(&c->lock);
	for (size_t i = 0; i < CKPT_SPARE_MAX; i++) {
		if (!c->spare[i]) {
			c->spare[i] = p;
			return NULL;
		}
	}
	return p;
}

static void free_pinned(struct ckpt *c, void *p)
{
	if (!p)
		return;
	gpu_host_free(c->gpu, p);
	(void)atomic_fetch_sub(&c->counters.pinned_bytes,
			       (uint_fast64_t)c->buffer_bytes);
}

void load_buffers_close(struct ckpt *c)
{
	for (size_t i = 0; i < CKPT_SPARE_MAX; i++)
		free_pinned(c, TAKE(c->spare[i]));
}

/* Not pinned is slower, and all that it is. */
static int buffer_init(struct ckpt *c, struct transfer_buffer *b)
{
	void *p = take_spare(c);

	b->pinned = true;
	if (!p && gpu_host_alloc(c->gpu, c->buffer_bytes, &p) == 0)
		CKPT_COUNT(c, pinned_bytes, c->buffer_bytes);
	if (!p) {
		CKPT_COUNT(c, pin_failures, 1);
		b->pinned = false;
		p = malloc(c->buffer_bytes);
	}
	if (!p)
		return ckpt_say(-ENOMEM,
				"no memory for a transfer buffer of %llu bytes",
				(unsigned long long)c->buffer_bytes);
	b->data = p;
	return 0;
}

static void buffer_release(struct ckpt *c, struct transfer_buffer *b)
{
	gpu_event_free(b->copied);
	if (b->pinned)
		free_pinned(c, keep_spare(c, b->data));
	else
		free(b->data);
}

/* Its last copies are done, and it can be filled. */
static int buffer_wait(struct transfer *t, int device,
		       struct transfer_buffer *b)
{
	int rc;

	if (b->copied)
		return gpu_event_sync(b->copied);
	rc = buffer_init(t->c, b);
	if (rc == 0)
		rc = gpu_event_new(t->c->gpu, device, &b->copied);
	return rc;
}

/* Copy what lies in `from`, which is byte `start` of the run, to its spans. */
static int copy_part(struct transfer *t, const struct run *r, uint64_t start,
		     uint64_t end, const uint8_t *from)
{
	size_t i = run_find_span(r, start);
	int rc = 0;

	for (uint64_t at = start; at < end && rc == 0; i++) {
		const struct span *s = &r->spans[i];
		uint64_t in_span = at - s->start;
		uint64_t len = s->bytes - in_span;

		if (len > end - at)
			len = end - at;
		rc = gpu_copy_h2d(t->stream, s->data + in_span,
				  from + (at - start), (size_t)len);
		if (rc == 0)
			CKPT_COUNT(t->c, h2d_bytes, len);
		at += len;
	}
	return rc;
}

static int copy_through_buffers(struct transfer *t, struct crew *crew,
				const struct run *r)
{
	unsigned round = 0;
	int rc = 0;

	for (uint64_t at = 0; at < r->bytes && rc == 0; round++) {
		struct transfer_buffer *b = &t->buffers[round % BUFFERS];
		uint64_t room = t->c->buffer_bytes, to;

		rc = buffer_wait(t, r->spans->device, b);
		if (rc < 0)
			break;
		to = r->bytes - at > room ? at + room : r->bytes;
		rc = run_read(r, crew, at, to, b->data);
		if (rc == 0)
			rc = copy_part(t, r, at, to, b->data);
		CKPT_COUNT(t->c, buffered_bytes, rc == 0 ? to - at : 0);
		if (rc == 0)
			rc = gpu_event_record(b->copied, t->stream);
		at = to;
	}
	return rc;
}

static int copy_from_pinned(struct transfer *t, const struct run *r,
			    const uint8_t *file)
{
	int rc = 0;

	for (size_t i = 0; i < r->count && rc == 0; i++) {
		const struct span *s = &r->spans[i];

		rc = gpu_copy_h2d(t->stream, s->data, file + s->offset,
				  (size_t)s->bytes);
		if (rc == 0)
			CKPT_COUNT(t->c, h2d_bytes, s->bytes);
	}
	return rc;
}

int load_to_device(const struct run *r, struct crew *crew)
{
	struct transfer t = { .c = r->f->c };
	struct mapping *pinned = NULL;
	struct stat now;
	int done;
	int rc = gpu_stream_new(t.c->gpu, r->spans->device, &t.stream);

	if (rc < 0)
		return rc;
	/* What this process saved itself may lie in its own pinned memory. */
	if (!r->f->pinned && fstat(r->f->fd, &now) == 0)
		pinned = mapping_read_begin(t.c, &now);
	if (r->f->pinned)
		rc = copy_from_pinned(&t, r, r->f->map);
	else
		rc = pinned ? copy_from_pinned(&t, r, pinned->memory)
			    : copy_through_buffers(&t, crew, r);
	/* After an error too: copies under way still use both sides. */
	done = gpu_stream_sync(t.stream);
	for (size_t i = 0; i < BUFFERS; i++)
		if (t.buffers[i].data)
			buffer_release(t.c, &t.buffers[i]);
	gpu_stream_free(t.stream);
	if (pinned)
		mapping_read_end(pinned);
	return rc < 0 ? rc : done;
}
