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

/* --- segment.c. _locked: segments.lock is held. */

/* Nobody fills it, no file has it, and its client was not asked for it. */
bool segment_is_free_locked(const struct segment *s);
/* Out of the list; the caller calls segment_give_up() without the lock. */
void segment_unlist_locked(struct segments *g, struct segment *s);
void segment_give_up(struct store *st, struct segment *s);
/*
 * Ask for idle segments back, least recently used ones first, until `want`
 * bytes are asked for (with what was asked for before). uid: whose, or -1.
 */
void segments_ask_locked(struct segments *g, uint64_t want, int64_t uid);
struct segment *segment_find_locked(struct segments *g, uint64_t id,
				    uint64_t generation);

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
