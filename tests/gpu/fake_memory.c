/*
 * fake_memory.c - memory of the driver on host memory, and what copies it.
 *
 * What a device would refuse is refused: memory that was not allocated, and
 * pinning twice. Memory that is unpinned while a copy of it is due stops the
 * process.
 */
#include "tests/gpu/fake_driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN 512u

struct memory {
	struct memory *next;
	uint8_t *p;
	size_t len;
	int device; /* -1: the host's, which devices reach too */
	bool registered; /* not ours to free */
	bool managed; /* the host's as well */
};

/* Guarded by the driver's lock. */
static struct memory *memories;
static uint64_t d2h_copies, d2h_bytes, h2d_bytes, d2d_bytes, set_bytes;

/* --- What there is --- */

/* The memory that all of [p, p + len) is in. */
static struct memory *memory_of_locked(const void *p, size_t len)
{
	uintptr_t at = (uintptr_t)p;

	for (struct memory *m = memories; m; m = m->next)
		if (at >= (uintptr_t)m->p &&
		    at + len <= (uintptr_t)m->p + m->len)
			return m;
	return NULL;
}

/* Memory that a device reaches, and what the host does not. */
static bool for_device_locked(const void *p, size_t len)
{
	return memory_of_locked(p, len) != NULL;
}

static bool on_device_locked(const void *p, size_t len)
{
	struct memory *m = memory_of_locked(p, len);

	return m && m->device >= 0 && !m->managed;
}

static void memory_add_locked(void *p, size_t len, int device, bool registered)
{
	struct memory *m = calloc(1, sizeof(*m));

	CHECK(m != NULL);
	m->p = p;
	m->len = len;
	m->device = device;
	m->registered = registered;
	m->next = memories;
	memories = m;
}

static int memory_new_locked(void **ret_p, size_t len, int device)
{
	void *p;

	if (len == 0)
		return INVALID_VALUE;
	/* No multiple of anything: the sanitizer sees one byte too many. */
	if (posix_memalign(&p, ALIGN, len) != 0)
		return OUT_OF_MEMORY;
	memset(p, 0xa5, len);
	memory_add_locked(p, len, device, false);
	*ret_p = p;
	return OK;
}

static bool ops_touch(const struct op *o, const struct memory *m)
{
	for (; o; o = o->next) {
		uintptr_t src = (uintptr_t)o->src, dst = (uintptr_t)o->dst;
		uintptr_t from = (uintptr_t)m->p, to = from + m->len;

		if (o->len > 0 && ((src < to && src + o->len > from) ||
				   (dst < to && dst + o->len > from)))
			return true;
	}
	return false;
}

static void check_idle_locked(const struct memory *m)
{
	bool busy = false;

	for (struct stream *s = fake.streams; s; s = s->next)
		busy |= ops_touch(s->due.first, m);
	for (int i = 0; i < DEVICES_MAX; i++)
		busy |= ops_touch(fake.devices[i].null_stream.due.first, m);
	if (!busy)
		return;
	fprintf(stderr,
		"fake_cuda: %p is given back, and a copy of it is "
		"still due\n",
		(void *)m->p);
	abort();
}

static int memory_drop_locked(void *p, int device, bool registered)
{
	for (struct memory **at = &memories; *at; at = &(*at)->next) {
		struct memory *m = *at;

		if (m->p != p || m->registered != registered ||
		    (device < 0) != (m->device < 0))
			continue;
		if (registered) {
			check_idle_locked(m);
		} else { /* these wait for the devices, by the way */
			fake.syncs++;
			for (int i = 0; i < fake.device_count; i++)
				device_run_locked(i);
			free(m->p);
		}
		*at = m->next;
		free(m);
		return OK;
	}
	return registered ? NOT_REGISTERED : INVALID_VALUE;
}

/* --- Allocating and pinning --- */

CU(cuPointerGetAttributes, unsigned count, int *attributes, void **values,
   uint64_t p)
{
	struct memory *m;

	ENTER();
	m = memory_of_locked((void *)(uintptr_t)p, 1);
	for (unsigned i = 0; i < count; i++)
		switch (attributes[i]) {
		case 2: /* the kind of memory: 1 host, 2 device */
			*(unsigned *)values[i] = !m               ? 0
						 : m->device >= 0 ? 2
								  : 1;
			break;
		case 8: /* managed */
			*(unsigned *)values[i] = m && m->managed;
			break;
		case 9: /* the device's number; pinned memory has one too */
			*(int *)values[i] = !m               ? -2
					    : m->device >= 0 ? m->device
							     : 0;
			break;
		default:
			return NOT_SUPPORTED;
		}
	return OK;
}

CU(cuMemHostRegister_v2, void *p, size_t len, unsigned flags)
{
	uintptr_t from = (uintptr_t)p, to = from + len;

	ENTER();
	REFUSE_UNUSABLE();
	if (!p || len == 0 || (flags & ~0xfu) != 0)
		return INVALID_VALUE;
	if (fake.fail_register)
		return fake.fail_register;
	for (struct memory *m = memories; m; m = m->next)
		if (from < (uintptr_t)m->p + m->len && to > (uintptr_t)m->p)
			return ALREADY_REGISTERED;
	memory_add_locked(p, len, -1, true);
	return OK;
}

CU(cuMemHostUnregister, void *p)
{
	ENTER();
	return capture_forbids() ? CAPTURE_UNSUPPORTED
				 : memory_drop_locked(p, -1, true);
}

CU(cuMemHostAlloc, void **p, size_t len, unsigned flags)
{
	(void)flags;
	ENTER();
	REFUSE_UNUSABLE();
	return memory_new_locked(p, len, -1);
}

CU(cuMemFreeHost, void *p)
{
	ENTER();
	return capture_forbids() ? CAPTURE_UNSUPPORTED
				 : memory_drop_locked(p, -1, false);
}

CU(cuMemAlloc_v2, uint64_t *ret_p, size_t len)
{
	void *p;
	int result;

	ENTER();
	REFUSE_UNUSABLE();
	result = memory_new_locked(&p, len, current_device());
	if (result == OK)
		*ret_p = (uint64_t)(uintptr_t)p;
	return result;
}

API int cuMemAllocManaged(uint64_t *ret_p, size_t len, unsigned flags)
{
	int result = flags == 1 /* all devices may have it */
			     ? cuMemAlloc_v2(ret_p, len)
			     : INVALID_VALUE;

	HOLD(&fake.lock);
	if (result == OK)
		memories->managed = true;
	return result;
}

CU(cuMemFree_v2, uint64_t p)
{
	ENTER();
	return capture_forbids()
		       ? CAPTURE_UNSUPPORTED
		       : memory_drop_locked((void *)(uintptr_t)p, 0, false);
}

API int cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	*free_bytes = *total = (size_t)1 << 30;
	return OK;
}

/* --- Copies --- */

/* The host's side is not pinned: done at once, with all that is before it. */
static int copy_locked(void *stream, const struct op *o, const void *host)
{
	struct stream *s = stream_find_locked(stream);
	bool pageable = host && !memory_of_locked(host, o->len);

	if (!s)
		return INVALID_HANDLE;
	if (s->capturing && pageable)
		return CAPTURE_UNSUPPORTED;
	(void)stream_enqueue_locked(s, o);
	if (pageable) {
		fake.syncs++;
		stream_run_locked(s, UINT64_MAX);
	}
	return OK;
}

CU(cuMemcpyDtoHAsync_v2, void *dst, uint64_t src, size_t len, void *stream)
{
	struct op o = { .kind = OP_COPY,
			.dst = dst,
			.src = (void *)(uintptr_t)src,
			.len = len,
			.counter = &d2h_bytes };

	ENTER();
	d2h_copies++;
	if (!for_device_locked(o.src, len) || on_device_locked(dst, 1))
		return INVALID_VALUE;
	return copy_locked(stream, &o, dst);
}

CU(cuMemcpyHtoDAsync_v2, uint64_t dst, const void *src, size_t len,
   void *stream)
{
	struct op o = { .kind = OP_COPY,
			.dst = (void *)(uintptr_t)dst,
			.src = src,
			.len = len,
			.counter = &h2d_bytes };

	ENTER();
	if (!for_device_locked(o.dst, len) || on_device_locked(src, 1))
		return INVALID_VALUE;
	return copy_locked(stream, &o, src);
}

CU(cuMemcpyDtoDAsync_v2, uint64_t dst, uint64_t src, size_t len, void *stream)
{
	struct op o = { .kind = OP_COPY,
			.dst = (void *)(uintptr_t)dst,
			.src = (void *)(uintptr_t)src,
			.len = len,
			.counter = &d2d_bytes };

	ENTER();
	if (!for_device_locked(o.dst, len) || !for_device_locked(o.src, len))
		return INVALID_VALUE;
	return copy_locked(stream, &o, NULL);
}

CU(cuMemsetD8Async, uint64_t dst, unsigned char value, size_t len, void *stream)
{
	struct op o = { .kind = OP_SET,
			.dst = (void *)(uintptr_t)dst,
			.len = len,
			.value = value,
			.counter = &set_bytes };

	ENTER();
	if (!for_device_locked(o.dst, len))
		return INVALID_VALUE;
	return copy_locked(stream, &o, NULL);
}

/* --- For the tests --- */

COUNTER(fake_cuda_d2h_copies, d2h_copies)
COUNTER(fake_cuda_d2h_bytes, d2h_bytes)
COUNTER(fake_cuda_h2d_bytes, h2d_bytes)
COUNTER(fake_cuda_d2d_bytes, d2d_bytes)

static uint64_t memory_bytes(bool on_device)
{
	uint64_t sum = 0;

	HOLD(&fake.lock);
	for (struct memory *m = memories; m; m = m->next)
		if ((m->device >= 0) == on_device)
			sum += m->len;
	return sum;
}

API uint64_t fake_cuda_device_bytes(void)
{
	return memory_bytes(true);
}

API uint64_t fake_cuda_pinned_bytes(void)
{
	return memory_bytes(false);
}
