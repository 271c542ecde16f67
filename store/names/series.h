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
/* For how many bytes a new file is given memory; 0: that is not known. */
uint64_t series_size(struct kv *kv, const uint64_t keys[2]);
/* Was a file of it ever noted? */
bool series_is_known(struct kv *kv, const uint64_t keys[2]);
/*
 * What to note of a file with holes. Memory is allocated from a file's
 * beginning on, so where more than a part in SERIES_HOLES_MAX is hole, it would
 * be much, and in the wrong places: nothing is expected, and the next file is
 * staged on the disk, which holds what is written and no more.
 */
#define SERIES_HOLES_MAX 8
uint64_t series_expects(uint64_t size_bytes, uint64_t hole_bytes);
/* Into b: so much is expected of the next file. */
void series_put(struct kv *kv, struct kv_batch *b, struct inode *in,
		uint64_t size_bytes);

#endif
