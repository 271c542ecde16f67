/*
 * image_copy.h - a copy takes the place of an image whose file somebody has.
 *
 * Records name an image by its number, and whoever has its file open or mapped
 * (passthrough goes past the daemon) has the inode. When that inode is about to
 * change, or cannot be trusted any more, a copy gets the name: the records need
 * not be touched, and who has the old inode keeps it.
 *
 * After a crash in between, the name means the old inode or the copy, and both
 * have the same bytes: nothing may write to the old inode before the call
 * returned. A copy that was not finished is left behind under a name of its own
 * (LAYOUT_IMAGE_COPY) and goes with the next start.
 */
#ifndef STORE_IMAGE_COPY_H
#define STORE_IMAGE_COPY_H

#include "store/space/image.h"

/*
 * Make a durable copy under a name of its own; one at a time of each image.
 * Blocks on I/O: it copies all of it, where the file system has no reflinks.
 */
int image_copy_make(struct images *im, struct image *from);
/*
 * The copy is `from` from now on, durably, and the old inode is `to`, which
 * must be new and empty. One that was removed meanwhile needs no copy, and only
 * gets its new name. On failure `from` has the bytes that it had, and `to` has
 * no file. The caller holds reclaim_deciding(), so that nobody removes or
 * punches it meanwhile, and calls image_unmap() before the old inode changes.
 */
int image_copy_swap(struct images *im, struct image *from, struct image *to);

#endif
