/* torch_zip.h - zip archives as torch.save writes them, one or many. */
#ifndef STORE_FORMATS_TORCH_ZIP_H
#define STORE_FORMATS_TORCH_ZIP_H

#include "store/formats/zip.h"

/*
 * Mark where the members of all archives in the file start and end. 1: there
 * was at least one archive; 0: none was found, nothing was marked; -ENOMEM,
 * or an error of walk_*().
 */
int torch_zip_walk(struct walk *w);

/*
 * All archives of the file, the first one first; *ret is the caller's, and
 * NULL where there is none. -ENOMEM, or the error of walk_peek().
 */
int torch_zip_archives(struct walk *w, struct zip_archive **ret,
		       size_t *ret_count);

#endif
