/*
 * lossy_log.h - the operations of one run, so that the state at any point of
 * it can be had again: played on an empty lossy_fs, the first k operations
 * give what was there when the k-th returned.
 *
 * A log can be kept in a file and loaded on another day, on a machine with
 * the same byte order.
 *
 * Errors: 0 or a negative errno. Threads: one. Locks: none.
 */
#ifndef TESTS_CRASH_LOSSY_LOG_H
#define TESTS_CRASH_LOSSY_LOG_H

#include <stddef.h>
#include <stdint.h>

#include "tests/crash/lossy.h"

#define LOSSY_LOG_OPS_MAX (1u << 22)

struct lossy_entry;

struct lossy_log {
	struct lossy_entry **entries;
	size_t count, room;
};

void lossy_log_clear(struct lossy_log *log);
int lossy_log_add(struct lossy_log *log, const struct lossy_op *op);
/* Play the first `count` operations. -ERANGE: there are fewer. */
int lossy_log_play(const struct lossy_log *log, size_t count,
		   struct lossy_fs *fs);
/* One line about the operation with this index, for people. */
int lossy_log_say(const struct lossy_log *log, size_t index, char *buf,
		  size_t len);
int lossy_log_save(const struct lossy_log *log, const char *path);
/* -EBADMSG: not such a file, or damaged; the log is then empty. */
int lossy_log_load(struct lossy_log *log, const char *path);

#endif
