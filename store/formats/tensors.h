/*
 * tensors.h - which tensors a file has: safetensors, and what torch.save makes,
 * one archive or many, one after another (.distcp).
 *
 * Nothing is executed and no payload is read. What a file claims is compared
 * with it: every tensor lies in the file, and every name is UTF-8 without a
 * NUL. Bytes that an archive has and no tensor that was understood takes are
 * listed too, without a dtype, so that nothing is passed over in silence.
 *
 * Errors:  0 or a negative errno. -EBADMSG: not what it says it is, and
 *          ret_list->error says why. -EFBIG, -EOPNOTSUPP: likewise, too large,
 *          or more than is known here: it may be in order.
 */
#ifndef STORE_FORMATS_TENSORS_H
#define STORE_FORMATS_TENSORS_H

#include "store/formats/tensor_list.h"

struct cut_source;

/*
 * Add what a file has; `file` becomes the tensors' file. In a file of
 * many archives a tensor is "@<offset>", and its bytes are the archive's.
 * l->format is the file's. Also the errors of source->read.
 */
int tensors_read(struct tensors *l, const struct cut_source *source,
		 const char *name, const char *file);

#endif
