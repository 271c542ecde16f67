/*
 * fake_driver.h - what the files of the CUDA driver on host memory share: its
 * results, its one state and the lock, and what is due in a stream.
 */
#ifndef TESTS_GPU_FAKE_DRIVER_H
#define TESTS_GPU_FAKE_DRIVER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "store/base/scope.h"
#include "tests/gpu/fake_cuda.h"
#include "tests/gpu/fake_kernels.h"

#define API __attribute__((visibility("default")))
#define DEVICES_MAX 8

enum results {
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

struct device {
	unsigned contexts;
	struct stream null_stream;
};

/* What more than one file needs, guarded by its lock. */
extern struct fake {
	pthread_mutex_t lock;
	int device_count;
	int fail_register; /* a result, or OK */
	struct device devices[DEVICES_MAX];
	struct stream *streams;
	unsigned captures; /* that go on */
	uint64_t syncs;
} fake;

/* While a stream is captured most calls are only for relaxed threads. */
bool capture_forbids(void);
/* The result that a test has asked this call for, or OK. */
int fault_locked(const char *symbol);

/* How a call begins: with the lock, and as a test has asked for. */
#define ENTER()                                      \
	HOLD(&fake.lock);                            \
	do {                                         \
		int fault_ = fault_locked(__func__); \
		if (fault_ != OK)                    \
			return fault_;               \
	} while (0)

/* Most calls want a context, and no stream that is captured. */
#define REFUSE_UNUSABLE()                           \
	do {                                        \
		if (current_device() < 0)           \
			return INVALID_CONTEXT;     \
		if (capture_forbids())              \
			return CAPTURE_UNSUPPORTED; \
	} while (0)

/* What a test can read. */
#define COUNTER(name, counter)    \
	API uint64_t name(void)   \
	{                         \
		HOLD(&fake.lock); \
		return counter;   \
	}

/* The current device, or -1. */
int current_device(void);

/* NULL: no context, or no such stream. */
struct stream *stream_find_locked(void *handle);

/* A copy of it is due in s from now on: its number. */
uint64_t stream_enqueue_locked(struct stream *s, const struct op *of);

/* What is due in s up to that number, and all that this has to come after. */
void stream_run_locked(struct stream *s, uint64_t number);

/* All that is due. */
void device_run_locked(int device);

#endif
