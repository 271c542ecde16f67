/*
 * lossy_data.h - the bytes of one file, twice: as they are read now, and as
 * they would be after a power cut.
 *
 * Keeps true: what a sync covered survives; of what was changed since, each
 * 4 KiB block and the size survive or not by a coin each. A hole is a block
 * that is not there.
 *
 * Errors: 0 or a negative errno. Threads: one. Locks: none.
 */
#ifndef TESTS_CRASH_LOSSY_DATA_H
#define TESTS_CRASH_LOSSY_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/crash/lossy_coin.h"

#define LOSSY_BLOCK_BYTES 4096u
#define LOSSY_FILE_BYTES_MAX (UINT64_C(64) << 30)

struct lossy_block;

struct lossy_slot {
	struct lossy_block *now; /* NULL: a hole */
	struct lossy_block *safe;
};

struct lossy_data {
	uint64_t size_now, size_safe; /* bytes */
	struct lossy_slot *slots; /* slots beyond the last one are holes */
	size_t slot_count, slot_room;
	size_t dirty_from, dirty_to; /* slots changed since the last sync */
	uint64_t blocks_now; /* slots that are no hole now */
};

/* How many blocks all files together may hold, and do. */
struct lossy_room {
	uint64_t blocks, blocks_max;
};

void lossy_data_init(struct lossy_data *d);
void lossy_data_release(struct lossy_data *d, struct lossy_room *room);

/* -EFBIG, -ENOSPC or -ENOMEM: nothing was written. */
int lossy_data_write(struct lossy_data *d, struct lossy_room *room,
		     const void *buf, size_t len, uint64_t off);
/* Fills buf; returns how many of its bytes lie in the file. */
size_t lossy_data_read(const struct lossy_data *d, void *buf, size_t len,
		       uint64_t off);
int lossy_data_truncate(struct lossy_data *d, struct lossy_room *room,
			uint64_t size);
/* Make [off, off + len) a hole; the size stays. */
int lossy_data_zero(struct lossy_data *d, struct lossy_room *room, uint64_t off,
		    uint64_t len);
/* The first byte of data (or of a hole) at or after off; -ENXIO: none. */
int lossy_data_seek(const struct lossy_data *d, uint64_t off, bool hole,
		    uint64_t *ret_off);

void lossy_data_sync(struct lossy_data *d, struct lossy_room *room);
/* Only the size and the blocks of [off, off + len): a write with O_DSYNC. */
void lossy_data_sync_range(struct lossy_data *d, struct lossy_room *room,
			   uint64_t off, uint64_t len);
/* The power was cut: what survives becomes both states. */
void lossy_data_draw(struct lossy_data *d, struct lossy_room *room,
		     struct lossy_coin *coin, unsigned quarters);

#endif
