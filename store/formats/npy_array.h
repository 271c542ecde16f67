/*
 * npy_array.h - what the header of an array that numpy saved says of it.
 *
 * Nothing is executed: the header is Python source, of which just the form
 * that numpy writes is understood.
 */
#ifndef STORE_FORMATS_NPY_ARRAY_H
#define STORE_FORMATS_NPY_ARRAY_H

#include "store/formats/chunks.h"
#include "store/formats/tensor_list.h"

/*
 * Add the array that begins at `at` in a file and lies in len bytes to the
 * list, as `name` of `file`. What is behind it is added as bytes. An array
 * whose header is not understood is bytes as a whole. -EBADMSG: it is longer
 * than len. -ENOMEM, and the errors of source->read.
 */
int npy_array_add(struct tensors *l, const struct cut_source *source,
		  uint64_t at, uint64_t len, const char *name,
		  const char *file);

#endif
