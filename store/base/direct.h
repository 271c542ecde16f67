/*
 * direct.h - reads past the page cache: what the disk has, and not what is in
 * memory of it. A file system without O_DIRECT is read through its cache.
 */
#ifndef STORE_BASE_DIRECT_H
#define STORE_BASE_DIRECT_H

#include <stddef.h>
#include <stdint.h>

/* openat(2) to read, following no link: a descriptor, or -errno. */
int direct_open(int dirfd, const char *name);
/*
 * `want` bytes from off on, and up to `ask` of them: buf, ask and off are
 * aligned to blocks. 0; -ESTALE: the file ends before; else -errno.
 */
int direct_read(int fd, void *buf, size_t want, size_t ask, uint64_t off);

#endif
