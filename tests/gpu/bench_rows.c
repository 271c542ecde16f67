/*
 * bench_rows.c - the rows of the table, each measured on both sides in turn.
 * The first round of each is not counted: it makes both sides warm.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "gpu/file.h"
#include "gpu/hash.h"
#include "gpu/unchanged.h"
#include "store/base/scope.h"
#include "tests/gpu/busy.h"
#include "tests/gpu/gpu_bench.h"

#define PRIME_SAVES_MAX 8
#define UNCHANGED_TRIES_MAX (ROUNDS_MAX + PRIME_SAVES_MAX)
#define STASH_ITEMS 8u
#define STASH_ROW_BYTES (UINT64_C(2) * 4096)
#define STASH_PAGE_ROWS 64u
#define LOAD_THREADS 16 /* when there are so many processors */
#define KERNEL_NS 1000000.0 /* one launch of the busy kernel */
#define KERNEL_STEPS 4096u
#define KERNEL_GRID 2048u

static uint64_t stamps; /* of tensors_stamp(), all different */

/* What all rows use. */
struct rig {
	const struct bench *b;
	struct tensors t; /* on device 0 */
	uint8_t *device; /* as large, for the machine's copies and for loads */
	uint8_t *pinned; /* likewise */
	struct gpu_stream *stream; /* the machine's */
	struct timer timer;
	struct place place; /* saves everything */
};

static const char *named(const struct rig *r, const char *mounted,
			 const char *unmounted)
{
	return r->b->mounted ? mounted : unmounted;
}

static const char *dir_of(const struct rig *r)
{
	return r->b->mounted ? r->b->dir : NULL;
}

/* The machine's: pinned, one call, as many bytes as the tensors have. */
static uint64_t copy_d2h(struct rig *r)
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

/* --- saving ------------------------------------------------------------------
 */

static void row_save(struct rig *r)
{
	struct row row = {
		.name = named(r, "save, device to segment (pinned copy)",
			      "save, device to pinned memory, NO MOUNT (copy)"),
	};

	(void)place_save(&r->place, &r->t, 1, "save");
	place_settle(&r->place);
	(void)place_save(&r->place, &r->t, 1, "save");
	for (unsigned i = 0; i <= r->b->rounds; i++) {
		uint64_t ours, theirs;

		tensors_stamp(&r->t, ++stamps);
		ours = place_save(&r->place, &r->t, 1, "save");
		place_check(&r->place, &r->t, 1, row.name);
		theirs = copy_d2h(r);
		(void)is_same(r->pinned, r->t.truth, r->t.payload,
			      "the machine's copy");
		if (i > 0)
			row_add(&row, ours, theirs);
	}
	row_print_speed(&row, r->t.payload, 0.95);
}

static void row_stall(struct rig *r)
{
	struct row row = {
		.name = named(r, "stall of the second save (of the first)",
			      "second save (first), NO MOUNT"),
	};
	unsigned rounds = r->b->rounds < 3 ? r->b->rounds : 3;

	for (unsigned i = 0; i < rounds; i++) {
		struct place p;
		uint64_t first, second;

		place_open(&p, dir_of(r), false);
		tensors_stamp(&r->t, ++stamps);
		first = place_save(&p, &r->t, 1, "stall");
		place_check(&p, &r->t, 1, row.name);
		place_settle(&p);
		tensors_stamp(&r->t, ++stamps);
		second = place_save(&p, &r->t, 1, "stall");
		place_check(&p, &r->t, 1, row.name);
		place_close(&p);
		row_add(&row, second, first);
	}
	row_print_times(&row, AT_LEAST, 10);
}

static void row_unchanged(struct rig *r)
{
	struct row row = {
		.name = named(r, "save, nothing changed (a full one)",
			      "save, nothing changed (full), NO MOUNT"),
	};
	struct place p;
	unsigned known = 0;

	place_open(&p, dir_of(r), true);
	(void)place_save(&p, &r->t, 1, "unchanged");
	place_settle(&p);
	for (int i = 0; i < PRIME_SAVES_MAX && known < 2; i++) {
		(void)place_save(&p, &r->t, 1, "unchanged");
		known = p.skipped_bytes == r->t.payload ? known + 1 : 0;
	}
	if (known < 2)
		wrong("%s: it skipped %llu bytes of %llu", row.name,
		      (unsigned long long)p.skipped_bytes,
		      (unsigned long long)r->t.payload);
	for (unsigned i = 0;
	     i < UNCHANGED_TRIES_MAX && row.rounds < r->b->rounds; i++) {
		uint64_t full = place_save(&r->place, &r->t, 1, "save");
		uint64_t ours = place_save(&p, &r->t, 1, "unchanged");

		place_check(&p, &r->t, 1, row.name);
		/* The mount chooses the segment: one may still be to prime. */
		if (p.skipped_bytes == r->t.payload)
			row_add(&row, ours, full);
	}
	if (row.rounds == 0)
		die("%s: something is always copied", row.name);
	row_print_times(&row, AT_MOST, 0.15);
	tensors_stamp(&r->t, ++stamps); /* and what did change is copied */
	(void)place_save(&p, &r->t, 1, "unchanged");
	place_check(&p, &r->t, 1, "a save after a change");
	place_close(&p);
}

/* --- hashing -----------------------------------------------------------------
 */

static void check_digests(const struct rig *r, const uint8_t *secret,
			  const struct hash_range *ranges, size_t count,
			  uint8_t (*found)[CHUNK_HASH_BYTES])
{
	for (size_t i = 0; i < count; i++) {
		const uint8_t *p = ranges[i].data;
		XXH128_canonical_t want;

		XXH128_canonicalFromHash(
			&want,
			XXH3_128bits_withSecret(r->t.truth + (p - r->t.data),
						ranges[i].len, secret,
						CHUNK_SECRET_BYTES));
		if (!is_same(found[i], want.digest, CHUNK_HASH_BYTES,
			     "a digest of the device (XXH3)"))
			return;
	}
}

static void row_hash(struct rig *r)
{
	struct row row = { .name = "hash on the device (device copy)" };
	size_t count = (size_t)(r->t.payload / UNCHANGED_CHUNK_BYTES) + 1;
	SCOPED(scope_free)
	struct hash_range *ranges = calloc(count, sizeof(*ranges));
	SCOPED(scope_free)
	uint8_t(*found)[CHUNK_HASH_BYTES] = calloc(count, sizeof(*found));
	uint8_t secret[CHUNK_SECRET_BYTES];
	struct hasher *h;

	if (!gpu_has_kernels(gpu)) {
		row_skip(row.name, "built without nvcc");
		return;
	}
	if (!ranges || !found)
		die("no memory");
	for (size_t i = 0; i < count; i++) {
		uint64_t at = i * UNCHANGED_CHUNK_BYTES;
		uint64_t n = r->t.payload - at;

		ranges[i].data = r->t.data + at;
		ranges[i].len =
			n < UNCHANGED_CHUNK_BYTES ? n : UNCHANGED_CHUNK_BYTES;
	}
	fill_random(secret, sizeof(secret), 5);
	must(hasher_new(gpu, 0, secret, &h), "hasher");
	for (unsigned i = 0; i <= r->b->rounds; i++) {
		uint64_t start = now_ns(), ours, theirs;

		must(hasher_run(h, r->stream, ranges, count, found), "hash");
		ours = now_ns() - start;
		check_digests(r, secret, ranges, count, found);
		memset(found, 0, count * sizeof(*found));
		timer_start(&r->timer);
		must(gpu_copy_d2d(r->stream, r->device, r->t.data,
				  r->t.payload),
		     "device copy");
		timer_stop(&r->timer);
		theirs = timer_ns(&r->timer);
		if (i > 0)
			row_add(&row, ours, theirs);
	}
	hasher_free(h);
	row_print_speed(&row, r->t.payload, 0.25);
}

/* --- the paged stash ---------------------------------------------------------
 */

struct stash_rig {
	struct ckpt *c;
	struct ckpt_stash *stash;
	struct ckpt_stash_item *items[STASH_ITEMS];
	int64_t rows; /* in each */
	uint64_t item_bytes; /* of them */
	uint64_t stride; /* from item to item in the tensors' memory */
	int64_t *device_rows;
	uint32_t *flag;
};

static void stash_rig_open(struct rig *r, struct stash_rig *s)
{
	struct ckpt_stash_type type = { .element_bytes = 2,
					.row_elements = 4096 };
	struct ckpt_stash_options o = { .page_rows = STASH_PAGE_ROWS,
					.types = &type,
					.type_count = 1 };
	uint64_t rows_max = r->t.bytes / STASH_ITEMS / STASH_ROW_BYTES;

	s->rows = (int64_t)rows_max - 13; /* a last page that is not full */
	s->item_bytes = (uint64_t)s->rows * STASH_ROW_BYTES;
	s->stride = rows_max * STASH_ROW_BYTES;
	type.device_rows = STASH_ITEMS * (rows_max + STASH_PAGE_ROWS);
	must(ckpt_open(NULL, &s->c), "ckpt_open");
	must(ckpt_stash_new(s->c, &o, &s->stash), "stash");
	for (size_t i = 0; i < STASH_ITEMS; i++)
		must(ckpt_stash_item_new(s->stash, type.element_bytes,
					 type.row_elements, rows_max,
					 &s->items[i]),
		     "stash item");
	s->device_rows = device_new(0, sizeof(*s->device_rows));
	put(r->stream, s->device_rows, &s->rows, sizeof(s->rows));
	s->flag = pinned_new(sizeof(*s->flag));
}

static void stash_rig_close(struct stash_rig *s)
{
	for (size_t i = 0; i < STASH_ITEMS; i++)
		ckpt_stash_item_free(s->items[i]);
	ckpt_stash_free(s->stash);
	ckpt_close(s->c);
	gpu_free(gpu, 0, s->device_rows);
	gpu_host_free(gpu, s->flag);
}

static void stash_check(struct rig *r, struct stash_rig *s)
{
	*s->flag = 7;
	must(ckpt_stash_overflowed(s->stash, s->flag, r->stream->raw),
	     "overflow");
	get(r->stream, r->pinned, r->device, STASH_ITEMS * s->stride);
	if (*s->flag != 0)
		wrong("the stash overflowed (%u)", *s->flag);
	for (size_t i = 0; i < STASH_ITEMS; i++)
		if (!is_same(r->pinned + i * s->stride,
			     r->t.truth + i * s->stride, s->item_bytes,
			     "what came out of the stash"))
			return;
}

static void row_stash(struct rig *r)
{
	struct row pack = { .name = "stash pack (device copy)" };
	struct row unpack = { .name = "stash unpack (device copy)" };
	struct stash_rig s;

	if (!gpu_has_kernels(gpu)) {
		row_skip("stash pack and unpack", "built without nvcc");
		return;
	}
	stash_rig_open(r, &s);
	for (unsigned n = 0; n <= r->b->rounds; n++) {
		uint64_t in, copy, out;

		timer_start(&r->timer);
		for (size_t i = 0; i < STASH_ITEMS; i++)
			must(ckpt_stash_pack(s.items[i],
					     r->t.data + i * s.stride,
					     s.device_rows, r->stream->raw),
			     "pack");
		timer_stop(&r->timer);
		in = timer_ns(&r->timer);
		timer_start(&r->timer);
		for (size_t i = 0; i < STASH_ITEMS; i++)
			must(gpu_copy_d2d(r->stream, r->device + i * s.stride,
					  r->t.data + i * s.stride,
					  s.item_bytes),
			     "device copy");
		timer_stop(&r->timer);
		copy = timer_ns(&r->timer);
		must(gpu_zero(r->stream, r->device, r->t.bytes), "zero");
		timer_start(&r->timer);
		for (size_t i = STASH_ITEMS; i-- > 0;) /* as backward does */
			must(ckpt_stash_unpack(s.items[i],
					       r->device + i * s.stride,
					       r->stream->raw),
			     "unpack");
		timer_stop(&r->timer);
		out = timer_ns(&r->timer);
		stash_check(r, &s);
		if (n > 0) {
			row_add(&pack, in, copy);
			row_add(&unpack, out, copy);
		}
	}
	stash_rig_close(&s);
	row_print_speed(&pack, STASH_ITEMS * s.item_bytes, 0.8);
	row_print_speed(&unpack, STASH_ITEMS * s.item_bytes, 0.8);
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

/* --- beside a kernel ---------------------------------------------------------
 */

struct saving {
	struct rig *r;
	pthread_t thread;
	uint64_t ns;
};

static void *saving_main(void *arg)
{
	struct saving *s = arg;

	s->ns = place_save(&s->r->place, &s->r->t, 1, "save");
	return NULL;
}

struct busy_rig {
	uint32_t *out, steps;
	unsigned launches, grid;
	struct gpu_stream *stream;
	struct timer timer;
};

static void busy_start(struct busy_rig *k)
{
	timer_start(&k->timer);
	for (unsigned i = 0; i < k->launches; i++)
		busy_run(k->stream, k->out, k->grid, k->steps);
	timer_stop(&k->timer);
}

static void busy_check(struct busy_rig *k)
{
	uint64_t bytes = (uint64_t)k->grid * BUSY_THREADS * sizeof(*k->out);
	SCOPED(scope_free) uint32_t *found = host_new(bytes);
	uint32_t count = k->grid * BUSY_THREADS;

	get(k->stream, found, k->out, bytes);
	for (uint32_t i = 0; i < count; i += count / 64) {
		uint32_t want = busy_value(i, k->steps);

		if (!is_same(&found[i], &want, sizeof(want), "busy kernel"))
			return;
	}
	must(gpu_zero(k->stream, k->out, bytes), "zero");
	finish(k->stream);
}

/* So many launches of about a millisecond that a save fits in between. */
static void busy_rig_open(struct rig *r, struct busy_rig *k, uint64_t save_ns)
{
	*k = (struct busy_rig){ .steps = KERNEL_STEPS,
				.launches = 1,
				.grid = KERNEL_GRID };
	if (gpu->fake) {
		k->grid = 4;
		k->steps = 64;
	}
	k->stream = stream_new(0);
	k->out = device_new(0,
			    (uint64_t)k->grid * BUSY_THREADS * sizeof(*k->out));
	timer_open(&k->timer, k->stream);
	busy_start(k);
	(void)timer_ns(&k->timer); /* the first one loads it */
	if (gpu->fake) {
		k->launches = 3;
	} else {
		double ns;

		busy_start(k);
		ns = (double)timer_ns(&k->timer);
		if (ns < KERNEL_NS)
			k->steps = (uint32_t)(KERNEL_STEPS * KERNEL_NS / ns);
		busy_start(k);
		ns = (double)timer_ns(&k->timer);
		k->launches = (unsigned)(1.5 * (double)save_ns / ns) + 1;
	}
	(void)r;
}

static void busy_rig_close(struct busy_rig *k)
{
	timer_close(&k->timer);
	gpu_free(gpu, 0, k->out);
	gpu_stream_free(k->stream);
}

static void row_beside(struct rig *r)
{
	struct row kernel = {
		.name = "a kernel with a save beside it (alone)"
	};
	struct row save = { .name = "a save with a kernel beside it (alone)" };
	struct busy_rig k;

	if (!busy_open(0)) {
		row_skip(kernel.name, "built without nvcc");
		return;
	}
	busy_rig_open(r, &k, place_save(&r->place, &r->t, 1, "save"));
	for (unsigned i = 0; i <= r->b->rounds; i++) {
		struct saving s = { .r = r };
		uint64_t kernel_alone, kernel_beside, save_alone;

		busy_start(&k);
		kernel_alone = timer_ns(&k.timer);
		busy_check(&k);
		save_alone = place_save(&r->place, &r->t, 1, "save");
		tensors_stamp(&r->t, ++stamps);
		if (pthread_create(&s.thread, NULL, saving_main, &s) != 0)
			die("no thread");
		busy_start(&k);
		kernel_beside = timer_ns(&k.timer);
		CHECK(pthread_join(s.thread, NULL) == 0);
		busy_check(&k);
		place_check(&r->place, &r->t, 1, save.name);
		if (i > 0) {
			row_add(&kernel, kernel_beside, kernel_alone);
			row_add(&save, s.ns, save_alone);
		}
	}
	busy_rig_close(&k);
	busy_close();
	row_print_times(&kernel, AT_LEAST, 0.9);
	row_print_times(&save, AT_LEAST, 0.9);
}

/* --- two devices
 * ---------------------------------------------------------------
 */

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

void bench_rows(const struct bench *b)
{
	struct rig r = { .b = b };

	tensors_new(&r.t, 0, b->bytes, "layer");
	r.device = device_new(0, r.t.bytes);
	r.pinned = pinned_new(r.t.bytes);
	r.stream = stream_new(0);
	timer_open(&r.timer, r.stream);
	place_open(&r.place, dir_of(&r), false);
	row_save(&r);
	row_unchanged(&r);
	row_load(&r);
	row_beside(&r);
	place_close(&r.place);
	row_stall(&r);
	row_hash(&r);
	row_stash(&r);
	row_devices(&r);
	timer_close(&r.timer);
	gpu_stream_free(r.stream);
	gpu_host_free(gpu, r.pinned);
	gpu_free(gpu, 0, r.device);
	tensors_free(&r.t);
}
