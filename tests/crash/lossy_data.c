#include "tests/crash/lossy_data.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/scope.h"

/*
 * A block may stand in both states of a slot; it is then never written in
 * place. References are counted, so that a sync only counts and copies
 * nothing.
 */
struct lossy_block {
	unsigned refs;
	uint8_t bytes[LOSSY_BLOCK_BYTES];
};

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static void block_put(struct lossy_block *b, struct lossy_room *room)
{
	if (!b)
		return;
	CHECK(b->refs > 0);
	b->refs--;
	if (b->refs > 0)
		return;
	CHECK(room->blocks > 0);
	room->blocks--;
	free(b);
}

static struct lossy_block *block_get(struct lossy_block *b)
{
	if (b)
		b->refs++;
	return b;
}

static struct lossy_block *block_new(struct lossy_room *room)
{
	struct lossy_block *b;

	if (room->blocks >= room->blocks_max)
		return NULL;
	b = calloc(1, sizeof(*b));
	if (!b)
		return NULL;
	b->refs = 1;
	room->blocks++;
	return b;
}

void lossy_data_init(struct lossy_data *d)
{
	memset(d, 0, sizeof(*d));
	d->dirty_from = SIZE_MAX;
}

void lossy_data_release(struct lossy_data *d, struct lossy_room *room)
{
	for (size_t i = 0; i < d->slot_count; i++) {
		block_put(d->slots[i].now, room);
		block_put(d->slots[i].safe, room);
	}
	free(d->slots);
	lossy_data_init(d);
}

static int slots_grow(struct lossy_data *d, size_t count)
{
	size_t room = d->slot_room ? d->slot_room : 8;
	struct lossy_slot *slots;

	if (count <= d->slot_count)
		return 0;
	while (room < count)
		room *= 2;
	if (room > d->slot_room) {
		slots = realloc(d->slots, room * sizeof(*slots));
		if (!slots)
			return -ENOMEM;
		d->slots = slots;
		d->slot_room = room;
	}
	memset(d->slots + d->slot_count, 0,
	       (count - d->slot_count) * sizeof(*d->slots));
	d->slot_count = count;
	return 0;
}

static void slot_dirty(struct lossy_data *d, size_t i)
{
	if (i < d->dirty_from)
		d->dirty_from = i;
	if (i >= d->dirty_to)
		d->dirty_to = i + 1;
}

/* Takes over the caller's reference to b. */
static void slot_set(struct lossy_data *d, struct lossy_room *room, size_t i,
		     struct lossy_block *b)
{
	struct lossy_slot *s = &d->slots[i];

	if (s->now)
		d->blocks_now--;
	if (b)
		d->blocks_now++;
	block_put(s->now, room);
	s->now = b;
	slot_dirty(d, i);
}

/* A block that only the present state refers to; NULL: no room. */
static struct lossy_block *slot_own(struct lossy_data *d,
				    struct lossy_room *room, size_t i)
{
	struct lossy_block *old = d->slots[i].now;
	struct lossy_block *b;

	if (old && old->refs == 1) {
		slot_dirty(d, i);
		return old;
	}
	b = block_new(room);
	if (!b)
		return NULL;
	if (old)
		memcpy(b->bytes, old->bytes, sizeof(b->bytes));
	slot_set(d, room, i, b);
	return b;
}

int lossy_data_write(struct lossy_data *d, struct lossy_room *room,
		     const void *buf, size_t len, uint64_t off)
{
	const uint8_t *src = buf;
	size_t first = (size_t)(off / LOSSY_BLOCK_BYTES);
	size_t last;
	int rc;

	if (len == 0)
		return 0;
	if (off > LOSSY_FILE_BYTES_MAX || len > LOSSY_FILE_BYTES_MAX - off)
		return -EFBIG;
	last = (size_t)((off + len - 1) / LOSSY_BLOCK_BYTES);
	/* Every block might need a copy: refuse before the first is changed. */
	if (last - first + 1 > room->blocks_max - room->blocks)
		return -ENOSPC;
	rc = slots_grow(d, last + 1);
	if (rc < 0)
		return rc;

	for (size_t i = first; i <= last; i++) {
		size_t at = i == first ? off % LOSSY_BLOCK_BYTES : 0;
		size_t n = (size_t)min_u64(LOSSY_BLOCK_BYTES - at, len);
		struct lossy_block *b = slot_own(d, room, i);

		if (!b)
			return -ENOMEM;
		memcpy(b->bytes + at, src, n);
		src += n;
		len -= n;
		off += n;
	}
	if (off > d->size_now)
		d->size_now = off;
	return 0;
}

size_t lossy_data_read(const struct lossy_data *d, void *buf, size_t len,
		       uint64_t off)
{
	uint8_t *dst = buf;
	size_t done = 0;

	if (off >= d->size_now)
		return 0;
	len = (size_t)min_u64(len, d->size_now - off);
	while (done < len) {
		size_t i = (size_t)((off + done) / LOSSY_BLOCK_BYTES);
		size_t at = (off + done) % LOSSY_BLOCK_BYTES;
		size_t n = (size_t)min_u64(LOSSY_BLOCK_BYTES - at, len - done);
		const struct lossy_block *b =
			i < d->slot_count ? d->slots[i].now : NULL;

		if (b)
			memcpy(dst + done, b->bytes + at, n);
		else
			memset(dst + done, 0, n);
		done += n;
	}
	return done;
}

int lossy_data_zero(struct lossy_data *d, struct lossy_room *room, uint64_t off,
		    uint64_t len)
{
	uint64_t end = (uint64_t)d->slot_count * LOSSY_BLOCK_BYTES;

	if (off >= end)
		return 0;
	end = off + min_u64(len, end - off);
	while (off < end) {
		size_t i = (size_t)(off / LOSSY_BLOCK_BYTES);
		size_t at = off % LOSSY_BLOCK_BYTES;
		size_t n = (size_t)min_u64(LOSSY_BLOCK_BYTES - at, end - off);

		if (!d->slots[i].now) {
			off += n;
			continue;
		}
		if (n == LOSSY_BLOCK_BYTES) {
			slot_set(d, room, i, NULL);
		} else {
			struct lossy_block *b = slot_own(d, room, i);

			if (!b)
				return -ENOSPC;
			memset(b->bytes + at, 0, n);
		}
		off += n;
	}
	return 0;
}

int lossy_data_truncate(struct lossy_data *d, struct lossy_room *room,
			uint64_t size)
{
	int rc;

	if (size > LOSSY_FILE_BYTES_MAX)
		return -EFBIG;
	if (size < d->size_now) {
		rc = lossy_data_zero(d, room, size, UINT64_MAX);
		if (rc < 0)
			return rc;
	}
	d->size_now = size;
	return 0;
}

int lossy_data_seek(const struct lossy_data *d, uint64_t off, bool hole,
		    uint64_t *ret_off)
{
	if (off >= d->size_now)
		return -ENXIO;
	while (off < d->size_now) {
		size_t i = (size_t)(off / LOSSY_BLOCK_BYTES);
		bool is_hole = i >= d->slot_count || !d->slots[i].now;

		if (is_hole == hole) {
			*ret_off = off;
			return 0;
		}
		if (is_hole && i >= d->slot_count)
			break; /* nothing but a hole to the end */
		off = ((uint64_t)i + 1) * LOSSY_BLOCK_BYTES;
	}
	if (!hole)
		return -ENXIO;
	*ret_off = d->size_now;
	return 0;
}

static void slots_sync(struct lossy_data *d, struct lossy_room *room,
		       size_t from, size_t to)
{
	for (size_t i = from; i < to && i < d->slot_count; i++) {
		struct lossy_slot *s = &d->slots[i];

		if (s->safe == s->now)
			continue;
		block_put(s->safe, room);
		s->safe = block_get(s->now);
	}
}

void lossy_data_sync(struct lossy_data *d, struct lossy_room *room)
{
	slots_sync(d, room, d->dirty_from, d->dirty_to);
	d->size_safe = d->size_now;
	d->dirty_from = SIZE_MAX;
	d->dirty_to = 0;
}

void lossy_data_sync_range(struct lossy_data *d, struct lossy_room *room,
			   uint64_t off, uint64_t len)
{
	if (len == 0)
		return;
	slots_sync(d, room, (size_t)(off / LOSSY_BLOCK_BYTES),
		   (size_t)((off + len - 1) / LOSSY_BLOCK_BYTES) + 1);
	d->size_safe = d->size_now;
}

void lossy_data_draw(struct lossy_data *d, struct lossy_room *room,
		     struct lossy_coin *coin, unsigned quarters)
{
	uint64_t size = d->size_now;
	size_t tail;
	int rc;

	if (d->size_now != d->size_safe && !lossy_coin_toss(coin, quarters))
		size = d->size_safe;
	for (size_t i = d->dirty_from; i < d->dirty_to; i++) {
		struct lossy_slot *s = &d->slots[i];

		if (s->now != s->safe && !lossy_coin_toss(coin, quarters))
			slot_set(d, room, i, block_get(s->safe));
	}
	lossy_data_sync(d, room);
	d->size_now = size;
	tail = (size_t)(size / LOSSY_BLOCK_BYTES);
	if (tail < d->slot_count) {
		/* Its one reference left, it is zeroed without a copy. */
		block_put(d->slots[tail].safe, room);
		d->slots[tail].safe = NULL;
	}
	/* Blocks that survived beyond the size that did are not in the file. */
	rc = lossy_data_zero(d, room, size, UINT64_MAX);
	CHECK(rc == 0);
	if (tail < d->slot_count)
		slot_dirty(d, tail);
	lossy_data_sync(d, room);
}
