/* segment_private.h - between the segment*.c files: see segment.h. */
#ifndef STORE_SEGMENT_PRIVATE_H
#define STORE_SEGMENT_PRIVATE_H

#include "store/file/segment.h"
#include "store/space/stage.h"
#include "store/store.h"

struct segment {
	TAILQ_ENTRY(segment) entry; /* in segments.all, or .held */
	/* Immutable: */
	uint64_t id;
	struct segment_client *client;
	uid_t uid; /* the client's */
	uint8_t signature[SEGMENT_SIGNATURE_BYTES];
	uint64_t size_bytes;
	uint64_t memory_bytes; /* what that takes: whole huge pages */

	/* segments.lock: */
	struct stage *stage; /* a reference; NULL while it is allocated */
	uint64_t generation; /* 0: nobody may commit it */
	bool filled; /* its client is at it */
	bool mapped; /* and sealed */
	bool committing; /* an ioctl, or a cut, is at work: nobody removes it */
	bool told; /* that it was written past its end */
	bool asked, asked_sent; /* its client is to drop it */
};

static inline struct segments *segments_of(struct store *st)
{
	return &st->segments;
}

/* --- segment_trim.c; all of them without segments.lock */

/* Does anybody have a descriptor for writing, or a mapping, of it? */
bool segment_is_held(struct store *st, const struct segment *s);
/*
 * Cut off what lies past its end. true: there was something. The segment must
 * be `committing`, or in no list. Waits for who writes to it.
 */
bool segment_trim(struct store *st, struct segment *s);
/* Its memory goes, and it is freed; who waits for memory looks again. */
void segment_put(struct store *st, struct segment *s);

#endif
