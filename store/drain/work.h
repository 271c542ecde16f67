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
 * span concludes it. Sharing between works that run at once goes through the
 * in-flight table (inflight.h).
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
	CHUNK_JOINED, /* lies where another running work puts it */
	CHUNK_DEFERRED, /* another running work has it: not decided yet */
};

struct drain_chunk {
	uint64_t offset;
	uint32_t len;
	uint8_t kind; /* enum chunk_kind */
	bool unmoved; /* SHARED with what is committed of this very place */
	bool stored; /* in the own image too, from before it was shared */
	uint8_t hash[HASH_BYTES];
	uint64_t image, image_offset;
	struct work *owner; /* DEFERRED: a reference */
	uint32_t owner_chunk;
	uint32_t times; /* ZERO: so many of this length stand here; else 1 */
	struct drain_origin *origin; /* JOINED: a reference; NULL: the file */
};

/*
 * What others must know of a work whose bytes they share, until they are
 * committed themselves. It may have ended long before: its image and its stage
 * are not kept for them.
 */
struct drain_origin {
	atomic_uint refs;
	uint64_t size_bytes;
	bool adopt;
	atomic_bool written; /* the chunks are in the index now, or were */
	atomic_bool ended; /* when not written: there will be no such chunks */
};
void drain_origin_put(struct drain_origin *o);

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
	WORK_GAVE_UP, /* its chunks' places will never be final */
	/* They are, and on the disk. The committer writes of its content: */
	WORK_CHANGED, /* all */
	WORK_UNSHARED, /* all; what little it could share it stored itself */
	WORK_UNCHANGED, /* number and time: it equals what is committed */
};

struct work {
	/* Frozen when it begins; nobody changes it: */
	struct drain_job *job; /* a reference */
	struct inode *in; /* the job's, and so is the stage */
	struct stage *stage;
	uint64_t number; /* the version's: order.h */
	uint64_t serial; /* the smaller one of two has the chunk */
	uint64_t turn; /* so many works were begun: works take copies by turns */
	uint64_t domain; /* with whose chunks it shares: records.h */
	enum work_kind kind;
	bool no_join; /* share with nobody who is not committed yet */
	struct content_ref *old; /* what was committed; a reference */

	atomic_uint refs;
	atomic_int stop; /* see work_disturb() and work_fail(); 0: go on */
	enum work_outcome outcome; /* drain.lock; set once, by work_leave() */
	TAILQ_ENTRY(work) running; /* drain.lock */
	bool rests; /* drain.lock: see work_rest() */

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
	struct drain_origin *origin; /* a reference; a small file has none */
	/* See work_copy.c; NULL: none. A failed one is no cache. */
	struct stage *copy;
	int copy_fd; /* as the three above */
	atomic_bool copy_failed;

	/* Of who concludes it: the sum of the label with which what is in the
	 * image was synced (see work_label()); 0: it was not, since. */
	uint64_t synced;
	uint8_t digest[HASH_BYTES];
};

/* Where what stands here ends. */
static inline uint64_t chunk_end(const struct drain_chunk *c)
{
	return c->offset + (uint64_t)c->len * c->times;
}

/* Is it where another one has put it? */
static inline bool chunk_is_shared(const struct drain_chunk *c)
{
	return c->kind == CHUNK_SHARED || c->kind == CHUNK_JOINED;
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
 * It does not touch its mapping until work_go_on(), which is -EAGAIN when it
 * was disturbed meanwhile and must not do so any more: who changes the stage
 * waits for no sync of the disk, nor for another work.
 */
void work_rest(struct drain *d, struct work *w);
int work_go_on(struct drain *d, struct work *w);
/* When nothing of it runs any more: it needs no descriptor to wait. */
void work_close(struct work *w);
/* Hash, look up and store one span. Errors go to w->stop. */
void work_span(struct drain *d, struct work *w, const struct span *s);
/*
 * After the last span: make the own bytes durable, with the label of their
 * image. Where chunks wait for others, that is work_settle()'s to do.
 */
int work_sync(struct drain *d, struct work *w);
/*
 * Called before each piece of I/O for w, of at most a chunk or a run: the disk
 * serves this thread after all others, unless somebody waits for the drain
 * (drain_hurry_begin()), or w's version is 30 seconds old. What is queued at
 * the disk by then stays as it was.
 */
void work_yield(struct drain *d, const struct work *w);
/* The same for what was stored, or found to lie elsewhere, since. */
int work_settle(struct drain *d, struct work *w);
/* Find the chunks that an older one has taken over since they were claimed. */
int work_recheck(struct drain *d, struct work *w, uint8_t *buffer);
/*
 * A deferred chunk whose owner is settled: share it, or, when the owner gave
 * up or the bytes differ, store it ourselves. -EAGAIN: drain the file again.
 */
int work_resolve(struct drain *d, struct work *w, uint32_t chunk,
		 bool owner_failed, uint8_t *buffer);
/*
 * When all are resolved: of chunks that have several copies, take those in one
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
/* The same of a stage that is mapped by its work. */
bool equal_to_stage(struct drain *d, const struct stage *s,
		    const uint8_t *bytes, size_t len, uint64_t off);
/* Look up the new chunks of [first, end); base is the byte at file offset 0. */
int work_look_up(struct drain *d, struct work *w, uint32_t first, uint32_t end,
		 const uint8_t *base);
/* Is a chunk of it of this kind? NEW: its image holds something of it. */
bool work_has(const struct work *w, enum chunk_kind kind);
/* Where the chunk will lie; false: nowhere, or that is not known yet. */
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

/* --- work_label.c */

#define LABEL_NONE 1 /* the image has none, and cannot have one */
/* Label the image, open as fd: a sum of what that says, or LABEL_NONE. */
uint64_t work_label(struct drain *d, struct work *w, int fd);
/* Would it say something else by now? */
bool work_label_is_old(struct drain *d, const struct work *w);

#endif
