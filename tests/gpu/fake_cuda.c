/*
 * fake_cuda.c - a CUDA driver on host memory, for tests without a device.
 *
 * Nothing that is enqueued happens before something waits for it: a stream is
 * a list of things to do, done when it is synchronised with, in the order that
 * streams, events and the default stream demand and no other. So who forgets
 * to wait reads old bytes. Kernels run the functions that kernels.cu is made
 * of, lane after lane, the blocks in another order each time.
 *
 * What a device would refuse is refused: memory that was not allocated, a
 * call without a context, pinning twice, waiting while a stream is captured.
 * Memory that is unpinned while a copy of it is due stops the process.
 *
 * Environment, read by cuInit(): FAKE_CUDA_DEVICES (2), and
 * FAKE_CUDA_FAIL_REGISTER (1: out of memory, else the result's number).
 */
#include "tests/gpu/fake_cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "store/base/scope.h"
#include "tests/gpu/fake_kernels.h"

#define API __attribute__((visibility("default")))
#define DEVICES_MAX 8
#define CONTEXTS_MAX 32
#define ALIGN 512u

enum {
	OK = 0,
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	NOT_INITIALIZED = 3,
	NO_DEVICE = 100,
	INVALID_DEVICE = 101,
	INVALID_CONTEXT = 201,
	INVALID_HANDLE = 400,
	NOT_FOUND = 500,
	ALREADY_REGISTERED = 712,
	NOT_REGISTERED = 713,
	NOT_SUPPORTED = 801,
	CAPTURE_UNSUPPORTED = 900,
};

/* A function of the driver, exported as its symbol. */
#define CU(name, ...)              \
	API int name(__VA_ARGS__); \
	API int name(__VA_ARGS__)

struct stream;

enum op_kind {
	OP_MARK, /* an event is recorded here */
	OP_WAIT,
	OP_COPY,
	OP_SET,
	OP_KERNEL,
};

struct op {
	struct op *next;
	uint64_t number; /* grows over all streams */
	enum op_kind kind;
	void *dst;
	const void *src;
	size_t len;
	int value;
	uint64_t *counter; /* of bytes moved */
	struct stream *other; /* OP_WAIT: until it has done `until` */
	uint64_t until;
	const struct kernel *kernel;
	unsigned grid, block;
	void *args[ARGS_MAX];
	uint8_t arg_bytes[512] __attribute__((aligned(16)));
};

struct ops {
	struct op *first, *last;
};

struct stream {
	struct stream *next; /* all that ever were: some waits outlive them */
	int device;
	bool blocking; /* waits for the default stream, and is waited for */
	bool capturing;
	struct ops due;
	struct ops captured;
};

struct event {
	struct stream *stream; /* NULL: not recorded */
	uint64_t number;
	int64_t recorded_ns;
};

struct memory {
	struct memory *next;
	uint8_t *p;
	size_t len;
	int device; /* -1: the host's */
	bool registered; /* not ours to free */
};

struct device {
	unsigned contexts;
	struct stream null_stream;
};

API extern const int fake_cuda;
const int fake_cuda = 1; /* how the library knows us */

/* Everything below is guarded by the lock. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t let_go = PTHREAD_COND_INITIALIZER;
static bool held; /* nobody's wait for a stream ends */
static pid_t started; /* 0: not yet */
static int device_count;
static int fail_register;
static struct device devices[DEVICES_MAX];
static struct stream *streams;
static struct memory *memories;
static unsigned captures;
static uint64_t last_number;
static uint64_t d2h_copies, d2h_bytes, h2d_bytes, d2d_bytes, set_bytes, syncs, launches;
static char fault_symbol[64];
static unsigned fault_in;
static int fault_result;

static _Thread_local int current[CONTEXTS_MAX]; /* device ordinals */
static _Thread_local unsigned current_count;

static int fault(const char *symbol)
{
	HOLD(&lock);
	if (fault_in == 0 || strcmp(symbol, fault_symbol) != 0)
		return OK;
	return --fault_in == 0 ? fault_result : OK;
}

#define FAULT()                               \
	do {                                  \
		int fault_ = fault(__func__); \
		if (fault_ != OK)             \
			return fault_;        \
	} while (0)

/* --- Streams: what is due ----------------------------------------------------
 */

static void run_until_locked(struct stream *s, uint64_t number);

static void op_run_locked(const struct op *o)
{
	switch (o->kind) {
	case OP_MARK:
		break;
	case OP_WAIT:
		run_until_locked(o->other, o->until);
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

/* What is due in s up to that number, and all that this has to come after. */
static void run_until_locked(struct stream *s, uint64_t number)
{
	struct stream *null_stream = &devices[s->device].null_stream;

	while (s->due.first && s->due.first->number <= number) {
		struct op *o = s->due.first;

		s->due.first = o->next;
		if (s == null_stream) {
			for (struct stream *b = streams; b; b = b->next)
				if (b->blocking && b->device == s->device)
					run_until_locked(b, o->number - 1);
		} else if (s->blocking) {
			run_until_locked(null_stream, o->number - 1);
		}
		op_run_locked(o);
		free(o);
	}
}

static void run_device_locked(int device)
{
	for (struct stream *s = streams; s; s = s->next)
		if (s->device == device)
			run_until_locked(s, UINT64_MAX);
	run_until_locked(&devices[device].null_stream, UINT64_MAX);
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

static uint64_t enqueue_locked(struct stream *s, const struct op *of)
{
	struct op *o = op_copy(of);

	o->number = ++last_number;
	ops_add(s->capturing ? &s->captured : &s->due, o);
	return o->number;
}

/* The current device, or -1. */
static int current_device(void)
{
	return current_count > 0 ? current[current_count - 1] : -1;
}

/* NULL: no context, or no such stream. */
static struct stream *stream_of_locked(void *handle)
{
	int device = current_device();

	if (device < 0)
		return NULL;
	if (!handle)
		return &devices[device].null_stream;
	for (struct stream *s = streams; s; s = s->next)
		if (s == handle)
			return s;
	return NULL;
}

/* --- Memory ------------------------------------------------------------------
 */

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

static bool on_device_locked(const void *p, size_t len)
{
	struct memory *m = memory_of_locked(p, len);

	return m && m->device >= 0;
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

	for (struct stream *s = streams; s; s = s->next)
		busy |= ops_touch(s->due.first, m);
	for (int i = 0; i < DEVICES_MAX; i++)
		busy |= ops_touch(devices[i].null_stream.due.first, m);
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
			syncs++;
			for (int i = 0; i < device_count; i++)
				run_device_locked(i);
			free(m->p);
		}
		*at = m->next;
		free(m);
		return OK;
	}
	return registered ? NOT_REGISTERED : INVALID_VALUE;
}

/* --- The driver: devices
 * ------------------------------------------------------ */

CU(cuInit, unsigned flags)
{
	const char *count = getenv("FAKE_CUDA_DEVICES");
	const char *fail = getenv("FAKE_CUDA_FAIL_REGISTER");

	FAULT();
	if (flags != 0)
		return INVALID_VALUE;
	HOLD(&lock);
	if (started != 0 && started != getpid())
		return NOT_INITIALIZED; /* a driver does not survive a fork */
	started = getpid();
	device_count = count ? atoi(count) : 2;
	CHECK(device_count >= 0 && device_count <= DEVICES_MAX);
	fail_register = fail ? atoi(fail) : 0;
	if (fail_register == 1)
		fail_register = OUT_OF_MEMORY;
	for (int i = 0; i < DEVICES_MAX; i++) {
		devices[i].null_stream.device = i;
		devices[i].null_stream.blocking = true;
	}
	return device_count > 0 ? OK : NO_DEVICE;
}

CU(cuDriverGetVersion, int *version)
{
	FAULT();
	*version = 12040;
	return OK;
}

static const struct {
	int result;
	const char *name, *text;
} results[] = {
	{ OK, "CUDA_SUCCESS", "no error" },
	{ INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument" },
	{ OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory" },
	{ NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED",
	  "initialization error" },
	{ NO_DEVICE, "CUDA_ERROR_NO_DEVICE",
	  "no CUDA-capable device is detected" },
	{ INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE",
	  "invalid device ordinal" },
	{ INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT",
	  "invalid device context" },
	{ INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE",
	  "invalid resource handle" },
	{ NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found" },
	{ ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
	  "part or all of the requested memory range is already mapped" },
	{ NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
	  "pointer does not correspond to a registered memory region" },
	{ NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED",
	  "operation not supported" },
	{ CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
	  "operation not permitted when stream is capturing" },
};

CU(cuGetErrorName, int result, const char **name)
{
	for (size_t i = 0; i < sizeof(results) / sizeof(*results); i++)
		if (results[i].result == result) {
			*name = results[i].name;
			return OK;
		}
	return INVALID_VALUE;
}

CU(cuGetErrorString, int result, const char **text)
{
	for (size_t i = 0; i < sizeof(results) / sizeof(*results); i++)
		if (results[i].result == result) {
			*text = results[i].text;
			return OK;
		}
	return INVALID_VALUE;
}

CU(cuDeviceGetCount, int *count)
{
	FAULT();
	HOLD(&lock);
	*count = device_count;
	return OK;
}

CU(cuDeviceGet, int *device, int ordinal)
{
	FAULT();
	HOLD(&lock);
	if (ordinal < 0 || ordinal >= device_count)
		return INVALID_DEVICE;
	*device = ordinal;
	return OK;
}

API int cuDeviceGetName(char *name, int len, int device)
{
	(void)snprintf(name, (size_t)len, "Fake %d", device);
	return OK;
}

CU(cuDevicePrimaryCtxGetState, int device, unsigned *flags, int *active)
{
	FAULT();
	HOLD(&lock);
	if (device < 0 || device >= device_count)
		return INVALID_DEVICE;
	*flags = 0;
	*active = devices[device].contexts > 0;
	return OK;
}

CU(cuDevicePrimaryCtxRetain, void **context, int device)
{
	FAULT();
	HOLD(&lock);
	if (device < 0 || device >= device_count)
		return INVALID_DEVICE;
	devices[device].contexts++;
	*context = &devices[device];
	return OK;
}

CU(cuDevicePrimaryCtxRelease_v2, int device)
{
	FAULT();
	HOLD(&lock);
	if (device < 0 || device >= device_count ||
	    devices[device].contexts == 0)
		return INVALID_CONTEXT;
	devices[device].contexts--;
	return OK;
}

CU(cuCtxPushCurrent_v2, void *context)
{
	FAULT();
	for (int i = 0; i < DEVICES_MAX; i++)
		if (context == &devices[i]) {
			CHECK(current_count < CONTEXTS_MAX);
			current[current_count++] = i;
			return OK;
		}
	return INVALID_CONTEXT;
}

CU(cuCtxPopCurrent_v2, void **context)
{
	if (current_count == 0)
		return INVALID_CONTEXT;
	*context = &devices[current[--current_count]];
	return OK;
}

API int cuCtxGetCurrent(void **context)
{
	*context = current_count > 0 ? &devices[current_device()] : NULL;
	return OK;
}

/* --- The driver: memory
 * ------------------------------------------------------- */

CU(cuPointerGetAttributes, unsigned count, int *attributes, void **values,
   uint64_t p)
{
	struct memory *m;

	FAULT();
	HOLD(&lock);
	m = memory_of_locked((void *)(uintptr_t)p, 1);
	for (unsigned i = 0; i < count; i++)
		switch (attributes[i]) {
		case 2: /* the kind of memory: 1 host, 2 device */
			*(unsigned *)values[i] = !m             ? 0 :
						 m->device >= 0 ? 2 :
								  1;
			break;
		case 8: /* managed */
			*(unsigned *)values[i] = 0;
			break;
		case 9: /* the device's number; pinned memory has one too */
			*(int *)values[i] = !m             ? -2 :
					    m->device >= 0 ? m->device :
							     0;
			break;
		default:
			return NOT_SUPPORTED;
		}
	return OK;
}

CU(cuMemHostRegister_v2, void *p, size_t len, unsigned flags)
{
	uintptr_t from = (uintptr_t)p, to = from + len;

	FAULT();
	HOLD(&lock);
	if (current_count == 0)
		return INVALID_CONTEXT;
	if (captures > 0)
		return CAPTURE_UNSUPPORTED;
	if (!p || len == 0 || (flags & ~0xfu) != 0)
		return INVALID_VALUE;
	if (fail_register)
		return fail_register;
	for (struct memory *m = memories; m; m = m->next)
		if (from < (uintptr_t)m->p + m->len && to > (uintptr_t)m->p)
			return ALREADY_REGISTERED;
	memory_add_locked(p, len, -1, true);
	return OK;
}

CU(cuMemHostUnregister, void *p)
{
	FAULT();
	HOLD(&lock);
	return captures > 0 ? CAPTURE_UNSUPPORTED :
			      memory_drop_locked(p, -1, true);
}

CU(cuMemHostAlloc, void **p, size_t len, unsigned flags)
{
	FAULT();
	(void)flags;
	HOLD(&lock);
	if (current_count == 0)
		return INVALID_CONTEXT;
	return captures > 0 ? CAPTURE_UNSUPPORTED :
			      memory_new_locked(p, len, -1);
}

CU(cuMemFreeHost, void *p)
{
	FAULT();
	HOLD(&lock);
	return captures > 0 ? CAPTURE_UNSUPPORTED :
			      memory_drop_locked(p, -1, false);
}

CU(cuMemAlloc_v2, uint64_t *ret_p, size_t len)
{
	void *p;
	int result;

	FAULT();
	HOLD(&lock);
	if (current_count == 0)
		return INVALID_CONTEXT;
	if (captures > 0)
		return CAPTURE_UNSUPPORTED;
	result = memory_new_locked(&p, len, current_device());
	if (result == OK)
		*ret_p = (uint64_t)(uintptr_t)p;
	return result;
}

CU(cuMemFree_v2, uint64_t p)
{
	FAULT();
	HOLD(&lock);
	return captures > 0 ?
		       CAPTURE_UNSUPPORTED :
		       memory_drop_locked((void *)(uintptr_t)p, 0, false);
}

API int cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	*free_bytes = *total = (size_t)1 << 30;
	return OK;
}

/* --- The driver: streams
 * ------------------------------------------------------ */

CU(cuStreamCreate, void **stream, unsigned flags)
{
	struct stream *s;

	FAULT();
	HOLD(&lock);
	if (current_count == 0)
		return INVALID_CONTEXT;
	s = calloc(1, sizeof(*s));
	CHECK(s != NULL);
	s->device = current_device();
	s->blocking = flags != 1;
	s->next = streams;
	streams = s;
	*stream = s;
	return OK;
}

/* What is due stays due; nobody can wait for it alone any more. */
CU(cuStreamDestroy_v2, void *stream)
{
	FAULT();
	HOLD(&lock);
	return stream && stream_of_locked(stream) ? OK : INVALID_HANDLE;
}

CU(cuStreamSynchronize, void *stream)
{
	struct stream *s;

	FAULT();
	HOLD(&lock);
	while (held)
		pthread_cond_wait(&let_go, &lock);
	s = stream_of_locked(stream);
	if (!s)
		return INVALID_HANDLE;
	if (captures > 0)
		return CAPTURE_UNSUPPORTED;
	syncs++;
	run_until_locked(s, UINT64_MAX);
	/* The default stream also stands for all that wait for it. */
	for (struct stream *b = streams; !stream && b; b = b->next)
		if (b->blocking && b->device == s->device)
			run_until_locked(b, UINT64_MAX);
	return OK;
}

API int cuCtxSynchronize(void)
{
	FAULT();
	HOLD(&lock);
	if (current_count == 0)
		return INVALID_CONTEXT;
	if (captures > 0)
		return CAPTURE_UNSUPPORTED;
	syncs++;
	run_device_locked(current_device());
	return OK;
}

CU(cuStreamWaitEvent, void *stream, void *event, unsigned flags)
{
	struct event *e = event;
	struct stream *s;

	FAULT();
	HOLD(&lock);
	s = stream_of_locked(stream);
	if (!s || !e || flags != 0)
		return INVALID_HANDLE;
	if (captures > 0)
		return CAPTURE_UNSUPPORTED; /* forks in graphs are left out */
	if (e->stream)
		(void)enqueue_locked(s, &(struct op){ .kind = OP_WAIT,
						      .other = e->stream,
						      .until = e->number });
	return OK;
}

/* The host's side is not pinned: done at once, with all that is before it. */
static int copy_locked(void *stream, const struct op *o, const void *host)
{
	struct stream *s = stream_of_locked(stream);
	bool pageable = host && !memory_of_locked(host, o->len);

	if (!s)
		return INVALID_HANDLE;
	if (s->capturing && pageable)
		return CAPTURE_UNSUPPORTED;
	(void)enqueue_locked(s, o);
	if (pageable) {
		syncs++;
		run_until_locked(s, UINT64_MAX);
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

	FAULT();
	HOLD(&lock);
	d2h_copies++;
	if (!on_device_locked(o.src, len) || on_device_locked(dst, 1))
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

	FAULT();
	HOLD(&lock);
	if (!on_device_locked(o.dst, len) || on_device_locked(src, 1))
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

	FAULT();
	HOLD(&lock);
	if (!on_device_locked(o.dst, len) || !on_device_locked(o.src, len))
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

	FAULT();
	HOLD(&lock);
	if (!on_device_locked(o.dst, len))
		return INVALID_VALUE;
	return copy_locked(stream, &o, NULL);
}

/* --- The driver: events
 * -------------------------------------------------------- */

CU(cuEventCreate, void **event, unsigned flags)
{
	FAULT();
	(void)flags;
	if (current_count == 0)
		return INVALID_CONTEXT;
	*event = calloc(1, sizeof(struct event));
	CHECK(*event != NULL);
	return OK;
}

CU(cuEventDestroy_v2, void *event)
{
	FAULT();
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

	FAULT();
	HOLD(&lock);
	s = stream_of_locked(stream);
	if (!s || !e)
		return INVALID_HANDLE;
	if (captures > 0)
		return CAPTURE_UNSUPPORTED;
	e->number = enqueue_locked(s, &(struct op){ .kind = OP_MARK });
	e->stream = s;
	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	e->recorded_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
	return OK;
}

CU(cuEventSynchronize, void *event)
{
	struct event *e = event;

	FAULT();
	HOLD(&lock);
	if (!e)
		return INVALID_HANDLE;
	if (captures > 0)
		return CAPTURE_UNSUPPORTED;
	syncs++;
	if (e->stream)
		run_until_locked(e->stream, e->number);
	return OK;
}

/* Of the host's clock, when they were recorded: nothing here has a speed. */
API int cuEventElapsedTime(float *ms, void *from, void *to)
{
	struct event *a = from, *b = to;

	HOLD(&lock);
	if (!a->stream || !b->stream)
		return INVALID_HANDLE;
	*ms = (float)((double)(b->recorded_ns - a->recorded_ns) / 1e6);
	return OK;
}

/* --- The driver: kernels
 * -------------------------------------------------------- */

static char the_module;

CU(cuModuleLoadData, void **module, const void *image)
{
	FAULT();
	(void)image; /* for a device */
	HOLD(&lock);
	if (current_count == 0)
		return INVALID_CONTEXT;
	if (captures > 0)
		return CAPTURE_UNSUPPORTED;
	*module = &the_module;
	return OK;
}

CU(cuModuleUnload, void *module)
{
	FAULT();
	return module == &the_module ? OK : INVALID_HANDLE;
}

CU(cuModuleGetFunction, void **function, void *module, const char *name)
{
	FAULT();
	if (module != &the_module)
		return INVALID_HANDLE;
	*function = (void *)(uintptr_t)kernel_find(name);
	return *function ? OK : NOT_FOUND;
}

CU(cuLaunchKernel, void *function, unsigned gx, unsigned gy, unsigned gz,
   unsigned bx, unsigned by, unsigned bz, unsigned shared_bytes, void *stream,
   void **args, void **extra)
{
	struct op o = { .kind = OP_KERNEL, .grid = gx, .block = bx };
	struct stream *s;
	size_t at = 0;

	FAULT();
	HOLD(&lock);
	s = stream_of_locked(stream);
	if (!s)
		return INVALID_HANDLE;
	if (gx == 0 || bx == 0 || bx > 1024 || gy != 1 || gz != 1 || by != 1 ||
	    bz != 1 || shared_bytes != 0 || extra)
		return INVALID_VALUE;
	o.kernel = function;
	for (unsigned i = 0; i < o.kernel->count; i++) {
		o.args[i] = o.arg_bytes + at;
		memcpy(o.args[i], args[i], o.kernel->sizes[i]);
		at += (o.kernel->sizes[i] + 15) / 16 * 16;
		CHECK(at <= sizeof(o.arg_bytes));
	}
	(void)enqueue_locked(s, &o);
	return OK;
}

/* --- The driver: graphs
 * --------------------------------------------------------- */

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
	HOLD(&lock);
	s = stream ? stream_of_locked(stream) : NULL;
	if (!s || s->capturing)
		return INVALID_HANDLE;
	s->capturing = true;
	captures++;
	return OK;
}

API int cuStreamEndCapture(void *stream, void **graph)
{
	struct stream *s;
	struct ops *g;

	HOLD(&lock);
	s = stream ? stream_of_locked(stream) : NULL;
	if (!s || !s->capturing)
		return INVALID_HANDLE;
	g = calloc(1, sizeof(*g));
	CHECK(g != NULL);
	*g = s->captured;
	memset(&s->captured, 0, sizeof(s->captured));
	s->capturing = false;
	captures--;
	*graph = g;
	return OK;
}

API int cuGraphInstantiateWithFlags(void **exec, void *graph,
				    unsigned long long flags)
{
	const struct ops *g = graph;
	struct ops *e;

	(void)flags;
	HOLD(&lock);
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

	HOLD(&lock);
	s = stream_of_locked(stream);
	if (!s)
		return INVALID_HANDLE;
	for (const struct op *o = e->first; o; o = o->next)
		(void)enqueue_locked(s, o);
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

/* --- For the tests
 * -------------------------------------------------------------- */

#define COUNTER(name, counter)  \
	API uint64_t name(void) \
	{                       \
		HOLD(&lock);    \
		return counter; \
	}

COUNTER(fake_cuda_d2h_copies, d2h_copies)
COUNTER(fake_cuda_d2h_bytes, d2h_bytes)
COUNTER(fake_cuda_h2d_bytes, h2d_bytes)
COUNTER(fake_cuda_d2d_bytes, d2d_bytes)
COUNTER(fake_cuda_syncs, syncs)
COUNTER(fake_cuda_launches, launches)

static uint64_t memory_bytes(bool on_device)
{
	uint64_t sum = 0;

	HOLD(&lock);
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

API unsigned fake_cuda_contexts(int device)
{
	HOLD(&lock);
	return devices[device].contexts;
}

API void fake_cuda_hold(bool on)
{
	HOLD(&lock);
	held = on;
	pthread_cond_broadcast(&let_go);
}

API void fake_cuda_fail(const char *symbol, unsigned n, int result)
{
	HOLD(&lock);
	(void)snprintf(fault_symbol, sizeof(fault_symbol), "%s", symbol);
	fault_in = n;
	fault_result = result;
}
