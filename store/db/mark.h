/*
 * mark.h - what the database must at least hold, noted beside it in the file
 * STORE/mark.
 *
 * The database's own files cannot tell that their end is missing: a log or a
 * list of tables that was cut short looks like one that ended there. So each
 * sync of its log is noted outside of it, as the number of the last change that
 * became durable. Whoever opens the store compares (trust.h).
 *
 * The note is written after the sync, without one of its own: it is exact
 * after a kill -9 and after a clean end, where it is synced. After a power cut
 * it may be older than the truth, by as much as the kernel writes behind (half
 * a minute), and never newer.
 *
 * Errors:  0 or a negative errno.
 * Threads: any thread may call marker_synced(); the others are for one alone.
 */
#ifndef STORE_MARK_H
#define STORE_MARK_H

#include <stdbool.h>
#include <stdint.h>

#include "store/base/sync.h"

struct mark {
	uint64_t sequence; /* the last change that is durable */
	bool clean; /* the store was closed after it, and not opened since */
};

/* -ENOENT: there is none. -EIO: it is damaged. */
int mark_read(int store_dirfd, struct mark *ret);

struct marker {
	int fd;
	struct lock lock; /* guards everything below, and the file */
	uint64_t sequence;
};

/* Makes the file when there is none; it is not written yet. */
int marker_open(struct marker *m, int store_dirfd);
void marker_close(struct marker *m);
/* Durable when it returns 0. */
int marker_write(struct marker *m, const struct mark *mark);
/* A sync made all changes up to this one durable. A failure is not told. */
void marker_synced(struct marker *m, uint64_t sequence);

#endif
