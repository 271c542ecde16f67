/*
 * fake_streams.c - streams, events and graphs of the driver on host memory. A
 * stream is a list of things to do, done when it is synchronised with, in the
 * order that streams, events and the default stream demand and no other.
 */
#include "tests/gpu/fake_driver.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct event {
	struct stream *stream; /* NULL: not recorded */
	uint64_t number;
	int64_t recorded_ns;
};

/* Guarded by the driver's lock. */
static pthread_cond_t let_go = PTHREAD_COND_INITIALIZER;
static bool held; /* nobody's wait for a stream ends */
static uint64_t last_number;
static __thread int capture_mode; /* 0 global, 1 this thread, 2 relaxed */
static uint64_t launches;

bool capture_forbids(void)
{
	return fake.captures > 0 && capture_mode != 2;
}

CU(cuThreadExchangeStreamCaptureMode, int *mode)
{
	int old = capture_mode;

	ENTER();
	capture_mode = *mode;
	*mode = old;
	return OK;
}

/* --- What is due --- */

static void op_run_locked(const struct op *o)
{
	switch (o->kind) {
	case OP_MARK:
		break;
	case OP_WAIT:
		stream_run_locked(o->other, o->until);
		break;
	case OP_COPY:
		memmove(o->dst, o->src, o->len);
		*o->counter += o->len;
		break;
	case OP_SET:
		memset(o->dst, o->value, o->len);
		*o->counter += o->len;
		break;
	case OP_KERNEL:
		launches++;
		o->kernel->run(o->args, o->grid, o->block);
		break;
	}
}

void stream_run_locked(struct stream *s, uint64_t number)
{
	struct stream *null_stream = &fake.devices[s->device].null_stream;

	while (s->due.first && s->due.first->number <= number) {
		struct op *o = s->due.first;

		s->due.first = o->next;
		if (s == null_stream) {
			for (struct stream *b = fake.streams; b; b = b->next)
				if (b->blocking && b->device == s->device)
					stream_run_locked(b, o->number - 1);
		} else if (s->blocking) {
			stream_run_locked(null_stream, o->number - 1);
		}
		op_run_locked(o);
		free(o);
	}
}

void device_run_locked(int device)
{
	for (struct stream *s = fake.streams; s; s = s->next)
		if (s->device == device)
			stream_run_locked(s, UINT64_MAX);
	stream_run_locked(&fake.devices[device].null_stream, UINT64_MAX);
}

static void ops_add(struct ops *ops, struct op *o)
{
	o->next = NULL;
	if (ops->first)
		ops->last->next = o;
	else
		ops->first = o;
	ops->last = o;
}

static struct op *op_copy(const struct op *of)
{
	struct op *o = malloc(sizeof(*o));

	CHECK(o != NULL);
	*o = *of;
	for (unsigned i = 0; o->kernel && i < o->kernel->count; i++)
		o->args[i] = o->arg_bytes +
			     ((const uint8_t *)of->args[i] - of->arg_bytes);
	return o;
}

uint64_t stream_enqueue_locked(struct stream *s, const struct op *of)
{
	struct op *o = op_copy(of);

	o->number = ++last_number;
	ops_add(s->capturing ? &s->captured : &s->due, o);
	return o->number;
}

struct stream *stream_find_locked(void *handle)
{
	int device = current_device();

	if (device < 0)
		return NULL;
	if (!handle)
		return &fake.devices[device].null_stream;
	for (struct stream *s = fake.streams; s; s = s->next)
		if (s == handle)
			return s;
	return NULL;
}

/* --- Streams --- */

CU(cuStreamCreate, void **stream, unsigned flags)
{
	struct stream *s;

	ENTER();
	if (current_device() < 0)
		return INVALID_CONTEXT;
	s = calloc(1, sizeof(*s));
	CHECK(s != NULL);
	s->device = current_device();
	s->blocking = flags != 1;
	s->next = fake.streams;
	fake.streams = s;
	*stream = s;
	return OK;
}

/* What is due stays due; nobody can wait for it alone any more. */
CU(cuStreamDestroy_v2, void *stream)
{
	ENTER();
	return stream && stream_find_locked(stream) ? OK : INVALID_HANDLE;
}

CU(cuStreamSynchronize, void *stream)
{
	struct stream *s;

	ENTER();
	while (held)
		pthread_cond_wait(&let_go, &fake.lock);
	s = stream_find_locked(stream);
	if (!s)
		return INVALID_HANDLE;
	if (s->capturing || capture_forbids())
		return CAPTURE_UNSUPPORTED;
	fake.syncs++;
	stream_run_locked(s, UINT64_MAX);
	/* The default stream also stands for all that wait for it. */
	for (struct stream *b = fake.streams; !stream && b; b = b->next)
		if (b->blocking && b->device == s->device)
			stream_run_locked(b, UINT64_MAX);
	return OK;
}

API int cuCtxSynchronize(void)
{
	ENTER();
	REFUSE_UNUSABLE();
	fake.syncs++;
	device_run_locked(current_device());
	return OK;
}

CU(cuStreamWaitEvent, void *stream, void *event, unsigned flags)
{
	struct event *e = event;
	struct stream *s;

	ENTER();
	s = stream_find_locked(stream);
	if (!s || !e || flags != 0)
		return INVALID_HANDLE;
	if (s->capturing || capture_forbids())
		return CAPTURE_UNSUPPORTED; /* forks in graphs are left out */
	if (e->stream)
		(void)stream_enqueue_locked(s,
					    &(struct op){ .kind = OP_WAIT,
							  .other = e->stream,
							  .until = e->number });
	return OK;
}

/* --- Events --- */

CU(cuEventCreate, void **event, unsigned flags)
{
	(void)flags;
	ENTER();
	if (current_device() < 0)
		return INVALID_CONTEXT;
	*event = calloc(1, sizeof(struct event));
	CHECK(*event != NULL);
	return OK;
}

CU(cuEventDestroy_v2, void *event)
{
	ENTER();
	if (!event)
		return INVALID_HANDLE;
	free(event);
	return OK;
}

CU(cuEventRecord, void *event, void *stream)
{
	struct event *e = event;
	struct timespec now;
	struct stream *s;

	ENTER();
	s = stream_find_locked(stream);
	if (!s || !e)
		return INVALID_HANDLE;
	if (s->capturing || capture_forbids())
		return CAPTURE_UNSUPPORTED;
	e->number = stream_enqueue_locked(s, &(struct op){ .kind = OP_MARK });
	e->stream = s;
	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	e->recorded_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
	return OK;
}

CU(cuEventSynchronize, void *event)
{
	struct event *e = event;

	ENTER();
	if (!e)
		return INVALID_HANDLE;
	if (capture_forbids())
		return CAPTURE_UNSUPPORTED;
	fake.syncs++;
	if (e->stream)
		stream_run_locked(e->stream, e->number);
	return OK;
}

/* Of the host's clock, when they were recorded: nothing here has a speed. */
API int cuEventElapsedTime(float *ms, void *from, void *to)
{
	struct event *a = from, *b = to;

	HOLD(&fake.lock);
	if (!a->stream || !b->stream)
		return INVALID_HANDLE;
	*ms = (float)((double)(b->recorded_ns - a->recorded_ns) / 1e6);
	return OK;
}

/* --- Graphs --- */

static void ops_free(struct ops *ops)
{
	while (ops->first) {
		struct op *o = ops->first;

		ops->first = o->next;
		free(o);
	}
}

API int cuStreamBeginCapture_v2(void *stream, int mode)
{
	struct stream *s;

	(void)mode; /* the strictest */
	HOLD(&fake.lock);
	s = stream ? stream_find_locked(stream) : NULL;
	if (!s || s->capturing)
		return INVALID_HANDLE;
	s->capturing = true;
	fake.captures++;
	return OK;
}

API int cuStreamIsCapturing(void *stream, int *status)
{
	struct stream *s;

	HOLD(&fake.lock);
	s = stream ? stream_find_locked(stream) : NULL;
	if (stream && !s)
		return INVALID_HANDLE;
	*status = s && s->capturing;
	return OK;
}

API int cuStreamEndCapture(void *stream, void **graph)
{
	struct stream *s;
	struct ops *g;

	HOLD(&fake.lock);
	s = stream ? stream_find_locked(stream) : NULL;
	if (!s || !s->capturing)
		return INVALID_HANDLE;
	g = calloc(1, sizeof(*g));
	CHECK(g != NULL);
	*g = s->captured;
	memset(&s->captured, 0, sizeof(s->captured));
	s->capturing = false;
	fake.captures--;
	*graph = g;
	return OK;
}

API int cuGraphInstantiateWithFlags(void **exec, void *graph,
				    unsigned long long flags)
{
	const struct ops *g = graph;
	struct ops *e;

	(void)flags;
	HOLD(&fake.lock);
	e = calloc(1, sizeof(*e));
	CHECK(e != NULL);
	for (const struct op *o = g->first; o; o = o->next)
		ops_add(e, op_copy(o));
	*exec = e;
	return OK;
}

API int cuGraphLaunch(void *exec, void *stream)
{
	const struct ops *e = exec;
	struct stream *s;

	HOLD(&fake.lock);
	s = stream_find_locked(stream);
	if (!s)
		return INVALID_HANDLE;
	for (const struct op *o = e->first; o; o = o->next)
		(void)stream_enqueue_locked(s, o);
	return OK;
}

API int cuGraphExecDestroy(void *exec)
{
	ops_free(exec);
	free(exec);
	return OK;
}

API int cuGraphDestroy(void *graph)
{
	return cuGraphExecDestroy(graph);
}

/* --- For the tests --- */

COUNTER(fake_cuda_syncs, fake.syncs)
COUNTER(fake_cuda_launches, launches)

API void fake_cuda_hold(bool on)
{
	HOLD(&fake.lock);
	held = on;
	pthread_cond_broadcast(&let_go);
}
