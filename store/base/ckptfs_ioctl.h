/*
 * ckptfs_ioctl.h - what ckptctl (and anybody else) may ask of a mount, by
 * ioctl(2) on an open file or directory in it.
 *
 * Answers are JSON texts, fetched in pages: start with cursor 0; each call
 * fills `text` (`len` bytes, not terminated) and sets `cursor` for the next
 * page, or 0 when that was the last one. Pages break anywhere, except those of
 * CKPTFS_OPENS: each of them is a JSON array of its own.
 */
#ifndef STORE_BASE_CKPTFS_IOCTL_H
#define STORE_BASE_CKPTFS_IOCTL_H

#include <stdint.h>
#include <sys/ioctl.h>

#include "store/base/segment_wire.h"

enum ckptfs_what {
	CKPTFS_STATUS = 1, /* the mount; on anything in it */
	CKPTFS_INSPECT = 2, /* the open file: state, digest, extents */
	CKPTFS_GC = 3, /* give back what is unused now; what that freed */
	CKPTFS_OPENS = 4, /* opens to read, by rank; on anything in it */
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

/*
 * The same, and then until all that was closed on this node so far is in the
 * shared directory. EOPNOTSUPP: this mount has none.
 */
#define CKPTFS_IOC_FLUSH_SHARED _IO('k', 7)

/*
 * Where segments are to be had (segment_wire.h), on anything in the mount.
 * EOPNOTSUPP: this mount has none.
 */
struct ckptfs_segments {
	uint8_t address[110]; /* out: a struct sockaddr_un ... */
	uint16_t address_len; /* ... of so many bytes */
	uint8_t token[SEGMENT_TOKEN_BYTES]; /* out */
};
#define CKPTFS_IOC_SEGMENTS _IOR('k', 3, struct ckptfs_segments)

/*
 * A filled segment becomes the file `name` of the open directory: it is there
 * at once, complete, and queued as if it had been closed. What had that name
 * is replaced as by O_TRUNC, but who has it open keeps it, and a power cut
 * finds either the old or the new content. Needs what open(2) would need: write
 * and search permission on the directory for a new name, write permission on
 * a file that is replaced.
 * ESTALE: no such segment, or not of this generation (the mount was started
 * anew): get another one and fill it.
 */
#define CKPTFS_NAME_BYTES 256
struct ckptfs_commit {
	uint64_t id, generation; /* in: of the segment */
	uint64_t size_bytes; /* in: of the segment, to be sure */
	uint32_t mode; /* in: permissions of a new file, without umask */
	/* out: 1: it is the file, and its close would fail with EUCLEAN. */
	uint32_t refused;
	uint64_t ino; /* out: of the file */
	int64_t mtime_ns; /* out: the file's */
	char name[CKPTFS_NAME_BYTES]; /* in: terminated */
};
#define CKPTFS_IOC_COMMIT _IOWR('k', 4, struct ckptfs_commit)

/*
 * Returns when the file of that inode number is durable, on anything in the
 * mount; ENOENT: it was deleted, or its name means another inode now.
 */
struct ckptfs_wait {
	uint64_t ino; /* in */
};
#define CKPTFS_IOC_WAIT _IOW('k', 5, struct ckptfs_wait)

#endif
