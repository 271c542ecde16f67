/*
 * load.c - read tensors of an open file into host memory, and to devices.
 *
 * A call's targets are sorted by where they lie in the file and taken for one
 * sequence of bytes, a run: first those in host memory, then each device's. A
 * run is read in slices of RUN_SLICE_BYTES by the crew, whatever tensors
 * these hold: two thousand small ones and one large one are the same.
 *
 *   host     every slice is read to where it belongs
 *   device   as many slices as fit are read into one pinned buffer, and go
 *            from there to their tensors, while the other one is filled;
 *            what is pinned goes to its tensors without
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "gpu/crew.h"
#include "gpu/file.h"
#include "gpu/load_device.h"
#include "gpu/run.h"
#include "store/base/scope.h"

/* --- Checking the targets --------------------------------------------------
 */

static bool entry_is_of(const struct ckpt_file *f, const struct ckpt_entry *e)
{
	uintptr_t first = (uintptr_t)f->entries;
	uintptr_t at = (uintptr_t)e - first; /* wraps: then it is too large */

	return at % sizeof(*e) == 0 && at / sizeof(*e) < f->header.count;
}

/* "tensor 'w'", or "the 4096 bytes at 512". */
struct title {
	char text[128];
};

static struct title title_of(const struct ckpt_range *r,
			     const struct ckpt_entry *e)
{
	struct title t;

	if (e)
		(void)snprintf(t.text, sizeof(t.text), "tensor '%s'", e->name);
	else
		(void)snprintf(t.text, sizeof(t.text), "the %llu bytes at %llu",
			       (unsigned long long)r->bytes,
			       (unsigned long long)r->offset);
	return t;
}

/* The driver does not survive a fork, and was the parent's. */
static struct gpu *driver_for(const struct ckpt_file *f, int device)
{
	if (f->c->pid != getpid())
		return NULL;
	return device == CKPT_DEVICE_HOST ? ckpt_driver_if_started(f->c)
					  : ckpt_driver(f->c);
}

/* A child reads what its parent has open, to host memory. */
static int check_process(const struct ckpt_file *f, int device)
{
	return device == CKPT_DEVICE_HOST ? 0 : ckpt_check_process(f->c);
}

/* e: the entry that it is of, for messages; NULL: none. */
static int check_range(const struct ckpt_file *f, const struct ckpt_range *r,
		       const struct ckpt_entry *e)
{
	struct gpu *gpu = driver_for(f, r->device);
	int count = gpu ? gpu_device_count(gpu) : 0;
	int there = CKPT_DEVICE_HOST;
	int rc = check_process(f, r->device);

	if (rc < 0)
		return rc;
	if (r->offset > f->bytes || r->bytes > f->bytes - r->offset)
		return ckpt_say(-EINVAL, "%s: %s: the file has %llu", f->path,
				title_of(r, e).text,
				(unsigned long long)f->bytes);
	if (r->device != CKPT_DEVICE_HOST &&
	    (r->device < 0 || r->device >= count))
		return ckpt_say(-EINVAL, "%s: %s: there is no device %d: %s",
				f->path, title_of(r, e).text, r->device,
				f->c->gpu_state);
	if (r->bytes == 0)
		return 0;
	if (!r->data)
		return ckpt_say(-EINVAL,
				"%s: %s: NULL was given for its %llu bytes",
				f->path, title_of(r, e).text,
				(unsigned long long)r->bytes);
	if (gpu)
		rc = gpu_pointer_device(gpu, r->data, r->device, &there);
	if (rc < 0 || there == r->device)
		return rc;
	if (there == CKPT_DEVICE_HOST)
		return ckpt_say(-EINVAL,
				"%s: %s: its pointer was said to be on device "
				"%d, and is in host memory",
				f->path, title_of(r, e).text, r->device);
	return ckpt_say(-EINVAL,
			"%s: %s: its pointer is on device %d, and was said to "
			"be on %d (%d: host memory)",
			f->path, title_of(r, e).text, there, r->device,
			CKPT_DEVICE_HOST);
}

/* --- A call ----------------------------------------------------------------
 */

static int load_to_host(const struct run *r, struct crew *crew)
{
	int rc = run_read(r, crew, 0, r->bytes, NULL);

	if (rc == 0)
		CKPT_COUNT(r->f->c, host_bytes, r->bytes);
	return rc;
}

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
	slices = bytes / RUN_SLICE_BYTES + 1;
	rc = crew_new((unsigned)(slices < threads ? slices : threads), &crew);
	if (rc < 0)
		return ckpt_say(rc, "%s: no memory", f->path);
	for (size_t at = 0; at < count && rc == 0;) {
		struct run r = first_run(f, spans + at, count - at);

		if (r.spans->device == CKPT_DEVICE_HOST)
			rc = load_to_host(&r, crew);
		else
			rc = load_to_device(&r, crew);
		at += r.count;
	}
	return rc;
}

static struct span span_of(const struct ckpt_range *r)
{
	return (struct span){
		.offset = r->offset,
		.bytes = r->bytes,
		.data = r->data,
		.device = r->device,
	};
}

int ckpt_file_read_ranges(struct ckpt_file *f, const struct ckpt_range *ranges,
			  size_t count)
{
	SCOPED(scope_free) struct span *spans = NULL;
	size_t used = 0;
	int rc = 0;

	for (size_t i = 0; i < count && rc == 0; i++)
		rc = check_range(f, &ranges[i], NULL);
	if (rc < 0)
		return rc;
	spans = calloc(count + 1, sizeof(*spans));
	if (!spans)
		return ckpt_say(-ENOMEM, "%s: no memory", f->path);
	for (size_t i = 0; i < count; i++)
		if (ranges[i].bytes > 0)
			spans[used++] = span_of(&ranges[i]);
	return used == 0 ? 0 : load_spans(f, spans, used);
}

int ckpt_file_read(struct ckpt_file *f, const struct ckpt_target *targets,
		   size_t count)
{
	SCOPED(scope_free) struct span *spans = NULL;
	size_t used = 0;
	int rc = 0;

	spans = calloc(count + 1, sizeof(*spans));
	if (!spans)
		return ckpt_say(-ENOMEM, "%s: no memory", f->path);
	for (size_t i = 0; i < count && rc == 0; i++) {
		const struct ckpt_target *t = &targets[i];
		struct ckpt_range r = { .data = t->data, .device = t->device };

		if (!t->entry || !entry_is_of(f, t->entry))
			return ckpt_say(-EINVAL,
					"%s: a target's entry is not one of "
					"this file",
					f->path);
		r.offset = t->entry->offset;
		r.bytes = t->entry->bytes;
		rc = check_range(f, &r, t->entry);
		if (rc == 0 && r.bytes > 0)
			spans[used++] = span_of(&r);
	}
	return rc < 0 || used == 0 ? rc : load_spans(f, spans, used);
}
