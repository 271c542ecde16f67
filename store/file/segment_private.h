/* segment_private.h - between the segment*.c files: see segment.h. */
#ifndef STORE_SEGMENT_PRIVATE_H
#define STORE_SEGMENT_PRIVATE_H

#include "store/file/segment.h"
#include "store/space/stage.h"

/* So many saves make a habit: see segment_acquire.c. */
#define SEGMENT_TAKES 16

struct segment {
	TAILQ_ENTRY(segment) entry; /* in segments.all, or .dropped */
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
	/* Which ones of all takes were its own, the last one first; 0: none. */
	uint64_t takes[SEGMENT_TAKES];
	bool filled; /* its client is at it */
	bool mapped; /* and sealed */
	bool committing; /* an ioctl, or a cut, is at work: nobody removes it */
	bool told; /* that it was written past its end */
	bool asked, asked_sent; /* its client is to drop it */
};

/* --- segment.c. _locked: segments.lock is held. */

/* Nobody fills it, no file has it, and its client was not asked for it. */
bool segment_is_free_locked(const struct segment *s);
/* Out of the list, and given up; without the lock. */
void segment_remove(struct segments *g, struct segment *s);
/*
 * Ask for idle segments back, least recently used ones first, until `want`
 * bytes are asked for (with what was asked for before). uid: whose, or -1.
 * before: only those that were last taken before that one of all takes.
 */
void segments_ask_locked(struct segments *g, uint64_t want, int64_t uid,
			 uint64_t before);
/* Its client is to drop it, whether it is idle or a file's. */
void segment_ask_locked(struct segments *g, struct segment *s);
struct segment *segment_find_locked(struct segments *g, uint64_t id,
				    uint64_t generation);

/*
 * Cut off what lies past its end. true: there was something. The segment must
 * be `committing`, or in no list. Waits for who writes to it; without the lock.
 */
bool segment_trim(struct segments *g, struct segment *s);
#endif
