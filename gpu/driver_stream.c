/*
 * driver_stream.c - streams, copies and events. See driver.h.
 */
#include "gpu/driver.h"

#include <errno.h>
#include <stdlib.h>

#include "gpu/driver_context.h"
#include "gpu/say.h"
#include "store/base/scope.h"

struct gpu_event {
	struct gpu *g;
	int device;
	void *raw;
};

/* --- Streams ------------------------------------------------------------- */

int gpu_stream_wrap(struct gpu *g, int device, void *raw,
		    struct gpu_stream **ret_stream)
{
	struct gpu_stream *s;

	if (device < 0 || device >= g->device_count)
		return ckpt_say(-EINVAL, "device %d: there are %d devices",
				device, g->device_count);
	s = calloc(1, sizeof(*s));
	if (!s)
		return ckpt_say(-ENOMEM, "no memory");
	s->g = g;
	s->device = device;
	s->raw = raw;
	*ret_stream = s;
	return 0;
}

int gpu_stream_new(struct gpu *g, int device, struct gpu_stream **ret_stream)
{
	SCOPED(scope_free) struct gpu_stream *s = NULL;
	SCOPED(gpu_leave) struct entered in = { 0 };
	int rc = gpu_stream_wrap(g, device, NULL, &s);

	if (rc < 0)
		return rc;
	rc = gpu_enter(g, device, &in);
	if (rc < 0)
		return rc;
	rc = gpu_said(g, g->cu.cuStreamCreate(&s->raw, CU_STREAM_NON_BLOCKING),
		      "cannot make a stream on device %d", device);
	if (rc < 0)
		return rc;
	s->owned = true;
	*ret_stream = TAKE(s);
	return 0;
}

void gpu_stream_free(struct gpu_stream *s)
{
	SCOPED(gpu_leave) struct entered in = { 0 };

	if (!s)
		return;
	if (s->owned && gpu_enter(s->g, s->device, &in) == 0)
		(void)s->g->cu.cuStreamDestroy(s->raw);
	free(s);
}

int gpu_stream_check_recording(struct gpu_stream *s)
{
	SCOPED(gpu_leave) struct entered in = { 0 };
	int rc = gpu_enter(s->g, s->device, &in);
	int status = 0;

	if (rc < 0)
		return rc;
	rc = gpu_said(s->g, s->g->cu.cuStreamIsCapturing(s->raw, &status),
		      "cannot ask for a stream of device %d", s->device);
	if (rc == 0 && status != CU_CAPTURE_NONE)
		rc = ckpt_say(-EBUSY,
			      "a stream of device %d is captured for a "
			      "graph: nothing can be saved from it",
			      s->device);
	return rc;
}

int gpu_stream_wait_event(struct gpu_stream *s, const struct gpu_event *e)
{
	SCOPED(gpu_leave) struct entered in = { 0 };
	int rc = gpu_enter(s->g, s->device, &in);

	if (rc < 0)
		return rc;
	return gpu_said(s->g, s->g->cu.cuStreamWaitEvent(s->raw, e->raw, 0),
			"cannot wait for a stream on device %d", s->device);
}

int gpu_copy_d2h(struct gpu_stream *s, void *dst, const void *src, size_t len)
{
	SCOPED(gpu_leave) struct entered in = { 0 };
	int rc = gpu_enter(s->g, s->device, &in);

	if (rc < 0 || len == 0)
		return rc;
	return gpu_said(s->g,
			s->g->cu.cuMemcpyDtoHAsync(
				dst, (uint64_t)(uintptr_t)src, len, s->raw),
			"cannot copy %zu bytes from device %d", len, s->device);
}

int gpu_copy_h2d(struct gpu_stream *s, void *dst, const void *src, size_t len)
{
	SCOPED(gpu_leave) struct entered in = { 0 };
	int rc = gpu_enter(s->g, s->device, &in);

	if (rc < 0 || len == 0)
		return rc;
	return gpu_said(s->g,
			s->g->cu.cuMemcpyHtoDAsync((uint64_t)(uintptr_t)dst,
						   src, len, s->raw),
			"cannot copy %zu bytes to device %d", len, s->device);
}

int gpu_copy_d2d(struct gpu_stream *s, void *dst, const void *src, size_t len)
{
	SCOPED(gpu_leave) struct entered in = { 0 };
	int rc = gpu_enter(s->g, s->device, &in);

	if (rc < 0 || len == 0)
		return rc;
	return gpu_said(s->g,
			s->g->cu.cuMemcpyDtoDAsync((uint64_t)(uintptr_t)dst,
						   (uint64_t)(uintptr_t)src,
						   len, s->raw),
			"cannot copy %zu bytes on device %d", len, s->device);
}

int gpu_zero(struct gpu_stream *s, void *dst, size_t len)
{
	SCOPED(gpu_leave) struct entered in = { 0 };
	int rc = gpu_enter(s->g, s->device, &in);

	if (rc < 0 || len == 0)
		return rc;
	return gpu_said(s->g,
			s->g->cu.cuMemsetD8Async((uint64_t)(uintptr_t)dst, 0,
						 len, s->raw),
			"cannot zero %zu bytes on device %d", len, s->device);
}

int gpu_stream_sync(struct gpu_stream *s)
{
	SCOPED(gpu_leave) struct entered in = { 0 };
	int rc = gpu_enter(s->g, s->device, &in);

	if (rc < 0)
		return rc;
	return gpu_said(s->g, s->g->cu.cuStreamSynchronize(s->raw),
			"work on device %d failed", s->device);
}

/* --- Events -------------------------------------------------------------- */

int gpu_event_new(struct gpu *g, int device, struct gpu_event **ret_event)
{
	SCOPED(scope_free) struct gpu_event *e = calloc(1, sizeof(*e));
	SCOPED(gpu_leave) struct entered in = { 0 };
	int rc;

	if (!e)
		return ckpt_say(-ENOMEM, "no memory");
	e->g = g;
	e->device = device;
	rc = gpu_enter(g, device, &in);
	if (rc < 0)
		return rc;
	rc = gpu_said(g, g->cu.cuEventCreate(&e->raw, CU_EVENT_DISABLE_TIMING),
		      "cannot make an event on device %d", device);
	if (rc < 0)
		return rc;
	*ret_event = TAKE(e);
	return 0;
}

void gpu_event_free(struct gpu_event *e)
{
	SCOPED(gpu_leave) struct entered in = { 0 };

	if (!e)
		return;
	if (gpu_enter(e->g, e->device, &in) == 0)
		(void)e->g->cu.cuEventDestroy(e->raw);
	free(e);
}

int gpu_event_record(struct gpu_event *e, struct gpu_stream *s)
{
	SCOPED(gpu_leave) struct entered in = { 0 };
	int rc = gpu_enter(s->g, s->device, &in);

	if (rc < 0)
		return rc;
	return gpu_said(s->g, s->g->cu.cuEventRecord(e->raw, s->raw),
			"cannot record an event on device %d", s->device);
}

int gpu_event_sync(struct gpu_event *e)
{
	SCOPED(gpu_leave) struct entered in = { 0 };
	int rc = gpu_enter(e->g, e->device, &in);

	if (rc < 0)
		return rc;
	return gpu_said(e->g, e->g->cu.cuEventSynchronize(e->raw),
			"work on device %d failed", e->device);
}
