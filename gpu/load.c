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
 *            from there to their tensors, while the other one is filled
 */
#include <errno.h>
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
