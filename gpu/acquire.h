/*
 * acquire.h - a mapping to fill, for one save at a time.
 *
 * There are SEGMENTS_PER_SET segments of a structure: one is filled while the
 * file that is in the other becomes durable. Who finds both in use waits, here
 * for another save of this process, at the mount for a file's durability.
 */
#ifndef GPU_ACQUIRE_H
#define GPU_ACQUIRE_H

#include "gpu/mapping.h"

/*
 * A mapping to fill; dirfd is any directory in the mount, node as
 * gpu_device_node() says it, for memory that is new. -ENOSPC, -EDQUOT,
 * -EOPNOTSUPP: there is none to be had. Others: the error that keeps the older
 * file from becoming durable, or -ESTALE when the mount ended meanwhile. Sets
 * the sentence, naming `path`.
 */
int acquire_mapping(struct ckpt_mount *m, int dirfd, const char *path,
		    const uint8_t signature[SEGMENT_SIGNATURE_BYTES],
		    uint64_t size_bytes, int node,
		    struct mapping **ret_mapping);
/* It was committed as file ino. */
void acquire_committed(struct mapping *p, uint64_t ino, int64_t mtime_ns);
/* It will not be committed; it stays for the next save, if it is good still. */
void acquire_return(struct mapping *p);
/*
 * Its daemon has ended, and what it holds goes to another mapping: it does not
 * count among those that are being filled any more.
 */
void acquire_give_place(struct mapping *p);

#endif
