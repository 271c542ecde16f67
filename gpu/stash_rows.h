/*
 * stash_rows.h - the paged stash where its rows are: what its kernels do, and,
 * for a stash in host memory, what the calls do themselves.
 *
 * Packing and unpacking are two launches each. The first is one thread: it
 * alone reads and moves the counters, and leaves in the item what it decided.
 * The second copies, with as many threads as the device likes; they read the
 * decision and never a counter, so none can see one that has moved already.
 *
 *     pages: stride bytes each; page_rows rows lie in a page one after the
 *     other, as they do in the caller's tensor. So a page is one copy.
 *
 *     free_pages: a ring of page numbers. What is between head and tail
 *     (modulo capacity) is free; both only grow.
 */
#ifndef GPU_STASH_ROWS_H
#define GPU_STASH_ROWS_H

#include <string.h>

#include "gpu/host_device.h"

#define STASH_TIERS 2u /* 0: the device, 1: pinned host memory */
/* What a warp copies at a time, of one page. */
#define STASH_UNIT_BYTES 8192u
/* A multiple of the widest copy, for the start of every page. */
#define STASH_PAGE_ALIGN 16u
#define STASH_COPY_THREADS 256u
/*
 * Counters are taken back by a multiple of the capacity before they reach
 * this: a position is counter % capacity, which a wrap at 2^64 would change.
 */
#define STASH_COUNTER_MAX (UINT64_C(1) << 63)

/* What changes, of one type. */
struct stash_ring {
	uint64_t head[STASH_TIERS], tail[STASH_TIERS]; /* pages */
	uint64_t epoch; /* resets so far: what was packed before is gone */
	uint32_t overflow, host_spill;
};

/* What does not change, of one type. */
struct stash_view {
	struct stash_ring *ring;
	uint32_t *any_overflow; /* of all types */
	uint32_t *free_pages[STASH_TIERS];
	uint8_t *pages[STASH_TIERS];
	uint64_t capacity[STASH_TIERS]; /* pages */
	uint64_t row_bytes;
	uint64_t page_bytes; /* of rows */
	uint64_t stride; /* page_bytes, rounded up to STASH_PAGE_ALIGN */
	uint32_t page_rows;
	uint32_t page_units; /* STASH_UNIT_BYTES each, the last may be less */
};

/* What became of an item's rows. */
struct stash_packed {
	uint64_t epoch; /* as the ring's: it is packed. 0: it is not */
	uint64_t rows;
	uint32_t spill; /* the tier; 1 also when there was no room */
	/* For the copy of the same call: */
	uint32_t copy_pages; /* 0: nothing to do */
	uint64_t copy_bytes;
	uint64_t copy_from; /* position in free_pages, below the capacity */
};

struct stash_item_view {
	struct stash_packed *packed;
	uint32_t *record; /* the item's pages, in the order of its rows */
	uint64_t max_rows;
};

/* --- One thread: decide, and move the counters -----------------------------
 */

HOST_DEVICE uint64_t stash_pages_of(const struct stash_view *v, uint64_t rows)
{
	return (rows + v->page_rows - 1) / v->page_rows;
}

HOST_DEVICE void stash_keep_counters_small(const struct stash_view *v)
{
	struct stash_ring *r = v->ring;

	for (unsigned t = 0; t < STASH_TIERS; t++)
		if (r->head[t] >= STASH_COUNTER_MAX) {
			uint64_t less = STASH_COUNTER_MAX -
					STASH_COUNTER_MAX % v->capacity[t];

			r->head[t] -= less;
			r->tail[t] -= less;
		}
}

/* Say what the copy has to do. */
HOST_DEVICE void stash_plan_copy(const struct stash_view *v,
				 struct stash_packed *p, uint64_t counter,
				 uint64_t pages)
{
	p->copy_pages = (uint32_t)pages;
	p->copy_bytes = p->rows * v->row_bytes;
	p->copy_from = pages > 0 ? counter % v->capacity[p->spill] : 0;
}

/*
 * Find room in one tier for all of the rows, or set the flag. Rows of an item
 * that is still packed have no place to be noted: as bad as an overflow.
 */
HOST_DEVICE void stash_plan_pack(const struct stash_view *v,
				 const struct stash_item_view *item,
				 const int64_t *rows)
{
	struct stash_ring *r = v->ring;
	struct stash_packed *p = item->packed;
	int64_t n = *rows;
	uint64_t need;
	unsigned tier = 0;

	p->copy_pages = 0;
	if (r->overflow)
		return;
	stash_keep_counters_small(v);
	need = stash_pages_of(v, n < 0 ? 0 : (uint64_t)n);
	while (tier < STASH_TIERS && r->tail[tier] - r->head[tier] < need)
		tier++;
	if (n < 0 || (uint64_t)n > item->max_rows || tier == STASH_TIERS ||
	    p->epoch == r->epoch) {
		p->spill = 1;
		r->overflow = 1;
		*v->any_overflow = 1;
		return;
	}
	p->epoch = r->epoch;
	p->rows = (uint64_t)n;
	p->spill = tier;
	stash_plan_copy(v, p, r->head[tier], need);
	r->head[tier] += need;
	if (tier > 0)
		r->host_spill = 1;
}

/* Once for each pack: afterwards the pages are somebody else's. */
HOST_DEVICE void stash_plan_unpack(const struct stash_view *v,
				   const struct stash_item_view *item)
{
	struct stash_ring *r = v->ring;
	struct stash_packed *p = item->packed;
	uint64_t need;

	p->copy_pages = 0;
	if (r->overflow || p->epoch != r->epoch)
		return;
	stash_keep_counters_small(v);
	need = stash_pages_of(v, p->rows);
	p->epoch = 0;
	stash_plan_copy(v, p, r->tail[p->spill], need);
	r->tail[p->spill] += need;
}

/* --- Many threads: copy ----------------------------------------------------
 */

/* A lane's place among all that copy. A host has one warp of one lane. */
struct stash_lane {
	uint32_t warp, warps;
	uint32_t lane, lanes;
};

#ifdef __CUDACC__
#define STASH_ALIAS
#else
#define STASH_ALIAS __attribute__((may_alias))
#endif

struct STASH_ALIAS stash_vector {
	uint64_t word[2];
} __attribute__((aligned(16)));

HOST_DEVICE struct stash_vector stash_load(const struct stash_vector *p)
{
#ifdef __CUDA_ARCH__
	ulonglong2 v = __ldcs((const ulonglong2 *)p);
	struct stash_vector r;

	r.word[0] = v.x;
	r.word[1] = v.y;
	return r;
#else
	return *p;
#endif
}

HOST_DEVICE void stash_store(struct stash_vector *p, struct stash_vector v)
{
#ifdef __CUDA_ARCH__
	__stcs((ulonglong2 *)p, make_ulonglong2(v.word[0], v.word[1]));
#else
	*p = v;
#endif
}

/* This lane's part of it; four loads are under way before the first store. */
HOST_DEVICE void stash_copy_vectors(struct stash_vector *dst,
				    const struct stash_vector *src, uint32_t n,
				    uint32_t lane, uint32_t lanes)
{
	uint32_t i = lane;

	for (; i + 3 * lanes < n; i += 4 * lanes) {
		struct stash_vector a = stash_load(src + i);
		struct stash_vector b = stash_load(src + i + lanes);
		struct stash_vector c = stash_load(src + i + 2 * lanes);
		struct stash_vector d = stash_load(src + i + 3 * lanes);

		stash_store(dst + i, a);
		stash_store(dst + i + lanes, b);
		stash_store(dst + i + 2 * lanes, c);
		stash_store(dst + i + 3 * lanes, d);
	}
	for (; i < n; i += lanes)
		stash_store(dst + i, stash_load(src + i));
}

/*
 * As wide as `rows` allows, which is the caller's of the two; a page allows
 * everything, and is not asked: its number may still be on its way while the
 * first loads of the rows begin. What is left over goes byte by byte.
 */
HOST_DEVICE void stash_copy_bytes(uint8_t *dst, const uint8_t *src,
				  uint32_t len, const uint8_t *rows,
				  struct stash_lane l)
{
	typedef uint64_t STASH_ALIAS word64;
	typedef uint32_t STASH_ALIAS word32;
	typedef uint16_t STASH_ALIAS word16;
	uint32_t lane = l.lane, lanes = l.lanes, done = 0;
	uintptr_t at = (uintptr_t)rows;

	if (lanes == 1) {
		memcpy(dst, src, len);
		return;
	}
	if (at % 16 == 0) {
		stash_copy_vectors(
			(struct stash_vector *)(void *)dst,
			(const struct stash_vector *)(const void *)src,
			len / 16, lane, lanes);
		done = len / 16 * 16;
	} else if (at % 8 == 0) {
		for (uint32_t i = lane; i < len / 8; i += lanes)
			((word64 *)(void *)dst)[i] =
				((const word64 *)(const void *)src)[i];
		done = len / 8 * 8;
	} else if (at % 4 == 0) {
		for (uint32_t i = lane; i < len / 4; i += lanes)
			((word32 *)(void *)dst)[i] =
				((const word32 *)(const void *)src)[i];
		done = len / 4 * 4;
	} else if (at % 2 == 0) {
		for (uint32_t i = lane; i < len / 2; i += lanes)
			((word16 *)(void *)dst)[i] =
				((const word16 *)(const void *)src)[i];
		done = len / 2 * 2;
	}
	for (uint32_t i = done + lane; i < len; i += lanes)
		dst[i] = src[i];
}

/* Of unit u: its slot (which page of the item) and which bytes of that. */
struct stash_unit {
	uint32_t slot;
	uint32_t from, len; /* in the page; len 0: past the last row */
};

HOST_DEVICE struct stash_unit stash_unit_of(const struct stash_view *v,
					    const struct stash_packed *p,
					    uint32_t u)
{
	struct stash_unit unit;
	uint64_t at, end;

	unit.slot = u / v->page_units;
	unit.from = u % v->page_units * STASH_UNIT_BYTES;
	at = unit.slot * v->page_bytes + unit.from;
	end = (unit.slot + UINT64_C(1)) * v->page_bytes;
	if (end > p->copy_bytes)
		end = p->copy_bytes;
	unit.len = at >= end                   ? 0 :
		   end - at < STASH_UNIT_BYTES ? (uint32_t)(end - at) :
						 STASH_UNIT_BYTES;
	return unit;
}

HOST_DEVICE uint64_t stash_position(const struct stash_view *v,
				    const struct stash_packed *p, uint32_t slot)
{
	uint64_t position = p->copy_from + slot;

	return position < v->capacity[p->spill] ?
		       position :
		       position - v->capacity[p->spill];
}

/* Rows into pages; who copies a page's first bytes notes its number. */
HOST_DEVICE void stash_copy_in(const struct stash_view *v,
			       const struct stash_item_view *item,
			       const uint8_t *data, struct stash_lane l)
{
	const struct stash_packed p = *item->packed;
	uint32_t units = p.copy_pages * v->page_units;

	for (uint32_t u = l.warp; u < units; u += l.warps) {
		struct stash_unit unit = stash_unit_of(v, &p, u);
		uint32_t page = v->free_pages[p.spill]
					     [stash_position(v, &p, unit.slot)];
		const uint8_t *rows =
			data + unit.slot * v->page_bytes + unit.from;
		uint8_t *in_page =
			v->pages[p.spill] + page * v->stride + unit.from;

		stash_copy_bytes(in_page, rows, unit.len, rows, l);
		if (unit.from == 0 && l.lane == 0)
			item->record[unit.slot] = page;
	}
}

/* And out; who copies a page's first bytes puts it back into the ring. */
HOST_DEVICE void stash_copy_out(const struct stash_view *v,
				const struct stash_item_view *item,
				uint8_t *data, struct stash_lane l)
{
	const struct stash_packed p = *item->packed;
	uint32_t units = p.copy_pages * v->page_units;

	for (uint32_t u = l.warp; u < units; u += l.warps) {
		struct stash_unit unit = stash_unit_of(v, &p, u);
		uint32_t page = item->record[unit.slot];
		uint8_t *rows = data + unit.slot * v->page_bytes + unit.from;
		const uint8_t *in_page =
			v->pages[p.spill] + page * v->stride + unit.from;

		stash_copy_bytes(rows, in_page, unit.len, rows, l);
		if (unit.from == 0 && l.lane == 0)
			v->free_pages[p.spill]
				     [stash_position(v, &p, unit.slot)] = page;
	}
}

/* Everything is free. Thread number `thread` of `threads`. */
HOST_DEVICE void stash_reset(const struct stash_view *views, uint32_t count,
			     uint32_t thread, uint32_t threads)
{
	for (uint32_t i = 0; i < count; i++) {
		const struct stash_view *v = &views[i];

		for (unsigned t = 0; t < STASH_TIERS; t++)
			for (uint64_t n = thread; n < v->capacity[t];
			     n += threads)
				v->free_pages[t][n] = (uint32_t)n;
		if (thread != 0)
			continue;
		for (unsigned t = 0; t < STASH_TIERS; t++) {
			v->ring->head[t] = 0;
			v->ring->tail[t] = v->capacity[t];
		}
		v->ring->epoch++;
		v->ring->overflow = 0;
		v->ring->host_spill = 0;
		*v->any_overflow = 0;
	}
}

#endif
