/*
 * memory.h - how much memory a process may use: what the machine has, or less
 * where a control group says so.
 */
#ifndef STORE_BASE_MEMORY_H
#define STORE_BASE_MEMORY_H

#include <stdint.h>
#include <sys/types.h>

uint64_t memory_bytes(void);

/*
 * The smallest limit of the control groups that this process is in, each with
 * those above it, of version 1 and 2; UINT64_MAX: there is none. `root` is
 * put before /proc and /sys ("": the real ones).
 */
uint64_t memory_cgroup_limit(const char *root);

/*
 * How much more the groups of another process let it take, with what the kernel
 * takes back from them first: the pages of files on disks. UINT64_MAX: they
 * limit nothing, or are not to be seen from here.
 */
uint64_t memory_cgroup_room(const char *root, pid_t pid);

#endif
