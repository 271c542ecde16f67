/*
 * state.h - where a file's bytes are, who has it open, and what follows.
 *
 * A file's state (struct file_state, inode.h) has four parts, and file_move()
 * alone changes them, by one table; what the table does not have is refused.
 *
 *   bytes                  a write may go there
 *   COMMITTED  no stage          -  what is committed, if anything is
 *   DIRTY      the stage         x  it may differ from what is committed
 *   CLEAN      the stage         x  a cache of what is committed
 *   FROZEN     the stage         -  a drain makes it the file's image
 *   SEALED     a segment's stage -  not committed yet
 *   SEALED_CLEAN, SEALED_WANTED  -  committed; its segment wants it back, but
 *                                   somebody has it open or mapped
 *   GONE       nothing: no name, no handle, and the kernel has forgotten it
 *
 *              STAGED            DURABLE
 *   COMMITTED --------> DIRTY ------------> CLEAN
 *    | ^ ^ ^             | ^ ^ <------------ |
 *    | | | |      FROZEN v | THAWED WRITTEN  | GIVEN_UP
 *    | | | '------------ FROZEN              |
 *    | | |  BECAME_IMAGE                     |
 *    | | '-----------------------------------'
 *    | '---------------------------------------------------. GIVEN_UP
 *    | LENT          DURABLE                WANTED         |
 *    '------> SEALED -------> SEALED_CLEAN -------> SEALED_WANTED
 *
 * (STAGED and LENT replace any stage, GIVEN_UP leads from SEALED_CLEAN too, and
 * DELETED from anywhere to GONE.)
 *
 *   mode   CLOSED -> BACKED (the kernel moves the bytes) or DAEMON (we do),
 * with the first open; back when nobody has it open and no step is at work.
 *   left   NOBODY, READERS, WRITERS: who may have a mapping without a handle.
 *          It belongs to the backing file and outlives the release. This is the
 *          last answer of a lease (in_place.c), since what the committer and
 *          the reclaimer do cannot wait for one; an open in the mode BACKED
 *          makes it unknown, so at least that of the open.
 *   name   OWN, AWAITED, MOVED: an O_TRUNC by name, under readers, of a
 *          file larger than a log gives its names to a fresh inode, which the
 *          kernel looks up once, and only once. So the old one is MOVED and
 *          sends everybody on, and the fresh one is AWAITED until a writer
 *          came: readers who were faster are served by us, for he must be able
 *          to join them. The kernel leaves no other way: a backing file cannot
 *          be exchanged under readers, and none of them may see half of the
 *          new bytes of a checkpoint.
 *
 * Two questions are asked by everybody, and answered here only: file_step(),
 * may the stage be rewritten, and if not, what is first; and file_fate(), does
 * the stage go.
 *
 * Pure: no thread, no I/O, no clock. inode.lock is held.
 */
#ifndef STORE_FILE_STATE_H
#define STORE_FILE_STATE_H

#include <stdbool.h>

#include "store/names/inode.h"

enum file_event {
	/* What becomes of the bytes. */
	FILE_STAGED, /* a stage that nobody has seen is the content now */
	FILE_LENT, /* the same with a segment's, which is full */
	FILE_FOUND, /* the same with a cache of the last daemon */
	FILE_TAKEN, /* the image that readers have became the stage */
	FILE_WRITTEN, /* the stage's bytes may change from now on */
	FILE_FROZEN, /* the drain makes the stage the image ... */
	FILE_THAWED, /* ... and has not, for sure */
	FILE_DURABLE, /* what is staged is committed, and the stage a cache */
	FILE_BECAME_IMAGE, /* committed, and the stage is where it lies */
	FILE_WANTED, /* its segment asks for it */
	FILE_GIVEN_UP, /* the cache goes */
	FILE_DELETED,
	/* Who has it. */
	FILE_BACKED, /* the mode of the first open */
	FILE_SERVED,
	FILE_OPENED, /* one more handle: to read only ... */
	FILE_OPENED_WRITER, /* ... or to write, to its stage */
	FILE_RELEASED,
	FILE_RELEASED_WRITER,
	FILE_CLOSED, /* nobody has it: the mode ends */
	FILE_BEGUN, /* a step that may change it begins ... */
	FILE_ENDED, /* ... and ends */
	FILE_MAPPABLE, /* opened BACKED to read: it may be mapped ... */
	FILE_MAPPABLE_WRITER, /* ... to write too */
	FILE_NO_WRITER_LEFT, /* a lease said so */
	FILE_NOBODY_LEFT,
	FILE_ABANDONED, /* the kernel is gone, and every handle with it */
	/* Its name. */
	FILE_NAME_MOVED,
	FILE_WRITER_CAME,
	FILE_EVENTS,
};

bool file_may_move(const struct file_state *s, enum file_event e);
/* The only one that writes to *s. Stops when the event cannot be. */
void file_move(struct file_state *s, enum file_event e);

/* What somebody wants to do to the bytes. */
enum file_wish {
	WISH_WRITE, /* change some of them: open, write, truncate, fallocate */
	WISH_EMPTY, /* open with O_TRUNC */
	WISH_REPLACE, /* give it the stage of a segment */
};
enum {
	WISH_KEEPS_INODE = 1, /* its names must not go to another one */
	WISH_HAS_IMAGE = 2, /* a mapping may be of an image of it */
	WISH_HAS_HANDLE = 4, /* he who asks has it open to write */
};
enum file_step {
	STEP_OK, /* into the stage; without one, copy what is committed */
	STEP_STALE, /* look its name up again */
	STEP_WAIT, /* until its drain is stopped, or committed */
	STEP_SYNC, /* first it must be durable */
	STEP_GIVE_UP, /* first its stage goes: a cache, that is sealed */
	STEP_TAKE_IMAGE, /* first the image that readers have is the stage */
	STEP_RENUMBER, /* who has it keeps what he has */
	STEP_FRESH, /* a fresh stage takes the place of all that is there */
};
enum file_step file_step(const struct file_state *s, enum file_wish wish,
			 unsigned facts);

/* Why it is asked whether the stage goes. */
enum file_end {
	END_DURABLE, /* its bytes are committed, by a job that nobody raced */
	END_CLOSED, /* the last handle was released */
	END_FORGOTTEN, /* by the kernel */
	END_EVICTED, /* its memory is wanted, or its place */
};
enum file_fate {
	FATE_STAYS, /* as it is: it is not committed */
	FATE_CACHED, /* it equals what is committed, and stays as a cache */
	FATE_GOES,
};
/*
 * Is its stage no good as a cache: small, on the disk, or a segment's, which
 * its client may still write to?
 */
bool file_is_poor_cache(const struct stages *stages, const struct file *f);
/*
 * What becomes of the stage, which there is; *s has moved there. FATE_GOES: the
 * caller takes it from the file, and drops it outside the lock. poor:
 * file_is_poor_cache().
 */
enum file_fate file_end(struct file_state *s, enum file_end why, bool poor);

/* Has somebody, or gets he soon, what backs it in the kernel? */
bool file_is_reached(const struct file_state *s);
/* Somebody has it open or mapped, and nobody to write. */
bool file_is_read(const struct file_state *s);

#endif
