/*
 * label.h - what an image says about itself: an extended attribute with the
 * file that was committed with it, so that a store whose database is lost can
 * be put together again (rebuild.h).
 *
 * It is written before the sync that makes the image's bytes durable, and so is
 * as durable as they are. It is a copy: nothing but a rebuild reads it, and a
 * file system without extended attributes goes without. A file that has no
 * image of its own (a small one, or one whose bytes are all shared) has none;
 * nor is one changed by what happens to the file later: a new name, another
 * owner, its deletion.
 *
 * A file system gives all attributes of a file one block, often of 4 KiB. So
 * the list of extents may end early; `extent_count` says how many there are.
 *
 * Errors: 0 or a negative errno. Blocks on the disk.
 */
#ifndef STORE_LABEL_H
#define STORE_LABEL_H

#include <stdbool.h>
#include <stdint.h>

#include "store/base/bytes.h"
#include "store/db/layout.h"
#include "store/db/records.h"

#define LABEL_BYTES_MAX 3400
#define LABEL_PATH_MAX 1500 /* of a longer one its end is kept */

struct label {
	char uuid[LAYOUT_UUID_BYTES]; /* of the store */
	uint64_t image, ino, generation;
	uint64_t size_bytes;
	int64_t mtime_ns;
	uint32_t mode, uid, gid;
	uint64_t domain; /* of its chunks */
	uint8_t digest[16]; /* of all of the content: see struct content */
	bool by_content; /* by which rule it was cut: cut.h */
	/* All bytes lie in this image, at their own offsets. */
	bool identity;
	uint64_t extent_count;
	/* The first of them; 0 when it is an identity. Owned by the caller. */
	size_t listed;
	struct extent *extents;
	char path[LABEL_PATH_MAX + 1];
};

/* At most LABEL_BYTES_MAX bytes; l->listed says how many extents are given. */
void label_encode(const struct label *l, struct bytes *out);
/* -EIO: damaged, or of another version. label_release() it. */
int label_decode(const void *p, size_t len, struct label *ret);
void label_release(struct label *l);

/* Of an open image. -EOPNOTSUPP and others: it cannot have one. */
int label_set(int fd, const struct bytes *encoded);
/* -ENODATA: it has none. */
int label_get(int fd, struct label *ret);

#endif
