/*
 * trailer.h - the last 4096 bytes of a pending file: whose it is.
 *
 * A regular file of the shared directory with the sticky bit is not whole: its
 * bytes are on one node, on their way. The trailer behind them says on which
 * node, and what stat(2) shall say of the file meanwhile. It is cut off when
 * the bytes are there, before the mode becomes the file's own.
 *
 *      0  "ckptrail"
 *      8  u32  version, 1
 *     12  u32  flags; bit 0: the file is still being written
 *     16       UUID of the node's store, a text in 40 bytes
 *     56  u64  number of the file in that store
 *     64  u64  size_bytes
 *     72  u32  mode, with S_IFREG
 *     76  u32  0
 *     80  i64  atime_ns
 *     88  i64  mtime_ns
 *     96       name of the node, a text in 64 bytes
 *    160       zeros
 *   4088  u64  XXH3-64 of all before it
 *
 * Numbers are little-endian, and a text is followed by zeros. Other nodes act
 * on what they read here, and anybody may have written it: a trailer is one to
 * the byte, or it is none. Pure: any thread, no errno but what is returned.
 */
#ifndef STORE_SHARED_TRAILER_H
#define STORE_SHARED_TRAILER_H

#include <stdbool.h>
#include <stdint.h>

#include "store/db/layout.h"

#define TRAILER_BYTES 4096u
#define SHARED_NODE_MAX 63 /* characters of a node's name */

struct trailer {
	char node[SHARED_NODE_MAX + 1];
	char uuid[LAYOUT_UUID_BYTES];
	uint64_t number, size_bytes;
	uint32_t mode;
	bool writing;
	int64_t atime_ns, mtime_ns;
};

/* 1 to SHARED_NODE_MAX of A-Z a-z 0-9 . _ - that do not begin with a dot. */
bool shared_node_is_name(const char *name);

/*
 * Can it be written? The node has a name, the UUID is one, the size leaves room
 * for a trailer behind it, and the mode is one of a regular file without the
 * sticky bit, which would leave the file pending for ever.
 */
bool trailer_is_fine(const struct trailer *t);
/* It is fine. */
void trailer_encode(const struct trailer *t, uint8_t out[TRAILER_BYTES]);
/*
 * -ENODATA: it is none: perhaps the file is just being completed. -EUCLEAN: it
 * is one, and damaged, or of a version that is not known here.
 */
int trailer_decode(const uint8_t in[TRAILER_BYTES], struct trailer *ret);

#endif
