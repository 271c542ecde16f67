/*
 * bench_check.c - every result against the CPU's, bit by bit, at the lengths
 * and places where kernels go wrong: hashes, the paged stash (against the same
 * stash in host memory, and in a graph), and tensors through a file.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "gpu/hash.h"
#include "store/base/scope.h"
#include "tests/gpu/gpu_bench.h"

#define MIB (UINT64_C(1) << 20)

static uint64_t random_state = 1;

static uint64_t random_below(uint64_t n)
{
	random_state = random_state * UINT64_C(6364136223846793005) + 1;
	return (random_state >> 33) % n;
}

/* --- hashes ------------------------------------------------------------------
 */

static void check_hashes(int device, bool small)
{
	static const uint64_t lengths[] = {
		0,     1,     2,     3,     4,     8,      9,     16,
		17,    32,    33,    64,    96,    127,    128,   129,
		192,   240,   241,   255,   256,   1023,   1024,  1025,
		2047,  2048,  2049,  4096,  4097,  8191,   32767, 32768,
		32769, 65535, 65536, 65537, 99991, 262143, 262145
	};
	enum { LENGTHS = sizeof(lengths) / sizeof(*lengths), PLACES = 17 };
	const uint64_t len_max = MIB + 7;
	struct hash_range ranges[(LENGTHS + 2) * PLACES];
	uint8_t found[(LENGTHS + 2) * PLACES][CHUNK_HASH_BYTES];
	SCOPED(scope_free) uint8_t *truth = host_new(len_max + PLACES);
	uint8_t *data = device_new(device, len_max + PLACES);
	struct gpu_stream *s = stream_new(device);
	uint8_t secret[CHUNK_SECRET_BYTES];
	struct hasher *h;
	size_t n = 0;

	fill_random(truth, len_max + PLACES, 3);
	fill_random(secret, sizeof(secret), 4);
	put(s, data, truth, len_max + PLACES);
	for (unsigned place = 0; place < PLACES; place++) {
		for (size_t i = 0; i < LENGTHS; i++)
			ranges[n++] =
				(struct hash_range){ data + place, lengths[i] };
		if (small && place % 5 != 0)
			continue;
		ranges[n++] = (struct hash_range){ data + place, MIB };
		ranges[n++] = (struct hash_range){ data + place, len_max };
	}
	must(hasher_new(gpu, device, secret, &h), "hasher");
	must(hasher_run(h, s, ranges, n, found), "hash");
	for (size_t i = 0; i < n; i++) {
		size_t at = (size_t)((const uint8_t *)ranges[i].data - data);
		XXH128_canonical_t want;
		char what[64];

		XXH128_canonicalFromHash(
			&want,
			XXH3_128bits_withSecret(truth + at, ranges[i].len,
						secret, sizeof(secret)));
		(void)snprintf(what, sizeof(what), "XXH3 of %zu bytes at %zu",
			       ranges[i].len, at);
		(void)is_same(found[i], want.digest, CHUNK_HASH_BYTES, what);
	}
	hasher_free(h);
	gpu_stream_free(s);
	gpu_free(gpu, device, data);
}

/* --- the paged stash
 * -----------------------------------------------------------
 */

#define STASH_ITEMS 6u
#define STASH_MAX_ROWS 200u

struct stash_kind {
	uint32_t element_bytes, row_elements;
};

/* The same twice: on the device, and in host memory. */
struct twin_stash {
	int device;
	struct ckpt *c;
	struct gpu_stream *s;
	struct stash_kind kind;
	uint64_t item_bytes;
	struct ckpt_stash *on_device, *on_host;
	struct twin_item {
		struct ckpt_stash_item *on_device, *on_host;
		uint8_t *data, *truth; /* what is packed */
		uint8_t *out, *out_truth; /* what comes out */
		int64_t *rows, rows_truth;
		bool packed;
	} items[STASH_ITEMS];
	uint8_t *found;
};

static void twin_open(struct twin_stash *t, int device, struct stash_kind kind,
		      uint64_t host_rows)
{
	struct ckpt_stash_type type = { .element_bytes = kind.element_bytes,
					.row_elements = kind.row_elements,
					.device_rows = 500,
					.host_rows = host_rows };
	struct ckpt_stash_options o = { .device = device,
					.types = &type,
					.type_count = 1 };

	memset(t, 0, sizeof(*t));
	t->device = device;
	t->kind = kind;
	t->item_bytes = (uint64_t)kind.element_bytes * kind.row_elements *
			STASH_MAX_ROWS;
	t->s = stream_new(device);
	t->found = host_new(t->item_bytes);
	must(ckpt_open(NULL, &t->c), "ckpt_open");
	must(ckpt_stash_new(t->c, &o, &t->on_device), "stash");
	o.device = CKPT_DEVICE_HOST;
	must(ckpt_stash_new(t->c, &o, &t->on_host), "stash");
	for (size_t i = 0; i < STASH_ITEMS; i++) {
		struct twin_item *n = &t->items[i];

		must(ckpt_stash_item_new(t->on_device, kind.element_bytes,
					 kind.row_elements, STASH_MAX_ROWS,
					 &n->on_device),
		     "item");
		must(ckpt_stash_item_new(t->on_host, kind.element_bytes,
					 kind.row_elements, STASH_MAX_ROWS,
					 &n->on_host),
		     "item");
		n->data = device_new(device, t->item_bytes);
		n->out = device_new(device, t->item_bytes);
		n->rows = device_new(device, sizeof(*n->rows));
		n->truth = host_new(t->item_bytes);
		n->out_truth = host_new(t->item_bytes);
		memset(n->out_truth, 0, t->item_bytes);
		put(t->s, n->out, n->out_truth, t->item_bytes);
	}
}

static void twin_close(struct twin_stash *t)
{
	finish(t->s);
	for (size_t i = 0; i < STASH_ITEMS; i++) {
		struct twin_item *n = &t->items[i];

		ckpt_stash_item_free(n->on_device);
		ckpt_stash_item_free(n->on_host);
		gpu_free(gpu, t->device, n->data);
		gpu_free(gpu, t->device, n->out);
		gpu_free(gpu, t->device, n->rows);
		free(n->truth);
		free(n->out_truth);
	}
	ckpt_stash_free(t->on_device);
	ckpt_stash_free(t->on_host);
	gpu_stream_free(t->s);
	free(t->found);
	ckpt_close(t->c);
}

static void twin_compare(struct twin_stash *t, const char *what)
{
	struct ckpt_stash_state ours = { 0 }, cpu = { 0 };

	must(ckpt_stash_get_state(t->on_device, t->kind.element_bytes,
				  t->kind.row_elements, t->s->raw, &ours),
	     what);
	must(ckpt_stash_get_state(t->on_host, t->kind.element_bytes,
				  t->kind.row_elements, NULL, &cpu),
	     what);
	(void)is_same(&ours, &cpu, sizeof(cpu), what);
}

static void twin_fill(struct twin_stash *t, struct twin_item *n, int64_t rows)
{
	fill_random(n->truth, t->item_bytes, random_below(1u << 30));
	n->rows_truth = rows;
	put(t->s, n->data, n->truth, t->item_bytes);
	put(t->s, n->rows, &n->rows_truth, sizeof(n->rows_truth));
}

static void twin_pack(struct twin_stash *t, struct twin_item *n, int64_t rows)
{
	twin_fill(t, n, rows);
	must(ckpt_stash_pack(n->on_device, n->data, n->rows, t->s->raw),
	     "pack");
	must(ckpt_stash_pack(n->on_host, n->truth, &n->rows_truth, NULL),
	     "pack");
	n->packed = true;
}

static void twin_unpack(struct twin_stash *t, struct twin_item *n)
{
	must(ckpt_stash_unpack(n->on_device, n->out, t->s->raw), "unpack");
	must(ckpt_stash_unpack(n->on_host, n->out_truth, NULL), "unpack");
	n->packed = false;
	get(t->s, t->found, n->out, t->item_bytes);
	(void)is_same(t->found, n->out_truth, t->item_bytes,
		      "what came out of the stash");
}

static void check_stash(int device, struct stash_kind kind, uint64_t host_rows,
			unsigned steps)
{
	static const int64_t rows[] = { 0,   1,   63,  64,  65,
					127, 128, 129, 199, STASH_MAX_ROWS };
	struct twin_stash t;

	twin_open(&t, device, kind, host_rows);
	for (unsigned step = 0; step < steps; step++) {
		struct twin_item *n = &t.items[random_below(STASH_ITEMS)];

		if (random_below(40) == 0) {
			must(ckpt_stash_reset(t.on_device, t.s->raw), "reset");
			must(ckpt_stash_reset(t.on_host, NULL), "reset");
			for (size_t i = 0; i < STASH_ITEMS; i++)
				t.items[i].packed = false;
		} else if (n->packed) {
			twin_unpack(&t, n);
		} else {
			twin_pack(&t, n,
				  rows[random_below(sizeof(rows) /
						    sizeof(*rows))]);
		}
		twin_compare(&t, "the stash's state");
	}
	twin_pack(&t, &t.items[0], STASH_MAX_ROWS + 1); /* overflows */
	twin_compare(&t, "the state of a stash that overflowed");
	twin_close(&t);
}

/* One graph of pack and unpack, launched with other rows each time. */
static void check_graph(int device)
{
	const struct stash_kind kind = { 2, 1000 };
	static const int64_t rows[] = { 1, 65, 0, 200, 64 };
	struct twin_stash t;
	struct twin_item *n;
	void *graph = NULL, *exec = NULL;

	twin_open(&t, device, kind, 0);
	n = &t.items[0];
	twin_fill(&t, n, 1);
	{
		SCOPED(gpu_leave) struct entered in = { 0 };

		must(gpu_enter(gpu, device, &in), "device");
		said(more.cuStreamBeginCapture(t.s->raw, 0), "capture");
		must(ckpt_stash_pack(n->on_device, n->data, n->rows, t.s->raw),
		     "pack in a capture");
		must(ckpt_stash_unpack(n->on_device, n->out, t.s->raw),
		     "unpack in a capture");
		said(more.cuStreamEndCapture(t.s->raw, &graph), "capture");
		said(more.cuGraphInstantiate(&exec, graph, 0), "graph");
	}
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		twin_fill(&t, n, rows[i]);
		{
			SCOPED(gpu_leave) struct entered in = { 0 };

			must(gpu_enter(gpu, device, &in), "device");
			said(more.cuGraphLaunch(exec, t.s->raw), "graph");
		}
		must(ckpt_stash_pack(n->on_host, n->truth, &n->rows_truth,
				     NULL),
		     "pack");
		must(ckpt_stash_unpack(n->on_host, n->out_truth, NULL),
		     "unpack");
		get(t.s, t.found, n->out, t.item_bytes);
		(void)is_same(t.found, n->out_truth, t.item_bytes,
			      "what a graph packed and unpacked");
		twin_compare(&t, "the state after a graph");
	}
	said(more.cuGraphExecDestroy(exec), "graph");
	said(more.cuGraphDestroy(graph), "graph");
	twin_close(&t);
}

/* --- tensors through a file
 * ------------------------------------------------------
 */

#define ODD_MAX 16u

struct odd {
	struct ckpt_tensor t;
	uint64_t shape[3];
	int64_t stride[3];
	char name[16];
	uint64_t bytes; /* in the file */
	uint64_t extent; /* of its memory */
	uint8_t *data; /* where it is */
	uint8_t *memory; /* the same on the host */
	uint8_t *allocated; /* data, as it was allocated */
	uint8_t *truth; /* as it must be in the file */
};

struct odd_set {
	struct odd list[ODD_MAX];
	size_t count;
};

static struct odd *odd_add(struct odd_set *set, int device, const char *dtype,
			   uint64_t element, uint64_t rows, uint64_t columns,
			   bool transposed, uint64_t skew, uint64_t seed)
{
	struct odd *o = &set->list[set->count];
	struct gpu_stream *s;

	CHECK(set->count < ODD_MAX);
	(void)snprintf(o->name, sizeof(o->name), "odd.%zu", set->count++);
	o->shape[0] = rows;
	o->shape[1] = columns;
	o->bytes = o->extent = rows * columns * element;
	o->memory = host_new(o->extent);
	o->truth = host_new(o->bytes);
	fill_random(o->memory, o->extent, seed);
	memcpy(o->truth, o->memory, o->bytes);
	if (transposed) { /* element (i, j) is at j * rows + i */
		o->stride[0] = 1;
		o->stride[1] = (int64_t)rows;
		for (uint64_t i = 0; i < rows * columns; i++)
			memcpy(o->truth + i * element,
			       o->memory + (i % columns * rows + i / columns) *
						   element,
			       element);
	}
	if (device < 0) {
		o->data = o->memory;
	} else {
		s = stream_new(device);
		o->allocated = device_new(device, o->extent + skew + 1);
		o->data = o->allocated + skew;
		if (o->extent > 0)
			put(s, o->data, o->memory, o->extent);
		gpu_stream_free(s);
	}
	o->t = (struct ckpt_tensor){ .name = o->name,
				     .dtype = dtype,
				     .shape = o->shape,
				     .rank = 2,
				     .stride = transposed ? o->stride : NULL,
				     .data = o->data,
				     .device = device };
	return o;
}

static void odd_free(struct odd_set *set)
{
	for (size_t i = 0; i < set->count; i++) {
		struct odd *o = &set->list[i];

		gpu_free(gpu, o->t.device, o->allocated);
		free(o->memory);
		free(o->truth);
	}
}

/* One byte changes, on both sides. */
static void odd_change(struct odd *o, uint64_t at)
{
	struct gpu_stream *s;

	o->memory[at] ^= 0x55;
	o->truth[at] ^= 0x55;
	if (o->t.device < 0)
		return;
	s = stream_new(o->t.device);
	put(s, o->data + at, o->memory + at, 1);
	gpu_stream_free(s);
}

static void odd_save(struct ckpt *c, const char *path, struct odd_set *set)
{
	struct ckpt_save *s;

	must(ckpt_begin(c, path, &s), "ckpt_begin");
	must(ckpt_metadata(s, "format", "pt"), "ckpt_metadata");
	for (size_t i = 0; i < set->count; i++)
		must(ckpt_add(s, &set->list[i].t), "ckpt_add");
	must(ckpt_commit(s), "ckpt_commit");
	must(ckpt_wait(s), "ckpt_wait");
	ckpt_save_free(s);
}

/* To every device and to host memory. */
static void odd_load(struct ckpt *c, const char *path,
		     const struct odd_set *set, const char *what)
{
	struct ckpt_target targets[ODD_MAX];
	struct ckpt_file *f;

	must(ckpt_file_open(c, path, &f), what);
	for (int device = -1; device < gpu_device_count(gpu); device++) {
		struct gpu_stream *s = device < 0 ? NULL : stream_new(device);

		for (size_t i = 0; i < set->count; i++) {
			const struct odd *o = &set->list[i];

			targets[i].entry = ckpt_file_find(f, o->name);
			if (!targets[i].entry ||
			    targets[i].entry->bytes != o->bytes)
				die("%s: %s is not there", what, o->name);
			targets[i].device = device;
			targets[i].data =
				device < 0 ? host_new(o->bytes)
					   : device_new(device, o->bytes + 1);
		}
		must(ckpt_file_read(f, targets, set->count), what);
		for (size_t i = 0; i < set->count; i++) {
			const struct odd *o = &set->list[i];
			SCOPED(scope_free) uint8_t *found = host_new(o->bytes);

			if (s && o->bytes > 0)
				get(s, found, targets[i].data, o->bytes);
			else
				memcpy(found, targets[i].data, o->bytes);
			(void)is_same(found, o->truth, o->bytes, what);
			if (s)
				gpu_free(gpu, device, targets[i].data);
			else
				free(targets[i].data);
		}
		gpu_stream_free(s);
	}
	ckpt_file_close(f);
}

static void check_files(const struct bench *b, unsigned flags, const char *what)
{
	struct ckpt_options ours = { .flags = flags }, other = { 0 };
	struct odd_set set = { .count = 0 };
	int last = gpu_device_count(gpu) - 1;
	struct odd *large, *host;
	struct ckpt *c, *reader;
	char path[512];

	(void)snprintf(path, sizeof(path), "%s/gpu_check.%d.safetensors",
		       b->dir, (int)getpid());
	if (!b->mounted)
		ours.flags |= CKPT_PLAIN;
	else
		ours.flags |= CKPT_SEGMENT_ONLY;
	must(ckpt_open(&ours, &c), "ckpt_open");
	must(ckpt_open(&other, &reader), "ckpt_open");
	(void)odd_add(&set, 0, "F32", 4, 0, 4, false, 0, 1);
	odd_add(&set, 0, "F32", 4, 1, 1, false, 0, 2)->t.rank = 0;
	(void)odd_add(&set, 0, "U8", 1, 1, 100003, false, 1, 3);
	(void)odd_add(&set, 0, "BF16", 2, 333, 77, false, 2, 4);
	(void)odd_add(&set, 0, "F32", 4, 37, 53, true, 0, 5);
	large = odd_add(&set, 0, "U8", 1, 1, 3 * MIB + 5, false, 0, 6);
	/* Three of the same, two on one device. */
	(void)odd_add(&set, 0, "F64", 8, 256, 1024, false, 0, 7);
	(void)odd_add(&set, 0, "F64", 8, 256, 1024, false, 8, 7);
	(void)odd_add(&set, last, "F64", 8, 256, 1024, false, 0, 7);
	host = odd_add(&set, -1, "F16", 2, 1000, 1000, false, 0, 8);
	(void)odd_add(&set, -1, "I64", 8, 11, 13, true, 0, 9);
	for (int i = 0; i < 4; i++) {
		if (i >= 2) { /* both segments have everything */
			odd_change(large, 2 * MIB + (uint64_t)i);
			odd_change(host, (uint64_t)i);
		}
		odd_save(c, path, &set);
		odd_load(c, path, &set, what);
		odd_load(reader, path, &set, what);
	}
	(void)unlink(path);
	ckpt_close(reader);
	ckpt_close(c);
	odd_free(&set);
}

void check_everything(const struct bench *b)
{
	static const struct stash_kind kinds[] = { { 1, 1 },    { 1, 7 },
						   { 2, 1000 }, { 4, 1024 },
						   { 8, 3 },    { 2, 4096 } };
	const char *kernels = "hash and stash";

	for (int d = 0; d < gpu_device_count(gpu) && d < BENCH_DEVICES_MAX;
	     d++) {
		if (!gpu_has_kernels(gpu)) {
			printf("SKIP: %s: built without nvcc\n", kernels);
			break;
		}
		check_hashes(d, b->small);
		for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
			check_stash(d, kinds[i], 0, b->small ? 30 : 200);
			check_stash(d, kinds[i], 300, b->small ? 30 : 200);
		}
		check_graph(d);
	}
	check_files(b, 0, "a file");
	if (gpu_has_kernels(gpu))
		check_files(b, CKPT_SKIP_UNCHANGED,
			    "a file, unchanged skipped");
	fflush(stdout);
}
