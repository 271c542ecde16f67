/*
 * bench_kernels.c - the rows of the table in which the device computes: hashes,
 * the paged stash, and a kernel beside a save.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "gpu/hash.h"
#include "gpu/unchanged.h"
#include "store/base/scope.h"
#include "tests/gpu/busy.h"
#include "tests/gpu/gpu_bench.h"

#define STASH_ITEMS 8u
#define STASH_ROW_BYTES (UINT64_C(2) * 4096)
#define STASH_PAGE_ROWS 64u
#define KERNEL_NS 1000000.0 /* one launch of the busy kernel */
#define KERNEL_STEPS 4096u
#define KERNEL_GRID 2048u

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

/* Chunks of all tensors, each as far from where it belongs as `shift` says. */
struct hash_rig {
	struct hasher *h;
	struct hash_range *ranges;
	uint8_t (*found)[CHUNK_HASH_BYTES];
	uint8_t secret[CHUNK_SECRET_BYTES];
	size_t count;
};

static void hash_rig_open(struct rig *r, struct hash_rig *x)
{
	memset(x, 0, sizeof(*x));
	x->count = (size_t)(r->t.payload / UNCHANGED_CHUNK_BYTES) + 1;
	x->ranges = calloc(x->count, sizeof(*x->ranges));
	x->found = calloc(x->count, sizeof(*x->found));
	if (!x->ranges || !x->found)
		die("no memory");
	fill_random(x->secret, sizeof(x->secret), 5);
	must(hasher_new(gpu, 0, x->secret, &x->h), "hasher");
}

static void hash_rig_close(struct hash_rig *x)
{
	hasher_free(x->h);
	free(x->ranges);
	free(x->found);
}

static uint64_t hash_all(struct rig *r, struct hash_rig *x, uint64_t shift)
{
	uint64_t start, ns;

	for (size_t i = 0; i < x->count; i++) {
		uint64_t at = i * UNCHANGED_CHUNK_BYTES;
		uint64_t n = r->t.payload - at;

		if (n > UNCHANGED_CHUNK_BYTES)
			n = UNCHANGED_CHUNK_BYTES;
		if (at + shift + n > r->t.bytes)
			n = n > shift ? n - shift : 0;
		x->ranges[i].data = r->t.data + at + shift;
		x->ranges[i].len = n;
	}
	memset(x->found, 0, x->count * sizeof(*x->found));
	start = now_ns();
	must(hasher_run(x->h, r->stream, x->ranges, x->count, x->found),
	     "hash");
	ns = now_ns() - start;
	check_digests(r, x->secret, x->ranges, x->count, x->found);
	return ns;
}

void row_hash(struct rig *r)
{
	struct row row = { .name = "hash on the device (device copy)" };
	struct hash_rig x;

	if (!gpu_has_kernels(gpu)) {
		row_skip(row.name, "built without nvcc");
		return;
	}
	hash_rig_open(r, &x);
	for (unsigned i = 0; i <= r->b->rounds; i++) {
		uint64_t ours = hash_all(r, &x, 0), theirs;

		timer_start(&r->timer);
		must(gpu_copy_d2d(r->stream, r->device, r->t.data,
				  r->t.payload),
		     "device copy");
		timer_stop(&r->timer);
		theirs = timer_ns(&r->timer);
		if (i > 0)
			row_add(&row, ours, theirs);
	}
	hash_rig_close(&x);
	row_print_speed(&row, r->t.payload, 0.25);
}

/* As tensors lie in one allocation behind a scalar: hash_chunks_rest. */
void row_hash_rest(struct rig *r)
{
	struct row row = {
		.name = "hash, 4 bytes behind a boundary (aligned)"
	};
	struct hash_rig x;

	if (!gpu_has_kernels(gpu)) {
		row_skip(row.name, "built without nvcc");
		return;
	}
	hash_rig_open(r, &x);
	for (unsigned i = 0; i <= r->b->rounds; i++) {
		uint64_t ours = hash_all(r, &x, sizeof(float));
		uint64_t theirs = hash_all(r, &x, 0);

		if (i > 0)
			row_add(&row, ours, theirs);
	}
	hash_rig_close(&x);
	row_print_speed(&row, r->t.payload, 0.5);
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

void row_stash(struct rig *r)
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

void row_beside(struct rig *r)
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
	warm(r);
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
