/*
 * in_place.h - changes in place of a file that somebody reads, and who that is.
 *
 * A reader in passthrough has the inode that backs the file: a stage, or the
 * image that its committed bytes lie in. The kernel allows one such inode for
 * as long as the file is open, so a change that he is to see must go into it.
 * A stage is there to be written to; an image is not, since records refer to
 * its bytes. So the image's inode becomes the file's stage, and a copy takes
 * its place under the records (image_copy.h). An append to a file of 1 GiB that
 * is being read waits for that copy once, 0.6 s on ext4 (measured), and not at
 * all where there are reflinks; nothing else is asked of readers or of
 * later writes, which stay in the kernel.
 *
 * Who is left after the last handle, with a mapping, is asked for, not
 * remembered: the kernel grants a lease when there is nobody (lease.h).
 */
#ifndef STORE_IN_PLACE_H
#define STORE_IN_PLACE_H

#include <stdbool.h>

#include "store/names/inode.h"

struct store;

/*
 * The image that a mapping of a file without a stage may be of; 0: none.
 * in->lock is held.
 */
uint64_t file_mapped_image_locked(const struct file *f);
/*
 * Make it so. The caller holds in->turn and has begun a change.
 * -EMLINK: another file has the same image open, so nothing was changed.
 * Copies the image; other errors are the disk's.
 */
int file_take_image(struct store *st, struct inode *in);

/*
 * Ask whether a mapping is left of a file, and note when none is. in->turn is
 * held, so that nobody opens it meanwhile.
 */
void file_ask_left_turn(struct store *st, struct inode *in);
/*
 * Ask again of the files whose last writer is gone but maybe not his mapping:
 * what nobody can write to any more is drained. True when some are left that
 * have to be asked again.
 */
bool files_ask_left(struct store *st);

#endif
