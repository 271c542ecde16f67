/*
 * ahead.h - reading ahead in images, for files that are put together from
 * several: the kernel sees a mapping that is read here and there, and cannot
 * know what the file goes on with.
 *
 * Each place of a file that is read from in sequence is a stream. Never more
 * than AHEAD_BYTES_MAX of it are on their way before the reader, nor more than
 * he has read in sequence: who reads a header, or skips about, gets little that
 * he did not ask for. A few threads touch what is wanted, block by block, as
 * the reader's own fault would; the bytes stay in the page cache, and are the
 * kernel's to drop. What finds no place in the queue is left to the reader. A
 * file that a rank reads which wrote it comes before those of other ranks (see
 * ahead_queue.h); files that are one image the kernel reads ahead by itself.
 *
 * Measured when it came (four readers, cold, half of each file shared with the
 * step before): 1.03 of sequential files instead of 0.82; one reader 1.02
 * instead of 0.75; the disk reads 4.2 GB for 4.1 wanted instead of 4.9.
 *
 * Errors: none. What cannot be read ahead is read, and complained of, later.
 * Threads: any. Locks: ahead.lock is a leaf.
 */
#ifndef STORE_AHEAD_H
#define STORE_AHEAD_H

#include <stdbool.h>
#include <stdint.h>

#include "store/space/ahead_queue.h"
#include "store/space/image.h"

#define AHEAD_BLOCK_BYTES (UINT64_C(2) << 20) /* what one fault reads */
#define AHEAD_BYTES_MAX (UINT64_C(16) << 20) /* of each stream */
#define AHEAD_STREAMS_MAX 4 /* of each file */
#define AHEAD_THREADS 8

/* Where readers of a file are, last used first. All zero: at its start. */
struct ahead_stream {
	uint64_t next; /* what he read ends here */
	uint64_t run; /* bytes that he read in sequence up to there */
	uint64_t end; /* what was asked for ends here */
};
struct ahead_streams {
	struct ahead_stream at[AHEAD_STREAMS_MAX];
};

/*
 * len bytes of size_bytes are read from off on. True: [*ret_from, *ret_to) of
 * the file is to be read ahead, and the stream takes that for done. Two reads
 * may come in the wrong order: the kernel sends some before it has an answer.
 */
bool ahead_follow(struct ahead_streams *s, uint64_t off, uint64_t len,
		  uint64_t size_bytes, uint64_t *ret_from, uint64_t *ret_to);

struct ahead;

/* *ret_ahead is NULL where the kernel cannot do it (Linux before 5.18). */
int ahead_start(struct images *images, struct ahead **ret_ahead);
/* What is queued is dropped; before images_release(). NULL: nothing. */
void ahead_stop(struct ahead *a);

/*
 * [off, off + len) of the image will be wanted; own: by the rank that wrote
 * the file. Does not block on the disk.
 */
void ahead_add(struct ahead *a, struct image *i, uint64_t off, uint64_t len,
	       bool own);
/* Wait until all that was added has been read: for tests. */
void ahead_settle(struct ahead *a);

#endif
