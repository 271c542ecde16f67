/*
 * shares.h - how many slots of the table of stages each user has.
 *
 * A user may have as many as are free, and no more: he alone never has more
 * than half of them, a second one no more than half of what he leaves, and so
 * on. Root, and the user that this process runs as, may have all.
 *
 * Pure: no thread, no I/O. stages.lock is held.
 */
#ifndef STORE_SHARES_H
#define STORE_SHARES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct share {
	uid_t uid;
	uint32_t slots;
	uint32_t told; /* how many when it was told; 0: not, since */
};

struct shares {
	struct share *at; /* owned; of those who have any */
	size_t count, capacity;
	uint64_t refused; /* how often, since the start */
	uid_t refused_uid; /* whom last */
};

/*
 * One slot more for uid, of `free` that are left. -EDQUOT: he has his share;
 * *ret_slots: how many, to be told of, 0: he was told. -ENOMEM.
 */
int shares_take(struct shares *s, uid_t uid, uint32_t free,
		uint32_t *ret_slots);
/* Whatever his share is: he has it already. -ENOMEM. */
int shares_add(struct shares *s, uid_t uid);
/* One of his slots is free again. */
void shares_give(struct shares *s, uid_t uid);
void shares_release(struct shares *s);

#endif
