/* plan_ids.h - ids of shards, in order. For plan.c alone. */
#ifndef STORE_STEP_PLAN_IDS_H
#define STORE_STEP_PLAN_IDS_H

#include "store/step/plan.h"

/*
 * places[i]: how many ids are below that of shard i. -EEXIST: *ret_twice has
 * the id of another shard. -ENOMEM. There is at least one shard.
 */
int plan_ids_sort(const struct ckpt_plan_shard *shards, uint32_t count,
		  uint32_t *places, uint32_t *ret_twice);

#endif
