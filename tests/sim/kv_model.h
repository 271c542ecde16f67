/*
 * kv_model.h - the database of a run: an ordered map in memory behind kv.h.
 *
 * Batches are kept in the order in which they were written, with how many of
 * them a kv_sync() has made durable. A kill leaves all of them, a power cut
 * those that are durable and some that were written after.
 */
#ifndef TESTS_SIM_KV_MODEL_H
#define TESTS_SIM_KV_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "store/db/kv.h"
#include "tests/sim/sim.h"

/*
 * Nobody has it open any more. dir: of the database, where a run has several
 * stores; NULL: the first. What says none is about that one.
 */
void kv_model_kill(const char *dir);
/* What was not synced: a prefix of it is left. */
void kv_model_cut(const char *dir, struct chance *c);
/* Of what is durable now; -ENOENT. The value stays the database's. */
int kv_model_durable(const void *key, size_t key_len, struct kv_slice *ret);
/*
 * Does fn say so of a value with a key of this kind, in any of the states that
 * a power cut could leave now?
 */
bool kv_model_any_value(char kind, bool (*fn)(void *arg, struct kv_slice),
			void *arg);
/* fn runs for each batch with a name or a file that a sync made durable. */
void kv_model_on_durable(void (*fn)(void));
/*
 * From now on: one write in so many finds no room or an error (0: none), until
 * the clock says so.
 */
void kv_model_errors(uint64_t one_in, bool syncs_only, int64_t until_ns);
/* How many batches a power cut could take away now. */
uint64_t kv_model_unsynced(void);

#endif
