/*
 * recover.h - what is done when a store is opened, so that its promises hold
 * whatever ended the last mount.
 *
 *   after an unmount   nothing is left to do
 *   after kill -9      stages of this boot are taken over: files that were
 *                      closed keep their order, those that were open follow
 *   after a power cut  there are no stages: a file that was never committed
 *                      is absent, all others have their committed content
 *
 * Handles and mappings of the last mount may go on: what somebody still has is
 * asked for and left to him, see held.h.
 *
 * In each case: orphans are deleted, holes that were decided are punched, and
 * images that the last daemon had begun and not committed are removed. An image
 * of which nothing is recorded is kept: see store.unknown_images.
 */
#ifndef STORE_RECOVER_H
#define STORE_RECOVER_H

#include <stdbool.h>

struct store;

/* Before any thread runs. `adopted`: the stage table is of this boot. */
int recover(struct store *st, bool adopted);
/*
 * What somebody had open to write when the last daemon ended, and had not
 * closed before, is closed: after the guard has looked at it, so that it is
 * nowhere in the order of closes until then. The guard is started.
 */
void recover_close_open(struct store *st);
/* For store_free(). */
void recover_release(struct store *st);
/* After the threads were started: what may take its time. */
void recover_sweep(struct store *st);

#endif
