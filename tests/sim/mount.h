/*
 * mount.h - a mount with shared=DIR, as its users see it: the operations of
 * fuse/ops_shared.c themselves, called as the kernel calls them, without FUSE.
 *
 * Each node has one. close(2) sends a FLUSH and waits for it; the RELEASE comes
 * later, by a thread of its own. What was looked up is forgotten some time
 * after. Who changes a directory has it for himself on this node, as by its
 * i_rwsem. After ESTALE a name is looked up once more, as the kernel does.
 * Errors: 0, or -errno. Paths are of the mount, without a slash before them.
 */
#ifndef TESTS_SIM_MOUNT_H
#define TESTS_SIM_MOUNT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "store/store.h"

struct shared;
struct mount;
struct mount_file; /* an open one */

/* The store is open, and so is the shared directory; both are started. */
struct mount *mount_new(struct store *st, struct shared *s, uint64_t seed);
/* All is closed: every RELEASE was sent, and all look-ups are forgotten. */
void mount_end(struct mount *m);

int mount_open(struct mount *m, const char *path, int flags,
	       struct mount_file **ret);
int mount_write(struct mount_file *f, const void *buf, size_t len,
		uint64_t off);
ssize_t mount_read(struct mount_file *f, void *buf, size_t len, uint64_t off);
int mount_fsync(struct mount_file *f);
int mount_truncate(struct mount_file *f, uint64_t size);
/*
 * What close(2) returns; f is gone. `released`, unless it is NULL, runs when
 * RELEASE was answered.
 */
int mount_close(struct mount_file *f, void (*released)(unsigned what),
		unsigned what);
/* Is it DIR's own file, in which it is written in place? */
bool mount_is_of_dir(const struct mount_file *f);
/* The descriptor of it then. */
int mount_fd(const struct mount_file *f);

int mount_mkdir(struct mount *m, const char *path);
int mount_unlink(struct mount *m, const char *path);
int mount_rmdir(struct mount *m, const char *path);
int mount_rename(struct mount *m, const char *from, const char *to,
		 unsigned flags);
int mount_link(struct mount *m, const char *from, const char *to);
int mount_stat(struct mount *m, const char *path, struct stat *ret);
/* The names in a directory, each followed by a NUL; its length, or -errno. */
ssize_t mount_list(struct mount *m, const char *path, char *buf, size_t size);

/* Nothing is done for so long. */
void mount_sleep(int64_t ns);

#endif
