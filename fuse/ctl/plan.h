/*
 * plan.h - what ckptctl plan is to plan: shards from a JSON text, or the stored
 * pieces of a checkpoint; and the list of what a checkpoint says it holds.
 */
#ifndef FUSE_CTL_PLAN_H
#define FUSE_CTL_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/base/bytes.h"
#include "store/step/plan.h"

struct dcp;

struct plan_input {
	uint32_t rank_count;
	struct ckpt_plan_shard *shards; /* owned */
	size_t count;
	const char **labels; /* owned; ids for people, or NULL: the ids are */
	/* Owned: what they point to. */
	struct bytes ids, ranks;
	char error[512];
};

/*
 * From {"num_ranks": N, "shards": [{"id": "...", "bytes": N, "ranks": [...],
 * "source": N or null, "cross": false}, ...]}; "ranks": null are all of them.
 * text[len] must be a NUL. -EBADMSG: in->error says what is wrong. -ENOMEM.
 */
int plan_input_json(struct plan_input *in, const char *text, size_t len);

/*
 * Each entry of a checkpoint is a shard that every rank may read; its source
 * is the rank that wrote its file, if it is below rank_count. For pr3392 that
 * of a tensor is the first that its entries name, as upstream has it. -ENOMEM.
 */
int plan_input_dcp(struct plan_input *in, const struct dcp *d,
		   uint32_t rank_count, enum ckpt_plan_policy policy);

void plan_input_release(struct plan_input *in);

/* The name of shard i, for people. */
const char *plan_input_label(const struct plan_input *in, size_t i);

/*
 * Print what d, the .metadata of the folder, says it holds, and where the
 * folder's files do not match; *ret_holds: they do. -errno: nothing was
 * printed.
 */
int plan_list(int dirfd, const struct dcp *d, bool json, bool *ret_holds);

#endif
