/*
 * staged.h - what becomes of a stage that a daemon left: the same question for
 * fsck, which says so, and for rebuild, which must not change the answer.
 * recover.c gives the answer, when the store is mounted next.
 */
#ifndef STORE_CHECK_STAGED_H
#define STORE_CHECK_STAGED_H

#include <stddef.h>
#include <stdint.h>

struct kv;
struct stage_slot;
struct stage_table;

#define STAGED_WHERE_BYTES 64

enum staged_fate {
	STAGED_TAKEN, /* the next mount makes it durable */
	STAGED_CACHE, /* its bytes are durable: it goes, or stays as a cache */
	STAGED_DELETED, /* its file has no name any more: it goes */
};

/* Of the i-th slot, or -errno. A record that is damaged counts as none. */
int staged_fate(struct kv *kv, const struct stage_table *t, size_t i);

/* Where its bytes are, for people: "images/12/0000000000000012". */
const char *staged_where(const struct stage_slot *slot,
			 char buf[STAGED_WHERE_BYTES]);

#endif
