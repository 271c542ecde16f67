/*
 * drain_work.h - what workers do to one job; drain.c decides who and when.
 * Private to the drain.
 */
#ifndef STORE_DRAIN_WORK_H
#define STORE_DRAIN_WORK_H

#include "store/drain/drain.h"

struct store;

#ifndef DRAIN_SPAN_BYTES /* a simulator's files are small */
#define DRAIN_SPAN_BYTES (UINT64_C(8) << 20)
#endif
/* A worker's buffer: a span with room for alignment at both ends. */
#define DRAIN_BUFFER_BYTES (DRAIN_SPAN_BYTES + CHUNK_BYTES_MAX + 8192)

/*
 * Set up a job that begins to run: size, mapping, cut, spans. A small file is
 * read whole. 0, or -errno.
 */
int work_begin(struct store *st, struct drain_job *j);
/* When nothing of the job runs any more: it needs no descriptor to wait. */
void work_close(struct drain_job *j);
/* Hash, look up and store one span. Errors go to j->error. */
void work_span(struct store *st, struct drain_job *j, uint32_t span,
	       uint8_t *buffer);
/*
 * After the last span: make the job's own bytes durable, with the label of their
 * image. Where chunks wait for other jobs, that is work_settle()'s to do.
 */
int work_sync(struct store *st, struct drain_job *j);
/* The same for what was stored, or found to lie elsewhere, since. */
int work_settle(struct store *st, struct drain_job *j);
/* Find the chunks that an older job has taken over since they were claimed. */
int work_recheck(struct store *st, struct drain_job *j, uint8_t *buffer);
/*
 * A deferred chunk whose owner is settled: share it, or, when the owner gave
 * up or the bytes differ, store it ourselves. -EAGAIN: drain the file again.
 */
int work_resolve(struct store *st, struct drain_job *j, uint32_t chunk,
		 bool owner_failed, uint8_t *buffer);
/* Sharing that does not pay is undone; the digest; did anything change? */
int work_conclude(struct store *st, struct drain_job *j, uint8_t *buffer);


/* --- drain_label.c */

/* Label the job's image, open as fd. It need not have one. */
void work_label(struct store *st, struct drain_job *j, int fd);
/* Would it say something else by now? */
bool work_label_is_old(struct store *st, const struct drain_job *j);

#endif
