/*
 * work.h - one attempt at a version: its bytes are cut, hashed, looked up,
 * compared and stored. Who may work on what, and when, is the drain's to say;
 * nothing here knows of an order. Private to the drain.
 *
 * What is stored is what was hashed. A stage that nobody can write to is hashed
 * and written from its mapping; who is to change it disturbs the work first, so
 * that it does not count, or waits when the committer has it. While writers
 * exist, bytes are copied before they are hashed, and at the last close
 * everything is hashed once more.
 *
 * Workers share the work in spans of some MiB; the one that finishes the last
 * span concludes it. A work shares with what is committed, and with itself.
 * Works in flight that have bytes in common find each other in a table
 * (inflight.h): the one that is committed later stores what is too little to be
 * worth sharing once more, or begins again when the other one is over.
 */
#ifndef STORE_WORK_H
#define STORE_WORK_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "store/base/sync.h"
#include "store/db/hash.h"
#include "store/formats/cut.h"
#include "store/names/inode.h"
#include "store/space/reclaim.h"

struct drain_job;
struct drain;

#ifndef DRAIN_SPAN_BYTES /* the simulator has smaller ones */
#define DRAIN_SPAN_BYTES (UINT64_C(8) << 20)
#endif
/* A worker's buffer: a span with room for alignment at both ends. */
#define DRAIN_BUFFER_BYTES (DRAIN_SPAN_BYTES + CHUNK_BYTES_MAX + 8192)

enum chunk_kind {
	CHUNK_ZERO, /* a hole */
	CHUNK_NEW, /* written to the work's own image, at its own offset */
	CHUNK_SHARED, /* lies at image, image_offset, and is committed */
	CHUNK_REPEATED, /* lies where another one of the work does */
};

struct drain_chunk {
	uint64_t offset;
	uint32_t len;
	uint8_t kind; /* enum chunk_kind */
	bool unmoved; /* SHARED with what is committed of this very place */
	/* NEW: so many copies are committed; it was claimed with so many, and
	 * one more; 0: not yet. */
	uint8_t committed, claimed;
	uint8_t hash[HASH_BYTES];
	uint64_t image, image_offset; /* SHARED */
	uint32_t same; /* REPEATED: that chunk */
	uint32_t times; /* ZERO: so many of this length stand here; else 1 */
};

/*
 * Chunks that one worker does, in its own buffer of DRAIN_BUFFER_BYTES. A span
 * may begin with a hole of any length: its bytes are counted from where the
 * first chunk begins that is not all hole.
 */
struct span {
	uint32_t first, end;
	uint64_t data_from; /* UINT64_MAX: there is no such chunk yet */
	uint64_t seen_to; /* with a base: bytes up to here are there */
	uint8_t *buffer;
	const uint8_t *base; /* see work_bytes(); NULL: they are not read yet */
};

/* What may be relied on while the stage is read. */
enum work_kind {
	WORK_OF_OPEN, /* nothing: somebody may write to it at any time */
	WORK_OF_CLOSED, /* that the bytes stay, as long as the work counts */
	WORK_OF_IMAGE, /* the same; the stage becomes the file's image */
};

enum work_outcome {
	WORK_OPEN,
	WORK_GAVE_UP,
	/* All is on the disk. The committer writes of its content: */
	WORK_CHANGED, /* all */
	WORK_UNCHANGED, /* number and time: it equals what is committed */
};

struct work {
	/* Frozen when it begins; nobody changes it: */
	struct drain_job *job; /* a reference */
	struct inode *in; /* the job's, and so is the stage */
	struct stage *stage;
	uint64_t number; /* the version's: order.h */
	/* Of two the one with the smaller is older, and stores what both have. */
	uint64_t serial;
	uint64_t turn; /* so many works were begun: works take copies by turns */
	uint64_t domain; /* with whose chunks it shares: records.h */
	enum work_kind kind;
	struct content_ref *old; /* what was committed; a reference */

	atomic_uint refs;
	atomic_int stop; /* see work_disturb() and work_fail(); 0: go on */
	enum work_outcome outcome; /* drain.lock; set once, by work_leave() */
	TAILQ_ENTRY(work) running; /* drain.lock */
	bool rests; /* drain.lock: see work_rest() */
	atomic_uint_fast64_t seen_bytes; /* hashed so far */
	/* drain.lock: of these, in chunks that are stored for others as well;
	 * and when they are enough, the job of one of those; a reference. */
	uint64_t lost_bytes;
	struct drain_job *behind;
	uint32_t claims; /* inflight.lock: entries of it in the table */

	struct reclaim_ticket ticket; /* until no worker has it */

	/* Set by work_begin(), then read only: */
	uint64_t size_bytes;
	int64_t mtime_ns;
	const uint8_t *map; /* of a stage that work_is_stable(), or NULL */
	uint8_t *small; /* all bytes of a small file */
	struct drain_chunk *chunks; /* NULL: it is small, or has failed */
	uint32_t chunk_room;
	bool by_content; /* some were cut so: see cut.h */
	/* Under cutting, and read only when all is cut: */
	struct lock cutting;
	struct cutter *cutter;
	struct span *asking; /* which one is being cut */
	uint32_t chunk_count; /* so far */
	uint64_t cut_bytes; /* that they cover */
	uint64_t data_at, hole_at; /* the stage's data, as far as seen */
	uint64_t hole_bytes; /* of the chunks that lie wholly in holes */

	atomic_bool all_cut;
	atomic_uint spans_left; /* handed out, and one until all is cut */
	/*
	 * Open while it runs, and only then: what waits takes no descriptor.
	 * -1: not yet, or not any more. See work_close().
	 */
	int stage_fd;
	int image_fd, direct_fd; /* under making_image until they are set */
	struct lock making_image;
	struct image *image; /* where NEW chunks go; a reference, or NULL */
	/* See work_copy.c; NULL: none. A failed one is no cache. */
	struct stage *copy;
	int copy_fd; /* as the three above */
	atomic_bool copy_failed;

	uint8_t digest[HASH_BYTES]; /* of who concludes it */
};

/* Where what stands here ends. */
static inline uint64_t chunk_end(const struct drain_chunk *c)
{
	return c->offset + (uint64_t)c->len * c->times;
}

/* Does it lie where it is not stored for this place of the file? */
static inline bool chunk_is_shared(const struct drain_chunk *c)
{
	return c->kind == CHUNK_SHARED || c->kind == CHUNK_REPEATED;
}

/*
 * Its bytes are not those that were closed any more, or nobody needs them: it
 * is drained again, whatever else came of it.
 */
static inline void work_disturb(struct work *w)
{
	atomic_store(&w->stop, -EAGAIN);
}

static inline bool work_is_disturbed(const struct work *w)
{
	return atomic_load(&w->stop) == -EAGAIN;
}

/* The first error of any of its parts. */
static inline void work_fail(struct work *w, int rc)
{
	int none = 0;

	atomic_compare_exchange_strong(&w->stop, &none, rc);
}

/* The stage in memory is what was hashed, unless the work was disturbed. */
static inline bool work_is_stable(const struct work *w)
{
	return w->kind == WORK_OF_CLOSED && w->stage->kind == STAGE_MEMORY &&
	       !w->stage->sealed;
}

/* It has more than one span. */
static inline bool work_can_be_helped(const struct work *w)
{
	return w->chunks && w->size_bytes > DRAIN_SPAN_BYTES;
}

/* One reference. NULL: no memory. */
struct work *work_new(struct drain_job *j);
void work_ref(struct work *w);
void work_put(struct drain *d, struct work *w);
/*
 * It is over: what it claimed is findable now, or never. What it stored is
 * given up, unless it was committed.
 */
void work_ended(struct drain *d, struct work *w, bool committed);

/* Set up: size, mapping, cutter. A small file is read whole. */
int work_begin(struct drain *d, struct work *w, uint8_t *buffer);
/*
 * Cut the next span. false: all were handed out. It is the work's last one,
 * and may be empty, if the work has failed or was disturbed.
 */
bool work_next_span(struct work *w, uint8_t *buffer, struct span *ret);
/*
 * It does not touch its mapping any more: who changes the stage waits for no
 * sync of the disk.
 */
void work_rest(struct drain *d, struct work *w);
/* When nothing of it runs any more: it needs no descriptor to wait. */
void work_close(struct work *w);
/* Hash, look up and store one span. Errors go to w->stop. */
void work_span(struct drain *d, struct work *w, const struct span *s);
/* Make the own bytes durable, with the label of their image. */
int work_sync(struct drain *d, struct work *w);
/*
 * Called before each piece of I/O for w, of at most a chunk or a run: the disk
 * serves this thread after all others, unless somebody waits for the drain
 * (drain_hurry_begin()), or w's version is 30 seconds old. What is queued at
 * the disk by then stays as it was.
 */
void work_yield(struct drain *d, const struct work *w);
/*
 * After the last span: are the repeated chunks what they repeat? Those that are
 * not are stored. -EAGAIN, here and below: drain the file again.
 */
int work_repeats(struct drain *d, struct work *w, uint8_t *buffer);
/*
 * Then: of chunks that have several copies, take those in one
 * image, so that the file maps onto that as a whole.
 */
int work_align(struct drain *d, struct work *w, uint8_t *buffer);
/* Sharing that does not pay is undone; the digest; did anything change? */
int work_conclude(struct drain *d, struct work *w, uint8_t *buffer,
		  enum work_outcome *ret_outcome);

/* --- work_copy.c */

/* When its stage will not do as a cache: a copy of what is hashed is made. */
void work_copy_begin(struct drain *d, struct work *w);
/* What was hashed of [first, end); base is the byte at file offset 0. */
void work_copy_span(struct work *w, uint32_t first, uint32_t end,
		    const uint8_t *base);
/* All spans are done. */
void work_copy_end(struct drain *d, struct work *w);
/*
 * The cache of the file, whose content is w's now and which has no stage any
 * more, with the reference; NULL: none. in->lock is held.
 */
struct stage *work_copy_take_locked(struct work *w);

/* --- between work.c and work_late.c */

/* What was compared with last: neighbours mostly lie in one image. */
struct compared {
	uint64_t image; /* 0: nothing yet */
	int fd;
};
void compared_close(struct compared *last);
/* Are these bytes at this place of an image? */
bool equal_to_image(struct drain *d, struct compared *last,
		    const struct chunk_loc *l, const uint8_t *bytes);
/* The same of the work's own stage. */
bool equal_to_stage(struct drain *d, const struct stage *s,
		    const uint8_t *bytes, size_t len, uint64_t off);
/* Look up the new chunks of [first, end); base is the byte at file offset 0. */
int work_look_up(struct drain *d, struct work *w, uint32_t first, uint32_t end,
		 const uint8_t *base);
/* Has its image anything of it? */
bool work_stores(const struct work *w);
/* Where the chunk will lie; false: nowhere. */
bool work_place(const struct work *w, const struct drain_chunk *c,
		struct extent *ret);
/* Store the new chunks of [first, end), neighbours with one write. */
int work_write(struct drain *d, struct work *w, uint32_t first, uint32_t end,
	       const uint8_t *base);
/*
 * The bytes of [first, end) so that file offset o lies at *ret_base + o:
 * the mapping, or a copy in the buffer that is aligned as the file is, without
 * the chunks that are known to be zero: nobody looks at those.
 */
int work_bytes(struct work *w, uint32_t first, uint32_t end, uint8_t *buffer,
	       const uint8_t **ret_base);

/* --- work_cut.c, for work_begin() */

/* Where it is cut, and by which rule: what the store has decides, too. */
int work_begin_cut(struct drain *d, struct work *w, uint8_t *buffer);

/* --- work_lost.c */

/*
 * o, which is older, stores a chunk of w as well, of so many bytes. The one of
 * both that is committed later has lost them. When what it has lost would be
 * worth sharing, or is half of what has been seen of it, it begins again when
 * the other is over, unless the committer has it already, or it may not wait.
 */
void work_lost(struct drain *d, struct work *w, struct work *o, uint32_t len);
/* Are so many bytes of it worth sharing? See README, dedup_min_saving. */
bool work_pays(const struct drain *d, const struct work *w, uint64_t bytes);

/* --- work_label.c */

/* Label the image, open as fd, if its file system takes labels. */
void work_label(struct drain *d, const struct work *w, int fd);

#endif
