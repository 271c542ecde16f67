/*
 * bench_rows.c - the groups of rows, what they share, and the rows of loads and
 * of several devices. Each row is measured on both sides in turn; its first
 * round is not counted: it makes both sides warm.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpu/file.h"
#include "store/base/scope.h"
#include "tests/gpu/gpu_bench.h"

#define LOAD_THREADS 16 /* when there are so many processors */

uint64_t stamps;

const char *named(const struct rig *r, const char *mounted,
		  const char *unmounted)
{
	return r->b->mounted ? mounted : unmounted;
}

const char *dir_of(const struct rig *r)
{
	return r->b->mounted ? r->b->dir : NULL;
}

uint64_t copy_d2h(struct rig *r)
{
	uint64_t start = now_ns();

	get(r->stream, r->pinned, r->t.data, r->t.payload);
	return now_ns() - start;
}

static uint64_t copy_h2d(struct rig *r)
{
	uint64_t start = now_ns();

	put(r->stream, r->device, r->pinned, r->t.payload);
	return now_ns() - start;
}

/* --- loading -----------------------------------------------------------------
 */

static uint64_t load(struct rig *r, struct ckpt_file *f)
{
	SCOPED(scope_free)
	struct ckpt_target *targets = calloc(r->t.count, sizeof(*targets));
	uint64_t start;

	if (!targets)
		die("no memory");
	start = now_ns();
	for (size_t i = 0; i < r->t.count; i++) {
		const struct tensor *n = &r->t.list[i];

		targets[i].entry = ckpt_file_find(f, n->name);
		targets[i].data = r->device + n->at;
		targets[i].device = 0;
	}
	must(ckpt_file_read(f, targets, r->t.count), "load");
	return now_ns() - start;
}

static void check_loaded(struct rig *r, const char *what)
{
	get(r->stream, r->pinned, r->device, r->t.bytes);
	for (size_t i = 0; i < r->t.count; i++) {
		const struct tensor *n = &r->t.list[i];

		if (!is_same(r->pinned + n->at, r->t.truth + n->at, n->bytes,
			     what))
			return;
	}
}

static void load_rounds(struct rig *r, struct ckpt *c, const char *path,
			const char *name, bool from_segment)
{
	struct row row = { .name = name };
	struct mapping *s;
	struct ckpt_file *f;

	must(ckpt_file_open(c, path, &f), "open");
	if (from_segment) {
		s = mapping_read_begin(c, &f->stat);
		if (!s) {
			row_skip(name, "it is not in a pinned segment");
			ckpt_file_close(f);
			return;
		}
		mapping_read_end(s);
	}
	for (unsigned i = 0; i <= r->b->rounds; i++) {
		uint64_t ours, theirs;

		must(gpu_zero(r->stream, r->device, r->t.bytes), "zero");
		finish(r->stream);
		ours = load(r, f);
		check_loaded(r, name);
		theirs = copy_h2d(r);
		if (i > 0)
			row_add(&row, ours, theirs);
	}
	ckpt_file_close(f);
	row_print_speed(&row, r->t.payload, 0.9);
}

/* Where there is no mount: an ordinary file, written by the library too. */
static void write_plain(struct rig *r, char *path, size_t size)
{
	struct ckpt_options plain = { .flags = CKPT_PLAIN };
	struct ckpt_save *s;
	struct ckpt *c;

	(void)snprintf(path, size, "%s/gpu_bench.%d.safetensors", r->b->dir,
		       (int)getpid());
	must(ckpt_open(&plain, &c), "ckpt_open");
	must(ckpt_begin(c, path, &s), "ckpt_begin");
	for (size_t i = 0; i < r->t.count; i++) {
		struct ckpt_tensor t = tensor_of(&r->t, i);

		must(ckpt_add(s, &t), "ckpt_add");
	}
	must(ckpt_commit(s), "ckpt_commit");
	ckpt_save_free(s);
	ckpt_close(c);
}

/* One that did not save it has it from the file. */
static void load_from_file(struct rig *r, const char *path, unsigned threads,
			   const char *name)
{
	struct ckpt_options o = { .copy_threads = threads };
	struct ckpt *c;

	must(ckpt_open(&o, &c), "ckpt_open");
	load_rounds(r, c, path, name, false);
	ckpt_close(c);
}

static void row_load(struct rig *r)
{
	const char *segment = "load from the segment (pinned copy)";
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	char path[512];

	tensors_stamp(&r->t, ++stamps);
	if (r->b->mounted) {
		(void)place_save(&r->place, &r->t, 1, "load");
		(void)snprintf(path, sizeof(path), "%s", r->place.path);
		load_rounds(r, r->place.c, path, segment, true);
	} else {
		row_skip(segment, "no mount");
		write_plain(r, path, sizeof(path));
	}
	load_from_file(r, path, 0, "load, page cache (pinned copy)");
	if (cpus >= LOAD_THREADS)
		load_from_file(r, path, LOAD_THREADS,
			       "load, page cache, copy_threads=16");
	(void)unlink(path);
}

/* --- two devices --- */

static void row_devices(struct rig *r)
{
	struct row row = {
		.name = named(r, "save of two devices at once (pinned copies)",
			      "two devices at once, NO MOUNT (pinned copies)"),
	};
	struct tensors two[BENCH_DEVICES_MAX];
	struct gpu_stream *streams[BENCH_DEVICES_MAX];
	struct place p;
	uint64_t half = r->t.bytes / BENCH_DEVICES_MAX, payload = 0;

	if (gpu_device_count(gpu) < BENCH_DEVICES_MAX) {
		row_skip("two devices at once", "there is one device");
		return;
	}
	for (int d = 0; d < BENCH_DEVICES_MAX; d++) {
		tensors_new(&two[d], d, half, d == 0 ? "first" : "second");
		streams[d] = stream_new(d);
		payload += two[d].payload;
	}
	place_open(&p, dir_of(r), false);
	(void)place_save(&p, two, BENCH_DEVICES_MAX, "two");
	place_settle(&p);
	(void)place_save(&p, two, BENCH_DEVICES_MAX, "two");
	for (unsigned i = 0; i <= r->b->rounds; i++) {
		uint64_t ours, start;

		for (int d = 0; d < BENCH_DEVICES_MAX; d++)
			tensors_stamp(&two[d], ++stamps);
		ours = place_save(&p, two, BENCH_DEVICES_MAX, "two");
		place_check(&p, two, BENCH_DEVICES_MAX, row.name);
		start = now_ns();
		for (int d = 0; d < BENCH_DEVICES_MAX; d++)
			must(gpu_copy_d2h(streams[d],
					  r->pinned + (uint64_t)d * half,
					  two[d].data, two[d].payload),
			     "copy");
		for (int d = 0; d < BENCH_DEVICES_MAX; d++)
			finish(streams[d]);
		if (i > 0)
			row_add(&row, ours, now_ns() - start);
	}
	place_close(&p);
	for (int d = 0; d < BENCH_DEVICES_MAX; d++) {
		tensors_free(&two[d]);
		gpu_stream_free(streams[d]);
	}
	row_print_speed(&row, payload, 0.95);
}

/* --- groups ------------------------------------------------------------------
 *
 * Each can be run by itself, in a process of its own: what ends one does not
 * take the others' rows with it.
 */

#define GROUP_ROWS_MAX 4

static const struct group {
	const char *name;
	void (*rows[GROUP_ROWS_MAX])(struct rig *r);
} groups[] = {
	{ "save", { row_save, row_unchanged, row_pageable, row_burst } },
	{ "load", { row_load } },
	{ "beside", { row_beside } },
	{ "first", { row_stall, row_first, row_populate, row_delay } },
	{ "hash", { row_hash, row_hash_rest } },
	{ "stash", { row_stash, row_items } },
	{ "devices", { row_devices } },
};

#define GROUP_COUNT (sizeof(groups) / sizeof(*groups))

/* Is name one of the list, which has commas between them? */
static bool is_listed(const char *list, const char *name, size_t len)
{
	for (;; list++) {
		size_t n = strcspn(list, ",");

		if (n == len && memcmp(list, name, len) == 0)
			return true;
		list += n;
		if (!*list)
			return false;
	}
}

bool bench_has_groups(const char *list)
{
	for (;; list++) {
		size_t n = strcspn(list, ","), i = 0;

		while (i < GROUP_COUNT && !is_listed(groups[i].name, list, n))
			i++;
		if (i == GROUP_COUNT)
			return false;
		list += n;
		if (!*list)
			return true;
	}
}

void bench_list_groups(void)
{
	for (size_t i = 0; i < GROUP_COUNT; i++)
		puts(groups[i].name);
}

void bench_rows(const struct bench *b)
{
	struct rig r = { .b = b };

	tensors_new(&r.t, 0, b->bytes, "layer");
	r.device = device_new(0, r.t.bytes);
	r.pinned = pinned_new(r.t.bytes);
	r.stream = stream_new(0);
	timer_open(&r.timer, r.stream);
	for (size_t i = 0; i < GROUP_COUNT; i++) {
		const struct group *g = &groups[i];

		if (b->groups &&
		    !is_listed(b->groups, g->name, strlen(g->name)))
			continue;
		r.warm = false;
		place_open(&r.place, dir_of(&r), false);
		for (size_t k = 0; k < GROUP_ROWS_MAX && g->rows[k]; k++)
			g->rows[k](&r);
		place_close(&r.place);
	}
	timer_close(&r.timer);
	gpu_stream_free(r.stream);
	gpu_host_free(gpu, r.pinned);
	gpu_free(gpu, 0, r.device);
	tensors_free(&r.t);
}
