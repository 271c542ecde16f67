/*
 * structure_named.h - what the names of files promise: what they are, and which
 * others belong to them.
 *
 * Refused is only what no trainer means: a name that one framework alone gives,
 * on what begins like nothing that it writes. A name that anybody may have
 * given (model.pt) promises nothing by itself; such a file is noted among those
 * that are not explained, for who knows what it was before.
 */
#ifndef STORE_STEP_STRUCTURE_NAMED_H
#define STORE_STEP_STRUCTURE_NAMED_H

#include "store/step/structure_tree.h"

/*
 * A file that was read without an error, whose format (tensors.h) is this; its
 * path is kept by the structure. -ENOMEM, and the errors of file->read.
 */
int structure_check_named(struct structure *s, const struct cut_source *file,
			  const char *format, const char *path);

/*
 * Sets: model-00001-of-00003.safetensors has two others and an index beside it,
 * actor/model_world_size_4_rank_0.pt the other ranks of its machine, and of
 * each kind (model, optim) there are as many. What lacks is an error. -ENOMEM.
 */
int structure_check_sets(struct structure *s, const struct tree *t);

#endif
