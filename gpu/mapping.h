/*
 * mapping.h - this process's view of a segment: the mount's memory, mapped and
 * pinned once, and found again for every save of the same structure.
 *
 *   filling --> idle      the save is committed: the mapping holds file `ino`
 *           --> idle      it is returned: the mapping holds no file
 *   idle    --> filling   the mount gives the same segment to another save
 *   idle    --> reading   a load copies from it; as many as like, none fills
 *
 * A mapping goes when it is idle, and its connection has ended or the mount
 * wants its memory back. Until both hold it stays: nobody's bytes move.
 */
#ifndef GPU_MAPPING_H
#define GPU_MAPPING_H

#include <sys/types.h>

#include "gpu/mount.h"

struct mapping {
	LIST_ENTRY(mapping) entry; /* in mount.mappings; mount.lock */
	struct ckpt_mount *mount;
	/* Immutable: */
	uint64_t id; /* the segment's */
	unsigned connection; /* of which it is */
	uint8_t signature[SEGMENT_SIGNATURE_BYTES];
	uint8_t *memory; /* mapped, size_bytes */
	uint64_t size_bytes;
	bool fresh; /* its first save is not over; who fills it alone */

	/* mount.lock: */
	bool filling; /* somebody's, until it is committed or returned */
	bool wanted_back; /* by the mount, as soon as it is idle */
	unsigned readers; /* loads that copy from it */
	bool pinned; /* and who fills it alone sets it */
	/* The file that it became, when not filling; ino 0: none. */
	dev_t dev;
	uint64_t ino;
	int64_t mtime_ns;

	/* Who fills it alone: */
	struct claim *claim; /* acquire.c's */
	bool pin_tried;
	uint64_t generation;
	/*
	 * What the tensors in it hash to, chunk by chunk; valid: the bytes are
	 * those. See unchanged.h.
	 */
	uint8_t (*digests)[16];
	size_t digest_count;
	bool digests_valid;
};

/*
 * The mount of an open directory, as mount_find() finds it; it tells the
 * mappings what becomes of their segments.
 */
int mapping_find_mount(struct ckpt *c, int dirfd,
		       struct ckpt_mount **ret_mount);

/*
 * Map the new segment of reply r, whose descriptor is fd, to be filled. The
 * mount is told; on an error it is not, and has to have the segment dropped.
 */
int mapping_new(struct ckpt_mount *m, const uint8_t *signature,
		const struct segment_reply *r, int fd, unsigned connection,
		struct mapping **ret_mapping);
/*
 * Touch all of it, by up to so many threads, a part at a time: the kernel holds
 * over each what every mmap(2) and page fault of the process needs. Ends early
 * when the mount is closed. For who fills it.
 */
void mapping_populate(struct mapping *p, unsigned threads);
/*
 * Populate and pin it, once, for the devices; without, copies take longer, and
 * that is counted. For who fills it.
 */
void mapping_pin(struct mapping *p, unsigned threads);
/*
 * The mapping of a segment that the mount gives again, to be filled. NULL:
 * there is none any more (the connection was another).
 */
struct mapping *mapping_find_again(struct ckpt_mount *m,
				   const struct segment_reply *r,
				   unsigned connection);
/*
 * Somebody has done with it; mount.lock is held. true: it goes, and the caller
 * calls mapping_remove() when the lock is free.
 */
bool mapping_is_over_locked(struct mapping *p);
void mapping_remove(struct mapping *p);

/*
 * Is the file still in a mapping that is pinned? Then its bytes are there
 * until mapping_read_end(); the file must stay open meanwhile. Else NULL.
 */
struct stat;
struct mapping *mapping_read_begin(struct ckpt *c, const struct stat *sb);
void mapping_read_end(struct mapping *p);

#endif
