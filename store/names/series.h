/*
 * series.h - what the last file of a series was, so that the next one can be
 * given its memory before it is written.
 *
 * A series is the files whose paths differ only in their step number. Which
 * number that is cannot be known from one path, so two keys are kept: the
 * exact one takes the digits out of the directories' names only
 * (step_100/rank_3.pt and step_200/rank_3.pt), the general one out of the
 * file's name as well (ckpt_100.pt and ckpt_200.pt). The exact one counts
 * when it is known.
 *
 * A file that is written under a random name and renamed has no exact key: the
 * general one says that it is one of those (`.tmpXXXXXX` of safetensors,
 * `tmpXXXXXXXX` of Python), so that its siblings tell how large it will be. Of
 * `.NAME.XXXXXX` (mkstemp(3) as rsync uses it) NAME's keys are taken.
 */
#ifndef STORE_SERIES_H
#define STORE_SERIES_H

#include <stdint.h>

#include "store/db/kv.h"
#include "store/names/inode.h"

/* The two keys of a path. */
void series_keys(const char *path, uint64_t ret_keys[2]);
/* The size that a new file will probably have; 0: not known. */
uint64_t series_size(struct kv *kv, const uint64_t keys[2]);
/* Into b: this file had that size. */
void series_put(struct kv *kv, struct kv_batch *b, struct inode *in,
		uint64_t size_bytes);

#endif
