/*
 * lossyfs.h - a mounted lossy_fs, and how a test steers it.
 *
 * A directory .lossy in the root, which listings leave out, has
 *
 * control: takes one command per write:
 *   record         forget everything, start empty, keep a log
 *   freeze         end the log
 *   cut            no power from now on
 *   arm N          no power from the N-th operation on (1: the next)
 *   reboot SEED    power again, with what survived
 *   rewind K SEED  the state after the first K operations of the log, then a
 *                  cut and a reboot
 *   save PATH      the log into a file
 *   load PATH      the log from a file
 *   lie WHAT       answer syncs of "files", "dirs" or "all" and do nothing;
 *                  "none": be honest again
 *   say N          the N-th operation of the log, read from state
 *   spoil INO N    the N-th block of 4 KiB of the file with this inode number
 *                  cannot be read any more, and so not be written in parts,
 *                  until all of it is written or punched; one at a time
 *
 * state: reads as "COUNT CUT LOGGED [SAID]"
 *
 * Both work while the power is cut. Threads: one. Locks: none.
 */
#ifndef TESTS_CRASH_LOSSYFS_H
#define TESTS_CRASH_LOSSYFS_H

#define FUSE_USE_VERSION 35

#include <fuse_lowlevel.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "tests/crash/lossy.h"
#include "tests/crash/lossy_log.h"

/* Numbers of the control directory; no epoch gets so far. */
#define CONTROL_DIR (UINT64_C(1) << 63)
#define CONTROL_FILE (CONTROL_DIR + 1)
#define CONTROL_STATE (CONTROL_DIR + 2)

struct lossyfs {
	struct lossy_fs *fs;
	struct lossy_log log;
	bool logging;
	bool lie_files, lie_dirs;
	uint64_t epoch; /* reboots so far; in the upper half of node numbers */
	char said[512];
	fuse_ino_t spoilt; /* a file with a bad block; 0: none */
	uint64_t spoilt_block;
};

static inline struct lossyfs *self_of(fuse_req_t req)
{
	return fuse_req_userdata(req);
}

static inline bool is_control(fuse_ino_t ino)
{
	return ino >= CONTROL_DIR;
}

void control_stat(fuse_ino_t ino, struct stat *ret_st);
/* The number of a name in the control directory or of that itself, or 0. */
fuse_ino_t control_find(fuse_ino_t parent, const char *name);
void control_read(fuse_req_t req, size_t size, off_t off);
void control_write(fuse_req_t req, const char *buf, size_t size);

#endif
