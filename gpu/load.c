/*
 * load.c - read tensors of an open file into host memory, and to devices.
 *
 * A call's targets are sorted by where they lie in the file and taken for one
 * sequence of bytes, a run: first those in host memory, then each device's. A
 * run is read in slices of LOAD_SLICE_BYTES by the crew, whatever tensors
 * these hold: two thousand small ones and one large one are the same.
 *
 *   host     every slice is read to where it belongs
 *   device   as many slices as fit are read into one pinned buffer, and go
 *            from there to their tensors, while the other one is filled
 *
 * Reads are preadv(2), never the map: a file that somebody makes shorter is
 * an error then and no SIGBUS. It is the faster way as well. Into memory that
 * was touched before, GB/s with one thread and with two, 1 GiB, two cores:
 *
 *                                    preadv          memcpy from the map
 *   tmpfs                            9.4 and 14.4    5.0 and 8.4
 *   mount, kernel passthrough        13.3 and 17.0   9.9 and 23.7
 *   mount, passthrough=off           3.6 and 4.2     1.0 and 1.7
 *
 * Into memory that is touched for the first time it is 2 GB/s for each thread
 * in all of them but the last (1.6 and 0.6): the page faults of the target.
 */
#include "gpu/load.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "gpu/crew.h"
#include "gpu/file.h"
#include "gpu/segment.h"
#include "store/base/scope.h"

#define LOAD_SLICE_BYTES (UINT64_C(4) << 20)
#define LOAD_IOV_MAX 64
#define LOAD_BUFFERS 2

struct span { /* a target that has bytes, in its run */
	uint64_t start; /* in the run */
	uint64_t offset; /* in the file */
	uint64_t bytes;
	uint8_t *data;
	int device;
};

struct run {
	struct ckpt_file *f;
	const struct span *spans; /* borrowed; by offset */
	size_t count;
	uint64_t bytes;
};

/* --- Checking the targets --------------------------------------------------
 */

static bool entry_is_of(const struct ckpt_file *f, const struct ckpt_entry *e)
{
	uintptr_t first = (uintptr_t)f->entries;
	uintptr_t at = (uintptr_t)e - first; /* wraps: then it is too large */

	return at % sizeof(*e) == 0 && at / sizeof(*e) < f->header.count;
}

static int check_device(const struct ckpt_file *f, const struct ckpt_target *t)
{
	struct gpu *gpu = f->c->gpu;
	int count = gpu ? gpu_device_count(gpu) : 0;
	int there = CKPT_DEVICE_HOST;
	int rc = 0;

	if (t->device != CKPT_DEVICE_HOST &&
	    (t->device < 0 || t->device >= count))
		return ckpt_say(-EINVAL,
				"%s: tensor '%s': there is no device %d: %s",
				f->path, t->entry->name, t->device,
				f->c->gpu_state);
	if (t->entry->bytes == 0)
		return 0;
	if (!t->data)
		return ckpt_say(-EINVAL,
				"%s: tensor '%s': NULL was given for its %llu "
				"bytes",
				f->path, t->entry->name,
				(unsigned long long)t->entry->bytes);
	if (gpu)
		rc = gpu_pointer_device(gpu, t->data, &there);
	if (rc < 0 || there == t->device)
		return rc;
	if (there == CKPT_DEVICE_HOST)
		return ckpt_say(-EINVAL,
				"%s: tensor '%s': its pointer was said to be "
				"on device %d, and is in host memory",
				f->path, t->entry->name, t->device);
	return ckpt_say(-EINVAL,
			"%s: tensor '%s': its pointer is on device %d, and was "
			"said to be on %d (%d: host memory)",
			f->path, t->entry->name, there, t->device,
			CKPT_DEVICE_HOST);
}

static int check_target(const struct ckpt_file *f, const struct ckpt_target *t)
{
	if (!t->entry || !entry_is_of(f, t->entry))
		return ckpt_say(-EINVAL,
				"%s: a target's entry is not one of this file",
				f->path);
	return check_device(f, t);
}

/* --- Reading a run ---------------------------------------------------------
 */

/* All that the iovecs have room for; they are used up. */
static int read_iovecs(int fd, struct iovec *iov, int count, uint64_t offset)
{
	while (count > 0) {
		ssize_t n = preadv(fd, iov, count, (off_t)offset);
		size_t left;

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			return -ESTALE; /* it ends before */
		offset += (uint64_t)n;
		left = (size_t)n;
		for (; count > 0 && left >= iov->iov_len; iov++, count--)
			left -= iov->iov_len;
		if (count > 0) {
			iov->iov_base = (uint8_t *)iov->iov_base + left;
			iov->iov_len -= left;
		}
	}
	return 0;
}

/* The span that byte `at` of the run is in. */
static size_t find_span(const struct run *r, uint64_t at)
{
	size_t low = 0;
	size_t high = r->count;

	CHECK(at < r->bytes);
	while (high - low > 1) {
		size_t middle = low + (high - low) / 2;

		if (r->spans[middle].start <= at)
			low = middle;
		else
			high = middle;
	}
	return low;
}

/*
 * Read bytes [from, to) of the run to where they belong, or to `buffer`, one
 * after the other, if there is one. Tensors that follow each other in the
 * file are one call.
 */
static int read_part(const struct run *r, uint64_t from, uint64_t to,
		     uint8_t *buffer)
{
	size_t i = find_span(r, from);
	struct iovec iov[LOAD_IOV_MAX];
	int rc = 0;

	while (from < to && rc == 0) {
		uint64_t in_span = from - r->spans[i].start;
		uint64_t offset = r->spans[i].offset + in_span;
		uint64_t end = offset;
		int count = 0;

		while (from < to && count < LOAD_IOV_MAX &&
		       r->spans[i].offset + in_span == end) {
			const struct span *s = &r->spans[i];
			uint64_t len = s->bytes - in_span;

			if (len > to - from)
				len = to - from;
			else
				i++;
			iov[count].iov_base =
				buffer ? buffer : s->data + in_span;
			iov[count].iov_len = (size_t)len;
			count++;
			if (buffer)
				buffer += len;
			from += len;
			end += len;
			in_span = 0;
		}
		rc = read_iovecs(r->f->fd, iov, count, offset);
	}
	return rc;
}

struct reading { /* bytes [from, to) of a run, in slices */
	const struct run *run;
	uint64_t from;
	uint64_t to;
	uint8_t *buffer; /* NULL: to where they belong */
};

static int read_slice(void *arg, size_t index)
{
	const struct reading *g = arg;
	uint64_t skip = index * LOAD_SLICE_BYTES;
	uint64_t from = g->from + skip;
	uint64_t to = from + LOAD_SLICE_BYTES;

	if (to > g->to)
		to = g->to;
	return read_part(g->run, from, to,
			 g->buffer ? g->buffer + skip : NULL);
}

static int read_slices(struct crew *crew, struct reading *g)
{
	uint64_t bytes = g->to - g->from;
	size_t count = (size_t)((bytes + LOAD_SLICE_BYTES - 1) /
				LOAD_SLICE_BYTES);
	int rc = crew_run(crew, count, read_slice, g);

	if (rc == -ESTALE)
		return ckpt_say(rc,
				"%s: it is shorter now than when it was opened",
				g->run->f->path);
	if (rc < 0)
		return ckpt_say(rc, "%s: read: %s", g->run->f->path,
				strerror(-rc));
	return 0;
}

static int load_to_host(struct crew *crew, const struct run *r)
{
	struct reading g = { .run = r, .to = r->bytes };
	int rc = read_slices(crew, &g);

	if (rc == 0)
		CKPT_COUNT(r->f->c, host_bytes, r->bytes);
	return rc;
}

/* --- To a device -----------------------------------------------------------
 */

struct transfer {
	struct ckpt *c;
	struct gpu_stream *stream;
	struct transfer_buffer {
		uint8_t *data; /* NULL: not needed yet */
		bool pinned;
		/* The copies out of it are done; NULL: never used. */
		struct gpu_event *copied;
	} buffers[LOAD_BUFFERS];
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
	size_t i = find_span(r, start);
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
	unsigned turn = 0;
	int rc = 0;

	for (uint64_t at = 0; at < r->bytes && rc == 0; turn++) {
		struct transfer_buffer *b = &t->buffers[turn % LOAD_BUFFERS];
		struct reading g = { .run = r, .from = at };
		uint64_t room = t->c->buffer_bytes;

		rc = buffer_wait(t, r->spans->device, b);
		if (rc < 0)
			break;
		g.to = r->bytes - at > room ? at + room : r->bytes;
		g.buffer = b->data;
		rc = read_slices(crew, &g);
		if (rc == 0)
			rc = copy_part(t, r, at, g.to, b->data);
		if (rc == 0)
			rc = gpu_event_record(b->copied, t->stream);
		at = g.to;
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

static int load_to_device(struct crew *crew, const struct run *r)
{
	struct transfer t = { .c = r->f->c };
	struct segment *pinned = NULL;
	struct stat now;
	int done;
	int rc = gpu_stream_new(t.c->gpu, r->spans->device, &t.stream);

	if (rc < 0)
		return rc;
	/* What this process saved itself may lie in its own pinned memory. */
	if (fstat(r->f->fd, &now) == 0)
		pinned = segment_read_begin(t.c, &now);
	rc = pinned ? copy_from_pinned(&t, r, pinned->memory) :
		      copy_through_buffers(&t, crew, r);
	/* After an error too: copies under way still use both sides. */
	done = gpu_stream_sync(t.stream);
	for (size_t i = 0; i < LOAD_BUFFERS; i++)
		if (t.buffers[i].data)
			buffer_release(t.c, &t.buffers[i]);
	gpu_stream_free(t.stream);
	if (pinned)
		segment_read_end(pinned);
	return rc < 0 ? rc : done;
}

/* --- A call ----------------------------------------------------------------
 */

static int compare_spans(const void *a, const void *b)
{
	const struct span *x = a, *y = b;

	if (x->device != y->device)
		return x->device < y->device ? -1 : 1;
	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	return 0;
}

/* The run that starts with spans[0]; starts are set. */
static struct run first_run(struct ckpt_file *f, struct span *spans,
			    size_t count)
{
	struct run r = { .f = f, .spans = spans };

	while (r.count < count && spans[r.count].device == spans->device) {
		spans[r.count].start = r.bytes;
		r.bytes += spans[r.count].bytes;
		r.count++;
	}
	return r;
}

static void scope_crew(struct crew **c)
{
	crew_free(*c);
}

static int load_spans(struct ckpt_file *f, struct span *spans, size_t count)
{
	SCOPED(scope_crew) struct crew *crew = NULL;
	uint64_t threads = f->c->copy_threads;
	uint64_t bytes = 0;
	uint64_t slices;
	int rc;

	qsort(spans, count, sizeof(*spans), compare_spans);
	for (size_t i = 0; i < count; i++)
		bytes += spans[i].bytes;
	slices = bytes / LOAD_SLICE_BYTES + 1;
	rc = crew_new((unsigned)(slices < threads ? slices : threads), &crew);
	if (rc < 0)
		return ckpt_say(rc, "%s: no memory", f->path);
	for (size_t at = 0; at < count && rc == 0;) {
		struct run r = first_run(f, spans + at, count - at);

		if (r.spans->device == CKPT_DEVICE_HOST)
			rc = load_to_host(crew, &r);
		else
			rc = load_to_device(crew, &r);
		at += r.count;
	}
	return rc;
}

int ckpt_file_read(struct ckpt_file *f, const struct ckpt_target *targets,
		   size_t count)
{
	SCOPED(scope_free) struct span *spans = NULL;
	size_t used = 0;
	int rc = ckpt_check_process(f->c);

	for (size_t i = 0; i < count && rc == 0; i++)
		rc = check_target(f, &targets[i]);
	if (rc < 0)
		return rc;
	spans = calloc(count + 1, sizeof(*spans));
	if (!spans)
		return ckpt_say(-ENOMEM, "%s: no memory", f->path);
	for (size_t i = 0; i < count; i++) {
		const struct ckpt_target *t = &targets[i];

		if (t->entry->bytes == 0)
			continue;
		spans[used++] = (struct span){
			.offset = t->entry->offset,
			.bytes = t->entry->bytes,
			.data = t->data,
			.device = t->device,
		};
	}
	return used == 0 ? 0 : load_spans(f, spans, used);
}
