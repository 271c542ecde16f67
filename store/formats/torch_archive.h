/* torch_archive.h - the tensors of archives that torch.save made. */
#ifndef STORE_FORMATS_TORCH_ARCHIVE_H
#define STORE_FORMATS_TORCH_ARCHIVE_H

#include <stdbool.h>

#include "store/formats/chunks.h"
#include "store/formats/tensor_list.h"

/*
 * Add what a file of one archive has; or of many (is_distcp: also of one), and
 * then l->format becomes "distcp". See tensors_read().
 */
int torch_archives_read(struct tensors *l, const struct cut_source *source,
			bool is_distcp, const char *file);

#endif
