/*
 * gpu_bench.h - what the files of gpu_bench share: the device as they use it,
 * the tensors that are saved, the place where saves go, and the table.
 *
 * Errors: none is returned. What cannot be done ends the program with exit
 * code 2 and a sentence (die()); a byte that is not what the CPU says it must
 * be is noted (wrong()), and makes the exit code 1.
 */
#ifndef TESTS_GPU_GPU_BENCH_H
#define TESTS_GPU_GPU_BENCH_H

#include "gpu/driver.h"
#include "gpu/driver_context.h"
#include "gpu/layout.h"
#include "gpu/mapping.h"

#define ROUNDS_MAX 64
#define BENCH_DEVICES_MAX 2 /* used at the same time */

void die(const char *format, ...) __attribute__((format(printf, 1, 2)))
__attribute__((noreturn));
/* rc < 0: die with the library's sentence. */
void must(int rc, const char *what);
void wrong(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool is_same(const void *ours, const void *cpu, uint64_t len, const char *what);
uint64_t now_ns(void);
void *host_new(uint64_t len);
void fill_random(void *p, uint64_t len, uint64_t seed);

/* --- the device (bench_device.c) ------------------------------------------ */

/* What the library does not need of the driver; the fake one has all of it. */
struct driver_more {
	int (*cuEventElapsedTime)(float *ms, void *from, void *to);
	int (*cuDeviceGetName)(char *name, int len, int device);
	int (*cuMemGetInfo)(size_t *free_bytes, size_t *total);
	int (*cuStreamBeginCapture)(void *stream, int mode);
	int (*cuStreamEndCapture)(void *stream, void **graph);
	int (*cuGraphInstantiate)(void **exec, void *graph,
				  unsigned long long flags);
	int (*cuGraphLaunch)(void *exec, void *stream);
	int (*cuGraphExecDestroy)(void *exec);
	int (*cuGraphDestroy)(void *graph);
};

extern struct gpu *gpu; /* set by device_open() */
extern struct driver_more more;

/* Ends the program with 77 when there is no device. */
void device_open(void);
void device_close(void);
/* Result of a driver call that was made in the device's context. */
void said(int result, const char *what);
uint64_t device_free_bytes(int device);
void device_name(int device, char *name, size_t size);

void *device_new(int device, uint64_t len);
struct gpu_stream *stream_new(int device);
void finish(struct gpu_stream *s);
/* Between host and device, and wait. */
void put(struct gpu_stream *s, void *device, const void *host, uint64_t len);
void get(struct gpu_stream *s, void *host, const void *device, uint64_t len);
/* Pinned, like the machine's side of every row that copies to the host. */
void *pinned_new(uint64_t len);

/* Time on the device between two points of a stream. */
struct timer {
	struct gpu_stream *stream;
	void *from, *to;
};
void timer_open(struct timer *t, struct gpu_stream *s);
void timer_close(struct timer *t);
void timer_start(struct timer *t);
void timer_stop(struct timer *t);
uint64_t timer_ns(struct timer *t); /* waits for the stream */

/* The kernel of busy.h. false: built without nvcc. */
bool busy_open(int device);
void busy_close(void);
void busy_run(struct gpu_stream *s, uint32_t *out, unsigned grid,
	      uint32_t steps);

/* --- tensors (bench_tensors.c) -------------------------------------------- */

/* Tensors of mixed sizes in one allocation, and what they must be. */
struct tensors {
	int device;
	uint8_t *data; /* on the device */
	uint8_t *truth; /* the same on the host */
	uint64_t bytes; /* of the allocation */
	struct tensor {
		char name[32];
		const char *dtype;
		uint64_t shape[2];
		unsigned rank;
		uint64_t at, bytes;
	} * list;
	size_t count;
	uint64_t payload; /* sum of the tensors' bytes */
	struct gpu_stream *stream; /* what writes them */
};

void tensors_new(struct tensors *t, int device, uint64_t bytes,
		 const char *prefix);
void tensors_free(struct tensors *t);
/* Other bytes at the start and the end of every tensor. */
void tensors_stamp(struct tensors *t, uint64_t stamp);
struct ckpt_tensor tensor_of(const struct tensors *t, size_t i);

/* --- where saves go (bench_place.c) --------------------------------------- */

/*
 * A directory in a mount, and then a save is ckpt_begin() to ckpt_commit().
 * Without one, a save is the same copies into pinned shared memory: what is
 * left out is the mount's part of it, and the table says so.
 */
struct place {
	struct ckpt *c;
	const char *dir; /* NULL: none */
	char path[512]; /* of the last save */
	bool skip; /* CKPT_SKIP_UNCHANGED */
	uint64_t skipped_bytes; /* by the last save */
	/* Without a mount: */
	struct mapping mappings[2];
	struct layout layout; /* of the last save */
	unsigned turn; /* index of its segment, and the next one's */
};

/* Is dir in a mount that gives segments? */
bool place_is_mount(const char *dir);
/* dir NULL: without a mount. */
void place_open(struct place *p, const char *dir, bool skip);
void place_close(struct place *p);
/*
 * Save all tensors of the sets as the file `name`; how long the caller had to
 * wait for it, in ns. The file is durable when it returns.
 */
uint64_t place_save(struct place *p, const struct tensors *sets, size_t count,
		    const char *name);
/* Is what was saved last the truth, every byte? */
void place_check(struct place *p, const struct tensors *sets, size_t count,
		 const char *what);
/* Return when the second segment, which a thread makes, is ready. */
void place_settle(struct place *p);

/* --- the table (gpu_bench.c) -----------------------------------------------
 */

enum wanted { AT_LEAST, AT_MOST };
#define NO_LIMIT 0.0 /* a figure to know, which nothing is held to (yet) */

struct row {
	const char *name;
	uint64_t ours[ROUNDS_MAX], theirs[ROUNDS_MAX]; /* ns */
	unsigned rounds;
};

void row_add(struct row *r, uint64_t ours_ns, uint64_t theirs_ns);
/* As bytes / ns on both sides; the ratio says how many times faster we are. */
void row_print_speed(struct row *r, uint64_t bytes, double at_least);
/* As times; the ratio is ours / theirs. */
void row_print_times(struct row *r, enum wanted wanted, double limit);
void row_skip(const char *name, const char *why);

struct bench {
	const char *dir; /* where files go */
	bool mounted; /* that is in a mount */
	uint64_t bytes; /* of tensors on a device */
	unsigned rounds;
	bool small; /* as little as shows that it works */
	const char *groups; /* of rows, with commas; NULL: all */
	const char *mount_options; /* as the table shows them; NULL: unknown */
};

void bench_rows(const struct bench *b); /* bench_rows.c */
bool bench_has_groups(const char *groups);
void bench_list_groups(void);
void check_everything(const struct bench *b); /* bench_check.c */

/* What all rows use. */
struct rig {
	const struct bench *b;
	struct tensors t; /* on device 0 */
	uint8_t *device; /* as large, for the machine's copies and for loads */
	uint8_t *pinned; /* likewise */
	struct gpu_stream *stream; /* the machine's */
	struct timer timer;
	struct place place; /* saves everything; each group has a new one */
	bool warm; /* both of its segments are there */
};

extern uint64_t stamps; /* of tensors_stamp(), all different */

/* `mounted`, or what the row is called where saves do not go to a mount. */
const char *named(const struct rig *r, const char *mounted,
		  const char *unmounted);
/* NULL: no mount. */
const char *dir_of(const struct rig *r);
/* The machine's: pinned, one call, as many bytes as the tensors have; ns. */
uint64_t copy_d2h(struct rig *r);

/* Saves until both segments are there, mapped and pinned; once in a group. */
void warm(struct rig *r);

/* Rows of saves (bench_save.c). */
void row_save(struct rig *r);
void row_stall(struct rig *r);
void row_unchanged(struct rig *r);
void row_pageable(struct rig *r);
void row_burst(struct rig *r);
/* Rows in which the device computes (bench_kernels.c). */
void row_hash(struct rig *r);
void row_hash_rest(struct rig *r);
void row_stash(struct rig *r);
void row_beside(struct rig *r);
void row_items(struct rig *r); /* bench_items.c */
/* Of a structure's first save (bench_first.c). */
void row_first(struct rig *r);
void row_populate(struct rig *r);
void row_delay(struct rig *r);

#endif
