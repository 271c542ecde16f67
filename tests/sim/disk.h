/*
 * disk.h - the disk and the memory of a run: real files on a tmpfs, with calls
 * that go through here (the linker's --wrap).
 *
 * Below ROOT/store is the disk. What was written to it and not synced is known,
 * by blocks of 4 KiB, names by directories: a power cut keeps some of it and
 * takes the rest away, as its seed says. Below ROOT/stage is memory, which a
 * kill leaves and a power cut empties. A call that changes something, and one
 * that syncs, is a point of the schedule and may fail.
 */
#ifndef TESTS_SIM_DISK_H
#define TESTS_SIM_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/sim/sim.h"

/* Make an empty disk and an empty stage in `root`, a directory. */
void disk_init(const char *root, uint64_t seed);
const char *disk_store(void);
const char *disk_stage(void);
/*
 * The process that had the store open is gone: its descriptors and mappings
 * are, too. With `held` those that backing_open() gave out stay.
 */
void disk_kill(bool held);
/* The power is gone: after disk_kill(). */
void disk_cut(struct chance *c);
/*
 * Several stores, each on a disk and with a memory of its own: part 0, 1, ...
 * The same of one of them.
 */
#define DISK_PART_BYTES 180
void disk_part_make(unsigned part, char ret_store[DISK_PART_BYTES],
		    char ret_stage[DISK_PART_BYTES]);
void disk_part_kill(unsigned part);
void disk_part_cut(unsigned part, struct chance *c);
/*
 * fn: does a file that a power cut may leave have these bytes of an image? Who
 * changes them then has made a mistake.
 */
void disk_on_change(bool (*fn)(uint64_t image, uint64_t off, uint64_t len));
/* As a power cut leaves it. NULL, or what is wrong: it may leave other bytes.
 */
const char *disk_read_durable(uint64_t image, uint64_t off, size_t len,
			      uint8_t *buf);
/* Descriptors below ROOT that are open; they are printed. */
unsigned disk_open_descriptors(void);
unsigned disk_mappings(void);
/* Files in the stage, but for its table. */
unsigned disk_stage_files(void);
/* Of the disk: as large as that, UINT64_MAX: nobody counts. */
void disk_set_size(uint64_t bytes);
uint64_t disk_free(void);
/* One call in so many fails, until the clock says so. 0: none. */
void disk_errors(uint64_t one_in, int64_t until_ns);
/* A small file that is durable at once. 0, or -errno. */
int disk_put_file(const char *path, const char *text);
void disk_remove(void);

/* Who opens in the kernel's stead: these descriptors are not the daemon's. */
int disk_backing_open(void *arg, int fd);
void disk_backing_close(void *arg, int id);

#endif
