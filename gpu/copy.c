/*
 * copy.c - a device's copies go to its stream and are waited for at the end;
 * host memory is cut into pieces of like size, which a crew copies meanwhile.
 * A tensor that is not contiguous is gathered run by run, or, where its runs
 * are short and lie on a device, copied with what is between them.
 */
#include "gpu/copy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/bulk.h"
#include "gpu/crew.h"
#include "store/base/scope.h"

/* What a thread does at a time; less than two of it is done by the caller. */
#define SLICE_BYTES (UINT64_C(8) << 20)
/*
 * Up to so much is in a cache when it is read again, as a window of
 * save_plain.c is at once. Measured with one, past the caches took twice the
 * time of memcpy() up to 8 MiB, the same at 32 and a tenth less at 64.
 */
#define CACHED_BYTES_MAX (UINT64_C(32) << 20)

int copy_stream(struct ckpt *c, int device, const struct gpu_event *ready,
		struct gpu_stream **ret_stream)
{
	int rc = 0;

	if (!ckpt_driver(c) || device < 0 || device >= CKPT_DEVICES_MAX ||
	    device >= gpu_device_count(c->gpu))
		return ckpt_say(-ENODEV, "there is no device %d: %s", device,
				c->gpu_state);
	{
		HOLD(&c->streams_lock);
		if (!c->streams[device])
			rc = gpu_stream_new(c->gpu, device,
					    &c->streams[device]);
		*ret_stream = c->streams[device];
		if (rc == 0)
			rc = gpu_stream_wait_event(*ret_stream, ready);
	}
	return rc;
}

void copy_streams_close(struct ckpt *c)
{
	for (int i = 0; i < CKPT_DEVICES_MAX; i++)
		gpu_stream_free(TAKE(c->streams[i]));
}

/* --- tensors that are not contiguous ------------------------------------- */

/* Where their runs of neighbouring elements are, one after the other. */
struct gather {
	const struct layout_tensor *t;
	uint64_t index[CKPT_RANK_MAX]; /* of the next run, outer dimensions */
	unsigned outer; /* how many of these there are */
	uint64_t run_elements; /* in one run */
};

static void gather_init(struct gather *g, const struct layout_tensor *t,
			uint64_t from_element)
{
	uint64_t run;

	g->t = t;
	g->outer = t->rank;
	g->run_elements = 1;
	while (g->outer > 0 &&
	       t->stride[g->outer - 1] == (int64_t)g->run_elements)
		g->run_elements *= t->shape[--g->outer];
	run = from_element / g->run_elements;
	for (unsigned i = g->outer; i-- > 0;) {
		g->index[i] = run % t->shape[i];
		run /= t->shape[i];
	}
}

static const uint8_t *gather_next(struct gather *g)
{
	int64_t at = 0;

	for (unsigned i = 0; i < g->outer; i++)
		at += (int64_t)g->index[i] * g->t->stride[i];
	for (unsigned i = g->outer; i-- > 0;) {
		if (++g->index[i] < g->t->shape[i])
			break;
		g->index[i] = 0;
	}
	return g->t->data + at * (int64_t)g->t->element_bytes;
}

/* Copy job j run by run: host memory, or enqueued on stream s. */
static int gather_copy(const struct copy_job *j, struct gpu_stream *s)
{
	const uint64_t element = j->tensor->element_bytes;
	uint64_t skip, run, done = 0;
	struct gather g;
	int rc = 0;

	gather_init(&g, j->tensor, j->from / element);
	run = g.run_elements * element;
	skip = j->from % run;
	while (done < j->bytes && rc == 0) {
		const uint8_t *p = gather_next(&g) + skip;
		uint64_t n = run - skip;

		if (n > j->bytes - done)
			n = j->bytes - done;
		if (s)
			rc = gpu_copy_d2h(s, j->to + done, p, n);
		else
			memcpy(j->to + done, p, n);
		done += n;
		skip = 0;
	}
	return rc;
}

/* --- host memory --------------------------------------------------------- */

/* A list of slices, cut so that each is about as much work as the others. */
struct slices {
	struct copy_job *slice;
	size_t count;
	size_t *first; /* of each piece of work; one more at the end */
	size_t pieces;
	bool bulk; /* all of it is too much for caches */
};

static void scope_slices(struct slices *s)
{
	free(s->slice);
	free(s->first);
}

static int cut(const struct copy_job *jobs, size_t count, uint64_t bytes,
	       struct slices *ret)
{
	/* A piece may be short by less than an element: not by half of it. */
	size_t pieces_max = (size_t)(2 * bytes / SLICE_BYTES) + 2;
	size_t room = count + pieces_max;
	uint64_t in_piece = SLICE_BYTES;

	ret->slice = calloc(room, sizeof(*ret->slice));
	ret->first = calloc(pieces_max + 1, sizeof(*ret->first));
	if (!ret->slice || !ret->first)
		return ckpt_say(-ENOMEM, "no memory for a list of copies");
	for (size_t i = 0; i < count; i++) {
		uint64_t done = 0;

		if (jobs[i].tensor->device != CKPT_DEVICE_HOST)
			continue;
		while (done < jobs[i].bytes) {
			struct copy_job *s = &ret->slice[ret->count];

			if (in_piece >= SLICE_BYTES) {
				ret->first[ret->pieces++] = ret->count;
				in_piece = 0;
			}
			*s = jobs[i];
			s->from += done;
			s->to += done;
			s->bytes -= done;
			if (s->bytes > SLICE_BYTES - in_piece)
				s->bytes = SLICE_BYTES - in_piece;
			if (s->tensor->stride) /* whole elements */
				s->bytes -= s->bytes % s->tensor->element_bytes;
			if (s->bytes == 0) {
				in_piece = SLICE_BYTES;
				continue;
			}
			done += s->bytes;
			in_piece += s->bytes;
			ret->count++;
		}
	}
	CHECK(ret->count <= room && ret->pieces <= pieces_max);
	ret->first[ret->pieces] = ret->count;
	return 0;
}

static int copy_piece(void *arg, size_t index)
{
	const struct slices *s = arg;

	for (size_t i = s->first[index]; i < s->first[index + 1]; i++) {
		const struct copy_job *j = &s->slice[i];

		if (j->tensor->stride)
			(void)gather_copy(j, NULL);
		else if (s->bulk)
			bulk_copy(j->to, j->tensor->data + j->from, j->bytes);
		else
			memcpy(j->to, j->tensor->data + j->from, j->bytes);
	}
	return 0;
}

static int copy_host(struct ckpt *c, const struct copy_job *jobs, size_t count)
{
	SCOPED(scope_slices) struct slices s = { 0 };
	uint64_t bytes = 0;
	int rc;

	for (size_t i = 0; i < count; i++)
		if (jobs[i].tensor->device == CKPT_DEVICE_HOST)
			bytes += jobs[i].bytes;
	s.bulk = bytes > CACHED_BYTES_MAX;
	rc = cut(jobs, count, bytes, &s);
	if (rc < 0 || s.pieces == 0)
		return rc;
	if (crew_once(c->copy_threads, s.pieces, copy_piece, &s) < 0)
		return ckpt_say(-ENOMEM, "no memory for threads");
	CKPT_COUNT(c, host_bytes, bytes);
	return 0;
}

/* --- devices ------------------------------------------------------------- */

/* Shorter runs are not worth a copy each. */
#define RUN_BYTES_MIN (UINT64_C(64) << 10)
/* Memory between the elements that is copied along, at most. */
#define SPAN_FACTOR_MAX 4

/* The memory that the tensor's elements lie in: before and from data. */
static uint64_t span_of(const struct layout_tensor *t, uint64_t *ret_before)
{
	uint64_t before = 0, after = 0;

	for (unsigned i = 0; i < t->rank; i++) {
		uint64_t steps = t->shape[i] - 1;

		if (t->stride[i] < 0)
			before += steps * (uint64_t)-t->stride[i];
		else
			after += steps * (uint64_t)t->stride[i];
	}
	*ret_before = before * t->element_bytes;
	return (before + after + 1) * t->element_bytes;
}

/*
 * A tensor whose neighbours are far apart: all of its memory in one copy, and
 * gathered here. true: that was the way, and *ret_rc how it went.
 */
static bool gather_here(const struct copy_job *j, struct gpu_stream *s,
			int *ret_rc)
{
	const struct layout_tensor *t = j->tensor;
	struct layout_tensor copied = *t;
	struct copy_job job = *j;
	struct gather g;
	uint64_t before, span = span_of(t, &before);
	uint8_t *memory;

	gather_init(&g, t, 0);
	if (g.run_elements * t->element_bytes >= RUN_BYTES_MIN ||
	    span / SPAN_FACTOR_MAX > t->bytes)
		return false;
	memory = malloc(span);
	if (!memory)
		return false;
	*ret_rc = gpu_copy_d2h(s, memory, t->data - before, span);
	if (*ret_rc == 0)
		*ret_rc = gpu_stream_sync(s);
	if (*ret_rc == 0) {
		copied.data = memory + before;
		job.tensor = &copied;
		*ret_rc = gather_copy(&job, NULL);
	}
	free(memory);
	return true;
}

static int enqueue(struct ckpt *c, const struct copy_job *j)
{
	const struct layout_tensor *t = j->tensor;
	struct gpu_stream *s;
	int rc = copy_stream(c, t->device, t->ready, &s);

	if (rc < 0)
		return rc;
	if (!t->stride)
		rc = gpu_copy_d2h(s, j->to, t->data + j->from, j->bytes);
	else if (!gather_here(j, s, &rc))
		rc = gather_copy(j, s);
	if (rc == 0)
		CKPT_COUNT(c, d2h_bytes, j->bytes);
	return rc;
}

int copy_run(struct ckpt *c, const struct copy_job *jobs, size_t count)
{
	bool used[CKPT_DEVICES_MAX] = { false };
	int rc = 0, host;

	for (size_t i = 0; i < count && rc == 0; i++) {
		int device = jobs[i].tensor->device;

		if (device == CKPT_DEVICE_HOST || jobs[i].bytes == 0)
			continue;
		rc = enqueue(c, &jobs[i]);
		if (device >= 0 && device < CKPT_DEVICES_MAX)
			used[device] = true;
	}
	host = rc < 0 ? 0 : copy_host(c, jobs, count);
	/* After an error too: what was enqueued still writes. */
	for (int i = 0; i < CKPT_DEVICES_MAX; i++)
		if (used[i] && c->streams[i]) {
			int done = gpu_stream_sync(c->streams[i]);

			rc = rc < 0 ? rc : done;
		}
	return rc < 0 ? rc : host;
}
