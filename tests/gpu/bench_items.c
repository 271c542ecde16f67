/*
 * bench_items.c - the rows of the table about the stash's small items, as the
 * experts of a layer have them: call by call, and replayed from a graph.
 *
 * Beside each are copies of the same bytes on the device, out and back, each
 * item one call; for items of nothing, of a row. What the host says about how
 * many rows there are it says before: replays read it on the device.
 */
#include <stdio.h>

#include "gpu/handle.h"
#include "store/base/scope.h"
#include "tests/gpu/gpu_bench.h"

#define ITEMS_MAX 16u
#define ROW_BYTES (UINT64_C(2) * 4096)
#define PAGE_ROWS 64u

struct items {
	struct rig *r;
	struct ckpt *c;
	struct ckpt_stash *stash;
	struct ckpt_stash_item *list[ITEMS_MAX];
	unsigned count;
	uint64_t max_rows;
	int64_t rows; /* in each now */
	int64_t *device_rows;
	uint32_t *flag;
};

static void items_open(struct rig *r, struct items *x)
{
	struct ckpt_stash_type type = { .element_bytes = 2,
					.row_elements = 4096 };
	struct ckpt_stash_options o = { .page_rows = PAGE_ROWS,
					.types = &type,
					.type_count = 1 };

	*x = (struct items){ .r = r,
			     .count = r->b->small ? 2 : ITEMS_MAX,
			     .max_rows = 1024 };
	while (x->count * x->max_rows * ROW_BYTES > r->t.bytes)
		x->count--;
	type.device_rows = x->count * (x->max_rows + PAGE_ROWS);
	must(ckpt_open(NULL, &x->c), "ckpt_open");
	must(ckpt_stash_new(x->c, &o, &x->stash), "stash");
	for (unsigned i = 0; i < x->count; i++)
		must(ckpt_stash_item_new(x->stash, type.element_bytes,
					 type.row_elements, x->max_rows,
					 &x->list[i]),
		     "stash item");
	x->device_rows = device_new(0, sizeof(*x->device_rows));
	x->flag = pinned_new(sizeof(*x->flag));
}

static void items_close(struct items *x)
{
	for (unsigned i = 0; i < x->count; i++)
		ckpt_stash_item_free(x->list[i]);
	ckpt_stash_free(x->stash);
	ckpt_close(x->c);
	gpu_free(gpu, 0, x->device_rows);
	gpu_host_free(gpu, x->flag);
}

static uint64_t place_of(const struct items *x, unsigned i)
{
	return i * x->max_rows * ROW_BYTES;
}

/* Forward and backward: all in, and out again in the other order. */
static void through_stash(struct items *x)
{
	struct rig *r = x->r;

	for (unsigned i = 0; i < x->count; i++)
		must(ckpt_stash_pack(x->list[i], r->t.data + place_of(x, i),
				     x->device_rows, r->stream->raw),
		     "pack");
	for (unsigned i = x->count; i-- > 0;)
		must(ckpt_stash_unpack(x->list[i], r->device + place_of(x, i),
				       r->stream->raw),
		     "unpack");
}

static void through_copies(struct items *x)
{
	struct rig *r = x->r;
	uint64_t bytes = (uint64_t)(x->rows > 0 ? x->rows : 1) * ROW_BYTES;

	for (unsigned way = 0; way < 2; way++)
		for (unsigned i = 0; i < x->count; i++)
			must(gpu_copy_d2d(r->stream, r->device + place_of(x, i),
					  r->t.data + place_of(x, i), bytes),
			     "device copy");
}

static void items_check(struct items *x, const char *what)
{
	struct rig *r = x->r;

	*x->flag = 7;
	must(ckpt_stash_overflowed(x->stash, x->flag, r->stream->raw),
	     "overflow");
	get(r->stream, r->pinned, r->device, place_of(x, x->count));
	if (*x->flag != 0)
		wrong("%s: the stash overflowed (%u)", what, *x->flag);
	for (unsigned i = 0; i < x->count; i++)
		if (!is_same(r->pinned + place_of(x, i),
			     r->t.truth + place_of(x, i),
			     (uint64_t)x->rows * ROW_BYTES, what))
			return;
}

static void clear(struct items *x)
{
	must(gpu_zero(x->r->stream, x->r->device, x->r->t.bytes), "zero");
	finish(x->r->stream);
}

static uint64_t time_calls(struct items *x, void (*through)(struct items *))
{
	timer_start(&x->r->timer);
	through(x);
	timer_stop(&x->r->timer);
	return timer_ns(&x->r->timer);
}

/* --- graphs ------------------------------------------------------------------
 */

struct replay {
	void *graph, *exec;
};

static void replay_open(struct items *x, struct replay *p,
			void (*through)(struct items *))
{
	SCOPED(gpu_leave) struct entered in = { 0 };

	must(gpu_enter(gpu, 0, &in), "device");
	said(more.cuStreamBeginCapture(x->r->stream->raw, 0), "capture");
	through(x);
	said(more.cuStreamEndCapture(x->r->stream->raw, &p->graph), "capture");
	said(more.cuGraphInstantiate(&p->exec, p->graph, 0), "graph");
}

static void replay_close(struct replay *p)
{
	SCOPED(gpu_leave) struct entered in = { 0 };

	must(gpu_enter(gpu, 0, &in), "device");
	said(more.cuGraphExecDestroy(p->exec), "graph");
	said(more.cuGraphDestroy(p->graph), "graph");
}

static uint64_t time_replay(struct items *x, struct replay *p)
{
	timer_start(&x->r->timer);
	{
		SCOPED(gpu_leave) struct entered in = { 0 };

		must(gpu_enter(gpu, 0, &in), "device");
		said(more.cuGraphLaunch(p->exec, x->r->stream->raw), "graph");
	}
	timer_stop(&x->r->timer);
	return timer_ns(&x->r->timer);
}

/* --- the rows ----------------------------------------------------------------
 */

static void items_rounds(struct items *x, int64_t rows, const char *size)
{
	char names[2][64];
	struct row calls = { .name = names[0] }, replays = { .name = names[1] };
	struct replay ours, theirs;

	(void)snprintf(names[0], sizeof(names[0]),
		       "stash, %u items of %s (device copies)", x->count, size);
	(void)snprintf(names[1], sizeof(names[1]),
		       "stash, items of %s, graph replay (copies')", size);
	x->rows = rows;
	put(x->r->stream, x->device_rows, &x->rows, sizeof(x->rows));
	replay_open(x, &ours, through_stash);
	replay_open(x, &theirs, through_copies);
	for (unsigned i = 0; i <= x->r->b->rounds; i++) {
		uint64_t ns[4];

		clear(x);
		ns[0] = time_calls(x, through_stash);
		items_check(x, calls.name);
		ns[1] = time_calls(x, through_copies);
		clear(x);
		ns[2] = time_replay(x, &ours);
		items_check(x, replays.name);
		ns[3] = time_replay(x, &theirs);
		if (i == 0)
			continue;
		row_add(&calls, ns[0], ns[1]);
		row_add(&replays, ns[2], ns[3]);
	}
	replay_close(&theirs);
	replay_close(&ours);
	row_print_times(&calls, AT_LEAST, NO_LIMIT);
	row_print_times(&replays, AT_LEAST, NO_LIMIT);
}

void row_items(struct rig *r)
{
	static const struct {
		const char *name;
		int64_t rows;
	} sizes[] = { { "0", 0 },        { "8 KiB", 1 },   { "64 KiB", 8 },
		      { "512 KiB", 64 }, { "2 MiB", 256 }, { "8 MiB", 1024 } };
	struct items x;

	if (!gpu_has_kernels(gpu)) {
		row_skip("stash, items of 0 to 8 MiB", "built without nvcc");
		return;
	}
	items_open(r, &x);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
		items_rounds(&x, sizes[i].rows, sizes[i].name);
	items_close(&x);
}
