/*
 * shares.h - how many slots of the table of stages each user has, and how much
 * of the memory.
 *
 * A user may have as many as are free, and no more: he alone never has more
 * than half of them, a second one no more than half of what he leaves, and so
 * on. Root, and the user that this process runs as, may have all.
 *
 * With bytes that is so only while somebody else is in want: he was left
 * without when all were taken, and has staged something within the last hour.
 * Else one user may have all; who has his share is no worse off than when there
 * are none left.
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
	uint64_t bytes;
	int64_t wants_ns; /* when he was last seen in want; 0: he is not */
};

#define SHARES_WANT_NS (INT64_C(3600) * 1000000000)

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
/*
 * So many bytes more for uid, of `free` that nobody has. false: he has his
 * share, and is in want; also without memory to note it. now_ns > 0.
 */
bool shares_take_bytes(struct shares *s, uid_t uid, uint64_t bytes,
		       uint64_t free, int64_t now_ns);
/* Whatever his share is. They may be more than were noted (out of memory). */
void shares_add_bytes(struct shares *s, uid_t uid, uint64_t bytes);
void shares_give_bytes(struct shares *s, uid_t uid, uint64_t bytes);
/* There were not as many left as he wanted. */
void shares_want(struct shares *s, uid_t uid, int64_t now_ns);
void shares_release(struct shares *s);

#endif
