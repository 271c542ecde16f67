/*
 * kernel.h - a store as a mount's users see it: what the kernel and fuse/ do
 * between a system call and store/, without either.
 *
 * close(2) sends a FLUSH and waits for it; the RELEASE comes later, by a thread
 * of its own, perhaps after the next OPEN. A name that was looked up stays
 * known for a while. A directory's names change one after the other.
 */
#ifndef TESTS_SIM_KERNEL_H
#define TESTS_SIM_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "store/store.h"

struct kernel_file; /* an open one */

/*
 * Mount: the store is open and started. passthrough: see store.h. slow_reads:
 * the answer to each takes long.
 */
void kernel_mount(struct store *st, bool passthrough, bool slow_reads,
		  uint64_t seed);
/* Every RELEASE has been sent and answered. */
void kernel_settle(void);
void kernel_unmount(void);
/* It is gone, with the daemon or before. */
void kernel_forget_all(void);

/* All: 0 (or a length), or -errno. Paths: "name" or "dir/name". */
int kernel_open(const char *path, int flags, struct kernel_file **ret);
int kernel_write(struct kernel_file *f, const void *data, size_t len,
		 uint64_t off);
ssize_t kernel_read(struct kernel_file *f, void *buf, size_t len, uint64_t off);
int kernel_fsync(struct kernel_file *f);
int kernel_ftruncate(struct kernel_file *f, uint64_t size);
int kernel_fallocate(struct kernel_file *f, int mode, uint64_t off,
		     uint64_t len);
/* truncate(2): nobody has it open for that. */
int kernel_truncate(const char *path, uint64_t size);
/* What close(2) returns; f is gone. */
int kernel_close(struct kernel_file *f);
/* fsync(2) of a descriptor that was opened for it. */
int kernel_sync(const char *path);
int kernel_mkdir(const char *path);
bool kernel_has(const char *path);
int kernel_unlink(const char *path);
int kernel_rename(const char *from, const char *to, unsigned flags);
int kernel_link(const char *from, const char *to);
/* ckptctl flush on the root. */
int kernel_sync_all(void);
/* Nothing is done for so long. */
void kernel_sleep(int64_t ns);

#endif
