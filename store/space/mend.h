/*
 * mend.h - a chunk whose bytes on the disk are not those that were stored gets
 * them back, in place, from another copy of it (H: `dedup_copies`, and what the
 * index knows besides).
 *
 * Keeps true: only a chunk is written whose bytes have been read just now, from
 * the disk and from memory, and are not those of its hash in one of them; and
 * only with bytes that have been hashed just now. What shares a block with it
 * stays as it is, or, where the block cannot be read, comes from copies too;
 * where nobody has those bytes, or somebody may need others, nothing is
 * written.
 *
 * A crash, or an error, in between leaves what was damaged damaged. What could
 * not be read goes on to answer EIO then, but for a block that the file ends
 * in: that can only be written once it is zeroed, so it may be left so.
 */
#ifndef STORE_MEND_H
#define STORE_MEND_H

#include <stdbool.h>
#include <stdint.h>

struct kv;
struct lock;

struct mend {
	struct kv *kv; /* all are borrowed */
	int images_dirfd;
	const uint8_t *secret; /* HASH_SECRET_BYTES */
	/*
	 * What keeps the image's name from meaning another inode while bytes
	 * are written: reclaim_deciding(), or, where nobody else is there, any.
	 * The caller holds neither it nor any lock after it in THE order, and
	 * has a reclaim_ticket from before he saw the chunk.
	 */
	struct lock *deciding;
	/* May somebody write, or have written, what no chunk of it covers? */
	bool (*is_written)(void *arg, uint64_t image);
	void *arg;
};

/*
 * The chunk that begins at `offset` of the image, which must be recorded.
 *
 * 1: its bytes are on the disk again as they were stored, and were read back.
 * 0: they are not wrong, or no longer. -ENOENT: no other copy is whole. -EBUSY:
 * it shares a block that cannot be read with what may be written, or still be
 * read. -EUCLEAN: its record, or one beside it, makes no sense. Another -errno:
 * it cannot be written, or not read back. Blocks on I/O, but not with
 * `deciding` held.
 * Threads: any; two that mend the same chunk write the same bytes.
 */
int mend_chunk(const struct mend *m, uint64_t image, uint64_t offset);

/*
 * What of [from, to) of an image is not zero: no chunk covers it, and who reads
 * the image in place of a file (native) must find zeros there. They are
 * compared, as the disk has them and as memory does, and written when they are
 * not; `write`: or only looked for.
 *
 * 1: they are zeros again. 0: they always were; what may be written, or waits
 * to be given back, is not judged. -EIO: they are not, or cannot be read, and
 * are not to be written or cannot be. Else a -errno. A block that cannot be
 * read and holds bytes of a chunk, too, is mend_chunk()'s, so chunks come
 * first.
 */
int mend_zeros(const struct mend *m, uint64_t image, uint64_t from, uint64_t to,
	       bool write);

#endif
