/*
 * bench_first.c - the rows of the table about a structure's first save: how
 * long it is, how much of that is pinning, and what the rest of the process
 * feels meanwhile.
 *
 * Pinning is measured on shared memory of the size of the tensors, which is
 * mapped, populated and registered by the library's own functions, fresh each
 * time; as the mount's memory is, without asking the mount.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gpu/crew.h"
#include "gpu/handle.h"
#include "gpu/map.h"
#include "store/base/scope.h"
#include "tests/gpu/gpu_bench.h"

#define MANY_THREADS 16u
#define SAMPLES_MAX 65536u
#define QUIET_SAMPLES 2000u
#define PROBE_BYTES 65536u

/* --- shared memory, fresh ----------------------------------------------------
 */

struct fresh {
	uint8_t *memory;
	uint64_t bytes;
};

static void fresh_open(struct fresh *f, uint64_t bytes)
{
	int fd = memfd_create("gpu_bench", MFD_CLOEXEC);

	if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0)
		die("no shared memory: %llu bytes", (unsigned long long)bytes);
	f->bytes = bytes;
	f->memory = map_aligned(fd, bytes, PROT_READ | PROT_WRITE, MAP_SHARED);
	close(fd);
	if (!f->memory)
		die("no room for a map of %llu bytes",
		    (unsigned long long)bytes);
}

static void fresh_close(struct fresh *f)
{
	(void)munmap(f->memory, f->bytes);
}

static int populate_part(void *arg, size_t index)
{
	const struct fresh *f = arg;

	return map_advise_part(f->memory, f->bytes, index, MADV_POPULATE_WRITE);
}

/* false: this kernel cannot. */
static bool populate(struct fresh *f, unsigned threads)
{
	return crew_once(threads, map_parts(f->bytes), populate_part, f) == 0;
}

/* What the library does with a segment. */
static void pin_in_parts(struct fresh *f, unsigned threads)
{
	(void)populate(f, threads);
	must(gpu_register(gpu, f->memory, f->bytes, false), "pinning");
}

static void pin_at_once(struct fresh *f, unsigned threads)
{
	(void)threads;
	must(gpu_register(gpu, f->memory, f->bytes, false), "pinning");
}

static uint64_t pin_fresh(uint64_t bytes, unsigned threads,
			  void (*pin)(struct fresh *, unsigned))
{
	struct fresh f;
	uint64_t start, ns;

	fresh_open(&f, bytes);
	start = now_ns();
	pin(&f, threads);
	ns = now_ns() - start;
	gpu_unregister(gpu, f.memory);
	fresh_close(&f);
	return ns;
}

/* --- the first save ----------------------------------------------------------
 */

/* What a first save with pinned memory of one's own takes. */
static uint64_t alloc_and_copy(struct rig *r)
{
	uint64_t start = now_ns(), ns;
	void *p = pinned_new(r->t.payload);

	get(r->stream, p, r->t.data, r->t.payload);
	ns = now_ns() - start;
	(void)is_same(p, r->t.truth, r->t.payload, "the machine's copy");
	gpu_host_free(gpu, p);
	return ns;
}

void row_first(struct rig *r)
{
	struct row all = {
		.name = named(r, "first save (pinned allocation and copy)",
			      "first save, NO MOUNT (pinned alloc. and copy)"),
	};
	struct row pinning = { .name = "pinning that much (the first save)" };
	struct row plain = { .name = "pinning that much (pinned copy)" };

	for (unsigned i = 0; i <= r->b->rounds; i++) {
		struct place p;
		uint64_t first, pin, theirs;

		tensors_stamp(&r->t, ++stamps);
		place_open(&p, dir_of(r), false);
		first = place_save(&p, &r->t, 1, "first");
		place_check(&p, &r->t, 1, all.name);
		place_settle(&p); /* nothing of it beside the others */
		pin = pin_fresh(r->t.bytes, p.c->copy_threads, pin_in_parts);
		place_close(&p);
		theirs = alloc_and_copy(r);
		if (i == 0)
			continue;
		row_add(&all, first, theirs);
		row_add(&pinning, pin, first);
		row_add(&plain, pin, copy_d2h(r));
	}
	row_print_times(&all, AT_MOST, NO_LIMIT);
	row_print_times(&pinning, AT_MOST, NO_LIMIT);
	row_print_times(&plain, AT_MOST, NO_LIMIT);
}

/* --- populating --------------------------------------------------------------
 */

static uint64_t populate_fresh(struct fresh *f, unsigned threads)
{
	uint64_t start = now_ns();

	if (!populate(f, threads))
		die("populating failed");
	return now_ns() - start;
}

static bool can_populate(void)
{
	struct fresh f;
	bool can;

	fresh_open(&f, MAP_PART_BYTES);
	can = populate(&f, 1);
	fresh_close(&f);
	return can;
}

static void populate_rounds(struct rig *r, unsigned threads)
{
	struct row row;
	char name[64];

	(void)snprintf(name, sizeof(name), "populate, %u threads (1 thread)",
		       threads);
	row = (struct row){ .name = name };
	for (unsigned i = 0; i <= r->b->rounds; i++) {
		struct fresh by_many, by_one;
		uint64_t ours, theirs;

		fresh_open(&by_many, r->t.bytes);
		ours = populate_fresh(&by_many, threads);
		fresh_close(&by_many);
		fresh_open(&by_one, r->t.bytes);
		theirs = populate_fresh(&by_one, 1);
		fresh_close(&by_one);
		if (i > 0)
			row_add(&row, ours, theirs);
	}
	row_print_speed(&row, r->t.bytes, NO_LIMIT);
}

void row_populate(struct rig *r)
{
	struct row row = {
		.name = "populate and register (register untouched)"
	};
	unsigned threads = r->place.c->copy_threads;

	if (can_populate()) {
		populate_rounds(r, threads > 1 ? threads : 2);
		if (sysconf(_SC_NPROCESSORS_ONLN) >= MANY_THREADS)
			populate_rounds(r, MANY_THREADS);
	} else {
		row_skip("populate by several threads",
			 "no MADV_POPULATE_WRITE in this kernel");
	}
	for (unsigned i = 0; i <= r->b->rounds; i++) {
		uint64_t ours = pin_fresh(r->t.bytes, threads, pin_in_parts);
		uint64_t theirs = pin_fresh(r->t.bytes, threads, pin_at_once);

		if (i > 0)
			row_add(&row, ours, theirs);
	}
	row_print_speed(&row, r->t.bytes, NO_LIMIT);
}

/* --- what others feel --------------------------------------------------------
 */

struct pinning {
	struct fresh fresh;
	unsigned threads;
	void (*pin)(struct fresh *, unsigned);
	pthread_t thread;
	atomic_bool done;
};

static void *pinning_main(void *arg)
{
	struct pinning *p = arg;

	p->pin(&p->fresh, p->threads);
	atomic_store(&p->done, true);
	return NULL;
}

/* Samples of one kind: the first ones, and the longest of all. */
struct delays {
	uint64_t *ns; /* SAMPLES_MAX */
	size_t count;
	uint64_t longest;
};

static void delay_add(struct delays *d, uint64_t ns)
{
	if (d->count < SAMPLES_MAX)
		d->ns[d->count++] = ns;
	if (ns > d->longest)
		d->longest = ns;
}

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static uint64_t delay_median(struct delays *d)
{
	qsort(d->ns, d->count, sizeof(*d->ns), by_size);
	return d->ns[(d->count - 1) / 2];
}

/* What a training loop and its data loaders do all the time. */
struct prober {
	struct gpu_stream *stream;
	uint32_t *out;
	bool kernel; /* built with nvcc */
	struct delays launch, fault;
};

static void probe(struct prober *p)
{
	uint64_t start = now_ns();
	uint8_t *fresh;

	if (p->kernel)
		busy_run(p->stream, p->out, 1, 1);
	else
		must(gpu_zero(p->stream, p->out, sizeof(*p->out)), "zero");
	delay_add(&p->launch, now_ns() - start);
	finish(p->stream);
	start = now_ns();
	fresh = mmap(NULL, PROBE_BYTES, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (fresh == MAP_FAILED)
		die("no memory");
	*(volatile uint8_t *)fresh = 1;
	(void)munmap(fresh, PROBE_BYTES);
	delay_add(&p->fault, now_ns() - start);
}

static void probe_reset(struct prober *p)
{
	p->launch.count = p->fault.count = 0;
	p->launch.longest = p->fault.longest = 0;
}

static void probe_quiet(struct prober *p, unsigned samples)
{
	probe_reset(p);
	for (unsigned i = 0; i < samples; i++)
		probe(p);
}

static void probe_pinning(struct prober *p, uint64_t bytes, unsigned threads,
			  void (*pin)(struct fresh *, unsigned))
{
	struct pinning by = { .threads = threads, .pin = pin };

	probe_reset(p);
	fresh_open(&by.fresh, bytes);
	atomic_init(&by.done, false);
	if (pthread_create(&by.thread, NULL, pinning_main, &by) != 0)
		die("no thread");
	do
		probe(p);
	while (!atomic_load(&by.done));
	CHECK(pthread_join(by.thread, NULL) == 0);
	gpu_unregister(gpu, by.fresh.memory);
	fresh_close(&by.fresh);
}

static void prober_open(struct prober *p)
{
	*p = (struct prober){ .stream = stream_new(0), .kernel = busy_open(0) };
	p->out = device_new(0, PROBE_BYTES);
	p->launch.ns = calloc(SAMPLES_MAX, sizeof(*p->launch.ns));
	p->fault.ns = calloc(SAMPLES_MAX, sizeof(*p->fault.ns));
	if (!p->launch.ns || !p->fault.ns)
		die("no memory");
	probe(p); /* the first one loads it */
}

static void prober_close(struct prober *p)
{
	if (p->kernel)
		busy_close();
	gpu_free(gpu, 0, p->out);
	gpu_stream_free(p->stream);
	free(p->launch.ns);
	free(p->fault.ns);
}

void row_delay(struct rig *r)
{
	struct row launch = {
		.name = "longest launch beside pinning (at once)"
	};
	struct row fault = { .name = "longest page fault beside it (at once)" };
	struct row launches = { .name = "a launch beside pinning (quiet)" };
	struct row faults = { .name = "a page fault beside pinning (quiet)" };
	unsigned threads = r->place.c->copy_threads;
	struct prober p;

	prober_open(&p);
	for (unsigned i = 0; i <= r->b->rounds; i++) {
		uint64_t quiet[2], usual[2], longest[2];

		probe_quiet(&p, r->b->small ? 20 : QUIET_SAMPLES);
		quiet[0] = delay_median(&p.launch);
		quiet[1] = delay_median(&p.fault);
		probe_pinning(&p, r->t.bytes, threads, pin_in_parts);
		usual[0] = delay_median(&p.launch);
		usual[1] = delay_median(&p.fault);
		longest[0] = p.launch.longest;
		longest[1] = p.fault.longest;
		probe_pinning(&p, r->t.bytes, threads, pin_at_once);
		if (i == 0)
			continue;
		row_add(&launch, longest[0], p.launch.longest);
		row_add(&fault, longest[1], p.fault.longest);
		row_add(&launches, usual[0], quiet[0]);
		row_add(&faults, usual[1], quiet[1]);
	}
	prober_close(&p);
	row_print_times(&launch, AT_MOST, NO_LIMIT);
	row_print_times(&fault, AT_MOST, NO_LIMIT);
	row_print_times(&launches, AT_MOST, NO_LIMIT);
	row_print_times(&faults, AT_MOST, NO_LIMIT);
}
