/*
 * memory.h - how much memory this process may use: what the machine has, or
 * less where a control group says so.
 */
#ifndef STORE_BASE_MEMORY_H
#define STORE_BASE_MEMORY_H

#include <stdint.h>

uint64_t memory_bytes(void);

/*
 * The smallest limit of the control groups that this process is in, each with
 * those above it, of version 1 and 2; UINT64_MAX: there is none. `root` is
 * put before /proc and /sys ("": the real ones).
 */
uint64_t memory_cgroup_limit(const char *root);

#endif
