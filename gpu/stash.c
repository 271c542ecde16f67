/*
 * stash.c - lay the memory of a paged stash out, and launch its kernels; in
 * host memory the same functions are called at once. ckpt_gpu.h has what is
 * promised, stash_rows.h how it works.
 *
 * Pack, unpack and reset enqueue kernels and nothing else: no allocation, no
 * copy, no waiting. So a graph can be captured of them.
 */
#include "gpu/stash.h"

#include <errno.h>
#include <stdlib.h>

#include "store/base/scope.h"

#define PAGE_ROWS_DEFAULT 64u
#define RESET_THREADS 256u
#define RESET_BLOCKS 64u
/* A few times what runs at once, so that all finish at about the same time. */
#define COPY_BLOCKS_MAX 4096u

static const struct stash_lane only_lane = { 0, 1, 0, 1 };

/* --- Streams ---------------------------------------------------------------
 */

/* 0 and s->stream: the caller's; nothing is asked of the driver for it. */
static int stash_use(struct ckpt_stash *s, void *raw)
{
	struct gpu_stream *wrapped;
	int rc = ckpt_check_process(s->memory.c);

	if (rc < 0 || !s->memory.g || (s->stream && s->stream_raw == raw))
		return rc;
	rc = gpu_stream_wrap(s->memory.g, s->memory.device, raw, &wrapped);
	if (rc < 0)
		return rc;
	gpu_stream_free(s->stream);
	s->stream = wrapped;
	s->stream_raw = raw;
	return 0;
}

/* --- Types -----------------------------------------------------------------
 */

/*
 * What a type needs: -EINVAL if it is none, -EOVERFLOW if a number that the
 * kernels count with would not hold it.
 */
static int type_measure(const struct ckpt_stash *s,
			const struct ckpt_stash_type *t, struct stash_view *v)
{
	uint64_t rows[STASH_TIERS] = { t->device_rows, t->host_rows };
	uint64_t units, all;

	if ((t->element_bytes != 1 && t->element_bytes != 2 &&
	     t->element_bytes != 4 && t->element_bytes != 8) ||
	    t->row_elements == 0)
		return ckpt_say(-EINVAL,
				"rows of %u elements of %u bytes: elements "
				"have 1, 2, 4 or 8 bytes",
				t->row_elements, t->element_bytes);
	v->page_rows = s->page_rows;
	v->row_bytes = (uint64_t)t->element_bytes * t->row_elements;
	if (__builtin_mul_overflow(v->row_bytes, v->page_rows,
				   &v->page_bytes) ||
	    v->page_bytes > UINT32_MAX / 2)
		return ckpt_say(-EOVERFLOW, "pages of %u rows of %llu bytes",
				v->page_rows, (unsigned long long)v->row_bytes);
	v->stride = (v->page_bytes + STASH_PAGE_ALIGN - 1) / STASH_PAGE_ALIGN *
		    STASH_PAGE_ALIGN;
	units = (v->page_bytes + STASH_UNIT_BYTES - 1) / STASH_UNIT_BYTES;
	for (unsigned i = 0; i < STASH_TIERS; i++) {
		uint64_t pages =
			rows[i] / v->page_rows + (rows[i] % v->page_rows > 0);

		v->capacity[i] = pages;
		if (__builtin_mul_overflow(pages, units, &all) ||
		    all > UINT32_MAX ||
		    __builtin_mul_overflow(pages, v->stride, &all))
			return ckpt_say(-EOVERFLOW,
					"room for %llu rows of %llu bytes",
					(unsigned long long)rows[i],
					(unsigned long long)v->row_bytes);
	}
	v->page_units = (uint32_t)units;
	return 0;
}

static int type_alloc(struct ckpt_stash *s, struct stash_type *t)
{
	uint64_t bytes = t->view.capacity[0] * t->view.stride;
	int rc = 0;

	t->host_bytes = t->view.capacity[1] * t->view.stride;
	if (bytes > 0)
		rc = stash_alloc(&s->memory, bytes, &t->pages);
	if (rc == 0 && t->host_bytes > 0)
		rc = stash_host_alloc(&s->memory, t->host_bytes,
				      &t->host_pages);
	if (rc < 0)
		return rc;
	t->view.pages[0] = t->pages;
	t->view.pages[1] = t->host_pages;
	return 0;
}

static const struct stash_type *type_find(const struct ckpt_stash *s,
					  uint32_t element_bytes,
					  uint32_t row_elements)
{
	for (size_t i = 0; i < s->type_count; i++)
		if (s->types[i].element_bytes == element_bytes &&
		    s->types[i].row_elements == row_elements)
			return &s->types[i];
	return NULL;
}

/* NULL, with a sentence: -EINVAL. */
static const struct stash_type *type_get(const struct ckpt_stash *s,
					 uint32_t element_bytes,
					 uint32_t row_elements)
{
	const struct stash_type *t = type_find(s, element_bytes, row_elements);

	if (!t)
		(void)ckpt_say(-EINVAL,
			       "the stash has no rows of %u elements of %u "
			       "bytes",
			       row_elements, element_bytes);
	return t;
}

/* --- The stash -------------------------------------------------------------
 */

/* Where the next part begins. */
static uint64_t control_add(uint64_t at, uint64_t len)
{
	return (at + len + STASH_ALIGN - 1) / STASH_ALIGN * STASH_ALIGN;
}

/* Point the views into control, whose layout this is; returns its size. */
static uint64_t control_lay_out(struct ckpt_stash *s, uint8_t *control)
{
	uint64_t at = 0;

#define PLACE(slot, len)                                 \
	do {                                             \
		if (control)                             \
			(slot) = (void *)(control + at); \
		at = control_add(at, (len));             \
	} while (0)
	PLACE(s->views, s->type_count * sizeof(*s->views));
	PLACE(s->any_overflow, sizeof(*s->any_overflow));
	for (size_t i = 0; i < s->type_count; i++) {
		struct stash_view *v = &s->types[i].view;

		v->any_overflow = s->any_overflow;
		PLACE(v->ring, sizeof(*v->ring));
		for (unsigned t = 0; t < STASH_TIERS; t++)
			PLACE(v->free_pages[t],
			      v->capacity[t] * sizeof(uint32_t));
	}
#undef PLACE
	return at;
}

static int stash_enqueue_reset(struct ckpt_stash *s, struct gpu_stream *on)
{
	uint32_t count = (uint32_t)s->type_count;
	void *args[] = { &s->views, &count };

	if (s->memory.g)
		return gpu_launch(on, "stash_reset", RESET_BLOCKS,
				  RESET_THREADS, args);
	stash_reset(s->views, count, 0, 1);
	return 0;
}

static int stash_fill_control(struct ckpt_stash *s)
{
	struct stash_view views[STASH_TYPES_MAX];
	uint64_t size = control_lay_out(s, NULL);
	struct gpu_stream *own;
	int rc = stash_alloc(&s->memory, size, &s->control);

	if (rc < 0)
		return rc;
	(void)control_lay_out(s, s->control);
	for (size_t i = 0; i < s->type_count; i++)
		views[i] = s->types[i].view;
	rc = stash_put(&s->memory, s->control, size, views,
		       s->type_count * sizeof(*views));
	if (rc < 0 || !s->memory.g)
		return rc < 0 ? rc : stash_enqueue_reset(s, NULL);
	/* Waits, and so loads the kernels before anything is captured. */
	rc = gpu_stream_new(s->memory.g, s->memory.device, &own);
	if (rc < 0)
		return rc;
	rc = stash_enqueue_reset(s, own);
	if (rc == 0)
		rc = gpu_stream_sync(own);
	gpu_stream_free(own);
	return rc;
}

static int stash_check(struct ckpt *c, const struct ckpt_stash_options *o)
{
	if (o->type_count == 0 || o->type_count > STASH_TYPES_MAX)
		return ckpt_say(-EINVAL, "%zu types of rows: give 1 to %u",
				o->type_count, STASH_TYPES_MAX);
	if (o->device == CKPT_DEVICE_HOST)
		return 0;
	if (!ckpt_driver(c))
		return ckpt_say(-ENODEV, "no stash on device %d: %s", o->device,
				c->gpu_state);
	if (!gpu_has_kernels(c->gpu))
		return ckpt_say(-ENODEV,
				"no stash on device %d: this library was "
				"built without nvcc",
				o->device);
	return 0;
}

static void scope_stash_free(struct ckpt_stash **s)
{
	ckpt_stash_free(*s);
}

int ckpt_stash_new(struct ckpt *c, const struct ckpt_stash_options *o,
		   struct ckpt_stash **ret_stash)
{
	SCOPED(scope_stash_free) struct ckpt_stash *s = NULL;
	void *pinned;
	int rc = ckpt_check_process(c);

	if (rc == 0)
		rc = stash_check(c, o);
	if (rc < 0)
		return rc;
	s = calloc(1, sizeof(*s));
	if (!s)
		return ckpt_say(-ENOMEM, "no memory");
	s->memory.c = c;
	s->memory.g = o->device == CKPT_DEVICE_HOST ? NULL : c->gpu;
	s->memory.device = o->device;
	s->page_rows = o->page_rows ? o->page_rows : PAGE_ROWS_DEFAULT;
	for (size_t i = 0; i < o->type_count; i++) {
		const struct ckpt_stash_type *given = &o->types[i];
		struct stash_type *t = &s->types[i];

		if (type_find(s, given->element_bytes, given->row_elements))
			return ckpt_say(-EINVAL,
					"rows of %u elements of %u bytes are "
					"there twice",
					given->row_elements,
					given->element_bytes);
		t->element_bytes = given->element_bytes;
		t->row_elements = given->row_elements;
		s->type_count++;
		rc = type_measure(s, given, &t->view);
		if (rc == 0)
			rc = type_alloc(s, t);
		if (rc < 0)
			return rc;
	}
	rc = stash_host_alloc(&s->memory, sizeof(*s->pinned_ring), &pinned);
	if (rc < 0)
		return rc;
	s->pinned_ring = pinned;
	rc = stash_fill_control(s);
	if (rc < 0)
		return rc;
	*ret_stash = TAKE(s);
	return 0;
}

void ckpt_stash_free(struct ckpt_stash *s)
{
	if (!s)
		return;
	/* In a forked child none of the device's side is there. */
	if (!s->memory.g || ckpt_check_process(s->memory.c) == 0) {
		for (size_t i = 0; i < s->type_count; i++) {
			struct stash_type *t = &s->types[i];

			stash_unalloc(&s->memory, t->pages);
			stash_host_unalloc(&s->memory, t->host_pages,
					   t->host_bytes);
		}
		stash_unalloc(&s->memory, s->control);
		stash_host_unalloc(&s->memory, s->pinned_ring,
				   sizeof(*s->pinned_ring));
		gpu_stream_free(s->stream);
	}
	free(s);
}

/* --- Items -----------------------------------------------------------------
 */

int ckpt_stash_item_new(struct ckpt_stash *s, uint32_t element_bytes,
			uint32_t row_elements, uint64_t max_rows,
			struct ckpt_stash_item **ret_item)
{
	SCOPED(scope_free) struct ckpt_stash_item *i = NULL;
	const struct stash_view *v;
	uint64_t pages, blocks, size;
	void *packed;
	int rc = ckpt_check_process(s->memory.c);

	i = calloc(1, sizeof(*i));
	if (!i)
		return ckpt_say(-ENOMEM, "no memory");
	if (rc < 0)
		return rc;
	i->type = type_get(s, element_bytes, row_elements);
	if (!i->type)
		return -EINVAL;
	v = &i->type->view;
	i->s = s;
	i->view.max_rows = max_rows;
	/* What is larger than both tiers never gets a page. */
	pages = max_rows / v->page_rows + (max_rows % v->page_rows > 0);
	if (pages > v->capacity[0] && pages > v->capacity[1])
		pages = v->capacity[0] > v->capacity[1] ? v->capacity[0] :
							  v->capacity[1];
	blocks = (pages * v->page_units * WARP_LANES + STASH_COPY_THREADS - 1) /
		 STASH_COPY_THREADS;
	i->grid = blocks == 0              ? 1 :
		  blocks < COPY_BLOCKS_MAX ? (unsigned)blocks :
					     COPY_BLOCKS_MAX;
	size = sizeof(*i->view.packed) + pages * sizeof(*i->view.record);
	rc = stash_alloc(&s->memory, size, &packed);
	if (rc < 0)
		return rc;
	rc = stash_put(&s->memory, packed, size, NULL, 0);
	if (rc < 0) {
		stash_unalloc(&s->memory, packed);
		return rc;
	}
	i->view.packed = packed;
	i->view.record = (void *)(i->view.packed + 1);
	*ret_item = TAKE(i);
	return 0;
}

void ckpt_stash_item_free(struct ckpt_stash_item *i)
{
	if (!i)
		return;
	if (!i->s->memory.g || ckpt_check_process(i->s->memory.c) == 0)
		stash_unalloc(&i->s->memory, i->view.packed);
	free(i);
}

/* The kernels' arguments are copied by the launch, and not written to. */
#define ARGUMENT(p) ((void *)(uintptr_t)(p))

int ckpt_stash_pack(struct ckpt_stash_item *i, const void *data,
		    const int64_t *rows, void *stream)
{
	struct ckpt_stash *s = i->s;
	const struct stash_view *v = &i->type->view;
	void *plan[] = { ARGUMENT(v), &i->view, &rows };
	void *copy[] = { ARGUMENT(v), &i->view, &data };
	int rc = stash_use(s, stream);

	if (rc < 0)
		return rc;
	if (!s->memory.g) {
		stash_plan_pack(v, &i->view, rows);
		stash_copy_in(v, &i->view, data, only_lane);
		return 0;
	}
	rc = gpu_launch(s->stream, "stash_plan_pack", 1, 1, plan);
	if (rc < 0)
		return rc;
	return gpu_launch(s->stream, "stash_copy_in", i->grid,
			  STASH_COPY_THREADS, copy);
}

int ckpt_stash_unpack(struct ckpt_stash_item *i, void *data, void *stream)
{
	struct ckpt_stash *s = i->s;
	const struct stash_view *v = &i->type->view;
	void *plan[] = { ARGUMENT(v), &i->view };
	void *copy[] = { ARGUMENT(v), &i->view, &data };
	int rc = stash_use(s, stream);

	if (rc < 0)
		return rc;
	if (!s->memory.g) {
		stash_plan_unpack(v, &i->view);
		stash_copy_out(v, &i->view, data, only_lane);
		return 0;
	}
	rc = gpu_launch(s->stream, "stash_plan_unpack", 1, 1, plan);
	if (rc < 0)
		return rc;
	return gpu_launch(s->stream, "stash_copy_out", i->grid,
			  STASH_COPY_THREADS, copy);
}

int ckpt_stash_reset(struct ckpt_stash *s, void *stream)
{
	int rc = stash_use(s, stream);

	return rc < 0 ? rc : stash_enqueue_reset(s, s->stream);
}

/* --- Asking ----------------------------------------------------------------
 */

int ckpt_stash_get_state(struct ckpt_stash *s, uint32_t element_bytes,
			 uint32_t row_elements, void *stream,
			 struct ckpt_stash_state *ret)
{
	const struct stash_type *t;
	const struct stash_ring *r;
	int rc = stash_use(s, stream);

	if (rc < 0)
		return rc;
	t = type_get(s, element_bytes, row_elements);
	if (!t)
		return -EINVAL;
	r = t->view.ring;
	if (s->memory.g) {
		rc = gpu_copy_d2h(s->stream, s->pinned_ring, r, sizeof(*r));
		if (rc == 0)
			rc = gpu_stream_sync(s->stream);
		if (rc < 0)
			return rc;
		r = s->pinned_ring;
	}
	*ret = (struct ckpt_stash_state){
		.head = { r->head[0], r->head[1] },
		.tail = { r->tail[0], r->tail[1] },
		.capacity = { t->view.capacity[0], t->view.capacity[1] },
		.overflow = r->overflow,
		.host_spill = r->host_spill,
	};
	return 0;
}

int ckpt_stash_overflowed(struct ckpt_stash *s, uint32_t *flag, void *stream)
{
	int rc = stash_use(s, stream);

	if (rc < 0)
		return rc;
	if (!s->memory.g) {
		*flag = *s->any_overflow;
		return 0;
	}
	return gpu_copy_d2h(s->stream, flag, s->any_overflow, sizeof(*flag));
}
