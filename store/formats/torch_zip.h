/* torch_zip.h - zip archives as torch.save writes them, one or many. */
#ifndef STORE_FORMATS_TORCH_ZIP_H
#define STORE_FORMATS_TORCH_ZIP_H

#include "store/formats/walk.h"

/*
 * Mark where the members of all archives in the file start and end. 1: there
 * was at least one archive; 0: none was found, nothing was marked; -ENOMEM,
 * or an error of walk_*().
 */
int torch_zip_walk(struct walk *w);

#endif
