/*
 * structure_index.h - the index of a model in several files, as Hugging Face's
 * libraries write it: NAME.index.json, whose weight_map has the file of each
 * tensor.
 */
#ifndef STORE_STEP_STRUCTURE_INDEX_H
#define STORE_STEP_STRUCTURE_INDEX_H

#include "store/step/structure_tree.h"

/*
 * Of a structure that is finished: each file that an index names must be there,
 * and each tensor in the file that it says, and a .safetensors file have no
 * other ones, if no file is damaged. What lacks is an error. An index beside
 * the model in one file (NAME) is a leftover, and one that is larger than
 * STRUCTURE_INDEX_BYTES_MAX or has no weight_map is no such thing. -ENOMEM.
 */
int structure_check_indexes(struct structure *s,
			    const struct structure_source *in,
			    const struct tree *t);

#endif
