/*
 * ckptfs_ioctl.h - what ckptctl (and anybody else) may ask of a mount, by
 * ioctl(2) on an open file or directory in it.
 *
 * Answers are JSON texts, fetched in pages: start with cursor 0; each call
 * fills `text` (`len` bytes, not terminated) and sets `cursor` for the next
 * page, or 0 when that was the last one. Pages break anywhere.
 */
#ifndef FUSE_CKPTFS_IOCTL_H
#define FUSE_CKPTFS_IOCTL_H

#include <stdint.h>
#include <sys/ioctl.h>

enum ckptfs_what {
	CKPTFS_STATUS = 1, /* the mount; on anything in it */
	CKPTFS_INSPECT = 2, /* the open file: state, digest, extents */
	CKPTFS_GC = 3, /* give back what is unused now; what that freed */
};

#define CKPTFS_PAGE_BYTES 8192
struct ckptfs_query {
	uint32_t what; /* in: enum ckptfs_what */
	uint32_t len; /* out: bytes of text in this page */
	uint64_t cursor; /* in: where to go on; out: the next, 0 at the end */
	char text[CKPTFS_PAGE_BYTES]; /* out */
};

/* ENOTTY: not a ckptfs mount. */
#define CKPTFS_IOC_QUERY _IOWR('k', 1, struct ckptfs_query)
/*
 * Returns when the open file, or everything under the open directory, is
 * durable; fails with the error that keeps it from being so.
 */
#define CKPTFS_IOC_FLUSH _IO('k', 2)

#endif
