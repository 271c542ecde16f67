/*
 * bench_place.c - a save as a trainer makes it, and its file compared with
 * what the tensors were.
 *
 * Without a mount the same copies go to two pieces of shared memory that are
 * made as segments are: allocated, mapped where huge pages fit, and pinned.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "gpu/copy.h"
#include "gpu/unchanged.h"
#include "store/base/scope.h"
#include "tests/gpu/gpu_bench.h"

#define HUGE_BYTES (UINT64_C(2) << 20)
#define SETTLE_TRIES 600
#define SETTLE_NS 100000000

bool place_is_mount(const char *dir)
{
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct ckpt_options none = { .flags = CKPT_NO_GPU };
	struct ckpt_mount *m;
	struct ckpt *c;
	int rc;

	if (fd < 0)
		die("%s cannot be opened", dir);
	must(ckpt_open(&none, &c), "ckpt_open");
	rc = mapping_find_mount(c, fd, &m);
	ckpt_close(c);
	close(fd);
	return rc == 0;
}

void place_open(struct place *p, const char *dir, bool skip)
{
	struct ckpt_options o = { .flags = CKPT_SEGMENT_ONLY };

	memset(p, 0, sizeof(*p));
	if (skip)
		o.flags |= CKPT_SKIP_UNCHANGED;
	p->dir = dir;
	p->skip = skip;
	must(ckpt_open(&o, &p->c), "ckpt_open");
}

void place_close(struct place *p)
{
	for (size_t i = 0; i < 2; i++) {
		struct mapping *s = &p->mappings[i];

		if (!s->memory)
			continue;
		gpu_unregister(gpu, s->memory);
		(void)munmap(s->memory, s->size_bytes);
		free(s->digests);
	}
	layout_release(&p->layout);
	ckpt_close(p->c);
	if (p->path[0]) /* the next place's segments need the memory */
		(void)unlink(p->path);
}

/* --- in a mount -------------------------------------------------------------
 */

static uint64_t save_mounted(struct place *p, const struct tensors *sets,
			     size_t count)
{
	struct ckpt_counters before, after;
	struct ckpt_save *s;
	uint64_t start, ns, payload = 0;

	ckpt_get_counters(p->c, &before);
	start = now_ns();
	must(ckpt_begin(p->c, p->path, &s), "ckpt_begin");
	for (size_t k = 0; k < count; k++)
		for (size_t i = 0; i < sets[k].count; i++) {
			struct ckpt_tensor t = tensor_of(&sets[k], i);

			must(ckpt_add(s, &t), "ckpt_add");
		}
	must(ckpt_commit(s), "ckpt_commit");
	ns = now_ns() - start;
	must(ckpt_wait(s), "ckpt_wait");
	ckpt_save_free(s);
	ckpt_get_counters(p->c, &after);
	p->skipped_bytes = after.skipped_bytes - before.skipped_bytes;
	for (size_t k = 0; k < count; k++)
		payload += sets[k].payload;
	/* One copy over the bus for each byte that was not known. */
	if (after.d2h_bytes - before.d2h_bytes + p->skipped_bytes != payload)
		wrong("%s: %llu bytes copied and %llu skipped of %llu", p->path,
		      (unsigned long long)(after.d2h_bytes - before.d2h_bytes),
		      (unsigned long long)p->skipped_bytes,
		      (unsigned long long)payload);
	return ns;
}

/* --- without one ------------------------------------------------------------
 */

static void *map_segment(int fd, uint64_t bytes)
{
	uint8_t *room =
		mmap(NULL, bytes + HUGE_BYTES, PROT_NONE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uintptr_t skip = -(uintptr_t)room % HUGE_BYTES;

	if (room == MAP_FAILED)
		return MAP_FAILED;
	return mmap(room + skip, bytes, PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_FIXED, fd, 0);
}

static void mapping_make(struct mapping *s, uint64_t bytes)
{
	int fd = memfd_create("gpu_bench", MFD_CLOEXEC);
	void *p;

	if (s->memory)
		die("a second structure in one place");
	if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0 ||
	    fallocate(fd, 0, 0, (off_t)bytes) < 0)
		die("no shared memory: %llu bytes", (unsigned long long)bytes);
	p = map_segment(fd, bytes);
	close(fd);
	if (p == MAP_FAILED)
		die("no room for a map of %llu bytes",
		    (unsigned long long)bytes);
	must(gpu_register(gpu, p, bytes, false), "pinning");
	s->memory = p;
	s->size_bytes = bytes;
}

static void copy_all(struct place *p, struct mapping *to)
{
	const struct layout *l = &p->layout;
	SCOPED(scope_free)
	struct copy_job *jobs = calloc(l->count + 1, sizeof(*jobs));

	if (!jobs)
		die("no memory");
	for (size_t i = 0; i < l->count; i++)
		jobs[i] = (struct copy_job){
			.tensor = &l->tensors[i],
			.bytes = l->tensors[i].bytes,
			.to = to->memory + l->tensors[i].offset,
		};
	must(copy_run(p->c, jobs, l->count), "copy");
}

/* What the save copies is there when the set's stream is so far; NULL: undo. */
static void mark_ready(struct place *p, const struct tensors *set,
		       struct gpu_event *ready)
{
	for (size_t i = 0; i < p->layout.count; i++)
		if (p->layout.tensors[i].device == set->device)
			p->layout.tensors[i].ready = ready;
}

static uint64_t save_unmounted(struct place *p, const struct tensors *sets,
			       size_t count)
{
	struct gpu_event *ready[BENCH_DEVICES_MAX] = { NULL };
	struct mapping *to;
	uint64_t start;

	CHECK(count <= BENCH_DEVICES_MAX);
	layout_release(&p->layout);
	memset(&p->layout, 0, sizeof(p->layout));
	start = now_ns();
	for (size_t k = 0; k < count; k++)
		for (size_t i = 0; i < sets[k].count; i++) {
			struct ckpt_tensor t = tensor_of(&sets[k], i);

			must(layout_add(&p->layout, &t, t.device), "add");
		}
	must(layout_finish(&p->layout), "layout");
	for (size_t k = 0; k < count; k++) {
		must(gpu_event_new(gpu, sets[k].device, &ready[k]), "event");
		must(gpu_event_record(ready[k], sets[k].stream), "event");
		mark_ready(p, &sets[k], ready[k]);
	}
	p->turn ^= 1;
	to = &p->mappings[p->turn];
	if (to->size_bytes != p->layout.file_bytes)
		mapping_make(to, p->layout.file_bytes);
	memcpy(to->memory, p->layout.header, p->layout.header_bytes);
	if (p->skip)
		must(unchanged_copy_rest(p->c, to, &p->layout,
					 &p->skipped_bytes),
		     "hash and copy");
	else
		copy_all(p, to);
	start = now_ns() - start;
	for (size_t k = 0; k < count; k++) {
		mark_ready(p, &sets[k], NULL);
		gpu_event_free(ready[k]);
	}
	return start;
}

/* --- both ------------------------------------------------------------------
 */

uint64_t place_save(struct place *p, const struct tensors *sets, size_t count,
		    const char *name)
{
	if (!p->dir)
		return save_unmounted(p, sets, count);
	(void)snprintf(p->path, sizeof(p->path), "%s/%s.safetensors", p->dir,
		       name);
	return save_mounted(p, sets, count);
}

void place_settle(struct place *p)
{
	const struct timespec pause = { .tv_nsec = SETTLE_NS };
	struct ckpt_counters now;

	if (!p->dir) {
		mapping_make(&p->mappings[p->turn ^ 1], p->layout.file_bytes);
		return;
	}
	for (int i = 0; i < SETTLE_TRIES; i++) {
		(void)nanosleep(&pause, NULL); /* and a bit after that */
		ckpt_get_counters(p->c, &now);
		if (now.segments_new >= 2)
			break;
	}
	if (now.segments_new < 2)
		die("no second segment: is the stage large enough?");
	(void)nanosleep(&pause, NULL);
}

static void check_file(struct place *p, const struct tensors *t,
		       const char *what)
{
	const struct ckpt_options host = { .flags = CKPT_NO_GPU };
	SCOPED(scope_free)
	struct ckpt_target *targets = calloc(t->count, sizeof(*targets));
	SCOPED(scope_free) uint8_t *found = host_new(t->bytes);
	struct ckpt_file *f;
	struct ckpt *c;

	if (!targets)
		die("no memory");
	must(ckpt_open(&host, &c), "ckpt_open");
	must(ckpt_file_open(c, p->path, &f), what);
	for (size_t i = 0; i < t->count; i++) {
		const struct tensor *n = &t->list[i];

		targets[i].entry = ckpt_file_find(f, n->name);
		if (!targets[i].entry || targets[i].entry->bytes != n->bytes ||
		    strcmp(targets[i].entry->dtype, n->dtype) != 0)
			die("%s: %s is not in the file as it was saved", what,
			    n->name);
		targets[i].data = found + n->at;
		targets[i].device = CKPT_DEVICE_HOST;
	}
	must(ckpt_file_read(f, targets, t->count), what);
	for (size_t i = 0; i < t->count; i++) {
		const struct tensor *n = &t->list[i];

		if (!is_same(found + n->at, t->truth + n->at, n->bytes, what))
			break;
	}
	ckpt_file_close(f);
	ckpt_close(c);
}

static void check_memory(struct place *p, const struct tensors *t,
			 const char *what)
{
	const struct mapping *s = &p->mappings[p->turn];
	size_t found = 0;

	for (size_t k = 0; k < p->layout.count; k++) {
		const struct layout_tensor *l = &p->layout.tensors[k];

		for (size_t i = 0; i < t->count; i++) {
			const struct tensor *n = &t->list[i];

			if (strcmp(n->name, l->name) != 0)
				continue;
			found++;
			(void)is_same(s->memory + l->offset, t->truth + n->at,
				      n->bytes, what);
		}
	}
	if (found != t->count)
		wrong("%s: %zu of %zu tensors are there", what, found,
		      t->count);
}

void place_check(struct place *p, const struct tensors *sets, size_t count,
		 const char *what)
{
	for (size_t k = 0; k < count; k++) {
		if (p->dir)
			check_file(p, &sets[k], what);
		else
			check_memory(p, &sets[k], what);
	}
}
