/*
 * segment.h - this process's side of segments: mapped and pinned once, found
 * again for every save of the same structure.
 */
#ifndef GPU_SEGMENT_H
#define GPU_SEGMENT_H

#include "gpu/mount.h"

/*
 * A segment to fill. When both of this structure are in use, waits for the
 * older one's file to become durable; dirfd is any directory in the mount.
 * -ENOSPC, -EDQUOT, -EOPNOTSUPP: there is none to be had. Others: the error
 * that keeps the older file from becoming durable, or -ESTALE when the mount
 * ended meanwhile. Sets the sentence, naming `path`.
 */
int segment_acquire(struct ckpt_mount *m, int dirfd, const char *path,
		    const uint8_t signature[SEGMENT_SIGNATURE_BYTES],
		    uint64_t size_bytes, struct segment **ret_segment);
/* It was committed as file ino. */
void segment_committed(struct segment *s, uint64_t ino, int64_t mtime_ns);
/*
 * Have the other one of its structure made, mapped, touched and pinned by a
 * thread, before the next save needs it.
 */
void segment_prepare_twin(struct segment *s, int dirfd);
void segments_wait_for_twins(struct ckpt_mount *m);
/*
 * Its daemon has ended, and what it holds goes to another segment: it does not
 * count among those that are being filled any more.
 */
void segment_give_place(struct segment *s);
/* It will not be committed; it stays for the next save, if it is good still. */
void segment_return(struct segment *s);
/* Unmapped and unpinned; not in the list any more. */
void segment_free(struct segment *s);
/* The mount wants its memory back, or (any) its connection has ended. */
void segments_released(struct ckpt_mount *m, uint64_t id);
void segments_disconnected(struct ckpt_mount *m, unsigned connection);

/*
 * Is the file still in a segment that is pinned here? Then its bytes, until
 * segment_read_end(); the file must stay open meanwhile. Else NULL.
 */
struct stat;
struct segment *segment_read_begin(struct ckpt *c, const struct stat *sb);
void segment_read_end(struct segment *s);

#endif
